"""The cost of elimination orders, and a quick test of width, apart from the search for orders (loads numba)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from certimap.core.arrays import Floats, flattened

FEW_VARIABLES = 1000  # an order of this many is found instantly
PART = 4000  # variables in the part
BITS = 50.0  # log2 of the entries of a table; other orders may take half of that, and even this fits nowhere


@dataclass(frozen=True)
class Elimination:
    """An elimination order with its cliques and its cost.

    - `order`: variables, the first eliminated first.
    - `separators`: for each of them the other variables of its clique, in elimination order.
    - `induced_width`: the most variables in a separator.
    - `log2_size`: log base 2 of the number of table entries over all cliques.
    - `log2_largest`: the same of the largest clique.
    - `n_edges`: an estimate of the compiled circuit's edges from above: zeros and sharing only remove some.
      Cliques that are plain arithmetic (nothing queried below them) have none.
    """

    order: tuple[int, ...]
    separators: tuple[tuple[int, ...], ...]
    induced_width: int
    log2_size: float
    log2_largest: float
    n_edges: float

    @property
    def cliques(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """The variables with their separators, in order."""
        return zip(self.order, self.separators, strict=True)

    def describe(self) -> str:
        """Describe the size in words, for messages."""
        return (
            f"induced width {self.induced_width}, 2^{self.log2_size:.1f} table entries "
            f"and about {self.n_edges:.3g} circuit edges"
        )


def measure(
    order: Sequence[int], separators: Sequence[tuple[int, ...]], sizes: Mapping[int, int], query: Collection[int]
) -> Elimination:
    """Return the cost of an order with known separators, each in elimination order."""
    place = {v: i for i, v in enumerate(order)}
    log2, queried = {v: math.log2(sizes[v]) for v in order}, set(query)
    n_messages = [0] * len(order)  # messages with nodes that arrive at each clique
    width, entries, largest, n_edges = 0, 0.0, 0.0, 0.0
    for i, (v, separator) in enumerate(zip(order, separators, strict=True)):
        width = max(width, len(separator))
        log2_clique = log2[v] + sum(log2[u] for u in separator)
        clique = 2.0 ** min(log2_clique, 1000.0)
        entries += clique
        largest = max(largest, log2_clique)
        leaf = v in queried
        if n_messages[i]:
            n_edges += clique * (1 + n_messages[i] + leaf)
        elif leaf:
            n_edges += clique / sizes[v]
        if separator and (n_messages[i] or leaf):
            n_messages[place[separator[0]]] += 1
    return Elimination(
        tuple(order), tuple(separators), width, math.log2(entries) if entries else 0.0, largest, n_edges
    )


def looks_too_wide(scopes: Sequence[Collection[int]], sizes: Mapping[int, int]) -> bool:
    """Return whether a quick rule's order leads to tables of more than 2^`BITS` entries.

    The rule is min-degree, applied to the part around a variable of highest degree: if a part is too wide, so is
    the whole. Cost: some 0.1 s, whatever the size of the network, after one pass over its scopes.
    """
    if len(sizes) <= FEW_VARIABLES:
        return False
    near, bits = _part(scopes, sizes)
    heap = [(len(s), v) for v, s in near.items()]
    heapq.heapify(heap)
    while heap:
        n_near, v = heapq.heappop(heap)
        if v not in near or len(near[v]) != n_near:
            continue
        around = near.pop(v)
        if n_near > BITS / 8.0 and bits[v] + sum(bits[u] for u in around) > BITS:
            return True
        for u in around:
            near[u] |= around
            near[u] -= {u, v}
            heapq.heappush(heap, (len(near[u]), u))
    return False


def _part(scopes: Sequence[Collection[int]], sizes: Mapping[int, int]) -> tuple[dict[int, set[int]], Floats]:
    """Return the neighbours of the variables around the one of highest degree, and log2 of all states."""
    sparse: Any = import_module("scipy.sparse")
    graphs: Any = import_module("scipy.sparse.csgraph")
    names = np.fromiter(sizes, np.int64, len(sizes))
    place = np.full(int(names.max()) + 1, -1, np.int64)
    place[names] = np.arange(len(names))
    pointers, members = flattened([tuple(s) for s in scopes])
    found = place[members]
    held = found >= 0
    starts = np.concatenate([[0], np.cumsum(held)])[pointers]
    incidence = sparse.csr_matrix((held[held].astype(np.int32), found[held], starts), (len(scopes), len(names)))
    graph = (incidence.T @ incidence).tocsr()
    hub = int(np.argmax(np.diff(graph.indptr)))
    members = graphs.breadth_first_order(graph, hub, directed=False, return_predecessors=False)[:PART]
    inside = graph[members][:, members].tocsr()
    bounds, columns = inside.indptr.tolist(), inside.indices.tolist()
    near = {v: set(columns[bounds[v] : bounds[v + 1]]) - {v} for v in range(len(members))}
    bits = np.log2(np.fromiter(sizes.values(), np.float64, len(sizes)))
    return near, bits[members]
