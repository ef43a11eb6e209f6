"""Lognormal leaves: numbers from 0 whose logs are normal."""

from __future__ import annotations

import math

import numpy as np

from certimap.circuits.leaves import LeafFunctions, LeafKind
from certimap.circuits.leaves.gaussian import Gaussian, log_normal_mass
from certimap.circuits.leaves.kind import ABOVE_ZERO, LEAST_LOG, LOG_SQRT_2PI, LeafFamily, from_zero
from certimap.core.arrays import Flags, Floats
from certimap.core.rounding import SMALLEST_NORMAL
from certimap.kernels.jit import jit
from certimap.kernels.pointers import stream_of
from certimap.kernels.random import Scalar, truncated_normal

LEAST_SPREAD, MOST_SPREAD, FARTHEST = 0.02, 10.0, 500.0


@jit()
def deviations(mean: Scalar, sd: Scalar, x: Scalar) -> Scalar:
    """Return how many standard deviations ln x lies above the mean of the logs."""
    return math.log(x / math.exp(mean)) / sd if x > 0.0 else -math.inf


def log_density(mean: Scalar, sd: Scalar, _c: Scalar, _d: Scalar, x: Scalar, _y: Scalar) -> Scalar:
    if x <= 0.0:
        return -math.inf
    z = deviations(mean, sd, x)
    return max(-0.5 * z * z - math.log(sd) - LOG_SQRT_2PI - math.log(x), LEAST_LOG)


def log_mass(mean: Scalar, sd: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar) -> Scalar:
    if high <= 0.0:
        return -math.inf
    width = math.log1p((high - low) / low) / sd if low > 0.0 else math.inf
    return max(log_normal_mass(deviations(mean, sd, low), deviations(mean, sd, high), width), LEAST_LOG)


def peak(mean: Scalar, sd: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar) -> Scalar:
    return min(max(math.exp(mean - sd * sd), low), high)


def scale(mean: Scalar, sd: Scalar, _c: Scalar, _d: Scalar, _x: Scalar, _y: Scalar) -> Scalar:
    """Return the inverse root of the curvature of the log density at its peak."""
    return sd * math.exp(mean - sd * sd)


def draw(mean: Scalar, sd: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar, stream: Scalar) -> Scalar:
    z = truncated_normal(deviations(mean, sd, low), deviations(mean, sd, high), stream_of(stream))
    return min(max(math.exp(mean + sd * z), low), high)


def slope(mean: Scalar, sd: Scalar, _c: Scalar, _d: Scalar, x: Scalar, _y: Scalar) -> Scalar:
    return -(1.0 + deviations(mean, sd, x) / sd) / x if x > 0.0 else 0.0


@jit()
def bend(mean: Scalar, sd: Scalar, x: Scalar) -> Scalar:
    """Return the second derivative of ln of the density, which rises up to x = exp(mean + 1.5 - sd^2)."""
    return (1.0 - (1.0 - sd * deviations(mean, sd, x)) / sd / sd) / x / x


def least_curvature(mean: Scalar, sd: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar) -> Scalar:
    return min(bend(mean, sd, low), bend(mean, sd, high)) if low > 0.0 else -math.inf


def largest_curvature(mean: Scalar, sd: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar) -> Scalar:
    return bend(mean, sd, min(max(math.exp(mean + 1.5 - sd * sd), low), high)) if low > 0.0 else math.inf


class Lognormal(LeafFamily):
    """Lognormal distributions, by the mean and variance of the logs."""

    name = "lognormal"
    takes = ABOVE_ZERO

    def __init__(self, values: Floats) -> None:
        super().__init__(values)
        self.gaussian = Gaussian(np.log(values))

    def fit(self, values: Floats, weights: Floats, smoothing: float) -> Floats:
        """Return the mean and the standard deviation of the logs per component."""
        mean, sd = self.gaussian.fit(np.log(values), weights, smoothing).T
        return np.stack([np.clip(mean, -FARTHEST, FARTHEST), np.clip(sd, LEAST_SPREAD, MOST_SPREAD)], axis=1)

    def log_density(self, values: Floats, params: Floats) -> Floats:
        logs = np.log(np.maximum(values, SMALLEST_NORMAL))
        found = self.gaussian.log_density(logs, params) - logs[:, None]
        return np.where(values[:, None] > 0.0, found, -np.inf)


def _is_valid(mean: Floats, sd: Floats) -> Flags:
    return (np.abs(mean) <= FARTHEST) & (sd >= LEAST_SPREAD) & (sd <= MOST_SPREAD)


KIND = LeafKind(
    "lognormal",
    ("mean", "sd"),
    _is_valid,
    "a mean of logs from -500 to 500, and a standard deviation of logs from .02 to 10",
    LeafFunctions(log_density, log_mass, peak, scale, draw, slope, least_curvature, largest_curvature),
    code=-10,
    support=from_zero,
    roundings=4096.0,
    family=Lognormal,
)
