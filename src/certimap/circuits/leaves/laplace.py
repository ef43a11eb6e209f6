"""Laplace leaves: two exponential tails about a mean."""

from __future__ import annotations

import math

from certimap.circuits.leaves.kind import LEAST_LOG, LeafFunctions
from certimap.kernels.jit import jit
from certimap.kernels.pointers import stream_of
from certimap.kernels.random import Scalar, uniform


@jit()
def log_part(a: Scalar, width: Scalar) -> Scalar:
    """Return ln of half the mass of [a, a + width] under the standard exponential distribution.

    The width comes separately, because the ends of a narrow interval may round to the same number.
    """
    missing = -math.expm1(-width)
    return max(math.log(0.5 * missing) - a, LEAST_LOG) if missing > 0.0 else LEAST_LOG


def log_density(mean: Scalar, scale: Scalar, _c: Scalar, _d: Scalar, x: Scalar, _y: Scalar) -> Scalar:
    """Return ln of the density at x."""
    return max(-abs(x - mean) / scale - math.log(2.0 * scale), LEAST_LOG)


def log_mass(mean: Scalar, scale: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar) -> Scalar:
    """Return ln of the mass of [low, high]."""
    if low >= mean:
        return log_part((low - mean) / scale, (high - low) / scale)
    if high <= mean:
        return log_part((mean - high) / scale, (high - low) / scale)
    mass = -0.5 * math.expm1((low - mean) / scale) - 0.5 * math.expm1((mean - high) / scale)
    return math.log(mass) if mass > 0.0 else LEAST_LOG


def peak(mean: Scalar, _scale: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar) -> Scalar:
    """Return the mean, or the end of [low, high] nearest to it."""
    return min(max(mean, low), high)


def length(_mean: Scalar, scale: Scalar, _c: Scalar, _d: Scalar, _x: Scalar, _y: Scalar) -> Scalar:
    """Return the scale."""
    return scale


def draw(mean: Scalar, scale: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar, stream: Scalar) -> Scalar:
    """Draw inside [low, high]: first a side of the mean, then a part of an exponential tail."""
    below = -math.expm1((low - mean) / scale) if low < mean < high else 0.0
    above = -math.expm1((mean - high) / scale) if low < mean < high else 0.0
    u = uniform(stream_of(stream))
    if high <= mean or (low < mean and uniform(stream_of(stream)) * (below + above) < below):
        start = max(mean - high, 0.0)
        share = -math.expm1((low - mean + start) / scale)
        return max(mean - start + scale * math.log1p(-u * share), low)
    start = max(low - mean, 0.0)
    share = -math.expm1((mean + start - high) / scale)
    return min(mean + start - scale * math.log1p(-u * share), high)


def slope(mean: Scalar, scale: Scalar, _c: Scalar, _d: Scalar, x: Scalar, _y: Scalar) -> Scalar:
    """Return the derivative of ln of the density at x."""
    return -1.0 / scale if x > mean else 1.0 / scale


def least_curvature(mean: Scalar, _scale: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar) -> Scalar:
    """Return 0 on one side of the mean, -inf if [low, high] contains it."""
    return 0.0 if high < mean or low > mean else -math.inf


def largest_curvature(
    _mean: Scalar, _scale: Scalar, _c: Scalar, _d: Scalar, _low: Scalar, _high: Scalar
) -> Scalar:
    """Return 0: the log density is straight, and concave at the mean."""
    return 0.0


FUNCTIONS = LeafFunctions(log_density, log_mass, peak, length, draw, slope, least_curvature, largest_curvature)
