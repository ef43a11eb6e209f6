"""Batches of boxes, in the states of a domain and in the columns of a search.

A box is a product of per-variable sets; every region of the query space is one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from certimap.core.arrays import Array, Bytes, Flags, Floats, Ints
from certimap.core.domain import Domain, Real
from certimap.core.logs import checked_logs
from certimap.core.rounding import ULP

Points = Array  # int16 state positions, or float64 when the domain has a real variable


@dataclass(frozen=True, eq=False)
class Boxes:
    """A batch of products of per-variable sets.

    - `domain`: the variables.
    - `mask`: bool, shape (batch, total_states): the states of categorical variables in each box.
    - `low`, `high`: float64, shape (batch, n), or None in a discrete domain: intervals of real variables (columns
      of categorical ones are ignored).
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
        """Return a box for each of `points`: state positions (values of real variables) of a `domain`."""
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
        """Return whether each of `points` (batch, n) lies in the first box, (batch,); discrete domains only."""
        columns = self.domain.offsets[:-1] + points.astype(np.int64)
        return np.all(self.mask[0][columns], axis=1)


def rounded_up(log_masses: Floats, log_slack: float) -> Floats:
    """Return logs of masses, raised by `log_slack` (nats) and the rounding of the log itself; at most 0."""
    reach = np.where(np.isfinite(log_masses), np.abs(log_masses), 0.0)  # -inf stays -inf
    return np.minimum(log_masses + (2.0 * log_slack + 4.0 * ULP * (1.0 + reach)), 0.0)


@dataclass(frozen=True, eq=False)
class SearchBoxes:
    """A batch of boxes in a search's columns: one per state of a categorical variable, two per real one."""

    mask: Bytes  # (batch, columns); those of a real variable, the halves of its interval, are always set
    low: Floats  # (batch, n), with no columns in a discrete domain
    high: Floats

    def __len__(self) -> int:
        return len(self.mask)

    def rows(self, which: Any) -> SearchBoxes:
        """Return some of the boxes, as a copy."""
        return SearchBoxes(self.mask[which].copy(), self.low[which].copy(), self.high[which].copy())


@dataclass(frozen=True, eq=False)
class Layout:
    """The columns of a search."""

    domain: Domain  # the query variables
    offsets: Ints  # int64, shape (n + 1,): the columns of every variable
    variable_of: Ints  # int64, shape (columns,)
    scales: Floats  # float64, shape (n,): for each real variable, a length that counts as long
    is_whole: Flags  # bool, shape (n,): real variables that take only whole numbers
    # float64, shape (n,): the interval of each real variable within the domain and the evidence
    low: Floats
    high: Floats

    @classmethod
    def of(
        cls,
        domain: Domain,
        scales: Floats | None = None,
        is_whole: Flags | None = None,
        within: tuple[Floats, Floats] | None = None,
    ) -> Layout:
        """Lay out a domain; `within` holds the evidence's interval ends, shape (n,) each, or None."""
        full = Boxes.full(domain)
        low = np.full(len(domain), -np.inf) if full.low is None else full.low[0]
        high = np.full(len(domain), np.inf) if full.high is None else full.high[0]
        if within is not None:
            low, high = np.maximum(low, within[0]), np.minimum(high, within[1])
        widths = np.where(domain.n_states == 0, 2, domain.n_states)
        offsets = np.concatenate([[0], np.cumsum(widths)]).astype(np.int64)
        scales = np.ones(len(domain)) if scales is None else scales
        is_whole = np.zeros(len(domain), np.bool_) if is_whole is None else is_whole
        return cls(domain, offsets, np.repeat(np.arange(len(domain)), widths), scales, is_whole, low, high)

    @property
    def is_real(self) -> Flags:
        return self.domain.n_states == 0

    def full(self) -> SearchBoxes:
        """Return the whole space as one box."""
        return self.of_boxes(Boxes.full(self.domain))

    def allowed(self) -> SearchBoxes:
        """Return the part of the space that the evidence allows, as one box."""
        mask = np.ones((1, int(self.offsets[-1])), np.uint8)
        return SearchBoxes(mask, self.low[None].copy(), self.high[None].copy())

    def of_boxes(self, boxes: Boxes) -> SearchBoxes:
        """Convert `Boxes` to the search's columns."""
        mask = np.ones((len(boxes), int(self.offsets[-1])), np.uint8)
        mask[:, ~self.is_real[self.variable_of]] = boxes.mask
        ends = (np.zeros((len(boxes), 0)) if end is None else end.copy() for end in (boxes.low, boxes.high))
        return SearchBoxes(mask, *ends)

    def log_share(self, boxes: SearchBoxes) -> Floats:
        """Return ln of each box's share of all joint states, shape (batch,); discrete domains only."""
        counts = np.add.reduceat(boxes.mask, self.offsets[:-1], axis=1, dtype=np.int64)
        with np.errstate(divide="ignore"):
            return np.sum(np.log(counts / self.domain.n_states), axis=1)

    def log_share_each(self, boxes: SearchBoxes) -> Floats:
        """Return `log_share` with each column's variable fixed there, (batch, columns); -inf outside the box."""
        counts = np.add.reduceat(boxes.mask, self.offsets[:-1], axis=1, dtype=np.int64)
        with np.errstate(divide="ignore", invalid="ignore"):
            held = self.log_share(boxes)[:, None] - np.log(counts)[:, self.variable_of]
        return np.where(boxes.mask > 0, held, -np.inf)

    def public(self, boxes: SearchBoxes) -> Boxes:
        """Convert boxes to `Boxes`."""
        mask = boxes.mask[:, ~self.is_real[self.variable_of]].astype(np.bool_)
        return Boxes(self.domain, mask, *(() if self.domain.is_discrete else (boxes.low, boxes.high)))


@dataclass(frozen=True, eq=False)
class Answers:
    """A prober's answers about a batch of boxes: natural logs, already rounded up.

    Raises SolverError if a bound is NaN: every comparison with it fails, so that a search would drop the box.
    """

    # float64, shape (batch,): the measure of each box, and an upper bound on its points. The measure is the box's
    # probability if the posterior has `Masses` that apply, else its share of all joint states (see
    # `Layout.log_share`), or NaN if a variable is real.
    log_mass: Floats
    log_bound: Floats
    # float64, shape (batch, columns): the same with the column's variable fixed there; -inf outside the box
    each_mass: Floats
    each_bound: Floats
    # float64, shape (batch, n): where to split each real variable, NaN if it cannot or need not be split
    splits: Floats
    # float64, shape (batch, n): a point of each box that may be its best, NaN if none is known. None: use the
    # splits of real variables and the states of largest bounds.
    middles: Floats | None = None

    def __post_init__(self) -> None:
        checked_logs(self.log_bound, "a prober bounds a box by")
        checked_logs(self.each_bound, "a prober bounds a part of a box by")
