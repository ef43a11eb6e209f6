"""The same evaluations in natural logs: for rows too improbable for the linear domain, and for densities.

Modes and layout are those of `evaluate.py`; -inf stands for zero and never meets another infinity.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from certimap.circuits.kernels.arrays import LogRows, PlanArrays, Scalar
from certimap.kernels.jit import jit

_NEG_INF = -math.inf
NARROW_WIDTH = 1e-3  # what the expansion leaves out is of relative size 1e-3^4 / 1920
_HALF_LOG_2PI = 0.9189385332046727


@jit()
def log_normal_cdf(x: Scalar) -> Scalar:
    """Return ln Phi(x), accurate to rounding for any x."""
    if x > 0.0:
        return math.log1p(-0.5 * math.erfc(x * 0.7071067811865476))
    if x > -30.0:
        return math.log(0.5 * math.erfc(-x * 0.7071067811865476))
    if x == _NEG_INF:
        return _NEG_INF
    y = 1.0 / (x * x)  # asymptotic series of Mills' ratio
    series = -y * (1.0 - y * (3.0 - y * (15.0 - y * (105.0 - y * (945.0 - y * 10395.0)))))
    return -0.5 * x * x - math.log(-x) - _HALF_LOG_2PI + math.log1p(series)


@jit()
def log_normal_mass(low: Scalar, high: Scalar) -> Scalar:
    """Return ln of the mass of [low, high] under the standard normal distribution."""
    if not low < high:
        return _NEG_INF
    if low > 0.0:
        low, high = -high, -low
    width, middle = high - low, 0.5 * (low + high)
    if width * max(1.0, -low) < NARROW_WIDTH:  # the two ends cancel; the density hardly changes between them
        curvature = (middle * middle - 1.0) * width * width / 24.0
        return -0.5 * middle * middle - _HALF_LOG_2PI + math.log(width) + math.log1p(curvature)
    top = log_normal_cdf(high)
    return top + math.log1p(-math.exp(log_normal_cdf(low) - top))


@jit()
def _log_gaussian(
    mode: int,
    row: Scalar,
    variable: Scalar,
    start: Scalar,
    log_tables: NDArray[np.float64],
    points: NDArray[np.float64],
    low_high: NDArray[np.float64],
) -> Scalar:
    """Return a Gaussian leaf's log density at a point, log mass in a box, or largest log density in a box."""
    mean, sd = log_tables[start], log_tables[start + 1]
    low, high, log_norm = log_tables[start + 2], log_tables[start + 3], log_tables[start + 4]
    if mode == 0:
        x = points[row, variable]
    else:
        low = max(low, low_high[0, row, variable])
        high = min(high, low_high[1, row, variable])
        if mode == 1:
            return log_normal_mass((low - mean) / sd, (high - mean) / sd) - log_norm
        x = min(max(mean, low), high)
    if not low <= x <= high:
        return _NEG_INF
    scaled = (x - mean) / sd
    return -0.5 * scaled * scaled - math.log(sd) - _HALF_LOG_2PI - log_norm


@jit()
def add_log_leaf(
    mode: int,
    first_row: Scalar,
    lanes: int,
    variable: Scalar,
    start: Scalar,
    offsets: NDArray[np.int64],
    log_tables: NDArray[np.float64],
    points: NDArray[np.float64],
    mask: NDArray[np.bool_],
    low_high: NDArray[np.float64],
    at: Scalar,
    values: NDArray[np.float64],
) -> None:
    """Add one leaf's log value to the lanes of `values[at]`."""
    column, size = offsets[variable], offsets[variable + 1] - offsets[variable]
    for b in range(lanes):
        row = first_row + b
        if size == 0:
            values[at, b] += _log_gaussian(mode, row, variable, start, log_tables, points, low_high)
        elif mode == 0:
            values[at, b] += log_tables[start + np.int64(points[row, variable])]
        else:
            largest = _NEG_INF
            n_allowed = 0
            for state in range(size):
                if mask[row, column + state]:
                    largest = max(largest, log_tables[start + state])
                    n_allowed += 1
            if mode == 2 or largest == _NEG_INF or n_allowed == 1:
                values[at, b] += largest
            elif n_allowed < size:  # all states together have mass one
                total = 0.0
                for state in range(size):
                    if mask[row, column + state]:
                        total += math.exp(log_tables[start + state] - largest)
                values[at, b] += largest + math.log(total)


