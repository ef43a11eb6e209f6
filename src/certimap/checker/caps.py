"""Upper bounds on sums in any box (caps), by the trees of boxes that a proof has of them.

A tree covers all of a sum's own boxes: what it splits goes on in parts, and of a box that it shrinks the states
left go on, the others being boxes of their own. So the largest bound of all that ends there bounds the sum,
whatever the tree: a proof can only choose a bad one, and no bound is read from it. Sums are taken from the lowest
up, those of one layer side by side, for each rests on those below it alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from certimap.checker.circuit import Circuit
from certimap.checker.clock import Clock
from certimap.checker.graph import Flags
from certimap.checker.models import Arrays, Rejected
from certimap.checker.numbers import Floats, Ints

LEAF, SHRUNK = -1, -2


@dataclass(frozen=True, eq=False)
class CapTree:
    """The boxes in which a sum is bounded, and the states of each that end there (none marked: all of them).

    Both have one row per box and one column per state of the sum's variables.
    """

    boxes: Flags
    ending: Flags


class _Reader:
    """Reads one tree after the other."""

    def __init__(self, arrays: Arrays, n_variables: int) -> None:
        kinds, self.bits = np.asarray(arrays["cap_splits"]), np.asarray(arrays["cap_kept"])
        if kinds.dtype.kind != "i" or kinds.ndim != 1 or self.bits.dtype != np.uint8 or self.bits.ndim != 1:
            raise Rejected("the trees of caps are damaged")
        if np.any((kinds < SHRUNK) | (kinds >= n_variables)):
            raise Rejected("a tree of caps splits a variable that the query has not")
        self.kinds: list[int] = kinds.tolist()
        self.at = self.byte = 0

    @property
    def is_done(self) -> bool:
        return self.at == len(self.kinds) and self.byte == len(self.bits)

    def read(self, starts: dict[int, int], sizes: Ints, n_columns: int) -> CapTree:
        """Read a tree over variables that begin at some columns."""
        boxes: list[Flags] = []
        ending: list[Flags] = []
        waiting: list[Flags] = [np.ones(n_columns, np.bool_)]
        while waiting:
            box = waiting.pop()
            if self.at >= len(self.kinds):
                raise Rejected("a tree of caps lacks a box")
            kind = self.kinds[self.at]
            self.at += 1
            if kind == LEAF:
                boxes.append(box)
                ending.append(np.zeros_like(box))
            elif kind == SHRUNK:
                left = box & self._columns(n_columns)
                boxes.append(box)
                ending.append(box & ~left)
                waiting.append(left)
            elif kind in starts:
                start = starts[kind]
                for column in np.flatnonzero(box[start : start + sizes[kind]])[::-1] + start:
                    part = box.copy()
                    part[start : start + sizes[kind]] = False
                    part[column] = True
                    waiting.append(part)
            else:
                raise Rejected("a tree of caps splits a variable that its sum has not")
        return CapTree(np.array(boxes), np.array(ending))

    def _columns(self, n_columns: int) -> Flags:
        n_bytes = (n_columns + 7) // 8
        if self.byte + n_bytes > len(self.bits):
            raise Rejected("the trees of caps are cut short")
        found = np.unpackbits(self.bits[self.byte : self.byte + n_bytes], count=n_columns)
        self.byte += n_bytes
        return found.astype(np.bool_)


def read_trees(arrays: Arrays, circuit: Circuit) -> dict[int, CapTree]:
    """Return the trees by the node of the circuit; refuse those of sums that it has not."""
    sums: list[int] = np.asarray(arrays["cap_nodes"]).astype(np.int64).tolist()
    node_of = {number: node for node, number in enumerate(circuit.numbers.tolist()) if number >= 0}
    sizes, scopes = np.diff(circuit.columns), circuit.scopes()
    reader = _Reader(arrays, len(sizes))
    found: dict[int, CapTree] = {}
    for number in sums:
        if number not in node_of or node_of[number] in found:
            raise Rejected(f"there is a tree of caps for sum {number}, which the query leaves nothing of, or two")
        bits = scopes[node_of[number]]
        starts: dict[int, int] = {}
        n_columns = 0
        while bits:
            v = (bits & -bits).bit_length() - 1
            bits &= bits - 1
            starts[v] = n_columns
            n_columns += int(sizes[v])
        found[node_of[number]] = reader.read(starts, sizes, n_columns)
    if not reader.is_done:
        raise Rejected("the trees of caps have a box too many")
    return found


def caps_of(circuit: Circuit, arrays: Arrays, clock: Clock) -> Floats:
    """Return upper bounds on all sums, by their numbers; infinite for those without a tree."""
    caps = np.full(int(circuit.numbers.max(initial=-1)) + 2, np.inf)
    if "cap_nodes" not in arrays:
        return caps
    trees = read_trees(arrays, circuit)
    for layer in circuit.layers:
        nodes = [node for node in layer.nodes.tolist() if node in trees]
        waiting = [np.array(nodes)] if nodes else []
        lengths = np.array([len(trees[node].boxes) for node in nodes])
        if nodes:  # of like lengths together, for all get as many rows
            classes = np.ceil(np.log2(lengths))
            waiting = [np.array(nodes)[classes == c] for c in np.unique(classes)]
        while waiting:
            clock.look()
            group = waiting.pop()
            parts = circuit.below(group)
            if parts is None:
                waiting += [group[::2], group[1::2]]
            else:
                caps[circuit.numbers[group]] = _maxima(parts, [trees[node] for node in group.tolist()], caps)
    return caps


def _maxima(parts: Circuit, trees: list[CapTree], caps: Floats) -> Floats:
    """Return the largest bound of what ends in each tree, one per root."""
    n_rows = max(len(tree.boxes) for tree in trees)
    boxes, ending = (np.zeros((n_rows, int(parts.columns[-1])), np.bool_) for _ in range(2))
    start = 0
    is_row = np.zeros((n_rows, len(trees)), np.bool_)
    for k, tree in enumerate(trees):
        stop = start + tree.boxes.shape[1]
        boxes[: len(tree.boxes), start:stop], ending[: len(tree.boxes), start:stop] = tree.boxes, tree.ending
        boxes[len(tree.boxes) :, start:stop] = True
        is_row[: len(tree.boxes), k] = True
        start = stop
    bound, each = parts.bounds(boxes, caps)
    columns = np.flatnonzero(np.diff(parts.root_of, prepend=-1))
    first = parts.columns[columns]
    partly = np.maximum.reduceat(np.where(ending, each, -np.inf), first, axis=1)
    is_part = np.logical_or.reduceat(ending, first, axis=1)
    return np.max(np.where(is_row, np.where(is_part, partly, bound), -np.inf), axis=0)
