"""Buffers of one block of rows, and the passes that fill them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from certimap.trees.kernels import passes as kernels
from certimap.trees.regions import RegionTree


@dataclass
class Work:
    """Buffers of one block of rows."""

    joint: NDArray[np.float64]
    log_joint: NDArray[np.float64]
    message: NDArray[np.float64]
    log_message: NDArray[np.float64]
    outer: NDArray[np.float64]
    flags: NDArray[np.uint8]

    @classmethod
    def make(cls, tree: RegionTree, n_rows: int, total_states: int) -> Work:
        a = tree.arrays
        n = tree.n_regions
        return cls(
            np.empty((int(a.joint_ptr[-1]), n_rows)),
            np.empty((n, n_rows)),
            np.empty((int(a.message_ptr[-1]), n_rows)),
            np.empty((n, n_rows)),
            np.empty((int(np.max(np.diff(a.joint_ptr))), n_rows)),
            np.zeros(n_rows, np.uint8),
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
            self.log_joint,
            self.message,
            self.log_message,
            self.outer,
            suffix,
            np.empty((int(np.max(n_children, initial=1)), n_rows)),
            np.empty_like(self.message),
            np.empty_like(self.log_message),
            each,
        )
        return each
