"""Decodes an assignment from a relaxation, greedily or restricted to assignments of nonzero probability."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from certimap.networks.kernels import split_down
from certimap.networks.kernels.split_up import Scratch
from certimap.networks.relaxation.split_tree import Mask, PassClock, SplitTree
from certimap.networks.support import Guide, supported_states

Bools = NDArray[np.bool_]
PROBES = 16  # bounds of the relaxation per search for a possible assignment


def decode(
    tree: SplitTree, mask: Mask | None = None, scratch: Scratch | None = None, clock: PassClock | None = None
) -> dict[int, int]:
    """Return a state of every query variable within a mask, read off a relaxation.

    Each variable, last eliminated first, takes the state of the largest sum over its copies, given the states
    chosen before: copies need not agree, and the tables may give the assignment probability 0.

    Cost: one upward pass; with nuisance variables one probe. A `scratch` from bounding the same mask saves the
    pass. Raises TimeUp like `SplitTree.bound`.
    """
    clock = clock or PassClock()
    row = tree.full_mask() if mask is None else mask
    by_copy = np.empty(len(tree.shifts))
    s = scratch or tree.scratch()
    if tree.problem.nuisance:  # copies with hidden variables count with their bounds
        by_copy = tree.probe_in_pieces(row, s, np.empty(1), np.empty(len(row)), clock)
    elif scratch is None:
        tree.bound(row, s, clock)
    point = np.zeros(len(tree.variables), np.int64)
    split_down.decode(
        tree.arrays,
        tree.order,
        tree.arrays.start,
        tree.tables,
        tree.shifts,
        tree.copies,
        tree.copy_ptr,
        by_copy,
        s,
        point,
    )
    return {v: int(point[i]) for i, v in enumerate(tree.variables) if v in tree.problem.query}


def decode_possible(
    tree: SplitTree, mask: Mask, clock: PassClock, should_stop: Callable[[], bool]
) -> dict[int, int] | None:
    """Return a possible assignment of all variables, guided by the relaxation, or None if none is found soon.

    Variables are fixed one by one, each at the state of the largest bound, and zeros are propagated in between.
    The bounds are recomputed for the remaining states `PROBES` times.

    Cost: `PROBES` probes, and per variable about one pass over the tables whose variables lose states.
    """
    return supported_states(tree.problem, should_stop, _BoundGuide(tree, mask, clock))


class _BoundGuide(Guide):
    """Chooses states of large bounds."""

    def __init__(self, tree: SplitTree, mask: Mask, clock: PassClock) -> None:
        self._tree, self._clock = tree, clock
        ptr = tree.arrays.state_ptr
        self.within = {v: mask[ptr[i] : ptr[i + 1]] > 0 for i, v in enumerate(tree.variables)}
        self._slices = {v: slice(int(ptr[i]), int(ptr[i + 1])) for i, v in enumerate(tree.variables)}
        self._each = np.empty(0)
        self._n_asked = 1
        self._every = max(1, len(tree.problem.query) // PROBES)

    def state(self, v: int, left: Mapping[int, Bools]) -> int:
        self._n_asked -= 1
        if self._n_asked == 0:
            self._n_asked = self._every
            mask = np.concatenate([left[u] for u in self._tree.variables]).astype(np.uint8)
            self._each = self._tree.probe(mask[None], clock=self._clock)[1][0]
        return int(np.argmax(np.where(left[v], self._each[self._slices[v]], -np.inf)))
