"""Uniform leaves, the bars of histograms."""

from __future__ import annotations

import math

import numpy as np

from certimap.circuits.leaves.kind import LeafFunctions, LeafKind, between, positive, zero
from certimap.core.arrays import Flags, Floats
from certimap.kernels.pointers import stream_of
from certimap.kernels.random import Scalar, uniform


def log_density(low: Scalar, high: Scalar, _c: Scalar, _d: Scalar, x: Scalar, _y: Scalar) -> Scalar:
    return -math.log(high - low) if low <= x <= high else -math.inf


def log_mass(low: Scalar, high: Scalar, _c: Scalar, _d: Scalar, x: Scalar, y: Scalar) -> Scalar:
    if x <= low and y >= high:
        return 0.0
    x, y = max(x, low), min(y, high)
    return math.log(y - x) - math.log(high - low) if x < y else -math.inf


def peak(low: Scalar, high: Scalar, _c: Scalar, _d: Scalar, x: Scalar, y: Scalar) -> Scalar:
    """Return the middle of the intersection of [x, y] and the support, else the end of [x, y] nearest to it."""
    first, last = max(x, low), min(y, high)
    middle = 0.5 * first + 0.5 * last
    return min(max(middle, first), last) if first <= last else min(max(middle, x), y)


def scale(low: Scalar, high: Scalar, _c: Scalar, _d: Scalar, _x: Scalar, _y: Scalar) -> Scalar:
    return 0.5 * (high - low)


def draw(low: Scalar, high: Scalar, _c: Scalar, _d: Scalar, x: Scalar, y: Scalar, stream: Scalar) -> Scalar:
    x, y = max(x, low), min(y, high)
    return min(x + (y - x) * uniform(stream_of(stream)), y)


def least_curvature(low: Scalar, high: Scalar, _c: Scalar, _d: Scalar, x: Scalar, y: Scalar) -> Scalar:
    """Return 0 inside the support, -inf if [x, y] reaches beyond it."""
    return 0.0 if low <= x and y <= high else -math.inf


def largest_curvature(low: Scalar, high: Scalar, _c: Scalar, _d: Scalar, x: Scalar, y: Scalar) -> Scalar:
    """Return 0 inside the support, inf if [x, y] reaches beyond it."""
    return 0.0 if low <= x and y <= high else math.inf


def _is_interval(low: Floats, high: Floats) -> Flags:
    with np.errstate(invalid="ignore", over="ignore"):
        return np.isfinite(low) & np.isfinite(high) & positive(high - low)


KIND = LeafKind(
    "uniform",
    ("low", "high"),
    _is_interval,
    "two finite limits, low below high by 1e-290 to 1e290",
    LeafFunctions(log_density, log_mass, peak, scale, draw, zero, least_curvature, largest_curvature),
    code=-2,
    support=between,
)
