"""Buffers of one block of rows, and the passes that fill them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from certimap.core.region_tree import RegionTree
from certimap.kernels.wide import LN2
from certimap.trees.kernels.passes import DownRoom, PassRoom, downward
from certimap.trees.kernels.wide_passes import WideRoom, downward_wide, upward_wide

Floats = NDArray[np.float64]


def room_for(tree: RegionTree, n_rows: int) -> PassRoom:
    """Allocate the buffers of a block of rows."""
    n = tree.n_regions
    n_joint, n_message, n_largest = tree.of_shape("buffers", lambda: _buffers(tree))
    return PassRoom(
        np.empty((n_joint, n_rows)),
        np.empty((n, n_rows)),
        np.empty((n_message, n_rows)),
        np.empty((n, n_rows)),
        np.empty((n_largest, n_rows)),
        np.full(n_rows, tree.is_delicate, np.uint8),
    )


def pass_down(tree: RegionTree, mask: Floats, is_bound: bool, room: PassRoom) -> Floats:
    """Return natural logs with each variable set to each state, shape (total_states, rows), after `upward`."""
    a = tree.arrays
    n_rows, n_children = mask.shape[1], np.diff(a.child_ptr)
    below = DownRoom(
        np.empty((int(np.max(n_children * np.diff(a.joint_ptr), initial=1)), n_rows)),
        np.empty((int(np.max(n_children, initial=1)), n_rows)),
        np.empty_like(room.message),
        np.empty_like(room.message_exponent),
    )
    each = np.empty((mask.shape[0], n_rows))
    downward(a, mask, is_bound, room, below, each)
    return each


def _buffers(tree: RegionTree) -> tuple[int, int, int]:
    """Return the numbers per row in all joint spaces, in all messages, and in the largest joint space."""
    a = tree.arrays
    return int(a.joint_ptr[-1]), int(a.message_ptr[-1]), int(np.max(np.diff(a.joint_ptr)))


def wide_up(tree: RegionTree, mask: NDArray[np.bool_], is_bound: bool) -> tuple[float, WideRoom]:
    """Send all messages of one row to the root; return the natural log of its value, and the messages."""
    n_joint, n_message = int(tree.arrays.joint_ptr[-1]), int(tree.arrays.message_ptr[-1])
    room = WideRoom(
        np.empty(n_joint), np.empty(n_joint, np.int64), np.empty(n_message), np.empty(n_message, np.int64)
    )
    upward_wide(tree.arrays, np.ascontiguousarray(mask), is_bound, room)
    with np.errstate(divide="ignore"):
        return float(np.log(room.message[-1]) + room.message_exponent[-1] * LN2), room


def wide_each(tree: RegionTree, mask: NDArray[np.bool_], is_bound: bool) -> Floats:
    """Return the natural log of the value with each variable set to each state, shape (total_states,)."""
    a = tree.arrays
    n_suffix = int(np.max((np.diff(a.child_ptr) + 1) * np.diff(a.joint_ptr)))
    suffix, each = (np.empty(n_suffix), np.empty(n_suffix, np.int64)), np.empty(len(mask))
    downward_wide(a, np.ascontiguousarray(mask), is_bound, wide_up(tree, mask, is_bound)[1], *suffix, each)
    return each
