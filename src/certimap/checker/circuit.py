"""A circuit under a query, read by the checker: what it is worth at points and at most in boxes.

Evidence and nuisance variables are folded into constants and nodes over one query variable into tables; what is
left is walked layer by layer, all boxes of a batch at once. A box is a row of flags, one per state of a query
variable.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from certimap.checker.models import Arrays, Question, Rejected
from certimap.checker.numbers import UNIT, Floats, Ints, log_sum, log_sum_runs, ranges, run_starts, up
from certimap.checker.real import Edges, leaf_logs

Flags = NDArray[np.bool_]
CATEGORICAL, GAUSSIAN, PRODUCT, SUM = 0, 1, 2, 3
MAX_SUPPORT = 400_000_000  # entries of the table of possible states beyond which no sum counts as deciding


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
    if not np.all(np.isin(kind, [CATEGORICAL, GAUSSIAN, PRODUCT, SUM])):
        raise Rejected("the circuit has leaves of a kind that the checker does not know")
    leaf_var, start = np.asarray(arrays["leaf_var"], np.int64), np.asarray(arrays["param_ptr"], np.int64)
    leaves = np.flatnonzero(kind == CATEGORICAL)
    tables = np.full((len(kind), int(sizes.max(initial=1))), -np.inf)
    counts = sizes[leaf_var[leaves]]
    within = ranges(np.zeros(len(leaves), np.int64), counts)
    tables[np.repeat(leaves, counts), within] = arrays["params"][np.repeat(start[leaves], counts) + within]
    for v, ends in edges.items():
        rows = np.flatnonzero((kind == GAUSSIAN) & (leaf_var == v))
        params = np.asarray(arrays["params"][start[rows][:, None] + np.arange(2)], np.float64)
        tables[rows, : len(ends) - 1] = leaf_logs(params, ends, v in queried, side)
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


@dataclass(frozen=True, eq=False)
class Layer:
    """Nodes of one height and kind, their edges in runs, and the edges that lead to them from above."""

    nodes: Ints
    is_sum: bool
    starts: Ints
    counts: Ints
    children: Ints
    log_weights: Floats


@dataclass(frozen=True, eq=False)
class Above:
    """The edges into the nodes of one height, in runs by node."""

    nodes: Ints
    starts: Ints
    counts: Ints
    parents: Ints
    children: Ints
    log_weights: Floats
    from_product: Flags


def layers_of(nodes: Ints, height: Ints, is_sum: Flags, ptr: Ints, children: Ints, weights: Floats) -> list[Layer]:
    """Sort inner nodes into layers, lowest first."""
    out: list[Layer] = []
    order = nodes[np.lexsort((nodes, is_sum[nodes], height[nodes]))]
    key = 2 * height[order] + is_sum[order]
    cuts = np.flatnonzero(np.diff(key)) + 1
    for part in np.split(order, cuts) if len(order) else []:
        counts = ptr[part + 1] - ptr[part]
        edges = ranges(ptr[part], counts)
        out.append(Layer(part, bool(is_sum[part[0]]), run_starts(counts), counts, children[edges], weights[edges]))
    return out


def heights_of(ptr: Ints, children: Ints) -> Ints:
    """Return each node's longest way down, 0 for one without children."""
    height = [0] * (len(ptr) - 1)
    below: list[int] = children.tolist()
    bounds: list[int] = ptr.tolist()
    for i, (start, stop) in enumerate(pairwise(bounds)):
        if stop > start:
            height[i] = 1 + max(height[c] for c in below[start:stop])
    return np.array(height, np.int64)


