"""Gaussian leaves."""

from __future__ import annotations

import math

from certimap.circuits.leaves.kind import LEAST_LOG, LeafFunctions
from certimap.kernels.jit import jit
from certimap.kernels.pointers import stream_of
from certimap.kernels.random import Scalar, truncated_normal

_NEG_INF = -math.inf
_HALF_LOG_2PI = 0.9189385332046727
FARTHEST = 1e150  # standard deviations; squares of larger ones overflow
NARROW_WIDTH = 1e-3  # relative truncation error of the expansion: 1e-3^4 / 1920


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
def log_normal_mass(low: Scalar, high: Scalar, width: Scalar) -> Scalar:
    """Return ln of the mass of [low, high] under the standard normal distribution.

    `width` is high - low, given separately because standardised ends may round to the same number.
    """
    if not width > 0.0:
        return _NEG_INF
    if low > 0.0:
        low, high = -high, -low
    if high < -FARTHEST:  # the squares below would overflow
        return _NEG_INF
    middle = 0.5 * (low + high)
    if width * max(1.0, -low) < NARROW_WIDTH:  # the two ends cancel; the density hardly changes between them
        curvature = (middle * middle - 1.0) * width * width / 24.0
        return -0.5 * middle * middle - _HALF_LOG_2PI + math.log(width) + math.log1p(curvature)
    top = log_normal_cdf(high)
    return top + math.log1p(-math.exp(log_normal_cdf(low) - top))


def log_density(mean: Scalar, sd: Scalar, _c: Scalar, _d: Scalar, x: Scalar, _y: Scalar) -> Scalar:
    """Return ln of the density at x."""
    scaled = (x - mean) / sd
    return max(-0.5 * scaled * scaled - math.log(sd) - _HALF_LOG_2PI, LEAST_LOG)


def log_mass(mean: Scalar, sd: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar) -> Scalar:
    """Return ln of the mass of [low, high]."""
    return max(log_normal_mass((low - mean) / sd, (high - mean) / sd, (high - low) / sd), LEAST_LOG)


def peak(mean: Scalar, _sd: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar) -> Scalar:
    """Return the mean, or the end of [low, high] nearest to it."""
    return min(max(mean, low), high)


def scale(_mean: Scalar, sd: Scalar, _c: Scalar, _d: Scalar, _x: Scalar, _y: Scalar) -> Scalar:
    """Return the standard deviation."""
    return sd


def draw(mean: Scalar, sd: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar, stream: Scalar) -> Scalar:
    """Draw inside [low, high]."""
    scaled = truncated_normal((low - mean) / sd, (high - mean) / sd, stream_of(stream))
    return min(max(mean + sd * scaled, low), high)


def slope(mean: Scalar, sd: Scalar, _c: Scalar, _d: Scalar, x: Scalar, _y: Scalar) -> Scalar:
    """Return the derivative of ln of the density at x."""
    return (mean - x) / sd / sd


def curvature(_mean: Scalar, sd: Scalar, _c: Scalar, _d: Scalar, _low: Scalar, _high: Scalar) -> Scalar:
    """Return the second derivative of ln of the density, the same everywhere."""
    return -1.0 / sd / sd


FUNCTIONS = LeafFunctions(log_density, log_mass, peak, scale, draw, slope, curvature, curvature)
