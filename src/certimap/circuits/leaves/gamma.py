"""Gamma leaves: numbers from 0, with a shape of at least 1, since below it the density has no highest point."""

from __future__ import annotations

import math

import numpy as np

from certimap.circuits.leaves import LeafFunctions, LeafKind
from certimap.circuits.leaves.areas import MOST_SHAPE, draw_between, log_area, log_whole
from certimap.circuits.leaves.kind import ABOVE_ZERO, LEAST_LOG, LeafFamily, from_zero, positive, special
from certimap.circuits.leaves.poisson import deviance
from certimap.core.arrays import Flags, Floats
from certimap.kernels.jit import jit
from certimap.kernels.random import Scalar


@jit()
def log_ratio(shape: Scalar, rate: Scalar, x: Scalar) -> Scalar:
    """Return ln of x over the mean."""
    return math.log(x * (rate / shape)) if x > 0.0 else -math.inf


def log_density(shape: Scalar, rate: Scalar, _c: Scalar, _d: Scalar, x: Scalar, _y: Scalar) -> Scalar:
    if x <= 0.0:
        return math.log(rate) if x == 0.0 and shape == 1.0 else -math.inf
    return max(-deviance(shape, rate * x) - log_whole(shape, math.inf) - math.log(x), LEAST_LOG)


def log_mass(shape: Scalar, rate: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar) -> Scalar:
    if high <= 0.0:
        return -math.inf
    width = math.log1p((high - low) / low) if low > 0.0 else math.inf
    ends = log_ratio(shape, rate, low), log_ratio(shape, rate, high)
    return max(log_area(shape, math.inf, ends[0], ends[1], width), LEAST_LOG)


def peak(shape: Scalar, rate: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar) -> Scalar:
    return min(max((shape - 1.0) / rate, low), high)


def scale(shape: Scalar, rate: Scalar, _c: Scalar, _d: Scalar, _x: Scalar, _y: Scalar) -> Scalar:
    return math.sqrt(shape) / rate


def draw(shape: Scalar, rate: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar, stream: Scalar) -> Scalar:
    d = draw_between(shape, math.inf, log_ratio(shape, rate, low), log_ratio(shape, rate, high), stream)
    return min(max(math.exp(d) * (shape / rate), low), high)


def slope(shape: Scalar, rate: Scalar, _c: Scalar, _d: Scalar, x: Scalar, _y: Scalar) -> Scalar:
    return (shape - 1.0) / x - rate if x > 0.0 else -rate


def least_curvature(shape: Scalar, _rate: Scalar, _c: Scalar, _d: Scalar, low: Scalar, _high: Scalar) -> Scalar:
    return -(shape - 1.0) / low / low if low > 0.0 else -math.inf


def largest_curvature(shape: Scalar, _rate: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar) -> Scalar:
    return -(shape - 1.0) / high / high if low > 0.0 else math.inf


class Gamma(LeafFamily):
    """Gamma distributions of numbers above 0, with the mean and variance of the rows."""

    name = "gamma"
    takes = ABOVE_ZERO

    def fit(self, values: Floats, weights: Floats, smoothing: float) -> Floats:
        """Return (shape, rate) per component."""
        means, variances = self.column.both(values, weights, smoothing)
        shapes = np.clip(means / variances * means, 1.0, MOST_SHAPE)
        return np.stack([shapes, shapes / np.maximum(means, 1e-3 * np.sqrt(variances))], axis=1)

    def log_density(self, values: Floats, params: Floats) -> Floats:
        (shape, rate), x = params.T, np.maximum(values, 0.0)[:, None]
        log_gamma = np.asarray(special("gammaln")(shape), np.float64)
        powers = np.asarray(special("xlogy")(shape - 1.0, x), np.float64)
        return np.where(values[:, None] >= 0.0, powers + shape * np.log(rate) - rate * x - log_gamma, -np.inf)


def _is_valid(shape: Floats, rate: Floats) -> Flags:
    return (shape >= 1.0) & (shape <= MOST_SHAPE) & positive(rate)


KIND = LeafKind(
    "gamma",
    ("shape", "rate"),
    _is_valid,
    "a shape from 1 to 1e4 (below 1 the density has no highest point), and a rate from 1e-290 to 1e290",
    LeafFunctions(log_density, log_mass, peak, scale, draw, slope, least_curvature, largest_curvature),
    code=-9,
    support=from_zero,
    roundings=32768.0,
    family=Gamma,
)
