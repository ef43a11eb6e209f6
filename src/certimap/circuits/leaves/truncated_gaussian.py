"""Gaussian leaves truncated at two limits, either of which may be infinite."""

from __future__ import annotations

import math

import numpy as np

from certimap.circuits.leaves import LeafFunctions, LeafKind
from certimap.circuits.leaves.gaussian import Gaussian, log_normal_mass, log_tail_part
from certimap.circuits.leaves.kind import (
    FROM_ZERO,
    LEAST_LOG,
    LEAST_SCALE,
    LEAST_SD,
    LOG_SQRT_2PI,
    LeafFamily,
    between,
    positive,
    special,
)
from certimap.core.arrays import Flags, Floats
from certimap.kernels.jit import jit
from certimap.kernels.pointers import stream_of
from certimap.kernels.random import Scalar, truncated_normal

CUT_FAR = 8.0  # standard deviations below the mean: a cut there has no effect
CUT_NEAR = 3.0  # above the mean: nearly exponential


@jit()
def _tail(mean: Scalar, sd: Scalar, low: Scalar, high: Scalar, x: Scalar, width: Scalar) -> Scalar:
    """Return ln of the mass of width `width` (or of the density, where it is 0) that begins at x, in a tail.

    The mean lies outside of the limits. Logs are relative to the density at the limit next to it, which may be
    e^-1e15 of the peak.
    """
    limit = low if mean < low else high
    start, off = abs(limit - mean) / sd, abs(x - limit) / sd
    part = log_tail_part(start + off, width) if width > 0.0 else -math.log(sd) - LOG_SQRT_2PI
    return part - off * (start + 0.5 * off) - log_tail_part(start, (high - low) / sd)


def log_density(mean: Scalar, sd: Scalar, low: Scalar, high: Scalar, x: Scalar, _y: Scalar) -> Scalar:
    if x < low or x > high:
        return -math.inf
    if mean < low or mean > high:
        return max(_tail(mean, sd, low, high, x, 0.0), LEAST_LOG)
    scaled = (x - mean) / sd
    within = log_normal_mass((low - mean) / sd, (high - mean) / sd, (high - low) / sd)
    return max(-0.5 * scaled * scaled - math.log(sd) - LOG_SQRT_2PI - within, LEAST_LOG)


def log_mass(mean: Scalar, sd: Scalar, low: Scalar, high: Scalar, x: Scalar, y: Scalar) -> Scalar:
    if x <= low and y >= high:
        return 0.0
    x, y = max(x, low), min(y, high)
    if not x < y:
        return -math.inf
    if mean < low or mean > high:
        return min(max(_tail(mean, sd, low, high, x if mean < low else y, (y - x) / sd), LEAST_LOG), 0.0)
    within = log_normal_mass((low - mean) / sd, (high - mean) / sd, (high - low) / sd)
    return min(max(log_normal_mass((x - mean) / sd, (y - mean) / sd, (y - x) / sd) - within, LEAST_LOG), 0.0)


def peak(mean: Scalar, _sd: Scalar, low: Scalar, high: Scalar, x: Scalar, y: Scalar) -> Scalar:
    """Return the point of [x, y] nearest to the mean, inside the limits if possible."""
    return min(max(min(max(mean, low), high), x), y)


def scale(_mean: Scalar, sd: Scalar, low: Scalar, high: Scalar, _x: Scalar, _y: Scalar) -> Scalar:
    """Return the standard deviation, or the distance between the limits if smaller."""
    return min(sd, high - low)


def draw(mean: Scalar, sd: Scalar, low: Scalar, high: Scalar, x: Scalar, y: Scalar, stream: Scalar) -> Scalar:
    x, y = max(x, low), min(y, high)
    scaled = truncated_normal((x - mean) / sd, (y - mean) / sd, stream_of(stream))
    return min(max(mean + sd * scaled, x), y)


def slope(mean: Scalar, sd: Scalar, _low: Scalar, _high: Scalar, x: Scalar, _y: Scalar) -> Scalar:
    return (mean - x) / sd / sd


def least_curvature(_mean: Scalar, sd: Scalar, low: Scalar, high: Scalar, x: Scalar, y: Scalar) -> Scalar:
    """Return the second derivative of ln of the density, -inf if [x, y] reaches beyond a limit."""
    return -1.0 / sd / sd if low <= x and y <= high else -math.inf


def largest_curvature(_mean: Scalar, sd: Scalar, low: Scalar, high: Scalar, x: Scalar, y: Scalar) -> Scalar:
    """Return the second derivative of ln of the density, inf if [x, y] reaches beyond a limit."""
    return -1.0 / sd / sd if low <= x and y <= high else math.inf


class TruncatedGaussian(LeafFamily):
    """Normal distributions cut at 0, with the mean and variance of the rows: maximum likelihood (Cohen 1950)."""

    name = "truncated_gaussian"
    takes = FROM_ZERO

    def __init__(self, values: Floats) -> None:
        super().__init__(values)
        self.gaussian = Gaussian(values)
        # where the cut lies in standard deviations settles variance / mean^2, which rises from 0 to 1
        self.cuts = np.linspace(-CUT_FAR, CUT_NEAR, 2001)
        above = self._means_above(self.cuts)
        self.ratios = (1.0 + self.cuts * above - above**2) / (above - self.cuts) ** 2

    def _means_above(self, cuts: Floats) -> Floats:
        """Return the mean of a standard normal beyond each cut."""
        return np.exp(-0.5 * cuts**2 - LOG_SQRT_2PI - log_cdf(-cuts))

    def fit(self, values: Floats, weights: Floats, smoothing: float) -> Floats:
        """Return (mean, sd, 0, inf) per component; mean and sd are of the normal before the cut."""
        fitted = self.gaussian.fit(values, weights, smoothing)
        sd: Floats = fitted[:, 1]
        mean: Floats = np.maximum(fitted[:, 0], LEAST_SD * self.column.sd)
        ratio = (sd / mean) ** 2
        cut: Floats = np.interp(ratio, self.ratios, self.cuts)
        spread = np.where(ratio > self.ratios[0], mean / (self._means_above(cut) - cut), sd)
        before = np.where(ratio > self.ratios[0], -cut * spread, mean)
        return np.stack([before, spread, np.zeros_like(mean), np.full_like(mean, np.inf)], axis=1)

    def log_density(self, values: Floats, params: Floats) -> Floats:
        mean, sd = params[:, 0], params[:, 1]
        logs = self.gaussian.log_density(values, params[:, :2]) - log_cdf(mean / sd)
        return np.where(values[:, None] >= 0.0, logs, -np.inf)


def _has_room(mean: Floats, sd: Floats, low: Floats, high: Floats) -> Flags:
    """Whether the limits are distinct and not absurdly far from the mean."""
    with np.errstate(invalid="ignore", over="ignore"):
        reach, width = np.abs(np.clip(mean, low, high) - mean) / sd, (high - low) / sd
    return np.isfinite(mean) & positive(sd) & (low < high) & (reach < 1e100) & (width >= LEAST_SCALE)


def log_cdf(x: Floats) -> Floats:
    """Return ln Phi(x)."""
    return np.asarray(special("log_ndtr")(x), np.float64)


KIND = LeafKind(
    "truncated_gaussian",
    ("mean", "sd", "low", "high"),
    _has_room,
    "a finite mean, an sd from 1e-290 to 1e290, and limits of which low is below high",
    LeafFunctions(log_density, log_mass, peak, scale, draw, slope, least_curvature, largest_curvature),
    code=-1,
    support=between,
    roundings=4096.0,
    family=TruncatedGaussian,
)
