"""The downward pass: what the root becomes when one variable is set to one state, for all at once.

All rows of a block lie in one pair of arrays with counts (see `scaled.py`): node i in row i, then scratch, and
from `Places` on the contexts of nodes, the members and prefixes of one product, and the results by column.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from certimap.circuits.kernels.arrays import PlanArrays, Scalar
from certimap.circuits.kernels.leaves import BOUND, leaf_values, multiply_row, real_leaf, wide_leaf
from certimap.circuits.kernels.scaled import add_counts, credit, settle
from certimap.kernels.jit import jit
from certimap.rounding import OUTSIDE_FLOOR, ROW_FLOOR, SETTLED

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


class Places(NamedTuple):
    """Where in the block each group of rows begins; `n_rows` counts them all."""

    context: int
    members: int
    prefix: int
    total: int
    largest: int
    n_rows: int


@jit(fastmath={"contract"})
def _forward_binary(
    bound: bool,
    leaf: Scalar,
    column: Scalar,
    first: Floats,
    second: Floats,
    inputs: Floats,
    at: Scalar,
    values: Floats,
) -> None:
    """Write row `at + 1`: row `at` times a leaf of a binary variable."""
    m0, m1, p0, p1 = inputs[column], inputs[column + 1], first[leaf], second[leaf]
    before, after = values[at], values[at + 1]
    if bound:
        for b in range(before.shape[0]):
            after[b] = before[b] * max(p0 * m0[b], p1 * m1[b])
    else:
        for b in range(before.shape[0]):
            after[b] = before[b] * (p0 * m0[b] + p1 * m1[b])


@jit(fastmath={"contract"})
def _backward_binary(
    bound: bool,
    leaf: Scalar,
    column: Scalar,
    first: Floats,
    second: Floats,
    inputs: Floats,
    at: Scalar,
    suffix_at: Scalar,
    values: Floats,
) -> None:
    """Multiply row `at` by the suffix, and the suffix by a leaf of a binary variable."""
    m0, m1, p0, p1 = inputs[column], inputs[column + 1], first[leaf], second[leaf]
    outside, suffix = values[at], values[suffix_at]
    if bound:
        for b in range(suffix.shape[0]):
            outside[b] *= suffix[b]
            suffix[b] *= max(p0 * m0[b], p1 * m1[b])
    else:
        for b in range(suffix.shape[0]):
            outside[b] *= suffix[b]
            suffix[b] *= p0 * m0[b] + p1 * m1[b]


@jit(fastmath={"contract"})
def _credit_binary(use_max: bool, p0: Scalar, p1: Scalar, at: Scalar, row: Scalar, values: Floats) -> None:
    """Credit both states of a binary variable in rows `row` and `row + 1`, none of which has counts."""
    outside, r0, r1 = values[at], values[row], values[row + 1]
    if use_max:
        for b in range(outside.shape[0]):
            r0[b] = max(r0[b], p0 * outside[b])
            r1[b] = max(r1[b], p1 * outside[b])
    else:
        for b in range(outside.shape[0]):
            r0[b] += p0 * outside[b]
            r1[b] += p1 * outside[b]


@jit()
def _extend(k: Scalar, member: Scalar, values: Floats, counts: Floats, has: Flags) -> None:
    """Write row `k + 1`: row `k` times row `member`."""
    for b in range(values.shape[1]):
        values[k + 1, b] = values[k, b] * values[member, b]
    copy_counts(k, k + 1, counts, has)
    if has[member]:
        add_counts(member, k + 1, counts, has)


@jit(inline="always")
def copy_counts(source: Scalar, target: Scalar, counts: Floats, has: Flags) -> None:
    """Give a row the counts of another one, if that has any."""
    has[target] = False
    if has[source]:
        add_counts(source, target, counts, has)


@jit()
def _begin(context: Scalar, prefix: Scalar, values: Floats, counts: Floats, has: Flags) -> None:
    """Start the prefixes of a product with its context, settled."""
    settle(context, values, counts, has)
    for b in range(values.shape[1]):
        values[prefix, b] = values[context, b]
    copy_counts(context, prefix, counts, has)


@jit(inline="always")
def _kept_floor(floor: Scalar, k: Scalar, values: Floats, counts: Floats, has: Flags) -> float:
    """Settle row `k` where its floor is low; return its floor."""
    if floor < ROW_FLOOR:
        settle(k, values, counts, has)
        return SETTLED
    return floor


@jit(inline="always")
def _multiply(k: Scalar, factor: Scalar, values: Floats, counts: Floats, has: Flags) -> None:
    """Multiply row `k` by row `factor`."""
    multiply_row(factor, k, values)
    if has[factor]:
        add_counts(factor, k, counts, has)


@jit()
def _fill(row: Scalar, number: float, values: Floats, has: Flags) -> None:
    """Set all lanes of a row to a number."""
    has[row] = False
    for b in range(values.shape[1]):
        values[row, b] = number


@jit()
def downward(
    plan: PlanArrays,
    mode: int,
    first_row: int,
    is_top: Flags,
    places: Places,
    inputs: Floats,
    low_high: Floats,
    row_floors: Floats,
    values: Floats,
    counts: Floats,
    has: Flags,
) -> None:
    """Fill in the rows `total` of every column; scratch are `largest` and all others but those of nodes.

    A node's context is what its value is multiplied by on the way to the root. Inside a product it is
    the product of the other members, taken from prefixes and suffixes, so that zeros need no division.
    `is_top` marks nodes all of whose ancestors are products and deciding sums: there the largest
    occurrence of a leaf counts. Everywhere else occurrences add up, which is exact for masses, and for
    bounds errs upward. A deciding sum gives every child its weight, not the largest one alone.
    """
    is_sum, child_ptr, children, offsets = plan.is_sum, plan.child_ptr, plan.children, plan.offsets
    weights, weight_counts, first, second = plan.weights, plan.weight_counts, plan.first, plan.second
    leaf_ptr, binary_end, narrow_end, wide_end = plan.leaf_ptr, plan.binary_end, plan.narrow_end, plan.wide_end
    leaf_var, leaf_start, floors, node_floors = plan.leaf_var, plan.leaf_start, plan.leaf_floors, plan.floors
    mantissas, table_counts, log_tables = plan.mantissas, plan.table_counts, plan.log_tables
    functions = plan.functions
    context, prefix, bound = places.context, places.prefix, mode == BOUND
    n_nodes = is_sum.shape[0]
    for node in range(n_nodes):
        _fill(context + node, 1.0 if node == n_nodes - 1 else 0.0, values, has)
    for row in range(places.total, places.n_rows):
        _fill(row, 0.0, values, has)
    for node in range(n_nodes - 1, -1, -1):
        begin, past = child_ptr[node], child_ptr[node + 1]
        if is_sum[node]:
            settle(context + node, values, counts, has)
            for edge in range(begin, past):
                child = children[edge]
                weight, count = weights[edge], weight_counts[edge]
                credit(is_top[child], weight, count, context + node, context + child, values, counts, has)
            continue
        start, middle, narrow, wide, stop = (
            leaf_ptr[node],
            binary_end[node],
            narrow_end[node],
            wide_end[node],
            leaf_ptr[node + 1],
        )
        members = places.members - middle  # leaf i, unless narrow and binary, has row members + i
        _begin(context + node, prefix, values, counts, has)
        row_floors[0] = SETTLED
        k = 0
        for leaf in range(start, stop):
            variable, at, member = leaf_var[leaf], leaf_start[leaf], members + leaf
            if leaf < middle:
                _forward_binary(bound, leaf, offsets[variable], first, second, inputs, prefix + k, values)
                copy_counts(prefix + k, prefix + k + 1, counts, has)
            else:
                has[member] = False
                if leaf < narrow:
                    leaf_values(mode, variable, at, offsets, mantissas, inputs, member, values)
                elif leaf < wide:
                    wide_leaf(
                        mode, variable, at, offsets, mantissas, table_counts, inputs, member, values, counts, has
                    )
                else:
                    real_leaf(
                        mode,
                        first_row,
                        variable,
                        at,
                        functions,
                        log_tables,
                        inputs,
                        low_high,
                        member,
                        values,
                        counts,
                        has,
                    )
                _extend(prefix + k, member, values, counts, has)
            floor = row_floors[k] + floors[leaf + 1] - floors[leaf]
            k += 1
            row_floors[k] = _kept_floor(floor, prefix + k, values, counts, has)
        for edge in range(begin, past):
            child = children[edge]
            _extend(prefix + k, child, values, counts, has)
            floor = row_floors[k] + node_floors[child]
            k += 1
            row_floors[k] = _kept_floor(floor, prefix + k, values, counts, has)
        last = prefix + k  # the product of everything is not needed: its row holds the suffix
        _fill(last, 1.0, values, has)
        suffix_floor = 0.0
        for edge in range(past - 1, begin - 1, -1):
            child = children[edge]
            k -= 1
            _multiply(prefix + k, last, values, counts, has)
            credit(is_top[child], 1.0, 0.0, prefix + k, context + child, values, counts, has)
            _multiply(last, child, values, counts, has)
            suffix_floor = _kept_floor(suffix_floor + node_floors[child], last, values, counts, has)
        top = is_top[node]
        results = places.largest if top else places.total
        for leaf in range(stop - 1, start - 1, -1):
            k -= 1
            column = offsets[leaf_var[leaf]]
            at, row = prefix + k, results + column
            if leaf < middle:
                if has[last]:
                    add_counts(last, at, counts, has)
                _backward_binary(bound, leaf, column, first, second, inputs, at, last, values)
            else:
                _multiply(at, last, values, counts, has)
                _multiply(last, members + leaf, values, counts, has)
            if row_floors[k] + suffix_floor < OUTSIDE_FLOOR or leaf >= narrow:
                settle(at, values, counts, has)
            suffix_floor = _kept_floor(suffix_floor + floors[leaf + 1] - floors[leaf], last, values, counts, has)
            if leaf < middle and not (has[at] or has[row] or has[row + 1]):
                _credit_binary(top, first[leaf], second[leaf], at, row, values)
            elif leaf < wide:
                entry = leaf_start[leaf]
                for state in range(offsets[leaf_var[leaf] + 1] - column):
                    p, count = mantissas[entry + state], table_counts[entry + state]
                    credit(top, p, count, at, row + state, values, counts, has)
    for column in range(offsets[offsets.shape[0] - 1]):
        credit(True, 1.0, 0.0, places.largest + column, places.total + column, values, counts, has)
