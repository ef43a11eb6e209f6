"""Beta leaves: numbers from 0 to 1, with shapes of at least 1, since below it the density has no highest point."""

from __future__ import annotations

import math

import numpy as np

from certimap.circuits.leaves import LeafFunctions, LeafKind
from certimap.circuits.leaves.areas import MOST_SHAPE, draw_between, log_area, log_whole
from certimap.circuits.leaves.kind import LEAST_LOG, SHARES, LeafFamily, from_zero_to_one, special
from certimap.circuits.leaves.poisson import deviance
from certimap.core.arrays import Flags, Floats
from certimap.kernels.jit import jit
from certimap.kernels.random import Scalar


@jit()
def log_ratio(a: Scalar, b: Scalar, x: Scalar) -> Scalar:
    """Return ln of the odds of x over the odds of the mean."""
    if x <= 0.0 or x >= 1.0:
        return -math.inf if x <= 0.0 else math.inf
    return math.log(x / (1.0 - x) * (b / a))


def log_density(a: Scalar, b: Scalar, _c: Scalar, _d: Scalar, x: Scalar, _y: Scalar) -> Scalar:
    if x <= 0.0 or x >= 1.0:
        at_end = (x == 0.0 and a == 1.0) or (x == 1.0 and b == 1.0)
        return math.log(b if x == 0.0 else a) if at_end else -math.inf
    off = deviance(a, (a + b) * x) + deviance(b, (a + b) * (1.0 - x))
    return max(-off - log_whole(a, b) - math.log(x) - math.log1p(-x), LEAST_LOG)


def log_mass(a: Scalar, b: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar) -> Scalar:
    low, high = max(low, 0.0), min(high, 1.0)
    if not low < high:
        return -math.inf
    width = math.log1p((high - low) / (low * (1.0 - high))) if low > 0.0 and high < 1.0 else math.inf
    return max(log_area(a, b, log_ratio(a, b, low), log_ratio(a, b, high), width), LEAST_LOG)


def peak(a: Scalar, b: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar) -> Scalar:
    return min(max((a - 1.0) / (a + b - 2.0) if a + b > 2.0 else 0.5, low), high)


def scale(a: Scalar, b: Scalar, _c: Scalar, _d: Scalar, _x: Scalar, _y: Scalar) -> Scalar:
    return math.sqrt(a / (a + b) * b / (a + b + 1.0) / (a + b))


def draw(a: Scalar, b: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar, stream: Scalar) -> Scalar:
    odds = math.exp(draw_between(a, b, log_ratio(a, b, low), log_ratio(a, b, high), stream)) * (a / b)
    return min(max(odds / (1.0 + odds), low), high)


def slope(a: Scalar, b: Scalar, _c: Scalar, _d: Scalar, x: Scalar, _y: Scalar) -> Scalar:
    return (a - 1.0) / x - (b - 1.0) / (1.0 - x) if 0.0 < x < 1.0 else 0.0


def least_curvature(a: Scalar, b: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar) -> Scalar:
    inside = low > 0.0 and high < 1.0
    return -(a - 1.0) / low / low - (b - 1.0) / (1.0 - high) / (1.0 - high) if inside else -math.inf


def largest_curvature(a: Scalar, b: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar) -> Scalar:
    inside = low > 0.0 and high < 1.0
    return -(a - 1.0) / high / high - (b - 1.0) / (1.0 - low) / (1.0 - low) if inside else math.inf


class Beta(LeafFamily):
    """Beta distributions of numbers between 0 and 1, with the mean and variance of the rows."""

    name = "beta"
    takes = SHARES

    def fit(self, values: Floats, weights: Floats, smoothing: float) -> Floats:
        """Return both shapes per component."""
        means, variances = self.column.both(values, weights, smoothing)
        means = np.clip(means, 1e-4, 1.0 - 1e-4)
        total = np.clip(means * (1.0 - means) / variances - 1.0, 1.0 / np.minimum(means, 1.0 - means), MOST_SHAPE)
        return np.stack([np.maximum(means * total, 1.0), np.maximum((1.0 - means) * total, 1.0)], axis=1)

    def log_density(self, values: Floats, params: Floats) -> Floats:
        (a, b), x = params.T, np.clip(values, 0.0, 1.0)[:, None]
        powers = special("xlogy")(a - 1.0, x) + special("xlog1py")(b - 1.0, -x) - special("betaln")(a, b)
        return np.where(((values >= 0.0) & (values <= 1.0))[:, None], np.asarray(powers, np.float64), -np.inf)


def _is_valid(a: Floats, b: Floats) -> Flags:
    return (a >= 1.0) & (b >= 1.0) & (a <= MOST_SHAPE) & (b <= MOST_SHAPE)


KIND = LeafKind(
    "beta",
    ("a", "b"),
    _is_valid,
    "shapes from 1 to 1e4 (below 1 the density has no highest point)",
    LeafFunctions(log_density, log_mass, peak, scale, draw, slope, least_curvature, largest_curvature),
    code=-8,
    support=from_zero_to_one,
    roundings=32768.0,
    family=Beta,
)
