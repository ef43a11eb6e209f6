"""A second-order upper bound on a mixture in a box, from values, slopes and curvatures at the middle.

The formula is derived in `docs/what-a-certificate-means.md`, "Mixtures in a box". The box is [-1, 1] in each
coordinate of t. With p_k the share of component k at the middle, component k divided by the mixture's value there
is p_k exp(s_k t + t C_k t / 2), with C_k between known limits. Subtracting the means s and C over p leaves
exponents z_k with mean 0, up to the limits of C_k. Since e^z <= 1 + z + kappa(max z) z^2/2, the covariance of the
slopes, with each share raised by its kappa, bounds the mixture's curvature beyond C. The effect of C_k - C is
bounded either by raised shares (a lift, better far from a maximum) or by a third-order remainder (better near
one), whichever is smaller.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from certimap.core.arrays import Floats
from certimap.core.rounding import LEAST_SHARE
from certimap.kernels.jit import jit_part

Number = Any
EPS = 2.220446049250313e-16
FAR = 4.0  # largest rise, in nats, of an expanded component from the middle of a box
TOO_STEEP = 1e100  # limit on slopes and bends, so that squares and sums do not overflow
TOO_FAR = 300.0  # nats of rise above the others' beyond which nothing is expanded
HALVINGS = 6  # bisection steps for the fraction of the diagonally dominant shift
SWEEPS = 4


class BoxExpansion(NamedTuple):
    """Expansions of K components in one box of D variables, and working arrays.

    `log_value` and `log_peak` (K,) are natural logs at the middle and bounds over the box, weights included and
    rounded up. `slope` (K, D) and `bend` (K, D), or (K, D * D) for full matrices, are first and second derivatives
    of the log in t; `spread` (K, D) bounds the variation of a bend in the box, inf if unknown. `lift` (K,) is the
    factor by which deviations of bends from their mean may raise a component. `score` (D,) measures how much each
    variable loosens the bound. `kept` holds the parts of a second-order bound for `half_bounds`: its weight (0
    without such a bound), an exponent, a constant, the log of its unit with all rounding, and the cost of u.
    """

    log_value: Floats
    log_peak: Floats
    slope: Floats
    bend: Floats
    spread: Floats
    share: Floats
    lift: Floats
    mean_slope: Floats
    mean_bend: Floats
    square: Floats
    lower: Floats
    at: Floats
    off: Floats
    score: Floats
    kept: Floats


def room_for(n_components: int, n_variables: int, is_full: bool) -> BoxExpansion:
    """Allocate the arrays for a mixture."""
    k, d = n_components, n_variables
    e = d * d if is_full else d
    shapes = [k, k, (k, d), (k, e), (k, d), k, k, d, e, (d, d), (d, d), d, d, d, 5]
    return BoxExpansion(*(np.zeros(shape) for shape in shapes))


@jit_part
def kappa(z: Number) -> Number:
    """Return an upper bound on (e^y - 1 - y) / (y^2 / 2) for all y <= z, where z >= 0."""
    if z < 2.0:
        return 1.0 + z / 3.0 + z * z / (12.0 - 2.4 * z)
    return 2.0 * (1.0 + 16.0 * EPS) * (math.exp(z) - 1.0 - z) / (z * z)


@jit_part
def has_root(matrix: Floats, lower: Floats) -> bool:
    """Whether a matrix is positive definite, by a Cholesky factorisation with a margin far above its rounding."""
    n, trace = len(matrix), 0.0
    for i in range(n):
        trace += abs(matrix[i, i])
    margin = 1e-12 * trace
    for i in range(n):
        for j in range(i + 1):
            total = matrix[i, j]
            for k in range(j):
                total -= lower[i, k] * lower[j, k]
            if i > j:
                lower[i, j] = total / lower[j, j]
            elif total <= margin:
                return False
            else:
                lower[i, i] = math.sqrt(total - 0.5 * margin)
    return True


@jit_part
def tangent_bound(
    slope: Floats, matrix: Floats, at: Floats, variable: int, low: Number, high: Number
) -> tuple[Number, Number]:
    """Return an upper bound on max of slope t - t M t / 2, M positive semidefinite, and the size of its terms.

    `t` is in [-1, 1]^n, except that `variable` (-1 for none) is in [low, high]. The function lies below its
    tangent at `at`; coordinate ascent improves this point in place.
    """
    n = len(slope)
    for _ in range(SWEEPS):
        for i in range(n):
            first, last = (low, high) if i == variable else (-1.0, 1.0)
            pull = slope[i]
            for j in range(n):
                if j != i:
                    pull -= matrix[i, j] * at[j]
            if matrix[i, i] > 0.0:
                at[i] = min(max(pull / matrix[i, i], first), last)
            else:
                at[i] = last if pull > 0.0 else first
    value, size = 0.0, 0.0
    for i in range(n):
        first, last = (low, high) if i == variable else (-1.0, 1.0)
        pull, reach = 0.0, 0.0
        for j in range(n):
            pull += matrix[i, j] * at[j]
            reach += abs(matrix[i, j])
        value += max((slope[i] - pull) * first, (slope[i] - pull) * last) + 0.5 * at[i] * pull
        size += abs(slope[i]) + 2.0 * reach
    return value, size


@jit_part
def largest_quadratic(slope: Floats, matrix: Floats, room: BoxExpansion) -> tuple[Number, Number]:
    """Return an upper bound on max of slope t - t M t / 2 over [-1, 1]^n, and a bound on its rounding error.

    A diagonal u makes M + u positive definite; the function with M + u lies below its tangent at any y, which is
    largest in a corner. Adding u costs half its sum. u is about the smallest sufficient fraction of the diagonal
    that makes M diagonally dominant, and is added to `matrix`.
    """
    n, lower, at, off = len(slope), room.lower, room.at, room.off
    for i in range(n):
        beside = 0.0
        for j in range(n):
            if j != i:
                beside += abs(matrix[i, j])
        off[i] = max(0.0, (1.0 + 1e-9) * beside - matrix[i, i])
        at[i] = matrix[i, i]
    share = 0.0
    if not has_root(matrix, lower):
        below, share = 0.0, 1.0
        for _ in range(HALVINGS):
            between = 0.5 * (below + share)
            for i in range(n):
                matrix[i, i] = at[i] + between * off[i]
            if has_root(matrix, lower):
                share = between
            else:
                below = between
    cost = 0.0
    for i in range(n):
        matrix[i, i] = at[i] + share * off[i]
        cost += 0.5 * share * off[i]
    for i in range(n):
        at[i] = 0.0
    value, size = tangent_bound(slope, matrix, at, -1, -1.0, 1.0)
    room.kept[4] = cost
    return cost + value, EPS * (4.0 * n + 16.0) * (cost + size)


@jit_part
def take_means(x: BoxExpansion, log_middle: Number) -> tuple[Number, Number]:
    """Fill in the shares of the expanded components, and their mean slope and bend.

    Returns the expanded components' part of the value at the middle, and a bound on the others relative to it. A
    component is expanded if it rises little from the middle to its bound, and its curvature is known.
    """
    inside, outside = 0.0, 0.0
    x.mean_slope[:] = 0.0
    x.mean_bend[:] = 0.0
    for k in range(len(x.log_value)):
        known = x.log_peak[k] - x.log_value[k] <= FAR
        if known:
            for d in range(x.slope.shape[1]):
                known = known and x.spread[k, d] < math.inf and abs(x.slope[k, d]) < TOO_STEEP
            for e in range(x.bend.shape[1]):
                known = known and abs(x.bend[k, e]) < TOO_STEEP
        if not known:
            x.share[k] = 0.0
            outside += math.exp(x.log_peak[k] - log_middle) if x.log_peak[k] > -math.inf else 0.0
            continue
        share = max(math.exp(x.log_value[k] - log_middle), LEAST_SHARE)
        x.share[k] = share
        inside += share
        for d in range(x.slope.shape[1]):
            x.mean_slope[d] += share * x.slope[k, d]
        for e in range(x.bend.shape[1]):
            x.mean_bend[e] += share * x.bend[k, e]
    if inside > 0.0:
        for d in range(len(x.mean_slope)):
            x.mean_slope[d] /= inside
        for e in range(len(x.mean_bend)):
            x.mean_bend[e] /= inside
    return inside, outside


@jit_part
def take_lifts(x: BoxExpansion, inside: Number) -> tuple[Number, Number]:
    """Return the factor by which bends' deviations from their mean may lift the mixture, and a remainder instead.

    The first counts the full effect of bends in the box; the second only the joint effect of slopes and bends,
    since bends alone have mean 0.
    """
    n, full = x.slope.shape[1], x.bend.shape[1] > x.slope.shape[1]
    lifted, remainder = 0.0, 0.0
    for k in range(len(x.share)):
        if x.share[k] == 0.0:
            continue
        straight, bent, unsure, up = 0.0, 0.0, 0.0, 0.0
        for d in range(n):
            straight += abs(x.slope[k, d] - x.mean_slope[d])
            unsure += 0.5 * x.spread[k, d]
        if full:
            for d in range(n):
                for e in range(n):
                    more = 0.5 * (x.bend[k, d * n + e] - x.mean_bend[d * n + e])
                    bent += abs(more)
                    up += max(more, 0.0) if d == e else abs(more)
        else:
            for d in range(n):
                more = 0.5 * (x.bend[k, d] - x.mean_bend[d])
                bent += abs(more)
                up += max(more, 0.0)
        bent += unsure
        both, share = straight + bent, x.share[k] / inside
        if both > TOO_FAR:
            return math.inf, math.inf
        x.lift[k] = math.exp(up + unsure)
        lifted += share * x.lift[k]
        remainder += share * (unsure + kappa(both) * (straight + 0.5 * bent) * bent)
    return lifted, remainder


@jit_part
def lift_shares(x: BoxExpansion, inside: Number, lifted: Number) -> None:
    """Multiply the shares by their lifts, and recompute the mean slope."""
    x.mean_slope[:] = 0.0
    for k in range(len(x.share)):
        if x.share[k] > 0.0:
            x.share[k] *= x.lift[k] / lifted
            for d in range(len(x.mean_slope)):
                x.mean_slope[d] += x.share[k] * x.slope[k, d]
    for d in range(len(x.mean_slope)):
        x.mean_slope[d] /= inside


@jit_part
def take_squares(x: BoxExpansion, inside: Number, is_lifted: bool) -> tuple[Number, Number]:
    """Fill in scores and the slopes' covariance, raised by kappa; return the tiny components' part, and sizes."""
    n, full = x.slope.shape[1], x.bend.shape[1] > x.slope.shape[1]
    x.square[:] = 0.0
    tiny, size = 0.0, 0.0
    for k in range(len(x.share)):
        if x.share[k] == 0.0:
            continue
        share, straight, bent = x.share[k] / inside, 0.0, 0.0
        for d in range(n):
            x.off[d] = x.slope[k, d] - x.mean_slope[d]
            straight += abs(x.off[d])
        for e in range(x.bend.shape[1]):
            bent += 0.5 * abs(x.bend[k, e] - x.mean_bend[e])
        for d in range(n):
            bent += 0.5 * x.spread[k, d]
        raised = share * kappa(straight if is_lifted else straight + bent)
        size += raised * (straight + straight * straight + bent * (1.0 + straight + bent))
        if share <= 1e-12:
            tiny += 0.5 * raised * straight * straight
            continue
        loose = 0.5 * (share if is_lifted else raised * straight)
        for d in range(n):
            weighted = raised * x.off[d]
            at = d * n + d if full else d
            x.score[d] += weighted * x.off[d] + loose * (abs(x.bend[k, at] - x.mean_bend[at]) + x.spread[k, d])
            for e in range(d + 1):
                x.square[d, e] += weighted * x.off[e]
    return tiny, size


@jit_part
def log_sum_of(logs: Floats) -> Number:
    """Return ln of a sum of numbers from their logs."""
    top = -math.inf
    for k in range(len(logs)):
        top = max(top, logs[k])
    if top == -math.inf:
        return top
    total = 0.0
    for k in range(len(logs)):
        total += math.exp(logs[k] - top)
    return top + math.log(total)


@jit_part
def second_order(x: BoxExpansion, middle: Number) -> Number:
    """Return the second-order bound, rounded up, given ln of the value at the middle; fill in scores."""
    n_components, n = x.slope.shape
    full = x.bend.shape[1] > n
    inside, outside = take_means(x, middle)
    if not inside > 1e-3 * outside:
        return math.inf
    lifted, remainder = take_lifts(x, inside)
    is_lifted = lifted < 1.0 + remainder
    factor = lifted if is_lifted else 1.0 + remainder
    if not factor < math.inf:
        return math.inf
    if is_lifted:
        lift_shares(x, inside, lifted)
    tiny, size = take_squares(x, inside, is_lifted)
    scale, trace, steep = 1.0 if is_lifted else 1.0 / factor, 0.0, 0.0
    for d in range(n):
        for e in range(d):
            off = -scale * x.square[d, e] - (x.mean_bend[d * n + e] if full else 0.0)
            x.square[d, e], x.square[e, d] = off, off
        own = x.mean_bend[d * n + d] if full else x.mean_bend[d]
        x.square[d, d] = -scale * x.square[d, d] - own
        trace += abs(own)
        steep += abs(x.mean_slope[d])
        x.score[d] *= inside
    rise, error = largest_quadratic(x.mean_slope, x.square, x)
    sizes = 4.0 + 2.0 * steep + 4.0 * size + n * trace
    error += EPS * abs(middle) + EPS * (n_components + n + 32.0) * sizes * max(1.0, 1.0 / inside)
    x.kept[0], x.kept[1], x.kept[2], x.kept[3] = inside * factor, tiny, outside, middle + error
    return middle + math.log(inside * factor * math.exp(tiny + rise) + outside) + error


@jit_part
def half_bounds(x: BoxExpansion, variable: int, bound: Number) -> tuple[Number, Number]:
    """Bound the halves of a box after `mixture_bound`, cut at a variable's middle; `bound` if nothing was kept."""
    if not x.kept[0] > 0.0:
        return bound, bound
    for i in range(len(x.at)):
        x.off[i] = x.at[i]
    rise, _ = tangent_bound(x.mean_slope, x.square, x.off, variable, -1.0, 0.0)
    below = x.kept[3] + math.log(x.kept[0] * math.exp(x.kept[1] + x.kept[4] + rise) + x.kept[2])
    rise, _ = tangent_bound(x.mean_slope, x.square, x.at, variable, 0.0, 1.0)
    above = x.kept[3] + math.log(x.kept[0] * math.exp(x.kept[1] + x.kept[4] + rise) + x.kept[2])
    return below if below < bound else bound, above if above < bound else bound


