"""The checker's densities and masses of real variables, and the cells into which a proof cuts them, all rounded.

The sizes of a formula's terms bound its rounding error. Each density has one peak, so that its largest value in an
interval is at the mode, or at the end nearest to it. A leaf's value in a cell is its largest density there, or its
mass if the variable is summed out. An observed value is a cell of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from certimap.checker.models import Arrays, CheckBudget, Question, Rejected, Stored
from certimap.checker.numbers import UNIT, Floats, Ints

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


SERIES_TERMS = 1 << 14
LOG_HALF = -math.log(2.0)


def square_of(p: Sequence[float], x: float) -> Fraction:
    """Return z^2 / dof at x."""
    return (Fraction(x) - Fraction(p[0])) ** 2 / (Fraction(p[1]) ** 2 * Fraction(p[2]))


def log1p_of(ratio: Fraction) -> float:
    """Return ln(1 + ratio), right to its last places."""
    if ratio < 1e300:
        return math.log1p(ratio)
    return math.log(ratio.numerator) - math.log(ratio.denominator)


def log_halves(p: Sequence[float], x: float, side: int) -> tuple[float, float]:
    """Return the logs of the masses between the centre and a value, and beyond the value, rounded to a side.

    With r = z^2 / dof, u = r / (1 + r) and I the regularised incomplete beta function, they are
    I_u(1/2, dof/2) / 2 and I_(1-u)(dof/2, 1/2) / 2, which add up to 1/2.
    """
    if x == p[0] or math.isinf(x):
        return (-math.inf, LOG_HALF) if x == p[0] else (LOG_HALF, -math.inf)
    r, half = square_of(p, x), 0.5 * p[2]
    is_far = r > 1 or (r > 0.005 and r * Fraction(p[2]) > 9)
    a, b, odds = (half, 0.5, 1 / r) if is_far else (0.5, half, r)
    ends = [_log_half_beta(a, b, odds, way) for way in (-1, 1)]
    known = ends[side > 0]
    left = 0.5 - math.exp(ends[side < 0]) + side * 4.0 * UNIT
    other = math.log(left) if left > 0.0 else -math.inf
    return (other, known) if is_far else (known, other)


def _log_half_beta(a: float, b: float, odds: Fraction, side: int) -> float:
    """Return ln(I_u(a, b) / 2), u = odds / (1 + odds), rounded to a side.

    I_u(a, b) is u^a (1-u)^b / (a B(a, b)) times the sum over n of products of u (a + b + k) / (a + 1 + k), k < n
    (DLMF 8.17.8). The ratios of terms tend to u monotonically, so that a geometric series bounds the rest.
    """
    u, total, term, factor, n = float(odds / (1 + odds)), 1.0, 1.0, math.inf, 0
    while n < SERIES_TERMS and (factor >= 1.0 or term > 1e-18 * total):
        term *= u * (a + b + n) / (a + 1.0 + n)
        total += term
        n += 1
        factor = u * max(1.0, (a + b + n) / (a + 1.0 + n)) * (1.0 + 8.0 * UNIT)  # bounds every later ratio
    if side > 0:
        total = total + term * factor / (1.0 - factor) if factor < 1.0 else math.inf
    if not total < math.inf:
        return LOG_HALF if side > 0 else -math.inf
    beta = [math.lgamma(a + b), -math.lgamma(a), -math.lgamma(b)]
    powers = [-a * log1p_of(1 / odds), -b * log1p_of(odds)]
    terms = [*powers, *beta, -math.log(a), math.log(total), LOG_HALF, side * (16.0 + 8.0 * n) * UNIT]
    found = total_of(terms, side)
    return min(found, LOG_HALF) if side > 0 else found


def log_student(p: Sequence[float], low: float, high: float, side: int) -> float:
    """Return the log of the mass of an interval, rounded to a side."""
    if low < p[0] < high:
        first, second = (log_halves(p, x, side)[0] for x in (low, high))
        top, least = max(first, second), min(first, second)
        return total_of([top, math.log1p(math.exp(least - top))], side) if top > -math.inf else top
    near, far = (low, high) if low >= p[0] else (high, low)
    inside, beyond = log_halves(p, far, side)[0], log_halves(p, near, side)[1]
    inside_less, beyond_less = log_halves(p, near, -side)[0], log_halves(p, far, -side)[1]
    found = _less(inside, inside_less, side), _less(beyond, beyond_less, side)
    return min(found) if side > 0 else max(found)


def _less(more: float, less: float, side: int) -> float:
    """Return ln(e^more - e^less), rounded to a side."""
    gap = less - more - side * 8.0 * UNIT * (1.0 + abs(more) + abs(less)) if less > -math.inf else less
    return total_of([more, math.log(-math.expm1(gap))], side) if gap < 0.0 else -math.inf


TRUNCATED, UNIFORM, EXPONENTIAL, LAPLACE, STUDENT_T, POISSON, GEOMETRIC = range(-1, -8, -1)
BETA, GAMMA, LOGNORMAL, NEGATIVE_BINOMIAL = range(-8, -12, -1)
FIRST_NAMED = ("truncated_gaussian", "uniform", "exponential", "laplace", "student_t", "poisson", "geometric")
NAMED = (*FIRST_NAMED, "beta", "gamma", "lognormal", "negative_binomial")
KINDS = tuple(range(-1, -12, -1))
COUNTS = (POISSON, GEOMETRIC, NEGATIVE_BINOMIAL)
NAMES: dict[str, int] = dict(zip(NAMED, KINDS, strict=True))
UNKNOWN = -12  # model files may number kinds freely, and give their names
LOG_PI = 1.1447298858494002
FAR_TAIL = 30.0  # deviations from the mean
MANY_COUNTS = 1000.0
TINY = 1e-320  # exceeds the error of numbers next to 0
MOST_TERMS = 1e6  # of a sum over counts, on either side of its largest term


def with_own_codes(arrays: Arrays) -> Arrays:
    """Return a circuit's arrays with the kinds of its leaves, named in the file, in this module's codes."""
    given = np.asarray(arrays["kind"], np.int64)
    names: list[str] = arrays["leaf_names"].tolist() if "leaf_names" in arrays else []
    own = given.copy()
    codes: list[int] = np.unique(given[given < 0]).tolist()
    for code in codes:
        name = names[-code - 1] if -code <= len(names) else ""
        own[given == code] = NAMES.get(name, UNKNOWN)
    return {**arrays, "kind": own}


def support(kind: int, p: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the interval outside which a density is 0."""
    if kind == TRUNCATED:
        return p[2], p[3]
    if kind in (UNIFORM, BETA):
        return (p[0], p[1]) if kind == UNIFORM else (0.0, 1.0)
    return (-math.inf if kind in (LAPLACE, STUDENT_T) else 0.0), math.inf


