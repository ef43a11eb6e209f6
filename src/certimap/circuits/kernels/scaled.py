"""Rows of numbers with exponents, and their products with leaves: no underflow, and no cost for ordinary rows.

A number is `value * 2^(-256 count)`. A block holds `values` (rows, lanes), `counts` (rows, lanes) and `has`
(rows,), which marks rows whose counts are in use; other counts are 0. Counts appear when `settle` finds a value
below 2^-256, so that shallow blocks never touch them. Factors of 2^256 are exact: numbers round alike with and
without counts.

A zero may carry any count; it marks an impossible lane. When rows are added, each lane is aligned to the smallest
count among its positive terms. Terms smaller by three or more counts are dropped: see `rounding.py`.
"""

from __future__ import annotations

import math

import numpy as np

from certimap.circuits.kernels.arrays import Scalar
from certimap.circuits.kernels.real import log_density, log_mass
from certimap.core.arrays import Array, Flags, Floats, Ints, Ints32
from certimap.core.rounding import HIGH, HIGH2, HIGH3, LOW, LOW2, LOW3, UNIT_BITS
from certimap.kernels.jit import jit

LN_UNIT = UNIT_BITS * math.log(2.0)
NEVER = 2.0**900  # the count of a zero in a search for the smallest count
MOST = 2.0**890  # the largest count from a log: thousands of these add up to less than `NEVER`


@jit()
def settle(at: Scalar, values: Floats, counts: Floats, has: Flags) -> None:
    """Bring the positive lanes of a row into [2^-256, 2^256]."""
    width = values.shape[1]
    found = 0
    for b in range(width):
        x = values[at, b]
        found |= np.int64((x < LOW) & (x > 0.0)) | np.int64(x > HIGH)
    if found == 0:
        return
    if not has[at]:
        has[at] = True
        for b in range(width):
            counts[at, b] = 0.0
    for b in range(width):
        x = values[at, b]
        shift = 1.0 if x < LOW else 0.0
        shift = 2.0 if x < LOW2 else shift
        shift = 3.0 if x < LOW3 else shift
        shift = -1.0 if x > HIGH else shift
        counts[at, b] += -2.0 if x > HIGH2 else shift
    for b in range(width):
        x = values[at, b]
        factor = HIGH if x < LOW else 1.0
        factor = HIGH2 if x < LOW2 else factor
        factor = HIGH3 if x < LOW3 else factor
        factor = LOW if x > HIGH else factor
        values[at, b] = x * (LOW2 if x > HIGH2 else factor)


@jit(inline="always")
def from_log(log_value: Scalar) -> tuple[Scalar, Scalar]:
    """Return the value, in (2^-256, 1], and the count of a number from its natural log; zero for -inf."""
    if log_value == -math.inf:
        return 0.0, 0.0
    # Not `math.floor`, whose integers end at logs of -1e21, such as densities 1e11 standard deviations away.
    count = min(np.floor(-log_value / LN_UNIT), MOST)
    return math.exp(min(max(log_value + count * LN_UNIT, -LN_UNIT), 0.0)), count


@jit()
def add_counts(k: Scalar, at: Scalar, counts: Floats, has: Flags) -> None:
    """Add the counts of row `k`, if any, to the counts of row `at`, after multiplication of their values."""
    if not has[k]:
        return
    if has[at]:
        for b in range(counts.shape[1]):
            counts[at, b] += counts[k, b]
    else:
        has[at] = True
        for b in range(counts.shape[1]):
            counts[at, b] = counts[k, b]


@jit(inline="always")
def shift_of(d: Scalar) -> Scalar:
    """Return 2^(-256 d) for a whole number d; 1 below 0, and 0 from 3 on."""
    shift = LOW if d > 0.5 else 1.0  # selects, so that loops over lanes become vector instructions
    shift = LOW2 if d > 1.5 else shift
    return 0.0 if d > 2.5 else shift


@jit()
def lower_counts(weight_count: Scalar, k: Scalar, at: Scalar, values: Floats, counts: Floats, has: Flags) -> None:
    """Lower the counts of row `at` to those of row `k` plus `weight_count`, in the positive lanes of row `k`."""
    if has[k]:
        for b in range(values.shape[1]):
            counts[at, b] = min(counts[k, b] + weight_count if values[k, b] > 0.0 else NEVER, counts[at, b])
    else:
        for b in range(values.shape[1]):
            counts[at, b] = min(weight_count if values[k, b] > 0.0 else NEVER, counts[at, b])


@jit()
def credit(weight: Scalar, source: Scalar, target: Scalar, values: Floats) -> None:
    """Add `weight` times row `source` to row `target`; both without counts."""
    for b in range(values.shape[1]):
        values[target, b] += weight * values[source, b]


@jit()
def credit_mixed(
    weight: Scalar, weight_count: Scalar, source: Scalar, target: Scalar, values: Floats, counts: Floats,
    has: Flags,
) -> None:  # fmt: skip
    """Like `credit`, for rows or a weight with counts."""
    settle(source, values, counts, has)
    use_counts(source, counts, has)
    if not has[target]:
        settle(target, values, counts, has)
        use_counts(target, counts, has)
    credit_aligned(weight, weight_count, source, target, values, counts, has)