@jit_part
def mixture_bound(x: BoxExpansion) -> Number:
    """Return an upper bound on ln of the mixture's largest value in the box, rounded up; fill in `score`.

    The smaller of the sum of the components' own bounds and the second-order bound. Cost: K (D + 10) D / 2
    multiplications, 6 K exponentials.
    """
    x.score[:] = 0.0
    x.kept[0] = 0.0
    plain = log_sum_of(x.log_peak)
    if plain == -math.inf:
        return plain
    plain += EPS * (len(x.log_peak) + 16.0) + EPS * abs(plain)
    middle = log_sum_of(x.log_value)
    if plain > middle + 1e-13 and middle > -math.inf:
        second = second_order(x, middle)
        if second < plain:
            add_plain_scores(x, middle, True)
            return second
    x.score[:] = 0.0
    add_plain_scores(x, plain, False)
    return plain


@jit_part
def add_plain_scores(x: BoxExpansion, log_unit: Number, unexpanded: bool) -> None:
    """Add to the scores each variable's possible rise of the components counted by their own bounds."""
    for k in range(len(x.log_peak)):
        if (unexpanded and x.share[k] > 0.0) or x.log_peak[k] == -math.inf:
            continue
        weight = math.exp(min(x.log_peak[k] - log_unit, 300.0))
        for d in range(x.slope.shape[1]):
            x.score[d] += weight * min(abs(x.slope[k, d]), 3.0)
