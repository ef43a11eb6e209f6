"""Elimination of a bucket's variable from a set of vectors, by products of matrices where they are large."""

from __future__ import annotations

import math

import numpy as np

from certimap.checker.buckets import Buckets, index_map
from certimap.checker.numbers import UNIT, Floats, Ints, log_sum, up
from certimap.checker.vectors import Vectors

DIRECT = 2_000_000  # entries up to which sums are made entry by entry
SMALLEST = 1e-250  # of a sum compared to the largest that it could be; below, products may have underflowed


def lifted(tree: Buckets, k: int, table: Floats, found: Vectors) -> Vectors:
    """Multiply vectors over a bucket's inner variables by its table, and eliminate its own variable.

    Parameters
    ----------
    tree, k
        The bucket.
    table
        Its table in a box, shape (contexts, joint states of all hidden variables).
    found
        The vectors, by the bucket's contexts.
    """
    bucket = tree.buckets[k]
    contexts = index_map(bucket.query, bucket.separator_query, tree.sizes)[found.context]
    if bucket.own in tree.queried or bucket.own < 0:
        places = index_map(bucket.hidden, bucket.inner, tree.sizes)
        out = Vectors(contexts, up(found.values[:, places] + table[found.context]), found.relaxed, found.error)
        out.error += out.step_error
        return out
    rest = [v for v in bucket.hidden if v not in bucket.inner and v != bucket.own]
    inner = [v for v in bucket.inner if v != bucket.own]
    n = tree.sizes[bucket.own]
    n_inner, n_rest = (math.prod(tree.sizes[v] for v in part) for part in (inner, rest))
    tables = table[:, index_order(tree, bucket.hidden, [bucket.own, *inner, *rest])].reshape(
        -1, n, n_inner, n_rest
    )
    if bucket.own in bucket.inner:
        values = found.values[:, index_order(tree, bucket.inner, [bucket.own, *inner])]
        sums, steps = _summed(values.reshape(-1, n, n_inner), tables, found.context)
    else:
        sums = up(found.values[:, :, None] + log_sum(tables, 1)[found.context])
        steps = n + 8.0
    sums = sums.reshape(len(sums), -1)[:, index_order(tree, [*inner, *rest], bucket.separator_hidden)]
    out = Vectors(contexts, sums, found.relaxed, found.error)
    out.error += (2.0 * steps + 16.0) * UNIT + out.step_error
    return out


def index_order(tree: Buckets, given: list[int], wanted: list[int]) -> Ints:
    """Return where each joint state of `wanted` stands among those of `given`, the same variables."""
    return index_map(wanted, given, tree.sizes)


def _summed(values: Floats, tables: Floats, contexts: Ints) -> tuple[Floats, float]:
    """Sum out the variable of axis 1; return the sums, rounded up, and by how many units at most.

    Values have the shape (rows, states, inner), tables (contexts, states, inner, rest), sums (rows, inner, rest).
    """
    if values.size * tables.shape[3] <= DIRECT:
        return _by_entry(values, tables[contexts])
    out = np.empty((len(values), *tables.shape[2:]))
    most = 0.0
    for context in np.unique(contexts):
        rows = np.flatnonzero(contexts == context)
        out[rows], steps = _by_matrix(values[rows], tables[context])
        most = max(most, steps)
    return out, most


def _by_entry(values: Floats, tables: Floats) -> tuple[Floats, float]:
    return log_sum(up(values[..., None] + tables), 1), values.shape[1] + 10.0


def _by_matrix(values: Floats, table: Floats) -> tuple[Floats, float]:
    """The same for rows of one context, table of shape (states, inner, rest)."""
    n = values.shape[1]
    top, over = np.max(values, axis=1), np.max(table, axis=0)
    top, over = np.where(np.isfinite(top), top, 0.0), np.where(np.isfinite(over), over, 0.0)
    left, right = (values - top[:, None]).transpose(2, 0, 1), (table - over[None]).transpose(1, 0, 2)
    sums = np.matmul(np.exp(left), np.exp(right))
    can_be = np.matmul((left > -np.inf).astype(np.float32), (right > -np.inf).astype(np.float32)) > 0.0
    with np.errstate(divide="ignore"):
        logs = np.where(can_be, np.log(sums), -np.inf)
    sizes = (np.max(np.abs(a), where=np.isfinite(a), initial=0.0) for a in (left, right, 4.0 * logs, 4.0 * over))
    steps = n + 24.0 + float(sum(sizes))
    out = up(top[:, :, None] + (over[None] + logs.transpose(1, 0, 2)), steps)
    small = np.flatnonzero(np.any((sums < SMALLEST) & can_be, axis=(0, 2)))
    size = max(1, DIRECT // (table.size or 1))
    for start in range(0, len(small), size):
        rows = small[start : start + size]
        out[rows] = _by_entry(values[rows], table[None])[0]
    return out, steps
