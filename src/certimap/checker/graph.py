"""Reads a circuit as stored in its file: nodes, edges, layers, and the logs of its leaves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from certimap.checker.leaves import REAL_KINDS, Edges, leaf_logs
from certimap.checker.models import FLOAT, Arrays, CheckBudget, Question, Rejected, refuse_huge
from certimap.checker.numbers import UNIT, Flags, Floats, Ints, log_sum_runs, ranges, run_starts


@dataclass(frozen=True, eq=False)
class PlainLayer:
    """Nodes of one height and kind, and their edges in runs; the weights of a product scale its children."""

    nodes: Ints
    is_sum: bool
    starts: Ints
    counts: Ints
    children: Ints
    log_weights: Floats

    @cached_property
    def parents(self) -> Ints:
        """The parent of each edge."""
        return np.repeat(self.nodes, self.counts)

    @cached_property
    def by_child(self) -> tuple[Ints, Ints, Ints]:
        """The edges sorted by child, then the start and length of each child's run."""
        order = np.argsort(self.children, kind="stable")
        return order, *runs_of(self.children[order])

    def values(self, values: Floats, side: int) -> tuple[Floats, Floats]:
        """Return the edges' terms, and the nodes' values rounded to `side`; one column per box or point."""
        with np.errstate(invalid="ignore"):  # inf times 0
            below = values[self.children] + self.log_weights[:, None]
        of = log_sum_runs if self.is_sum else product_runs
        return below, of(below, self.starts, self.counts, side)

    def pieces(self, n_edges: int) -> Iterator[PlainLayer]:
        """Yield the layer in parts of at most `n_edges` edges, or of one node with more."""
        ends, first = np.cumsum(self.counts), 0
        while first < len(self.nodes):
            at = int(self.starts[first])
            stop = max(first + 1, int(np.searchsorted(ends, at + n_edges, side="right")))
            nodes, edges = slice(first, stop), slice(at, int(ends[stop - 1]))
            yield PlainLayer(
                self.nodes[nodes],
                self.is_sum,
                self.starts[nodes] - at,
                self.counts[nodes],
                self.children[edges],
                self.log_weights[edges],
            )
            first = stop

    def part(self, is_kept: Flags, place: Ints, offset: Floats | None = None) -> PlainLayer | None:
        """Return the layer restricted to the nodes in `is_kept` and their children with a place (>= 0).

        `offset` is the log of an extra factor for each node.
        """
        edges = np.repeat(is_kept[self.nodes], self.counts) & (place[self.children] >= 0)
        parents = self.parents[edges]
        if not len(parents):
            return None
        first, counts = runs_of(parents)
        weights = self.log_weights[edges]
        if offset is not None:
            weights[first] += offset[parents[first]]
        nodes, children = place[parents[first]], place[self.children[edges]]
        return PlainLayer(nodes, self.is_sum, first, counts, children, weights)


def layers_of(height: Ints, is_sum: Flags, ptr: Ints, children: Ints, weights: Floats) -> list[PlainLayer]:
    """Sort inner nodes into layers, lowest first."""
    out: list[PlainLayer] = []
    order = np.lexsort((is_sum, height))[np.count_nonzero(height == 0) :]
    cuts = np.flatnonzero(np.diff(2 * height[order] + is_sum[order])) + 1
    for part in np.split(order, cuts) if len(order) else []:
        counts = ptr[part + 1] - ptr[part]
        edges = ranges(ptr[part], counts)
        out.append(
            PlainLayer(part, bool(is_sum[part[0]]), run_starts(counts), counts, children[edges], weights[edges])
        )
    return out


def upward(layers: Sequence[PlainLayer], values: Floats, side: int) -> Floats:
    """Fill in the values of inner nodes from the values of the leaves, rounded to `side`; shape (nodes, batch)."""
    for layer in layers:
        values[layer.nodes] = layer.values(values, side)[1]
    return values


def runs_of(values: Ints) -> tuple[Ints, Ints]:
    """Return the starts and lengths of the runs of equal values."""
    first = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    return first, np.diff(np.concatenate([first, [len(values)]]))


def product_runs(below: Floats, starts: Ints, counts: Ints, side: int = 1) -> Floats:
    """Add logs in runs of rows, rounded to `side`."""
    here = np.add.reduceat(below, starts, axis=0)
    with np.errstate(invalid="ignore"):
        slack = (np.add.reduceat(np.abs(below), starts, axis=0) + 1.0) * (counts[:, None] + 2.0) * UNIT
        return np.where(np.isfinite(here), here + side * slack, here)


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
