"""Elimination trees from factors, and from trees of latent variables with emissions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from certimap.errors import ModelError
from certimap.query import Query
from certimap.trees.regions import Bucket, Floats, spread

Factor = tuple[Sequence[int], NDArray[np.float64]]


def buckets_of_factors(
    factors: Sequence[Factor], sizes: dict[int, int], order: Sequence[int], max_table: int
) -> tuple[list[Bucket], float]:
    """Build the bucket tree of an elimination order, tables in natural logs.

    Returns
    -------
    The buckets, children first, and the natural log of the constant factors.

    Raises
    ------
    ModelError
        When a table would have more than `max_table` entries, before any is built.
    """
    place = {v: i for i, v in enumerate(order)}
    own: list[list[Factor]] = [[] for _ in order]
    constant = 0.0
    for scope, table in factors:
        if scope:
            own[min(place[v] for v in scope)].append((scope, table))
        else:
            constant += float(table.reshape(()))
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
            f"at most max_table={max_table} are accepted"
        )
    buckets: list[Bucket] = []
    for i, v in enumerate(order):
        target = (*separators[i], v)
        table = np.zeros([sizes[u] for u in target])
        for scope, values in own[i]:
            table += spread(values, scope, target)
        buckets.append(Bucket(v, separators[i], table, parents[i]))
    return buckets, constant


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
    """Return the node whose largest neighbouring subtree weighs least.

    Sets of vectors grow with the number of query variables below a region, so the root is put where no
    side has more than half of them.
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


def buckets_of_latent_tree(
    parent: NDArray[np.int64],
    transitions: Sequence[NDArray[np.float64]],
    priors: dict[int, NDArray[np.float64]],
    latent_of: NDArray[np.int64],
    emissions: Sequence[NDArray[np.float64]],
    query: Query,
    root: int | None = None,
) -> list[Bucket]:
    """Build the buckets of a tree of latent variables, one bucket a latent and one a query variable.

    The variables of `query.domain` keep their positions; latent i becomes variable n + i. Arguments as in
    `BucketTreePosterior.from_tree`; tables come out in natural logs, children first.
    """
    domain = query.domain
    n = len(domain)
    queried = {int(v) for v in query.variables}
    unary: list[Floats] = [np.zeros(e.shape[0]) for e in _latent_shapes(parent, transitions, priors)]
    with np.errstate(divide="ignore"):
        for i, prior in priors.items():
            unary[i] = unary[i] + np.log(prior)
        for v in range(n):
            if v not in queried:
                weights = np.exp(query.log_weights[domain.offsets[v] : domain.offsets[v + 1]])
                unary[latent_of[v]] = unary[latent_of[v]] + np.log(emissions[v] @ weights)
    if root is None:
        count = np.bincount(latent_of[query.variables], minlength=len(parent)).astype(np.float64)
        root = centroid(parent, count)
    order, new_parent = rooted(parent, root)
    buckets: list[Bucket] = []
    place = {latent: n + len(order) - 1 - i for i, latent in enumerate(order)}
    shift = len(query.variables) - n
    for v in (int(v) for v in query.variables):
        soft = query.log_weights[domain.offsets[v] : domain.offsets[v + 1]]
        with np.errstate(divide="ignore"):
            table = np.log(emissions[v]) + soft
        latent = int(latent_of[v])
        buckets.append(Bucket(v, (n + latent,), table, place[latent] + shift))
    for latent in reversed(order):
        up = int(new_parent[latent])
        if up < 0:
            buckets.append(Bucket(n + latent, (), unary[latent]))
            continue
        with np.errstate(divide="ignore"):
            edge = np.log(transitions[latent]) if parent[latent] == up else np.log(transitions[up]).T
        buckets.append(Bucket(n + latent, (n + up,), edge + unary[latent], place[up] + shift))
    return buckets


def _latent_shapes(
    parent: NDArray[np.int64], transitions: Sequence[NDArray[np.float64]], priors: dict[int, NDArray[np.float64]]
) -> list[NDArray[np.float64]]:
    """Return, for each latent variable, an array whose length is its number of states."""
    return [priors[i] if parent[i] < 0 else transitions[i][0] for i in range(len(parent))]
