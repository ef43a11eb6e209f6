"""A plan laid out for evaluation: leaves ordered by kind, numbers with exponents, floors of all nodes."""

from __future__ import annotations

import math
from weakref import WeakKeyDictionary

import numpy as np

from certimap.circuits.kernels import statistics
from certimap.circuits.kernels.arrays import LeafPlaces, PlanArrays, ProbeArrays
from certimap.circuits.kernels.real import fill_scales
from certimap.circuits.kernels.statistics import find_floors
from certimap.circuits.leaves.kind import function_table
from certimap.circuits.plan import REAL_SIZE, Plan
from certimap.core.arrays import Flags, Floats, Ints
from certimap.core.rounding import LEAST_WEIGHT, NARROW_BITS, SMALLEST_FACTOR, UNIT_BITS

LN_2 = math.log(2.0)
# 64 rows of states of this many variables outgrow a core's cache. Only access in memory order lets the processor
# prefetch them.
MANY_VARIABLES = 4096
LN_UNIT = UNIT_BITS * LN_2
NUMBERS_TOGETHER = 2**16  # numbers split together: temporary arrays stay small and in cache
# Not stored in plans: their copies go to other processes, where addresses of functions differ.
_laid_out: WeakKeyDictionary[Plan, ProbeArrays] = WeakKeyDictionary()


def split_logs(logs: Floats) -> tuple[Floats, Floats]:
    """Return natural logs, at most 0, as values and counts: `value * 2^(-256 count)`.

    Values with a count are in (2^-384, 2^-128], so that a sum of fewer than 2^128 of them is at most 1. Values
    without are in (2^-384, 1], and -inf becomes 0. Unused parts of the counts take no memory.
    """
    values, counts = np.empty_like(logs), np.zeros(len(logs))
    for start in range(0, len(logs), NUMBERS_TOGETHER):
        part = slice(start, start + NUMBERS_TOGETHER)
        finite = np.isfinite(logs[part])
        safe = np.where(finite, logs[part], 0.0)
        some = np.maximum(np.floor((-safe / LN_2 - NARROW_BITS) / UNIT_BITS), 0.0)
        # For logs below -1e17 the remainder is off by more than 1: clip it to its range.
        rest = np.clip(safe + some * LN_UNIT, -(NARROW_BITS + UNIT_BITS) * LN_2, 0.0)
        values[part] = np.where(finite, np.exp(rest), 0.0)
        if some.any():
            counts[part] = some
    return values, counts


def arrays_of(plan: Plan) -> PlanArrays:
    """Lay a plan out for the evaluation kernels; linear in its edges."""
    mantissas, table_counts = split_logs(plan.log_tables)
    if not plan.domain.is_discrete:
        is_real = plan.domain.n_states[plan.leaf_var] == 0
        entries = np.unique(plan.leaf_start[is_real])[:, None] + np.arange(REAL_SIZE)
        mantissas[entries], table_counts[entries] = 1.0, 0.0
    leaves = _leaves_in_order(plan, mantissas)
    weights, weight_counts = split_logs(plan.log_weights)
    floors, settles = np.empty(plan.n_nodes), np.empty(plan.n_nodes, np.bool_)
    weight_floors = np.log2(np.maximum(weights, LEAST_WEIGHT))
    find_floors(
        plan.is_sum, plan.child_ptr, plan.children, weight_floors, plan.leaf_ptr, leaves.floors, floors, settles
    )
    return PlanArrays(
        is_sum=plan.is_sum,
        child_ptr=plan.child_ptr,
        children=plan.children,
        weights=weights,
        weight_counts=weight_counts,
        log_weights=plan.log_weights,
        leaf_ptr=plan.leaf_ptr,
        binary_end=leaves.binary_end,
        narrow_end=leaves.narrow_end,
        wide_end=leaves.wide_end,
        leaf_var=leaves.leaf_var,
        leaf_start=leaves.leaf_start,
        first=leaves.first,
        second=leaves.second,
        mantissas=mantissas,
        table_counts=table_counts,
        probabilities=plan.tables,
        log_tables=plan.log_tables,
        offsets=plan.domain.offsets,
        functions=functions_of(plan),
        leaf_floors=leaves.floors,
        floors=floors,
        settles=settles,
    )


