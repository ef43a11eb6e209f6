"""Densities and masses of Gaussians, rounded to a side."""

from __future__ import annotations

import math

import numpy as np

from certimap.checker.numbers import UNIT, Floats

HALF_LOG_2PI = 0.9189385332046727
FARTHEST = 1e300  # nats below its peak beyond which a density is told no closer


def log_peaks(mean: Floats, sd: Floats, low: Floats, high: Floats, side: int) -> Floats:
    """Return the logs of the largest densities in intervals, rounded to a side; arrays that broadcast."""
    with np.errstate(over="ignore"):
        scaled = (np.clip(mean, low, high) - mean) / sd
        square = 0.5 * scaled * scaled
    square = np.where(square <= FARTHEST, square, FARTHEST if side > 0 else np.inf)
    slack = 8.0 * np.where(np.isfinite(square), square, 0.0) + 2.0 * np.abs(np.log(sd)) + 4.0
    return -square - np.log(sd) - HALF_LOG_2PI + side * slack * UNIT


def log_peak(mean: float, sd: float, low: float, high: float, side: int) -> float:
    """The same for one leaf and one interval."""
    return float(log_peaks(np.array(mean), np.array(sd), np.array(low), np.array(high), side))


def log_mass(mean: float, sd: float, low: float, high: float, side: int) -> float:
    """Return the log of a Gaussian's mass in an interval, rounded to a side; of one value its density's."""
    if low == high:
        return log_peak(mean, sd, low, high, side)
    a, b = (low - mean) / sd, (high - mean) / sd
    if a + b > 0.0:
        a, b = -b, -a
    reach = sum(x * x for x in (a, b) if math.isfinite(x))
    near, far = 0.5 * math.erfc(-b / math.sqrt(2.0)), 0.5 * math.erfc(-a / math.sqrt(2.0))
    found = [near - far + side * (8.0 + 4.0 * reach) * UNIT * near] if near > 1e-290 else []
    candidates = [math.log(x) for x in found if x > 0.0]
    if math.isfinite(b) and b < -1.0 and a == -math.inf:  # Mills' ratio lies between these
        log_density = -0.5 * b * b - HALF_LOG_2PI
        candidates.append(log_density - math.log(-b) + (0.0 if side > 0 else -math.log1p(1.0 / (b * b))))
    if math.isfinite(a) and math.isfinite(b):
        ends = [-0.5 * x * x for x in (a, b)]
        height = (0.0 if a <= 0.0 <= b else max(ends)) if side > 0 else min(ends)
        candidates.append(height - HALF_LOG_2PI + math.log((high - low) / sd))
    if not candidates:
        return math.log(near) if near > 0.0 and side > 0 else (-745.0 if side > 0 else -math.inf)
    best = min(candidates) if side > 0 else max(candidates)
    return best + side * (16.0 + 8.0 * abs(best) + 8.0 * reach) * UNIT
