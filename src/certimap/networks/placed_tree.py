"""A split tree over some states of a query's domain, addressed by the domain's columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from certimap.networks.problem import Problem, QueryStates, restrict
from certimap.networks.relaxation.decoding import decode, decode_possible
from certimap.networks.relaxation.split_tree import PassClock, SplitTree

Ints = NDArray[np.int64]


Floats = NDArray[np.float64]
Mask = NDArray[np.uint8]


def restricted(problem: Problem, states: QueryStates, kept: Mask) -> Problem:
    """Return a problem over the states that a mask of the domain's columns keeps."""
    keep: dict[int, Ints] = {}
    for v, own in zip(states.variables, states.columns, strict=True):
        alive = np.flatnonzero(kept[own])
        if v in problem.sizes and len(alive) < len(own):
            keep[v] = alive
    return restrict(problem, keep)


@dataclass(frozen=True, eq=False)
class PlacedTree:
    """A tree, and the map from its states to the domain's columns."""

    tree: SplitTree  # over the problem `restricted` to the columns `kept`
    states: QueryStates  # the numbering of the problem's states
    alive: tuple[Ints, ...]  # for every query variable the columns that the tree knows
    # columns, at: the columns of variables that the tree still has, and their places among its states
    columns: Ints
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
        Raises TimeUp when the `clock` says that the run should stop.
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
        point = np.zeros(len(self.alive), np.int64)
        for i, (v, own) in enumerate(zip(self.states.variables, self.alive, strict=True)):
            point[i] = self.states.position[own[decoded.get(v, 0)]]
        return point