def log_density(kind: int, p: Sequence[float], x: float, side: int) -> float:
    """Return the log of a density, or of the probability of a whole number, at x inside the support."""
    if kind == TRUNCATED:
        whole = total_of([log_peak(p[0], p[1], x, x, side), -log_mass(p[0], p[1], p[2], p[3], -side)], side)
        return (min if side > 0 else max)(whole, _log_tail_density(p, x, side))
    if kind == UNIFORM:
        return total_of([-_log_width(p[0], p[1])], side)
    if kind == EXPONENTIAL:
        return total_of([math.log(p[0]), -p[0] * x], side)
    if kind == LAPLACE:
        return total_of([-abs(_scaled(x, p[0], p[1])), -math.log(2.0), -math.log(p[1])], side)
    if kind == STUDENT_T:
        half, log_ratio = 0.5 * p[2], log1p_of(square_of(p, x)) if math.isfinite(x) else math.inf
        terms = [math.lgamma(half + 0.5), -math.lgamma(half), -0.5 * math.log(p[2]), -0.5 * LOG_PI]
        return total_of([*terms, -math.log(p[1]), -(half + 0.5) * log_ratio], side)
    if kind in (BETA, GAMMA):
        rest = [_times(p[1] - 1.0, 1.0 - x, -x) if kind == BETA else -p[1] * x, _times(p[0] - 1.0, x, x - 1.0)]
        return total_of([*log_constants(kind, p), *rest], side) if min(rest) > -math.inf else -math.inf
    if kind == LOGNORMAL:
        if not 0.0 < x < math.inf:
            return -math.inf
        z, log = (math.log(x) - p[0]) / p[1], math.log(x)
        off = side * 4.0 * UNIT * abs(z) * (abs(log) + abs(p[0])) / p[1]
        return total_of([*log_constants(kind, p), -0.5 * z * z, off, -log], side)
    if x != math.floor(x) or x == math.inf:
        return -math.inf
    if kind == POISSON and x >= MANY_COUNTS and abs(x - p[0]) <= 0.1 * p[0]:
        return _log_many_counts(p[0], x, side)
    if kind == POISSON:
        return total_of([x * math.log(p[0]), -p[0], -math.lgamma(x + 1.0)], side)
    if kind == NEGATIVE_BINOMIAL:
        ways = [math.lgamma(x + p[1]), -math.lgamma(p[1]), -math.lgamma(x + 1.0)]
        return total_of([*ways, -p[1] * math.log1p(p[0] / p[1]), -x * math.log1p(p[1] / p[0])], side)
    return total_of([math.log(p[0]), x * math.log1p(-p[0])], side)


