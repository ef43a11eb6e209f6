"""Rows of numbers with exponents: nothing underflows, whatever the depth, and ordinary rows pay nothing.

A number is `value * 2^(-256 count)`. A block holds `values` (rows, lanes), `counts` (rows, lanes) and `has`
(rows,), which says whether a row's counts are in use; they are 0 where it is False. Counts appear when `settle`
finds a value below 2^-256, so that shallow blocks never touch them. Factors of 2^256 are exact: a number is
rounded alike with counts and without.

A zero may carry any count; it says that its lane is impossible. When rows are added, each lane is aligned to the
smallest count among its positive terms. Terms three and more counts smaller are left out: see `rounding.py`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from certimap.circuits.kernels.arrays import Scalar
from certimap.kernels.jit import jit

UNIT_BITS = 256
LN_UNIT = UNIT_BITS * math.log(2.0)
LOW, HIGH = 2.0**-256, 2.0**256
LOW2, LOW3, HIGH2, HIGH3 = 2.0**-512, 2.0**-768, 2.0**512, 2.0**768
NEVER = 2.0**900  # the count of a zero where the smallest is looked for
LEAST_FLOOR = -1020.0  # log2 of the smallest product that is taken without settling first

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@jit()
def settle(at: Scalar, values: Floats, counts: Floats, has: Flags) -> None:
    """Bring the positive lanes of a row into [2^-256, 2^256]."""
    row = values[at]
    n = 0
    for b in range(row.shape[0]):
        n += ((row[b] < LOW) & (row[b] > 0.0)) | (row[b] > HIGH)
    if n == 0:
        return
    count = counts[at]
    if not has[at]:
        has[at] = True
        for b in range(row.shape[0]):
            count[b] = 0.0
    for b in range(row.shape[0]):
        x, factor, shift = row[b], 1.0, 0.0
        if x < LOW:
            factor, shift = HIGH, 1.0
        if x < LOW2:
            factor, shift = HIGH2, 2.0
        if x < LOW3:
            factor, shift = HIGH3, 3.0
        if x > HIGH:
            factor, shift = LOW, -1.0
        if x > HIGH2:
            factor, shift = LOW2, -2.0
        row[b] = x * factor
        count[b] += shift


@jit(inline="always")
def from_log(log_value: Scalar) -> tuple[Scalar, Scalar]:
    """Return the value, in (2^-256, 1], and the count of a number given by its natural log; zero for -inf."""
    if log_value == -math.inf:
        return 0.0, 0.0
    count = math.floor(-log_value / LN_UNIT)
    return math.exp(min(max(log_value + count * LN_UNIT, -LN_UNIT), 0.0)), count


@jit()
def add_counts(counts_of: Floats, has_of: Flags, k: Scalar, at: Scalar, counts: Floats, has: Flags) -> None:
    """Add the counts of row `k` of a block to those of row `at`, as their values were multiplied."""
    if not has_of[k]:
        return
    source, target = counts_of[k], counts[at]
    if has[at]:
        for b in range(source.shape[0]):
            target[b] += source[b]
    else:
        has[at] = True
        for b in range(source.shape[0]):
            target[b] = source[b]


@jit(inline="always")
def shift_of(d: Scalar) -> Scalar:
    """Return 2^(-256 d) for a whole number d; 1 below 0, and 0 from 3 on."""
    shift = 1.0
    if d > 0.5:
        shift = LOW
    if d > 1.5:
        shift = LOW2
    if d > 2.5:
        shift = 0.0
    return shift


@jit()
def lower_counts(weight_count: Scalar, values: Floats, counts: Floats, has: Flags, k: Scalar, out: Floats) -> None:
    """Lower `out` to the counts of row `k`, plus `weight_count`, where it is positive."""
    row, count = values[k], counts[k]
    if has[k]:
        for b in range(row.shape[0]):
            x = count[b] + weight_count if row[b] > 0.0 else NEVER
            out[b] = x if x < out[b] else out[b]
    else:
        for b in range(row.shape[0]):
            x = weight_count if row[b] > 0.0 else NEVER
            out[b] = x if x < out[b] else out[b]


@jit(fastmath={"contract"})
def credit(
    use_max: Scalar,
    weight: Scalar,
    weight_count: Scalar,
    source: Scalar,
    target: Scalar,
    values: Floats,
    counts: Floats,
    has: Flags,
) -> None:
    """Add `weight` times row `source` to row `target`, or take the larger of the two in each lane."""
    if has[source] or has[target] or weight_count > 0.0:
        credit_aligned(use_max, weight, weight_count, source, target, values, counts, has)
        return
    mine, theirs = values[source], values[target]
    if use_max:
        for b in range(mine.shape[0]):
            theirs[b] = max(theirs[b], weight * mine[b])
    else:
        for b in range(mine.shape[0]):
            theirs[b] += weight * mine[b]


@jit(fastmath={"contract"})
def credit_aligned(
    use_max: Scalar,
    weight: Scalar,
    weight_count: Scalar,
    source: Scalar,
    target: Scalar,
    values: Floats,
    counts: Floats,
    has: Flags,
) -> None:
    """Do the same where counts differ.

    The source is settled, so that its weighted lanes are at least 2^-640; a target gets there once, and then keeps
    being the sum of an unshifted term and others.
    """
    settle(source, values, counts, has)
    if not has[target]:
        settle(target, values, counts, has)
    use_counts(source, counts, has)
    use_counts(target, counts, has)
    mine, theirs, my_count, their_count = values[source], values[target], counts[source], counts[target]
    for b in range(mine.shape[0]):
        x, y = weight * mine[b], theirs[b]
        x_count = my_count[b] + weight_count if x > 0.0 else NEVER
        y_count = their_count[b] if y > 0.0 else NEVER
        lowest = x_count if x_count < y_count else y_count
        x *= shift_of(x_count - lowest)
        y *= shift_of(y_count - lowest)
        theirs[b] = (x if x > y else y) if use_max else x + y
        their_count[b] = lowest if lowest < NEVER else 0.0


@jit()
def use_counts(at: Scalar, counts: Floats, has: Flags) -> None:
    """Let a row have counts, all of them 0 if it had none."""
    if has[at]:
        return
    has[at] = True
    row = counts[at]
    for b in range(row.shape[0]):
        row[b] = 0.0
