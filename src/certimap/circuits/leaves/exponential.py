"""Exponential leaves: the density falls from 0 on."""

from __future__ import annotations

import math

from certimap.circuits.leaves.kind import LEAST_LOG, LeafFunctions
from certimap.kernels.pointers import stream_of
from certimap.kernels.random import Scalar, uniform


def log_density(rate: Scalar, _b: Scalar, _c: Scalar, _d: Scalar, x: Scalar, _y: Scalar) -> Scalar:
    """Return ln of the density at x."""
    return max(math.log(rate) - rate * x, LEAST_LOG) if x >= 0.0 else -math.inf


def log_mass(rate: Scalar, _b: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar) -> Scalar:
    """Return ln of the mass of [low, high]."""
    low = max(low, 0.0)
    if not low < high:
        return -math.inf
    missing = -math.expm1(-rate * (high - low))
    return max(-rate * low + math.log(missing), LEAST_LOG) if missing > 0.0 else LEAST_LOG


def peak(_rate: Scalar, _b: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar) -> Scalar:
    """Return the end of [low, high] nearest to 0, or 0."""
    return min(max(0.0, low), high)


def scale(rate: Scalar, _b: Scalar, _c: Scalar, _d: Scalar, _x: Scalar, _y: Scalar) -> Scalar:
    """Return the mean."""
    return 1.0 / rate


def draw(rate: Scalar, _b: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar, stream: Scalar) -> Scalar:
    """Draw inside [low, high]."""
    low = max(low, 0.0)
    share = -math.expm1(-rate * (high - low))
    return min(low - math.log1p(-uniform(stream_of(stream)) * share) / rate, high)


def slope(rate: Scalar, _b: Scalar, _c: Scalar, _d: Scalar, _x: Scalar, _y: Scalar) -> Scalar:
    """Return the derivative of ln of the density."""
    return -rate


def least_curvature(_rate: Scalar, _b: Scalar, _c: Scalar, _d: Scalar, low: Scalar, _high: Scalar) -> Scalar:
    """Return 0 on the support, -inf where the interval begins below it."""
    return 0.0 if low >= 0.0 else -math.inf


def largest_curvature(_rate: Scalar, _b: Scalar, _c: Scalar, _d: Scalar, low: Scalar, _high: Scalar) -> Scalar:
    """Return 0 on the support, inf where the interval begins below it."""
    return 0.0 if low >= 0.0 else math.inf


FUNCTIONS = LeafFunctions(log_density, log_mass, peak, scale, draw, slope, least_curvature, largest_curvature)
