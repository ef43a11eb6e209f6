"""Densities and masses of Gaussians, rounded to a side."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from certimap.checker.numbers import UNIT, Floats

HALF_LOG_2PI = 0.9189385332046727
FARTHEST = 1e300  # nats below its peak; beyond, a density is bounded no closer
SMALLEST = 5e-324  # spacing of the numbers next to 0


def total_of(terms: Sequence[float], side: int) -> float:
    """Return the sum of a few terms, each right to its last places, rounded to `side`."""
    size = sum(abs(x) for x in terms)
    if size <= FARTHEST:
        return math.fsum(terms) + side * (16.0 + 8.0 * size) * UNIT
    if side < 0:
        return -math.inf
    return -0.5 * FARTHEST if all(x <= 1e-3 * FARTHEST for x in terms) else math.inf


def log_peaks(mean: Floats, sd: Floats, low: Floats, high: Floats, side: int) -> Floats:
    """Return the logs of the largest densities in intervals, rounded to a side; arrays that broadcast."""
    nearest = np.clip(mean, low, high)
    with np.errstate(over="ignore"):
        away = nearest - mean
        scaled = np.where(np.isfinite(away), away / sd, (0.5 * nearest - 0.5 * mean) / sd * 2.0)
        square = 0.5 * scaled * scaled
    square = np.where(square > FARTHEST, FARTHEST if side > 0 else np.inf, square)  # NaN stays NaN
    slack = 8.0 * np.where(np.isfinite(square), square, 0.0) + 2.0 * np.abs(np.log(sd)) + 4.0
    return -square - np.log(sd) - HALF_LOG_2PI + side * slack * UNIT


def log_peak(mean: float, sd: float, low: float, high: float, side: int) -> float:
    """Return `log_peaks` for one leaf and one interval."""
    return float(log_peaks(np.array(mean), np.array(sd), np.array(low), np.array(high), side))


def log_mass(mean: float, sd: float, low: float, high: float, side: int) -> float:
    """Return the log of a Gaussian's mass in an interval, or of its density at a single value, rounded."""
    if low == high:
        return log_peak(mean, sd, low, high, side)
    a, b = _scaled(low, mean, sd), _scaled(high, mean, sd)
    if math.isnan(a) or math.isnan(b):
        return side * math.inf
    if a + b > 0.0:
        a, b = -b, -a  # a lies below the mean, and further from it than b
    near, far = 0.5 * math.erfc(-b / math.sqrt(2.0)), 0.5 * math.erfc(-a / math.sqrt(2.0))
    found: list[float] = []
    if near > 1e-290:  # the rounding of b matters below the mean, where tails are steep
        error = (8.0 + 4.0 * min(b, 0.0) ** 2) * near + ((8.0 + 4.0 * a * a) * far if far > 0.0 else 0.0)
        mass = near - far + side * error * UNIT
        found += [total_of([math.log(mass)], side)] if mass > 0.0 else []
    if math.isfinite(b) and b < -1.0 and (side > 0 or a == -math.inf):  # Mills' ratio lies between these
        slope = 0.0 if side > 0 else -math.log1p(1.0 / (b * b))
        found.append(total_of([-0.5 * b * b, -HALF_LOG_2PI, -math.log(-b), slope], side))
    width = (high - low) / sd + side * SMALLEST
    if math.isfinite(a) and math.isfinite(b) and 0.0 < width < math.inf:
        ends = -0.5 * a * a, -0.5 * b * b
        height = (0.0 if b >= 0.0 else ends[1]) if side > 0 else ends[0]
        found.append(total_of([height, -HALF_LOG_2PI, math.log(width)], side))
    return min(found, default=-600.0) if side > 0 else max(found, default=-math.inf)


def _scaled(x: float, mean: float, sd: float) -> float:
    away = x - mean
    return away / sd if math.isfinite(away) else (0.5 * x - 0.5 * mean) / sd * 2.0
