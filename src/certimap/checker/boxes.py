"""Reads the trees of boxes in a proof, and checks a search on a circuit by its tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from certimap.checker.budget import CheckBudget
from certimap.checker.circuit import PlainCircuit, boxes_of
from certimap.checker.graph import Flags
from certimap.checker.models import Arrays, Rejected
from certimap.checker.numbers import Floats, Ints

BATCH, MAX_COLUMNS = 256, 2**22  # boxes, and boxes times columns, bounded at once
BOX_COST, COLUMN_COST = 640, 64  # bytes per box beside its columns, and per column while it is bounded
LEAF, SHRUNK = -1, -2


class Trees:
    """Reads trees of boxes one after the other, each in preorder.

    A tree covers its whole starting box. Each entry treats one box: a variable's number splits the box on that
    variable, into one part per state, or into the states before `at` and the rest; -2 drops states, and the
    smaller box follows; -1 ends the box.
    """

    def __init__(self, arrays: Arrays, splits: str, kept: str, n_variables: int, budget: CheckBudget) -> None:
        kinds, bits = arrays[splits], arrays[kept]
        has_cuts = splits == "splits" and "at" in arrays
        cuts = arrays["at"] if has_cuts else None
        if kinds.dtype.kind != "i" or kinds.ndim != 1 or bits.dtype != np.uint8 or bits.ndim != 1:
            raise Rejected(f"the trees of boxes are damaged: {splits!r} and {kept!r} are no rows of whole numbers")
        if np.any((kinds < SHRUNK) | (kinds >= n_variables)):
            raise Rejected("a tree of boxes splits a variable that the query has not")
        if cuts is not None and (cuts.shape != kinds.shape or cuts.dtype.kind != "i" or np.any(cuts < 0)):
            raise Rejected("the tree of splits is damaged: it cuts variables at no place that they have")
        self.kinds, self.at, self.bits, self.budget = kinds, cuts, bits, budget
        self.entry = self.byte = 0

    def read(self, starts: Mapping[int, int], sizes: Ints) -> Iterator[tuple[Flags, Flags]]:
        """Yield each box of one tree in which states end, and the columns of these states.

        `starts` gives the first column of each variable of the tree. No column is marked where the whole box ends.
        Memory holds the open boxes of one path down the tree.
        """
        n_columns = int(sum(sizes[v] for v in starts))
        waiting: list[Iterator[Flags]] = [iter([np.ones(n_columns, np.bool_)])]
        while waiting:
            box = next(waiting[-1], None)
            if box is None:
                waiting.pop()
                continue
            self.budget.need((len(waiting) + 4.0) * (n_columns + BOX_COST), "the boxes of a tree")
            if self.entry >= len(self.kinds):
                raise Rejected("a tree of boxes lacks a box")
            kind, at = int(self.kinds[self.entry]), 0 if self.at is None else int(self.at[self.entry])
            self.entry += 1
            if kind == LEAF:
                yield box, np.zeros_like(box)
            elif kind == SHRUNK:
                left = box & self._columns(n_columns)
                yield box, box & ~left
                waiting.append(iter([left]))
            elif kind not in starts:
                raise Rejected("a tree of boxes splits a variable that it has not")
            else:
                waiting.append(_parts(box, starts[kind], int(sizes[kind]), at))

    def end(self) -> None:
        """Reject entries after the last tree."""
        if self.entry < len(self.kinds) or self.byte < len(self.bits):
            raise Rejected("the trees of boxes have a box too many")

    def _columns(self, n_columns: int) -> Flags:
        n_bytes = (n_columns + 7) // 8
        if self.byte + n_bytes > len(self.bits):
            raise Rejected("the trees of boxes are cut short")
        found = np.unpackbits(self.bits[self.byte : self.byte + n_bytes], count=n_columns)
        self.byte += n_bytes
        return found.astype(np.bool_)


def _parts(box: Flags, start: int, size: int, at: int) -> Iterator[Flags]:
    """Yield the parts of a box split on a variable: one per state, or the states before `at` and the rest."""
    states = np.flatnonzero(box[start : start + size]).tolist()
    groups = [range(min(at, size)), range(at, size)] if at else ([state] for state in states)
    for group in groups:
        part = box.copy()
        part[start : start + size] = False
        mine = slice(start + group[0], start + group[-1] + 1) if group else slice(0, 0)
        part[mine] = box[mine]
        yield part


def split_tree(arrays: Arrays, columns: Ints, budget: CheckBudget) -> Iterator[tuple[Flags, Flags]]:
    """Yield the boxes of a search's tree over all query variables, as `Trees.read` does."""
    trees = Trees(arrays, "splits", "kept", len(columns) - 1, budget)
    starts: list[int] = columns[:-1].tolist()
    yield from trees.read(dict(enumerate(starts)), np.diff(columns))
    trees.end()


def check_boxes(
    circuit: PlainCircuit, arrays: Arrays, answers: NDArray[np.int64], threshold: float, caps: Floats
) -> str | None:
    """Close every box that ends in a search's tree; return a sentence about the first open one, or None.

    States whose bound is at most the threshold (nats) are dropped from a box until no more can be. The box closes
    when its own bound is at most the threshold, when a variable has no state left, or when only an answer is left.
    Where only some states of a box end, dropping these is enough.
    """
    budget, width, known = circuit.budget, int(circuit.columns[-1]), set[bytes]()
    if len(answers) > 1:
        budget.hold(2.0 * len(answers) * (width + BOX_COST), "the answers as boxes")
        known = {boxes_of(answer[None], circuit.columns).tobytes() for answer in answers}
    n_rows = max(1, min(BATCH, MAX_COLUMNS // width))
    budget.need(n_rows * width * COLUMN_COST, "a batch of boxes")
    rows, first = split_tree(arrays, circuit.columns, budget), 0
    while batch := list(islice(rows, n_rows)):
        boxes, ending = (np.array(part) for part in zip(*batch, strict=True))
        is_part = np.any(ending, axis=1)
        active = np.arange(len(boxes))
        while len(active):
            budget.look()
            bound, each = circuit.bounds(boxes[active], caps)
            left = boxes[active] & ~(each <= threshold)
            is_open = np.all(np.logical_or.reduceat(left, circuit.columns[:-1], axis=1), axis=1)
            is_open &= ~(bound[:, 0] <= threshold) & (np.any(left & ending[active], axis=1) | ~is_part[active])
            is_open &= [row.tobytes() not in known for row in left]
            is_stuck = is_open & np.all(left == boxes[active], axis=1)
            for row in np.flatnonzero(is_stuck).tolist():
                return _open_box(first + int(active[row]), left[row] & ending[active[row]], bound[row, 0], circuit)
            boxes[active] = left
            active = active[is_open]
        first += len(batch)
    return None


def _open_box(number: int, states: Flags, bound: float, circuit: PlainCircuit) -> str:
    for column in np.flatnonzero(states).tolist():
        v = int(np.searchsorted(circuit.columns, column, side="right")) - 1
        return f"box {number} drops state {column - circuit.columns[v]} of query variable {v} without cause"
    return f"box {number} does not close: its bound is {bound:.12g}"
