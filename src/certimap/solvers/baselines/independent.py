"""Independent modes: each query variable takes the mode of its own marginal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from certimap.core.box import Boxes, Points
from certimap.core.posterior import Capability, Decodes, Masses, Posterior
from certimap.solvers.guess import OnePoint


@dataclass(frozen=True)
class Independent(OnePoint):
    """Each query variable takes the mode of its marginal posterior.

    Two passes over the circuit, whatever the size of the query; dependence is ignored. A real variable takes the
    mean of a component, the one with the largest marginal density.
    """

    name: ClassVar[str] = "independent"
    needs: ClassVar[tuple[Capability, ...]] = (Decodes | Masses,)

    def unsuited(self, posterior: Posterior) -> str | None:
        if posterior.domain.is_discrete or isinstance(posterior, Decodes):
            return None
        return (
            f"solver {self.name!r} needs the posterior to have modes() where a variable is real, and a "
            f"{type(posterior).__name__} has not; use solver='pac'"
        )

    def point(self, posterior: Decodes | Masses) -> Points:
        return posterior.modes() if isinstance(posterior, Decodes) else modes_of(posterior)


def modes_of(posterior: Masses) -> Points:
    """Return the marginal modes of the variables, shape (1, n); ties take the first state."""
    domain = posterior.domain
    log_mass = posterior.log_mass_each(Boxes.full(domain))[0]
    point = [np.argmax(own) for own in np.split(log_mass, domain.offsets[1:-1])]
    return np.array(point, domain.point_dtype)[None, :]
