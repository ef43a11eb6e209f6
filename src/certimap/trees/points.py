"""The layout of upward passes of points: where a point starts in tables, and which hidden states remain."""

from __future__ import annotations

import numpy as np

from certimap.core.arrays import Ints
from certimap.core.region_tree import RegionTree
from certimap.trees.kernels.point_passes import PointArrays, PointRoom


def point_arrays(tree: RegionTree) -> PointArrays:
    """Lay out upward passes of points; trees of one shape have one layout."""
    a, n = tree.arrays, tree.n_regions
    terms: list[dict[int, int]] = [{}] * n  # by region: variable -> stride in the table
    joint: list[dict[int, int]] = [{}] * n  # and in the joint space
    gather: list[Ints] = [np.empty(0, np.int64)] * n  # by slot among all children
    for r in range(n - 1, -1, -1):
        k, n_rest = int(a.own_states[r]), int(a.rest_query[r] * a.rest_hidden[r])
        own = {int(tree.variable[r]): 1} if tree.variable[r] >= 0 and k > 1 else {}
        known: dict[int, int] = {}
        if tree.parent[r] >= 0:
            above, start = int(tree.parent[r]), int(a.map_ptr[tree.slot[r]])
            strides = {v: int(a.gather[start + s]) for v, s in joint[above].items()}
            known = {v: s for v, s in strides.items() if s > 0}
            n_above = int(a.own_states[above])
            at = np.arange(int(a.shared_hidden[above]) * n_above)[:: n_above if a.column[above] >= 0 else 1]
            shared, rest = np.divmod(a.gather[start + at], n_rest)  # where all query variables have state 0
            gather[tree.slot[r]] = shared * a.rest_hidden[r] + rest
        terms[r] = {v: s * k for v, s in known.items()} | own
        joint[r] = {v: s // n_rest * k for v, s in known.items() if s >= n_rest} | own
    return PointArrays(
        np.cumsum([0, *map(len, terms)]),
        np.array([v for t in terms for v in t], np.int64),
        np.array([s for t in terms for s in t.values()], np.int64),
        np.cumsum([0, *map(len, gather)]),
        np.concatenate([np.empty(0, np.int64), *gather]),
        np.cumsum([0, *(a.shared_hidden * a.rest_hidden).tolist()]),
        int(np.max(a.shared_hidden * np.where(a.column >= 0, 1, a.own_states))),
    )


def room_for_points(tree: RegionTree, how: PointArrays, n_rows: int) -> PointRoom:
    """Allocate the buffers of a block of points."""
    return PointRoom(
        np.empty((int(how.message_ptr[-1]), n_rows)),
        np.empty((tree.n_regions, n_rows)),
        np.empty((how.n_joint, n_rows)),
        np.empty(n_rows, np.int64),
        np.empty(n_rows, np.uint8),
    )
