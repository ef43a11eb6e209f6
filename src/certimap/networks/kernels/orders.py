"""Greedy elimination orders of sparse graphs."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from certimap.core.arrays import Floats, Ints, Words
from certimap.kernels.jit import Scalar, jit, jit_part
from certimap.kernels.random import uniform

FILL, SIZE, WEIGHTED_FILL, PLACE = 0, 1, 2, 3
GRAIN = 2**20  # `own` and `weight` count log2 of states in units of 1 / GRAIN, so that ties are exact
NOISE_GRAIN = 64  # costs are multiplied by it, so that noise may decide between neighbouring ones
HIDDEN, QUERIED = 0, 1  # stages
_STAGE_BITS = 60

N_DONE, POOL_USED, HEAP_SIZE, STAMP, WORK = 0, 1, 2, 3, 4  # counters
ENTRIES, LARGEST = 0, 1  # totals
DONE, RUNNING, FULL, BEYOND = 0, 1, 2, 3  # outcomes


class NeighbourLists(NamedTuple):
    """An interaction graph that variables leave, each joining its neighbours; variables are 0 to n - 1."""

    start: Ints  # where the neighbours of each variable lie in the pool, how many they are, and have room there
    length: Ints
    capacity: Ints
    pool: Ints
    own: Ints  # log base 2 of the states of each variable, in units of 1 / `GRAIN`
    pull: Ints  # what an edge between two variables costs is the product of theirs: 1 for plain fill-in
    stage: Ints  # `HIDDEN` or `QUERIED`: hidden variables go first, while their cliques are within the limit
    place: Ints  # the place of each variable in an order that is preferred, for `PLACE`
    weight: Ints  # the `own` of each variable and its neighbours together: the clique that eliminating it takes
    missing: Ints  # the cost of the edges that its neighbours lack
    around: Ints  # the `pull` of its neighbours together
    heap: Ints  # the variables in a binary heap, and the place of each in it; -1 once it is gone
    where: Ints
    key: Ints  # key, tie: what the heap is sorted by
    tie: Ints
    mark: Ints  # mark, scratch: room
    scratch: Ints
    order: Ints  # the variables that are gone
    counters: Ints  # see `N_DONE` and its companions
    totals: Floats  # joint states of all cliques, and log2 of the largest


class OrderRule(NamedTuple):
    """How a greedy order chooses."""

    cost: int  # `FILL`, `SIZE`, `WEIGHTED_FILL` or `PLACE`
    first_limit: int  # hidden variables go first while their cliques weigh at most this
    noise: float  # from 0 on: `noise + spread * c` times an exponential draw raises a cost c, and ties are drawn
    spread: float


@jit_part
def _before(g: NeighbourLists, a: Scalar, b: Scalar) -> Scalar:
    if g.key[a] != g.key[b]:
        return g.key[a] < g.key[b]
    if g.tie[a] != g.tie[b]:
        return g.tie[a] < g.tie[b]
    return a < b


@jit_part
def _rise(g: NeighbourLists, at: Scalar) -> Scalar:
    v = g.heap[at]
    while at > 0:
        up = (at - 1) // 2
        if not _before(g, v, g.heap[up]):
            break
        g.heap[at] = g.heap[up]
        g.where[g.heap[at]] = at
        at = up
    g.heap[at] = v
    g.where[v] = at
    return at


@jit_part
def _sink(g: NeighbourLists, at: Scalar) -> None:
    v, size = g.heap[at], g.counters[HEAP_SIZE]
    while 2 * at + 1 < size:
        down = 2 * at + 1
        if down + 1 < size and _before(g, g.heap[down + 1], g.heap[down]):
            down += 1
        if not _before(g, g.heap[down], v):
            break
        g.heap[at] = g.heap[down]
        g.where[g.heap[at]] = at
        at = down
    g.heap[at] = v
    g.where[v] = at


@jit_part
def _take(g: NeighbourLists, v: Scalar) -> None:
    """Take a variable out of the heap."""
    at = g.where[v]
    g.counters[HEAP_SIZE] -= 1
    moved = g.heap[g.counters[HEAP_SIZE]]
    g.where[v] = -1
    if moved != v:
        g.heap[at] = moved
        g.where[moved] = at
        _sink(g, _rise(g, at))


@jit_part
def _rank(g: NeighbourLists, rule: OrderRule, v: Scalar, stream: Words) -> None:
    """Set the key of a variable from its stage, its cost and the size of its clique."""
    weight = g.weight[v]
    cost, tie = (weight, g.missing[v]) if rule.cost == SIZE else (g.missing[v], weight)
    if rule.cost == PLACE:
        cost = g.place[v]
    stage = g.stage[v]
    if stage == HIDDEN and weight > rule.first_limit:
        stage = QUERIED
    raised = min(cost, 2**52) * NOISE_GRAIN
    if rule.noise >= 0.0:
        unit = GRAIN // 4 if rule.cost == SIZE else 1
        scale = rule.noise * unit + rule.spread * min(cost, 2**52)
        raised += np.int64(-math.log(1.0 - uniform(stream)) * scale * NOISE_GRAIN)
        tie = np.int64(uniform(stream) * 2.0**52)
    g.key[v] = (stage << _STAGE_BITS) + min(raised, 2**59)
    g.tie[v] = tie


@jit()
def open_graph(g: NeighbourLists, rule: OrderRule, stream: Words) -> None:
    """Fill in `weight`, `missing`, `around` and the heap of a graph whose other arrays are set."""
    n = len(g.start)
    for v in range(n):
        g.weight[v], g.around[v], square = g.own[v], 0, 0
        for k in range(g.start[v], g.start[v] + g.length[v]):
            u = g.pool[k]
            g.weight[v] += g.own[u]
            g.around[v] += g.pull[u]
            square += g.pull[u] * g.pull[u]
        g.missing[v] = (g.around[v] * g.around[v] - square) // 2
        g.mark[v] = -1
    for v in range(n):  # each triangle is one edge less that its corners lack
        for k in range(g.start[v], g.start[v] + g.length[v]):
            g.mark[g.pool[k]] = v
        for k in range(g.start[v], g.start[v] + g.length[v]):
            u = g.pool[k]
            if u > v:
                for j in range(g.start[u], g.start[u] + g.length[u]):
                    w = g.pool[j]
                    if w > u and g.mark[w] == v:
                        g.missing[v] -= g.pull[u] * g.pull[w]
                        g.missing[u] -= g.pull[v] * g.pull[w]
                        g.missing[w] -= g.pull[u] * g.pull[v]
    g.counters[HEAP_SIZE], g.counters[STAMP] = n, n
    for v in range(n):
        _rank(g, rule, v, stream)
        g.heap[v] = v
        g.where[v] = v
    for at in range(n // 2, -1, -1):
        if at < n:
            _sink(g, at)


@jit_part
def _make_room(g: NeighbourLists, v: Scalar) -> bool:
    """Give every neighbour of a variable room to be joined to all others; False where the pool is too small."""
    degree, needed = g.length[v], 0
    for k in range(g.start[v], g.start[v] + degree):
        u = g.pool[k]
        if g.capacity[u] < g.length[u] + degree:
            needed += 2 * (g.length[u] + degree)
    if g.counters[POOL_USED] + needed > len(g.pool):
        return False
    for k in range(g.start[v], g.start[v] + degree):
        u = g.pool[k]
        if g.capacity[u] < g.length[u] + degree:
            to = g.counters[POOL_USED]
            for j in range(g.length[u]):
                g.pool[to + j] = g.pool[g.start[u] + j]
            g.start[u], g.capacity[u] = to, 2 * (g.length[u] + degree)
            g.counters[POOL_USED] = to + g.capacity[u]
    return True


@jit_part
def _touch(g: NeighbourLists, u: Scalar, stamp: Scalar, n_touched: Scalar) -> Scalar:
    """Note a variable whose rank may have changed."""
    if g.scratch[len(g.start) + u] != stamp:
        g.scratch[len(g.start) + u] = stamp
        g.scratch[n_touched] = u
        return n_touched + 1
    return n_touched


@jit_part
def _join(g: NeighbourLists, a: Scalar, b: Scalar, in_a: Scalar, stamp: Scalar, n_touched: Scalar) -> Scalar:
    """Add an edge; the neighbours of `a` are marked `in_a`."""
    common = 0
    for k in range(g.start[b], g.start[b] + g.length[b]):
        w = g.pool[k]
        if g.mark[w] == in_a:
            common += g.pull[w]
            g.missing[w] -= g.pull[a] * g.pull[b]
            n_touched = _touch(g, w, stamp, n_touched)
    g.missing[a] += g.pull[b] * (g.around[a] - common)
    g.missing[b] += g.pull[a] * (g.around[b] - common)
    g.around[a] += g.pull[b]
    g.around[b] += g.pull[a]
    g.weight[a] += g.own[b]
    g.weight[b] += g.own[a]
    g.pool[g.start[a] + g.length[a]] = b
    g.pool[g.start[b] + g.length[b]] = a
    g.length[a] += 1
    g.length[b] += 1
    g.mark[b] = in_a
    g.counters[WORK] += g.length[b]
    return n_touched


@jit_part
def _eliminate(g: NeighbourLists, v: Scalar) -> Scalar:
    """Join the neighbours of a variable and remove it; return how many others it has touched, see `scratch`."""
    g.counters[STAMP] += 1
    stamp, first, degree, n_touched = g.counters[STAMP], g.start[v], g.length[v], 0
    if g.missing[v] > 0:
        for i in range(degree):
            a = g.pool[first + i]
            g.counters[STAMP] += 1
            in_a = g.counters[STAMP]
            for k in range(g.start[a], g.start[a] + g.length[a]):
                g.mark[g.pool[k]] = in_a
            g.counters[WORK] += g.length[a] + degree - i
            for j in range(i + 1, degree):
                b = g.pool[first + j]
                if g.mark[b] != in_a:
                    n_touched = _join(g, a, b, in_a, stamp, n_touched)
    whole = g.around[v]
    for i in range(degree):
        u = g.pool[first + i]
        # Of what u's neighbours lack, the edges to v go: v is joined to u's neighbours among its own alone.
        g.missing[u] -= g.pull[v] * (g.around[u] - g.pull[v] - (whole - g.pull[u]))
        g.around[u] -= g.pull[v]
        g.weight[u] -= g.own[v]
        k = g.start[u]
        while g.pool[k] != v:
            k += 1
        g.counters[WORK] += k - g.start[u]
        g.length[u] -= 1
        g.pool[k] = g.pool[g.start[u] + g.length[u]]
        n_touched = _touch(g, u, stamp, n_touched)
    return n_touched


@jit()
def eliminate(
    g: NeighbourLists, rule: OrderRule, stream: Words, given: Ints, log2_most: float, max_work: int
) -> int:
    """Eliminate variables: first those `given`, then the cheapest one each time. Called again, it goes on.

    Returns `DONE`; `RUNNING` after visits of `max_work` entries of lists; `FULL` when the pool needs to be larger;
    `BEYOND` when given up at `log2_most`, log base 2 of a total of entries.
    """
    n = len(g.start)
    most_entries = 2.0**log2_most if log2_most < 1023.0 else np.inf
    limit = g.counters[WORK] + max_work
    while g.counters[N_DONE] < n:
        done = g.counters[N_DONE]
        v = given[done] if done < len(given) else g.heap[0]
        if not _make_room(g, v):
            return FULL
        log2_size = g.weight[v] / GRAIN
        g.totals[ENTRIES] += 2.0 ** min(log2_size, 1000.0)
        g.totals[LARGEST] = max(g.totals[LARGEST], log2_size)
        g.order[done] = v
        g.counters[N_DONE] += 1
        _take(g, v)
        n_touched = _eliminate(g, v)
        for k in range(n_touched):
            u = g.scratch[k]
            if g.where[u] >= 0:
                before = g.key[u], g.tie[u]
                _rank(g, rule, u, stream)
                if (g.key[u], g.tie[u]) != before:
                    _sink(g, _rise(g, g.where[u]))
        g.counters[WORK] += 8 * n_touched + 8
        if g.totals[ENTRIES] > most_entries:
            return BEYOND
        if g.counters[WORK] > limit:
            return RUNNING
    return DONE