def _times(power: float, x: float, less: float) -> float:
    """Return power ln x, x also given less 1."""
    return (
        0.0 if power == 0.0 else power * (math.log1p(less) if x > 0.5 else math.log(x)) if x > 0.0 else -math.inf
    )


def log_constants(kind: int, p: Sequence[float]) -> list[float]:
    """Return terms of the log of the factor by which a beta, gamma or lognormal density is multiplied."""
    if kind == BETA:
        return [math.lgamma(p[0] + p[1]), -math.lgamma(p[0]), -math.lgamma(p[1])]
    return [p[0] * math.log(p[1]), -math.lgamma(p[0])] if kind == GAMMA else [-math.log(p[1]), -HALF_LOG_2PI]


def mode_of(kind: int, p: Sequence[float]) -> float:
    """Return where a density, or the probability of a whole number, is largest in its support or its closure."""
    if kind in (UNIFORM, EXPONENTIAL, GEOMETRIC):
        return 0.0
    if kind == BETA:
        return (p[0] - 1.0) / (p[0] + p[1] - 2.0) if p[0] + p[1] > 2.0 else 0.5
    if kind in (GAMMA, LOGNORMAL):
        return (p[0] - 1.0) / p[1] if kind == GAMMA else math.exp(p[0] - p[1] * p[1])
    return math.floor(p[0] - (p[0] / p[1] if kind == NEGATIVE_BINOMIAL else 0.0)) if kind in COUNTS else p[0]


def _log_tail_density(p: Sequence[float], x: float, side: int) -> float:
    """Return the log density of a Gaussian cut to a part of its tail; no bound where its mean is not far outside.

    With a the end nearer to the mean, alpha deviations away, and s deviations from a to x, the density is
    e^(-alpha s - s^2/2) over its integral up to the other end. There e^(-s^2/2) lies above 1 - s^2/2, and below 1
    and 1 - s^2/2 + s^4/8. Separate logs of density and mass would lose alpha^2 units of the last place.
    """
    mean, sd, low, high = p
    near, far = (low, high) if mean < low else (high, low)
    alpha, s = abs(near - mean) / sd, abs(x - near) / sd
    if low <= mean <= high or not FAR_TAIL < alpha < 1e90 or not s < math.inf:
        return side * math.inf
    z = alpha * (abs(far - near) / sd)
    second = 1.0 - math.exp(-z) * (1.0 + z + 0.5 * z * z) if z < 700.0 else 1.0
    ends = -math.expm1(-z) / alpha, second / alpha**3
    mass = ends[0] - ends[1] if side > 0 else min(ends[0], ends[0] - ends[1] + 3.0 / alpha**3 / alpha**2)
    mass -= side * 16.0 * UNIT * (ends[0] + 1.0 / alpha**3)
    if not mass > 0.0:
        return side * math.inf
    return total_of([-alpha * s, -0.5 * s * s, -math.log(sd), -math.log(mass)], side)


