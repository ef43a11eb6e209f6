"""The solver protocol: settings, a first state, and steps; everything else is the driver's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

if TYPE_CHECKING:
    from certimap.certify.ledger import Ledger
    from certimap.engine.posterior import Posterior


class SolverState(Protocol):
    """What a solver carries from step to step.

    `work` counts the edge evaluations done so far, the unit of every budget share inside a solver.
    """

    @property
    def done(self) -> bool:
        """Whether another step can change nothing."""
        ...


class Solver(Protocol):
    """A frozen dataclass of settings. No loop, clock, print or certificate inside.

    `requires` names the posterior methods that it needs beyond `sample` and `log_prob`.
    """

    name: ClassVar[str]
    requires: ClassVar[frozenset[str]]

    def init(self, posterior: Posterior, rng: np.random.Generator) -> Any:
        """Return the first state."""
        ...

    def step(self, state: Any, ledger: Ledger) -> Any:
        """Do a bounded piece of work (a fraction of a second), report events, return the next state."""
        ...
