"""The checker's densities and masses of real variables, besides the Gaussian.

Each formula is a sum of terms, and the sizes of the terms bound its rounding error. The codes of the kinds are the
checker's own: model files may number kinds freely, and give their names. Each density has one peak, so that its
largest value in an interval is at the mode, or at the end nearest to the mode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from certimap.checker.models import Arrays, Rejected
from certimap.checker.normal import log_mass, log_peak, total_of
from certimap.checker.student import log1p_of, log_student, square_of

TRUNCATED, UNIFORM, EXPONENTIAL, LAPLACE, STUDENT_T, POISSON, GEOMETRIC = range(-1, -8, -1)
NAMES = {
    "truncated_gaussian": TRUNCATED,
    "uniform": UNIFORM,
    "exponential": EXPONENTIAL,
    "laplace": LAPLACE,
    "student_t": STUDENT_T,
    "poisson": POISSON,
    "geometric": GEOMETRIC,
}
KINDS, UNKNOWN = tuple(NAMES.values()), -8
LOG_PI = 1.1447298858494002
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
    if kind == UNIFORM:
        return p[0], p[1]
    return (-math.inf if kind in (LAPLACE, STUDENT_T) else 0.0), math.inf


def log_density(kind: int, p: Sequence[float], x: float, side: int) -> float:
    """Return the log of a density, or of the probability of a whole number, at x inside the support."""
    if kind == TRUNCATED:
        return total_of([log_peak(p[0], p[1], x, x, side), -log_mass(p[0], p[1], p[2], p[3], -side)], side)
    if kind == UNIFORM:
        return total_of([-_log_width(p[0], p[1])], side)
    if kind == EXPONENTIAL:
        return total_of([math.log(p[0]), -p[0] * x], side)
    if kind == LAPLACE:
        return total_of([-abs(x - p[0]) / p[1], -math.log(2.0), -math.log(p[1])], side)
    if kind == STUDENT_T:
        half, log_ratio = 0.5 * p[2], log1p_of(square_of(p, x)) if math.isfinite(x) else math.inf
        terms = [math.lgamma(half + 0.5), -math.lgamma(half), -0.5 * math.log(p[2]), -0.5 * LOG_PI]
        return total_of([*terms, -math.log(p[1]), -(half + 0.5) * log_ratio], side)
    if x != math.floor(x) or x == math.inf:
        return -math.inf
    if kind == POISSON:
        return total_of([x * math.log(p[0]), -p[0], -math.lgamma(x + 1.0)], side)
    return total_of([math.log(p[0]), x * math.log1p(-p[0])], side)


def log_largest(kind: int, p: Sequence[float], low: float, high: float, side: int) -> float:
    """Return the log of the largest density, or probability, in [low, high], rounded to a side."""
    least, most = support(kind, p)
    low, high = max(low, least), min(high, most)
    if not low <= high:
        return -math.inf
    mode = 0.0 if kind in (UNIFORM, EXPONENTIAL, GEOMETRIC) else p[0]
    if kind in (POISSON, GEOMETRIC):
        low, high, mode = _whole(low, 1), _whole(high, -1), math.floor(mode)
        if not low <= high:
            return -math.inf
    return log_density(kind, p, min(max(mode, low), high), side)


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
    if not a <= b or (a == b and kind not in (POISSON, GEOMETRIC)):
        return -math.inf
    if kind == TRUNCATED:
        return total_of([log_mass(p[0], p[1], a, b, side), -log_mass(p[0], p[1], p[2], p[3], -side)], side)
    if kind == UNIFORM:
        return total_of([_log_width(a, b), -_log_width(p[0], p[1])], side)
    if kind == EXPONENTIAL:
        return _log_of([-math.expm1(-p[0] * (b - a))], -p[0] * a, side)
    if kind == LAPLACE:
        below, above = (p[0] - b) / p[1], (a - p[0]) / p[1]
        if max(below, above) >= 0.0:  # on one side of the peak
            return _log_of([-0.5 * math.expm1(-(b - a) / p[1])], -max(below, above), side)
        return _log_of([-0.5 * math.expm1(above), -0.5 * math.expm1(below)], 0.0, side)
    if kind == STUDENT_T:
        flat = log_largest(kind, p, a, b, 1) if side > 0 else min(log_density(kind, p, x, -1) for x in (a, b))
        found = log_student(p, a, b, side), total_of([flat, _log_width(a, b)], side)
        return found[0] if math.isinf(b - a) else min(found) if side > 0 else max(found)
    a, b = _whole(a, 1), _whole(b, -1)
    if not a <= b:
        return -math.inf
    if kind == GEOMETRIC:
        rate = math.log1p(-p[0])
        return _log_of([-math.expm1((b - a + 1.0) * rate)], a * rate, side)
    return _log_poisson(p[0], a, b, side)


def _log_of(masses: Sequence[float], log_factor: float, side: int) -> float:
    """Return the log of a factor times a sum of masses; no mass may be computed as a difference."""
    mass = math.fsum(masses) + side * TINY
    return total_of([math.log(mass), log_factor], side) if mass > 0.0 else -math.inf


def _log_poisson(mean: float, low: float, high: float, side: int) -> float:
    """Add up the probabilities near the largest one; a geometric series bounds the tails."""
    top = min(max(math.floor(mean), low), high)
    reach = math.ceil(20.0 * math.sqrt(mean)) + 200.0
    if reach > MOST_TERMS:
        raise Rejected(
            f"a part of the counts is asked of a Poisson distribution of mean {mean}, too many to add up"
        )
    first, last = max(low, top - reach), min(high, top + reach)
    n = int(last - first) + 1
    logs = [log_density(POISSON, (mean,), first + k, side) for k in range(n)]
    if side > 0 and last < high and mean < last + 1.0:
        ratio = mean / (last + 1.0)
        logs.append(logs[-1] + math.log(ratio / (1.0 - ratio)))
    if side > 0 and first > low and first < mean:
        ratio = first / mean
        logs.append(logs[0] + math.log(ratio / (1.0 - ratio)))
    peak = max(logs)
    return total_of([peak, math.log(math.fsum(math.exp(x - peak) for x in logs))], side)
