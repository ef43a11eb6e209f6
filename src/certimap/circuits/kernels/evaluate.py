"""Kernels that evaluate a plan in the linear domain, many rows at once.

Rows are taken in blocks of `width` and laid out batch-inner: one array of `width` lanes for each input
(variable, or (variable, state)) and for each node, so that every inner loop is a run of multiplications
and additions over lanes. Lanes past the last row repeat row 0 and are not written out.

Modes: 0 evaluates points; 1 the mass of boxes; 2 the upper bound of boxes, where a leaf is the largest
probability that its box allows and a deciding sum takes the largest term.

In a product the leaves of binary variables come first; they end at `binary_end`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from certimap.circuits.kernels.arrays import PlanArrays, Scalar
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
    points: NDArray[np.int16],
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


@jit()
def upward(
    plan: PlanArrays,
    mode: int,
    slot: NDArray[np.int32],
    inputs: NDArray[np.float64],
    scratch: NDArray[np.float64],
    values: NDArray[np.float64],
) -> None:
    """Evaluate every node of one block; node i's lanes are `values[slot[i]]`. `scratch` is (1, width)."""
    # Fields are taken out once, and helpers get arrays and row numbers: a bundle or a view costs counting.
    is_sum, child_ptr, children, weights = plan.is_sum, plan.child_ptr, plan.children, plan.weights
    leaf_ptr, binary_end, leaf_var, leaf_start = plan.leaf_ptr, plan.binary_end, plan.leaf_var, plan.leaf_start
    first, second, tables, decides, offsets = plan.first, plan.second, plan.tables, plan.decides, plan.offsets
    width = scratch.shape[1]
    for node in range(is_sum.shape[0]):
        at, start, stop = slot[node], child_ptr[node], child_ptr[node + 1]
        if is_sum[node]:
            use_max = mode == 2 and decides[node] >= 0
            add_children(use_max, start, stop, children, weights, slot, at, values)
            continue
        for b in range(width):
            values[at, b] = 1.0
        leaf, end = leaf_ptr[node], binary_end[node]
        if end > leaf and mode == 0:
            multiply_binary_points(leaf, end, leaf_var, first, second, inputs, at, values)
        elif end > leaf:
            multiply_binary_boxes(mode == 2, leaf, end, leaf_var, offsets, first, second, inputs, at, values)
        for leaf in range(end, leaf_ptr[node + 1]):
            leaf_values(mode, leaf_var[leaf], leaf_start[leaf], offsets, tables, inputs, 0, scratch)
            multiply_row(scratch, 0, at, values)
        for edge in range(start, stop):
            multiply_row(values, slot[children[edge]], at, values)


@jit()
def evaluate(
    plan: PlanArrays,
    mode: int,
    points: NDArray[np.int16],
    mask: NDArray[np.bool_],
    slot: NDArray[np.int32],
    inputs: NDArray[np.float64],
    scratch: NDArray[np.float64],
    values: NDArray[np.float64],
    out: NDArray[np.float64],
) -> None:
    """Write the root's value for every row of `points` (mode 0) or of `mask`."""
    n_rows, width = out.shape[0], scratch.shape[1]
    root = slot[plan.is_sum.shape[0] - 1]
    for row in range(0, n_rows, width):
        lanes = load_block(mode, row, width, points, mask, inputs)
        upward(plan, mode, slot, inputs, scratch, values)
        for b in range(lanes):
            out[row + b] = values[root, b]
