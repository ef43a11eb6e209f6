"""Kernels that evaluate a plan, many rows at once, on numbers with exponents (see `scaled.py`).

Rows are taken in blocks of `width` and laid out batch-inner: one array of `width` lanes for each input
(variable, or (variable, state)) and for each node, so that every inner loop is a run of multiplications
and additions over lanes. Lanes past the last row repeat row 0 and are not written out.

Modes: 0 evaluates points; 1 the mass of boxes; 2 the upper bound of boxes, where a leaf is the largest
probability (or density) that its box allows and a deciding sum takes the largest term.

A product keeps a floor, a lower bound on its positive lanes, and settles them before the next factor could take
them below the normal numbers: every forty leaves or so, and without effect where they are not that small.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.circuits.kernels.arrays import PlanArrays, Scalar
from certimap.circuits.kernels.real import log_density, log_mass, log_peak
from certimap.circuits.kernels.scaled import (
    LEAST_FLOOR,
    NEVER,
    add_counts,
    from_log,
    lower_counts,
    settle,
    shift_of,
)
from certimap.kernels.jit import jit

POINT, MASS, BOUND = 0, 1, 2


@jit()
def assign_slots(
    child_ptr: NDArray[np.int64],
    children: NDArray[np.int32],
    n_parents: NDArray[np.int32],
    free: NDArray[np.int32],
    slot: NDArray[np.int32],
) -> int:
    """Give each node a row of scratch memory; a row is free again after its node's last parent.

    `n_parents` is used up, `free` is scratch. Returns the number of rows.
    """
    n_nodes = slot.shape[0]
    n_free, n_rows = 0, 0
    for node in range(n_nodes):
        if n_free > 0:
            n_free -= 1
            slot[node] = free[n_free]
        else:
            slot[node] = n_rows
            n_rows += 1
        for edge in range(child_ptr[node], child_ptr[node + 1]):
            child = children[edge]
            n_parents[child] -= 1
            if n_parents[child] == 0:
                free[n_free] = slot[child]
                n_free += 1
    return n_rows


@jit()
def load_block(
    mode: int,
    first: int,
    width: int,
    points: NDArray[Any],
    mask: NDArray[np.bool_],
    inputs: NDArray[np.float64],
) -> int:
    """Transpose rows `first`, ... into lanes of `inputs`; return how many lanes hold a row."""
    n_rows = points.shape[0] if mode == 0 else mask.shape[0]
    n_inputs = points.shape[1] if mode == 0 else mask.shape[1]
    lanes = min(width, n_rows - first)
    for i in range(n_inputs):
        row = inputs[i]
        for b in range(lanes):
            row[b] = points[first + b, i] if mode == 0 else mask[first + b, i]
        for b in range(lanes, width):
            row[b] = row[0]
    return lanes


@jit(fastmath={"contract"})
def multiply_binary_points(
    start: Scalar,
    stop: Scalar,
    leaf_var: NDArray[np.int32],
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    inputs: NDArray[np.float64],
    at: Scalar,
    values: NDArray[np.float64],
) -> None:
    """Multiply `values[at]` by leaves of binary variables at points, four at a time.

    The probability is selected, not interpolated: p0 + (p1 - p0) x would round a small p1 away beside a large p0.
    """
    out = values[at]
    width = out.shape[0]
    leaf = start
    while leaf + 4 <= stop:
        x0, x1 = inputs[leaf_var[leaf]], inputs[leaf_var[leaf + 1]]
        x2, x3 = inputs[leaf_var[leaf + 2]], inputs[leaf_var[leaf + 3]]
        p0, p1, p2, p3 = first[leaf], first[leaf + 1], first[leaf + 2], first[leaf + 3]
        q0, q1, q2, q3 = second[leaf], second[leaf + 1], second[leaf + 2], second[leaf + 3]
        for b in range(width):
            a0 = q0 if x0[b] > 0.5 else p0
            a1 = q1 if x1[b] > 0.5 else p1
            a2 = q2 if x2[b] > 0.5 else p2
            a3 = q3 if x3[b] > 0.5 else p3
            out[b] *= (a0 * a1) * (a2 * a3)
        leaf += 4
    while leaf < stop:
        x0, p0, q0 = inputs[leaf_var[leaf]], first[leaf], second[leaf]
        for b in range(width):
            out[b] *= q0 if x0[b] > 0.5 else p0
        leaf += 1


@jit(fastmath={"contract"})
def multiply_binary_boxes(
    bound: bool,
    start: Scalar,
    stop: Scalar,
    leaf_var: NDArray[np.int32],
    offsets: NDArray[np.int64],
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    inputs: NDArray[np.float64],
    at: Scalar,
    values: NDArray[np.float64],
) -> None:
    """Multiply `values[at]` by leaves of binary variables on boxes."""
    out = values[at]
    width = out.shape[0]
    for leaf in range(start, stop):
        column = offsets[leaf_var[leaf]]
        m0, m1, p0, p1 = inputs[column], inputs[column + 1], first[leaf], second[leaf]
        if bound:
            for b in range(width):
                out[b] *= max(p0 * m0[b], p1 * m1[b])
        else:
            for b in range(width):
                out[b] *= p0 * m0[b] + p1 * m1[b]


@jit(fastmath={"contract"})
def leaf_values(
    mode: int,
    variable: Scalar,
    start: Scalar,
    offsets: NDArray[np.int64],
    tables: NDArray[np.float64],
    inputs: NDArray[np.float64],
    k: Scalar,
    values: NDArray[np.float64],
) -> None:
    """Write one leaf's value in each lane of `values[k]`; its vector starts at `tables[start]`."""
    out = values[k]
    width = out.shape[0]
    column, past = offsets[variable], offsets[variable + 1]
    if mode == 0:
        states = inputs[variable]
        for b in range(width):
            out[b] = tables[start + np.int64(states[b])]
        return
    allowed, probability = inputs[column], tables[start]
    for b in range(width):
        out[b] = probability * allowed[b]
    for state in range(1, past - column):
        allowed, probability = inputs[column + state], tables[start + state]
        if mode == 1:
            for b in range(width):
                out[b] += probability * allowed[b]
        else:
            for b in range(width):
                out[b] = max(out[b], probability * allowed[b])


