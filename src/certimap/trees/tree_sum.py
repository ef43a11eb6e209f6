"""Upper bounds on sums of trees: each tree's maximum in a box, with shifts between the trees that make them agree.

What is bounded is the sum of w_t f_t(q), where tree t is a distribution f_t of weight w_t. For any shifts s_t, a
number per tree and state, that add up to 0 over the trees, it is the sum of w_t f_t(q) + sum_v s_t(v, q_v), and at
most the sum of the maxima of these, each of which is bounded by an elimination on sets of vectors
(`kernels/vector_bounds.py`). The bound is convex in the shifts; subgradient steps make a state dearer for a tree
whose maximiser takes it more often than those of the others do (dual decomposition; after Komodakis, Paragios and
Tziritas 2007, with the step of Polyak and directions averaged as by Barahona and Anbil 2000).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from certimap.control import Control
from certimap.rounding import ULP
from certimap.trees.bucket_tree import BucketTreePosterior
from certimap.trees.kernels import vector_bounds as kernels

DOING = "bounding a mixture of trees"
Floats = NDArray[np.float64]
LARGEST_ROOM = 2**23  # numbers that the sets of one tree may hold
FEWEST_ROWS = 8
POOL = 16  # products held before they are merged, in limits of a set
FIRST_GAP = 0.2  # taken for the gap before it is known
MARGIN = 0.25  # of a tree's best known value: how far below it values are told apart, but the gap at most
FIRST_STEP = 0.5
MEMORY = 0.7  # of earlier maximisers, in the direction of a step
PATIENCE = 3  # steps without progress before they are halved


@dataclass(frozen=True, eq=False)
class BoxBound:
    """What is known of a box; natural logs.

    Attributes
    ----------
    log_bound
        An upper bound on every value in the box.
    log_states
        float64, shape (columns,): the same with a state held; -inf outside the box.
    shifts
        float64, shape (trees, columns): the best found, in units of the target.
    points
        int16, shape (trees, n): the trees' maximisers under them.
    """

    log_bound: float
    log_states: Floats
    shifts: Floats
    points: NDArray[np.int16]


class TreeSum:
    """A weighted sum of trees over the same variables.

    Parameters
    ----------
    trees
        The distributions; each `is_simple`.
    log_weights
        Natural logs of their weights, float64, shape (trees,).
    """

    def __init__(self, trees: Sequence[BucketTreePosterior], log_weights: Floats) -> None:
        self.domain = trees[0].domain
        self.log_weights = log_weights
        self.trees = [_arrays(tree) for tree in trees]
        self.n_entries = sum(len(t.tables) for t in self.trees)
        # Each number is a sum of positive products, off by a roundoff per operation.
        self.slack = max(4.0 * tree.log_slack for tree in trees) + 64.0 * ULP * max(len(t.own) for t in self.trees)

    @property
    def no_shifts(self) -> Floats:
        """Shifts of 0."""
        return np.zeros((len(self.trees), self.domain.total_states))

    def room(self, limit: int) -> kernels.Room:
        """Return arrays for sets of at most `limit` rows, fewer where vectors are long."""
        return _room(self.trees, limit)

    def bound(
        self,
        mask: NDArray[np.bool_],
        shifts: Floats,
        log_target: float,
        n_rounds: int,
        room: kernels.Room,
        control: Control,
    ) -> BoxBound:
        """Bound a box by given shifts, and improve them, in `n_rounds` rounds (1 at least).

        Ends early once the bound is at most the target, the trees agree, or the run should stop; raises TimeUp
        where that comes before the end of the first round.

        Parameters
        ----------
        mask
            bool, shape (columns,): the box.
        shifts
            float64, shape (trees, columns): they add up to 0 over the trees.
        log_target
            Natural log of the value to get below; more than `rounding.LOG_FLOOR`, so that nothing underflows.
        n_rounds, room
            How often every tree is eliminated, and where.
        control
            The run's limits.
        """
        pass_ = _Rounds(self, mask, np.exp(self.log_weights - log_target), room)
        for _ in range(n_rounds):
            if (
                not pass_.eliminate(shifts, control)
                or pass_.best <= 1.0
                or np.all(pass_.points == pass_.points[0])
            ):
                break
            shifts = pass_.improved(shifts)
        log_bound = math.log(pass_.best) + log_target
        with np.errstate(divide="ignore"):
            log_states = np.where(mask, np.log(pass_.states) + log_target, -np.inf)
        return BoxBound(log_bound, np.minimum(log_states, log_bound), pass_.best_shifts, pass_.best_points)


class _Rounds:
    """The rounds of one box; values are in units of the target."""

    def __init__(self, model: TreeSum, mask: NDArray[np.bool_], scales: Floats, room: kernels.Room) -> None:
        self.model, self.mask, self.scales, self.room = model, mask, scales, room
        n_trees = len(model.trees)
        self.columns = model.domain.offsets[:-1]
        self.points = np.zeros((n_trees, len(model.domain)), np.int16)
        self.has_points = False
        self.values = np.zeros(n_trees)
        self.each = np.empty((n_trees, len(mask)))
        self.mean: Floats | None = None
        self.best = math.inf
        self.best_shifts, self.best_points = np.empty(0), self.points
        self.states = np.full(len(mask), np.inf)
        self.gap, self.step, self.n_failed = FIRST_GAP, FIRST_STEP, 0

    def eliminate(self, shifts: Floats, control: Control) -> bool:
        """Bound every tree, and keep what is better than before; return False where time was up before the end."""
        for t in range(len(self.values)):
            if self.has_points and control.should_stop:
                return False
            control.check(DOING)
            self.values[t] = self._tree(t, shifts[t])
        self.has_points = True
        size = float(np.sum(np.abs(self.values))) + float(np.sum(np.max(np.abs(shifts), axis=0)))
        error = self.model.slack * (size + 1.0)
        total = float(np.sum(self.values)) + error
        self.states = np.minimum(self.states, np.maximum(np.sum(self.each, axis=0), 0.0) + error)
        self.gap = total - 1.0
        if total < self.best:
            self.best, self.best_shifts, self.best_points = total, shifts, self.points.copy()
            self.n_failed = 0
        else:
            self.n_failed += 1
        return True

    @property
    def is_agreed(self) -> bool:
        """Whether all trees have the same maximiser."""
        return bool(np.all(self.points == self.points[0]))

    def _tree(self, t: int, shifts: Floats) -> float:
        """Bound one tree's values, and those with each state held; find a maximiser."""
        tree, room, point, each = self.model.trees[t], self.room, self.points[t], self.each[t]
        scale, root = float(self.scales[t]), len(tree.own) - 1
        floor = self._value(t, point, shifts) if self.has_points else -math.inf
        kernels.bound_messages(tree, self.mask, shifts, room.tops, room.adds)
        kernels.bound_states(tree, self.mask, shifts, scale, -math.inf, room, each)
        ceiling = scale * float(room.tops[root, 0]) + float(room.adds[root])
        kernels.best_states(tree, each, point)
        floor = max(floor, self._value(t, point, shifts))
        floor -= min(self.gap, MARGIN * max(floor, 1.0 / len(self.values)))
        kernels.bound_messages(tree, self.mask, shifts, room.tops, room.adds)
        value, row = kernels.eliminate(tree, self.mask, shifts, scale, floor, room)
        if row < 0:  # nothing exceeds the floor
            value = min(floor, ceiling)
            each[:] = np.where(self.mask, value, -np.inf)
            return value
        kernels.decode(tree, row, room, point)
        kernels.bound_states(tree, self.mask, shifts, scale, floor, room, each)
        np.minimum(each, value, out=each)
        return value

    def _value(self, t: int, point: NDArray[np.int16], shifts: Floats) -> float:
        """Return the shifted value of a point under one tree."""
        tree, room = self.model.trees[t], self.room
        mask = np.zeros(len(shifts), np.bool_)
        mask[self.columns + point] = True
        kernels.bound_messages(tree, mask, shifts, room.tops, room.adds)
        root = len(tree.own) - 1
        return float(self.scales[t]) * float(room.tops[root, 0]) + float(room.adds[root])

    def improved(self, shifts: Floats) -> Floats:
        """Return the shifts of the next round: a step on from these, or a shorter one from the best so far."""
        taken = np.zeros(shifts.shape)
        taken[np.arange(len(taken))[:, None], self.columns + self.points] = 1.0
        self.mean = taken if self.mean is None else MEMORY * self.mean + (1.0 - MEMORY) * taken
        if self.n_failed == PATIENCE:
            self.step, self.n_failed, shifts = 0.5 * self.step, 0, self.best_shifts
        shares = np.maximum(self.values, 0.0)
        total = float(shares.sum())
        shares = shares / total if total > 0.0 else np.full(len(shares), 1.0 / len(shares))
        excess = self.mean - shares @ self.mean
        length = float(np.sum(shares @ (excess * excess)))
        if length <= 0.0:
            return shifts
        out = shifts - (self.step * self.gap / length) * shares[:, None] * excess
        out[-1] = -np.sum(out[:-1], axis=0)
        return out


