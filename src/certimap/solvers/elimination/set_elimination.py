"""Exact marginal MAP by elimination on sets of vectors, made anytime by merging, splitting and draws."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from certimap.certify.bounds import log_draws_needed
from certimap.certify.ledger import Ledger
from certimap.core.arrays import Flags, Floats, Ints
from certimap.core.box import Boxes, Points
from certimap.core.control import Control, TimeUp
from certimap.core.posterior import Regions
from certimap.kernels.wide import LN2
from certimap.solvers.base import Effort, Solver
from certimap.solvers.box_search.open_boxes import log_difference
from certimap.solvers.elimination.geometry import Geometry, smaller
from certimap.solvers.elimination.one_pass import Outcome, SetPass
from certimap.solvers.exhaustive import joint_states
from certimap.trees.wide import Wide

BATCH = 64
UNIT = 2.0**-53
START_WORK = 200_000_000
DRAW_ROWS = 1024
HOPELESS_WORK = 1e13
ROWS_PER_ANSWER = 4  # least set limit per answer beyond the first
FEW_POINTS = 4096  # boxes up to this size are enumerated if the threshold was raised
STEP_WORK = 20_000_000


@dataclass(eq=False)
class Climb:
    """Hill climbs: from each point that moved last, all improving single changes, half of them, and the best."""

    points: Points
    values: Floats
    active: Ints

    def round(self, posterior: Regions, ledger: Ledger) -> int:
        """Improve the points; return the work, in table entries."""
        offsets = posterior.domain.offsets[:-1]
        each = posterior.log_mass_each(Boxes.of_points(posterior.domain, self.points[self.active]))
        best = np.maximum.reduceat(each, offsets, axis=1)
        trials: list[Points] = []
        owners: list[int] = []
        for row, i in enumerate(self.active):
            gains = best[row] - self.values[i]
            order = np.argsort(-gains, kind="stable")
            order = order[gains[order] > 1e-10]
            for n in sorted({len(order), (len(order) + 1) // 2, min(1, len(order))} - {0}):
                trials.append(_changed(self.points[i], order[:n], each[row], posterior))
                owners.append(int(i))
        moved: set[int] = set()
        if trials:
            found = ledger.candidates(np.array(trials))
            for trial, owner, value in zip(trials, owners, found, strict=True):
                if value > self.values[owner] + 1e-10:
                    self.points[owner], self.values[owner] = trial, value
                    moved.add(owner)
        self.active = np.array(sorted(moved), np.int64)
        return posterior.region_tree.n_entries * (3 * len(best) + len(trials))


@dataclass(eq=False)
class Neighbours:
    """The best points, grown by single changes of them, best first: a good k-th best saves most of the work."""

    expanded: set[int] = field(default_factory=set[int])
    is_done: bool = False

    def round(self, posterior: Regions, ledger: Ledger) -> int:
        """Evaluate promising one-variable changes of the best unexpanded points; return the work."""
        waiting = [atom for _, atom in ledger.best if atom not in self.expanded][:BATCH]
        if not waiting:
            self.is_done = True
            return 0
        self.expanded.update(waiting)
        domain = posterior.domain
        points = ledger.atoms.points(np.array(waiting, np.int64))
        each = posterior.log_mass_each(Boxes.of_points(domain, points))
        last = ledger.log_kth_best
        rows, columns = np.nonzero(each > last)
        if len(rows) > 4 * ledger.top_k:  # keep points that can enter the list
            kept = np.argpartition(-each[rows, columns], ledger.top_k)[: ledger.top_k]
            rows, columns = rows[kept], columns[kept]
        variable = np.searchsorted(domain.offsets, columns, side="right") - 1
        trials = points[rows]
        trials[np.arange(len(rows)), variable] = columns - domain.offsets[variable]
        changed = np.any(trials != points[rows], axis=1)
        if changed.any():
            ledger.candidates(np.unique(trials[changed], axis=0))
        return posterior.region_tree.n_entries * (3 * len(points) + int(changed.sum()))


def _changed(point: Points, variables: Ints, each: Floats, posterior: Regions) -> Points:
    """Return a copy of a point with some variables moved to their best states."""
    out = point.copy()
    offsets = posterior.domain.offsets
    for v in variables:
        out[v] = int(np.argmax(each[offsets[v] : offsets[v + 1]]))
    return out


@dataclass(eq=False)
class OpenBox:
    """A box that may hold a better assignment."""

    mask: Flags
    log_bound: float
    log_mass: float
    messages: list[Wide] | None
    log_states: Floats
    limit: int


@dataclass(eq=False)
class SetSearchState:
    """A search between two steps: plain data, which pickles. `slack`: of bounds and thresholds (nats)."""

    posterior: Regions
    control: Control
    rng: np.random.Generator
    geometry: Geometry
    open: list[OpenBox] = field(default_factory=list[OpenBox])
    climb: Climb | None = None  # with `neighbours`, the searches for an incumbent
    neighbours: Neighbours = field(default_factory=Neighbours)
    box: OpenBox | None = None  # the box being eliminated
    elimination: SetPass | None = None
    has_begun: bool = False
    n_whole: int = 0  # the number of eliminations begun; the first ones cover the whole space
    done: bool = False
    work: int = 0
    draw_work: int = 0
    n_nodes: int = 0
    peak: int = 0
    n_merged: int = 0
    set_sizes: dict[int, int] = field(default_factory=dict[int, int])  # by region, the most rows of its set so far

    def __post_init__(self) -> None:
        # Each of at most two sets per region loses a factor of 1 + 1e-14 to dominance, and as much to its sums.
        n_sets, sums = 2 * self.posterior.region_tree.n_regions, 4 * UNIT * self.geometry.longest_sum
        self.slack = 4.0 * self.posterior.facts.log_slack + 2e-14 * n_sets + sums

    @property
    def held_bytes(self) -> int:
        held = 0 if self.elimination is None else self.elimination.n_bytes
        per_box = 16 * int(self.posterior.region_tree.arrays.message_ptr[-1])
        return held + per_box * len(self.open) // 2


class Search:
    """A run's settings, state and ledger; `advance` makes one step."""

    def __init__(self, settings: SetElimination, state: SetSearchState, ledger: Ledger) -> None:
        self.settings, self.state, self.ledger = settings, state, ledger
        self.posterior = state.posterior

    def advance(self) -> int:
        """Do one piece of work: incumbent, eliminations of the whole space, then boxes, with draws between."""
        state = self.state
        if not state.has_begun:
            return self._start()
        if state.done:
            return 0
        if state.climb is not None and len(state.climb.active) and state.work < START_WORK:
            return state.climb.round(self.posterior, self.ledger)
        if self.ledger.top_k > 1 and not state.neighbours.is_done and state.work < 2 * START_WORK:
            return state.neighbours.round(self.posterior, self.ledger)
        if self._draws_are_due():
            return self._draw()
        if state.elimination is None:
            self._begin()
            return 0
        try:
            work = state.elimination.advance()
        except TimeUp:  # its box stays open, unchanged
            state.elimination, state.box, state.n_whole = None, None, state.n_whole - 1
            return 0
        if state.elimination.outcome is not None:
            self._finish(state.elimination, state.elimination.outcome)
            work += self.posterior.region_tree.n_entries
        return work

    def _start(self) -> int:
        """Find an incumbent by draws, or decode the maximum if that settles the query."""
        posterior, state = self.posterior, self.state
        n_entries = posterior.region_tree.n_entries
        affordable = START_WORK // (4 * n_entries)
        n = max(1, min(self.settings.n_first_draws, max(16, affordable)))
        if self.ledger.top_k == 1 and posterior.region_tree.is_visible and self._maximum(state.open[0]):
            state.has_begun = state.done = True
            return 4 * n_entries
        distinct = np.unique(posterior.sample(n, state.rng), axis=0)
        values = self.ledger.candidates(distinct)
        best = np.argsort(-values, kind="stable")[: self.settings.n_starts]
        state.climb, state.has_begun = Climb(distinct[best], values[best], np.arange(len(best))), True
        return n * self._draw_cost()

    def _maximum(self, box: OpenBox) -> bool:
        """Decode the bounding pass, exact without hidden variables; return whether that settled the query."""
        self.ledger.candidates(self.posterior.max_product())
        log_bound = float(self.posterior.log_bound(self._boxes(box.mask[None]))[0])
        if log_bound > self.ledger.log_exact_threshold:
            return False
        box.log_bound = log_bound
        self._prune()
        self._report()
        return True

    def _begin(self) -> None:
        """Begin the next box; the first, small one aims for the exact answer while sets stay small."""
        state, ledger, limits = self.state, self.ledger, self.settings.limits
        box = max(state.open, key=lambda b: b.log_bound)
        is_first = state.n_whole == 0
        box.limit = limits[state.n_whole] if state.n_whole < len(limits) else self.settings.split_limit
        box.limit = max(box.limit, ROWS_PER_ANSWER * (ledger.top_k - 1))
        threshold = (ledger.log_exact_threshold if is_first else ledger.log_threshold) - state.slack
        known, k = self._messages(box), ledger.top_k
        state.n_whole, state.box = state.n_whole + 1, box
        state.elimination = SetPass(state.geometry, box.mask, known, threshold, box.limit, k, state.control)

    def _finish(self, elimination: SetPass, outcome: Outcome) -> None:
        """Close an elimination's box, else shrink it; split it after all eliminations of the whole space."""
        state, ledger, box = self.state, self.ledger, self.state.box
        assert box is not None
        state.n_nodes += 1
        state.n_merged += elimination.n_merged
        state.peak = max(state.peak, elimination.peak)
        for region, size in elimination.sizes.items():
            state.set_sizes[region] = max(state.set_sizes.get(region, 0), size)
        box.log_bound = min(box.log_bound, self._candidates(elimination, outcome))
        state.elimination, state.box = None, None
        if not elimination.is_raised:
            box.messages = outcome.messages
        is_settled = not elimination.is_raised and (outcome.root is None or elimination.n_merged == 0)
        if is_settled or box.log_bound <= ledger.log_threshold:
            self.ledger.close(box.log_bound, box.log_mass)
            self._remove(box)
            self._prune()
        elif elimination.is_raised and (n_points := self._boxes(box.mask[None]).sizes()[0]) <= FEW_POINTS:
            ledger.settle(joint_states(self._boxes(box.mask[None]), 0, n_points))
            self._remove(box)
            self._prune()
        else:
            self._shrink(box, np.maximum(outcome.log_states, elimination.log_threshold), elimination)
        if state.n_whole >= len(self.settings.limits) and any(b is box for b in state.open):
            self._remove(box)
            state.open += self._split(box)
            self._prune()
        self._report()
        state.done = not state.open

    def _messages(self, box: OpenBox) -> list[Wide]:
        """Return bounds inside the box, from a pass over it and from earlier eliminations."""
        mantissas, exponents = self.posterior.bound_messages(box.mask)
        geometry = self.state.geometry
        ptr = self.posterior.region_tree.arrays.message_ptr.tolist()
        fresh = [
            geometry.to_contexts(r, Wide(mantissas[start:stop], exponents[start:stop]))
            for r, (start, stop) in enumerate(pairwise(ptr))
        ]
        return fresh if box.messages is None else list(map(smaller, fresh, box.messages))

    def _candidates(self, elimination: SetPass, outcome: Outcome) -> float:
        """Evaluate the best rows of the root; return a bound on the other assignments."""
        root, slack = outcome.root, self.state.slack
        if root is None:
            return elimination.log_threshold + slack
        values = root.values[:, 0]
        order = np.argsort(-values, kind="stable")
        rows = order[: max(32, self.ledger.top_k)]
        self.ledger.candidates(elimination.decode(rows, len(self.posterior.domain)))
        left = [elimination.log_threshold]
        with np.errstate(divide="ignore"):
            logs = np.log(values) + root.frame.exponent * LN2
        if root.relaxed.any():
            left.append(float(logs[root.relaxed].max()))
        if len(logs) >= self.ledger.top_k:  # dominated assignments are at most the root's k-th
            left.append(float(logs[order[self.ledger.top_k - 1]]))
        return max(left) + slack

    def _remove(self, box: OpenBox) -> None:
        self.state.open = [b for b in self.state.open if b is not box]

    def _prune(self) -> None:
        """Close every open box whose bound is at most the threshold."""
        threshold = self.ledger.log_threshold
        closed = [b for b in self.state.open if b.log_bound <= threshold]
        if closed:
            self.ledger.close(np.array([b.log_bound for b in closed]), np.array([b.log_mass for b in closed]))
            self.state.open = [b for b in self.state.open if b.log_bound > threshold]

    def _shrink(self, box: OpenBox, log_states: Floats, elimination: SetPass) -> None:
        """Drop the states of a box that cannot exceed the threshold, unless the threshold was raised."""
        slack = self.state.slack
        box.log_states = np.where(box.mask, log_states + slack, -np.inf)
        alive = box.mask & (log_states > elimination.log_threshold)
        if elimination.is_raised or np.array_equal(alive, box.mask):
            return
        log_before, log_bound = box.log_mass, elimination.log_threshold + slack
        box.mask = alive
        if not np.logical_or.reduceat(alive, self.posterior.domain.offsets[:-1]).all():
            self.ledger.close(log_bound, log_before)
            self._remove(box)
            return
        box.log_mass = min(self._mass(alive[None])[0], log_before)
        self.ledger.close(log_bound, log_difference(np.array(log_before), np.array(box.log_mass)))
        box.log_bound = min(box.log_bound, box.log_mass)
        self._prune()

    def _boxes(self, masks: Flags) -> Boxes:
        return Boxes(self.posterior.domain, masks)

    def _mass(self, masks: Flags) -> list[float]:
        """Return ln of the masses of boxes, rounded up."""
        masses = self.posterior.log_mass(self._boxes(masks)) + self.state.slack
        return [min(float(m), 0.0) for m in masses]

    def _split(self, box: OpenBox) -> list[OpenBox]:
        """Split a box by the states of the variable for which the bounds of the parts have the smallest sum."""
        domain = self.posterior.domain
        counts = np.add.reduceat(box.mask.astype(np.int64), domain.offsets[:-1])
        bounds = np.minimum(box.log_states, box.log_bound)
        linear = np.where(box.mask, np.exp(bounds - box.log_bound), 0.0)
        sums = np.where(counts > 1, np.add.reduceat(linear, domain.offsets[:-1]), np.inf)
        variable = int(np.argmin(sums))
        if counts[variable] < 2:  # one point: evaluating it settles the box
            point = np.flatnonzero(box.mask) - domain.offsets[:-1]
            self.ledger.settle(point[None].astype(np.int16))
            return []
        start, stop = domain.offsets[variable], domain.offsets[variable + 1]
        columns = [c for c in range(start, stop) if box.mask[c]]
        masks = np.repeat(box.mask[None], len(columns), axis=0)
        masks[:, start:stop] = False
        masks[np.arange(len(columns)), columns] = True
        masses = self._mass(masks)
        return [
            OpenBox(masks[i], min(float(bounds[c]), masses[i]), masses[i], box.messages, box.log_states, box.limit)
            for i, c in enumerate(columns)
        ]

    def _report(self) -> None:
        if not self.state.open:
            self.ledger.frontier(-math.inf, -math.inf)
            return
        self.ledger.frontier(self._open_mass(), max(b.log_bound for b in self.state.open))

    def _open_mass(self) -> float:
        return min(float(np.logaddexp.reduce([b.log_mass for b in self.state.open])) + self.state.slack, 0.0)

    def _draw_cost(self) -> int:
        tree = self.posterior.region_tree
        return tree.n_entries + 50 * tree.n_regions

    def _draws_are_due(self) -> bool:
        """Whether draws from the open boxes are below their share of the work and can still certify."""
        state, ledger, share = self.state, self.ledger, self.settings.draw_share
        if ledger.delta <= 0.0 or state.n_nodes == 0 or not state.open or share == 0.0:
            return False
        if state.draw_work >= share * (state.work + state.draw_work) or ledger.remaining_draws == 0:
            return False
        log_needed = log_draws_needed(ledger.log_threshold, ledger.delta, self._open_mass(), ledger.top_k)
        return log_needed + math.log(self._draw_cost()) <= math.log(HOPELESS_WORK)

    def _draw(self) -> int:
        """Draw from the open boxes."""
        boxes = self._boxes(np.stack([b.mask for b in self.state.open]))
        self.ledger.draws(self.posterior.sample(DRAW_ROWS, self.state.rng, boxes), self._open_mass())
        self.state.draw_work += DRAW_ROWS * self._draw_cost()
        return 0


