"""Buffers of one block of rows, and the passes that fill them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from certimap.core.region_tree import RegionTree
from certimap.kernels.wide import LN2
from certimap.trees.kernels import passes as kernels
from certimap.trees.kernels.wide_passes import downward_wide, upward_wide


@dataclass
class Work:
    """Buffers of one block of rows."""

    joint: NDArray[np.float64]
    joint_exponent: NDArray[np.float64]
    message: NDArray[np.float64]
    message_exponent: NDArray[np.float64]
    outer: NDArray[np.float64]
    flags: NDArray[np.uint8]

    @classmethod
    def make(cls, tree: RegionTree, n_rows: int, total_states: int) -> Work:
        n = tree.n_regions
        n_joint, n_message, n_largest = tree.of_shape("buffers", lambda: _buffers(tree))
        return cls(
            np.empty((n_joint, n_rows)),
            np.empty((n, n_rows)),
            np.empty((n_message, n_rows)),
            np.empty((n, n_rows)),
            np.empty((n_largest, n_rows)),
            np.full(n_rows, tree.is_delicate, np.uint8),
        )

    def pass_down(self, tree: RegionTree, mask: NDArray[np.float64], is_bound: bool) -> NDArray[np.float64]:
        a = tree.arrays
        n_rows = mask.shape[1]
        n_children = np.diff(a.child_ptr)
        suffix = np.empty((int(np.max(n_children * np.diff(a.joint_ptr), initial=1)), n_rows))
        each = np.empty((mask.shape[0], n_rows))
        kernels.downward(
            a,
            mask,
            is_bound,
            self.flags,
            self.joint,
            self.joint_exponent,
            self.message,
            self.message_exponent,
            self.outer,
            suffix,
            np.empty((int(np.max(n_children, initial=1)), n_rows)),
            np.empty_like(self.message),
            np.empty_like(self.message_exponent),
            each,
        )
        return each


def _buffers(tree: RegionTree) -> tuple[int, int, int]:
    """Return the numbers per row in all joint spaces, in all messages, and in the largest joint space."""
    a = tree.arrays
    return int(a.joint_ptr[-1]), int(a.message_ptr[-1]), int(np.max(np.diff(a.joint_ptr)))


@dataclass
class WideWork:
    """Buffers of one row of wide numbers."""

    joint: NDArray[np.float64]
    joint_exponent: NDArray[np.int64]
    message: NDArray[np.float64]
    message_exponent: NDArray[np.int64]

    @classmethod
    def make(cls, tree: RegionTree) -> WideWork:
        n_joint, n_message = int(tree.arrays.joint_ptr[-1]), int(tree.arrays.message_ptr[-1])
        return cls(
            np.empty(n_joint), np.empty(n_joint, np.int64), np.empty(n_message), np.empty(n_message, np.int64)
        )

    def pass_up(self, tree: RegionTree, mask: NDArray[np.bool_], *, is_bound: bool) -> float:
        """Send all messages to the root; return the natural log of its value."""
        upward_wide(
            tree.arrays,
            np.ascontiguousarray(mask),
            is_bound,
            self.joint,
            self.joint_exponent,
            self.message,
            self.message_exponent,
        )
        with np.errstate(divide="ignore"):
            return float(np.log(self.message[-1]) + self.message_exponent[-1] * LN2)

    def each(self, tree: RegionTree, mask: NDArray[np.bool_], *, is_bound: bool) -> NDArray[np.float64]:
        """Return the natural log of the value with each variable set to each state, shape (total_states,)."""
        a = tree.arrays
        self.pass_up(tree, mask, is_bound=is_bound)
        n_suffix = int(np.max((np.diff(a.child_ptr) + 1) * np.diff(a.joint_ptr)))
        each = np.empty(len(mask))
        downward_wide(
            a,
            np.ascontiguousarray(mask),
            is_bound,
            self.joint,
            self.joint_exponent,
            self.message,
            self.message_exponent,
            np.empty_like(self.message),
            np.empty_like(self.message_exponent),
            np.empty(n_suffix),
            np.empty(n_suffix, np.int64),
            each,
        )
        return each