def is_simple(tree: BucketTreePosterior) -> bool:
    """Whether separators are single hidden variables, leaves the queried ones, and no entry is tiny."""
    found = tree.region_tree
    a = found.arrays
    shared = (a.shared_query == 1) & (a.shared_hidden == 1) & (a.rest_query == 1)
    is_leaf = np.diff(a.child_ptr) == 0
    return bool(np.all(shared) and np.all(is_leaf == (found.variable >= 0))) and not found.is_delicate


def _arrays(tree: BucketTreePosterior) -> kernels.TreeArrays:
    found, a = tree.region_tree, tree.region_tree.arrays
    return kernels.TreeArrays(
        a.own_states, a.rest_hidden, a.column, found.variable, a.table_ptr, a.tables, a.child_ptr, a.children
    )


def _room(trees: Sequence[kernels.TreeArrays], limit: int) -> kernels.Room:
    n = max(len(t.own) for t in trees)
    width = max(int(max(np.max(t.above), np.max(t.own))) for t in trees)
    degree = max(1, max(int(np.max(np.diff(t.child_ptr))) for t in trees))
    limit = max(FEWEST_ROWS, min(limit, LARGEST_ROOM // (n * (width + degree))))
    pool = POOL * limit
    return kernels.Room(
        tops=np.empty((n, width)),
        adds=np.empty(n),
        outs=np.empty((n, width)),
        out_adds=np.empty(n),
        rows=np.empty((n, limit, width)),
        row_adds=np.empty((n, limit)),
        links=np.empty((n, limit, degree), np.int32),
        counts=np.empty(n, np.int64),
        pool=np.empty((pool, width)),
        pool_adds=np.empty(pool),
        pool_links=np.empty((pool, degree), np.int32),
        pool_scores=np.empty(pool),
        kept=np.empty((limit, width)),
        kept_adds=np.empty(limit),
        kept_links=np.empty((limit, degree), np.int32),
    )
