"""Numbers without rounding to speak of: 60 decimal digits and exponents that nothing here can exceed.

Nothing of certimap's own arithmetic is used. Sums are of numbers that are not negative, so that nothing cancels;
the one exception is the mass of a normal distribution between two points, which has digits to spare.
"""

from __future__ import annotations

import functools
import math
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_EVEN, Context, Decimal, localcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

Exact = NDArray[np.object_]  # arrays of Decimal
DIGITS = 60
CONTEXT = Context(prec=DIGITS, rounding=ROUND_HALF_EVEN, Emin=MIN_EMIN, Emax=MAX_EMAX)
ZERO, ONE = Decimal(0), Decimal(1)
_PI = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798214808"
    "651328230664709384460955"
)
_TAYLOR_LIMIT = 6  # beyond it the continued fraction of the normal tail converges quickly


def arithmetic() -> Any:
    """Return a context manager within which Decimal arithmetic has the digits and exponents of this module."""
    return localcontext(CONTEXT)


@functools.lru_cache(maxsize=1 << 16)
def exp_of(log_value: float) -> Decimal:
    """Return e to a natural log, exactly 0 for -inf."""
    return ZERO if log_value == -math.inf else CONTEXT.exp(Decimal(log_value))


def from_logs(log_values: NDArray[np.float64]) -> Exact:
    """Return the numbers with given natural logs, an array of the same shape."""
    return _each(log_values, exp_of)


def from_floats(values: NDArray[np.float64]) -> Exact:
    """Return floats as they are, an array of the same shape."""
    return _each(values, Decimal)


def _each(values: NDArray[np.float64], function: Any) -> Exact:
    out = np.empty(values.shape, np.object_)
    out.reshape(-1)[:] = [function(x) for x in values.reshape(-1).tolist()]
    return out


def log_of(value: Decimal) -> float:
    """Return the natural log, rounded to the nearest float; -inf for 0."""
    return float(CONTEXT.ln(value)) if value else -math.inf


ROUNDED = Decimal("1e-50")  # share that sums of 60 digits may be off by: thousands of terms add to 1 + 1e-59


def falls_below(log_bound: float, value: Decimal) -> bool:
    """Whether a bound, given by its natural log, is smaller than a number, be it by the last digit."""
    if not value:
        return math.isnan(log_bound)
    log_value = log_of(value)
    if not abs(log_bound - log_value) <= 1e-14 * (1.0 + abs(log_value)):
        return not log_bound >= log_value
    return exp_of(log_bound) < value * (ONE - ROUNDED)


def is_last_digits(log_bound: float, value: Decimal) -> bool:
    """Whether a bound that is too small is so by the rounding of a sum or two only."""
    log_value = log_of(value)
    return abs(log_bound - log_value) <= max(1e-10, 1e-12 * abs(log_value))


def density(x: float, mean: float, sd: float) -> Decimal:
    """Return the density of a normal distribution."""
    with arithmetic():
        z = (Decimal(x) - Decimal(mean)) / Decimal(sd)
        return CONTEXT.exp(-z * z / 2) / (Decimal(sd) * (2 * _PI).sqrt())


def interval_mass(low: float, high: float, mean: float, sd: float) -> Decimal:
    """Return the mass of a normal distribution in an interval, whose ends may be infinite."""
    with localcontext(Context(prec=2 * DIGITS, Emin=MIN_EMIN, Emax=MAX_EMAX)):
        ends = [None if math.isinf(end) else (Decimal(end) - Decimal(mean)) / Decimal(sd) for end in (low, high)]
        lower, upper = ends
        if lower is not None and lower > 0:  # both tails on the right: subtract the small numbers
            return _tail(lower) - (ZERO if upper is None else _tail(upper))
        if upper is not None and upper < 0:
            return _tail(-upper) - (ZERO if lower is None else _tail(-lower))
        return ONE - (ZERO if lower is None else _tail(-lower)) - (ZERO if upper is None else _tail(upper))


def _tail(z: Decimal) -> Decimal:
    """Return the mass of the standard normal distribution above z >= 0, in the digits of the context."""
    root = (2 * _PI).sqrt()
    if z < _TAYLOR_LIMIT:
        total, term, n = z, z, 1
        while term > total * Decimal(10) ** (-2 * DIGITS):  # z + z^3/3 + z^5/15 + ..., all terms positive
            term = term * z * z / (n + 2)
            total += term
            n += 2
        return Decimal("0.5") - total * (-z * z / 2).exp() / root
    fraction = z
    for k in range(1000, 0, -1):  # Laplace: 1/(z + 1/(z + 2/(z + ...)))
        fraction = z + k / fraction
    return (-z * z / 2).exp() / (root * fraction)