def _log_many_counts(mean: float, x: float, side: int) -> float:
    """Return ln of a Poisson probability near the mean by Stirling's series, whose remainder is below 1/(360 x^3).

    With u = x / mean - 1, ln p = -mean ((1 + u) ln(1 + u) - u) - ln(2 pi x) / 2 - 1 / (12 x) + remainder.
    """
    u, found = (x - mean) / mean, list[float]()
    power, k = u * u, 2
    while abs(power) > 1e-18 * u * u:
        found.append(power / (k * (k - 1)))
        power, k = -power * u, k + 1
    remainder = 1.0 / (360.0 * x * x * x) if side > 0 else 0.0
    terms = [-mean * math.fsum(found), -HALF_LOG_2PI, -0.5 * math.log(x), -1.0 / (12.0 * x), remainder]
    return total_of(terms, side)


def log_largest(kind: int, p: Sequence[float], low: float, high: float, side: int) -> float:
    """Return the log of the largest density, or probability, in [low, high], rounded to a side."""
    least, most = support(kind, p)
    low, high = max(low, least), min(high, most)
    if not low <= high:
        return -math.inf
    if kind in COUNTS:
        low, high = _whole(low, 1), _whole(high, -1)
        if not low <= high:
            return -math.inf
    return log_density(kind, p, min(max(mode_of(kind, p), low), high), side)


def _log_width(low: float, high: float) -> float:
    width = high - low
    return math.log(width) if width < math.inf else math.log(0.5 * high - 0.5 * low) + math.log(2.0)


def _whole(x: float, step: int) -> float:
    """Round x up (step 1) or down to a whole number."""
    return x if math.isinf(x) else float(math.ceil(x) if step > 0 else math.floor(x))


def log_share(kind: int, p: Sequence[float], low: float, high: float, side: int) -> float:
    """Return the log mass of [low, high], or the log density if low equals high, rounded to `side`."""
    if low == high:
        return log_largest(kind, p, low, high, side)
    least, most = support(kind, p)
    if low <= least and high >= most:
        return 0.0
    a, b = max(low, least), min(high, most)
    if not a <= b or (a == b and kind not in COUNTS):
        return -math.inf
    if kind == TRUNCATED:
        return total_of([log_mass(p[0], p[1], a, b, side), -log_mass(p[0], p[1], p[2], p[3], -side)], side)
    if kind == UNIFORM:
        return total_of([_log_width(a, b), -_log_width(p[0], p[1])], side)
    if kind == EXPONENTIAL:
        return _log_of([-math.expm1(-p[0] * (b - a))], -p[0] * a, side)
    if kind == LAPLACE:
        below, above = _scaled(p[0], b, p[1]), _scaled(a, p[0], p[1])
        if max(below, above) >= 0.0:  # on one side of the peak
            return _log_of([-0.5 * math.expm1(-_scaled(b, a, p[1]))], -max(below, above), side)
        return _log_of([-0.5 * math.expm1(above), -0.5 * math.expm1(below)], 0.0, side)
    if kind == STUDENT_T:
        flat = log_largest(kind, p, a, b, 1) if side > 0 else min(log_density(kind, p, x, -1) for x in (a, b))
        found = log_student(p, a, b, side), total_of([flat, _log_width(a, b)], side)
        return found[0] if math.isinf(b - a) else min(found) if side > 0 else max(found)
    if kind == LOGNORMAL:
        below, above = (math.log(x) if x > 0.0 else -math.inf for x in (a, b))
        off = (2.0 * side * UNIT * (1.0 + abs(x)) if math.isfinite(x) else 0.0 for x in (below, above))
        return log_mass(p[0], p[1], below - next(off), above + next(off), side)
    if kind in (BETA, GAMMA):
        return _log_between(kind, p, a, b, side)
    a, b = _whole(a, 1), _whole(b, -1)
    if not a <= b:
        return -math.inf
    if kind == GEOMETRIC:
        rate = math.log1p(-p[0])
        return _log_of([-math.expm1((b - a + 1.0) * rate)], a * rate, side)
    return _log_counts(kind, p, a, b, side)


def _log_of(masses: Sequence[float], log_factor: float, side: int) -> float:
    """Return the log of a factor times a sum of masses; no mass may be computed as a difference."""
    mass = math.fsum(masses) + side * TINY
    return total_of([math.log(mass), log_factor], side) if mass > 0.0 else -math.inf


