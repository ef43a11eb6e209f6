"""A quick test of whether a network is far too wide for tables, apart from orders, which load numba."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from certimap.core.arrays import Floats
from certimap.networks.problem import flattened

FEW_VARIABLES = 1000  # an order of this many is found instantly
PART = 4000  # variables in the part
BITS = 50.0  # log2 of the entries of a table; other orders may take half of that, and even this fits nowhere


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
