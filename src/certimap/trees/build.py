"""Elimination trees from factors, and from trees of latent variables with emissions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from certimap.core.control import WorkClock
from certimap.core.query import Query
from certimap.errors import ModelError
from certimap.trees.regions import ENTRIES_PER_TABLE, Bucket
from certimap.trees.wide import Wide

Factor = tuple[Sequence[int], Wide]


def buckets_of_factors(
    factors: Sequence[Factor],
    sizes: dict[int, int],
    order: Sequence[int],
    max_table: int,
    pace: WorkClock | None = None,
) -> tuple[list[Bucket], float]:
    """Build the bucket tree of an elimination order: the buckets, children first, and ln of the constant factors.

    `pace` is charged each table's entries before it is built. Raises ModelError, before any is built, if a table
    would have more than `max_table` entries.
    """
    pace = pace or WorkClock.unhurried()
    place = {v: i for i, v in enumerate(order)}
    own: list[list[Factor]] = [[] for _ in order]
    constants: list[float] = []
    for scope, table in factors:
        if scope:
            own[min(place[v] for v in scope)].append((scope, table))
        else:
            constants.append(float(table.logs()))
    below: list[set[int]] = [set() for _ in order]
    separators: list[tuple[int, ...]] = []
    parents: list[int] = []
    largest = 0
    for i, v in enumerate(order):
        scope = below[i].union(*(set(s) for s, _ in own[i])) - {v}
        separator = tuple(sorted(scope, key=place.__getitem__))
        separators.append(separator)
        parents.append(place[separator[0]] if separator else -1)
        if separator:
            below[parents[i]] |= scope
        largest = max(largest, math.prod(sizes[u] for u in separator) * sizes[v])
    if largest > max_table:
        width = max(len(s) for s in separators)
        raise ModelError(
            f"the elimination tree has induced width {width} and a table of {largest:.3g} entries; "
            f"expected at most max_table={max_table}"
        )
    buckets: list[Bucket] = []
    for i, v in enumerate(order):
        target = (*separators[i], v)
        parts = [values.spread(scope, target) for scope, values in own[i]]
        shape = tuple(sizes[u] for u in target)
        pace.ahead(ENTRIES_PER_TABLE + math.prod(shape) * max(len(parts), 1))
        table = Wide.product(parts, shape)
        buckets.append(Bucket(v, separators[i], table, parents[i]))
    return buckets, math.fsum(constants)


def rooted(parent: NDArray[np.int64], root: int) -> tuple[list[int], NDArray[np.int64]]:
    """Re-root a forest at `root`: return an order with parents first, and the new parents."""
    n = len(parent)
    near: list[list[int]] = [[] for _ in range(n)]
    for i in range(n):
        if parent[i] >= 0:
            near[i].append(int(parent[i]))
            near[int(parent[i])].append(i)
    new_parent = np.full(n, -1, np.int64)
    seen = np.zeros(n, np.bool_)
    order: list[int] = []
    starts = [root, *(i for i in range(n) if parent[i] < 0)]
    for start in starts:
        if seen[start]:
            continue
        seen[start] = True
        stack = [start]
        while stack:
            i = stack.pop()
            order.append(i)
            for j in near[i]:
                if not seen[j]:
                    seen[j] = True
                    new_parent[j] = i
                    stack.append(j)
    return order, new_parent


def centroid(parent: NDArray[np.int64], weight: NDArray[np.float64]) -> int:
    """Return the node whose largest neighbouring subtree has the smallest weight.

    Sets of vectors grow with the number of query variables below a region, so at the root no side should
    have more than half of them.
    """
    first = int(np.flatnonzero(parent < 0)[0])
    order, up = rooted(parent, first)
    total = weight.copy()
    for i in reversed(order):
        if up[i] >= 0:
            total[up[i]] += total[i]
    component = int(np.argmax(np.where(up < 0, total, -1.0)))
    heaviest = np.zeros(len(parent))
    for i in order:
        if up[i] >= 0:
            heaviest[up[i]] = max(heaviest[up[i]], total[i])
    best, best_cost = component, math.inf
    members = {component}
    for i in order:
        if up[i] >= 0 and int(up[i]) in members:
            members.add(i)
        if i in members:
            cost = max(heaviest[i], total[component] - total[i])
            if cost < best_cost:
                best, best_cost = i, cost
    return best


def _only_states(query: Query) -> list[int]:
    """Return, for each variable, its only state under hard evidence (with weight 1), else -1."""
    domain = query.domain
    starts = domain.offsets[:-1]
    possible = query.log_weights > -np.inf
    n_possible = np.add.reduceat(possible.astype(np.int64), starts)
    n_certain = np.add.reduceat((query.log_weights == 0.0).astype(np.int64), starts)
    first = np.flatnonzero(possible)[np.cumsum(n_possible) - n_possible] - starts
    return np.where((n_possible == 1) & (n_certain == 1), first, -1).tolist()


def buckets_of_latent_tree(
    parent: NDArray[np.int64],
    transitions: Sequence[Wide],
    priors: dict[int, Wide],
    latent_of: NDArray[np.int64],
    emissions: Sequence[Wide],
    query: Query,
    root: int | None = None,
    pace: WorkClock | None = None,
) -> list[Bucket]:
    """Build the buckets of a tree of latent variables, one bucket per latent and per query variable.

    The variables of `query.domain` keep their positions; latent i becomes variable n + i. Arguments as in
    `BucketTreePosterior.from_tree`; buckets come out children first.
    """
    pace = pace or WorkClock.unhurried()
    domain = query.domain
    n = len(domain)
    queried = {int(v) for v in query.variables}
    weights = Wide.of_logs(query.log_weights)
    is_weighed = np.logical_or.reduceat(query.log_weights != 0.0, domain.offsets[:-1])
    only_state = _only_states(query)

    def weighed(v: int) -> Wide:
        """Return a variable's emissions times the evidence's weights of its states."""
        if not is_weighed[v]:
            return emissions[v]
        evidence = weights.view(lambda values: values[domain.offsets[v] : domain.offsets[v + 1]])
        return Wide.product([emissions[v], evidence], emissions[v].shape)

    parts: list[list[Wide]] = [[] for _ in parent]
    for i, prior in priors.items():
        parts[i].append(prior)
    for v in range(n):
        if v in queried:
            continue
        state = only_state[v]
        seen = (
            weighed(v).shares()[1]
            if state < 0
            else emissions[v].view(lambda values, state=state: values[:, state])
        )
        parts[int(latent_of[v])].append(seen)
    unary = [
        Wide.product(part, (priors[i].shape[0] if parent[i] < 0 else transitions[i].shape[1],))
        for i, part in enumerate(parts)
    ]
    if root is None:
        count = np.bincount(latent_of[query.variables], minlength=len(parent)).astype(np.float64)
        root = centroid(parent, count)
    order, new_parent = rooted(parent, root)
    buckets: list[Bucket] = []
    place = {latent: n + len(order) - 1 - i for i, latent in enumerate(order)}
    shift = len(query.variables) - n
    for v in (int(v) for v in query.variables):
        latent = int(latent_of[v])
        pace.ahead(ENTRIES_PER_TABLE + emissions[v].size)
        buckets.append(Bucket(v, (n + latent,), weighed(v), place[latent] + shift))
    for latent in reversed(order):
        up = int(new_parent[latent])
        if up < 0:
            buckets.append(Bucket(n + latent, (), unary[latent]))
            continue
        pace.ahead(ENTRIES_PER_TABLE + 2 * (unary[up].size * unary[latent].size))
        edge = transitions[latent] if parent[latent] == up else transitions[up].view(lambda values: values.T)
        buckets.append(
            Bucket(n + latent, (n + up,), Wide.product([edge, unary[latent]], edge.shape), place[up] + shift)
        )
    return buckets