@dataclass(frozen=True)
class SetElimination(Solver, name="set_elimination", needs=(Regions,), family="elimination"):
    """Dynamic programming on sets of vectors along a tree of regions.

    An assignment of the query variables below a region gives a vector over the hidden states of its separator.
    Sets of vectors are multiplied and mapped upward. A vector is dropped if an upper bound on its best completion
    is at most the threshold, or if another vector dominates it. The root's set holds complete assignments. If a
    set outgrows `limits`, similar vectors are merged into their maxima, which are bounds instead of values. A box
    whose bound stays too high is split by the states of one variable. Between eliminations, draws from the open
    boxes may earn the probabilistic certificate.

    `limits`: largest rows per set in the successive eliminations of the whole space.
    `split_limit`: largest rows per set in the eliminations of parts of the space.
    `n_starts`, `n_first_draws`: the number of hill climbs, and of draws from which their starts are chosen.
    `draw_share`: the share of the work for draws, after the first elimination and if `delta` is positive.

    Sources: Maua and de Campos (2012), "Anytime marginal MAP inference", for the sets; the outside bounds are this
    project's. Bounds carry a slack for rounding, far below the tolerance of "exact".
    """

    limits: tuple[int, ...] = (256, 16384)
    split_limit: int = 4096
    n_starts: int = 4
    n_first_draws: int = 256
    draw_share: float = 0.2
    ranges = "limits, split_limit, n_starts, n_first_draws [1, inf); draw_share [0, 1)"

    def init(
        self, posterior: Regions, control: Control, rng: np.random.Generator, boxes: Boxes | None = None
    ) -> SetSearchState:
        whole = Boxes.full(posterior.domain) if boxes is None else boxes
        state = SetSearchState(posterior, control, rng, Geometry.of(posterior.region_tree))
        log_mass = 0.0 if boxes is None else min(float(posterior.log_mass(boxes)[0]) + state.slack, 0.0)
        n_states = posterior.domain.total_states
        state.open = [OpenBox(whole.mask[0].copy(), log_mass, log_mass, None, np.zeros(n_states), 0)]
        return state

    def effort(self, state: SetSearchState) -> Effort:
        return Effort(state.n_nodes, state.held_bytes, state.work)

    def step(self, state: SetSearchState, ledger: Ledger) -> SetSearchState:
        """Work for a fraction of a second."""
        search, end = Search(self, state, ledger), state.work + STEP_WORK
        while not state.done:
            state.work += search.advance()
            over = state.control.nodes_left(state.n_nodes) == 0
            if over or ledger.satisfied or state.work >= end or state.control.should_stop:
                break
        return state
