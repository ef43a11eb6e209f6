"""Exponential leaves: the density falls from 0 on."""

from __future__ import annotations

import math

import numpy as np

from certimap.circuits.leaves import LeafFunctions, LeafKind
from certimap.circuits.leaves.kind import FROM_ZERO, LEAST_LOG, LEAST_SD, LeafFamily, from_zero, positive
from certimap.core.arrays import Floats
from certimap.kernels.pointers import stream_of
from certimap.kernels.random import Scalar, uniform


def log_density(rate: Scalar, _b: Scalar, _c: Scalar, _d: Scalar, x: Scalar, _y: Scalar) -> Scalar:
    return max(math.log(rate) - rate * x, LEAST_LOG) if x >= 0.0 else -math.inf


def log_mass(rate: Scalar, _b: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar) -> Scalar:
    low = max(low, 0.0)
    if not low < high:
        return -math.inf
    missing = -math.expm1(-rate * (high - low))
    return max(-rate * low + math.log(missing), LEAST_LOG) if missing > 0.0 else LEAST_LOG


def peak(_rate: Scalar, _b: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar) -> Scalar:
    """Return the end of [low, high] nearest to 0, or 0."""
    return min(max(0.0, low), high)


def scale(rate: Scalar, _b: Scalar, _c: Scalar, _d: Scalar, _x: Scalar, _y: Scalar) -> Scalar:
    return 1.0 / rate


def draw(rate: Scalar, _b: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar, stream: Scalar) -> Scalar:
    low = max(low, 0.0)
    share = -math.expm1(-rate * (high - low))
    return min(low - math.log1p(-uniform(stream_of(stream)) * share) / rate, high)


def slope(rate: Scalar, _b: Scalar, _c: Scalar, _d: Scalar, _x: Scalar, _y: Scalar) -> Scalar:
    return -rate


def least_curvature(_rate: Scalar, _b: Scalar, _c: Scalar, _d: Scalar, low: Scalar, _high: Scalar) -> Scalar:
    """Return 0 on the support, -inf where the interval begins below it."""
    return 0.0 if low >= 0.0 else -math.inf


def largest_curvature(_rate: Scalar, _b: Scalar, _c: Scalar, _d: Scalar, low: Scalar, _high: Scalar) -> Scalar:
    """Return 0 on the support, inf where the interval begins below it."""
    return 0.0 if low >= 0.0 else math.inf


class Exponential(LeafFamily):
    """Exponential distributions of numbers from 0."""

    name = "exponential"
    takes = FROM_ZERO

    def __init__(self, values: Floats) -> None:
        super().__init__(values)
        self.least = LEAST_SD * self.column.sd

    def fit(self, values: Floats, weights: Floats, smoothing: float) -> Floats:
        """Return the rate per component."""
        return 1.0 / np.maximum(self.column.means(values, weights, smoothing), self.least)[:, None]

    def log_density(self, values: Floats, params: Floats) -> Floats:
        rate = params[:, 0]
        return np.where(values[:, None] >= 0.0, np.log(rate) - values[:, None] * rate, -np.inf)


KIND = LeafKind(
    "exponential",
    ("rate",),
    positive,
    "a rate from 1e-290 to 1e290",
    LeafFunctions(log_density, log_mass, peak, scale, draw, slope, least_curvature, largest_curvature),
    code=-3,
    support=from_zero,
    family=Exponential,
)
