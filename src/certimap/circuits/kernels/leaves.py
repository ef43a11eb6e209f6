"""Leaves of a product, over all lanes of a block: probabilities selected at points, masses added in boxes."""

from __future__ import annotations

import numpy as np

from certimap.circuits.kernels.arrays import Scalar
from certimap.circuits.kernels.real import log_density, log_mass
from certimap.circuits.kernels.scaled import NEVER, from_log, shift_of
from certimap.core.arrays import Array, Flags, Floats, Ints, Ints32
from certimap.core.rounding import HIGH, HIGH2, LOW, LOW2
from certimap.kernels.jit import jit

POINT, MASS = 0, 1


@jit()
def multiply_binary_points(
    start: Scalar,
    stop: Scalar,
    leaf_var: Ints32,
    first: Floats,
    second: Floats,
    inputs: Array,
    at: Scalar,
    values: Floats,
) -> None:
    """Multiply `values[at]` by leaves of binary variables at points, four at a time.

    The probability is selected, not interpolated: p0 + (p1 - p0) x would lose a small p1 beside a large p0.
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
            a0 = q0 if x0[b] > 0 else p0
            a1 = q1 if x1[b] > 0 else p1
            a2 = q2 if x2[b] > 0 else p2
            a3 = q3 if x3[b] > 0 else p3
            out[b] *= (a0 * a1) * (a2 * a3)
        leaf += 4
    while leaf < stop:
        x0, p0, q0 = inputs[leaf_var[leaf]], first[leaf], second[leaf]
        for b in range(width):
            out[b] *= q0 if x0[b] > 0 else p0
        leaf += 1


@jit()
def multiply_binary_boxes(
    start: Scalar,
    stop: Scalar,
    leaf_var: Ints32,
    offsets: Ints,
    first: Floats,
    second: Floats,
    inputs: Array,
    at: Scalar,
    values: Floats,
) -> None:
    """Multiply `values[at]` by leaves of binary variables on boxes."""
    out = values[at]
    width = out.shape[0]
    for leaf in range(start, stop):
        column = offsets[leaf_var[leaf]]
        m0, m1, p0, p1 = inputs[column], inputs[column + 1], first[leaf], second[leaf]
        for b in range(width):
            out[b] *= p0 * m0[b] + p1 * m1[b]


@jit()
def leaf_values(
    mode: int,
    variable: Scalar,
    start: Scalar,
    offsets: Ints,
    tables: Floats,
    inputs: Array,
    k: Scalar,
    values: Floats,
) -> None:
    """Write one leaf's value in each lane of `values[k]`; its vector starts at `tables[start]`."""
    out = values[k]
    width = out.shape[0]
    column, past = offsets[variable], offsets[variable + 1]
    if mode == POINT:
        states = inputs[variable]
        for b in range(width):
            out[b] = tables[start + np.int64(states[b])]
        return
    allowed, probability = inputs[column], tables[start]
    for b in range(width):
        out[b] = probability * allowed[b]
    for state in range(1, past - column):
        allowed, probability = inputs[column + state], tables[start + state]
        for b in range(width):
            out[b] += probability * allowed[b]


@jit()
def wide_leaf(
    mode: int,
    variable: Scalar,
    start: Scalar,
    offsets: Ints,
    mantissas: Floats,
    table_counts: Floats,
    inputs: Array,
    k: Scalar,
    values: Floats,
    counts: Floats,
    has: Flags,
) -> None:
    """Write a leaf's value in each lane of row `k`, for entries with their own counts."""
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
                total += mantissas[start + state] * shift_of(table_counts[start + state] - lowest)
        out[b], count[b] = total, lowest if total > 0.0 else 0.0


@jit()
def real_leaf(
    mode: int,
    first_row: Scalar,
    variable: Scalar,
    start: Scalar,
    functions: Ints,
    tables: Floats,
    inputs: Array,
    low_high: Floats,
    k: Scalar,
    values: Floats,
    counts: Floats,
    has: Flags,
) -> None:
    """Write a real leaf's density at a point, or its mass in a box, in each lane of row `k`."""
    out, count = values[k], counts[k]
    has[k] = True
    last = low_high.shape[1] - 1
    for b in range(out.shape[0]):
        if mode == POINT:
            result = log_density(functions, tables, start, inputs[variable, b])
        else:
            row = min(first_row + b, last)
            result = log_mass(functions, tables, start, low_high[0, row, variable], low_high[1, row, variable])
        out[b], count[b] = from_log(result)


@jit()
def multiply_row(k: Scalar, at: Scalar, values: Floats) -> None:
    """Multiply row `at` by row `k`."""
    for b in range(values.shape[1]):
        values[at, b] *= values[k, b]


@jit()
def multiply_wide_binary_points(
    start: Scalar,
    stop: Scalar,
    leaf_var: Ints32,
    leaf_start: Ints,
    mantissas: Floats,
    table_counts: Floats,
    inputs: Array,
    at: Scalar,
    values: Floats,
    counts: Floats,
) -> None:
    """Multiply the settled row `at`, which has counts, by wide leaves of binary variables; it stays settled.

    A settled lane is at least 2^-256 and a mantissa at least 2^-384, so two steps of a count suffice.
    """
    out, count = values[at], counts[at]
    width = out.shape[0]
    for leaf in range(start, stop):
        x, entry = inputs[leaf_var[leaf]], leaf_start[leaf]
        p, q, p_count, q_count = (
            mantissas[entry],
            mantissas[entry + 1],
            table_counts[entry],
            table_counts[entry + 1],
        )
        for b in range(width):
            product = out[b] * (q if x[b] > 0 else p)
            more = q_count if x[b] > 0 else p_count
            factor = HIGH if product < LOW else 1.0
            shift = 1.0 if product < LOW else 0.0
            factor = HIGH2 if product < LOW2 else factor
            shift = 2.0 if product < LOW2 else shift
            out[b] = product * factor
            count[b] += more + shift
