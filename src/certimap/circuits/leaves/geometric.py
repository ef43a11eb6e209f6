"""Geometric leaves: the number of failures before the first success, 0, 1, 2, ..."""

from __future__ import annotations

import math

import numpy as np

from certimap.circuits.leaves.kind import CountFamily, LeafFunctions, LeafKind, from_zero, is_count
from certimap.core.arrays import Flags, Floats
from certimap.kernels.pointers import stream_of
from certimap.kernels.random import Scalar, uniform


def log_density(p: Scalar, _b: Scalar, _c: Scalar, _d: Scalar, x: Scalar, _y: Scalar) -> Scalar:
    if x < 0.0 or x != math.floor(x):
        return -math.inf
    return math.log(p) + x * math.log1p(-p)


def log_mass(p: Scalar, _b: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar) -> Scalar:
    low = max(math.ceil(low), 0.0) if low > 0.0 else 0.0
    if high < low or low == math.inf:
        return -math.inf
    count = math.inf if high == math.inf else math.floor(high) - low + 1.0
    if count < 1.0:
        return -math.inf
    missing = 1.0 if count == math.inf else -math.expm1(count * math.log1p(-p))
    return low * math.log1p(-p) + math.log(missing)


def peak(_p: Scalar, _b: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar) -> Scalar:
    """Return the smallest nonnegative whole number in [low, high]; an end if there is none."""
    least = 0.0 if low <= 0.0 else (low if low == math.inf else math.ceil(low))
    return min(max(least, low), high)


def scale(p: Scalar, _b: Scalar, _c: Scalar, _d: Scalar, _x: Scalar, _y: Scalar) -> Scalar:
    """Return the standard deviation, at least 1."""
    return max(math.sqrt(1.0 - p) / p, 1.0)


def draw(p: Scalar, _b: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar, stream: Scalar) -> Scalar:
    low = max(math.ceil(low), 0.0) if low > 0.0 else 0.0
    last = high if high == math.inf else math.floor(high)
    rate = math.log1p(-p)
    share = 1.0 if last == math.inf else -math.expm1((last - low + 1.0) * rate)
    return min(low + math.floor(math.log1p(-uniform(stream_of(stream)) * share) / rate), last)


class Geometric(CountFamily):
    """Geometric distributions of counts: failures before the first success."""

    name = "geometric"

    def fit(self, values: Floats, weights: Floats, smoothing: float) -> Floats:
        """Return the probability of a success per component."""
        return 1.0 / (1.0 + self.means(values, weights, smoothing))

    def log_density(self, values: Floats, params: Floats) -> Floats:
        p = params[:, 0]
        return np.where(is_count(values)[:, None], np.log(p) + values[:, None] * np.log1p(-p), -np.inf)


def _is_chance(p: Floats) -> Flags:
    return (p > 0) & (p < 1)


KIND = LeafKind(
    "geometric",
    ("p",),
    _is_chance,
    "the probability of a success, above 0 and below 1",
    LeafFunctions(log_density, log_mass, peak, scale, draw),
    code=-7,
    support=from_zero,
    is_whole=True,
    family=Geometric,
)
