"""Greedy elimination orders of a graph held as a dense adjacency matrix."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from certimap.kernels.jit import jit

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FILL, SIZE, WEIGHTED_FILL = 0, 1, 2
NEAR_BEST = 1.15  # with `spread`, variables up to so much dearer than the cheapest may be taken


@jit()
def greedy_order(
    adjacency: Bools, log2_sizes: Floats, rule: int, is_spread: bool, seed: int, limit: float, order: Ints
) -> float:
    """Eliminate by fewest fill-in edges (`FILL`), smallest clique or weighted fill; ties are drawn.

    Parameters
    ----------
    adjacency
        Shape (n, n); symmetric; destroyed.
    is_spread
        Draw among variables that are nearly as cheap as the cheapest, too.
    limit
        Log base 2 of a total at which to give up.
    order
        Written: variables, the first eliminated first.

    Returns
    -------
    Log base 2 of the table entries over all cliques; over `limit` when given up.
    """
    n = len(log2_sizes)
    np.random.seed(seed)
    alive = np.ones(n, np.bool_)
    dirty = np.ones(n, np.bool_)
    cost, size = np.zeros(n), np.zeros(n)
    near = np.empty(n, np.int64)
    total = 0.0
    for step in range(n):
        for v in range(n):
            if alive[v] and dirty[v]:
                m = 0
                size[v] = log2_sizes[v]
                for u in range(n):
                    if adjacency[v, u]:
                        near[m] = u
                        m += 1
                        size[v] += log2_sizes[u]
                cost[v] = size[v] if rule == SIZE else 0.0
                if rule != SIZE:
                    for i in range(m):
                        a = near[i]
                        for j in range(i + 1, m):
                            if not adjacency[a, near[j]]:
                                cost[v] += 1.0 if rule == FILL else log2_sizes[a] * log2_sizes[near[j]]
                dirty[v] = False
        chosen, least, ties = -1, np.inf, 0
        for v in range(n):
            if alive[v]:
                if cost[v] < least - 1e-9:
                    least, ties, chosen = cost[v], 1, v
                elif cost[v] <= least + 1e-9:
                    ties += 1
                    if np.random.random() * ties < 1.0:
                        chosen = v
        if is_spread and least > 0.0:
            weight = 0.0
            for v in range(n):
                if alive[v] and cost[v] <= least * NEAR_BEST + 1.0:
                    share = 1.0 / (1.0 + cost[v] - least)
                    weight += share
                    if np.random.random() * weight < share:
                        chosen = v
        order[step] = chosen
        total += 2.0 ** min(size[chosen], 1000.0)
        if math.log2(total) > limit:
            return math.log2(total)
        m = 0
        for u in range(n):
            if adjacency[chosen, u]:
                near[m] = u
                m += 1
        for i in range(m):
            a = near[i]
            dirty[a] = True
            for j in range(i + 1, m):
                b = near[j]
                if not adjacency[a, b]:
                    adjacency[a, b] = adjacency[b, a] = True
                    for u in range(n):
                        if adjacency[a, u] and adjacency[b, u]:
                            dirty[u] = True
        for i in range(m):
            adjacency[near[i], chosen] = adjacency[chosen, near[i]] = False
        alive[chosen] = False
    return math.log2(total) if total else 0.0


@jit()
def cost_of_order(adjacency: Bools, log2_sizes: Floats, order: Ints, limit: float) -> float:
    """Return log base 2 of the table entries over all cliques of an order; destroys `adjacency`."""
    n = len(log2_sizes)
    near = np.empty(n, np.int64)
    total = 0.0
    for step in range(n):
        v = order[step]
        m = 0
        size = log2_sizes[v]
        for u in range(n):
            if adjacency[v, u]:
                near[m] = u
                m += 1
                size += log2_sizes[u]
        total += 2.0 ** min(size, 1000.0)
        if math.log2(total) > limit:
            return math.log2(total)
        for i in range(m):
            a = near[i]
            for j in range(i + 1, m):
                adjacency[a, near[j]] = adjacency[near[j], a] = True
        for i in range(m):
            adjacency[near[i], v] = False
    return math.log2(total) if total else 0.0
