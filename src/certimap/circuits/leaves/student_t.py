"""Leaves of Student's t distribution with any positive degrees of freedom."""

from __future__ import annotations

import math

import numpy as np

from certimap.circuits.leaves.kind import LEAST_LOG, LeafFamily, LeafFunctions, LeafKind, nearest_to_mean
from certimap.core.arrays import Flags, Floats
from certimap.core.rounding import LEAST_SQUARED_SCALE
from certimap.kernels.jit import jit
from certimap.kernels.pointers import stream_of
from certimap.kernels.random import Scalar, uniform

_LOG_PI = 1.1447298858494002
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
NARROW = 0.5  # in units of the length over which the density changes: 20 nodes integrate that to rounding
LEAST_SHARE = 0.05  # share of the mass above which rejection from the whole line is cheaper than bisection
_MAX_TERMS = 20000
DEGREES = 4.0  # of fitted leaves
STEPS = 20  # of a fit


@jit()
def log_gamma_ratio(z: Scalar) -> Scalar:
    """Return ln Gamma(z + 1/2) - ln Gamma(z); by its asymptotic series from z = 12, since the two would cancel."""
    if z < 12.0:
        return math.lgamma(z + 0.5) - math.lgamma(z)
    y = 1.0 / (z * z)
    series = 1.0 / 8.0 - y * (1.0 / 192.0 - y * (1.0 / 640.0 - y * (17.0 / 14336.0 - y * 31.0 / 18432.0)))
    return 0.5 * math.log(z) - series / z


@jit()
def log_t(df: Scalar, z: Scalar) -> Scalar:
    """Return ln of the standard density at z."""
    constant = log_gamma_ratio(0.5 * df) - 0.5 * (math.log(df) + _LOG_PI)
    z = abs(z)
    if z > 1e100 * math.sqrt(df):
        return constant - (df + 1.0) * (math.log(z) - 0.5 * math.log(df))
    return constant - 0.5 * (df + 1.0) * math.log1p(z * z / df)


@jit()
def beta_fraction(a: Scalar, b: Scalar, x: Scalar) -> Scalar:
    """Return the continued fraction of the incomplete beta function (modified Lentz), for x < (a+1)/(a+b+2)."""
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / d
    h = d
    for m in range(1, _MAX_TERMS):
        even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m))
        d, c = 1.0 / (1.0 + even * d), 1.0 + even / c
        h *= d * c
        odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0))
        d, c = 1.0 / (1.0 + odd * d), 1.0 + odd / c
        h *= d * c
        if abs(d * c - 1.0) < 1e-16:
            break
    return h


@jit()
def is_central(df: Scalar, z: Scalar) -> bool:
    """Whether the continued fraction converges for the mass between 0 and z (rather than the tail)."""
    return z * z * (0.5 * df + 1.0) < 1.5 * df


@jit()
def log_center(df: Scalar, z: Scalar) -> Scalar:
    """Return ln of the mass of [0, z], z > 0, for a central z: z f(z) times a fraction."""
    x = z * z / (df + z * z)
    return log_t(df, z) + math.log(z) + math.log(beta_fraction(0.5, 0.5 * df, x))


@jit()
def log_tail(df: Scalar, z: Scalar) -> Scalar:
    """Return ln of the mass above z >= 0."""
    if z == math.inf:
        return -math.inf
    if z == 0.0:
        return math.log(0.5)
    if is_central(df, z):
        return math.log(0.5 - math.exp(log_center(df, z)))
    if z > 1e100 * math.sqrt(df):
        return log_t(df, z) + math.log(z) - math.log(df)
    x = df / (df + z * z)
    return log_t(df, z) + math.log(z) - math.log(df) + math.log(beta_fraction(0.5 * df, 0.5, x))


@jit()
def log_narrow(df: Scalar, low: Scalar, width: Scalar) -> Scalar:
    """Return ln of the mass of [low, low + width] by Gauss-Legendre quadrature."""
    middle, half = low + 0.5 * width, 0.5 * width
    top, total = log_t(df, middle), 0.0
    for k in range(len(_NODES)):
        total += _WEIGHTS[k] * math.exp(log_t(df, middle + half * _NODES[k]) - top)
    return top + math.log(half * total) if half > 0.0 else -math.inf


@jit()
def log_t_mass(df: Scalar, low: Scalar, high: Scalar, width: Scalar) -> Scalar:
    """Return ln of the mass of [low, high] under the standard distribution; `width` is high - low, given apart."""
    if not width > 0.0:
        return -math.inf
    if high < 0.0:
        low, high = -high, -low
    if low == -math.inf and high == math.inf:
        return 0.0
    nearest = max(low, 0.0)
    spread = (df + nearest * nearest) / (df + 1.0)
    if width * max(nearest, math.sqrt(spread)) < NARROW * spread:
        return log_narrow(df, low, width)
    if low >= 0.0:
        below = log_tail(df, low)
        return below + math.log1p(-math.exp(log_tail(df, high) - below))
    total = 0.0
    for end in (-low, high):
        if end > 0.0:
            total += math.exp(log_center(df, end)) if is_central(df, end) else 0.5 - math.exp(log_tail(df, end))
    return math.log(total)


def log_density(mean: Scalar, scale: Scalar, df: Scalar, _d: Scalar, x: Scalar, _y: Scalar) -> Scalar:
    return max(log_t(df, (x - mean) / scale) - math.log(scale), LEAST_LOG)


def log_mass(mean: Scalar, scale: Scalar, df: Scalar, _d: Scalar, low: Scalar, high: Scalar) -> Scalar:
    return max(log_t_mass(df, (low - mean) / scale, (high - mean) / scale, (high - low) / scale), LEAST_LOG)