@dataclass(frozen=True, eq=False)
class Circuit:
    """The part of a circuit that a query leaves, or a subcircuit of it.

    Attributes
    ----------
    n_nodes
        Nodes 0 .. n_terminals - 1 are tables over one query variable, the others inner ones, the root last.
    columns
        Where the states of each query variable begin, and their total.
    side
        1: all that is computed is at least the truth; -1: at most.
    """

    n_nodes: int
    columns: Ints
    variable: Ints
    tables: Floats
    offset: Floats
    layers: list[Layer]
    above: list[Above]
    decides: Flags
    ids: Ints
    side: int

    @property
    def n_edges(self) -> int:
        return sum(len(layer.children) for layer in self.layers) + self.tables.size

    @cached_property
    def places(self) -> Ints:
        """The column of each entry of the tables; that behind the last where a variable has no such state."""
        sizes = np.diff(self.columns)[self.variable]
        states: Ints = np.arange(self.tables.shape[1], dtype=np.int64)
        return np.where(states < sizes[:, None], self.columns[self.variable][:, None] + states, self.columns[-1])

    @cached_property
    def by_variable(self) -> tuple[Ints, Ints, Ints]:
        """The tables sorted by variable, and where the runs of a variable begin, and their lengths."""
        order = np.argsort(self.variable, kind="stable")
        return order, *_runs(self.variable[order])

    @cached_property
    def scope(self) -> Ints:
        """The query variables that it has, in order."""
        return np.unique(self.variable)

    # --- passes ------------------------------------------------------------------------------------------

    def _terminals(self, boxes: Flags, *, largest: bool) -> Floats:
        """Return the largest entry, or the sum, of each table in each box, shape (tables, batch)."""
        allowed = np.where(np.pad(boxes, ((0, 0), (0, 1))), 0.0, -np.inf)
        entries = self.tables[:, None] + allowed.T[self.places].swapaxes(1, 2)
        return entries.max(axis=-1) if largest else log_sum(entries, -1, self.side)

    def _upward(self, leaves: Floats, caps: Floats | None, limit: Floats | None) -> Floats:
        """Return every node's value.

        With `caps` and the masses of nodes as `limit` the values are those of a bound: sums are at most either,
        and the largest child where a sum decides. A product needs no limit, for its parts have theirs; that keeps
        what flows down to one part the product of the others.
        """
        values = np.empty((self.n_nodes, leaves.shape[1]))
        values[: len(leaves)] = leaves if limit is None else np.minimum(leaves, limit[: len(leaves)])
        for layer in self.layers:
            below = values[layer.children]
            if layer.is_sum:
                below = below + layer.log_weights[:, None]
                here = log_sum_runs(below, layer.starts, layer.counts, self.side)
                if caps is not None and limit is not None:
                    best = up(np.maximum.reduceat(below, layer.starts, axis=0), 2.0)
                    here = np.where(self.decides[layer.nodes, None], best, here)
                    here = np.minimum(np.minimum(here, caps[self.ids[layer.nodes], None]), limit[layer.nodes])
            else:
                here = product_runs(below, layer.starts, layer.counts, self.offset[layer.nodes], self.side)
            values[layer.nodes] = here
        return values

    def _columns_of(self, values: Floats, boxes: Flags) -> Floats:
        """Return an upper side of the root's value with each state of the boxes held, shape (batch, columns)."""
        flow = np.full(values.shape, -np.inf)
        flow[-1] = 0.0
        for part in self.above:
            ways = flow[part.parents] + part.log_weights[:, None]
            over, own = values[part.parents], values[part.children]
            with np.errstate(invalid="ignore"):
                others = over - own + (4.0 + np.abs(over) + np.abs(own)) * 1e-15
            others = np.where(np.isfinite(over) & np.isfinite(own), others, -np.inf)
            ways = np.where(part.from_product[:, None], up(ways + others, 4.0), up(ways, 2.0))
            ways = np.where(np.isfinite(own), ways, -np.inf)
            flow[part.nodes] = log_sum_runs(ways, part.starts, part.counts)
        order, starts, counts = self.by_variable
        reached = flow[order, :, None] + self.tables[order, None, :]
        sums = log_sum_runs(reached.reshape(len(order), -1), starts, counts).reshape(-1, *reached.shape[1:])
        out = np.full((len(boxes), int(self.columns[-1]) + 1), np.inf)
        out[:, self.places[order[starts]]] = up(sums, 4.0).swapaxes(0, 1)
        return np.where(boxes, np.minimum(out[:, :-1], values[-1][:, None]), -np.inf)

    def bounds(self, boxes: Flags, caps: Floats) -> tuple[Floats, Floats]:
        """Return upper bounds on the log values in boxes, shape (batch,), and with each state held."""
        bound, each = np.empty(len(boxes)), np.empty(boxes.shape)
        rows = max(1, 3_000_000 // max(self.n_edges, 1))
        for start in range(0, len(boxes), rows):
            part = slice(start, start + rows)
            mass = self._upward(self._terminals(boxes[part], largest=False), None, None)
            top = self._upward(self._terminals(boxes[part], largest=True), caps, mass)
            bound[part] = top[-1]
            each[part] = np.minimum(self._columns_of(top, boxes[part]), self._columns_of(mass, boxes[part]))
        unknown = np.isnan(bound), np.isnan(each)  # what cannot be told bounds nothing
        bound[unknown[0]], each[unknown[1]] = np.inf, np.inf
        return bound, each

    def values(self, points: NDArray[np.int64]) -> Floats:
        """Return the logs of the values at points (states of query variables)."""
        out = np.empty(len(points))
        rows = max(1, 4_000_000 // max(self.n_edges, 1))
        for start in range(0, len(points), rows):
            boxes = boxes_of(points[start : start + rows], self.columns)
            leaves = self._terminals(boxes, largest=True)
            out[start : start + rows] = self._upward(leaves, None, None)[-1]
        return out

    def total(self) -> float:
        """Return the log of the sum of all values: that of p(e)."""
        boxes = np.ones((1, int(self.columns[-1])), np.bool_)
        return float(self._upward(self._terminals(boxes, largest=False), None, None)[-1, 0])

    def below(self, node: int) -> Circuit:
        """Return the subcircuit under a node, without the outside."""
        known = np.zeros(self.n_nodes, np.bool_)
        known[node] = True
        for layer in reversed(self.layers):
            hit = np.repeat(known[layer.nodes], layer.counts)
            known[layer.children[hit]] = True
        kept = np.flatnonzero(known)
        place = np.full(self.n_nodes, -1, np.int64)
        place[kept] = np.arange(len(kept))
        n_terminals = int(np.count_nonzero(kept < len(self.variable)))
        layers: list[Layer] = []
        for layer in self.layers:
            mine = known[layer.nodes]
            if mine.any():
                edges = np.repeat(mine, layer.counts)
                counts = layer.counts[mine]
                layers.append(
                    Layer(
                        place[layer.nodes[mine]],
                        layer.is_sum,
                        run_starts(counts),
                        counts,
                        place[layer.children[edges]],
                        layer.log_weights[edges],
                    )
                )
        rows = kept[:n_terminals]
        return Circuit(
            len(kept),
            self.columns,
            self.variable[rows],
            self.tables[rows],
            self.offset[kept],
            layers,
            above_of(layers, n_terminals, len(kept)),
            self.decides[kept],
            self.ids[kept],
            self.side,
        )


def boxes_of(points: NDArray[np.int64], columns: Ints) -> Flags:
    """Return the boxes that hold one point each."""
    boxes = np.zeros((len(points), int(columns[-1])), np.bool_)
    boxes[np.arange(len(points))[:, None], columns[:-1] + points] = True
    return boxes


def above_of(layers: list[Layer], n_terminals: int, n_nodes: int) -> list[Above]:
    """Sort edges by the node that they lead to, the highest nodes first."""
    rank = np.zeros(n_nodes, np.int64)  # of the layer: parents lie in later ones
    for k, layer in enumerate(layers):
        rank[layer.nodes] = k + 1
    if not layers:
        return []
    parents = np.concatenate([np.repeat(layer.nodes, layer.counts) for layer in layers])
    children = np.concatenate([layer.children for layer in layers])
    weights = np.concatenate([layer.log_weights for layer in layers])
    from_product = np.concatenate([np.full(len(layer.children), not layer.is_sum) for layer in layers])
    order = np.lexsort((children, -rank[children]))
    cuts = np.flatnonzero(np.diff(rank[children[order]])) + 1
    out: list[Above] = []
    for part in np.split(order, cuts):
        own = children[part]
        first, counts = _runs(own)
        out.append(Above(own[first], first, counts, parents[part], own, weights[part], from_product[part]))
    return out


def _runs(values: Ints) -> tuple[Ints, Ints]:
    """Return where runs of equal values begin, and their lengths."""
    first = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    return first, np.diff(np.concatenate([first, [len(values)]]))


def product_runs(below: Floats, starts: Ints, counts: Ints, offset: Floats, side: int) -> Floats:
    """Add logs in runs of rows, and an offset each, rounded to a side."""
    here = np.add.reduceat(below, starts, axis=0) + offset[:, None]
    with np.errstate(invalid="ignore"):
        size = np.add.reduceat(np.abs(below), starts, axis=0) + np.abs(offset)[:, None] + 1.0
        slack = size * (counts[:, None] + 2.0) * UNIT
        return np.where(np.isfinite(here), here + side * slack, here)


def circuit_of(arrays: Arrays, question: Question, edges: Edges, side: int = 1) -> Circuit:
    """Fold evidence and nuisance variables of a circuit, and nodes over one query variable into tables.

    Real variables stand in cells between their `edges`, which are the states that `question` has of them.
    """
    sizes = question.sizes
    position = np.full(len(sizes) + 1, -1, np.int64)
    position[question.queried] = np.arange(len(question.queried))
    observed = np.array([np.count_nonzero(question.weights_of(v) > -np.inf) == 1 for v in range(len(sizes))])
    for v, ends in edges.items():
        observed[v] = ends[0] == ends[-1]
    observed[question.queried] = False
    graph = read_graph(sizes, arrays, edges, question.queried, side)
    graph = smooth(graph, len(sizes), observed, sizes, edges)
    leaves = np.flatnonzero(graph.is_leaf)
    tables = graph.tables.copy()
    for v in range(len(sizes)):
        rows = leaves[graph.variable[leaves] == v]
        tables[rows, : sizes[v]] += question.weights_of(v)
        if position[v] < 0 and len(rows):
            tables[rows] = log_sum(tables[rows], -1, side)[:, None]
    place = position[graph.variable]
    least = np.where(graph.is_leaf & (place >= 0), place, np.iinfo(np.int64).max)
    most = np.where(graph.is_leaf & (place >= 0), place, -1)
    height = heights_of(graph.ptr, graph.children)
    inner = np.flatnonzero(~graph.is_leaf)
    layers = layers_of(inner, height, graph.is_sum, graph.ptr, graph.children, graph.log_weights)
    for layer in layers:  # nodes over at most one query variable: a table, a constant in every place
        least[layer.nodes] = np.minimum.reduceat(least[layer.children], layer.starts)
        most[layer.nodes] = np.maximum.reduceat(most[layer.children], layer.starts)
        below = tables[layer.children] + layer.log_weights[:, None]
        if layer.is_sum:
            tables[layer.nodes] = log_sum_runs(below, layer.starts, layer.counts, side)
        else:
            nothing = np.zeros(len(layer.nodes))
            tables[layer.nodes] = product_runs(below, layer.starts, layer.counts, nothing, side)
    return _folded(graph, question, least, most, tables, layers, side)


def _folded(
    graph: Graph, question: Question, least: Ints, most: Ints, tables: Floats, layers: list[Layer], side: int
) -> Circuit:
    """Keep the nodes over several query variables that the root reaches, and the tables below them."""
    n = len(least)
    is_inner, is_constant = most > least, most < 0
    known = np.zeros(n, np.bool_)
    known[-1] = True
    offset = np.zeros(n)
    for layer in reversed(layers):
        live = known[layer.nodes] & is_inner[layer.nodes]
        possible = np.any(tables[layer.children] > -np.inf, axis=1) | is_inner[layer.children]
        hit = np.repeat(live, layer.counts) & (possible | ~np.full(len(possible), layer.is_sum))
        known[layer.children[hit & ~is_constant[layer.children]]] = True
        if not layer.is_sum:
            constants = np.where(is_constant[layer.children], tables[layer.children, 0], 0.0)
            offset[layer.nodes] = product_runs(
                constants[:, None], layer.starts, layer.counts, np.zeros(len(layer.nodes)), side
            )[:, 0]
    terminals = np.flatnonzero(known & ~is_inner)
    inner = np.flatnonzero(known & is_inner)
    kept = np.concatenate([terminals, inner])
    place = np.full(n, -1, np.int64)
    place[kept] = np.arange(len(kept))
    out: list[Layer] = []
    for layer in layers:
        mine = known[layer.nodes] & is_inner[layer.nodes]
        edges = np.repeat(mine, layer.counts) & (place[layer.children] >= 0)
        owner = np.repeat(np.arange(len(layer.nodes)), layer.counts)[edges]
        nodes, counts = np.unique(owner, return_counts=True)
        if len(nodes):
            out.append(
                Layer(
                    place[layer.nodes[nodes]],
                    layer.is_sum,
                    run_starts(counts),
                    counts,
                    place[layer.children[edges]],
                    layer.log_weights[edges],
                )
            )
    columns = question.query_offsets
    variable = least[terminals]
    circuit = Circuit(
        len(kept),
        columns,
        variable,
        tables[terminals],
        offset[kept],
        out,
        above_of(out, len(terminals), len(kept)),
        np.zeros(len(kept), np.bool_),
        np.arange(len(kept)),
        side,
    )
    _find_decided(circuit)
    return circuit


def _find_decided(circuit: Circuit) -> None:
    """Mark the sums whose children allow disjoint sets of states of some query variable."""
    n_columns = int(circuit.columns[-1])
    if circuit.n_nodes * n_columns > MAX_SUPPORT:
        return
    support = np.zeros((circuit.n_nodes, n_columns), np.bool_)
    for row, v in enumerate(circuit.variable.tolist()):
        start, stop = int(circuit.columns[v]), int(circuit.columns[v + 1])
        support[row, start:stop] = circuit.tables[row, : stop - start] > -np.inf
    for layer in circuit.layers:
        below = support[layer.children]
        support[layer.nodes] = np.logical_or.reduceat(below, layer.starts, axis=0)
        if layer.is_sum:
            counts = np.add.reduceat(below, layer.starts, axis=0, dtype=np.int64)
            most = np.maximum.reduceat(counts, circuit.columns[:-1], axis=1)
            circuit.decides[layer.nodes] = np.any(most == 1, axis=1)
