"""A query with the truth about it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from certimap.core.domain import Domain, Label
from certimap.solvers.base import Solver

if TYPE_CHECKING:
    from certimap_lab.volume.beside import Everything

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Truth:
    """The distribution of a query as enumeration gives it. All logs are natural.

    Attributes
    ----------
    domain
        The query variables, in the order of the answer.
    log_prob
        ln p(q | e) of a point (state positions, or values of real variables).
    log_ranked
        ln p of the most probable points, highest first, as far as they are known.
    n_points
        How many points there are; None in a real domain.
    """

    domain: Domain
    log_prob: Callable[[Any], float]
    log_ranked: Floats
    n_points: int | None

    @classmethod
    def of_table(cls, domain: Domain, table: Floats) -> Truth:
        """Return the truth of nonnegative weights, one axis per query variable; they are normalised here."""
        with np.errstate(divide="ignore"):
            logs = np.log(table / table.sum())
        ranked = np.sort(logs, axis=None)[::-1]
        return cls(domain, lambda point: float(logs[tuple(int(x) for x in point)]), ranked, table.size)

    def value(self, assignment: dict[str, Label]) -> float:
        """Return ln p of an assignment of labels."""
        return self.log_prob(self.domain.encode(dict(assignment)))

    def log_kth(self, k: int) -> float | None:
        """Return the k-th largest ln p (the last one where there are fewer points); None where it is not known."""
        if self.n_points is not None:
            k = min(k, self.n_points)
        return float(self.log_ranked[k - 1]) if k <= len(self.log_ranked) else None


@dataclass(frozen=True)
class VolumeCase:
    """One query to one solver.

    Attributes
    ----------
    family
        Where it comes from.
    truth
        What is so.
    solver
        Its name, or a solver object.
    settings
        Further keywords of `map_query`, the seed among them.
    model, query, evidence
        What `map_query` takes; a posterior has neither query nor evidence.
    log_evidence
        ln p(e) (of the unnormalised total in a Markov network), or NaN where it is not compared.
    assumes
        Whether the certificate may rest on an assumption, which holds here.
    others
        Solvers to try, in this order, where one does not suit.
    everything
        What else may be asked of the model, with its joint distribution; None where nothing is.
    """

    family: str
    truth: Truth
    solver: str | Solver
    settings: dict[str, Any]
    model: Any
    query: list[str] | None = None
    evidence: dict[str, Any] | None = None
    log_evidence: float = math.nan
    assumes: bool = False
    others: tuple[str, ...] = ()
    everything: Everything | None = None
