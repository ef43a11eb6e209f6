"""Masses and draws of gamma and beta leaves, by quadrature over the log of x, or of its odds.

With x (or its odds) equal to exp(d) times the value at the mean, the density of d is proportional to exp(fall), a
smooth log-concave function with its peak at d = 0, for any shapes a and b; b = inf is the gamma distribution.
"""

from __future__ import annotations

import math

import numpy as np

from certimap.circuits.leaves.kind import LOG_SQRT_2PI
from certimap.circuits.leaves.poisson import stirling_error
from certimap.kernels.jit import jit
from certimap.kernels.pointers import stream_of
from certimap.kernels.random import Scalar, uniform

MOST_SHAPE = 1e4  # with larger ones, the rounding of x alone costs more than 64 units of a log's last place
NEGLIGIBLE = 1e-18
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)


@jit()
def log_whole(a: Scalar, b: Scalar) -> Scalar:
    """Return ln of the integral of exp(fall)."""
    rest = 0.0 if b == math.inf else stirling_error(b) - stirling_error(a + b) + 0.5 * math.log1p(a / b)
    return stirling_error(a) + LOG_SQRT_2PI - 0.5 * math.log(a) + rest


@jit()
def fall(a: Scalar, b: Scalar, d: Scalar) -> Scalar:
    """Return ln of the density of d over its peak."""
    if d > 700.0:
        return -math.inf if b == math.inf else -b * d
    if b == math.inf:
        return a * (d - math.expm1(d)) if d > -math.inf else d
    return a * d - (a + b) * math.log1p(a / (a + b) * math.expm1(d)) if d > -math.inf else d


@jit()
def step_at(a: Scalar, b: Scalar, d: Scalar) -> Scalar:
    """Return a length over which exp(fall) changes little enough for 20 nodes."""
    x = math.exp(min(d, 700.0))
    if b == math.inf:
        slope, bend = a - a * x, a * x
    else:
        share = a * x / (b + a * x)
        slope, bend = a - (a + b) * share, (a + b) * share * (1.0 - share)
    return 1.0 / (0.3 + 0.25 * abs(slope) + 0.5 * math.sqrt(bend))


@jit()
def panel(
    a: Scalar, b: Scalar, low: Scalar, high: Scalar, width: Scalar, target: Scalar
) -> tuple[Scalar, Scalar, Scalar]:
    """Return the integral of exp(fall) over panels of [low, high], over its value at the highest point.

    It starts there, and ends with the panel that reaches `target`, and returns its ends. `width` is high - low.
    """
    top = min(max(0.0, low), high)
    peak, total = fall(a, b, top), 0.0
    for side in range(2):
        at, end, sign = (top, high, 1.0) if side == 0 else (top, low, -1.0)
        while at != end:
            length, step = (width if at in (low, high) else abs(end - at)), step_at(a, b, at)
            half, far = 0.5 * min(length, step), (end if length <= step else at + sign * step)
            part = 0.0
            for k in range(len(_NODES)):
                part += _WEIGHTS[k] * math.exp(fall(a, b, at + sign * half * (1.0 + _NODES[k])) - peak)
            total += half * part
            if total >= target:
                return total, at, far
            if half * part < NEGLIGIBLE * total:
                break
            at = far
    return total, top, top


@jit()
def log_area(a: Scalar, b: Scalar, low: Scalar, high: Scalar, width: Scalar) -> Scalar:
    """Return ln of the mass of [low, high]."""
    if not width > 0.0:
        return -math.inf
    if low == -math.inf and high == math.inf:
        return 0.0
    top = fall(a, b, min(max(0.0, low), high))
    return top + math.log(panel(a, b, low, high, width, math.inf)[0]) - log_whole(a, b) if top > -math.inf else top


@jit()
def draw_between(a: Scalar, b: Scalar, low: Scalar, high: Scalar, pointer: Scalar) -> Scalar:
    """Draw d inside [low, high]: a panel by its mass, then by rejection, as exp(fall) falls along a panel."""
    total = panel(a, b, low, high, high - low, math.inf)[0]
    start, far = panel(a, b, low, high, high - low, uniform(stream_of(pointer)) * total)[1:]
    top = fall(a, b, start)
    while True:
        d = start + (far - start) * uniform(stream_of(pointer))
        if math.log(1.0 - uniform(stream_of(pointer))) <= fall(a, b, d) - top:
            return d
