"""The nodes of a circuit in layers, so that all nodes of one height are evaluated at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from certimap.checker.numbers import UNIT, Floats, Ints, log_sum_runs, ranges, run_starts

Flags = NDArray[np.bool_]


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
