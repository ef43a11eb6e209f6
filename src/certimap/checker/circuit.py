"""A circuit under a query, read by the checker: what it is worth at points and at most in boxes.

Evidence and nuisance variables are folded into constants and nodes over one query variable into tables; what is
left is walked layer by layer, all boxes of a batch at once. A box is a row of flags, one per state of a query
variable.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from certimap.checker.graph import Flags, Graph, read_graph, smooth
from certimap.checker.layers import Above, Layer, above_of, heights_of, layers_of, part_of, product_runs, runs_of
from certimap.checker.models import Arrays, Question
from certimap.checker.numbers import Floats, Ints, log_sum, log_sum_runs, up
from certimap.checker.real import Edges

MAX_SUPPORT = 400_000_000  # entries of the table of possible states beyond which no sum counts as deciding


@dataclass(frozen=True, eq=False)
class Circuit:
    """The part of a circuit that a query leaves, or some of its subcircuits side by side.

    Attributes
    ----------
    n_nodes
        Nodes 0 .. n_terminals - 1 are tables over one query variable, the others inner ones, the root last.
    columns
        Where the states of each variable begin, and their total. Subcircuits have variables of their own, those of
        the first one first, so that a box of all is one of each.
    roots, root_of
        The node at the top of each subcircuit, and which of them each variable belongs to.
    numbers
        For each sum, which of the sums of the model it is, in their order; else -1.
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
    numbers: Ints
    roots: Ints
    root_of: Ints
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
        return order, *runs_of(self.variable[order])

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
                    here = np.minimum(np.minimum(here, caps[self.numbers[layer.nodes], None]), limit[layer.nodes])
            else:
                here = product_runs(below, layer.starts, layer.counts, self.offset[layer.nodes], self.side)
            values[layer.nodes] = here
        return values

    def _columns_of(self, values: Floats, boxes: Flags) -> Floats:
        """Return an upper side of the roots' values with each state of the boxes held, shape (batch, columns)."""
        flow = np.full(values.shape, -np.inf)
        flow[self.roots] = 0.0
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
        whole = values[np.repeat(self.roots[self.root_of], np.diff(self.columns))].T
        return np.where(boxes, np.minimum(out[:, :-1], whole), -np.inf)

    def bounds(self, boxes: Flags, caps: Floats) -> tuple[Floats, Floats]:
        """Return upper bounds on the roots' log values in boxes, shape (batch, roots), and with each state held.

        `caps` are upper bounds on the model's sums, whatever the box.
        """
        bound, each = np.empty((len(boxes), len(self.roots))), np.empty(boxes.shape)
        rows = max(1, 3_000_000 // max(self.n_edges, 1))
        for start in range(0, len(boxes), rows):
            part = slice(start, start + rows)
            mass = self._upward(self._terminals(boxes[part], largest=False), None, None)
            top = self._upward(self._terminals(boxes[part], largest=True), caps, mass)
            bound[part] = top[self.roots].T
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

    def below(self, nodes: Ints) -> Circuit | None:
        """Return the subcircuits under some nodes of one layer; None where two of them share a part."""
        first, last = np.full(self.n_nodes, len(nodes)), np.full(self.n_nodes, -1)
        first[nodes] = last[nodes] = np.arange(len(nodes))
        for layer in reversed(self.layers):
            np.minimum.at(first, layer.children, np.repeat(first[layer.nodes], layer.counts))
            np.maximum.at(last, layer.children, np.repeat(last[layer.nodes], layer.counts))
        known = last >= 0
        if np.any(known & (first != last)):
            return None
        kept = np.flatnonzero(known)
        place = np.full(self.n_nodes, -1, np.int64)
        place[kept] = np.arange(len(kept))
        terminals = kept[kept < len(self.variable)]
        n = len(self.columns) - 1
        pairs, variable = np.unique(last[terminals] * n + self.variable[terminals], return_inverse=True)
        layers = part_of(self.layers, known, place)
        return Circuit(
            len(kept),
            np.concatenate([[0], np.cumsum(np.diff(self.columns)[pairs % n])]).astype(np.int64),
            variable.reshape(-1),
            self.tables[terminals],
            self.offset[kept],
            layers,
            above_of(layers, len(terminals), len(kept)),
            self.decides[kept],
            self.numbers[kept],
            place[nodes],
            pairs // n,
            self.side,
        )

    def scopes(self) -> list[int]:
        """Return the query variables below each node, a bit each."""
        found = [1 << v for v in self.variable.tolist()] + [0] * (self.n_nodes - len(self.variable))
        for layer in self.layers:
            above = np.repeat(layer.nodes, layer.counts).tolist()
            for node, child in zip(above, layer.children.tolist(), strict=True):
                found[node] |= found[child]
        return found


def boxes_of(points: NDArray[np.int64], columns: Ints) -> Flags:
    """Return the boxes that hold one point each."""
    boxes = np.zeros((len(points), int(columns[-1])), np.bool_)
    boxes[np.arange(len(points))[:, None], columns[:-1] + points] = True
    return boxes


def circuit_of(arrays: Arrays, question: Question, edges: Edges, side: int = 1) -> Circuit:
    """Fold evidence and nuisance variables of a circuit, and nodes over one query variable into tables.

    Real variables stand in cells between their `edges`, which are the states that `question` has of them.
    """
    sizes = question.sizes
    position = np.full(len(sizes) + 1, -1, np.int64)
    position[question.queried] = np.arange(len(question.queried))
    weights = [
        question.weights_of(v) for v in range(len(sizes))
    ]  # a weight counts once where v is mentioned or not
    observed = np.array([np.sum(w > -np.inf) == 1 and np.max(w, initial=-np.inf) == 0.0 for w in weights])
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
    out = part_of(layers, known & is_inner, place)
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
        np.where(graph.is_sum, np.cumsum(graph.is_sum) - 1, -1)[kept],
        np.array([len(kept) - 1]),
        np.zeros(len(columns) - 1, np.int64),
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
