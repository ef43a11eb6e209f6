"""Nodes of a circuit layer by layer, so that all of one height are worked out at once."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from certimap.checker.numbers import UNIT, Floats, Ints, ranges, run_starts

Flags = NDArray[np.bool_]


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
        first, counts = runs_of(own)
        out.append(Above(own[first], first, counts, parents[part], own, weights[part], from_product[part]))
    return out


def part_of(layers: list[Layer], is_kept: Flags, place: Ints) -> list[Layer]:
    """Return the layers of the nodes in `is_kept`, with those of their children that have a place (>= 0) there."""
    out: list[Layer] = []
    for layer in layers:
        edges = np.repeat(is_kept[layer.nodes], layer.counts) & (place[layer.children] >= 0)
        owner = np.repeat(np.arange(len(layer.nodes)), layer.counts)[edges]
        if len(owner):
            first, counts = runs_of(owner)
            nodes, children = place[layer.nodes[owner[first]]], place[layer.children[edges]]
            out.append(Layer(nodes, layer.is_sum, first, counts, children, layer.log_weights[edges]))
    return out


def runs_of(values: Ints) -> tuple[Ints, Ints]:
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