def _log_between(kind: int, p: Sequence[float], low: float, high: float, side: int) -> float:
    """Return the log mass of a beta or gamma density in an interval, by the masses of both tails or of one."""
    mean = p[0] / (p[0] + p[1]) if kind == BETA else p[0] / p[1]
    if low < mean < high:
        rest = (_log_tail(kind, p, low, False, -side), _log_tail(kind, p, high, True, -side))
        return _log_of([1.0 - math.exp(rest[0]) - math.exp(rest[1]) + side * 8.0 * UNIT], 0.0, side)
    near, far, is_above = (low, high, True) if low >= mean else (high, low, False)
    found = _less(_log_tail(kind, p, near, is_above, side), _log_tail(kind, p, far, is_above, -side), side)
    flat = (
        log_largest(kind, p, low, high, 1) if side > 0 else min(log_density(kind, p, x, -1) for x in (low, high))
    )
    flat = total_of([flat, _log_width(low, high)], side) if high < math.inf and flat > -math.inf else found
    return min(found, flat) if side > 0 else max(found, flat)


def _log_tail(kind: int, p: Sequence[float], x: float, is_above: bool, side: int) -> float:
    """Return the log of the mass below x, or above it, of a beta or gamma density, rounded to a side.

    That below x of a gamma density is z^a e^-z / Gamma(a + 1) times the sum of z^n / ((a + 1) ... (a + n)), with z
    the rate times x (DLMF 8.7.1). From x on its log falls by at most the rate, and by at least the slope at x.
    """
    if x in ((1.0, math.inf) if is_above else (0.0,)):
        return -math.inf
    if kind == BETA:
        odds, shapes = Fraction(x) / (1 - Fraction(x)), (p[1], p[0]) if is_above else (p[0], p[1])
        return min(total_of([_log_half_beta(*shapes, 1 / odds if is_above else odds, side), -LOG_HALF], side), 0.0)
    (a, rate), z, total, term, n = p, p[1] * x, 1.0, 1.0, 0
    if is_above:
        rest, top = _less(0.0, _log_tail(kind, p, x, False, -side), side), log_density(kind, p, x, side)
        drop = rate - (a - 1.0) / x * (1.0 + 4.0 * UNIT) if side > 0 else rate
        tail = total_of([top, -math.log(drop)], side) if drop > 1e-9 * rate else rest
        return min(rest, tail) if side > 0 else max(rest, tail)
    while n < SERIES_TERMS and (z >= a + 1.0 + n or term > 1e-18 * total):
        n += 1
        term *= z / (a + n)
        total += term
    left = term * z / (a + 1.0 + n - z) if z < a + 1.0 + n else math.inf
    if side > 0 and not total + left < math.inf:
        return 0.0
    slack = side * (16.0 + 8.0 * n + 8.0 * (a + z)) * UNIT
    log = math.log(total + left if side > 0 else total)
    return min(total_of([a * math.log(z), -z, -math.lgamma(a + 1.0), log, slack], side), 0.0)


def _log_counts(kind: int, p: Sequence[float], low: float, high: float, side: int) -> float:
    """Add up the probabilities near the largest one; a geometric series bounds the tails."""
    size, share = (p[1], p[0] / (p[0] + p[1])) if kind == NEGATIVE_BINOMIAL else (math.inf, 0.0)
    top = min(max(mode_of(kind, p), low), high)
    reach = math.ceil(20.0 * math.sqrt(p[0] + p[0] * p[0] / size) + 50.0 * p[0] / size) + 200.0
    if reach > MOST_TERMS:
        raise Rejected(f"part of a distribution of counts of mean {p[0]} has too many counts to add up")
    first, last = max(low, top - reach), min(high, top + reach)
    n = int(last - first) + 1
    logs = [log_density(kind, p, first + k, side) for k in range(n)]

    def ratio_after(k: float) -> float:
        return (
            p[0] / (k + 1.0) if size == math.inf else share * max((k + size) / (k + 1.0), 1.0) * (1.0 + 8.0 * UNIT)
        )

    if side > 0 and last < high and ratio_after(last) < 1.0:
        logs.append(logs[-1] + math.log(ratio_after(last) / (1.0 - ratio_after(last))))
    if side > 0 and first > low and (ratio := 1.0 / ratio_after(first - 1.0) * (1.0 + 8.0 * UNIT)) < 1.0:
        logs.append(logs[0] + math.log(ratio / (1.0 - ratio)))
    peak = max(logs)
    return total_of([peak, math.log(math.fsum(math.exp(x - peak) for x in logs))], side)


