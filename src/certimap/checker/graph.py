"""A circuit as its file holds it, read by the checker: nodes, edges, and the logs of its leaves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from certimap.checker.models import Arrays, Rejected, refuse_huge
from certimap.checker.numbers import Floats, Ints, ranges
from certimap.checker.real import REAL_KINDS, Edges, leaf_logs

Flags = NDArray[np.bool_]
CATEGORICAL, PRODUCT, SUM = 0, 2, 3


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes, children before parents, the root last; `tables` hold a leaf's logs, -inf where it has no state."""

    is_sum: Flags
    is_leaf: Flags
    ptr: Ints
    children: Ints
    log_weights: Floats
    variable: Ints
    tables: Floats


def read_graph(sizes: Ints, arrays: Arrays, edges: Edges, queried: Ints, side: int) -> Graph:
    """Read a circuit's arrays, real variables in cells; refuse kinds of leaves that are not known here."""
    kind = np.asarray(arrays["kind"], np.int64)
    if not np.all(np.isin(kind, [CATEGORICAL, PRODUCT, SUM, *REAL_KINDS])):
        raise Rejected("the circuit has leaves of a kind that the checker does not know")
    leaf_var, start = np.asarray(arrays["leaf_var"], np.int64), np.asarray(arrays["param_ptr"], np.int64)
    leaves = np.flatnonzero(kind == CATEGORICAL)
    tables = np.full((len(kind), int(sizes.max(initial=1))), -np.inf)
    counts = sizes[leaf_var[leaves]]
    within = ranges(np.zeros(len(leaves), np.int64), counts)
    tables[np.repeat(leaves, counts), within] = arrays["params"][np.repeat(start[leaves], counts) + within]
    refuse_huge(tables, "the circuit")
    refuse_huge(np.asarray(arrays["log_weights"]), "the circuit")
    for v, ends in edges.items():
        for code in REAL_KINDS:
            rows = np.flatnonzero((kind == code) & (leaf_var == v))
            if len(rows):
                width = int(start[rows[0] + 1] - start[rows[0]])
                params = np.asarray(arrays["params"][start[rows][:, None] + np.arange(width)], np.float64)
                tables[rows, : len(ends) - 1] = leaf_logs(code, params, ends, v in queried, side)
    return Graph(
        kind == SUM,
        kind < PRODUCT,
        np.asarray(arrays["child_ptr"], np.int64),
        np.asarray(arrays["children"], np.int64),
        np.asarray(arrays["log_weights"], np.float64),
        leaf_var,
        tables,
    )


def smooth(graph: Graph, n_variables: int, ignored: Flags, sizes: Ints, edges: Edges) -> Graph:
    """Multiply in a constant wherever a sum's child, or the root, lacks a variable; refuse overlaps."""
    n = len(graph.is_sum)
    scopes: list[int] = [0] * n
    ptr: list[int] = graph.ptr.tolist()
    children: list[int] = graph.children.tolist()
    missing: dict[int, int] = {}
    for i in range(n):
        scope, total = 0, 0
        if graph.is_leaf[i]:
            v = int(graph.variable[i])
            scope = 0 if ignored[v] else 1 << v
        for e in range(ptr[i], ptr[i + 1]):
            total += scopes[children[e]].bit_count()
            scope |= scopes[children[e]]
        if not graph.is_sum[i] and not graph.is_leaf[i] and total != scope.bit_count():
            raise Rejected(f"product node {i} of the circuit multiplies two children over one variable")
        scopes[i] = scope
        if graph.is_sum[i]:
            for e in range(ptr[i], ptr[i + 1]):
                if scopes[children[e]] != scope:
                    missing[e] = scope & ~scopes[children[e]]
    whole = sum(1 << v for v in range(n_variables) if not ignored[v])
    if not missing and scopes[-1] == whole:
        return graph
    lacking = whole & ~scopes[-1]
    for bits in missing.values():
        lacking |= bits
    if any(lacking >> v & 1 for v in edges):
        raise Rejected("some part of the circuit lacks a real variable, over which nothing is constant")
    return _padded(graph, missing, whole & ~scopes[-1], sizes)


def _padded(graph: Graph, missing: dict[int, int], at_root: int, sizes: Ints) -> Graph:
    """Rebuild a graph with products of what was there and constant leaves."""
    kinds: list[tuple[bool, bool, int]] = []
    below: list[list[int]] = []
    weights: list[list[float]] = []
    tables: list[Floats] = []
    blank = np.full(graph.tables.shape[1], -np.inf)
    constant: dict[int, int] = {}
    place: list[int] = []

    def add(kind: tuple[bool, bool, int], inner: list[int], logs: list[float], table: Floats) -> int:
        kinds.append(kind)
        below.append(inner)
        weights.append(logs)
        tables.append(table)
        return len(kinds) - 1

    def product(child: int, lacks: int) -> int:
        members = [child]
        for v in range(lacks.bit_length()):
            if lacks >> v & 1:
                if v not in constant:
                    ones = blank.copy()
                    ones[: sizes[v]] = 0.0
                    constant[v] = add((False, True, v), [], [], ones)
                members.append(constant[v])
        return add((False, False, -1), members, [0.0] * len(members), blank)

    for i in range(len(graph.is_sum)):
        edges = range(int(graph.ptr[i]), int(graph.ptr[i + 1]))
        inner = [place[int(graph.children[e])] for e in edges]
        inner = [product(c, missing[e]) if e in missing else c for c, e in zip(inner, edges, strict=True)]
        kind = (bool(graph.is_sum[i]), bool(graph.is_leaf[i]), int(graph.variable[i]))
        place.append(add(kind, inner, [float(graph.log_weights[e]) for e in edges], graph.tables[i]))
    if at_root:
        product(place[-1], at_root)
    counts = np.array([len(b) for b in below], np.int64)
    return Graph(
        np.array([k[0] for k in kinds]),
        np.array([k[1] for k in kinds]),
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        np.array([c for b in below for c in b], np.int64),
        np.array([w for b in weights for w in b]),
        np.array([k[2] for k in kinds], np.int64),
        np.array(tables),
    )
