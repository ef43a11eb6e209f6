"""Better elimination orders where the quick one is dear: several greedy rules, bandwidth, restarts."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.core.control import Control
from certimap.networks.elimination import measure, min_fill
from certimap.networks.kernels.orders import FILL, SIZE, WEIGHTED_FILL, cost_of_order, greedy_order

Pairs = list[tuple[int, tuple[int, ...]]]
CHEAP = 20.0  # log2 of the entries of an order that no other is looked for
LARGEST_GRAPH = 4000
_RULES = ((FILL, False), (SIZE, False), (WEIGHTED_FILL, False), (FILL, True), (WEIGHTED_FILL, True))


def best_order(
    scopes: Sequence[Collection[int]],
    sizes: Mapping[int, int],
    *,
    n_tries: int = 30,
    control: Control | None = None,
) -> Pairs:
    """Return pairs of a variable and its neighbours when it goes, in the cheapest order found.

    Parameters
    ----------
    scopes
        Sets of variables that occur together.
    sizes
        The number of states of every variable to eliminate.
    n_tries
        How many orders to try beyond the quick one, when that one is dear. Each costs about n times the square of
        the width, and n^2 once per variable.
    control
        Asked between tries whether to stop with the best so far; TimeUp is raised when it says so before there is
        one. A try that would take longer than what is left, by the time of those before it, is not begun.
    """
    control = control or Control()
    quick = min_fill(scopes, sizes, control=control)
    best = measure(quick, sizes, ()).log2_size
    if best <= CHEAP or len(sizes) > LARGEST_GRAPH:
        return quick
    variables = sorted(sizes)
    adjacency = _adjacency(scopes, variables)
    log2_sizes = np.log2([float(sizes[v]) for v in variables])
    found: NDArray[np.int64] | None = None
    looked, longest = time.perf_counter(), 0.0
    for order in _by_bandwidth(adjacency):
        if control.should_stop:
            break
        cost = cost_of_order(adjacency.copy(), log2_sizes, order, best)
        if cost < best:
            best, found = cost, order
    for k in range(n_tries):
        now = time.perf_counter()
        looked, longest = now, max(longest, now - looked)
        if control.should_stop or longest > control.seconds_left:
            break
        rule, is_spread = _RULES[k % len(_RULES)]
        order = np.empty(len(variables), np.int64)
        cost = greedy_order(adjacency.copy(), log2_sizes, rule, is_spread, k, best, order)
        if cost < best:
            best, found = cost, order
    return quick if found is None else _with_neighbours([variables[int(i)] for i in found], scopes)


def _adjacency(scopes: Sequence[Collection[int]], variables: Sequence[int]) -> NDArray[np.bool_]:
    place = {v: i for i, v in enumerate(variables)}
    adjacency = np.zeros((len(variables), len(variables)), np.bool_)
    for scope in scopes:
        at = np.array([place[v] for v in scope])
        adjacency[np.ix_(at, at)] = True
    np.fill_diagonal(adjacency, False)
    return adjacency


def _by_bandwidth(adjacency: NDArray[np.bool_]) -> Iterator[NDArray[np.int64]]:
    """Yield orders that sweep over the graph (reverse Cuthill-McKee): the best on grids and chains."""
    sparse: Any = import_module("scipy.sparse")
    graphs: Any = import_module("scipy.sparse.csgraph")
    order = np.asarray(graphs.reverse_cuthill_mckee(sparse.csr_matrix(adjacency), True), np.int64)
    yield order
    yield order[::-1].copy()


def _with_neighbours(order: Sequence[int], scopes: Sequence[Collection[int]]) -> Pairs:
    near: dict[int, set[int]] = {v: set() for v in order}
    for scope in scopes:
        for v in scope:
            near[v].update(scope)
    pairs: Pairs = []
    for v in order:
        around = near.pop(v) - {v}
        pairs.append((v, tuple(sorted(around))))
        for u in around:
            near[u] |= around
            near[u] -= {u, v}
    return pairs