@jit()
def wide_leaf(
    mode: int,
    variable: Scalar,
    start: Scalar,
    offsets: NDArray[np.int64],
    mantissas: NDArray[np.float64],
    table_counts: NDArray[np.float64],
    inputs: NDArray[np.float64],
    k: Scalar,
    values: NDArray[np.float64],
    counts: NDArray[np.float64],
    has: NDArray[np.bool_],
) -> None:
    """Write a leaf's value in each lane of row `k`, where entries have counts of their own."""
    out, count = values[k], counts[k]
    has[k] = True
    column, past = offsets[variable], offsets[variable + 1]
    if mode == POINT:
        states = inputs[variable]
        for b in range(out.shape[0]):
            at = start + np.int64(states[b])
            out[b], count[b] = mantissas[at], table_counts[at]
        return
    for b in range(out.shape[0]):
        lowest, total = NEVER, 0.0
        for state in range(past - column):
            if inputs[column + state, b] > 0.0 and mantissas[start + state] > 0.0:
                lowest = min(lowest, table_counts[start + state])
        for state in range(past - column):
            if inputs[column + state, b] > 0.0:
                term = mantissas[start + state] * shift_of(table_counts[start + state] - lowest)
                total = total + term if mode == MASS else max(total, term)
        out[b], count[b] = total, lowest if total > 0.0 else 0.0


@jit()
def real_leaf(
    mode: int,
    first_row: Scalar,
    variable: Scalar,
    start: Scalar,
    functions: NDArray[np.int64],
    tables: NDArray[np.float64],
    inputs: NDArray[np.float64],
    low_high: NDArray[np.float64],
    k: Scalar,
    values: NDArray[np.float64],
    counts: NDArray[np.float64],
    has: NDArray[np.bool_],
) -> None:
    """Write a real leaf's density at a point, or its mass or largest density in a box, in each lane of row `k`."""
    out, count = values[k], counts[k]
    has[k] = True
    last = low_high.shape[1] - 1
    for b in range(out.shape[0]):
        if mode == POINT:
            result = log_density(functions, tables, start, inputs[variable, b])
        else:
            row = min(first_row + b, last)
            low, high = low_high[0, row, variable], low_high[1, row, variable]
            if mode == MASS:
                result = log_mass(functions, tables, start, low, high)
            else:
                result = log_peak(functions, tables, start, low, high)
        out[b], count[b] = from_log(result)


