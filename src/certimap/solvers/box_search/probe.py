"""Asking a posterior about a batch of search boxes: masses, bounds, and both for every column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from certimap.box import Boxes, Points
from certimap.domain import Domain
from certimap.posterior import Masses, Posterior

if TYPE_CHECKING:
    from certimap.circuits.caps import PlanView

Floats = NDArray[np.float64]
BLOCK = 8  # boxes a thread takes at a time


@dataclass(frozen=True, eq=False)
class SearchBoxes:
    """A batch of boxes in the search's own columns.

    A categorical variable has one column a state; a real one has two, the halves of its interval, always
    set. `mask` is uint8 (batch, columns); `low` and `high` are float64 (batch, n), with no columns in a
    discrete domain.
    """

    mask: NDArray[np.uint8]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.mask)

    def rows(self, which: Any) -> SearchBoxes:
        """Return some of the boxes, as a copy."""
        return SearchBoxes(self.mask[which].copy(), self.low[which].copy(), self.high[which].copy())


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the search's columns lie.

    Attributes
    ----------
    domain
        The query variables.
    offsets
        int64, shape (n + 1,): the columns of every variable.
    variable_of
        int64, shape (columns,).
    scales
        float64, shape (n,): a length that counts as long, for each real variable.
    """

    domain: Domain
    offsets: NDArray[np.int64]
    variable_of: NDArray[np.int64]
    scales: NDArray[np.float64]

    @classmethod
    def of(cls, domain: Domain, scales: NDArray[np.float64] | None = None) -> Layout:
        widths = np.where(domain.n_states == 0, 2, domain.n_states)
        offsets = np.concatenate([[0], np.cumsum(widths)]).astype(np.int64)
        return cls(
            domain,
            offsets,
            np.repeat(np.arange(len(domain)), widths),
            np.ones(len(domain)) if scales is None else scales,
        )

    @property
    def is_real(self) -> NDArray[np.bool_]:
        return self.domain.n_states == 0

    def full(self) -> SearchBoxes:
        """Return the whole space as one box."""
        mask = np.ones((1, int(self.offsets[-1])), np.uint8)
        boxes = Boxes.full(self.domain)
        if boxes.low is None or boxes.high is None:
            return SearchBoxes(mask, np.zeros((1, 0)), np.zeros((1, 0)))
        return SearchBoxes(mask, boxes.low, boxes.high)

    def public(self, boxes: SearchBoxes) -> Boxes:
        """Return the boxes as the posterior protocol has them."""
        categorical = ~self.is_real[self.variable_of]
        mask = boxes.mask[:, categorical].astype(np.bool_)
        if self.domain.is_discrete:
            return Boxes(self.domain, mask)
        return Boxes(self.domain, mask, boxes.low, boxes.high)


@dataclass(frozen=True, eq=False)
class Answers:
    """What a probe says about a batch of boxes; natural logs.

    Attributes
    ----------
    log_mass, log_bound
        float64, shape (batch,): the mass of each box (NaN where masses do not apply), and a bound on its points.
    each_mass, each_bound
        float64, shape (batch, columns): the same with the column's variable held there; -inf outside the box.
    splits
        float64, shape (batch, n): where each real variable would be split, NaN where it cannot be.
    """

    log_mass: NDArray[np.float64]
    log_bound: NDArray[np.float64]
    each_mass: NDArray[np.float64]
    each_bound: NDArray[np.float64]
    splits: NDArray[np.float64]


class Prober(Protocol):
    """Answers for boxes and climbs from points; `work` is the cost of one box, in edge visits."""

    work: int

    def probe(self, boxes: SearchBoxes) -> Answers: ...
    def climb(self, points: Points) -> Points: ...


class PlanProber:
    """Probes a plan with one compiled upward and downward pass a box, under the caps of its sum nodes."""

    def __init__(self, view: PlanView, log_caps: NDArray[np.float64], workers: int) -> None:
        self.view, self.log_caps, self.workers = view, log_caps, workers
        self.work = 4 * view.n_edges

    def probe(self, boxes: SearchBoxes) -> Answers:
        from certimap.circuits.kernels.probe import probe_rows
        from certimap.kernels.parallel import for_blocks

        batch, columns = len(boxes), self.view.n_columns
        answers = Answers(
            np.empty(batch),
            np.empty(batch),
            np.empty((batch, columns)),
            np.empty((batch, columns)),
            np.empty((batch, len(self.view.domain))),
        )
        intervals = (boxes.low, boxes.high)
        if self.view.domain.is_discrete:  # never read; the kernel takes a row each
            intervals = (np.zeros((batch, 1)), np.zeros((batch, 1)))

        def task(start: int, stop: int) -> None:
            rows = slice(start, stop)
            probe_rows(
                self.view.arrays,
                self.log_caps,
                self.view.n_terms,
                boxes.mask[rows],
                intervals[0][rows],
                intervals[1][rows],
                answers.log_mass[rows],
                answers.log_bound[rows],
                answers.each_mass[rows],
                answers.each_bound[rows],
                answers.splits[rows],
            )

        for_blocks(task, batch, BLOCK, self.workers)
        if not self.view.domain.is_discrete:
            answers.log_mass[:] = np.nan
        return answers

    def climb(self, points: Points) -> Points:
        from certimap.circuits.climb import climb_plan

        return climb_plan(self.view, points)


class PosteriorProber:
    """Probes any posterior that answers questions about boxes (a discrete domain)."""

    def __init__(self, posterior: Any, layout: Layout) -> None:
        self.posterior, self.layout = posterior, layout
        self.work = 4 * int(posterior.facts.work)
        self.has_masses = has_masses(posterior)

    def probe(self, boxes: SearchBoxes) -> Answers:
        public = self.layout.public(boxes)
        inside = public.mask
        each: Floats = np.where(inside, self.posterior.log_bound_each(public), -np.inf)
        bound: Floats = np.asarray(self.posterior.log_bound(public), np.float64)
        if self.has_masses:
            mass: Floats = np.asarray(self.posterior.log_mass(public), np.float64)
            each_mass: Floats = np.where(inside, self.posterior.log_mass_each(public), -np.inf)
            bound = np.minimum(bound, mass + slack(mass))
            each = np.minimum(each, each_mass + slack(each_mass))
        else:
            mass = np.full(len(boxes), np.nan)
            each_mass = np.full(each.shape, np.nan)
        each = np.minimum(each, bound[:, None])
        splits = np.full((len(boxes), len(self.layout.domain)), np.nan)
        return Answers(mass, bound, each_mass, each, splits)

    def climb(self, points: Points) -> Points:
        from certimap.circuits.climb import climb_posterior

        return climb_posterior(self.posterior, points) if self.has_masses else points


def has_masses(posterior: Posterior) -> bool:
    """Whether the masses of boxes are known and bound their points."""
    return posterior.facts.has_masses and isinstance(posterior, Masses)


def slack(log_values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how far computed logs (nats) may be below the truth."""
    return np.where(np.isfinite(log_values), 1e-11 + 1e-14 * np.abs(log_values), 0.0)
