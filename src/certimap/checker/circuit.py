"""A circuit as stored in its file, and under a query: its values at points, and its upper bounds over boxes.

Evidence and nuisance variables become constants, and nodes over one query variable tables. The other nodes are
evaluated layer by layer. A box is a row of flags, one per state of each query variable; the states are the lowest
nodes, and a table is a deterministic sum over them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from certimap.checker.leaves import REAL_KINDS, Edges, leaf_logs
from certimap.checker.models import FLOAT, Arrays, CheckBudget, Question, Rejected, refuse_huge
from certimap.checker.numbers import UNIT, Flags, Floats, Ints, log_sum, log_sum_runs, ranges, run_starts, up


@dataclass(frozen=True, eq=False)
class PlainLayer:
    """Nodes of one height and kind, and their edges in runs; the weights of a product scale its children."""

    nodes: Ints
    is_sum: bool
    starts: Ints
    counts: Ints
    children: Ints
    log_weights: Floats

    @classmethod
    def of_edges(cls, is_sum: bool, parents: Ints, children: Ints, log_weights: Floats) -> PlainLayer:
        """Return the layer of some edges, sorted by parent."""
        starts, counts = runs_of(parents)
        return cls(parents[starts], is_sum, starts, counts, children, log_weights)

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
            edges = slice(at, int(ends[stop - 1]))
            parents, children = self.parents[edges], self.children[edges]
            yield PlainLayer.of_edges(self.is_sum, parents, children, self.log_weights[edges])
            first = stop

    def part(self, is_kept: Flags, place: Ints, offset: Floats | None = None) -> PlainLayer | None:
        """Return the layer of kept nodes and children with a place (>= 0); `offset` is a log factor per node."""
        edges = np.repeat(is_kept[self.nodes], self.counts) & (place[self.children] >= 0)
        parents = self.parents[edges]
        if not len(parents):
            return None
        weights = self.log_weights[edges]
        if offset is not None:
            first, _ = runs_of(parents)
            weights[first] += offset[parents[first]]
        return PlainLayer.of_edges(self.is_sum, place[parents], place[self.children[edges]], weights)


def layers_of(height: Ints, is_sum: Flags, ptr: Ints, children: Ints, weights: Floats) -> list[PlainLayer]:
    """Sort inner nodes into layers, lowest first."""
    out: list[PlainLayer] = []
    order = np.lexsort((is_sum, height))[np.count_nonzero(height == 0) :]
    cuts = np.flatnonzero(np.diff(2 * height[order] + is_sum[order])) + 1
    for part in np.split(order, cuts) if len(order) else []:
        counts = ptr[part + 1] - ptr[part]
        edges, kind = ranges(ptr[part], counts), bool(is_sum[part[0]])
        out.append(PlainLayer(part, kind, run_starts(counts), counts, children[edges], weights[edges]))
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
    """The nodes of a file, followed by added products and constant leaves that make every sum smooth."""

    is_sum: Flags
    ptr: Ints
    children: Ints
    log_weights: Floats
    heights: Ints  # the longest paths down to a leaf
    variable: Ints  # -1 for inner nodes
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
    """Adds the nodes that make the sums of a file smooth: constant leaves, and products with them."""

    def __init__(self, n_nodes: int, real: int) -> None:
        self.n_nodes, self.real = n_nodes, real
        self.heights: dict[int, int] = {}
        self.added: list[list[int]] = []  # the children of each new node
        self.constants: dict[int, int] = {}  # the new leaf of each variable

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
    """Read a circuit, made smooth by added constants; reject a product whose children share a variable."""
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
    smooth = _Smooth(len(kind), sum(1 << v for v in edges))
    heights, scopes = smooth.heights, list[int]()
    below: list[int] = np.asarray(arrays["children"]).tolist()
    bounds: list[int] = ptr.tolist()
    codes: list[tuple[int, int]] = list(zip(kind.tolist(), variable.tolist(), strict=True))
    for i, (code, v) in enumerate(codes):
        budget.look()
        scope, total = bits[v] if code < PRODUCT else 0, 0
        mine = range(bounds[i], bounds[i + 1])
        for child in (scopes[below[e]] for e in mine):
            scope, total = scope | child, total + child.bit_count()
        if code == PRODUCT and total != scope.bit_count():
            raise Rejected(f"product node {i} of the circuit multiplies two children over one variable")
        for e in mine if code == SUM else ():
            if scopes[below[e]] != scope:
                below[e] = smooth.padded(below[e], scope & ~scopes[below[e]])
        scopes.append(scope)
        heights[i] = 1 + max((heights[below[e]] for e in mine), default=-1)
    lacks = sum(bits) & ~scopes[-1]
    root = smooth.padded(len(kind) - 1, lacks) if lacks else len(kind) - 1
    counts = [len(children) for children in smooth.added]
    leaves = np.concatenate([np.where(kind < PRODUCT, variable, -1), np.full(len(counts), -1)])
    leaves[list(smooth.constants.values())] = list(smooth.constants)
    is_sum = np.concatenate([kind == SUM, np.zeros(len(counts), np.bool_)])
    ptr = np.concatenate([ptr, ptr[-1] + np.cumsum(counts, dtype=np.int64)])
    children = np.array([*below, *chain.from_iterable(smooth.added)], np.int64)
    weights = np.concatenate([arrays["log_weights"], np.zeros(sum(counts))])
    longest = np.array([heights[i] for i in range(len(leaves))], np.int64)
    return Graph(is_sum, ptr, children, weights, longest, leaves, root, budget)


MAX_SUPPORT = 400_000_000  # entries of the table of possible states; beyond, no inner sum counts as deterministic
BATCH_ENTRIES = 3_000_000  # boxes times edges evaluated at once
ROW_COST = 8  # numbers held per node and edge while a box is evaluated


@dataclass(frozen=True, eq=False)
class PlainCircuit:
    """A circuit simplified by a query, or several of its subcircuits side by side."""

    # the first state of each variable, then the number of states; the states are the first nodes. Subcircuits have
    # separate variables, in the order of the subcircuits, so that one joint box holds a box of each.
    columns: Ints
    layers: list[PlainLayer]  # the tables first, the root last
    decides: Flags  # for each node, whether its children allow disjoint sets of states of some variable
    numbers: Ints  # for each sum, its number among the sums of the model; -1 for other nodes
    roots: Ints  # the root of each subcircuit, and the subcircuit that each variable belongs to
    root_of: Ints
    log_total: float  # the log of the sum of all values, ln p(e)
    budget: CheckBudget  # limits on evaluating the circuit

    @cached_property
    def n_edges(self) -> int:
        return sum(len(layer.children) for layer in self.layers)

    def _batch(self, n_rows: int) -> int:
        """Return how many boxes or points to evaluate at once; reject the proof if their values do not fit."""
        rows = min(n_rows, max(1, BATCH_ENTRIES // max(self.n_edges, 1)))
        n_values = rows * (len(self.numbers) + self.n_edges)
        self.budget.need(ROW_COST * FLOAT * n_values, "values of the circuit's nodes")
        return max(rows, 1)

    def _leaves(self, boxes: Flags) -> Floats:
        """Allocate the values of all nodes in each box, and fill in the values of the states."""
        values = np.empty((len(self.numbers), len(boxes)))
        values[: boxes.shape[1]] = np.where(boxes.T, 0.0, -np.inf)
        return values

    def _bounded(self, boxes: Flags, caps: Floats, mass: Floats) -> Floats:
        """Return every node's bound: a sum's is at most its cap, mass and, if deterministic, its largest child."""
        values = self._leaves(boxes)
        for layer in self.layers:
            below, here = layer.values(values, 1)
            if layer.is_sum:
                best = up(np.maximum.reduceat(below, layer.starts, axis=0), 2.0)
                here = np.where(self.decides[layer.nodes, None], best, here)
                here = np.minimum(np.minimum(here, caps[self.numbers[layer.nodes], None]), mass[layer.nodes])
            values[layer.nodes] = here
        return values

    def _each(self, values: Floats, boxes: Flags) -> Floats:
        """Return upper bounds on the roots' log values with each state held fixed, shape (batch, columns)."""
        flow = np.full(values.shape, -np.inf)
        flow[self.roots] = 0.0
        for layer in reversed(self.layers):
            ways = up(flow[layer.parents] + layer.log_weights[:, None], 2.0)
            if not layer.is_sum:
                over, own = values[layer.parents], values[layer.children]
                with np.errstate(invalid="ignore"):
                    others = over - own + (4.0 + np.abs(over) + np.abs(own)) * 1e-15
                    ways = up(flow[layer.parents] + others, 4.0)
                is_known = (over < np.inf) & (own < np.inf)  # inf and NaN bound nothing
                ways = np.where((over == -np.inf) | (own == -np.inf), -np.inf, np.where(is_known, ways, np.inf))
            order, starts, counts = layer.by_child
            nodes = layer.children[order[starts]]
            found = log_sum_runs(ways[order], starts, counts)
            flow[nodes] = log_sum(np.stack([flow[nodes], found]), 0)
        whole = values[np.repeat(self.roots[self.root_of], np.diff(self.columns))]
        return np.where(boxes, np.minimum(flow[: boxes.shape[1]], whole).T, -np.inf)

    def bounds(self, boxes: Flags, caps: Floats) -> tuple[Floats, Floats]:
        """Return upper bounds on the roots' log values in boxes, shape (batch, roots), and by state."""
        rows = self._batch(len(boxes))
        bound, each = np.empty((len(boxes), len(self.roots))), np.empty(boxes.shape)
        for start in range(0, len(boxes), rows):
            self.budget.look()
            part = slice(start, start + rows)
            mass = upward(self.layers, self._leaves(boxes[part]), 1)
            top = self._bounded(boxes[part], caps, mass)
            bound[part] = top[self.roots].T
            each[part] = np.minimum(self._each(top, boxes[part]), self._each(mass, boxes[part]))
        unknown = np.isnan(bound), np.isnan(each)  # NaN bounds nothing
        bound[unknown[0]], each[unknown[1]] = np.inf, np.inf
        return bound, each

    def values(self, points: NDArray[np.int64]) -> Floats:
        """Return the logs of the values at points (states of query variables), rounded up."""
        out, rows = np.empty(len(points)), self._batch(len(points))
        for start in range(0, len(points), rows):
            self.budget.look()
            values, tables = self._leaves(boxes_of(points[start : start + rows], self.columns)), self.layers[0]
            entries = values[tables.children] + tables.log_weights[:, None]  # a point allows one entry per table
            values[tables.nodes] = np.maximum.reduceat(entries, tables.starts, axis=0)
            out[start : start + rows] = upward(self.layers[1:], values, 1)[self.roots[0]]
        return out

    def below(self, nodes: Ints) -> PlainCircuit | None:
        """Return the subcircuits under some nodes of one layer; None if two of them share a node."""
        n_nodes, n = len(self.numbers), len(self.columns) - 1
        first, last = np.full(n_nodes, len(nodes)), np.full(n_nodes, -1)
        first[nodes] = last[nodes] = np.arange(len(nodes))
        for layer in reversed(self.layers[1:]):
            np.minimum.at(first, layer.children, first[layer.parents])
            np.maximum.at(last, layer.children, last[layer.parents])
        known = last >= 0
        if np.any(known & (first != last)):
            return None
        tables = self.layers[0]
        of_edge = np.searchsorted(self.columns, tables.children, side="right") - 1
        own = known[tables.parents]
        pairs, number = np.unique(last[tables.parents[own]] * n + of_edge[own], return_inverse=True)
        columns = np.concatenate([[0], np.cumsum(np.diff(self.columns)[pairs % n])])
        kept = np.flatnonzero(known)
        place = np.full(n_nodes, -1, np.int64)
        place[kept] = columns[-1] + np.arange(len(kept))
        states = tables.children[own] - self.columns[of_edge[own]] + columns[number.reshape(-1)]
        layers = [PlainLayer.of_edges(True, place[tables.parents[own]], states, tables.log_weights[own])]
        layers += [part for layer in self.layers[1:] if (part := layer.part(known, place)) is not None]
        decides = np.concatenate([np.zeros(columns[-1], np.bool_), self.decides[kept]])
        numbers, roots = np.concatenate([np.full(columns[-1], -1), self.numbers[kept]]), place[nodes]
        return PlainCircuit(columns, layers, decides, numbers, roots, pairs // n, self.log_total, self.budget)

    def scopes(self) -> list[int]:
        """Return the query variables below each node, a bit each."""
        found = [1 << v for v in np.repeat(np.arange(len(self.columns) - 1), np.diff(self.columns)).tolist()]
        found += [0] * (len(self.numbers) - len(found))
        for layer in self.layers:
            for node, child in zip(layer.parents.tolist(), layer.children.tolist(), strict=True):
                found[node] |= found[child]
        return found


def boxes_of(points: NDArray[np.int64], columns: Ints) -> Flags:
    """Return the boxes that hold one point each."""
    boxes = np.zeros((len(points), int(columns[-1])), np.bool_)
    boxes[np.arange(len(points))[:, None], columns[:-1] + points] = True
    return boxes


def weighted(graph: Graph, tables: Floats, question: Question, side: int) -> Floats:
    """Return the leaves' tables times the evidence weights, with each table's sum in an extra last column."""
    places = np.pad(tables, ((0, 0), (0, 1)), constant_values=-np.inf)
    for v, size in enumerate(question.sizes.tolist()):
        rows = graph.variable == v
        places[rows, :size] = up(places[rows, :size] + question.weights_of(v), side)
    places[:, -1] = log_sum(places, -1, side)
    return places


def values_at(graph: Graph, tables: Floats, question: Question, points: NDArray[np.int64]) -> Floats:
    """Return the log values at points (states of query variables), rounded down, from the full circuit."""
    places, out = weighted(graph, tables, question, -1), np.empty(len(points))
    n_edges = max(len(graph.children), 1)
    size = max(1, min(len(points), BATCH_ENTRIES // n_edges))
    graph.budget.need(ROW_COST * FLOAT * size * (len(places) + n_edges), "values of the circuit's nodes")
    for start in range(0, len(points), size):
        graph.budget.look()
        part = points[start : start + size]
        values = np.repeat(places[:, -1:], len(part), axis=1)
        for k, v in enumerate(question.queried.tolist()):
            rows = np.flatnonzero(graph.variable == v)
            values[rows] = places[rows[:, None], part[:, k]]
        out[start : start + size] = upward(graph.layers, values, -1)[graph.root]
    return out


def circuit_of(graph: Graph, tables: Floats, question: Question) -> PlainCircuit:
    """Fold evidence and nuisance into constants, nodes over one query variable into tables, all rounded up."""
    n, layers = len(graph.is_sum), graph.layers
    position = np.full(len(question.sizes) + 1, -1, np.int64)
    position[question.queried] = np.arange(len(question.queried))
    places, most = weighted(graph, tables, question, 1), position[graph.variable]
    hidden = (graph.variable >= 0) & (most < 0)
    places[hidden] = places[hidden, -1:]
    least = np.where(most >= 0, most, len(question.sizes))
    upward(layers, places, 1)  # over several query variables only the last column, the sum, is meaningful
    known, offset = np.zeros(n, np.bool_), np.zeros(n)
    for layer in layers:
        least[layer.nodes] = np.minimum.reduceat(least[layer.children], layer.starts)
        most[layer.nodes] = np.maximum.reduceat(most[layer.children], layer.starts)
    is_inner, is_constant = most > least, most < 0
    known[graph.root] = True
    for layer in reversed(layers):
        possible = places[layer.children, -1] + layer.log_weights > -np.inf
        hit = (known & is_inner)[layer.parents] & possible & ~is_constant[layer.children]
        known[layer.children[hit]] = True
        if not layer.is_sum:
            constants = np.where(is_constant[layer.children], places[layer.children, -1], 0.0)
            offset[layer.nodes] = product_runs(constants[:, None], layer.starts, layer.counts)[:, 0]
    graph.budget.look()
    columns = question.query_offsets
    terminals, inner = np.flatnonzero(known & ~is_inner), np.flatnonzero(known & is_inner)
    kept = np.concatenate([terminals, inner])
    place = np.full(n, -1, np.int64)
    place[kept] = columns[-1] + np.arange(len(kept))
    rows, states = np.nonzero(places[terminals, :-1] > -np.inf)
    children = columns[most[terminals]][rows] + states
    found = [PlainLayer.of_edges(True, place[terminals[rows]], children, places[terminals[rows], states])]
    found += [part for layer in layers if (part := layer.part(known & is_inner, place, offset)) is not None]
    decides = _decided(found, columns, int(columns[-1]) + len(kept), graph.budget)
    numbers = np.where(graph.is_sum, np.cumsum(graph.is_sum) - 1, -1)[kept]
    numbers, roots = np.concatenate([np.full(columns[-1], -1), numbers]), np.array([place[graph.root]])
    root_of, log_total = np.zeros(len(columns) - 1, np.int64), float(places[graph.root, -1])
    return PlainCircuit(columns, found, decides, numbers, roots, root_of, log_total, graph.budget)


def _decided(layers: list[PlainLayer], columns: Ints, n_nodes: int, budget: CheckBudget) -> Flags:
    """Mark the nodes whose children allow disjoint sets of states of some query variable."""
    decides, n_columns = np.zeros(n_nodes, np.bool_), int(columns[-1])
    decides[layers[0].nodes] = True
    if n_nodes * n_columns > MAX_SUPPORT:
        return decides
    budget.need(n_nodes * n_columns, "the states that each node of the circuit allows")
    support = np.eye(n_nodes, n_columns, dtype=np.bool_)
    support[layers[0].parents, layers[0].children] = True
    for layer in layers[1:]:
        for part in layer.pieces(max(1, BATCH_ENTRIES // n_columns)):
            budget.need(2.0 * n_columns * (len(part.children) + FLOAT * len(part.nodes)), "those of a layer")
            below = support[part.children]
            support[part.nodes] = np.logical_or.reduceat(below, part.starts, axis=0)
            if layer.is_sum:
                counts = np.add.reduceat(below, part.starts, axis=0, dtype=np.int64)
                most = np.maximum.reduceat(counts, columns[:-1], axis=1)
                decides[part.nodes] = np.any(most == 1, axis=1)
    return decides