@jit(fastmath={"contract"})
def multiply_row(source: NDArray[np.float64], k: Scalar, at: Scalar, values: NDArray[np.float64]) -> None:
    """Multiply `values[at]` by `source[k]`."""
    factor, out = source[k], values[at]
    for b in range(out.shape[0]):
        out[b] *= factor[b]


@jit(fastmath={"contract"})
def add_children(
    use_max: bool,
    start: Scalar,
    stop: Scalar,
    children: NDArray[np.int32],
    weights: NDArray[np.float64],
    slot: NDArray[np.int32],
    at: Scalar,
    values: NDArray[np.float64],
) -> None:
    """Write the weighted sum (or the largest weighted term) of a sum's children."""
    out = values[at]
    width = out.shape[0]
    child, weight = values[slot[children[start]]], weights[start]
    for b in range(width):
        out[b] = weight * child[b]
    for edge in range(start + 1, stop):
        child, weight = values[slot[children[edge]]], weights[edge]
        if use_max:
            for b in range(width):
                out[b] = max(out[b], weight * child[b])
        else:
            for b in range(width):
                out[b] += weight * child[b]


@jit(fastmath={"contract"})
def add_aligned(
    use_max: bool,
    weight: Scalar,
    weight_count: Scalar,
    k: Scalar,
    values: NDArray[np.float64],
    counts: NDArray[np.float64],
    has: NDArray[np.bool_],
    lowest: NDArray[np.float64],
    out: NDArray[np.float64],
) -> None:
    """Add (or take the largest of) a weighted row, aligned to the counts `lowest`, to `out`."""
    row, count = values[k], counts[k]
    if not has[k]:
        for b in range(out.shape[0]):
            count[b] = 0.0
    if use_max:
        for b in range(out.shape[0]):
            out[b] = max(out[b], weight * (row[b] * shift_of(count[b] + weight_count - lowest[b])))
    else:
        for b in range(out.shape[0]):
            out[b] += weight * (row[b] * shift_of(count[b] + weight_count - lowest[b]))


@jit()
def add_scaled_children(
    use_max: bool,
    start: Scalar,
    stop: Scalar,
    children: NDArray[np.int32],
    weights: NDArray[np.float64],
    weight_counts: NDArray[np.float64],
    slot: NDArray[np.int32],
    at: Scalar,
    values: NDArray[np.float64],
    counts: NDArray[np.float64],
    has: NDArray[np.bool_],
) -> None:
    """Do the same where some child, or some weight, has counts."""
    out, lowest = values[at], counts[at]
    has[at] = True
    for b in range(out.shape[0]):
        out[b], lowest[b] = 0.0, NEVER
    for edge in range(start, stop):
        lower_counts(weight_counts[edge], values, counts, has, slot[children[edge]], lowest)
    for edge in range(start, stop):
        weight, extra = weights[edge], weight_counts[edge]
        add_aligned(use_max, weight, extra, slot[children[edge]], values, counts, has, lowest, out)
    for b in range(out.shape[0]):
        lowest[b] = 0.0 if lowest[b] == NEVER else lowest[b]


@jit()
def is_scaled(
    start: Scalar,
    stop: Scalar,
    children: NDArray[np.int32],
    weight_counts: NDArray[np.float64],
    slot: NDArray[np.int32],
    has: NDArray[np.bool_],
) -> Scalar:
    """Tell whether a term of a sum has counts."""
    scaled = False
    for edge in range(start, stop):
        scaled |= has[slot[children[edge]]] or weight_counts[edge] > 0.0
    return scaled


@jit()
def run_of(leaf: Scalar, end: Scalar, floor: Scalar, floors: NDArray[np.float64]) -> Scalar:
    """Return where to settle a product of the leaves `leaf:end` that stands at `floor`; after one at least."""
    if floor + floors[end] - floors[leaf] >= LEAST_FLOOR:
        return end
    stop = leaf + 1
    while stop < end and floor + floors[stop + 1] - floors[leaf] >= LEAST_FLOOR:
        stop += 1
    return stop


