"""Conversion of a network of moderate width to the tree of regions of an elimination order."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from certimap.core.arrays import Floats, Ints
from certimap.core.control import WorkClock
from certimap.core.query import Query
from certimap.networks.elimination import Elimination
from certimap.networks.reduction import Reduced
from certimap.trees.bucket_tree import BucketTreePosterior
from certimap.trees.regions import Factor, buckets_of_factors
from certimap.trees.wide import Wide


def elimination_order(reduced: Reduced, elimination: Elimination) -> list[int]:
    """Return the order of all open and queried variables."""
    return [*elimination.order, *(v for v in reduced.query if v not in reduced.sizes)]


def largest_table(reduced: Reduced, elimination: Elimination) -> int:
    """Return the entries of the tree's largest table, with all states of query variables."""
    sizes = reduced.sizes | {v: int(reduced.domain.n_states[v]) for v in reduced.query}
    return max((math.prod(sizes[u] for u in (v, *near)) for v, near in elimination.cliques), default=1)


def tree_of_reduced(
    reduced: Reduced,
    query: Query,
    order: Sequence[int],
    *,
    max_table: int,
    workers: int | None,
    pace: WorkClock | None = None,
) -> BucketTreePosterior:
    """Return the tree of a network reduced by a query, along an order of all its open and queried variables.

    `pace` is charged each table's entries before it is built, and may raise TimeUp. Raises ModelError before any
    table is built if one would have more than `max_table` entries, and ImpossibleEvidence.
    """
    factors, sizes = _tables(reduced)
    buckets, constant = buckets_of_factors(factors, sizes, order, max_table, pace)
    return BucketTreePosterior.from_buckets(buckets, constant, query, workers=workers, pace=pace)


def with_all_states(table: Floats, axis: int, states: Ints, size: int, zero: float) -> Floats:
    """Return a table over some states of a variable as one over all of them, the others with entries `zero`."""
    shape = list(table.shape)
    shape[axis] = size
    full = np.full(shape, zero)
    np.moveaxis(full, axis, 0)[states] = np.moveaxis(table, axis, 0)
    return full


def _tables(reduced: Reduced) -> tuple[list[Factor], dict[int, int]]:
    """Return factors with all states of query variables, and the sizes of variables."""
    n_states = reduced.domain.n_states
    out: list[Factor] = [((), Wide.of_logs(np.array(reduced.log_constant)))]
    sizes = dict(reduced.sizes)
    for v in reduced.query:
        sizes[v] = int(n_states[v])
        if len(reduced.states[v]) < sizes[v]:
            weights = np.zeros(sizes[v])
            weights[reduced.states[v]] = 1.0
            out.append(((v,), Wide.of_values(weights)))
    partial = {v for v in reduced.query if len(reduced.states[v]) < n_states[v]}
    for factor in reduced.factors:
        table, zero = (factor.log_table, -np.inf) if factor.in_logs else (factor.table, 0.0)
        for axis, v in enumerate(factor.scope):
            if v in partial:
                table = with_all_states(table, axis, reduced.states[v], sizes[v], zero)
        out.append((factor.scope, Wide.of_logs(table) if factor.in_logs else Wide.of_values(table)))
    return out, sizes
