"""The downward pass: the root's value with one variable set to one state, for all variables and states at once.

All rows of a block lie in one pair of arrays with counts (see `scaled.py`): node i in row i, then scratch, then at
`Places` the contexts of nodes, the members and prefixes of one product, and the results by column.
"""

from __future__ import annotations

from typing import NamedTuple

from certimap.circuits.kernels.arrays import PlanArrays, Scalar
from certimap.circuits.kernels.leaves import MASS, leaf_values, multiply_row, real_leaf, wide_leaf
from certimap.circuits.kernels.scaled import add_counts, credit, credit_aligned, credit_mixed, settle, use_counts
from certimap.core.arrays import Array, Flags, Floats
from certimap.core.rounding import OUTSIDE_FLOOR, ROW_FLOOR, SETTLED
from certimap.kernels.jit import jit


class Places(NamedTuple):
    """First row in the block of each group; `n_rows` is the total."""

    context: int
    members: int
    prefix: int
    total: int
    n_rows: int


@jit()
def _forward_binary(
    leaf: Scalar, column: Scalar, first: Floats, second: Floats, inputs: Array, at: Scalar, values: Floats
) -> None:
    """Write row `at + 1`: row `at` times a leaf of a binary variable."""
    p0, p1 = first[leaf], second[leaf]
    for b in range(values.shape[1]):
        factor = p0 * inputs[column, b] + p1 * inputs[column + 1, b]
        values[at + 1, b] = values[at, b] * factor


@jit()
def _backward_binary(
    leaf: Scalar,
    column: Scalar,
    first: Floats,
    second: Floats,
    inputs: Array,
    at: Scalar,
    suffix_at: Scalar,
    values: Floats,
) -> None:
    """Multiply row `at` by the suffix, and the suffix by a leaf of a binary variable."""
    p0, p1 = first[leaf], second[leaf]
    for b in range(values.shape[1]):
        values[at, b] *= values[suffix_at, b]
    for b in range(values.shape[1]):
        values[suffix_at, b] *= p0 * inputs[column, b] + p1 * inputs[column + 1, b]


@jit()
def _credit_binary(p0: Scalar, p1: Scalar, at: Scalar, row: Scalar, values: Floats) -> None:
    """Credit both states of a binary variable in rows `row` and `row + 1`, both without counts."""
    for b in range(values.shape[1]):
        values[row, b] += p0 * values[at, b]
        values[row + 1, b] += p1 * values[at, b]


@jit()
def _extend(k: Scalar, member: Scalar, values: Floats) -> None:
    """Write row `k + 1`: row `k` times row `member`."""
    for b in range(values.shape[1]):
        values[k + 1, b] = values[k, b] * values[member, b]


@jit()
def _copy(source: Scalar, target: Scalar, values: Floats) -> None:
    """Copy a row of values."""
    for b in range(values.shape[1]):
        values[target, b] = values[source, b]


@jit()
def _fill(row: Scalar, number: float, values: Floats, has: Flags) -> None:
    """Set all lanes of a row to a number."""
    has[row] = False
    for b in range(values.shape[1]):
        values[row, b] = number


@jit()
def _member(
    plan: PlanArrays,
    node: Scalar,
    leaf: Scalar,
    inputs: Array,
    low_high: Floats,
    row: Scalar,
    values: Floats,
    counts: Floats,
    has: Flags,
) -> None:
    """Write the mass of a leaf, except narrow binary ones, to row `row`."""
    has[row] = False
    variable, start, tables = plan.leaf_var[leaf], plan.leaf_start[leaf], plan.mantissas
    if leaf < plan.narrow_end[node]:
        leaf_values(MASS, variable, start, plan.offsets, tables, inputs, row, values)
    elif leaf < plan.wide_end[node]:
        wide_leaf(MASS, variable, start, plan.offsets, tables, plan.table_counts, inputs, row, values, counts, has)
    else:
        logs = plan.log_tables
        real_leaf(MASS, 0, variable, start, plan.functions, logs, inputs, low_high, row, values, counts, has)


