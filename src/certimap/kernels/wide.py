"""Numbers with their own exponents, for values beyond the range of doubles.

A wide number is m 2^e with 1/2 <= m < 1 and integer e, or m = 0: entries of a table may differ by any factor.
Products and sums of wide numbers round like doubles and never underflow: a sum drops less than 2^-1074 times its
largest term.

Plain doubles are faster, and suffice under two conditions checked in passes over tables: see `rounding.py`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from certimap.core.arrays import Floats, Ints
from certimap.kernels.jit import jit, jit_part

LN2 = math.log(2.0)
ZERO = -(1 << 40)  # the exponent of 0, smaller than any other exponent

_POWERS = 2.0 ** -np.arange(1075.0)


class WideArrays(NamedTuple):
    """Wide numbers, in two arrays of one shape."""

    mantissa: Floats
    exponent: Ints


@jit_part
def shifted(mantissa: Any, places: Any) -> Any:
    """Return mantissa 2^-places for places >= 0."""
    return mantissa * _POWERS[places] if places < 1075 else 0.0


@jit_part
def normal(mantissa: Any, exponent: Any) -> tuple[Any, Any]:
    """Bring a nonnegative mantissa into [1/2, 1)."""
    if mantissa == 0.0:
        return 0.0, ZERO
    found, places = math.frexp(mantissa)
    return found, exponent + places


@jit_part
def times(left: Any, left_exponent: Any, right: Any, right_exponent: Any) -> tuple[Any, Any]:
    """Multiply two wide numbers."""
    product = left * right
    if product == 0.0:
        return 0.0, ZERO
    if product < 0.5:
        return 2.0 * product, left_exponent + right_exponent - 1
    return product, left_exponent + right_exponent


@jit_part
def plus(left: Any, left_exponent: Any, right: Any, right_exponent: Any) -> tuple[Any, Any]:
    """Add two wide numbers; the mantissa may leave [1/2, 1) and is brought back by `normal`."""
    if right == 0.0:
        return left, left_exponent
    if left == 0.0:
        return right, right_exponent
    if left_exponent >= right_exponent:
        return left + shifted(right, left_exponent - right_exponent), left_exponent
    return shifted(left, right_exponent - left_exponent) + right, right_exponent


@jit_part
def larger(left: Any, left_exponent: Any, right: Any, right_exponent: Any) -> tuple[Any, Any]:
    """Return the larger of two wide numbers."""
    if right_exponent > left_exponent or (right_exponent == left_exponent and right > left):
        return right, right_exponent
    return left, left_exponent


@jit()
def extent(values: Floats) -> tuple[float, float]:
    """Return the largest entry and the smallest positive one (inf without one)."""
    top, low = 0.0, np.inf
    for x in values:
        top = max(top, x)
        if x > 0.0:
            low = min(low, x)
    return top, low
