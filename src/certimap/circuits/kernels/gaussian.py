"""Gaussians: logs of the normal distribution's masses, and of a Gaussian leaf's answers."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from certimap.circuits.kernels.arrays import Scalar
from certimap.kernels.jit import jit

_NEG_INF = -math.inf
_HALF_LOG_2PI = 0.9189385332046727
NARROW_WIDTH = 1e-3  # what the expansion leaves out is of relative size 1e-3^4 / 1920


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
def log_gaussian(mode: int, low: Scalar, high: Scalar, start: Scalar, log_tables: NDArray[np.float64]) -> Scalar:
    """Return a Gaussian leaf's log density at `low` (mode 0), or its log mass (1) or peak (2) in an interval."""
    mean, sd = log_tables[start], log_tables[start + 1]
    least, most, log_norm = log_tables[start + 2], log_tables[start + 3], log_tables[start + 4]
    x = low
    if mode > 0:
        low, high = max(low, least), min(high, most)
        if mode == 1:
            return log_normal_mass((low - mean) / sd, (high - mean) / sd) - log_norm
        x = min(max(mean, low), high)
        least, most = low, high
    if not least <= x <= most:
        return _NEG_INF
    scaled = (x - mean) / sd
    return -0.5 * scaled * scaled - math.log(sd) - _HALF_LOG_2PI - log_norm
