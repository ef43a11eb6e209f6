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
from certimap.core.rounding import HIGH, HIGH2, HIGH3, LOW, LOW2, LOW3, UNIT_BITS
from certimap.kernels.jit import jit

LN_UNIT = UNIT_BITS * math.log(2.0)
NEVER = 2.0**900  # the count of a zero where the smallest is looked for
MOST = 2.0**890  # the largest count of a number read from its log: thousands of them add up to less than `NEVER`

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


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
    """Return the value, in (2^-256, 1], and the count of a number given by its natural log; zero for -inf."""
    if log_value == -math.inf:
        return 0.0, 0.0
    # Not `math.floor`, whose integers end at logs of -1e21, such as densities 1e11 standard deviations away.
    count = min(np.floor(-log_value / LN_UNIT), MOST)
    return math.exp(min(max(log_value + count * LN_UNIT, -LN_UNIT), 0.0)), count


@jit()
def add_counts(k: Scalar, at: Scalar, counts: Floats, has: Flags) -> None:
    """Add the counts of row `k`, if it has any, to those of row `at`, as their values were multiplied."""
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
    """Lower the counts of row `at` to those of row `k`, plus `weight_count`, where that is positive."""
    if has[k]:
        for b in range(values.shape[1]):
            counts[at, b] = min(counts[k, b] + weight_count if values[k, b] > 0.0 else NEVER, counts[at, b])
    else:
        for b in range(values.shape[1]):
            counts[at, b] = min(weight_count if values[k, b] > 0.0 else NEVER, counts[at, b])


@jit(fastmath={"contract"})
def credit(use_max: Scalar, weight: Scalar, source: Scalar, target: Scalar, values: Floats) -> None:
    """Add `weight` times row `source` to row `target`, or take the larger of the two; none has counts."""
    if use_max:
        for b in range(values.shape[1]):
            values[target, b] = max(values[target, b], weight * values[source, b])
    else:
        for b in range(values.shape[1]):
            values[target, b] += weight * values[source, b]


@jit()
def credit_mixed(
    use_max: Scalar,
    weight: Scalar,
    weight_count: Scalar,
    source: Scalar,
    target: Scalar,
    values: Floats,
    counts: Floats,
    has: Flags,
) -> None:
    """Do the same where a row, or the weight, has counts."""
    settle(source, values, counts, has)
    use_counts(source, counts, has)
    if not has[target]:
        settle(target, values, counts, has)
        use_counts(target, counts, has)
    credit_aligned(use_max, weight, weight_count, source, target, values, counts, has)


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
    """Do the same where both rows use counts; the target keeps them only where one is not 0.

    The source is settled, so that its weighted lanes are at least 2^-640; a target gets there once, and then keeps
    being the sum of an unshifted term and others.
    """
    found = 0
    for b in range(values.shape[1]):
        x, y = weight * values[source, b], values[target, b]
        x_count = counts[source, b] + weight_count if x > 0.0 else NEVER
        y_count = counts[target, b] if y > 0.0 else NEVER
        lowest = min(x_count, y_count)
        x *= shift_of(x_count - lowest)
        y *= shift_of(y_count - lowest)
        values[target, b] = max(x, y) if use_max else x + y
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
