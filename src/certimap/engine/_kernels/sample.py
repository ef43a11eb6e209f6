"""Kernels that draw from a plan: a walk from the root to one leaf for each variable."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

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
def pick_edge(start: int, stop: int, cumulated: NDArray[np.float64], u: float) -> int:
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
def pick_state(start: int, size: int, tables: NDArray[np.float64], u: float) -> int:
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
def sample(
    key: np.uint64,
    first_row: int,
    is_sum: NDArray[np.bool_],
    child_ptr: NDArray[np.int64],
    children: NDArray[np.int32],
    cumulated: NDArray[np.float64],
    leaf_ptr: NDArray[np.int64],
    binary_end: NDArray[np.int64],
    leaf_var: NDArray[np.int32],
    leaf_start: NDArray[np.int64],
    first: NDArray[np.float64],
    tables: NDArray[np.float64],
    n_states: NDArray[np.int64],
    stack: NDArray[np.int32],
    state: NDArray[np.uint64],
    states: NDArray[np.int16],
    reals: NDArray[np.float64],
) -> None:
    """Draw one point into each row of `states` (and of `reals` in the columns of real variables)."""
    for row in range(states.shape[0]):
        seed_row(key, first_row + row, state)
        stack[0] = is_sum.shape[0] - 1
        depth = 1
        while depth > 0:
            depth -= 1
            node = stack[depth]
            start, stop = child_ptr[node], child_ptr[node + 1]
            if is_sum[node]:
                node = children[pick_edge(start, stop, cumulated, uniform(state))]
                start, stop = child_ptr[node], child_ptr[node + 1]
            for edge in range(start, stop):
                stack[depth] = children[edge]
                depth += 1
            middle = binary_end[node]
            for leaf in range(leaf_ptr[node], middle):
                states[row, leaf_var[leaf]] = 0 if uniform(state) < first[leaf] else 1
            for leaf in range(middle, leaf_ptr[node + 1]):
                variable, at = leaf_var[leaf], leaf_start[leaf]
                size = n_states[variable]
                if size > 0:
                    states[row, variable] = pick_state(at, size, tables, uniform(state))
                else:
                    mean, sd = tables[at], tables[at + 1]
                    low, high = tables[at + 2], tables[at + 3]
                    draw = mean + sd * truncated_normal((low - mean) / sd, (high - mean) / sd, state)
                    reals[row, variable] = min(max(draw, low), high)


@jit()
def sample_in_boxes(
    key: np.uint64,
    in_logs: bool,
    rows: NDArray[np.int64],
    lanes: NDArray[np.int64],
    boxes: NDArray[np.int64],
    is_sum: NDArray[np.bool_],
    child_ptr: NDArray[np.int64],
    children: NDArray[np.int32],
    weights: NDArray[np.float64],
    leaf_ptr: NDArray[np.int64],
    leaf_var: NDArray[np.int32],
    leaf_start: NDArray[np.int64],
    tables: NDArray[np.float64],
    offsets: NDArray[np.int64],
    mask: NDArray[np.bool_],
    low_high: NDArray[np.float64],
    values: NDArray[np.float64],
    stack: NDArray[np.int32],
    state: NDArray[np.uint64],
    states: NDArray[np.int16],
    reals: NDArray[np.float64],
) -> None:
    """Draw row `rows[k]` inside the box `boxes[k]`, whose node masses are the lane `lanes[k]` of `values`.

    With `in_logs`, `values` and `weights` are natural logs. `low_high` is (2, n_boxes, n) or empty.
    """
    for k in range(rows.shape[0]):
        row, lane, box = rows[k], lanes[k], boxes[k]
        seed_row(key, row, state)
        stack[0] = is_sum.shape[0] - 1
        depth = 1
        while depth > 0:
            depth -= 1
            node = stack[depth]
            start, stop = child_ptr[node], child_ptr[node + 1]
            if is_sum[node]:
                u = uniform(state)
                if not in_logs:
                    u *= values[node, lane]
                total, pick = 0.0, start
                for edge in range(start, stop):
                    if in_logs:
                        term = math.exp(weights[edge] + values[children[edge], lane] - values[node, lane])
                    else:
                        term = weights[edge] * values[children[edge], lane]
                    if term > 0.0:
                        total += term
                        pick = edge
                        if u < total:
                            break
                node = children[pick]
                start, stop = child_ptr[node], child_ptr[node + 1]
            for edge in range(start, stop):
                stack[depth] = children[edge]
                depth += 1
            for leaf in range(leaf_ptr[node], leaf_ptr[node + 1]):
                variable, at = leaf_var[leaf], leaf_start[leaf]
                column, size = offsets[variable], offsets[variable + 1] - offsets[variable]
                if size == 0:
                    mean, sd = tables[at], tables[at + 1]
                    low = max(tables[at + 2], low_high[0, box, variable])
                    high = min(tables[at + 3], low_high[1, box, variable])
                    draw = mean + sd * truncated_normal((low - mean) / sd, (high - mean) / sd, state)
                    reals[row, variable] = min(max(draw, low), high)
                    continue
                total = 0.0
                for s in range(size):
                    if mask[box, column + s]:
                        total += tables[at + s]
                u = uniform(state) * total
                total, last = 0.0, -1
                for s in range(size):
                    if mask[box, column + s] and (last < 0 or tables[at + s] > 0.0):
                        total += tables[at + s]
                        last = s
                        if u < total:
                            break
                states[row, variable] = last
