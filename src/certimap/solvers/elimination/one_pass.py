"""One elimination of a box: regions from the leaves up, sets filtered by outside bounds and dominance."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from certimap.core.arrays import Flags, Floats, Ints, Ints16
from certimap.core.control import Control
from certimap.core.rounding import SET_FLOOR
from certimap.kernels.wide import LN2, ZERO
from certimap.solvers.elimination.geometry import (
    LARGEST,
    Geometry,
    ProductOverflowError,
    VectorSet,
    compact,
    ones,
    product,
)
from certimap.solvers.elimination.kernels import vector_sets as kernels
from certimap.trees.wide import Wide

CROWD = 16  # sets this many times over their limit are merged before the dominance test
COMPARED = 1_000_000  # rows times answers; above it the dominance test costs more than it saves
WORK = 4_000_000  # table entries between two checks of limits and draws
# Entries that a set may keep, and a product of two sets may have before filtering, so that each takes a few tenths
# of a second at most. A first elimination with a small limit gets a share of these.
SET_ENTRIES, PRODUCT_ENTRIES = 2**22, 2**24
FULL_LIMIT = 1024
NO_THRESHOLD = -1.0  # every score exceeds it
FEWEST_ROWS = 16  # least number of rows that a set may keep
DOING = "multiplying sets of vectors"


@dataclass
class Outcome:
    """The result of one elimination."""

    log_bound: float  # on ln p of every assignment in the box that exceeds the threshold; -inf when none can
    root: VectorSet | None  # the last set: complete assignments, or None when it is empty
    messages: list[Wide]  # tightened bounds
    log_states: Floats  # shape (total_states,): the same with a variable set to a state


@dataclass(eq=False)
class SetPass:
    """An elimination in progress; `advance` does a piece of it.

    Numbers inside sets are doubles in units of frames (see `ExponentFrame`). Underflow loses less than 2^-893 of
    the largest value that the set can reach. So a threshold of at least 2^`SET_FLOOR` of that value loses nothing.
    A lower threshold is raised to it, and assignments in between stay open.
    """

    geometry: Geometry
    mask: Flags  # the box, shape (total_states,)
    messages: list[Wide]  # by region: bounds on vectors of assignments that matter, (contexts, hidden states)
    log_threshold: float  # natural log; vectors that cannot exceed it are dropped
    limit: int  # sets are merged down to about this many rows
    top_k: int  # a row is dropped when `top_k` others dominate it
    control: Control = field(default_factory=Control)  # an elimination that raised TimeUp cannot be continued
    is_raised: bool = False  # whether the threshold was raised
    sets: dict[int, VectorSet] = field(default_factory=dict[int, VectorSet])  # by region, to decode the root
    sizes: dict[int, int] = field(default_factory=dict[int, int])  # rows of the sets
    n_merged: int = 0  # the number of merges; 0 means that the elimination was exact
    peak: int = 0  # the largest set
    work: int = 0
    n_bytes: int = 0
    stack: list[RegionVisit] = field(default_factory=list["RegionVisit"])
    outcome: Outcome | None = None

    def __post_init__(self) -> None:
        self.log_states = np.full(len(self.mask), -np.inf)
        self.stack.append(RegionVisit(self, self.geometry.tree.n_regions - 1, Wide.of_values(np.ones((1, 1)))))

    def advance(self) -> int:
        """Visit regions depth first, outside bounds on the way down, sets on the way up; return the work done."""
        before = self.work
        while self.stack and self.work - before <= WORK:
            visit = self.stack[-1]
            child = visit.next_child()
            if child is not None:
                self.stack.append(RegionVisit(self, child, visit.outside_of_next()))
                continue
            result = visit.finish()
            self.stack.pop()
            self.sizes[visit.region] = len(result)
            if len(result) == 0:
                self.stack.clear()
                self.outcome = Outcome(-math.inf, None, self.messages, self.log_states)
                break
            self.sets[visit.region] = result
            self.n_bytes += result.n_bytes
            if self.stack:
                self.messages[visit.region] = result.maxima()
                self.stack[-1].child_done()
            else:
                bound = math.log(float(result.values.max())) + result.frame.exponent * LN2
                self.outcome = Outcome(bound, result, self.messages, self.log_states)
        return self.work - before

    def row_limit(self, width: int) -> int:
        """Return how many vectors of length `width` a set may keep."""
        return min(self.limit, self.rows_of(SET_ENTRIES, width))

    def rows_of(self, entries: int, width: int) -> int:
        """Return how many vectors of length `width` fit into this elimination's share of `entries`."""
        return max(FEWEST_ROWS, 4 * self.top_k, min(entries, entries * self.limit // FULL_LIMIT) // width)

    def threshold(self, top: int, is_whole: bool) -> float:
        """Return the threshold in units of 2^top, raised to the floor; none where nothing has underflowed."""
        if top == ZERO:
            return 0.0
        exponent = self.log_threshold / LN2 - top
        if exponent < SET_FLOOR:
            if is_whole:
                return NO_THRESHOLD
            self.is_raised = True
            self.log_threshold = (top + SET_FLOOR) * LN2
            return 2.0**SET_FLOOR
        return 2.0**exponent if exponent < 1000.0 else math.inf

    def decode(self, rows: Ints, n_variables: int) -> Ints16:
        """Return the assignments of rows of the root's set, shape (rows, n_variables)."""
        tree = self.geometry.tree
        points = np.zeros((len(rows), n_variables), np.int16)
        at: dict[int, Ints] = {tree.n_regions - 1: rows}
        for r in range(tree.n_regions - 1, -1, -1):
            here = at.pop(r)
            found = self.sets[r]
            if tree.variable[r] >= 0:
                assert found.state is not None
                points[:, tree.variable[r]] = found.state[here]
            for child, pointer in found.pointers:
                at[child] = pointer[here].astype(np.int64)
        return points


class RegionVisit:
    """A region whose children are being eliminated."""

    def __init__(self, run: SetPass, region: int, outside: Wide) -> None:
        self.run, self.region, self.outside = run, region, outside
        geometry = run.geometry
        self.children, self.links = geometry.order_of_children[region], geometry.links
        joint = geometry.project(region, outside)
        self.open = np.ones(joint.shape[0], np.bool_)
        column = int(geometry.tree.arrays.column[region])
        if column >= 0:
            k = geometry.shapes[region][4]
            self.open = np.tile(run.mask[column : column + k], joint.shape[0] // k)
            joint.mantissa[~self.open] = 0.0
            joint.exponent[~self.open] = ZERO
        self.joint = joint
        self.running: Wide | None = None
        self.suffix = self._suffixes(self.children)
        self.at = 0

    def _suffixes(self, children: list[int]) -> list[Wide]:
        """Return, for each child in order, the joint functional times the bounds of all later children."""
        if not children:
            return []
        out = [self.joint]
        for c in reversed(children[1:]):
            out.append(self.links[c].fold(out[-1], self.run.messages[c]))
        return out[::-1]

    def next_child(self) -> int | None:
        return self.children[self.at] if self.at < len(self.children) else None

    def outside_of_next(self) -> Wide:
        """Return the functional that acts on the next child's vectors."""
        functional = self.suffix[self.at]
        if self.running is not None:
            functional = Wide.product([functional, self.running], functional.shape)
        return self.links[self.children[self.at]].reduce(functional)

    def child_done(self) -> None:
        """Multiply in the tightened bound of the finished child."""
        child = self.children[self.at]
        self.at += 1
        if self.at < len(self.children):
            before = Wide.of_values(np.ones(self.joint.shape)) if self.running is None else self.running
            self.running = self.links[child].fold(before, self.run.messages[child])

    def finish(self) -> VectorSet:
        """Multiply the children's sets, smallest first, and eliminate the own variable."""
        run, geometry, r = self.run, self.run.geometry, self.region
        found = ones(*geometry.joint_counts(r), self.open)
        children = sorted(self.children, key=lambda c: len(run.sets[c]))
        suffix = self._suffixes(children)
        bound = Wide.of_values(np.ones(self.joint.shape) * self.open[:, None])
        for child, functional in zip(children, suffix, strict=True):
            bound = self.links[child].fold(bound, run.messages[child])
            found = self._multiply(found, child, functional, bound, is_last=child == children[-1])
            run.sets[child].release()
            if len(found) == 0:
                return found
        if geometry.is_query[r]:
            self._note_states(found, bound)
        found = self._lift(found)
        functional, top = found.frame.scaled(self.outside, run.messages[r])
        found, scores = found.above(functional, run.threshold(top, found.is_whole))
        if len(found) == 0:
            return found
        return self._shrink(found, scores, mixtures=run.top_k == 1)

    def _multiply(self, left: VectorSet, child: int, functional: Wide, bound: Wide, is_last: bool) -> VectorSet:
        run = self.run
        right, link = run.sets[child], self.links[child]
        linear, top = left.frame.times(right.frame, link).scaled(functional, bound)
        threshold = run.threshold(top, left.is_whole and right.is_whole)
        rows: Ints | None = None
        most = min(max(8 * run.limit, 65536), run.rows_of(PRODUCT_ENTRIES, linear.shape[1]))
        max_pairs = max(most, 2 * len(linear))  # rows of a product before filtering
        while True:
            run.control.check(DOING)
            try:
                out, scores, work = product(left, right, child, link, linear, threshold, max_pairs, bound)
                break
            except ProductOverflowError:
                run.n_merged += 1
                run.work += max_pairs * linear.shape[1]
                if left.crowding >= right.crowding:
                    own = link.fold(functional, right.maxima())
                    left, _ = left.merged(left.scores(left.frame.scaled(own, own)[0])[0], max(1, len(left) // 2))
                else:
                    own = link.reduce(Wide.product([functional, left.maxima()], functional.shape))
                    scores = right.scores(right.frame.scaled(own, own)[0])[0]
                    right, source = right.merged(scores, max(1, len(right) // 2))
                    rows = source if rows is None else rows[source]
        if rows is not None:
            last, pointer = out.pointers[-1]
            out.pointers[-1] = (last, compact(rows[pointer], len(run.sets[child])))
        run.work += work * linear.shape[1] + 2000
        return self._crowded(out.rescaled(), scores)[0] if is_last else self._shrink(out, scores)

    def _limited(self, found: VectorSet, scores: Floats) -> VectorSet:
        self.run.peak = max(self.run.peak, len(found))
        limit = self.run.row_limit(found.values.shape[1])
        if len(found) <= max(limit, 2 * (len(found.ptr) - 1)):
            return found
        self.run.n_merged += 1
        return found.merged(scores, limit)[0]

    def _crowded(self, found: VectorSet, scores: Floats) -> tuple[VectorSet, Floats]:
        """Merge a set that is too large to compare all pairs of rows."""
        self.run.control.check(DOING)
        crowd = CROWD * self.run.row_limit(found.values.shape[1])
        if len(found) <= crowd:
            return found, scores
        self.run.n_merged += 1
        found, rows = found.merged(scores, crowd // 2)
        self.run.control.check(DOING)
        return found, scores[rows]

    def _shrink(self, found: VectorSet, scores: Floats, mixtures: bool = False) -> VectorSet:
        """Drop rows that others dominate, or mixtures (sound for one answer); merge the rest if too many."""
        found, scores = self._crowded(found.rescaled(), scores)
        self.run.work += len(found) * 64
        if self.run.top_k > 1 and self.run.top_k * len(found) > COMPARED:
            return self._limited(found, scores)
        found, alive = found.undominated(self.run.top_k)
        scores = scores[alive]
        self.run.control.check(DOING)
        if mixtures:
            found, alive, work = found.unmixed(self.run.control)
            scores = scores[alive]
            self.run.work += work
        return self._limited(found, scores)

    def _note_states(self, found: VectorSet, bound: Wide) -> None:
        """Record the best score of each state of the own query variable."""
        run, geometry = self.run, self.run.geometry
        k = geometry.shapes[self.region][4]
        column = int(geometry.tree.arrays.column[self.region])
        functional, top = found.frame.scaled(self.joint, bound)
        scores, _ = found.scores(functional)
        state = np.repeat(np.arange(len(found.ptr) - 1) % k, np.diff(found.ptr))
        # If the threshold is below the floor, an underflowed score may exceed it; such a score is below the floor.
        best = np.full(k, 2.0**SET_FLOOR if run.log_threshold / LN2 - top < SET_FLOOR else 0.0)
        np.maximum.at(best, state, scores)
        with np.errstate(divide="ignore"):
            run.log_states[column : column + k] = np.log(best) + top * LN2

    def _lift(self, found: VectorSet) -> VectorSet:
        geometry, r = self.run.geometry, self.region
        sq, sh, rq, rh, k = geometry.shapes[r]
        is_query = bool(geometry.is_query[r])
        table, frame = geometry.table_from(r, found.frame, self.run.messages[r])
        if sq * sh * rq == 1 and not is_query:
            values = found.values @ table.reshape(rh, k).T
            lifted = VectorSet(values, found.ptr, found.relaxed, frame, found.pointers)
        else:
            n = len(found) * rq
            values, ptr = np.empty((n, sh * rh)), np.empty(sq * rq + 1, np.int64)
            source, state = np.empty(n, np.int64), np.empty(n, np.int16)
            kernels.lift(found.values, found.ptr, table, (sq, sh, rq, rh, k), is_query, values, ptr, source, state)
            pointers = [(c, p[source]) for c, p in found.pointers]
            lifted = VectorSet(values, ptr, found.relaxed[source], frame, pointers, state if is_query else None)
        if not frame.is_flat:
            np.minimum(values, LARGEST, out=values)
        lifted.is_whole = found.is_whole and frame.is_flat and not geometry.tree.is_delicate
        return lifted
