"""Proofs over the points and boxes of a circuit: values of points, trees of boxes, and caps of sums.

A cap bounds a sum over any box. A tree covers the whole space of a sum's variables, so the largest bound over its
terminal boxes bounds the sum, whatever the tree: a proof can only choose a bad one, and no bound is read from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from certimap.checker.circuit import Flags, PlainCircuit, boxes_of
from certimap.checker.constraints import PlainRules
from certimap.checker.models import FLOAT, Arrays, CheckBudget, Rejected
from certimap.checker.numbers import UNIT, Floats, Ints, up

POINT_COST = 8  # copies of a file's points held at once


def _rows(points: Ints) -> NDArray[np.void]:
    """View each row of numbers as one comparable item."""
    return np.ascontiguousarray(points).view(np.dtype((np.void, points.shape[1] * FLOAT)))[:, 0]


def _refuse_better(
    circuit: PlainCircuit, rules: PlainRules, points: Ints, answers: Ints, threshold: float
) -> None:
    """Reject a feasible point above the threshold that is no answer."""
    is_rival = rules.satisfied(points) & ~np.isin(_rows(points), _rows(answers))
    rivals = np.where(is_rival, circuit.values(points), -np.inf)
    worst = int(np.argmax(rivals))
    if not rivals[worst] <= threshold:  # NaN, which argmax finds first, is not
        state, value = points[worst].tolist(), rivals[worst]
        raise Rejected(f"the joint state {state} has the log value {value:.12g}, above the claim")


def check_every_point(circuit: PlainCircuit, rules: PlainRules, answers: Ints, threshold: float) -> None:
    """Evaluate every feasible joint state but the answers; reject one above the threshold."""
    for points in rules.points(np.diff(circuit.columns)):
        _refuse_better(circuit, rules, points, answers, threshold)


def read_points(arrays: Arrays, sizes: Ints, budget: CheckBudget) -> Ints:
    """Return the points listed in a proof, as states of the query variables."""
    given = arrays["points"]
    if given.ndim != 2 or given.shape[1] != len(sizes) or given.dtype.kind not in "iu":
        raise Rejected("the points evaluated do not fit the query")
    budget.need(POINT_COST * FLOAT * given.size, "the points evaluated")
    points = given.astype(np.int64)
    if np.any((points < 0) | (points >= sizes)):
        raise Rejected("the points evaluated do not fit the query")
    if len(points) == 0 or len(np.unique(points, axis=0)) != len(points):
        raise Rejected("no point is listed, or one twice")
    return points


def check_residual(
    circuit: PlainCircuit, rules: PlainRules, points: Ints, lower: Floats, answers: Ints, threshold: float
) -> None:
    """Reject listed points above the threshold, and too few of them; `lower`: their logs, rounded down."""
    _refuse_better(circuit, rules, points, answers, threshold)
    total = circuit.log_total
    left = 1.0 - math.fsum(np.exp(up(lower - total, -8.0))) + 16.0 * UNIT
    if not float(up(total + math.log(left if left > UNIT or math.isnan(left) else UNIT), 8.0)) <= threshold:
        raise Rejected(f"the points listed leave a probability of {left:.6g}, which may hold a better assignment")


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
                raise Rejected("a tree of boxes splits a variable outside its scope")
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


def check_boxes(
    circuit: PlainCircuit, rules: PlainRules, arrays: Arrays, answers: Ints, threshold: float, caps: Floats
) -> None:
    """Close every box that ends in a search's tree; reject one left open.

    States without a feasible point, or with a bound of at most the threshold (nats), are dropped from a box until
    no more can be. The box closes
    when its own bound is at most the threshold, when a variable has no state left, or when only an answer is left.
    Where only some states of a box end, dropping these is enough.
    """
    budget, width, known = circuit.budget, int(circuit.columns[-1]), set[bytes]()
    if len(answers) > 1:
        budget.hold(2.0 * len(answers) * (width + BOX_COST), "the answers as boxes")
        known = {boxes_of(answer[None], circuit.columns).tobytes() for answer in answers}
    n_rows = max(1, min(BATCH, MAX_COLUMNS // width))
    budget.need(n_rows * width * COLUMN_COST, "a batch of boxes")
    trees, first = Trees(arrays, "splits", "kept", len(circuit.columns) - 1, budget), 0
    starts: list[int] = circuit.columns[:-1].tolist()
    rows = trees.read(dict(enumerate(starts)), np.diff(circuit.columns))
    while batch := list(islice(rows, n_rows)):
        boxes, ending = (np.array(part) for part in zip(*batch, strict=True))
        is_part = np.any(ending, axis=1)
        active = np.arange(len(boxes))
        while len(active):
            budget.look()
            bound, each = circuit.bounds(boxes[active], caps)
            left = rules.narrowed(boxes[active] & ~(each <= threshold), circuit.columns)
            is_open = np.all(np.logical_or.reduceat(left, circuit.columns[:-1], axis=1), axis=1)
            is_open &= ~(bound[:, 0] <= threshold) & (np.any(left & ending[active], axis=1) | ~is_part[active])
            is_open &= [row.tobytes() not in known for row in left]
            is_stuck = is_open & np.all(left == boxes[active], axis=1)
            for row in np.flatnonzero(is_stuck).tolist():
                _refuse_open(first + int(active[row]), left[row] & ending[active[row]], bound[row, 0], circuit)
            boxes[active] = left
            active = active[is_open]
        first += len(batch)
    trees.end()


def _refuse_open(number: int, states: Flags, bound: float, circuit: PlainCircuit) -> None:
    if not np.any(states):
        raise Rejected(f"box {number} does not close: its bound is {bound:.12g}")
    column = int(np.argmax(states))
    v = int(np.searchsorted(circuit.columns, column, side="right")) - 1
    raise Rejected(f"box {number} drops state {column - circuit.columns[v]} of query variable {v} without cause")


Rows = tuple[Flags, Flags]  # boxes, and the states that end in each; none where the whole box ends


def read_trees(arrays: Arrays, circuit: PlainCircuit) -> dict[int, Rows]:
    """Map each sum node to the terminal boxes of its tree; reject trees that name unknown sums."""
    node_of = {number: node for node, number in enumerate(circuit.numbers.tolist()) if number >= 0}
    sizes, scopes = np.diff(circuit.columns), circuit.scopes()
    budget, listed = circuit.budget, arrays["cap_nodes"]
    trees = Trees(arrays, "cap_splits", "cap_kept", len(sizes), budget)
    found: dict[int, Rows] = {}
    if listed.ndim != 1 or listed.dtype.kind != "i" or len(listed) > len(node_of):
        raise Rejected("the sums that have trees of caps are no list of sums of the circuit")
    numbers: list[int] = listed.tolist()
    for number in numbers:
        if number not in node_of or node_of[number] in found:
            raise Rejected(f"there is a tree of caps for sum {number}, which the query leaves nothing of, or two")
        scope = [v for v in range(len(sizes)) if scopes[node_of[number]] >> v & 1]
        starts = dict(zip(scope, (np.cumsum(sizes[scope]) - sizes[scope]).tolist(), strict=True))
        rows: list[tuple[Flags, Flags]] = []
        for row in trees.read(starts, sizes):
            budget.hold(2.0 * (len(row[0]) + BOX_COST), "the boxes of trees of caps")
            rows.append(row)
        boxes, ending = zip(*rows, strict=True)
        budget.need(2.0 * len(rows) * len(rows[0][0]), "the boxes of a tree of caps")
        found[node_of[number]] = np.array(boxes), np.array(ending)
    trees.end()
    return found


def caps_of(circuit: PlainCircuit, arrays: Arrays) -> Floats:
    """Return an upper bound (nats) on each sum, by its number; inf for a sum without a tree."""
    caps = np.full(int(circuit.numbers.max(initial=-1)) + 2, np.inf)
    if "cap_nodes" not in arrays:
        return caps
    trees = read_trees(arrays, circuit)
    for layer in circuit.layers:
        nodes = np.array([node for node in layer.nodes.tolist() if node in trees], np.int64)
        lengths = np.ceil(np.log2([len(trees[node][0]) for node in nodes.tolist()]))
        waiting = [nodes[lengths == length] for length in np.unique(lengths)]  # padded to the longest
        while waiting:
            circuit.budget.look()
            group = waiting.pop()
            parts = circuit.below(group)
            if parts is None:
                waiting += [group[::2], group[1::2]]
            else:
                caps[circuit.numbers[group]] = _maxima(parts, [trees[node] for node in group.tolist()], caps)
    return caps


def _maxima(parts: PlainCircuit, trees: list[Rows], caps: Floats) -> Floats:
    """Return, for each root, the largest bound over the terminal boxes of its tree."""
    n_rows, width = max(len(boxes) for boxes, _ in trees), int(parts.columns[-1])
    first = parts.columns[np.flatnonzero(np.diff(parts.root_of, prepend=-1))]
    step, largest = max(1, MAX_COLUMNS // width), np.full(len(trees), -np.inf)
    parts.budget.need(min(step, n_rows) * width * COLUMN_COST, "a batch of boxes")
    for at in range(0, n_rows, step):
        n_here, start = min(step, n_rows - at), 0
        boxes, ending = (np.zeros((n_here, width), np.bool_) for _ in range(2))
        is_row = np.zeros((n_here, len(trees)), np.bool_)
        for k, (own, ends) in enumerate(trees):
            own, ends = own[at : at + step], ends[at : at + step]
            n, stop = len(own), start + own.shape[1]
            boxes[:n, start:stop], ending[:n, start:stop] = own, ends
            boxes[n:, start:stop] = True
            is_row[:n, k] = True
            start = stop
        bound, each = parts.bounds(boxes, caps)
        partly = np.maximum.reduceat(np.where(ending, each, -np.inf), first, axis=1)
        is_part = np.logical_or.reduceat(ending, first, axis=1)
        found = np.where(is_row, np.where(is_part, partly, bound), -np.inf)
        largest = np.maximum(largest, found.max(axis=0))
    return largest
