"""Bounds on mixtures of Gaussians with full covariances, one row per box."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from certimap.circuits.leaves.gaussian import NARROW_WIDTH, log_normal_mass
from certimap.circuits.leaves.kind import LEAST_LOG
from certimap.core.arrays import Floats
from certimap.kernels.jit import jit, jit_part
from certimap.kernels.mixture_bounds import EPS, BoxExpansion, Number, half_bounds, mixture_bound

SWEEPS = 6
FAR_SDS = 9.0  # standard deviations from every mean at which an unbounded side is first cut


class NormalArrays(NamedTuple):
    """K weighted Gaussians of n variables.

    `log_tops` (K,) are natural logs of weighted densities at the means (K, n); `factors` (K, n, n) are W, lower
    triangular, with precision W'W; `precisions` (K, n, n) is W'W and `sizes` |W|'|W|; `sds` (K, n) are standard
    deviations of single variables.
    """

    log_tops: Floats
    means: Floats
    factors: Floats
    precisions: Floats
    sizes: Floats
    sds: Floats


@jit_part
def half_square(of: NormalArrays, k: int, point: Floats, slope: Floats, space: Floats) -> tuple[Number, Number]:
    """Return half the squared distance of a point from mean k, and its rounding error; fill in its derivative."""
    n = len(point)
    total, error = 0.0, 0.0
    for d in range(n):
        slope[d] = 0.0
    for d in range(n):
        scaled, size = 0.0, 0.0
        for e in range(d + 1):
            part = of.factors[k, d, e] * (point[e] - of.means[k, e])
            scaled += part
            size += abs(part)
        space[d] = scaled
        total += 0.5 * scaled * scaled
        error += (abs(scaled) + EPS * n * size) * size
        for e in range(d + 1):
            slope[e] += of.factors[k, d, e] * scaled
    return total, EPS * (n + 8.0) * error


@jit_part
def log_over_box(
    of: NormalArrays, k: int, low: Floats, high: Floats, at: Floats, slope: Floats, space: Floats
) -> Number:
    """Return an upper bound on ln of component k in a box, rounded up.

    Half the squared distance is convex and thus lies above its tangent at any point; coordinate descent chooses
    the point. Single variables give another bound, the only one for unbounded boxes.
    """
    n, bounded = len(low), True
    single = 0.0
    for d in range(n):
        mean = of.means[k, d]
        beyond = max(low[d] - mean, mean - high[d], 0.0) / of.sds[k, d]
        single = max(single, 0.5 * beyond * beyond)
        at[d] = min(max(mean, low[d]), high[d])
        bounded = bounded and high[d] - low[d] < math.inf
    if bounded and single > 0.0:
        for _ in range(SWEEPS):
            for d in range(n):
                pull = 0.0
                for e in range(n):
                    if e != d:
                        pull += of.precisions[k, d, e] * (at[e] - of.means[k, e])
                at[d] = min(max(of.means[k, d] - pull / of.precisions[k, d, d], low[d]), high[d])
        least, error = half_square(of, k, at, slope, space)
        for d in range(n):
            reach = 0.0
            for e in range(n):
                reach += of.sizes[k, d, e] * abs(at[e] - of.means[k, e])
            error += EPS * (2.0 * n + 8.0) * reach * (high[d] - low[d])
            least -= max(slope[d] * (at[d] - low[d]), slope[d] * (at[d] - high[d]), 0.0)
        if least - error > single * (1.0 - 1e-12):  # false for NaN, from overflowing squares
            single = least - error
    if not of.log_tops[k] - single > LEAST_LOG:
        return LEAST_LOG
    size = abs(of.log_tops[k]) + single
    return of.log_tops[k] - single * (1.0 - 1e-12) + EPS * (n + 16.0) * size


@jit_part
def expand_normal(
    of: NormalArrays, k: int, middle: Floats, radius: Floats, slope: Floats, space: Floats, x: BoxExpansion
) -> None:
    """Fill in component k about the middle of a box."""
    n = len(middle)
    square, error = half_square(of, k, middle, slope, space)
    top = of.log_tops[k]
    value = top - square + error + EPS * (n + 16.0) * (abs(top) + square)
    x.log_value[k] = value if value < math.inf else -math.inf  # NaN if squares overflow: not expanded
    for d in range(n):
        spread, reach = 0.0, 0.0
        for e in range(n):
            x.bend[k, d * n + e] = -of.precisions[k, d, e] * radius[d] * radius[e]
            spread += of.sizes[k, d, e] * radius[d] * radius[e]
            reach += of.sizes[k, d, e] * abs(middle[e] - of.means[k, e]) * radius[d]
        x.slope[k, d] = -slope[d] * radius[d]
        # rounding of slopes and bends: |t| and t^2/2 are at most 1 and 1/2
        x.spread[k, d] = EPS * (2.0 * n + 16.0) * (spread + 2.0 * reach)


@jit()
def bound_normals(
    of: NormalArrays, low: Floats, high: Floats, scales: Floats, x: BoxExpansion, log_bound: Floats,
    halves: Floats, splits: Floats, middles: Floats,
) -> None:  # fmt: skip
    """Bound the mixture in each box (natural logs, rounded up); also choose a split and a middle point.

    `halves` (batch, 2) gets the bounds below and above the split. One variable gets a split; the others get NaN,
    as do all variables of a box too small to split. An unbounded side is cut first, far from every mean.
    """
    n_components, n = of.means.shape
    radius, at, slope, space = np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n)
    for row in range(len(low)):
        bounded = True
        for d in range(n):
            splits[row, d] = np.nan
            left, right = low[row, d], high[row, d]
            if bounded and not right - left < 1e300:
                splits[row, d] = far_cut(of, d, left, right)
            bounded = bounded and right - left < 1e300
            middle = 0.5 * left + 0.5 * right if right - left < 1e300 else min(max(of.means[0, d], left), right)
            middles[row, d] = middle
            radius[d] = (1.0 + 4.0 * EPS) * max(right - middle, middle - left)
        for k in range(n_components):
            x.log_peak[k] = log_over_box(of, k, low[row], high[row], at, slope, space)
            x.log_value[k] = -math.inf
            if bounded:
                expand_normal(of, k, middles[row], radius, slope, space, x)
                x.log_peak[k] = max(x.log_peak[k], x.log_value[k])
        log_bound[row] = mixture_bound(x)
        halves[row] = log_bound[row]
        if not bounded:
            continue
        choice, most = -1, -1.0
        for d in range(n):
            if low[row, d] < high[row, d]:
                score = x.score[d] * (1.0 + 1e-9) + 1e-12 * min((high[row, d] - low[row, d]) / scales[d], 1.0)
                if score > most:
                    choice, most = d, score
        if choice >= 0:
            middle = middles[row, choice]
            splits[row, choice] = middle if middle < high[row, choice] else low[row, choice]
            if middle < high[row, choice]:
                halves[row, 0], halves[row, 1] = half_bounds(x, choice, log_bound[row])


@jit_part
def far_cut(of: NormalArrays, d: int, low: Number, high: Number) -> Number:
    """Return the split of an unbounded interval: beyond all means, then ever farther out."""
    first, last = math.inf, -math.inf
    for k in range(len(of.means)):
        first = min(first, of.means[k, d] - FAR_SDS * of.sds[k, d])
        last = max(last, of.means[k, d] + FAR_SDS * of.sds[k, d])
    if low < first < high:
        return first
    if low < last < high:
        return last
    if high == math.inf:
        return max(min(low + 3.0 * (last - first) + 3.0 * abs(low - last), 1e299), low)
    if low == -math.inf:
        return min(max(high - 3.0 * (last - first) - 3.0 * abs(high - first), -1e299), np.nextafter(high, low))
    return 0.5 * low + 0.5 * high


FAR = 1e120  # standard deviations
SLACK = 1e-12  # error of logs near 1: truncation of the expansion for narrow intervals, and rounding


@jit()
def log_window_masses(
    means: Floats, sds: Floats, low: Floats, high: Floats, logs: Floats, slopes: Floats, slacks: Floats
) -> None:
    """Fill in ln of the mass of [low, high] under Gaussians, its derivative in the mean, and the latter's error.

    `means` and the outputs have the shape (rows, K, h), `sds` (K, h), `low` and `high` (h,).
    """
    rows, n_components, n_windows = means.shape
    for row in range(rows):
        for k in range(n_components):
            for j in range(n_windows):
                sd = sds[k, j]
                left, right = (low[j] - means[row, k, j]) / sd, (high[j] - means[row, k, j]) / sd
                width = (high[j] - low[j]) / sd
                if left > FAR or right < -FAR:  # squares overflow
                    logs[row, k, j], slopes[row, k, j], slacks[row, k, j] = LEAST_LOG, 0.0, -LEAST_LOG
                    continue
                log_mass = log_normal_mass(left, right, width)
                logs[row, k, j] = log_mass
                nearest = -right if left > 0.0 else left
                if width * max(1.0, -nearest) < NARROW_WIDTH:
                    middle = 0.5 * (left + right)
                    share = width * width / 24.0
                    slope = middle - 2.0 * middle * share / (1.0 + (middle * middle - 1.0) * share)
                    slopes[row, k, j] = slope / sd
                    slacks[row, k, j] = SLACK * (1.0 + abs(slope)) / sd
                    continue
                lower = math.exp(-0.5 * left * left - 0.9189385332046727 - log_mass) if left > -math.inf else 0.0
                upper = math.exp(-0.5 * right * right - 0.9189385332046727 - log_mass) if right < math.inf else 0.0
                slopes[row, k, j] = (lower - upper) / sd
                slacks[row, k, j] = (SLACK + 8.0 * EPS * abs(log_mass)) * (1.0 + lower + upper) / sd
