"""Min-fill ordering in plain Python, for graphs that take less time than loading a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from certimap.networks.kernels.orders import GRAIN, HIDDEN, QUERIED, OrderRule


def least_fill(
    near: list[set[int]], own: Sequence[int], stage: Sequence[int], rule: OrderRule, most_entries: float
) -> list[tuple[int, set[int]]] | None:
    """Return the min-fill order of `kernels.orders.eliminate`, each variable with its separator.

    `near`: the neighbours of each variable; changed.
    `own`, `stage`: as in `kernels.orders.Graph`.
    `rule`: its cost is `FILL`, without noise.
    `most_entries`: give up, and return None, once the cliques together have more entries.
    """
    missing = [sum(len(around - near[u]) - 1 for u in around) // 2 for around in near]
    weight = [own[v] + sum(own[u] for u in around) for v, around in enumerate(near)]

    def rank(v: int) -> tuple[int, int, int, int]:
        is_late = stage[v] == HIDDEN and weight[v] > rule.first_limit
        return QUERIED if is_late else stage[v], missing[v], weight[v], v

    ranks = {v: rank(v) for v in range(len(near))}  # of the remaining variables
    heap, found, entries = list(ranks.values()), list[tuple[int, set[int]]](), 0.0
    heapify(heap)
    while heap:
        best = heappop(heap)
        v = best[-1]
        if ranks.get(v) != best:  # outdated, or gone
            continue
        entries += 2.0 ** min(weight[v] / GRAIN, 1000.0)
        if entries > most_entries:
            return None
        del ranks[v]
        found.append((v, near[v]))
        for u in _remove(v, near, own, missing, weight):
            if u in ranks and (new := rank(u)) != ranks[u]:
                ranks[u] = new
                heappush(heap, new)
    return found


def _remove(v: int, near: list[set[int]], own: Sequence[int], missing: list[int], weight: list[int]) -> set[int]:
    """Join the neighbours of a variable and remove it; return the variables whose ranks may have changed."""
    around = near[v]
    touched = set(around)
    for a in around if missing[v] else ():
        for b in around - near[a] - {a}:
            common = near[a] & near[b]
            touched |= common
            for w in common:
                missing[w] -= 1
            for this, other in ((a, b), (b, a)):
                missing[this] += len(near[this]) - len(common)
                near[this].add(other)
                weight[this] += own[other]
    for u in around:  # v is joined to u's neighbours among its own alone
        missing[u] -= len(near[u]) - len(around)
        near[u].remove(v)
        weight[u] -= own[v]
    return touched