@jit()
def credit_aligned(
    weight: Scalar, weight_count: Scalar, source: Scalar, target: Scalar, values: Floats, counts: Floats,
    has: Flags,
) -> None:  # fmt: skip
    """Like `credit`, for two rows with counts; the target keeps counts only if one is not 0.

    The source is settled, so its weighted lanes are at least 2^-640. From its first credit on, a target is the sum
    of an unshifted term and others.
    """
    found = 0
    for b in range(values.shape[1]):
        x, y = weight * values[source, b], values[target, b]
        x_count = counts[source, b] + weight_count if x > 0.0 else NEVER
        y_count = counts[target, b] if y > 0.0 else NEVER
        lowest = min(x_count, y_count)
        x *= shift_of(x_count - lowest)
        y *= shift_of(y_count - lowest)
        values[target, b] = x + y
        lowest = lowest if lowest < NEVER else 0.0
        counts[target, b] = lowest
        found |= np.int64(lowest > 0.0) | np.int64(lowest < 0.0)
    has[target] = found != 0


@jit()
def use_counts(at: Scalar, counts: Floats, has: Flags) -> None:
    """Let a row have counts, all of them 0 if it had none."""
    if has[at]:
        return
    has[at] = True
    for b in range(counts.shape[1]):
        counts[at, b] = 0.0


@jit()
def add_children(
    start: Scalar, stop: Scalar, children: Ints32, weights: Floats, slot: Ints32, at: Scalar, values: Floats
) -> None:
    """Write the weighted sum of a sum's children."""
    out = values[at]
    width = out.shape[0]
    child, weight = values[slot[children[start]]], weights[start]
    for b in range(width):
        out[b] = weight * child[b]
    for edge in range(start + 1, stop):
        child, weight = values[slot[children[edge]]], weights[edge]
        for b in range(width):
            out[b] += weight * child[b]


@jit()
def add_aligned(
    weight: Scalar, weight_count: Scalar, k: Scalar, at: Scalar, values: Floats, counts: Floats, has: Flags
) -> None:
    """Add a weighted row, aligned to the counts of row `at`, to row `at`."""
    if not has[k]:
        for b in range(values.shape[1]):
            counts[k, b] = 0.0
    for b in range(values.shape[1]):
        term = values[k, b] * shift_of(counts[k, b] + weight_count - counts[at, b])
        values[at, b] += weight * term


@jit()
def add_scaled_children(
    start: Scalar, stop: Scalar, children: Ints32, weights: Floats, weight_counts: Floats, slot: Ints32,
    at: Scalar, values: Floats, counts: Floats, has: Flags,
) -> None:  # fmt: skip
    """Like `add_children`, for children or weights with counts."""
    has[at] = True
    for b in range(values.shape[1]):
        values[at, b], counts[at, b] = 0.0, NEVER
    for edge in range(start, stop):
        lower_counts(weight_counts[edge], slot[children[edge]], at, values, counts, has)
    for edge in range(start, stop):
        add_aligned(weights[edge], weight_counts[edge], slot[children[edge]], at, values, counts, has)
    for b in range(values.shape[1]):
        counts[at, b] = 0.0 if counts[at, b] == NEVER else counts[at, b]


@jit()
def is_scaled(
    start: Scalar, stop: Scalar, children: Ints32, weight_counts: Floats, slot: Ints32, has: Flags
) -> Scalar:
    """Whether a term of a sum has counts."""
    scaled = False
    for edge in range(start, stop):
        scaled |= has[slot[children[edge]]] or weight_counts[edge] > 0.0
    return scaled


POINT, MASS = 0, 1


@jit()
def multiply_binary_points(
    start: Scalar, stop: Scalar, leaf_var: Ints32, first: Floats, second: Floats, inputs: Array, at: Scalar,
    values: Floats,
) -> None:  # fmt: skip
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
    start: Scalar, stop: Scalar, leaf_var: Ints32, offsets: Ints, first: Floats, second: Floats, inputs: Array,
    at: Scalar, values: Floats,
) -> None:  # fmt: skip
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
    mode: int, variable: Scalar, start: Scalar, offsets: Ints, tables: Floats, inputs: Array, k: Scalar,
    values: Floats,
) -> None:  # fmt: skip
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
    mode: int, variable: Scalar, start: Scalar, offsets: Ints, mantissas: Floats, table_counts: Floats,
    inputs: Array, k: Scalar, values: Floats, counts: Floats, has: Flags,
) -> None:  # fmt: skip
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
    mode: int, first_row: Scalar, variable: Scalar, start: Scalar, functions: Ints, tables: Floats, inputs: Array,
    low_high: Floats, k: Scalar, values: Floats, counts: Floats, has: Flags,
) -> None:  # fmt: skip
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
