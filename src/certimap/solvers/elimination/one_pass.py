"""One elimination of a box: regions from the leaves up, every set filtered from outside and by dominance."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from certimap.solvers.elimination.geometry import Geometry, Messages
from certimap.solvers.elimination.kernels import vector_sets as kernels
from certimap.solvers.elimination.sets import (
    Floats,
    Link,
    ProductOverflowError,
    VectorSet,
    compact,
    ones,
    product,
)

DELICATE_EXPONENT = -600.0
CROWD = 16  # sets this many times over their limit are merged before dominance is looked for


@dataclass
class Outcome:
    """What one elimination found.

    Attributes
    ----------
    log_bound
        An upper bound on ln p of every assignment in the box that exceeds the threshold; -inf when none can.
    root
        The last set: whole assignments, or None when nothing was left.
    sets
        The sets of all regions, to decode the root's rows.
    messages
        Tightened bounds.
    log_states
        shape (total_states,): upper bounds with a variable set to a state, for what exceeds the threshold.
    n_merged
        How often sets were merged; 0 means that the elimination was exact.
    peak
        The largest set.
    """

    log_bound: float
    root: VectorSet | None
    sets: dict[int, VectorSet]
    messages: Messages
    log_states: Floats
    n_merged: int
    peak: int


@dataclass
class Elimination:
    """An elimination in progress; `run` is a generator that yields the work done since the last yield.

    Parameters
    ----------
    geometry, mask
        The regions and the box, shape (total_states,).
    messages
        Upper bounds inside the box.
    log_threshold
        Natural log; what cannot exceed it is dropped.
    limit
        Sets are merged down to about this many rows.
    top_k, factor
        A row is dropped when `top_k` others are at least it, up to `factor`.
    """

    geometry: Geometry
    mask: NDArray[np.bool_]
    messages: Messages
    log_threshold: float
    limit: int
    top_k: int
    factor: float
    sets: dict[int, VectorSet] = field(default_factory=dict[int, VectorSet])
    n_merged: int = 0
    peak: int = 0
    work: int = 0
    n_bytes: int = 0
    is_delicate: bool = False

    def run(self) -> Generator[int, None, Outcome]:
        """Visit the regions depth first: outside bounds on the way down, sets on the way up."""
        tree = self.geometry.tree
        root = tree.n_regions - 1
        self.log_states = np.full(len(self.mask), -np.inf)
        stack = [_Visit(self, root, np.ones((1, 1)), 0.0)]
        while stack:
            visit = stack[-1]
            child = visit.next_child()
            if child is not None:
                stack.append(_Visit(self, child, *visit.outside_of_next()))
                continue
            result = visit.finish()
            stack.pop()
            if len(result) == 0:
                return self._outcome(None)
            self.sets[visit.region] = result
            self.n_bytes += result.n_bytes
            if stack:
                self.messages.values[visit.region] = result.maxima()
                self.messages.logs[visit.region] = result.log_scale
                stack[-1].child_done()
            if self.work > 4_000_000:
                yield self.work
                self.work = 0
        return self._outcome(self.sets[root])

    def _outcome(self, root: VectorSet | None) -> Outcome:
        bound = -math.inf
        if root is not None:
            bound = math.log(float(root.values.max())) + root.log_scale
        return Outcome(bound, root, self.sets, self.messages, self.log_states, self.n_merged, self.peak)

    def linear_threshold(self, log_scale: float) -> float:
        """Return the threshold in units of exp(log_scale).

        A threshold so small that what underflowed could exceed it makes the elimination delicate: its bounds
        are not to be used. Without a threshold (a top-k list not full yet) what underflowed counts as zero.
        """
        exponent = self.log_threshold - log_scale
        self.is_delicate |= exponent < DELICATE_EXPONENT and self.log_threshold > -math.inf
        return math.exp(exponent) if exponent < 700.0 else math.inf

    def decode(self, rows: NDArray[np.int64], n_variables: int) -> NDArray[np.int16]:
        """Return the assignments of rows of the root's set, shape (rows, n_variables)."""
        tree = self.geometry.tree
        points = np.zeros((len(rows), n_variables), np.int16)
        at: dict[int, NDArray[np.int64]] = {tree.n_regions - 1: rows}
        for r in range(tree.n_regions - 1, -1, -1):
            here = at.pop(r)
            found = self.sets[r]
            if tree.variable[r] >= 0:
                assert found.state is not None
                points[:, tree.variable[r]] = found.state[here]
            for child, pointer in found.pointers:
                at[child] = pointer[here].astype(np.int64)
        return points


