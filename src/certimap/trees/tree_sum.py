"""Upper bounds on sums of trees: each tree's maximum in a box.

The sum of w_t f_t(q), where tree t is a distribution f_t of weight w_t, is at most the sum of the trees' own
maxima. An elimination on sets of vectors bounds each of these (see `kernels/vector_bounds.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from certimap.core.arrays import Flags, Floats, Ints16
from certimap.core.control import Control
from certimap.core.logs import log_of
from certimap.core.rounding import ULP
from certimap.trees.bucket_tree import BucketTreePosterior
from certimap.trees.kernels import vector_bounds as kernels

DOING = "bounding a mixture of trees"
LARGEST_ROOM = 2**23  # limit on numbers in the sets of one tree
FEWEST_ROWS = 8
POOL = 16  # products held before they are merged, in limits of a set
MARGIN = 0.25  # of a tree's best known value: how far below it values are told apart, but this at most:
MOST_MARGIN = 0.2  # of the target


@dataclass(frozen=True, eq=False)
class BoxBound:
    """Bounds on a box; natural logs."""

    log_bound: float  # an upper bound on every value in the box
    log_states: Floats  # (columns,): upper bounds with each state fixed; -inf outside the box
    points: Ints16  # (trees, n): the trees' own maximisers
    largest: int  # the tree of the largest maximum


class TreeSum:
    """A weighted sum of trees over the same variables, each `is_simple`; `log_weights` are natural logs."""

    def __init__(self, trees: Sequence[BucketTreePosterior], log_weights: Floats) -> None:
        self.domain = trees[0].domain
        self.log_weights = log_weights
        self.trees = [tree.region_tree for tree in trees]
        self.n_entries = sum(len(t.arrays.tables) for t in self.trees)
        # Each number is a sum of positive products, off by a roundoff per operation.
        n_regions = max(t.n_regions for t in self.trees)
        self.slack = max(4.0 * tree.log_slack for tree in trees) + 64.0 * ULP * n_regions

    def room(self, limit: int) -> kernels.VectorRoom:
        """Return arrays for sets of at most `limit` rows, fewer for long vectors."""
        n, all_arrays = max(t.n_regions for t in self.trees), [t.arrays for t in self.trees]
        width = max(int(max(np.max(a.rest_hidden), np.max(a.own_states))) for a in all_arrays)
        degree = max(1, max(int(np.max(np.diff(a.child_ptr))) for a in all_arrays))
        limit = max(FEWEST_ROWS, min(limit, LARGEST_ROOM // (n * (width + degree))))
        pool = POOL * limit
        return kernels.VectorRoom(
            tops=np.empty((n, width)), outs=np.empty((n, width)), rows=np.empty((n, limit, width)),
            links=np.empty((n, limit, degree), np.int32), counts=np.empty(n, np.int64),
            pool=np.empty((pool, width)), pool_links=np.empty((pool, degree), np.int32),
            pool_scores=np.empty(pool), kept=np.empty((limit, width)),
            kept_links=np.empty((limit, degree), np.int32),
        )  # fmt: skip

    def bound(self, mask: Flags, log_target: float, room: kernels.VectorRoom, control: Control) -> BoxBound:
        """Bound a box, `mask` (columns,), and the box with each of its states fixed.

        `log_target`: ln of the target value, above `rounding.LOG_FLOOR`. Raises TimeUp when the run should stop.
        """
        scales = np.exp(self.log_weights - log_target)
        points = np.zeros((len(self.trees), len(self.domain)), np.int16)
        values, each = np.empty(len(self.trees)), np.empty((len(self.trees), len(mask)))
        for t, scale in enumerate(scales.tolist()):
            control.check(DOING)
            values[t] = self._bound_tree(t, mask, scale, room, points[t], each[t])
        total = float(np.sum(values))
        error = self.slack * (total + 1.0)
        log_bound = math.log(total + error) + log_target
        states = log_of(np.maximum(np.sum(each, axis=0), 0.0) + error) + log_target
        log_states = np.minimum(np.where(mask, states, -np.inf), log_bound)
        return BoxBound(log_bound, log_states, points, int(np.argmax(values)))

    def _bound_tree(
        self, t: int, mask: Flags, scale: float, room: kernels.VectorRoom, point: Ints16, each: Floats
    ) -> float:
        """Bound one tree's values, also with each state fixed; find a maximiser."""
        tree, variable, root = self.trees[t].arrays, self.trees[t].variable, self.trees[t].n_regions - 1
        kernels.bound_messages(tree, mask, room.tops)
        kernels.bound_states(tree, mask, scale, -math.inf, room, each)
        ceiling = scale * float(room.tops[root, 0])
        starts, sizes = self.domain.offsets[:-1], self.domain.n_states
        best = np.flatnonzero(each == np.repeat(np.maximum.reduceat(each, starts), sizes))
        point[:] = best[np.searchsorted(best, starts)] - starts  # the first of the best states
        single = np.zeros(len(mask), np.bool_)
        single[starts + point] = True
        kernels.bound_messages(tree, single, room.tops)
        floor = scale * float(room.tops[root, 0])
        floor -= min(MOST_MARGIN, MARGIN * max(floor, 1.0 / len(self.trees)))
        kernels.bound_messages(tree, mask, room.tops)
        value, row = kernels.eliminate(tree, mask, scale, floor, room)
        if row < 0:  # no value exceeds the floor
            value = max(min(floor, ceiling), 0.0)
            each[:] = np.where(mask, value, -np.inf)
            return value
        kernels.decode(tree, variable, row, room, point)
        kernels.bound_states(tree, mask, scale, floor, room, each)
        np.minimum(each, value, out=each)
        return value


def is_simple(tree: BucketTreePosterior) -> bool:
    """Whether separators are single hidden variables, leaves are the query variables, and no entry is tiny."""
    found = tree.region_tree
    a = found.arrays
    shared = (a.shared_query == 1) & (a.shared_hidden == 1) & (a.rest_query == 1)
    is_leaf = np.diff(a.child_ptr) == 0
    return bool(np.all(shared) and np.all(is_leaf == (found.variable >= 0))) and not found.is_delicate
