"""Masses of Student t distributions, rounded to a side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from certimap.checker.normal import total_of
from certimap.checker.numbers import UNIT

MOST_TERMS = 1 << 14
LOG_HALF = -math.log(2.0)


def square_of(p: Sequence[float], x: float) -> Fraction:
    """Return z^2 / dof at x."""
    return (Fraction(x) - Fraction(p[0])) ** 2 / (Fraction(p[1]) ** 2 * Fraction(p[2]))


def log1p_of(ratio: Fraction) -> float:
    """Return ln(1 + ratio), right to its last places."""
    if ratio < 1e300:
        return math.log1p(ratio)
    return math.log(ratio.numerator) - math.log(ratio.denominator)


def log_halves(p: Sequence[float], x: float, side: int) -> tuple[float, float]:
    """Return the logs of the masses between the centre and a value, and beyond the value, rounded to a side.

    With r = z^2 / dof, u = r / (1 + r) and I the regularised incomplete beta function, the masses are
    I_u(1/2, dof/2) / 2 and I_(1-u)(dof/2, 1/2) / 2. One is computed, and the other is 1/2 minus it.
    """
    if x == p[0] or math.isinf(x):
        return (-math.inf, LOG_HALF) if x == p[0] else (LOG_HALF, -math.inf)
    r, half = square_of(p, x), 0.5 * p[2]
    is_far = r > 1 or (r > 0.005 and r * Fraction(p[2]) > 9)
    a, b, odds = (half, 0.5, 1 / r) if is_far else (0.5, half, r)
    ends = [_log_half_beta(a, b, odds, way) for way in (-1, 1)]
    known = ends[side > 0]
    left = 0.5 - math.exp(ends[side < 0]) + side * 4.0 * UNIT
    other = math.log(left) if left > 0.0 else -math.inf
    return (other, known) if is_far else (known, other)


def _log_half_beta(a: float, b: float, odds: Fraction, side: int) -> float:
    """Return ln(I_u(a, b) / 2), u = odds / (1 + odds), rounded to a side.

    I_u(a, b) is u^a (1-u)^b / (a B(a, b)) times the sum over n of products of u (a + b + k) / (a + 1 + k), k < n
    (DLMF 8.17.8). All terms are positive, and their ratios tend to u monotonically, so that a geometric series
    bounds the rest.
    """
    u, total, term, factor, n = float(odds / (1 + odds)), 1.0, 1.0, math.inf, 0
    while n < MOST_TERMS and (factor >= 1.0 or term > 1e-18 * total):
        term *= u * (a + b + n) / (a + 1.0 + n)
        total += term
        n += 1
        factor = u * max(1.0, (a + b + n) / (a + 1.0 + n)) * (1.0 + 8.0 * UNIT)  # bounds every later ratio
    if side > 0:
        total = total + term * factor / (1.0 - factor) if factor < 1.0 else math.inf
    if not total < math.inf:
        return LOG_HALF if side > 0 else -math.inf
    beta = [math.lgamma(a + b), -math.lgamma(a), -math.lgamma(b)]
    powers = [-a * log1p_of(1 / odds), -b * log1p_of(odds)]
    found = total_of(
        [*powers, *beta, -math.log(a), math.log(total), LOG_HALF, side * (16.0 + 8.0 * n) * UNIT], side
    )
    return min(found, LOG_HALF) if side > 0 else found


def log_student(p: Sequence[float], low: float, high: float, side: int) -> float:
    """Return the log of the mass of an interval, rounded to a side."""
    if low < p[0] < high:
        first, second = (log_halves(p, x, side)[0] for x in (low, high))
        top, least = max(first, second), min(first, second)
        return total_of([top, math.log1p(math.exp(least - top))], side) if top > -math.inf else top
    near, far = (low, high) if low >= p[0] else (high, low)
    inside, beyond = log_halves(p, far, side)[0], log_halves(p, near, side)[1]
    inside_less, beyond_less = log_halves(p, near, -side)[0], log_halves(p, far, -side)[1]
    found = _less(inside, inside_less, side), _less(beyond, beyond_less, side)
    return min(found) if side > 0 else max(found)


def _less(more: float, less: float, side: int) -> float:
    """Return ln(e^more - e^less), rounded to a side."""
    gap = less - more - side * 8.0 * UNIT * (1.0 + abs(more) + abs(less)) if less > -math.inf else less
    return total_of([more, math.log(-math.expm1(gap))], side) if gap < 0.0 else -math.inf
