"""Decodes an assignment from a relaxation, greedily or restricted to assignments of nonzero probability."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from certimap.core.arrays import Floats, Ints
from certimap.networks.kernels import split_tree as kernels
from certimap.networks.kernels.split_tree import Scratch
from certimap.networks.problem import QueryStates
from certimap.networks.relaxation.split_tree import Mask, PassClock, SplitTree
from certimap.networks.support import supported_states

PROBES = 16  # bounds of the relaxation per search for a possible assignment


def decode(
    tree: SplitTree, mask: Mask | None = None, scratch: Scratch | None = None, clock: PassClock | None = None
) -> dict[int, int]:
    """Return a state of every query variable within a mask, read off a relaxation.

    Each variable, last eliminated first, takes the state of the largest sum over its copies, given the states
    chosen before: copies need not agree, and the tables may give the assignment probability 0. Cost: one upward
    pass, which a `scratch` from bounding the same mask saves; with nuisance variables one probe.
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
    kernels.decode(tree.arrays, tree.order, tree.shifts, by_copy, s, point)
    return {v: int(point[i]) for i, v in enumerate(tree.variables) if v in tree.problem.query}


def decode_possible(
    tree: SplitTree, mask: Mask, clock: PassClock, should_stop: Callable[[], bool]
) -> dict[int, int] | None:
    """Return a possible assignment of all variables, guided by the relaxation, or None if none is found soon.

    Variables are fixed one by one, each at the state of the largest bound, and zeros are propagated in between.
    Cost: `PROBES` probes, and per variable about one pass over the tables whose variables lose states.
    """
    ptr, each = tree.arrays.state_ptr, np.empty(0)
    places = {v: slice(int(ptr[i]), int(ptr[i + 1])) for i, v in enumerate(tree.variables)}
    every, n_chosen = max(1, len(tree.problem.query) // PROBES), 0

    def choose(v: int, left: Mapping[int, Ints]) -> int:
        nonlocal each, n_chosen
        if n_chosen % every == 0:
            alive = np.zeros((1, int(ptr[-1])), np.uint8)
            alive[0, np.concatenate([places[u].start + own for u, own in left.items()])] = 1
            each = tree.probe(alive, clock=clock)[1][0]
        n_chosen += 1
        return int(left[v][np.argmax(each[places[v].start + left[v]])])

    return supported_states(tree.problem, should_stop, choose, {v: mask[own] > 0 for v, own in places.items()})


@dataclass(frozen=True, eq=False)
class PlacedTree:
    """A tree, and the map from its states to the domain's columns."""

    tree: SplitTree  # over the problem `restricted` to the columns `kept`
    states: QueryStates  # the numbering of the problem's states
    alive: tuple[Ints, ...]  # for every query variable the columns that the tree knows
    columns: Ints  # the columns of variables that the tree still has, and their places among its states
    at: Ints
    fixed: Ints  # the columns of variables with one state left

    @classmethod
    def of(cls, tree: SplitTree, states: QueryStates, kept: Mask) -> PlacedTree:
        """Place a tree of the problem restricted to `kept`."""
        place = {v: i for i, v in enumerate(tree.variables)}
        alive = tuple(own[kept[own] > 0] for own in states.columns)
        columns, at, fixed = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for v, own in zip(states.variables, alive, strict=True):
            if v in place:
                columns.append(own)
                at.append(tree.arrays.state_ptr[place[v]] + np.arange(len(own)))
            else:
                fixed.append(own)
        return cls(tree, states, alive, np.concatenate(columns), np.concatenate(at), np.concatenate(fixed))

    def masks(self, mask: Mask) -> Mask:
        """Convert masks over the domain's columns to masks over the tree's states, shape (batch, states)."""
        inner = np.ones((len(mask), int(self.tree.arrays.state_ptr[-1])), np.uint8)
        inner[:, self.at] = mask[:, self.columns]
        return inner

    def bounds(self, mask: Mask, workers: int = 1, clock: PassClock | None = None) -> tuple[Floats, Floats]:
        """Bound boxes (rows of the domain's columns, of states that the tree knows) and every column in them.

        Returns nats, rounded up; -inf outside a box and for an empty one: shapes (batch,) and (batch, columns).
        """
        bound, inner = self.tree.probe(self.masks(mask), workers, clock)
        each = np.full(mask.shape, -np.inf)
        each[:, self.columns] = inner[:, self.at]
        each[:, self.fixed] = bound[:, None]
        offsets = self.states.domain.offsets
        is_empty = np.any(np.add.reduceat(mask, offsets[:-1], axis=1, dtype=np.int64) == 0, axis=1)
        bound[is_empty] = -np.inf
        each[is_empty] = -np.inf
        each[mask == 0] = -np.inf
        return bound, each

    def decode(self, mask: Mask, clock: PassClock | None = None) -> Ints:
        """Return a point read off the relaxation within a mask (shape (columns,)), in the problem's numbers."""
        return self._point(decode(self.tree, self.masks(mask[None])[0], clock=clock))

    def decode_possible(self, mask: Mask, clock: PassClock, should_stop: Callable[[], bool]) -> Ints | None:
        """Return a decoded point of nonzero probability, or None if none is found soon."""
        found = decode_possible(self.tree, self.masks(mask[None])[0], clock, should_stop)
        return None if found is None else self._point(found)

    def _point(self, decoded: Mapping[int, int]) -> Ints:
        pairs = zip(self.states.variables, self.alive, strict=True)
        return self.states.position[[own[decoded.get(v, 0)] for v, own in pairs]]