class _Visit:
    """A region between its descent and its set."""

    def __init__(self, run: Elimination, region: int, outside: Floats, log_outside: float) -> None:
        self.run, self.region = run, region
        geometry = run.geometry
        self.outside, self.log_outside = _scaled(outside, log_outside)
        self.children = geometry.order_of_children[region]
        joint, self.log_joint = _scaled(geometry.project(region, self.outside), self.log_outside)
        self.open = np.ones(len(joint), np.bool_)
        column = int(geometry.tree.arrays.column[region])
        if column >= 0:
            k = geometry.shapes[region][4]
            self.open = np.tile(run.mask[column : column + k], len(joint) // k)
            joint = joint * self.open[:, None]
        self.joint = joint
        self.running, self.log_running = joint, self.log_joint
        self.suffix = self._suffixes(self.children)
        self.at = 0

    def _suffixes(self, children: list[int]) -> list[tuple[Floats, float]]:
        """Return, for each child in order, the product of the bounds of the later ones."""
        messages, links = self.run.messages, self.run.geometry.links
        out: list[tuple[Floats, float]] = []
        current, log_scale = np.ones_like(self.joint), 0.0
        for c in reversed(children):
            out.append((current, log_scale))
            link = links[c]
            assert link is not None
            current, log_scale = _scaled(current * link.extend(messages.values[c]), log_scale + messages.logs[c])
        out.reverse()
        return out

    def next_child(self) -> int | None:
        return self.children[self.at] if self.at < len(self.children) else None

    def outside_of_next(self) -> tuple[Floats, float]:
        """Return the functional that acts on the next child's vectors, and the log of its scale."""
        suffix, log_suffix = self.suffix[self.at]
        link = self.run.geometry.links[self.children[self.at]]
        assert link is not None
        return link.reduce(self.running * suffix), self.log_running + log_suffix

    def child_done(self) -> None:
        """Fold the tightened bound of the child just finished in."""
        child = self.children[self.at]
        link = self.run.geometry.links[child]
        assert link is not None
        message = link.extend(self.run.messages.values[child])
        self.running, self.log_running = _scaled(
            self.running * message, self.log_running + self.run.messages.logs[child]
        )
        self.at += 1

    def finish(self) -> VectorSet:
        """Multiply the children's sets, smallest first, and eliminate the own variable."""
        run, geometry, r = self.run, self.run.geometry, self.region
        found = ones(*self._counts(), self.open)
        children = sorted(self.children, key=lambda c: len(run.sets[c]))
        suffix = self._suffixes(children)
        for i, child in enumerate(children):
            rest, log_rest = suffix[i]
            found = self._multiply(found, child, self.joint * rest, self.log_joint + log_rest)
            run.sets[child].release()
            if len(found) == 0:
                return found
        if geometry.is_query[r]:
            self._note_states(found)
        found = self._lift(found)
        threshold = run.linear_threshold(self.log_outside + found.log_scale)
        found, scores = found.above(self.outside, threshold)
        if len(found) == 0:
            return found
        return self._shrink(found, scores)

    def _counts(self) -> tuple[int, int]:
        return self.run.geometry.joint_counts(self.region)

    def _multiply(self, left: VectorSet, child: int, functional: Floats, log_scale: float) -> VectorSet:
        run = self.run
        right = run.sets[child]
        link = run.geometry.links[child]
        assert link is not None
        threshold = run.linear_threshold(log_scale + left.log_scale + right.log_scale)
        rows: NDArray[np.int64] | None = None
        max_pairs = max(8 * run.limit, 2 * len(functional), 65536)
        while True:
            try:
                out, scores, work = product(left, right, child, link, functional, threshold, max_pairs)
                break
            except ProductOverflowError:
                run.n_merged += 1
                run.work += max_pairs * functional.shape[1]
                if left.crowding >= right.crowding:
                    left, _ = left.merged(_own_scores(left, functional, link, right), max(1, len(left) // 2))
                else:
                    right, source = right.merged(
                        _own_scores(right, link.reduce(functional * left.maxima()), None, None),
                        max(1, len(right) // 2),
                    )
                    rows = source if rows is None else rows[source]
        n_right = len(run.sets[child])
        if rows is not None:
            last, pointer = out.pointers[-1]
            out.pointers[-1] = (last, compact(rows[pointer], n_right))
        run.work += work * functional.shape[1] + 2000
        return self._shrink(out, scores)

    def _limited(self, found: VectorSet, scores: Floats) -> VectorSet:
        self.run.peak = max(self.run.peak, len(found))
        if len(found) <= max(self.run.limit, 2 * (len(found.ptr) - 1)):
            return found
        self.run.n_merged += 1
        return found.merged(scores, self.run.limit)[0]

    def _shrink(self, found: VectorSet, scores: Floats) -> VectorSet:
        found = found.rescaled()
        if len(found) > CROWD * self.run.limit:  # comparing all pairs would cost more than it saves
            self.run.n_merged += 1
            found, rows = found.merged(scores, CROWD * self.run.limit // 2)
            scores = scores[rows]
        self.run.work += len(found) * 64
        kept, alive = found.undominated(self.run.top_k, self.run.factor)
        return self._limited(kept, scores[alive])

    def _note_states(self, found: VectorSet) -> None:
        """Record the best score of each state of the own query variable."""
        run, geometry = self.run, self.run.geometry
        k = geometry.shapes[self.region][4]
        column = int(geometry.tree.arrays.column[self.region])
        alive, scores = np.empty(len(found), np.bool_), np.empty(len(found))
        kernels.filter_rows(found.values, found.ptr, self.joint, -1.0, alive, scores)
        state = np.repeat(np.arange(len(found.ptr) - 1) % k, np.diff(found.ptr))
        best = np.zeros(k)
        np.maximum.at(best, state, scores)
        with np.errstate(divide="ignore"):
            run.log_states[column : column + k] = np.log(best) + self.log_joint + found.log_scale

    def _lift(self, found: VectorSet) -> VectorSet:
        geometry, r = self.run.geometry, self.region
        sq, sh, rq, rh, k = geometry.shapes[r]
        table = geometry.tables[r]
        is_query = bool(geometry.is_query[r])
        if sq * sh * rq == 1 and not is_query:
            values = found.values @ table.reshape(rh, k).T
            return VectorSet(values, found.ptr, found.relaxed, found.log_scale, found.pointers, None)
        n = len(found) * rq
        out, ptr = np.empty((n, sh * rh)), np.empty(sq * rq + 1, np.int64)
        source, state = np.empty(n, np.int64), np.empty(n, np.int16)
        kernels.lift(found.values, found.ptr, table, (sq, sh, rq, rh, k), is_query, out, ptr, source, state)
        pointers = [(c, p[source]) for c, p in found.pointers]
        return VectorSet(out, ptr, found.relaxed[source], found.log_scale, pointers, state if is_query else None)


def _own_scores(found: VectorSet, functional: Floats, link: Link | None, right: VectorSet | None) -> Floats:
    """Score rows by a functional, times the largest of the set that they are to be multiplied by."""
    if right is not None and link is not None:
        functional = functional * link.extend(right.maxima())
    alive, scores = np.empty(len(found), np.bool_), np.empty(len(found))
    kernels.filter_rows(found.values, found.ptr, np.ascontiguousarray(functional), -1.0, alive, scores)
    return scores


def _scaled(values: Floats, log_scale: float) -> tuple[Floats, float]:
    """Scale the largest value to 1."""
    top = float(values.max(initial=0.0))
    if top <= 0.0 or top == 1.0:
        return values, log_scale
    return values / top, log_scale + math.log(top)
