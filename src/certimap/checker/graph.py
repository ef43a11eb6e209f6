"""Reads a circuit as stored in its file: nodes, edges, layers, and the logs of its leaves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from certimap.checker.budget import FLOAT, CheckBudget
from certimap.checker.layers import PlainLayer, layers_of
from certimap.checker.models import Arrays, Question, Rejected, refuse_huge
from certimap.checker.numbers import Flags, Floats, Ints, ranges
from certimap.checker.real import REAL_KINDS, Edges, leaf_logs

CATEGORICAL, PRODUCT, SUM = 0, 2, 3
TABLE_COST = 9  # copies of the leaves' tables held at once, intermediate results included


@dataclass(frozen=True, eq=False)
class Graph:
    """The nodes of a file, followed by added products and constant leaves that make every sum smooth.

    `heights` are the longest paths down to a leaf (0 for leaves); `variable` is a leaf's variable, -1 for others.
    """

    is_sum: Flags
    ptr: Ints
    children: Ints
    log_weights: Floats
    heights: Ints
    variable: Ints
    root: int
    budget: CheckBudget

    @cached_property
    def layers(self) -> list[PlainLayer]:
        """The inner nodes layer by layer, lowest first."""
        return layers_of(self.heights, self.is_sum, self.ptr, self.children, self.log_weights)

    def tables(self, arrays: Arrays, question: Question, edges: Edges, side: int) -> Floats:
        """Return each leaf's log value per state, or per cell of a real variable, rounded to `side`; else -inf."""
        sizes = question.sizes
        n_entries = len(self.is_sum) * (1 + int(sizes.max(initial=1)))
        self.budget.need(TABLE_COST * FLOAT * n_entries, "tables of the circuit's leaves")
        tables = np.full((len(self.is_sum), int(sizes.max(initial=1))), -np.inf)
        kind, start = np.asarray(arrays["kind"], np.int64), np.asarray(arrays["param_ptr"], np.int64)
        leaves = np.flatnonzero(kind == CATEGORICAL)
        counts = sizes[self.variable[leaves]]
        within = ranges(np.zeros(len(leaves), np.int64), counts)
        tables[np.repeat(leaves, counts), within] = arrays["params"][np.repeat(start[leaves], counts) + within]
        refuse_huge(tables, "the circuit")
        for v, ends in edges.items():
            for code in REAL_KINDS:
                rows = np.flatnonzero((kind == code) & (self.variable[: len(kind)] == v))
                if len(rows):
                    width = int(start[rows[0] + 1] - start[rows[0]])
                    params = np.asarray(arrays["params"][start[rows][:, None] + np.arange(width)], np.float64)
                    if np.any(np.isnan(params)):
                        raise Rejected("the circuit has a leaf with a parameter that is no number")
                    given = code, params, ends, v in question.queried, side
                    tables[rows, : len(ends) - 1] = leaf_logs(*given, self.budget)
        for row in len(kind) + np.flatnonzero(self.variable[len(kind) :] >= 0):
            tables[row, : sizes[self.variable[row]]] = 0.0
        if np.any(np.isnan(tables)):
            raise Rejected("a leaf of the circuit has a log that is no number")
        return tables


class _Smooth:
    """Adds the nodes that make the sums of a file smooth: constant leaves, and products with them.

    `added` holds the children of each new node (none for a leaf), `constants` the new leaf of each variable.
    """

    def __init__(self, n_nodes: int, real: int) -> None:
        self.n_nodes, self.real = n_nodes, real
        self.heights: dict[int, int] = {}
        self.added: list[list[int]] = []
        self.constants: dict[int, int] = {}

    def add(self, children: list[int]) -> int:
        node = self.n_nodes + len(self.added)
        self.added.append(children)
        self.heights[node] = 1 + max((self.heights[c] for c in children), default=-1)
        return node

    def padded(self, node: int, lacks: int) -> int:
        """Return the product of a node with constant leaves of the variables that it lacks (a bit set)."""
        if lacks & self.real:
            raise Rejected("some part of the circuit lacks a real variable, over which nothing is constant")
        missing = [v for v in range(lacks.bit_length()) if lacks >> v & 1]
        for v in missing:
            if v not in self.constants:
                self.constants[v] = self.add([])
        return self.add([node, *(self.constants[v] for v in missing)])


def read_graph(arrays: Arrays, question: Question, edges: Edges, budget: CheckBudget) -> Graph:
    """Read a circuit and make it smooth: add constants where a sum's child, or the root, lacks a variable.

    Rejects a product whose children share a variable. Observed variables may be missing anywhere. `edges` are the
    cell ends of the real variables.
    """
    kind = np.asarray(arrays["kind"], np.int64)
    if not np.all(np.isin(kind, [CATEGORICAL, PRODUCT, SUM, *REAL_KINDS])):
        raise Rejected("the circuit has leaves of a kind that the checker does not know")
    ptr, variable = np.asarray(arrays["child_ptr"], np.int64), np.asarray(arrays["leaf_var"], np.int64)
    if np.any((np.diff(ptr) > 0) != (kind >= PRODUCT)):
        raise Rejected("the circuit has a sum or a product of nothing, or a leaf with children")
    refuse_huge(np.asarray(arrays["log_weights"]), "the circuit")
    observed = {v for v in range(len(question.sizes)) if question.is_observed(v)}
    observed |= {v for v, ends in edges.items() if ends[0] == ends[-1] and v not in question.queried}
    bits: list[int] = [0 if v in observed else 1 << v for v in range(len(question.sizes))]
    whole: int = sum(bits)
    smooth = _Smooth(len(kind), sum(1 << v for v in edges))
    heights, scopes = smooth.heights, list[int]()
    below: list[int] = np.asarray(arrays["children"]).tolist()
    bounds: list[int] = ptr.tolist()
    codes: list[int] = kind.tolist()
    leaf_of: list[int] = variable.tolist()
    for i, (code, v) in enumerate(zip(codes, leaf_of, strict=True)):
        budget.look()
        scope, total = bits[v] if code < PRODUCT else 0, 0
        mine = range(bounds[i], bounds[i + 1])
        for e in mine:
            scope |= scopes[below[e]]
            total += scopes[below[e]].bit_count()
        if code == PRODUCT and total != scope.bit_count():
            raise Rejected(f"product node {i} of the circuit multiplies two children over one variable")
        if code == SUM:
            for e in mine:
                if scopes[below[e]] != scope:
                    below[e] = smooth.padded(below[e], scope & ~scopes[below[e]])
        scopes.append(scope)
        heights[i] = 1 + max((heights[below[e]] for e in mine), default=-1)
    lacks = whole & ~scopes[-1]
    root = smooth.padded(len(kind) - 1, lacks) if lacks else len(kind) - 1
    added = smooth.added
    leaves = np.full(len(kind) + len(added), -1)
    leaves[: len(kind)] = np.where(kind < PRODUCT, variable, -1)
    leaves[list(smooth.constants.values())] = list(smooth.constants)
    return Graph(
        np.concatenate([kind == SUM, np.zeros(len(added), np.bool_)]),
        np.concatenate([ptr, ptr[-1] + np.cumsum([len(c) for c in added], dtype=np.int64)]),
        np.array([*below, *chain.from_iterable(added)], np.int64),
        np.concatenate([arrays["log_weights"], np.zeros(sum(len(c) for c in added))]),
        np.array([heights[i] for i in range(len(leaves))], np.int64),
        leaves,
        root,
        budget,
    )
