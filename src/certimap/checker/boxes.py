"""Proofs by boxes: the tree of splits of a search on a circuit, checked box by box."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from certimap.checker.circuit import Circuit, boxes_of
from certimap.checker.clock import Clock
from certimap.checker.graph import Flags
from certimap.checker.models import Arrays, Rejected
from certimap.checker.numbers import Floats, Ints

BATCH = 256


def counts_of(boxes: Flags, columns: Ints) -> Ints:
    """Return how many states each box leaves each variable."""
    return np.add.reduceat(boxes, columns[:-1], axis=1, dtype=np.int64)


def shrunk(circuit: Circuit, caps: Floats, boxes: Flags, threshold: float) -> tuple[Flags, Floats]:
    """Drop the states whose bound is at most a threshold until none is left to drop.

    Returns the boxes and their bounds, at most the threshold where a variable keeps no state.
    """
    boxes, bound = boxes.copy(), np.full(len(boxes), np.inf)
    active = np.arange(len(boxes))
    while len(active):
        found, each = circuit.bounds(boxes[active], caps)
        alive = boxes[active] & (each > threshold)
        empty = np.any(counts_of(alive, circuit.columns) == 0, axis=1) | (found[:, 0] <= threshold)
        bound[active] = np.where(empty, np.minimum(found[:, 0], threshold), found[:, 0])
        changed = ~empty & np.any(alive != boxes[active], axis=1)
        boxes[active[changed]] = alive[changed]
        active = active[changed]
    return boxes, bound


@dataclass(frozen=True, eq=False)
class SplitTree:
    """A tree of splits in preorder: the variable of each node, -1 for a leaf, and the states kept at each split.

    A node's children follow it, each with all that is below it: one for each state of its variable that is kept,
    or, where `at` is above 0, one for the states before `at` and one for the others.
    """

    variables: Ints
    kept: Flags
    at: Ints
    end: Ints

    @classmethod
    def read(cls, arrays: Arrays, columns: Ints) -> SplitTree:
        """Read a tree; refuse one whose numbers do not fit together."""
        variables = np.asarray(arrays["splits"])
        bits = np.asarray(arrays["kept"])
        at = np.asarray(arrays["at"]) if "at" in arrays else np.zeros(len(variables), np.int64)
        n_columns = int(columns[-1])
        n_splits = int(np.count_nonzero(variables >= 0)) if variables.ndim == 1 else -1
        if variables.dtype.kind != "i" or bits.dtype != np.uint8 or bits.shape != (n_splits, (n_columns + 7) // 8):
            raise Rejected("the tree of splits is damaged: its arrays do not fit the query")
        if at.shape != variables.shape or at.dtype.kind != "i" or np.any(at < 0):
            raise Rejected("the tree of splits is damaged: it cuts variables at no place that they have")
        if len(variables) == 0 or variables.max() >= len(columns) - 1 or variables.min() < -1:
            raise Rejected("the tree of splits names a variable that the query has not")
        kept = np.unpackbits(bits, axis=1, count=n_columns).astype(np.bool_)
        number = np.cumsum(variables >= 0) - 1
        end = np.zeros(len(variables), np.int64)
        for i in range(len(variables) - 1, -1, -1):
            after = i + 1
            if variables[i] >= 0:
                v = int(variables[i])
                n = 2 if at[i] else int(kept[number[i], columns[v] : columns[v + 1]].sum())
                for _ in range(n):
                    if after >= len(variables):
                        raise Rejected("the tree of splits lacks a box")
                    after = int(end[after])
            end[i] = after
        if end[0] != len(variables):
            raise Rejected("the tree of splits has a box too many")
        kept = kept[np.maximum(number, 0)] if n_splits else kept
        return cls(variables.astype(np.int64), kept, at.astype(np.int64), end)

    def groups(self, node: int, columns: Ints) -> Flags:
        """Return the states of its variable that each child of a node has, shape (children, states)."""
        v = int(self.variables[node])
        kept = self.kept[node, columns[v] : columns[v + 1]]
        states = np.arange(len(kept))
        if self.at[node]:
            return np.stack([states < self.at[node], states >= self.at[node]])
        return states == np.flatnonzero(kept)[:, None]

    def children(self, node: int, n: int) -> list[int]:
        """Return the first n nodes below a node."""
        out: list[int] = []
        at = node + 1
        for _ in range(n):
            out.append(at)
            at = int(self.end[at])
        return out


def check_boxes(
    circuit: Circuit,
    tree: SplitTree,
    answers: NDArray[np.int64],
    threshold: float,
    caps: Floats,
    clock: Clock,
) -> str | None:
    """Close every box of a tree; return the sentence about the first that does not, or None.

    A box is closed when the bound of the whole, or of every state that it still has of some variable, is at most
    the threshold, or when it holds nothing but an answer; a state may be dropped only where its bound is.
    """
    known = {box.tobytes() for box in boxes_of(answers, circuit.columns)} if len(answers) > 1 else set[bytes]()
    boxes = np.ones((1, int(circuit.columns[-1])), np.bool_)
    waiting: list[tuple[int, Flags]] = [(0, boxes[0])]
    while waiting:
        clock.look()
        batch, waiting = waiting[-BATCH:], waiting[:-BATCH]
        nodes = [node for node, _ in batch]
        found, bound = shrunk(circuit, caps, np.array([box for _, box in batch]), threshold)
        for row, node in enumerate(nodes):
            if bound[row] <= threshold or found[row].tobytes() in known:
                continue
            v = int(tree.variables[node])
            if v < 0:
                return f"box {node} does not close: its bound is {bound[row]:.12g}, above {threshold:.12g}"
            kept = tree.kept[node]
            if np.any(found[row] & ~kept):
                column = int(np.flatnonzero(found[row] & ~kept)[0])
                dropped = int(np.searchsorted(circuit.columns, column, side="right")) - 1
                state = column - int(circuit.columns[dropped])
                return f"box {node} drops state {state} of query variable {dropped} without cause"
            groups = tree.groups(node, circuit.columns)
            for child, group in zip(tree.children(node, len(groups)), groups, strict=True):
                part = found[row].copy()
                part[circuit.columns[v] : circuit.columns[v + 1]] &= group
                if np.any(part[circuit.columns[v] : circuit.columns[v + 1]]):
                    waiting.append((child, part))
    return None


def check_every_point(circuit: Circuit, answers: NDArray[np.int64], threshold: float, clock: Clock) -> str | None:
    """Evaluate every joint state but the answers; return a sentence about one above the threshold, or None."""
    sizes = np.diff(circuit.columns)
    total = int(np.prod(sizes.astype(object)))
    known = np.ravel_multi_index(tuple(answers.T), tuple(sizes.tolist()))
    for start in range(0, total, 65536):
        clock.look()
        index = np.arange(start, min(start + 65536, total))
        points = np.stack(np.unravel_index(index, tuple(sizes.tolist())), axis=1).astype(np.int64)
        values = np.where(np.isin(index, known), -np.inf, circuit.values(points))
        worst = int(np.argmax(values))
        if not values[worst] <= threshold:
            return (
                f"the joint state {points[worst].tolist()} has the log value {values[worst]:.12g}, above the claim"
            )
    return None
