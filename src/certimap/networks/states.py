"""Maps states of the query's domain to a problem's surviving states, and back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from certimap.core.box import Points
from certimap.core.domain import Domain
from certimap.networks.problem import Prepared

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class QueryStates:
    """The numbering of the query variables' states in a problem."""

    domain: Domain  # the query variables, in the user's order
    variables: tuple[int, ...]  # their positions in the model
    position: Ints  # int64, shape (total_states,): the problem's number of each state, -1 where it is impossible
    # for each query variable the columns of its surviving states, in the problem's order
    columns: tuple[Ints, ...]

    @classmethod
    def of(cls, domain: Domain, prepared: Prepared) -> QueryStates:
        """Read the numbering off a prepared problem."""
        position = np.full(domain.total_states, -1, np.int64)
        columns: list[Ints] = []
        for i, v in enumerate(prepared.query):
            own = domain.offsets[i] + np.asarray(prepared.states[v], np.int64)
            position[own] = np.arange(len(own))
            columns.append(own)
        return cls(domain, tuple(prepared.query), position, tuple(columns))

    def to_problem(self, points: Points) -> tuple[Ints, NDArray[np.bool_]]:
        """Return points in the problem's numbers, shape (batch, n), and which of them are possible at all."""
        columns = self.domain.offsets[:-1] + np.asarray(points, np.int64)
        inner = self.position[columns]
        return inner, np.all(inner >= 0, axis=1)

    def to_domain(self, inner: Ints) -> Points:
        """Return points of the domain from points in the problem's numbers, shape (batch, n)."""
        points = np.empty(inner.shape, self.domain.point_dtype)
        for i, own in enumerate(self.columns):
            points[:, i] = own[inner[:, i]] - self.domain.offsets[i]
        return points
