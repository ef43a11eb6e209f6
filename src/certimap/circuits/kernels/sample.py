"""Kernels for draws from a plan: a walk from the root to one leaf per variable."""

from __future__ import annotations

import math

import numpy as np

from certimap.circuits.kernels.arrays import PlanArrays, Scalar
from certimap.circuits.kernels.real import draw_in
from certimap.circuits.kernels.scaled import shift_of
from certimap.core.arrays import Flags, Floats, Ints, Ints16, Ints32, Words
from certimap.kernels.jit import jit
from certimap.kernels.random import seed_row, uniform


@jit()
def cumulate(child_ptr: Ints, weights: Floats, out: Floats) -> None:
    """Write running totals of each node's weights, scaled so that the last one is 1."""
    for node in range(child_ptr.shape[0] - 1):
        total = 0.0
        for edge in range(child_ptr[node], child_ptr[node + 1]):
            total += weights[edge]
            out[edge] = total
        for edge in range(child_ptr[node], child_ptr[node + 1]):
            out[edge] /= total


@jit()
def pick_edge(start: Scalar, stop: Scalar, cumulated: Floats, u: Scalar) -> Scalar:
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
def pick_state(start: Scalar, size: Scalar, tables: Floats, u: Scalar) -> Scalar:
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
    plan: PlanArrays, key: np.uint64, first_row: int, cumulated: Floats, stack: Ints32, stream: Words,
    states: Ints16, reals: Floats,
) -> None:  # fmt: skip
    """Draw one point into each row of `states` (and of `reals` in the columns of real variables)."""
    is_sum, child_ptr, children, leaf_ptr = plan.is_sum, plan.child_ptr, plan.children, plan.leaf_ptr
    binary_end, leaf_var, leaf_start = plan.binary_end, plan.leaf_var, plan.leaf_start
    first, tables, offsets, functions = plan.first, plan.probabilities, plan.offsets, plan.functions
    for row in range(states.shape[0]):
        seed_row(key, first_row + row, stream)
        stack[0] = is_sum.shape[0] - 1
        depth = 1
        while depth > 0:
            depth -= 1
            node = stack[depth]
            start, stop = child_ptr[node], child_ptr[node + 1]
            if is_sum[node]:
                node = children[pick_edge(start, stop, cumulated, uniform(stream))]
                start, stop = child_ptr[node], child_ptr[node + 1]
            for edge in range(start, stop):
                stack[depth] = children[edge]
                depth += 1
            middle = binary_end[node]
            for leaf in range(leaf_ptr[node], middle):
                states[row, leaf_var[leaf]] = 0 if uniform(stream) < first[leaf] else 1
            for leaf in range(middle, leaf_ptr[node + 1]):
                variable, at = leaf_var[leaf], leaf_start[leaf]
                size = offsets[variable + 1] - offsets[variable]
                if size > 0:
                    states[row, variable] = pick_state(at, size, tables, uniform(stream))
                else:
                    reals[row, variable] = draw_in(functions, tables, at, -math.inf, math.inf, stream)


@jit()
def _pick_state_in(
    box: Scalar, column: Scalar, at: Scalar, size: Scalar, log_tables: Floats, mask: Flags, u: Scalar
) -> Scalar:
    """Return a categorical leaf's state at `u` among a box's allowed states; never an impossible one.

    Probabilities are relative to the largest allowed one: all of them may be too small for float64.
    """
    top, total = -math.inf, 0.0
    for s in range(size):
        if mask[box, column + s]:
            top = max(top, log_tables[at + s])
    for s in range(size):
        if mask[box, column + s] and log_tables[at + s] > -math.inf:
            total += math.exp(log_tables[at + s] - top)
    u *= total
    total, last = 0.0, -1
    for s in range(size):
        if mask[box, column + s] and log_tables[at + s] > -math.inf:
            total += math.exp(log_tables[at + s] - top)
            last = s
            if u < total:
                break
    return last


@jit()
def _pick_child_in(
    u: Scalar, start: Scalar, stop: Scalar, children: Ints32, weights: Floats, weight_counts: Floats,
    node: Scalar, lane: Scalar, values: Floats, counts: Floats, has: Flags,
) -> Scalar:  # fmt: skip
    """Return a sum's child at `u`, in proportion to weight times mass in the box; never an impossible one."""
    base = counts[node, lane] if has[node] else 0.0
    total, pick = 0.0, children[start]
    for edge in range(start, stop):
        child = children[edge]
        term = weights[edge] * values[child, lane]
        if term > 0.0:
            count = counts[child, lane] if has[child] else 0.0
            total += term * shift_of(count + weight_counts[edge] - base)
            pick = child
            if u * values[node, lane] < total:
                break
    return pick


@jit()
def sample_in_boxes(
    plan: PlanArrays, key: np.uint64, mask: Flags, low_high: Floats, chosen: Ints, lanes: Ints, values: Floats,
    counts: Floats, has: Flags, stack: Ints32, stream: Words, states: Ints16, reals: Floats,
) -> None:  # fmt: skip
    """Draw row `chosen[k]` inside the box `lanes[k]` of `mask` and `low_high`.

    Lane `lanes[k]` of row i of `values`, `counts` and `has` is the mass of node i in that box.
    """
    is_sum, child_ptr, children, leaf_ptr = plan.is_sum, plan.child_ptr, plan.children, plan.leaf_ptr
    weights, weight_counts = plan.weights, plan.weight_counts
    leaf_var, leaf_start, offsets = plan.leaf_var, plan.leaf_start, plan.offsets
    log_tables, functions = plan.log_tables, plan.functions
    for k in range(chosen.shape[0]):
        row, lane = chosen[k], lanes[k]
        seed_row(key, row, stream)
        stack[0] = is_sum.shape[0] - 1
        depth = 1
        while depth > 0:
            depth -= 1
            node = stack[depth]
            if is_sum[node]:
                start, stop = child_ptr[node], child_ptr[node + 1]
                u = uniform(stream)
                node = _pick_child_in(
                    u, start, stop, children, weights, weight_counts, node, lane, values, counts, has
                )
            for edge in range(child_ptr[node], child_ptr[node + 1]):
                stack[depth] = children[edge]
                depth += 1
            for leaf in range(leaf_ptr[node], leaf_ptr[node + 1]):
                v, at = leaf_var[leaf], leaf_start[leaf]
                column, size = offsets[v], offsets[v + 1] - offsets[v]
                if size > 0:
                    u = uniform(stream)
                    states[row, v] = _pick_state_in(lane, column, at, size, log_tables, mask, u)
                else:
                    low, high = low_high[0, lane, v], low_high[1, lane, v]
                    reals[row, v] = draw_in(functions, log_tables, at, low, high, stream)
