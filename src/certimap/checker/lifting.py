"""Eliminates a bucket's variable from a set of vectors; large sets use matrix products."""

from __future__ import annotations

import math

import numpy as np

from certimap.checker.buckets import ProofBucket, ProofBuckets, index_map, rounded_by
from certimap.checker.budget import FLOAT, CheckBudget
from certimap.checker.numbers import Floats, Ints, log_sum, up
from certimap.checker.vectors import Vectors

DIRECT, FEW = 2_000_000, 20_000  # most entries, in all and per context, for sums entry by entry
LIFTED = 8  # copies of the vectors over all hidden variables of a bucket, held during its elimination
SMALLEST = 1e-250  # of a sum relative to its largest possible value; below, products may underflow


def lifted(tree: ProofBuckets, bucket: ProofBucket, table: Floats, found: Vectors) -> Vectors:
    """Multiply vectors over a bucket's inner variables by its table, and eliminate its own variable.

    Parameters
    ----------
    table
        The bucket's table, restricted to a box.
    found
        The vectors; `context` numbers the joint states of the bucket's query variables.
    """
    table = table.reshape(math.prod(table.shape[: len(bucket.query)]), -1)
    contexts = index_map(bucket.query, bucket.separator_query, tree.sizes)[found.context]
    n_wide = len(contexts) * max(math.prod(tree.sizes[v] for v in part) for part in (bucket.hidden, bucket.inner))
    tree.budget.need(LIFTED * FLOAT * n_wide, "the vectors of a set")
    if bucket.own in tree.queried or bucket.own < 0:
        places = index_map(bucket.hidden, bucket.inner, tree.sizes)
        sums = up(found.values[:, places] + table[found.context])
        return Vectors(contexts, sums, found.error + rounded_by(sums))
    rest = [v for v in bucket.hidden if v not in bucket.inner and v != bucket.own]
    inner = [v for v in bucket.inner if v != bucket.own]
    n = tree.sizes[bucket.own]
    n_inner, n_rest = (math.prod(tree.sizes[v] for v in part) for part in (inner, rest))
    tables = table[:, index_order(tree, bucket.hidden, [bucket.own, *inner, *rest])].reshape(
        -1, n, n_inner, n_rest
    )
    if bucket.own in bucket.inner:
        values = found.values[:, index_order(tree, bucket.inner, [bucket.own, *inner])]
        sums, steps = _summed(values.reshape(-1, n, n_inner), tables, found.context, tree.budget)
    else:
        sums = up(found.values[:, :, None] + log_sum(tables, 1)[found.context])
        steps = n + 8.0
    sums = sums.reshape(len(sums), -1)[:, index_order(tree, [*inner, *rest], bucket.separator_hidden)]
    return Vectors(contexts, sums, found.error + rounded_by(sums, 2.0 * steps + 18.0))


def index_order(tree: ProofBuckets, given: list[int], wanted: list[int]) -> Ints:
    """Return the index of each joint state of `wanted` in the order `given` of the same variables."""
    return index_map(wanted, given, tree.sizes)


def _summed(values: Floats, tables: Floats, contexts: Ints, budget: CheckBudget) -> tuple[Floats, float]:
    """Sum out the variable of axis 1; return the sums, rounded up, and their largest rounding in units.

    Shapes: values (rows, states, inner), tables (contexts, states, inner, rest), sums (rows, inner, rest).
    """
    present = np.unique(contexts)
    if values.size * tables.shape[3] <= min(DIRECT, FEW * len(present)):
        return _by_entry(values, tables[contexts])
    out = np.empty((len(values), *tables.shape[2:]))
    most = 0.0
    for context in present:
        budget.look()
        rows = np.flatnonzero(contexts == context) if len(present) > 1 else slice(None)
        out[rows], steps = _by_matrix(values[rows], tables[context])
        most = max(most, steps)
    return out, most


def _by_entry(values: Floats, tables: Floats) -> tuple[Floats, float]:
    return log_sum(up(values[..., None] + tables), 1), values.shape[1] + 10.0


def _by_matrix(values: Floats, table: Floats) -> tuple[Floats, float]:
    """Sum as `_summed` does, for rows of one context; the table has shape (states, inner, rest)."""
    n = values.shape[1]
    top, over = np.max(values, axis=1), np.max(table, axis=0)
    top, over = np.where(np.isfinite(top), top, 0.0), np.where(np.isfinite(over), over, 0.0)
    left, right = (values - top[:, None]).transpose(2, 0, 1), (table - over[None]).transpose(1, 0, 2)
    sums = np.matmul(np.exp(left), np.exp(right))
    has = left > -np.inf, right > -np.inf
    can_be = np.matmul(has[0].astype(np.float32), has[1].astype(np.float32)) > 0.0
    with np.errstate(divide="ignore"):
        logs = np.where(can_be, np.log(sums), -np.inf)
    sizes = [-float(np.min(a, where=w, initial=0.0)) for a, w in ((left, has[0]), (right, has[1]), (logs, can_be))]
    steps = n + 24.0 + sizes[0] + sizes[1] + 4.0 * (sizes[2] + math.log(n) + float(np.max(np.abs(over))))
    out = up(top[:, :, None] + (over[None] + logs.transpose(1, 0, 2)), steps)
    small = np.flatnonzero(np.any((sums < SMALLEST) & can_be, axis=(0, 2)))
    size = max(1, DIRECT // (table.size or 1))
    for start in range(0, len(small), size):
        rows = small[start : start + size]
        out[rows] = _by_entry(values[rows], table[None])[0]
    return out, steps