@jit()
def downward(
    plan: PlanArrays,
    places: Places,
    inputs: Array,
    low_high: Floats,
    row_floors: Floats,
    values: Floats,
    counts: Floats,
    has: Flags,
) -> None:
    """Fill in the rows `total` of every column; all other rows except the nodes' are scratch.

    A node's context is its value's factor in the root's value. Inside a product it is the product of the
    other members, from prefixes and suffixes, so that zeros need no division.
    """
    # Helpers that call nothing are cheap; a helper with calls, or inlined, costs reference counting.
    is_sum, child_ptr, children, offsets = plan.is_sum, plan.child_ptr, plan.children, plan.offsets
    weights, weight_counts, first, second = plan.weights, plan.weight_counts, plan.first, plan.second
    leaf_ptr, binary_end, narrow_end, wide_end = plan.leaf_ptr, plan.binary_end, plan.narrow_end, plan.wide_end
    leaf_var, leaf_start, floors, node_floors = plan.leaf_var, plan.leaf_start, plan.leaf_floors, plan.floors
    mantissas, table_counts = plan.mantissas, plan.table_counts
    context, prefix = places.context, places.prefix
    n_nodes = is_sum.shape[0]
    for node in range(n_nodes):
        _fill(context + node, 1.0 if node == n_nodes - 1 else 0.0, values, has)
    for row in range(places.total, places.n_rows):
        _fill(row, 0.0, values, has)
    for node in range(n_nodes - 1, -1, -1):
        begin, past, source = child_ptr[node], child_ptr[node + 1], context + node
        settle(source, values, counts, has)
        if is_sum[node]:
            for edge in range(begin, past):
                child, weight, count = children[edge], weights[edge], weight_counts[edge]
                if has[source] or has[context + child] or count > 0.0:
                    credit_mixed(weight, count, source, context + child, values, counts, has)
                else:
                    credit(weight, source, context + child, values)
            continue
        start, middle, stop = leaf_ptr[node], binary_end[node], leaf_ptr[node + 1]
        members = places.members - middle  # leaf i, unless narrow and binary, has row members + i
        _copy(source, prefix, values)
        has[prefix] = False
        if has[source]:
            add_counts(source, prefix, counts, has)
        row_floors[0] = SETTLED
        at = prefix
        for k in range(stop - start + past - begin):
            leaf, edge = start + k, begin + k - (stop - start)
            member = members + leaf
            if leaf < middle:
                _forward_binary(leaf, offsets[leaf_var[leaf]], first, second, inputs, at, values)
                member = -1
            elif leaf < stop:
                _member(plan, node, leaf, inputs, low_high, member, values, counts, has)
                _extend(at, member, values)
            else:
                member = children[edge]
                _extend(at, member, values)
            at += 1
            has[at] = False
            if has[at - 1]:
                add_counts(at - 1, at, counts, has)
            if member >= 0 and has[member]:
                add_counts(member, at, counts, has)
            below = floors[leaf + 1] - floors[leaf] if leaf < stop else node_floors[children[edge]]
            row_floors[k + 1] = row_floors[k] + below
            if row_floors[k + 1] < ROW_FLOOR:
                settle(at, values, counts, has)
                row_floors[k + 1] = SETTLED
        last = at  # the full product is not needed: its row holds the suffix
        _fill(last, 1.0, values, has)
        suffix_floor = 0.0
        for edge in range(past - 1, begin - 1, -1):
            child, target = children[edge], context + children[edge]
            at -= 1
            multiply_row(last, at, values)
            if has[last]:
                add_counts(last, at, counts, has)
            if has[at] or has[target]:
                credit_mixed(1.0, 0.0, at, target, values, counts, has)
            else:
                credit(1.0, at, target, values)
            multiply_row(child, last, values)
            if has[child]:
                add_counts(child, last, counts, has)
            suffix_floor += node_floors[child]
            if suffix_floor < ROW_FLOOR:
                settle(last, values, counts, has)
                suffix_floor = SETTLED
        for leaf in range(stop - 1, start - 1, -1):
            at -= 1
            column = offsets[leaf_var[leaf]]
            row = places.total + column
            if has[last]:
                add_counts(last, at, counts, has)
            if leaf < middle:
                _backward_binary(leaf, column, first, second, inputs, at, last, values)
            else:
                multiply_row(last, at, values)
                multiply_row(members + leaf, last, values)
                if has[members + leaf]:
                    add_counts(members + leaf, last, counts, has)
            if row_floors[at - prefix] + suffix_floor < OUTSIDE_FLOOR or leaf >= narrow_end[node]:
                settle(at, values, counts, has)
            suffix_floor += floors[leaf + 1] - floors[leaf]
            if suffix_floor < ROW_FLOOR:
                settle(last, values, counts, has)
                suffix_floor = SETTLED
            if leaf < middle and not (has[at] or has[row] or has[row + 1]):
                _credit_binary(first[leaf], second[leaf], at, row, values)
            elif leaf < wide_end[node]:
                entry = leaf_start[leaf]
                for state in range(offsets[leaf_var[leaf] + 1] - column):
                    p, count, target = mantissas[entry + state], table_counts[entry + state], row + state
                    if not (has[at] or has[target] or count > 0.0):
                        credit(p, at, target, values)
                        continue
                    if state == 0 or not has[at]:
                        settle(at, values, counts, has)
                        use_counts(at, counts, has)
                    if not has[target]:
                        settle(target, values, counts, has)
                        use_counts(target, counts, has)
                    credit_aligned(p, count, at, target, values, counts, has)
