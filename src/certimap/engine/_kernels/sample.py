"""Kernels that draw from a plan: a walk from the root to one leaf for each variable."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from certimap.engine._kernels.arrays import LogRows, PlanArrays, Scalar
from certimap.engine._kernels.jit import jit
from certimap.engine._kernels.random import seed_row, truncated_normal, uniform


@jit()
def cumulate(child_ptr: NDArray[np.int64], weights: NDArray[np.float64], out: NDArray[np.float64]) -> None:
    """Write running totals of each node's weights, scaled so that the last one is 1."""
    for node in range(child_ptr.shape[0] - 1):
        total = 0.0
        for edge in range(child_ptr[node], child_ptr[node + 1]):
            total += weights[edge]
            out[edge] = total
        for edge in range(child_ptr[node], child_ptr[node + 1]):
            out[edge] /= total


@jit()
def pick_edge(start: Scalar, stop: Scalar, cumulated: NDArray[np.float64], u: Scalar) -> Scalar:
    """Return the first edge whose running total exceeds `u`."""
    if stop - start <= 8:
        for edge in range(start, stop - 1):
            if u < cumulated[edge]:
                return edge
        return stop - 1
    low, high = start, stop - 1
    while low < high:
        middle = (low + high) >> 1
        if u < cumulated[middle]:
            high = middle
        else:
            low = middle + 1
    return low


@jit()
def pick_state(start: Scalar, size: Scalar, tables: NDArray[np.float64], u: Scalar) -> Scalar:
    """Return the state of a categorical leaf at `u`; never one of zero probability."""
    last = 0
    total = 0.0
    for state in range(size):
        probability = tables[start + state]
        if probability > 0.0:
            total += probability
            last = state
            if u < total:
                break
    return last


@jit()
def _draw_leaf(
    plan: PlanArrays,
    leaf: int,
    row: int,
    stream: NDArray[np.uint64],
    states: NDArray[np.int16],
    reals: NDArray[np.float64],
) -> None:
    """Draw a leaf's variable anywhere."""
    variable, at, tables = plan.leaf_var[leaf], plan.leaf_start[leaf], plan.tables
    size = plan.offsets[variable + 1] - plan.offsets[variable]
    if size > 0:
        states[row, variable] = pick_state(at, size, tables, uniform(stream))
        return
    mean, sd, low, high = tables[at], tables[at + 1], tables[at + 2], tables[at + 3]
    draw = mean + sd * truncated_normal((low - mean) / sd, (high - mean) / sd, stream)
    reals[row, variable] = min(max(draw, low), high)


@jit()
def sample(
    plan: PlanArrays,
    key: np.uint64,
    first_row: int,
    cumulated: NDArray[np.float64],
    stack: NDArray[np.int32],
    stream: NDArray[np.uint64],
    states: NDArray[np.int16],
    reals: NDArray[np.float64],
) -> None:
    """Draw one point into each row of `states` (and of `reals` in the columns of real variables)."""
    for row in range(states.shape[0]):
        seed_row(key, first_row + row, stream)
        stack[0] = plan.is_sum.shape[0] - 1
        depth = 1
        while depth > 0:
            depth -= 1
            node = stack[depth]
            start, stop = plan.child_ptr[node], plan.child_ptr[node + 1]
            if plan.is_sum[node]:
                node = plan.children[pick_edge(start, stop, cumulated, uniform(stream))]
                start, stop = plan.child_ptr[node], plan.child_ptr[node + 1]
            for edge in range(start, stop):
                stack[depth] = plan.children[edge]
                depth += 1
            middle = plan.binary_end[node]
            for leaf in range(plan.leaf_ptr[node], middle):
                states[row, plan.leaf_var[leaf]] = 0 if uniform(stream) < plan.first[leaf] else 1
            for leaf in range(middle, plan.leaf_ptr[node + 1]):
                _draw_leaf(plan, leaf, row, stream, states, reals)


@jit()
def _draw_leaf_in(
    plan: PlanArrays,
    rows: LogRows,
    leaf: int,
    box: int,
    row: int,
    stream: NDArray[np.uint64],
    states: NDArray[np.int16],
    reals: NDArray[np.float64],
) -> None:
    """Draw a leaf's variable inside a box."""
    variable, at, tables = plan.leaf_var[leaf], plan.leaf_start[leaf], plan.tables
    column, size = plan.offsets[variable], plan.offsets[variable + 1] - plan.offsets[variable]
    if size == 0:
        mean, sd = tables[at], tables[at + 1]
        low, high = max(tables[at + 2], rows.low_high[0, box, variable]), tables[at + 3]
        high = min(high, rows.low_high[1, box, variable])
        draw = mean + sd * truncated_normal((low - mean) / sd, (high - mean) / sd, stream)
        reals[row, variable] = min(max(draw, low), high)
        return
    total = 0.0
    for s in range(size):
        if rows.mask[box, column + s]:
            total += tables[at + s]
    u = uniform(stream) * total
    total, last = 0.0, -1
    for s in range(size):
        if rows.mask[box, column + s] and (last < 0 or tables[at + s] > 0.0):
            total += tables[at + s]
            last = s
            if u < total:
                break
    states[row, variable] = last


@jit()
def _pick_child_in(
    plan: PlanArrays, in_logs: bool, node: int, lane: int, u: Scalar, values: NDArray[np.float64]
) -> Scalar:
    """Return a sum's child at `u`, in proportion to weight times mass in the box."""
    scale = 1.0 if in_logs else values[node, lane]
    total, pick = 0.0, -1
    for edge in range(plan.child_ptr[node], plan.child_ptr[node + 1]):
        child = plan.children[edge]
        if in_logs:
            term = math.exp(plan.log_weights[edge] + values[child, lane] - values[node, lane])
        else:
            term = plan.weights[edge] * values[child, lane]
        if term > 0.0:
            total += term
            pick = child
            if u * scale < total:
                break
    return pick


@jit()
def sample_in_boxes(
    plan: PlanArrays,
    rows: LogRows,
    key: np.uint64,
    in_logs: bool,
    chosen: NDArray[np.int64],
    lanes: NDArray[np.int64],
    values: NDArray[np.float64],
    stack: NDArray[np.int32],
    stream: NDArray[np.uint64],
    states: NDArray[np.int16],
    reals: NDArray[np.float64],
) -> None:
    """Draw row `chosen[k]` inside the box `lanes[k]` of `rows`.

    `values[:, lanes[k]]` are the masses that the nodes have in that box, in logs with `in_logs`.
    """
    for k in range(chosen.shape[0]):
        row, lane = chosen[k], lanes[k]
        seed_row(key, row, stream)
        stack[0] = plan.is_sum.shape[0] - 1
        depth = 1
        while depth > 0:
            depth -= 1
            node = stack[depth]
            if plan.is_sum[node]:
                node = _pick_child_in(plan, in_logs, node, lane, uniform(stream), values)
            for edge in range(plan.child_ptr[node], plan.child_ptr[node + 1]):
                stack[depth] = plan.children[edge]
                depth += 1
            for leaf in range(plan.leaf_ptr[node], plan.leaf_ptr[node + 1]):
                _draw_leaf_in(plan, rows, leaf, lane, row, stream, states, reals)
