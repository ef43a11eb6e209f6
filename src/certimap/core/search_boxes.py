"""Batches of boxes in the column layout of a search, and a prober's answers about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from certimap.core.arrays import Bytes, Flags, Floats, Ints
from certimap.core.box import Boxes
from certimap.core.domain import Domain
from certimap.core.logs import checked_logs
from certimap.core.rounding import ULP


def rounded_up(log_masses: Floats, log_slack: float) -> Floats:
    """Return natural logs of masses, raised by their possible rounding error and capped at 0.

    `log_slack` (nats) is the posterior's rounding error; rounding of the log itself is added.
    """
    reach = np.where(np.isfinite(log_masses), np.abs(log_masses), 0.0)  # -inf stays -inf
    return np.minimum(log_masses + (2.0 * log_slack + 4.0 * ULP * (1.0 + reach)), 0.0)


@dataclass(frozen=True, eq=False)
class SearchBoxes:
    """A batch of boxes in a search's columns.

    A categorical variable has one column per state; a real one has two, the halves of its interval, always
    set. `mask` is uint8 (batch, columns); `low` and `high` are float64 (batch, n), with no columns in a
    discrete domain.
    """

    mask: Bytes
    low: Floats
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
        mask = np.ones((1, int(self.offsets[-1])), np.uint8)
        boxes = Boxes.full(self.domain)
        if boxes.low is None or boxes.high is None:
            return SearchBoxes(mask, np.zeros((1, 0)), np.zeros((1, 0)))
        return SearchBoxes(mask, boxes.low, boxes.high)

    def allowed(self) -> SearchBoxes:
        """Return the part of the space that the evidence allows, as one box."""
        mask = np.ones((1, int(self.offsets[-1])), np.uint8)
        return SearchBoxes(mask, self.low[None].copy(), self.high[None].copy())

    def of_boxes(self, boxes: Boxes) -> SearchBoxes:
        """Convert `Boxes` to the search's columns."""
        mask = np.ones((len(boxes), int(self.offsets[-1])), np.uint8)
        mask[:, ~self.is_real[self.variable_of]] = boxes.mask
        if boxes.low is None or boxes.high is None:
            return SearchBoxes(mask, np.zeros((len(boxes), 0)), np.zeros((len(boxes), 0)))
        return SearchBoxes(mask, boxes.low.copy(), boxes.high.copy())

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
        categorical = ~self.is_real[self.variable_of]
        mask = boxes.mask[:, categorical].astype(np.bool_)
        if self.domain.is_discrete:
            return Boxes(self.domain, mask)
        return Boxes(self.domain, mask, boxes.low, boxes.high)


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
