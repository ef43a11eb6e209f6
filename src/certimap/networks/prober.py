"""Bounds of boxes of a network of any width, from a relaxation that tightens as the search goes on."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from certimap.core.box import Points
from certimap.core.control import Control
from certimap.core.posterior import Tightening
from certimap.core.search_boxes import Answers, Layout, SearchBoxes
from certimap.errors import TooLarge
from certimap.networks.conditional import PointEvaluator
from certimap.networks.placed_tree import PlacedTree, QueryStates, restricted
from certimap.networks.problem import Problem
from certimap.networks.relaxation.split_tree import (
    PassClock,
    RelaxationPlan,
    SplitTree,
    exact_tree,
    first_tree,
    mixed_tree,
    split_tree,
)
from certimap.networks.relaxation.tighten import TEMPERATURES, Tightener

Floats = NDArray[np.float64]
Mask = NDArray[np.uint8]
STEP_COST = 6  # passes over all entries that one step of the optimiser costs, about
PERTURBED = 3  # climbs from around the best point at every pause
SHARE_MOVED = 0.12
CLIMB_WORK = 1e8  # table entries that one climb may cost
FIRST_CLIMBS = 1e8  # and those before anything was tightened, together
CLIMB_SHARE = 0.25  # of the work of tightening and probing that climbs may cost from then on
SHRINK_ROUNDS = 4
STALLED = 0.02  # of the gap: a temperature that gained no more is the last one, larger tables come next
MEMORY_SHARE = 0.25  # that tables larger than the first ones may take


class NetworkProber:
    """Probes the split tree of a problem, and tightens it by shifting costs, dropping states and enlarging tables.

    A state whose bound is at most the search's threshold is dropped from the relaxation. Its bound is kept as a
    floor of the answers for boxes that contain the state.

    Parameters
    ----------
    problem, states, evaluator
        The problem, the numbering of its states, and the evaluator of points.
    control
        The limits of the run, which climbs and optimisation steps obey.
    workers
        Threads for batches of boxes.
    plan
        How large the relaxation may grow.
    log_ceiling
        Upper bound (nats) on all points, known beforehand.

    Attributes
    ----------
    log_bound
        The lowest upper bound so far (nats) on all points in the box last given to `tighten`.
    credit
        Table entries that climbs may visit until more probing or tightening is done.
    """

    def __init__(
        self,
        problem: Problem,
        states: QueryStates,
        evaluator: PointEvaluator,
        control: Control,
        workers: int = 1,
        plan: RelaxationPlan | None = None,
        log_ceiling: float = math.inf,
    ) -> None:
        domain = states.domain
        self.layout = Layout.of(domain)
        self.original, self.states, self.evaluator = problem, states, evaluator
        self.control, self.workers, self.log_ceiling = control, workers, log_ceiling
        self.clock = PassClock(control)
        self.rng = np.random.default_rng(0)
        self.plan = plan or RelaxationPlan()
        self.bits, self.stage, self.steps_left = self.plan.first_bits, 0, self.plan.steps
        self.credit, self.log_bound, self.bound_before = FIRST_CLIMBS, log_ceiling, math.inf
        self.best: NDArray[np.int64] | None = None
        self.best_value = -math.inf
        self.kept = np.zeros(domain.total_states, np.uint8)
        for own in states.columns:
            self.kept[own] = 1
        self.dropped = np.full(domain.total_states, -np.inf)
        self.tried_with = int(self.kept.sum())
        self.now = self._placed(first_tree(problem, self.plan.exact_entries, self.bits, control))
        self.next: PlacedTree | None = None  # with larger tables, until it bounds better
        self.tightener: Tightener | None = None

    def _placed(self, tree: SplitTree) -> PlacedTree:
        return PlacedTree.of(tree, self.states, self.kept)

    def bounds(self, mask: Mask) -> tuple[Floats, Floats]:
        """Bound boxes and every column in them, rounded up; -inf outside: shapes (batch,) and (batch, columns)."""
        left = mask & self.kept
        bound, each = self.now.bounds(left, self.workers, self.clock)
        floor = np.where(mask > left, self.dropped, -np.inf)
        highest = floor.max(axis=1)
        bound = np.minimum(np.maximum(bound, highest), self.log_ceiling)
        each = np.where(mask > left, floor, np.maximum(each, highest[:, None]))
        each[mask == 0] = -np.inf
        return bound, np.minimum(each, bound[:, None])

    # --- what a search asks ------------------------------------------------------------------------------

    @property
    def work(self) -> int:
        """Cost of one box, in table entries, including points, which many boxes become."""
        return int(max(4 * self.now.tree.n_entries, self.evaluator.n_entries)) + 100

    @property
    def n_bytes(self) -> int:
        """The memory of the relaxation."""
        return self.now.tree.n_bytes + (0 if self.next is None else self.next.tree.n_bytes)

    def probe(self, boxes: SearchBoxes) -> Answers:
        """Bound boxes and columns."""
        bound, each = self.bounds(boxes.mask)
        self.credit += CLIMB_SHARE * len(boxes) * self.work
        share, share_each = self.layout.log_share(boxes), self.layout.log_share_each(boxes)
        splits = np.full((len(boxes), len(self.layout.domain)), np.nan)
        return Answers(share, bound, share_each, each, splits)

    def starts(self) -> Points:
        """Return points read off the relaxation, climbs from them, and climbs from around the best so far."""
        found: list[NDArray[np.int64]] = []
        for placed in (self.now, self.next):
            if placed is not None and not (found and self.control.should_stop):
                found.append(placed.decode(self.kept, self.clock))
                if self.evaluator.log_values(found[-1][None])[0] == -np.inf:
                    possible = placed.decode_possible(self.kept, self.clock, lambda: self.control.should_stop)
                    found.extend([] if possible is None else [possible])
                found.append(self._climb(found[-1]))
        if self.stage > 0 and not self.now.tree.is_exact:
            found.extend(self._climb(p) for p in self._perturbed() if not self.control.should_stop)
        return self.states.to_domain(np.stack(found))

    def _perturbed(self) -> list[NDArray[np.int64]]:
        """Return the best point with some variables moved to random states that are left."""
        if self.best is None:
            return []
        out: list[NDArray[np.int64]] = []
        for _ in range(PERTURBED):
            point = self.best.copy()
            for i in np.flatnonzero(self.rng.random(len(point)) < SHARE_MOVED):
                alive = self.states.columns[i][self.kept[self.states.columns[i]] > 0]
                if len(alive):
                    point[i] = self.states.position[self.rng.choice(alive)]
            out.append(point)
        return out

    def _climb(self, inner: NDArray[np.int64]) -> NDArray[np.int64]:
        n_states = np.array([len(c) for c in self.states.columns], np.int64)
        before, point = self.evaluator.work, np.array(inner, np.int64)
        if self.evaluator.log_values(point[None])[0] > -np.inf:  # single changes lead away from nowhere else
            most = min(CLIMB_WORK, self.credit)
            point = self.evaluator.climb(point, n_states, most, lambda: self.control.should_stop)
        self.credit -= self.evaluator.work - before
        value = float(self.evaluator.log_values(point[None])[0])
        if value > self.best_value or self.best is None:
            self.best, self.best_value = point, value
        return point

    def climb(self, points: Points) -> Points:
        """Return points reached by moving one variable at a time, shape (batch, n)."""
        inner, possible = self.states.to_problem(points)
        out = np.array(points)
        for b in np.flatnonzero(possible):
            out[b] = self.states.to_domain(self._climb(inner[b])[None])[0]
        return out

    # --- tightening --------------------------------------------------------------------------------------

    def tighten(self, work: int, log_factor: float, within: SearchBoxes, log_threshold: float) -> Tightening:
        """Drop states, shift costs for about `work` entries' worth of steps, or build a better tree."""
        came_to = self._tighten(work, within, log_threshold)
        self.credit += CLIMB_SHARE * came_to.work
        return came_to._replace(log_bound=self.log_bound)

    def _tighten(self, work: int, within: SearchBoxes, log_threshold: float) -> Tightening:
        if not self._shrink(within.mask[0], log_threshold) or not self.now.tree.is_split:
            return Tightening(self.now.tree.n_entries, is_paused=True, is_complete=True)
        at_work = self.now if self.next is None else self.next
        if self.tightener is None:
            self.tightener = Tightener(at_work.tree, self.clock)
        self.tightener.narrow(at_work.masks(self.kept[None])[0])
        cost = STEP_COST * at_work.tree.n_entries
        steps = max(2, min(self.steps_left, work // cost))
        goes_on = self.tightener.run(TEMPERATURES[self.stage], steps)
        if self.tightener.is_cut and self.next is not None and not self.control.should_stop:
            self.next, self.tightener = None, None  # too large for the time that is left, which a search may use
            return Tightening(cost, is_paused=True, is_complete=True)
        self._note(self._bound_of(at_work))
        self.steps_left -= steps
        if goes_on and self.steps_left > 0:
            return Tightening(steps * cost, is_paused=False, is_complete=False)
        return self._next_stage(steps * cost)

    def _shrink(self, within: Mask, log_threshold: float) -> bool:
        """Drop states that are closed or whose bound is at most the threshold; return False if none is left."""
        self.kept &= within
        for _ in range(SHRINK_ROUNDS):
            bound, each = self.now.bounds(self.kept[None], 1, self.clock)
            self._note(float(bound[0]))
            if bound[0] <= log_threshold:
                self._drop(self.kept > 0, np.full(len(self.kept), bound[0]))
                return False
            gone = (self.kept > 0) & (each[0] <= log_threshold)
            if not np.any(gone):
                return True
            self._drop(gone, each[0])
            if np.any(np.add.reduceat(self.kept, self.layout.offsets[:-1], dtype=np.int64) == 0):
                return False
        return True

    def _note(self, bound: float) -> None:
        """Turn a bound on the kept states into one on the whole box, dropped states included; keep the lowest."""
        self.log_bound = min(self.log_bound, max(bound, float(np.max(self.dropped, initial=-np.inf))))

    def _drop(self, gone: NDArray[np.bool_], bounds: Floats) -> None:
        self.dropped[gone] = np.maximum(self.dropped[gone], bounds[gone])
        self.kept[gone] = 0

    def _next_stage(self, work: int) -> Tightening:
        """Go on to a finer temperature, an exact tree where much was dropped, or larger tables."""
        self.steps_left = self.plan.steps if self.bits == self.plan.first_bits else self.plan.steps // 2
        if int(self.kept.sum()) < 0.9 * self.tried_with:
            self.tried_with = int(self.kept.sum())
            if self._simplify_tree():
                return Tightening(work, is_paused=True, is_complete=True, has_starts=True)
        if self.next is not None and self._bound_of(self.next) < self._bound_of(self.now):
            self.now, self.next = self.next, None
        is_first = self.bits == self.plan.first_bits
        gained, self.bound_before = self.bound_before - self.log_bound, self.log_bound
        has_stalled = gained <= STALLED * (self.log_bound - self.best_value) < math.inf
        is_through = self.stage > 1 and self.next is None and has_stalled
        self.stage += 1 if is_first else 2
        if self.stage < len(TEMPERATURES) and not is_through:
            return Tightening(work, is_paused=False, is_complete=False, has_starts=True)
        self.stage, self.bits, self.steps_left = 1, self.bits + self.plan.raise_bits, self.plan.steps // 2
        self.next, self.tightener = None, None
        is_last = self.bits > self.plan.last_bits or not self._enlarge()
        return Tightening(work, is_paused=is_first or is_last, is_complete=is_last, has_starts=True)

    def _enlarge(self) -> bool:
        """Begin with larger tables; return whether the memory allows it."""
        problem = restricted(self.original, self.states, self.kept)
        try:
            self.next = self._placed(split_tree(problem, self.bits, MEMORY_SHARE * self.control.memory_limit))
        except TooLarge:
            return False
        return True

    def _simplify_tree(self) -> bool:
        """Switch to a tree without copies over the kept states if it fits and bounds better."""
        problem = restricted(self.original, self.states, self.kept)
        tree = exact_tree(problem, self.plan.exact_entries) or mixed_tree(problem, self.plan.exact_entries / 4.0)
        if tree is None:
            return False
        placed = self._placed(tree)
        if not tree.is_exact and self._bound_of(placed) >= self._bound_of(self.now):
            return False
        self.now, self.next, self.tightener = placed, None, None
        return True

    def _bound_of(self, placed: PlacedTree) -> float:
        return placed.tree.bound(placed.masks(self.kept[None])[0], clock=self.clock)
