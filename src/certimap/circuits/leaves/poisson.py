"""Poisson leaves, and the functions of counts that they share with negative binomial ones.

By the saddle-point expansion of Loader, "Fast and accurate computation of binomial probabilities" (2000). `size`
is that of a negative binomial distribution, 0 for a Poisson distribution.
"""

from __future__ import annotations

import math

import numpy as np

from certimap.circuits.leaves import LeafFunctions, LeafKind
from certimap.circuits.leaves.kind import LOG_SQRT_2PI, CountFamily, from_zero, is_count, positive, special
from certimap.core.arrays import Flags, Floats
from certimap.kernels.jit import jit
from certimap.kernels.pointers import stream_of
from certimap.kernels.random import Scalar, uniform

NEGLIGIBLE = 1e-18  # relative to the sum so far: smaller terms, and all beyond, are lost in rounding


@jit()
def stirling_error(k: Scalar) -> Scalar:
    """Return ln k! - ln(sqrt(2 pi k) (k/e)^k) of a number k > 0."""
    if k < 16.0:
        return math.lgamma(k + 1.0) - (k + 0.5) * math.log(k) + k - LOG_SQRT_2PI
    y = 1.0 / (k * k)
    return (1.0 / 12.0 - y * (1.0 / 360.0 - y * (1.0 / 1260.0 - y * (1.0 / 1680.0 - y / 1188.0)))) / k


@jit()
def deviance(k: Scalar, mean: Scalar) -> Scalar:
    """Return k ln(k / mean) + mean - k, which is 0 at k = mean, without cancellation near it."""
    if abs(k - mean) < 0.1 * (k + mean):
        v = (k - mean) / (k + mean)
        total, term, j = (k - mean) * v, 2.0 * k * v, 1.0
        while True:
            term *= v * v
            more = total + term / (2.0 * j + 1.0)
            if more == total:
                return total
            total = more
            j += 1.0
    return k * math.log(k / mean) + mean - k


@jit()
def log_probability(mean: Scalar, size: Scalar, k: Scalar) -> Scalar:
    """Return ln of the probability of a whole number k >= 0."""
    if size > 0.0:
        if k == 0.0:
            return -size * math.log1p(mean / size)
        n = size + k
        off = deviance(size, n / (1.0 + mean / size)) + deviance(k, n / (1.0 + size / mean))
        errors = stirling_error(n) - stirling_error(size) - stirling_error(k)
        return errors - off + 0.5 * (math.log(size / n) - math.log(k)) - LOG_SQRT_2PI
    if k == 0.0:
        return -mean
    return -stirling_error(k) - deviance(k, mean) - 0.5 * math.log(k) - LOG_SQRT_2PI


@jit()
def densest(mean: Scalar, size: Scalar, low: Scalar, high: Scalar) -> Scalar:
    """Return the most probable whole number in [low, high]; one outside if there is none."""
    first = 0.0 if low <= 0.0 else math.ceil(low)
    top = max(math.floor(mean - mean / size if size > 0.0 else mean), first)
    return top if top <= high else math.floor(high)


def log_density(mean: Scalar, size: Scalar, _c: Scalar, _d: Scalar, x: Scalar, _y: Scalar) -> Scalar:
    if x < 0.0 or x == math.inf or x != math.floor(x):
        return -math.inf
    return log_probability(mean, size, x)


def log_mass(mean: Scalar, size: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar) -> Scalar:
    """Return ln of the mass of the whole numbers in [low, high]: a sum from the largest term outward.

    At most about 12 standard deviations of terms, or 41 (1 + mean / size).
    """
    if low <= 0.0 and high == math.inf:
        return 0.0
    if low == math.inf:
        return -math.inf
    low = 0.0 if low <= 0.0 else math.ceil(low)
    top = densest(mean, size, low, high)
    if top < low or top > high:
        return -math.inf
    log_top = log_probability(mean, size, top)
    total, lost = 1.0, 0.0
    for sign in (1.0, -1.0):
        k = top + sign
        while low <= k <= high:
            term = math.exp(log_probability(mean, size, k) - log_top)
            if term < NEGLIGIBLE * total:
                break
            more = term - lost
            grown = total + more
            lost = (grown - total) - more
            total = grown
            k += sign
    return min(log_top + math.log(total), 0.0)


def peak(mean: Scalar, size: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar) -> Scalar:
    """Return the most probable whole number in [low, high]; an end if there is none."""
    if low == math.inf:
        return low
    return min(max(densest(mean, size, low, high), low), high)


def scale(mean: Scalar, size: Scalar, _c: Scalar, _d: Scalar, _x: Scalar, _y: Scalar) -> Scalar:
    """Return the standard deviation, at least 1."""
    return max(math.sqrt(mean + mean * mean / size if size > 0.0 else mean), 1.0)


def draw(mean: Scalar, size: Scalar, _c: Scalar, _d: Scalar, low: Scalar, high: Scalar, stream: Scalar) -> Scalar:
    low = 0.0 if low <= 0.0 else math.ceil(low)
    last = high if high == math.inf else math.floor(high)
    top = densest(mean, size, low, high)
    log_top = log_probability(mean, size, top)
    total = 0.0
    up, down = top, top - 1.0
    for round in range(2):
        left = uniform(stream_of(stream)) * total if round else math.inf
        up, down = top, top - 1.0
        while True:
            above = math.exp(log_probability(mean, size, up) - log_top) if up <= last else 0.0
            below = math.exp(log_probability(mean, size, down) - log_top) if down >= low else 0.0
            if above + below <= NEGLIGIBLE * total:
                break
            if round == 0:
                total += above + below
            elif left < above:
                return up
            elif left < above + below:
                return down
            else:
                left -= above + below
            up += 1.0
            down -= 1.0
    return top


class Poisson(CountFamily):
    """Poisson distributions of counts."""

    name = "poisson"

    def fit(self, values: Floats, weights: Floats, smoothing: float) -> Floats:
        """Return the mean per component."""
        return self.means(values, weights, smoothing)

    def log_density(self, values: Floats, params: Floats) -> Floats:
        log_factorial = np.asarray(special("gammaln")(np.maximum(values, 0.0) + 1.0), np.float64)
        logs = values[:, None] * np.log(params[:, 0]) - params[:, 0] - log_factorial[:, None]
        return np.where(is_count(values)[:, None], logs, -np.inf)


def _is_valid(mean: Floats) -> Flags:
    return positive(mean) & (mean <= 1e9)


KIND = LeafKind(
    "poisson",
    ("mean",),
    _is_valid,
    "a positive mean of at most 1e9",
    LeafFunctions(log_density, log_mass, peak, scale, draw),
    code=-6,
    support=from_zero,
    is_whole=True,
    roundings=256.0,
    family=Poisson,
)