@jit()
def upward(
    plan: PlanArrays,
    mode: int,
    first_row: int,
    slot: NDArray[np.int32],
    scratch: int,
    inputs: NDArray[np.float64],
    low_high: NDArray[np.float64],
    values: NDArray[np.float64],
    counts: NDArray[np.float64],
    has: NDArray[np.bool_],
) -> None:
    """Evaluate every node of one block; node i's lanes are row `slot[i]`, and row `scratch` is free."""
    # Fields are taken out once, and helpers get arrays and row numbers: a bundle or a view costs counting.
    is_sum, child_ptr, children = plan.is_sum, plan.child_ptr, plan.children
    weights, weight_counts = plan.weights, plan.weight_counts
    leaf_ptr, binary_end, narrow_end, wide_end = plan.leaf_ptr, plan.binary_end, plan.narrow_end, plan.wide_end
    leaf_var, leaf_start, first, second = plan.leaf_var, plan.leaf_start, plan.first, plan.second
    mantissas, table_counts, log_tables = plan.mantissas, plan.table_counts, plan.log_tables
    decides, offsets, settles, functions = plan.decides, plan.offsets, plan.settles, plan.functions
    leaf_floors, node_floors = plan.leaf_floors, plan.floors
    for node in range(is_sum.shape[0]):
        at, begin, past = slot[node], child_ptr[node], child_ptr[node + 1]
        has[at] = False
        if is_sum[node]:
            use_max = mode == BOUND and decides[node] >= 0
            if is_scaled(begin, past, children, weight_counts, slot, has):
                add_scaled_children(
                    use_max, begin, past, children, weights, weight_counts, slot, at, values, counts, has
                )
            else:
                add_children(use_max, begin, past, children, weights, slot, at, values)
            if settles[node]:
                settle(at, values, counts, has)
            continue
        for b in range(values.shape[1]):
            values[at, b] = 1.0
        floor = 0.0
        leaf, end = leaf_ptr[node], binary_end[node]
        while leaf < end:
            stop = run_of(leaf, end, floor, leaf_floors)
            if mode == POINT:
                multiply_binary_points(leaf, stop, leaf_var, first, second, inputs, at, values)
            else:
                multiply_binary_boxes(
                    mode == BOUND, leaf, stop, leaf_var, offsets, first, second, inputs, at, values
                )
            floor += leaf_floors[stop] - leaf_floors[leaf]
            leaf = stop
            if leaf < end:
                settle(at, values, counts, has)
                floor = -256.0
        for leaf in range(end, leaf_ptr[node + 1]):
            variable, start, below = leaf_var[leaf], leaf_start[leaf], leaf_floors[leaf + 1] - leaf_floors[leaf]
            if floor + below < LEAST_FLOOR:
                settle(at, values, counts, has)
                floor = -256.0
            has[scratch] = False
            if leaf < narrow_end[node]:
                leaf_values(mode, variable, start, offsets, mantissas, inputs, scratch, values)
            elif leaf < wide_end[node]:
                wide_leaf(
                    mode, variable, start, offsets, mantissas, table_counts, inputs, scratch, values, counts, has
                )
            else:
                real_leaf(
                    mode,
                    first_row,
                    variable,
                    start,
                    functions,
                    log_tables,
                    inputs,
                    low_high,
                    scratch,
                    values,
                    counts,
                    has,
                )
            multiply_row(values, scratch, at, values)
            if has[scratch]:
                add_counts(counts, has, scratch, at, counts, has)
            floor += below
        for edge in range(begin, past):
            below, k = node_floors[children[edge]], slot[children[edge]]
            if floor + below < LEAST_FLOOR:
                settle(at, values, counts, has)
                floor = -256.0
            multiply_row(values, k, at, values)
            if has[k]:
                add_counts(counts, has, k, at, counts, has)
            floor += below
        if floor < -256.0:
            settle(at, values, counts, has)


@jit()
def evaluate(
    plan: PlanArrays,
    mode: int,
    points: NDArray[Any],
    mask: NDArray[np.bool_],
    low_high: NDArray[np.float64],
    slot: NDArray[np.int32],
    inputs: NDArray[np.float64],
    values: NDArray[np.float64],
    counts: NDArray[np.float64],
    has: NDArray[np.bool_],
    out: NDArray[np.float64],
) -> None:
    """Write the root's value and count for every row of `points` (mode 0), or of `mask` and `low_high`."""
    n_rows, width = out.shape[1], values.shape[1]
    root = slot[plan.is_sum.shape[0] - 1]
    for row in range(0, n_rows, width):
        lanes = load_block(mode, row, width, points, mask, inputs)
        upward(plan, mode, row, slot, values.shape[0] - 1, inputs, low_high, values, counts, has)
        for b in range(lanes):
            out[0, row + b] = values[root, b]
            out[1, row + b] = counts[root, b] if has[root] else 0.0
