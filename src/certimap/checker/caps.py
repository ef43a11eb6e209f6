"""Upper bounds on sums over any box (caps), computed along the trees of boxes in a proof.

A tree covers the whole space of a sum's variables: a split covers a box by its parts, and a drop covers it by the
states dropped and the box left. So the largest bound over the terminal boxes bounds the sum, whatever the tree: a
proof can only choose a bad tree, and no bound is read from it. Sums are bounded from the lowest layer up, all sums
of a layer side by side, for a sum depends on lower layers alone.
"""

from __future__ import annotations

import numpy as np

from certimap.checker.boxes import BOX_COST, COLUMN_COST, MAX_COLUMNS, Trees
from certimap.checker.circuit import PlainCircuit
from certimap.checker.graph import Flags
from certimap.checker.models import Arrays, Rejected
from certimap.checker.numbers import Floats

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
