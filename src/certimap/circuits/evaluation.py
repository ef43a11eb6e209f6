"""A plan laid out for evaluation: kinds of leaves in order, numbers with exponents, floors of all nodes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from certimap.circuits.plan import REAL_SIZE, Plan
from certimap.rounding import LEAST_WEIGHT, NARROW_BITS, UNIT_BITS

if TYPE_CHECKING:
    from certimap.circuits.kernels.arrays import PlanArrays

LN_2 = math.log(2.0)
# The states of so many variables, 64 rows of them, outgrow a core's cache; in any other order than the memory's,
# nothing would be fetched ahead of its use.
MANY_VARIABLES = 4096
LN_UNIT = UNIT_BITS * LN_2


def split_logs(logs: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return natural logs, at most 0, as values and counts: `value * 2^(-256 count)`.

    Values with a count are in (2^-384, 2^-128], so that a sum of fewer than 2^128 of them is at most 1; those
    without are in (2^-384, 1], and -inf becomes 0.
    """
    finite = np.isfinite(logs)
    safe = np.where(finite, logs, 0.0)
    counts = np.maximum(np.floor((-safe / LN_2 - NARROW_BITS) / UNIT_BITS), 0.0)
    # Of logs of -1e17 and less, what is left is off by more than a unit: within its range it stays.
    rest = np.clip(safe + counts * LN_UNIT, -(NARROW_BITS + UNIT_BITS) * LN_2, 0.0)
    return np.where(finite, np.exp(rest), 0.0), counts


def _least_bits(plan: Plan, mantissas: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a lower bound on log2 of each leaf's positive values, without their counts, shape (n_leaves,)."""
    with np.errstate(divide="ignore"):
        bits = np.where(mantissas > 0.0, np.log2(mantissas), 0.0)
    starts, of_leaf = np.unique(plan.leaf_start, return_inverse=True)
    return np.minimum.reduceat(bits, starts)[of_leaf] if len(starts) else np.zeros(0)


def arrays_of(plan: Plan) -> PlanArrays:
    """Lay a plan out as the evaluation kernels take it; linear in its edges."""
    from certimap.circuits.kernels.arrays import PlanArrays
    from certimap.circuits.kernels.statistics import find_floors

    sizes = plan.domain.n_states[plan.leaf_var]
    real = np.unique(plan.leaf_start[sizes == 0])[:, None] + np.arange(REAL_SIZE)
    logs = plan.log_tables.copy()
    logs[real] = 0.0
    mantissas, table_counts = split_logs(logs)
    n_wide = np.concatenate([[0], np.cumsum((mantissas > 0.0) & (mantissas < 2.0**-NARROW_BITS))])
    is_wide = n_wide[plan.leaf_start + sizes] > n_wide[plan.leaf_start]
    rank = np.where(sizes == 0, 4, np.where(sizes == 2, 0, 1) + np.where(is_wide, 2, 0))
    order = _leaf_order(plan, rank)
    ends = [plan.leaf_ptr[:-1] + _count_in(plan.leaf_ptr, rank <= k) for k in (0, 1, 3)]
    start = plan.leaf_start[order]
    least = np.where(rank == 4, -1.0 * UNIT_BITS, _least_bits(plan, mantissas))[order]
    weights, weight_counts = split_logs(plan.log_weights)
    floors, settles = np.empty(plan.n_nodes), np.empty(plan.n_nodes, np.bool_)
    leaf_floors = np.concatenate([[0.0], np.cumsum(least)])
    weight_floors = np.log2(np.maximum(weights, LEAST_WEIGHT))
    find_floors(
        plan.is_sum, plan.child_ptr, plan.children, weight_floors, plan.leaf_ptr, leaf_floors, floors, settles
    )
    return PlanArrays(
        is_sum=plan.is_sum,
        child_ptr=plan.child_ptr,
        children=plan.children,
        weights=weights,
        weight_counts=weight_counts,
        log_weights=plan.log_weights,
        leaf_ptr=plan.leaf_ptr,
        binary_end=ends[0],
        narrow_end=ends[1],
        wide_end=ends[2],
        leaf_var=plan.leaf_var[order],
        leaf_start=start,
        first=mantissas[start],
        second=mantissas[np.minimum(start + 1, len(plan.tables) - 1)],
        mantissas=mantissas,
        table_counts=table_counts,
        probabilities=plan.tables,
        log_tables=plan.log_tables,
        decides=plan.decides,
        offsets=plan.domain.offsets,
        functions=functions_of(plan),
        leaf_floors=leaf_floors,
        floors=floors,
        settles=settles,
    )


def _leaf_order(plan: Plan, rank: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the order in which products take their leaves: by rank, and by variable where these are many."""
    if len(plan.domain) > MANY_VARIABLES:
        return np.lexsort((plan.leaf_var, rank, plan.parent_of_leaf))
    return np.lexsort((rank, plan.parent_of_leaf)) if rank.any() else np.arange(plan.n_leaves)


def functions_of(plan: Plan) -> NDArray[np.int64]:
    """Return the addresses of what kernels ask real leaves; none, and nothing compiled, in a discrete domain."""
    if plan.domain.is_discrete:
        return np.zeros((0, 8), np.int64)
    from certimap.circuits.leaves.kind import function_table

    return function_table()


def _count_in(ptr: NDArray[np.int64], marks: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return how many of each segment's entries are marked."""
    counts = np.concatenate([[0], np.cumsum(marks)]).astype(np.int64)
    return counts[ptr[1:]] - counts[ptr[:-1]]