def length(_mean: Scalar, scale: Scalar, df: Scalar, _d: Scalar, _x: Scalar, _y: Scalar) -> Scalar:
    """Return the inverse root of the curvature of the log density at its peak."""
    return scale * math.sqrt(df / (df + 1.0))


def draw(mean: Scalar, scale: Scalar, df: Scalar, _d: Scalar, low: Scalar, high: Scalar, stream: Scalar) -> Scalar:
    """Draw inside [low, high].

    By rejection from the whole line (Bailey, "Polar generation of random variates with the t-distribution", 1994)
    if much of the mass is inside, else by bisection of the mass.
    """
    a, b = (low - mean) / scale, (high - mean) / scale
    total = log_t_mass(df, a, b, b - a)
    if total > math.log(LEAST_SHARE):
        while True:
            u = 2.0 * uniform(stream_of(stream)) - 1.0
            v = 2.0 * uniform(stream_of(stream)) - 1.0
            w = u * u + v * v
            if 0.0 < w < 1.0:
                z = u * math.sqrt(df * math.expm1(-2.0 / df * math.log(w)) / w)
                if a <= z <= b:
                    return min(max(mean + scale * z, low), high)
    sign = 1.0
    if b <= 0.0 or a == -math.inf:
        a, b, sign = -b, -a, -1.0
    target = total + math.log(1.0 - uniform(stream_of(stream)))
    left, right, step = a, b, max(abs(a), 1.0)
    while right == math.inf:
        if log_t_mass(df, a, left + step, left + step - a) >= target:
            right = left + step
        else:
            left, step = left + step, 2.0 * step
    for _ in range(60):
        middle = 0.5 * (left + right)
        if log_t_mass(df, a, middle, middle - a) < target:
            left = middle
        else:
            right = middle
    return min(max(mean + sign * scale * 0.5 * (left + right), low), high)


def slope(mean: Scalar, scale: Scalar, df: Scalar, _d: Scalar, x: Scalar, _y: Scalar) -> Scalar:
    z = (x - mean) / scale
    return -(df + 1.0) * z / (df + z * z) / scale


@jit()
def bend(df: Scalar, u: Scalar) -> Scalar:
    """Return the second derivative of ln of the standard density at z^2 = u; it increases up to u = 3 df."""
    return -(df + 1.0) * (df - u) / (df + u) / (df + u)


@jit()
def squares(mean: Scalar, scale: Scalar, low: Scalar, high: Scalar) -> tuple[Scalar, Scalar]:
    """Return the least and the largest square of z in [low, high]."""
    a, b = (low - mean) / scale, (high - mean) / scale
    least = 0.0 if a <= 0.0 <= b else min(a * a, b * b)
    return least, min(max(a * a, b * b), 1e200)


def least_curvature(mean: Scalar, scale: Scalar, df: Scalar, _d: Scalar, low: Scalar, high: Scalar) -> Scalar:
    """Return the least second derivative of ln of the density in [low, high]: at an end or at the mean."""
    u, v = squares(mean, scale, low, high)
    return min(bend(df, u), bend(df, v)) / scale / scale


def largest_curvature(mean: Scalar, scale: Scalar, df: Scalar, _d: Scalar, low: Scalar, high: Scalar) -> Scalar:
    """Return the largest second derivative of ln of the density in [low, high]."""
    u, v = squares(mean, scale, low, high)
    return max(bend(df, u), bend(df, min(max(3.0 * df, u), v))) / scale / scale


class StudentT(LeafFamily):
    """Student t distributions of 4 degrees of freedom, by iteratively reweighted rows (Lange et al. 1989)."""

    name = "student_t"

    def fit(self, values: Floats, weights: Floats, smoothing: float) -> Floats:
        """Return (centre, scale, 4) per component."""
        totals = weights.sum(axis=0)
        centre, variance = self.column.means(values, weights, smoothing), np.full(len(totals), self.column.sd**2)
        for _ in range(STEPS):
            squares = (values[:, None] - centre) ** 2
            shares = weights * (DEGREES + 1.0) / (DEGREES + squares / variance)
            centre = self.column.means(values, shares, smoothing)
            variance = self.column.variances(np.einsum("nk,nk->k", shares, squares), totals, smoothing)
        return np.stack([centre, np.sqrt(variance), np.full(len(totals), DEGREES)], axis=1)

    def log_density(self, values: Floats, params: Floats) -> Floats:
        centre, scale, df = params.T
        top = math.lgamma(0.5 * (DEGREES + 1.0)) - math.lgamma(0.5 * DEGREES)
        squares = ((values[:, None] - centre) / scale) ** 2
        return top - 0.5 * np.log(df * math.pi) - np.log(scale) - 0.5 * (df + 1.0) * np.log1p(squares / df)


def _is_valid(mean: Floats, scale: Floats, df: Floats) -> Flags:
    return (np.abs(mean) <= 1e150) & (scale >= LEAST_SQUARED_SCALE) & (scale <= 1e150) & (df >= 1e-3) & (df <= 1e6)


KIND = LeafKind(
    "student_t",
    ("mean", "scale", "df"),
    _is_valid,
    "a mean up to 1e150, a scale from 1e-150 to 1e150, and .001 to 1e6 degrees of freedom",
    LeafFunctions(log_density, log_mass, nearest_to_mean, length, draw, slope, least_curvature, largest_curvature),
    code=-5,
    roundings=32768.0,
    family=StudentT,
)