def _leaves_in_order(plan: Plan, mantissas: Floats) -> LeafPlaces:
    """Return the leaves in the order of products: by rank, and with many variables by variable."""
    n, n_nodes, n_vars = plan.n_leaves, plan.n_nodes, len(plan.domain)
    rank, floors, order = np.empty(n, np.int8), np.empty(n), np.arange(n, dtype=np.int32)
    of_leaves = (plan.leaf_var, plan.leaf_start)
    any_other = statistics.survey_leaves(*of_leaves, plan.domain.n_states, mantissas, rank, floors)
    stride = n_vars if n_vars > MANY_VARIABLES else 0
    if stride or any_other:
        counters = np.zeros(5 * max(stride, 1) + 1, np.int64)
        scratch = (np.empty(n, np.int32), np.empty(n, np.int32))
        statistics.sort_leaves(plan.leaf_ptr, plan.leaf_var, rank, stride, counters, *scratch, order)
    places = LeafPlaces(
        leaf_ptr=plan.leaf_ptr,
        binary_end=np.empty(n_nodes, np.int64),
        narrow_end=np.empty(n_nodes, np.int64),
        wide_end=np.empty(n_nodes, np.int64),
        leaf_var=np.empty(n, np.int32),
        leaf_start=np.empty(n, np.int64),
        first=np.empty(n),
        second=np.empty(n),
        mantissas=mantissas,
        floors=np.empty(n + 1),
    )
    statistics.place_leaves(order, rank, floors, *of_leaves, places)
    return places


def functions_of(plan: Plan) -> Ints:
    """Return the addresses of the plan's real leaves' functions; none in a discrete domain."""
    if plan.domain.is_discrete:
        return np.zeros((0, 8), np.int64)

    return function_table(np.unique(plan.log_tables[plan.leaf_start[plan.domain.n_states[plan.leaf_var] == 0]]))


def probe_arrays(plan: Plan) -> ProbeArrays:
    """Return a plan laid out for the box search and the walks; linear in its edges, and made once."""
    found = _laid_out.get(plan)
    if found is None:
        found = _laid_out[plan] = _lay_out(plan)
    return found


def _lay_out(plan: Plan) -> ProbeArrays:
    domain = plan.domain
    widths = np.where(domain.n_states == 0, 2, domain.n_states)
    return ProbeArrays(
        is_sum=plan.is_sum,
        child_ptr=plan.child_ptr,
        children=plan.children,
        log_weights=plan.log_weights,
        leaf_ptr=plan.leaf_ptr,
        leaf_var=plan.leaf_var,
        leaf_start=plan.leaf_start,
        in_logs=_in_logs(plan),
        tables=plan.tables,
        log_tables=plan.log_tables,
        functions=functions_of(plan),
        decides=plan.decides,
        offsets=np.concatenate([[0], np.cumsum(widths)]).astype(np.int64),
        n_states=domain.n_states,
        scales=_scales(plan),
        is_whole=plan.is_whole,
        discrete=domain.is_discrete,
    )


def _in_logs(plan: Plan) -> Flags:
    """Mark leaves whose products might underflow, bool (n_leaves,): real leaves, and leaves with a tiny entry."""
    tiny = np.isfinite(plan.log_tables) & (plan.log_tables < math.log(SMALLEST_FACTOR))
    before = np.concatenate([[0], np.cumsum(tiny)])
    sizes = plan.domain.n_states[plan.leaf_var]
    return (sizes == 0) | (before[plan.leaf_start + sizes] > before[plan.leaf_start])


def _scales(plan: Plan) -> Floats:
    """Return the smallest scale among each real variable's leaves; 1 for categorical variables."""
    scales = np.full(len(plan.domain), np.inf)
    if plan.domain.is_discrete:
        return np.ones_like(scales)
    real = plan.domain.n_states[plan.leaf_var] == 0
    lengths = np.empty(np.count_nonzero(real))
    fill_scales(functions_of(plan), plan.tables, plan.leaf_start[real], lengths)
    np.minimum.at(scales, plan.leaf_var[real], lengths)
    return np.where(np.isfinite(scales), scales, 1.0)
