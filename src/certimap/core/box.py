"""Batches of boxes. A box is a product of per-variable sets; every region of the query space is one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from certimap.core.arrays import Array, Flags, Floats, Ints
from certimap.core.domain import Domain, Real

Points = Array  # int16 state positions, or float64 when the domain has a real variable


@dataclass(frozen=True, eq=False)
class Boxes:
    """A batch of products of per-variable sets.

    Attributes
    ----------
    domain
        The variables.
    mask
        bool, shape (batch, total_states): the states of categorical variables in each box.
    low, high
        float64, shape (batch, n), or None in a discrete domain: intervals of real variables
        (columns of categorical ones are ignored).
    """

    domain: Domain
    mask: Flags
    low: Floats | None = None
    high: Floats | None = None

    @classmethod
    def full(cls, domain: Domain, batch: int = 1) -> Boxes:
        """Return `batch` copies of the whole space of a `domain`."""
        mask = np.ones((batch, domain.total_states), np.bool_)
        if domain.is_discrete:
            return cls(domain, mask)
        low = np.full((batch, len(domain)), -np.inf)
        high = np.full((batch, len(domain)), np.inf)
        for i, variable in enumerate(domain):
            if isinstance(variable, Real):
                low[:, i], high[:, i] = variable.low, variable.high
        return cls(domain, mask, low, high)

    @classmethod
    def of_points(cls, domain: Domain, points: Points) -> Boxes:
        """Return one single-point box per row of `points`.

        They are state positions in a `domain` (values of real variables), shape (batch, n).
        """
        batch = len(points)
        mask = np.zeros((batch, domain.total_states), np.bool_)
        discrete = np.flatnonzero(domain.n_states)
        columns = domain.offsets[discrete] + points[:, discrete].astype(np.int64)
        mask[np.arange(batch)[:, None], columns] = True
        if domain.is_discrete:
            return cls(domain, mask)
        values = np.array(points, np.float64)
        return cls(domain, mask, values, values.copy())

    @classmethod
    def concatenate(cls, parts: Sequence[Boxes]) -> Boxes:
        """Stack batches over one domain, at least one of them; `parts` keep their order."""
        first = parts[0]
        mask = np.concatenate([p.mask for p in parts])
        if first.low is None:
            return cls(first.domain, mask)
        low = np.concatenate([p.low for p in parts if p.low is not None])
        high = np.concatenate([p.high for p in parts if p.high is not None])
        return cls(first.domain, mask, low, high)

    def __len__(self) -> int:
        return len(self.mask)

    def __getitem__(self, rows: slice | Ints | Flags) -> Boxes:
        low = None if self.low is None else self.low[rows]
        high = None if self.high is None else self.high[rows]
        return Boxes(self.domain, self.mask[rows], low, high)

    def counts(self) -> Ints:
        """Return the number of states of each categorical variable per box, shape (batch, n); 0 for real ones."""
        padded = np.concatenate([np.zeros((len(self), 1), np.int64), np.cumsum(self.mask, axis=1)], axis=1)
        return padded[:, self.domain.offsets[1:]] - padded[:, self.domain.offsets[:-1]]

    def sizes(self) -> list[int]:
        """Return the exact number of points in each box of a discrete domain, without overflow."""
        return [math.prod(row) for row in self.counts().tolist()]

    def holds(self, points: Points) -> Flags:
        """Return whether each point lies in the first box, shape (batch,); discrete domains only.

        `points` are state positions, shape (batch, n).
        """
        columns = self.domain.offsets[:-1] + points.astype(np.int64)
        return np.all(self.mask[0][columns], axis=1)
