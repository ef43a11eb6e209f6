"""Laplace leaves: two exponential tails about a mean."""

from __future__ import annotations

import math

import numpy as np

from certimap.circuits.leaves import LeafFunctions, LeafKind
from certimap.circuits.leaves.kind import LEAST_LOG, LEAST_SD, LeafFamily, is_gaussian, nearest_to_mean, zero
from certimap.core.arrays import Floats
from certimap.core.rounding import SMALLEST_NORMAL
from certimap.kernels.jit import jit
from certimap.kernels.pointers import stream_of
from certimap.kernels.random import Scalar, uniform


@jit()
def log_part(a: Scalar, width: Scalar) -> Scalar:
    """Return ln of half the mass of [a, a + width] under the standard exponential distribution.

    The width comes separately, because the ends of a narrow interval may round to the same number.
    """
    missing = -math.expm1(-width)
    return max(math.log(0.5 * missing) - a, LEAST_LOG) if missing > 0.0 else LEAST_LOG


def log_density(mean: Scalar, scale: Scalar, _c: Scalar, _d: Scalar, x: Scalar, _y: Scalar) -> Scalar:
    return max(-abs(x - mean) / scale - math.log(2.0 * scale), LEAST_LOG)


def log_mass(mean: Scalar, scale: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar) -> Scalar:
    if low >= mean:
        return log_part((low - mean) / scale, (high - low) / scale)
    if high <= mean:
        return log_part((mean - high) / scale, (high - low) / scale)
    mass = -0.5 * math.expm1((low - mean) / scale) - 0.5 * math.expm1((mean - high) / scale)
    return math.log(mass) if mass > 0.0 else LEAST_LOG


def length(_mean: Scalar, scale: Scalar, _c: Scalar, _d: Scalar, _x: Scalar, _y: Scalar) -> Scalar:
    return scale


def draw(mean: Scalar, scale: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar, stream: Scalar) -> Scalar:
    below = -math.expm1((low - mean) / scale) if low < mean < high else 0.0
    above = -math.expm1((mean - high) / scale) if low < mean < high else 0.0
    u = uniform(stream_of(stream))
    if high <= mean or (low < mean and uniform(stream_of(stream)) * (below + above) < below):
        start = max(mean - high, 0.0)
        share = -math.expm1((low - mean + start) / scale)
        return max(mean - start + scale * math.log1p(-u * share), low)
    start = max(low - mean, 0.0)
    share = -math.expm1((mean + start - high) / scale)
    return min(mean + start - scale * math.log1p(-u * share), high)


def slope(mean: Scalar, scale: Scalar, _c: Scalar, _d: Scalar, x: Scalar, _y: Scalar) -> Scalar:
    return -1.0 / scale if x > mean else 1.0 / scale


def least_curvature(mean: Scalar, _scale: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar) -> Scalar:
    """Return 0 on one side of the mean, -inf if [low, high] contains it."""
    return 0.0 if high < mean or low > mean else -math.inf


class Laplace(LeafFamily):
    """Laplace distributions: weighted medians and mean distances from them."""

    name = "laplace"

    def fit(self, values: Floats, weights: Floats, smoothing: float) -> Floats:
        """Return (median, scale) per component."""
        order = np.argsort(values, kind="stable")
        running = np.cumsum(weights[order], axis=0)
        if not len(values):
            return np.tile([self.column.mean, self.column.sd], (weights.shape[1], 1))
        middle = np.argmax(running >= 0.5 * running[-1], axis=0)
        medians = np.where(running[-1] > 0.0, values[order][middle], self.column.mean)
        far = np.einsum("nk,nk->k", weights, np.abs(values[:, None] - medians)) + smoothing * self.column.sd
        rows = np.maximum(running[-1] + smoothing, SMALLEST_NORMAL)
        scales = np.where(running[-1] + smoothing > 0.0, far / rows, self.column.sd)
        return np.stack([medians, np.maximum(scales, LEAST_SD * self.column.sd)], axis=1)

    def log_density(self, values: Floats, params: Floats) -> Floats:
        middle, scale = params.T
        return -np.abs(values[:, None] - middle) / scale - np.log(2.0 * scale)


KIND = LeafKind(
    "laplace",
    ("mean", "scale"),
    is_gaussian,
    "a finite mean, and a scale from 1e-290 to 1e290",
    # the log density is straight, and concave at the mean: its largest curvature is 0
    LeafFunctions(log_density, log_mass, nearest_to_mean, length, draw, slope, least_curvature, zero),
    code=-4,
    family=Laplace,
)