Edges = Mapping[int, Floats]
CELLS = 256  # cells of a leaf evaluated between two readings of the clock
GAUSSIAN = 1
REAL_KINDS = (GAUSSIAN, *KINDS)


def edges_of(variables: Sequence[Stored], arrays: Arrays, queried: Ints, point: Floats | None = None) -> Edges:
    """Return the ends of each real variable's cells, ascending: as the proof cuts them, or at a `point` alone."""
    found: dict[int, Floats] = {}
    real = [v for v, variable in enumerate(variables) if "states" not in variable]
    if not real:
        return found
    intervals, cuts, ptr = arrays["intervals"], arrays["cuts"], arrays["cut_ptr"]
    fits = intervals.shape == (len(variables), 2) and not np.any(np.isnan(intervals)) and cuts.ndim == 1
    fits = fits and ptr.dtype.kind == "i" and ptr.shape == (len(queried) + 1,)
    if not fits or not 0 <= ptr[0] <= ptr[-1] == len(cuts) or np.any(ptr[1:] < ptr[:-1]):
        raise Rejected("the proof's intervals do not fit the model")
    for v in real:
        least, most = (float(x) for x in variables[v]["interval"])
        low, high = max(least, float(intervals[v, 0])), min(most, float(intervals[v, 1]))
        inner = np.zeros(0)
        if v in queried:
            k = int(np.flatnonzero(queried == v)[0])
            inner = cuts[ptr[k] : ptr[k + 1]]
            if point is not None:
                value = float(point[k])
                if not low <= value <= high:
                    raise Rejected(f"the answer {value!r} lies outside of what its variable is confined to")
                low, high, inner = value, value, inner[:0]
        ends = np.concatenate([[low], inner, [high]])
        if not low <= high or low == np.inf or high == -np.inf:
            raise Rejected("the proof's interval of a real variable holds no number")
        # the first cell may hold the end of the interval alone, which belongs to it
        begins = not len(inner) or inner[0] > low or inner[0] == low > -np.inf
        if len(inner) and not (begins and np.all(ends[2:] > ends[1:-1])):
            raise Rejected("the proof's cuts of a real variable do not ascend inside its interval")
        found[v] = ends
    return found


def in_cells(question: Question, edges: Edges) -> Question:
    """Return the question with the cells of each real variable as its states."""
    sizes, logs = question.sizes.copy(), list(np.split(question.log_weights, question.offsets[1:-1]))
    for v, ends in edges.items():
        sizes[v], logs[v] = len(ends) - 1, np.zeros(len(ends) - 1)
    return Question(sizes, question.queried, np.concatenate(logs))


def leaf_logs(
    kind: int, params: NDArray[np.float64], ends: Floats, is_queried: bool, side: int, budget: CheckBudget
) -> Floats:
    """Return leaves' logs, shape (leaves, cells); a value at which two cells meet belongs to the lower one."""
    low, high = ends[:-1].copy(), ends[1:]
    low[1:] = np.nextafter(low[1:], np.inf)
    of_leaf, rows = log_largest if is_queried else log_share, params.tolist()
    if kind == GAUSSIAN and is_queried:
        return log_peaks(params[:, :1], params[:, 1:2], low, high, side)
    if kind == GAUSSIAN:
        return np.array([[log_mass(p[0], p[1], float(low[0]), float(high[-1]), side)] for p in rows])
    out = np.empty((len(rows), len(low)))
    for k, p in enumerate(rows):
        for at in range(0, len(low), CELLS):
            budget.look()
            cells = zip(low[at : at + CELLS].tolist(), high[at : at + CELLS].tolist(), strict=True)
            out[k, at : at + CELLS] = [of_leaf(kind, p, a, b, side) for a, b in cells]
    return out
