"""Gaussian leaves truncated at two limits, either of which may be infinite."""

from __future__ import annotations

import math

from certimap.circuits.leaves.gaussian import log_normal_mass, log_tail_part
from certimap.circuits.leaves.kind import LEAST_LOG, LeafFunctions
from certimap.kernels.jit import jit
from certimap.kernels.pointers import stream_of
from certimap.kernels.random import Scalar, truncated_normal

_HALF_LOG_2PI = 0.9189385332046727


@jit()
def _tail(mean: Scalar, sd: Scalar, low: Scalar, high: Scalar, x: Scalar, width: Scalar) -> Scalar:
    """Return ln of the mass of width `width` (or of the density, where it is 0) that begins at x, in a tail.

    The mean lies outside of the limits. Logs are relative to the density at the limit next to it, which may be
    e^-1e15 of the peak.
    """
    limit = low if mean < low else high
    start, off = abs(limit - mean) / sd, abs(x - limit) / sd
    part = log_tail_part(start + off, width) if width > 0.0 else -math.log(sd) - _HALF_LOG_2PI
    return part - off * (start + 0.5 * off) - log_tail_part(start, (high - low) / sd)


def log_density(mean: Scalar, sd: Scalar, low: Scalar, high: Scalar, x: Scalar, _y: Scalar) -> Scalar:
    """Return ln of the density at x."""
    if x < low or x > high:
        return -math.inf
    if mean < low or mean > high:
        return max(_tail(mean, sd, low, high, x, 0.0), LEAST_LOG)
    scaled = (x - mean) / sd
    within = log_normal_mass((low - mean) / sd, (high - mean) / sd, (high - low) / sd)
    return max(-0.5 * scaled * scaled - math.log(sd) - _HALF_LOG_2PI - within, LEAST_LOG)


def log_mass(mean: Scalar, sd: Scalar, low: Scalar, high: Scalar, x: Scalar, y: Scalar) -> Scalar:
    """Return ln of the mass of [x, y]."""
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
    """Draw inside [x, y]."""
    x, y = max(x, low), min(y, high)
    scaled = truncated_normal((x - mean) / sd, (y - mean) / sd, stream_of(stream))
    return min(max(mean + sd * scaled, x), y)


def slope(mean: Scalar, sd: Scalar, _low: Scalar, _high: Scalar, x: Scalar, _y: Scalar) -> Scalar:
    """Return the derivative of ln of the density at x."""
    return (mean - x) / sd / sd


def least_curvature(_mean: Scalar, sd: Scalar, low: Scalar, high: Scalar, x: Scalar, y: Scalar) -> Scalar:
    """Return the second derivative of ln of the density, -inf if [x, y] reaches beyond a limit."""
    return -1.0 / sd / sd if low <= x and y <= high else -math.inf


def largest_curvature(_mean: Scalar, sd: Scalar, low: Scalar, high: Scalar, x: Scalar, y: Scalar) -> Scalar:
    """Return the second derivative of ln of the density, inf if [x, y] reaches beyond a limit."""
    return -1.0 / sd / sd if low <= x and y <= high else math.inf


FUNCTIONS = LeafFunctions(log_density, log_mass, peak, scale, draw, slope, least_curvature, largest_curvature)
