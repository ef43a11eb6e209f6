"""Gaussian leaves."""

from __future__ import annotations

import math

import numpy as np

from certimap.circuits.leaves import LeafFunctions, LeafKind
from certimap.circuits.leaves.kind import LEAST_LOG, LOG_SQRT_2PI, LeafFamily, is_gaussian, nearest_to_mean
from certimap.core.arrays import Floats
from certimap.kernels.jit import jit
from certimap.kernels.pointers import stream_of
from certimap.kernels.random import Scalar, truncated_normal

_NEG_INF = -math.inf
FARTHEST = 1e150  # standard deviations; squares of larger ones overflow
NARROW_WIDTH = 1e-3  # relative truncation error of the expansion: 1e-3^4 / 1920
QUADRATURE_WIDTH = 0.5  # up to which 20 nodes integrate to rounding, where the ends' masses would cancel
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)


@jit()
def _log_far(z: Scalar) -> Scalar:
    """Return ln of the mass above z >= 30, without the factor e^(-z^2 / 2), by the series of Mills' ratio."""
    y = 1.0 / (z * z)
    series = -y * (1.0 - y * (3.0 - y * (15.0 - y * (105.0 - y * (945.0 - y * 10395.0)))))
    return -math.log(z) - LOG_SQRT_2PI + math.log1p(series)


@jit()
def log_normal_cdf(x: Scalar) -> Scalar:
    """Return ln Phi(x), accurate to rounding for any x."""
    if x > 0.0:
        return math.log1p(-0.5 * math.erfc(x * 0.7071067811865476))
    if x > -30.0:
        return math.log(0.5 * math.erfc(-x * 0.7071067811865476))
    return _NEG_INF if x == _NEG_INF else _log_far(-x) - 0.5 * x * x


@jit()
def log_mills(z: Scalar) -> Scalar:
    """Return ln of the mass above z >= 0, without the factor e^(-z^2 / 2)."""
    if z < 30.0:
        return math.log(0.5 * math.erfc(z * 0.7071067811865476)) + 0.5 * z * z
    return _log_far(z)


@jit()
def log_tail_part(start: Scalar, width: Scalar) -> Scalar:
    """Return ln of the mass of [start, start + width], start >= 0, without the factor e^(-start^2 / 2).

    The two ends may round to the same number, and their squares hide what lies between them.
    """
    reach = width * max(1.0, start)
    if reach < NARROW_WIDTH:
        middle = start + 0.5 * width
        bend = math.log1p((middle * middle - 1.0) * width * width / 24.0)
        return math.log(width) - LOG_SQRT_2PI - 0.5 * width * (start + 0.25 * width) + bend
    if reach < QUADRATURE_WIDTH:
        half, total = 0.5 * width, 0.0
        for k in range(len(_NODES)):
            t = half + half * _NODES[k]
            total += _WEIGHTS[k] * math.exp(-t * (start + 0.5 * t))
        return math.log(half * total) - LOG_SQRT_2PI
    whole = log_mills(start)
    return whole + math.log1p(-math.exp(log_mills(start + width) - whole - width * (start + 0.5 * width)))


@jit()
def log_normal_mass(low: Scalar, high: Scalar, width: Scalar) -> Scalar:
    """Return ln of the mass of [low, high] under the standard normal distribution.

    `width` is high - low, given separately because standardised ends may round to the same number.
    """
    if not width > 0.0:
        return _NEG_INF
    if low >= 0.0:
        low, high = -high, -low
    if high < -FARTHEST:  # the squares below would overflow
        return _NEG_INF
    if high <= 0.0:
        return -0.5 * high * high + log_tail_part(-high, width)
    if width < QUADRATURE_WIDTH:  # around the peak: two parts, of which neither cancels
        return math.log(math.exp(log_tail_part(0.0, high)) + math.exp(log_tail_part(0.0, -low)))
    top = log_normal_cdf(high)
    return top + math.log1p(-math.exp(log_normal_cdf(low) - top))


def log_density(mean: Scalar, sd: Scalar, _c: Scalar, _d: Scalar, x: Scalar, _y: Scalar) -> Scalar:
    scaled = (x - mean) / sd
    return max(-0.5 * scaled * scaled - math.log(sd) - LOG_SQRT_2PI, LEAST_LOG)


def log_mass(mean: Scalar, sd: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar) -> Scalar:
    return max(log_normal_mass((low - mean) / sd, (high - mean) / sd, (high - low) / sd), LEAST_LOG)


def scale(_mean: Scalar, sd: Scalar, _c: Scalar, _d: Scalar, _x: Scalar, _y: Scalar) -> Scalar:
    return sd


def draw(mean: Scalar, sd: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar, stream: Scalar) -> Scalar:
    scaled = truncated_normal((low - mean) / sd, (high - mean) / sd, stream_of(stream))
    return min(max(mean + sd * scaled, low), high)


def slope(mean: Scalar, sd: Scalar, _c: Scalar, _d: Scalar, x: Scalar, _y: Scalar) -> Scalar:
    return (mean - x) / sd / sd


def curvature(_mean: Scalar, sd: Scalar, _c: Scalar, _d: Scalar, _low: Scalar, _high: Scalar) -> Scalar:
    """Return the second derivative of ln of the density, the same everywhere."""
    return -1.0 / sd / sd


class Gaussian(LeafFamily):
    """Normal distributions."""

    name = "gaussian"

    def fit(self, values: Floats, weights: Floats, smoothing: float) -> Floats:
        """Return (mean, sd) per component."""
        means, variances = self.column.both(values, weights, smoothing)
        return np.stack([means, np.sqrt(variances)], axis=1)

    def log_density(self, values: Floats, params: Floats) -> Floats:
        mean, sd = params.T
        return -0.5 * ((values[:, None] - mean) / sd) ** 2 - np.log(sd) - LOG_SQRT_2PI


KIND = LeafKind(
    "gaussian",
    ("mean", "sd"),
    is_gaussian,
    "a finite mean, and an sd from 1e-290 to 1e290",
    LeafFunctions(log_density, log_mass, nearest_to_mean, scale, draw, slope, curvature, curvature),
    code=1,
    family=Gaussian,
)
