"""Second-order bounds on circuits that are small mixtures of products, one row per box."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from certimap.circuits.kernels.arrays import Number, ProbeArrays
from certimap.circuits.kernels.real import (
    HIGH,
    LARGEST_CURVATURE,
    LEAST_CURVATURE,
    LOW,
    SLOPE,
    ask,
    log_density,
    log_peak,
    scale_of,
)
from certimap.circuits.leaves.kind import LEAST_LOG
from certimap.core.arrays import Bytes, Floats, Ints
from certimap.kernels.jit import jit, jit_part
from certimap.kernels.mixture_bounds import EPS, BoxExpansion, half_bounds, has_root, mixture_bound

MAX_ROUNDS = 200  # of a climb
LEAST_RISE = 1e-12  # minimum gain, in nats, of a step of a climb
LEAF_ROUNDINGS = 64.0  # error of a leaf's log, in units of the last place of its size


class LeafProducts(NamedTuple):
    """A circuit multiplied out: K products of leaves of n variables.

    `log_weights` (K,) are natural logs; `starts` (K, n) are the starts of leaves' vectors. For real leaves, `tops`
    (K, n) are the logs at their peaks. Gaussian leaves have `means` and `precisions` (K, n) (1/sd; NaN for
    others). `low` and `high` (n,) enclose the peaks of each real variable.
    """

    log_weights: Floats
    starts: Ints
    tops: Floats
    means: Floats
    precisions: Floats
    low: Floats
    high: Floats


@jit_part
def expand_leaf(
    functions: Ints, tables: Floats, start: int, low: Number, high: Number
) -> tuple[Number, Number, Number, Number, Number]:
    """Return a leaf's log value at the middle of [low, high], its peak there, and slope, bend and spread.

    If the curvature is unknown, the slope is replaced by the rise to the peak, a measure of the bound's looseness.
    """
    middle = 0.5 * low + 0.5 * high
    radius = (1.0 + 4.0 * EPS) * max(high - middle, middle - low)
    value = log_density(functions, tables, start, middle)
    if radius == 0.0:
        return value, value, 0.0, 0.0, 0.0
    peak = log_peak(functions, tables, start, low, high)
    least = ask(functions, LEAST_CURVATURE, tables, start, low, high)
    largest = ask(functions, LARGEST_CURVATURE, tables, start, low, high)
    within = tables[start + LOW] <= low and high <= tables[start + HIGH]
    if value == -math.inf or not within or not -math.inf < least <= largest < math.inf:
        rise = peak - value if value > -math.inf else math.inf
        return value, peak, rise if peak > -math.inf else 0.0, 0.0, math.inf
    square, length = radius * radius, scale_of(functions, tables, start)
    slope = ask(functions, SLOPE, tables, start, middle, middle) * radius
    error = LEAF_ROUNDINGS * EPS * (abs(least) + abs(largest) + 1.0 / (length * length))
    return value, peak, slope, 0.5 * (least + largest) * square, (0.5 * (largest - least) + error) * square


@jit_part
def expand_box(
    plan: ProbeArrays, of: LeafProducts, mask: Bytes, low: Floats, high: Floats, x: BoxExpansion
) -> None:
    """Fill in all components in a box: categorical leaves give their largest entry."""
    n_states, offsets, functions = plan.n_states, plan.offsets, plan.functions
    tables, log_tables = plan.tables, plan.log_tables
    starts, tops, means, precisions = of.starts, of.tops, of.means, of.precisions
    slopes, bends, spreads = x.slope, x.bend, x.spread
    for k in range(len(starts)):
        value, peak, size = of.log_weights[k], of.log_weights[k], abs(of.log_weights[k])
        for v in range(starts.shape[1]):
            slope, bend, spread = 0.0, 0.0, 0.0
            if n_states[v] > 0:
                here = -math.inf
                for a in range(n_states[v]):
                    if mask[offsets[v] + a]:
                        here = max(here, log_tables[starts[k, v] + a])
                most = here
            elif precisions[k, v] > 0.0:
                middle, mean, precision = 0.5 * low[v] + 0.5 * high[v], means[k, v], precisions[k, v]
                scaled = (middle - mean) * precision
                reach = (1.0 + 4.0 * EPS) * max(high[v] - middle, middle - low[v]) * precision
                beyond = max(low[v] - mean, mean - high[v], 0.0) * precision
                here = max(tops[k, v] - 0.5 * scaled * scaled, LEAST_LOG)
                most = max(tops[k, v] - 0.5 * beyond * beyond, LEAST_LOG)
                slope, bend = -scaled * reach, -reach * reach
            else:
                here, most, slope, bend, spread = expand_leaf(functions, tables, starts[k, v], low[v], high[v])
            slopes[k, v], bends[k, v], spreads[k, v] = slope, bend, spread
            value += here
            peak += most
            size += 1.0 + abs(tops[k, v]) + (abs(most) if most > -math.inf else 0.0)
        rounding = LEAF_ROUNDINGS * EPS * size
        more = rounding + LEAF_ROUNDINGS * EPS * (peak - value) if value > -math.inf else 0.0
        x.log_value[k], x.log_peak[k] = value + more, max(peak + rounding, value + more)


@jit()
def bound_mixture(
    plan: ProbeArrays, of: LeafProducts, masks: Bytes, low: Floats, high: Floats, x: BoxExpansion,
    log_bound: Floats, halves: Floats, splits: Floats, middles: Floats,
) -> None:  # fmt: skip
    """Bound the mixture in each box (natural logs, rounded up); also choose a split and a middle point.

    `halves` (batch, 2) gets the bounds below and above the split. One variable gets a split; the others get NaN,
    as do all variables of a box too small to split. All leaves of a real variable rise towards the hull of their
    peaks, so a part of a box beyond the hull counts by its end nearest to it.
    """
    n = len(plan.n_states)
    near, far = np.zeros(n), np.zeros(n)
    for row in range(len(masks)):
        for v in range(n):
            if plan.n_states[v] == 0:
                near[v] = min(max(of.low[v], low[row, v]), high[row, v])
                far[v] = min(max(of.high[v], low[row, v]), high[row, v])
                middles[row, v] = 0.5 * near[v] + 0.5 * far[v]
            splits[row, v] = np.nan
        expand_box(plan, of, masks[row], near, far, x)
        log_bound[row] = mixture_bound(x)
        halves[row] = log_bound[row]
        choice, most = -1, -1.0
        for v in range(n):
            if plan.n_states[v] == 0 and near[v] < far[v]:
                score = x.score[v] * (1.0 + 1e-9) + 1e-12 * min((far[v] - near[v]) / plan.scales[v], 1.0)
                if score > most:
                    choice, most = v, score
        if choice >= 0:
            middle = middles[row, choice]
            splits[row, choice] = middle if middle < far[choice] else near[choice]
            if middle < far[choice]:
                halves[row, 0], halves[row, 1] = half_bounds(x, choice, log_bound[row])


class Slopes(NamedTuple):
    """Derivatives of a mixture's log at one point, and working arrays, for n variables.

    `gradient` (n,) and `curvature` (n, n), the negative second derivatives; `shift` (n,) is the target of a
    mean-shift step. `logs` (K,) are the components' natural logs; `pulls` and `steep` (n,), `root` (n, n) and
    `step` (n,) are scratch.
    """

    gradient: Floats
    curvature: Floats
    shift: Floats
    logs: Floats
    pulls: Floats
    steep: Floats
    root: Floats
    step: Floats


def slopes_for(n_components: int, n_variables: int) -> Slopes:
    """Allocate the arrays for a mixture."""
    k, n = n_components, n_variables
    return Slopes(*(np.zeros(shape) for shape in (n, (n, n), n, k, n, n, (n, n), n)))


@jit_part
def look_at(of: LeafProducts, log_tops: Floats, point: Floats, s: Slopes) -> Number:
    """Return ln of a mixture of Gaussians at a point, and fill in its derivatives."""
    means, precisions, n, top = of.means, of.precisions, len(point), -math.inf
    for k in range(len(log_tops)):
        log = log_tops[k]
        for d in range(n):
            scaled = (point[d] - means[k, d]) * precisions[k, d]
            log -= 0.5 * scaled * scaled
        s.logs[k] = log
        top = max(top, log)
    s.gradient[:], s.curvature[:], s.pulls[:], s.shift[:] = 0.0, 0.0, 0.0, 0.0
    if top == -math.inf:
        return top
    total = 0.0
    for k in range(len(log_tops)):
        share = math.exp(s.logs[k] - top)
        total += share
        for d in range(n):
            square = precisions[k, d] * precisions[k, d]
            s.steep[d] = (means[k, d] - point[d]) * square
            s.gradient[d] += share * s.steep[d]
            s.pulls[d] += share * square
            for e in range(d + 1):
                s.curvature[d, e] -= share * s.steep[d] * s.steep[e]
    for d in range(n):
        s.gradient[d] /= total
        s.pulls[d] /= total
        s.shift[d] = point[d] + s.gradient[d] / s.pulls[d]
    for d in range(n):
        for e in range(d + 1):
            s.curvature[d, e] = s.curvature[d, e] / total + s.gradient[d] * s.gradient[e]
            s.curvature[e, d] = s.curvature[d, e]
        s.curvature[d, d] += s.pulls[d]
    return top + math.log(total)


@jit_part
def newton_step(s: Slopes) -> bool:
    """Fill in the step to the maximum of the quadratic function with these derivatives; False if it has none."""
    if not has_root(s.curvature, s.root):
        return False
    n = len(s.step)
    for d in range(n):
        total = s.gradient[d]
        for e in range(d):
            total -= s.root[d, e] * s.step[e]
        s.step[d] = total / s.root[d, d]
    for d in range(n - 1, -1, -1):
        total = s.step[d]
        for e in range(d + 1, n):
            total -= s.root[e, d] * s.step[e]
        s.step[d] = total / s.root[d, d]
    return True


@jit()
def climb_gaussians(
    of: LeafProducts, log_tops: Floats, low: Floats, high: Floats, s: Slopes, points: Floats
) -> None:
    """Climb from each row of points, in place, to a stationary point of a mixture of Gaussians in [low, high].

    `log_tops` (K,) are natural logs of weighted components at their peaks. Steps are Newton's; if these do not
    rise, mean-shift steps, which always do. Cost of a step: an exponential and D (D + 10) / 2 multiplications per
    component.
    """
    n = points.shape[1]
    trial, shift = np.zeros(n), np.zeros(n)
    for row in range(len(points)):
        value, by_newton = -math.inf, False
        for d in range(n):
            trial[d] = points[row, d]
        for _ in range(MAX_ROUNDS):
            reached = look_at(of, log_tops, trial, s)
            if reached > value + LEAST_RISE:  # false for NaN, from overflowing squares
                value = reached
                by_newton = newton_step(s)
                for d in range(n):
                    points[row, d] = trial[d]
                    shift[d] = min(max(s.shift[d], low[d]), high[d])
                    trial[d] = min(max(trial[d] + s.step[d], low[d]), high[d]) if by_newton else shift[d]
            elif by_newton:
                by_newton = False
                for d in range(n):
                    trial[d] = shift[d]
            else:
                break