@jit()
def log_upward(
    plan: PlanArrays,
    rows: LogRows,
    mode: int,
    first_row: int,
    lanes: int,
    slot: NDArray[np.int32],
    scratch: NDArray[np.float64],
    values: NDArray[np.float64],
) -> None:
    """Evaluate every node on rows `first_row`, ...; node i's lanes are `values[slot[i]]`."""
    is_sum, child_ptr, children, log_weights = plan.is_sum, plan.child_ptr, plan.children, plan.log_weights
    leaf_ptr, leaf_var, leaf_start = plan.leaf_ptr, plan.leaf_var, plan.leaf_start
    log_tables, offsets, decides = plan.log_tables, plan.offsets, plan.decides
    points, mask, low_high = rows.points, rows.mask, rows.low_high
    for node in range(is_sum.shape[0]):
        out = values[slot[node]]
        start, stop = child_ptr[node], child_ptr[node + 1]
        if not is_sum[node]:
            for b in range(lanes):
                out[b] = 0.0
            for leaf in range(leaf_ptr[node], leaf_ptr[node + 1]):
                variable, at = leaf_var[leaf], leaf_start[leaf]
                add_log_leaf(
                    mode,
                    first_row,
                    lanes,
                    variable,
                    at,
                    offsets,
                    log_tables,
                    points,
                    mask,
                    low_high,
                    slot[node],
                    values,
                )
            for edge in range(start, stop):
                child = values[slot[children[edge]]]
                for b in range(lanes):
                    out[b] += child[b]
            continue
        for b in range(lanes):
            out[b] = _NEG_INF
        for edge in range(start, stop):
            child = values[slot[children[edge]]]
            for b in range(lanes):
                out[b] = max(out[b], log_weights[edge] + child[b])
        if mode == 2 and decides[node] >= 0:
            continue
        for b in range(lanes):
            scratch[b] = 0.0
        for edge in range(start, stop):
            child = values[slot[children[edge]]]
            for b in range(lanes):
                if out[b] > _NEG_INF:
                    scratch[b] += math.exp(log_weights[edge] + child[b] - out[b])
        for b in range(lanes):
            if out[b] > _NEG_INF:
                out[b] += math.log(scratch[b])


@jit()
def log_evaluate(
    plan: PlanArrays,
    rows: LogRows,
    mode: int,
    slot: NDArray[np.int32],
    scratch: NDArray[np.float64],
    values: NDArray[np.float64],
    out: NDArray[np.float64],
) -> None:
    """Write the root's log value for every row."""
    width = scratch.shape[0]
    root = values[slot[plan.is_sum.shape[0] - 1]]
    for row in range(0, out.shape[0], width):
        lanes = min(width, out.shape[0] - row)
        log_upward(plan, rows, mode, row, lanes, slot, scratch, values)
        for b in range(lanes):
            out[row + b] = root[b]


@jit()
def _log_add(x: Scalar, y: Scalar) -> Scalar:
    if x < y:
        x, y = y, x
    if y == _NEG_INF:
        return x
    return x + math.log1p(math.exp(y - x))


@jit()
def log_downward(
    plan: PlanArrays,
    rows: LogRows,
    mode: int,
    row: int,
    is_top: NDArray[np.bool_],
    values: NDArray[np.float64],
    context: NDArray[np.float64],
    members: NDArray[np.float64],
    prefix: NDArray[np.float64],
    out: NDArray[np.float64],
) -> None:
    """Fill `out` (total_states,) for one row from the node values `values[:, 0]`; see `each.downward`."""
    is_sum, child_ptr, children, log_weights = plan.is_sum, plan.child_ptr, plan.children, plan.log_weights
    leaf_ptr, leaf_var, leaf_start = plan.leaf_ptr, plan.leaf_var, plan.leaf_start
    log_tables, offsets = plan.log_tables, plan.offsets
    points, mask, low_high = rows.points, rows.mask, rows.low_high
    n_nodes = is_sum.shape[0]
    context[:] = _NEG_INF
    context[n_nodes - 1] = 0.0
    out[:] = _NEG_INF
    for node in range(n_nodes - 1, -1, -1):
        mine = context[node]
        if mine == _NEG_INF:
            continue
        start, stop = child_ptr[node], child_ptr[node + 1]
        if is_sum[node]:
            for edge in range(start, stop):
                child, term = children[edge], log_weights[edge] + mine
                context[child] = max(context[child], term) if is_top[child] else _log_add(context[child], term)
            continue
        n_leaves = leaf_ptr[node + 1] - leaf_ptr[node]
        n_members = n_leaves + stop - start
        prefix[0] = mine
        for k in range(n_members):
            if k < n_leaves:
                leaf = leaf_ptr[node] + k
                variable, at = leaf_var[leaf], leaf_start[leaf]
                members[k, 0] = 0.0
                add_log_leaf(mode, row, 1, variable, at, offsets, log_tables, points, mask, low_high, k, members)
            else:
                members[k, 0] = values[children[start + k - n_leaves], 0]
            prefix[k + 1] = prefix[k] + members[k, 0]
        suffix = 0.0
        for k in range(n_members - 1, -1, -1):
            outside = prefix[k] + suffix
            suffix += members[k, 0]
            if outside == _NEG_INF:
                continue
            if k >= n_leaves:
                child = children[start + k - n_leaves]
                if is_top[child]:
                    context[child] = max(context[child], outside)
                else:
                    context[child] = _log_add(context[child], outside)
                continue
            leaf = leaf_ptr[node] + k
            column = offsets[leaf_var[leaf]]
            for state in range(offsets[leaf_var[leaf] + 1] - column):
                term = outside + log_tables[leaf_start[leaf] + state]
                if is_top[node]:
                    out[column + state] = max(out[column + state], term)
                else:
                    out[column + state] = _log_add(out[column + state], term)
