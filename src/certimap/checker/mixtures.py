"""Mixtures over real variables: circuits multiplied out into them, and the checker's own branch and bound.

In a box with middle c and half widths r, in coordinates t of [-1, 1]^n, each component lies below a *majorant*
exp(value + slope t + t bend t / 2). The search bounds the sum of the majorants, as
`docs/what-a-certificate-means.md`, "The checker's boxes", proves. The choice of splits never changes the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from certimap.checker.circuit import Graph
from certimap.checker.constraints import PlainRules
from certimap.checker.leaves import (
    BETA,
    EXPONENTIAL,
    GAMMA,
    GAUSSIAN,
    HALF_LOG_2PI,
    LAPLACE,
    LOGNORMAL,
    STUDENT_T,
    TRUNCATED,
    UNIFORM,
    Edges,
    log_constants,
    log_density,
    log_mass,
    mode_of,
    support,
    total_of,
)
from certimap.checker.models import FLOAT, Arrays, CheckBudget, Question, Rejected
from certimap.checker.numbers import UNIT, Flags, Floats, Ints, log_sum, up

if TYPE_CHECKING:
    from certimap.checker.normals import Normals

FAR = 4.0  # nats; a component that may rise more from the middle of a box is not expanded there
LEAST_SHARE = 1e-280
ROUNDS = 5  # of the search for the highest point of a concave quadratic
MOST_BOXES = 5_000_000
ROOM = 3_000_000  # numbers that a batch of boxes may take
BOX_COST = 2  # numbers held per unit of a box's `work`
GAIN = 0.3  # a categorical variable is split first if that lowers a bound by this share of its excess
SMOOTH = (GAUSSIAN, TRUNCATED, UNIFORM, EXPONENTIAL, LAPLACE, STUDENT_T, BETA, GAMMA, LOGNORMAL)
MOST_PARTS, MOST_LEAVES = 8000, 64_000
SMALL, BIG = 1e-300, 1e300


Boxes = tuple[Floats, Floats, Flags]  # the ends of real variables, and the states of categorical ones


class Majorants(NamedTuple):
    """Majorants of K components in B boxes: arrays (B, K), (B, K), (B, K, n), and bends (B, K, n) or (B, K, n, n).

    `peak` bounds a component's log over the whole box. A bend is inf if there is no majorant.
    """

    value: Floats
    peak: Floats
    slope: Floats
    bend: Floats


def check_mixture(
    parts: Normals | Products, columns: Ints, threshold: float, budget: CheckBudget, rules: PlainRules,
    starts: Ints,
) -> None:  # fmt: skip
    """Close the whole space; reject a feasible point above the threshold, and a search that does not end.

    `columns` holds the first state of each categorical query variable, then the number of all states; `starts`
    the first state of each query variable.
    """
    first = parts.start(threshold)
    if first is None:
        return
    boxes: list[NDArray[Any]] = [first[0][None], first[1][None], np.ones((1, int(columns[-1])), np.bool_)]
    rows, n_opened = max(4, min(256, ROOM // max(parts.work, 1))), 0
    budget.need(BOX_COST * FLOAT * rows * max(parts.work, 1), "a batch of boxes")
    while len(boxes[0]):
        budget.need(3.0 * sum(x.nbytes for x in boxes), "the boxes that wait")
        n_opened += min(rows, len(boxes[0]))
        if n_opened > MOST_BOXES:
            raise Rejected(f"after {MOST_BOXES} boxes some have not closed")
        low, high, mask = (x[-rows:] for x in boxes)
        mask = rules.narrowed(mask, starts)
        found = _opened(parts, columns, threshold, low, high, mask)
        boxes = [np.concatenate([x[:-rows], y]) for x, y in zip(boxes, found, strict=True)]


def _opened(
    parts: Normals | Products, columns: Ints, threshold: float, low: Floats, high: Floats, mask: Flags
) -> Boxes:
    """Return the parts of the boxes that do not close."""
    level, best = _levels(parts.tables, columns, mask)
    value, peak, slope, bend = parts.majorants(low, high)
    with np.errstate(invalid="ignore"):
        value, peak = value + level, peak + level
    bound = log_sum(peak, 1)
    score = _plain_score(peak, bound, slope)
    rows = np.flatnonzero(~(bound <= threshold))  # NaN bounds nothing
    second, better, at = second_order(value[rows], peak[rows], slope[rows], bend[rows])
    lower = second < bound[rows]
    score[rows[lower]] = better[lower]
    plain = bound.copy()
    bound[rows] = np.fmin(bound[rows], second)
    of_points = rows[mask[rows].sum(axis=1) < len(columns)]  # one state of each categorical variable
    if len(of_points):
        best_row = of_points[np.argmax(bound[of_points])]
        a, b = low[best_row], high[best_row]
        point = np.clip(a + 0.5 * (b - a) * (1.0 + at[np.flatnonzero(rows == best_row)[0]]), a, b)
        _refute(parts, threshold, point, level[best_row])
    rows = np.flatnonzero(~(bound <= threshold))
    low, high, mask = low[rows], high[rows], mask[rows].copy()
    gains = np.full((len(rows), len(columns) - 1), -np.inf)
    for v, (start, stop) in enumerate(pairwise(columns.tolist())):
        several = np.flatnonzero(mask[:, start:stop].sum(axis=1) > 1)
        if len(several):
            of_state = _each(peak[rows[several]], best[v][rows[several]], parts.tables[:, start:stop])
            mask[several, start:stop] &= ~(of_state <= threshold)
            of_state = np.where(mask[several, start:stop], of_state, -np.inf)
            gains[several, v] = plain[rows[several]] - of_state.max(axis=1)
    return _split(parts, columns, (low, high, mask), score[rows], gains, bound[rows] - threshold)


def _refute(parts: Normals | Products, threshold: float, point: Floats, level: Floats) -> None:
    """Reject a claim as soon as a point lies above it: the search could not end."""
    found = float(log_sum(parts.majorants(point[None], point[None]).peak[0] + level))
    if found > threshold + 1e-10 * (1.0 + abs(threshold)):
        raise Rejected(f"the point {point.tolist()} has the log value {found:.12g}, above the claim")


def _levels(tables: Floats, columns: Ints, mask: Flags) -> tuple[Floats, list[Floats]]:
    """Return each component's largest categorical factor in each box, in all and for each variable."""
    spans = [slice(*ends) for ends in pairwise(columns.tolist())]
    best = [np.where(mask[:, None, span], tables[:, span], -np.inf).max(axis=2) for span in spans]
    level = np.zeros((len(mask), len(tables)))
    for one in best:
        level = up(level + one)
    return level, best


def _each(peak: Floats, best: Floats, tables: Floats) -> Floats:
    """Return bounds with each state of one variable held fixed, shape (boxes, states)."""
    base = np.where(np.isfinite(best), peak - best, -np.inf)
    slack = 8.0 * UNIT * np.where(np.isfinite(base), np.abs(peak) + np.abs(best), 0.0)
    return np.stack([log_sum(base + slack + tables[:, s], 1) for s in range(tables.shape[1])], axis=1)


def _split(
    parts: Normals | Products, columns: Ints, boxes: Boxes, score: Floats, gains: Floats, need: Floats
) -> Boxes:
    """Split each box on the categorical variable of the largest gain, or on the real one of the largest score."""
    new: list[Boxes] = []
    for row, (a, b, states) in enumerate(zip(*boxes, strict=True)):
        kept = np.add.reduceat(states, columns[:-1], dtype=np.int64) if len(columns) > 1 else np.zeros(0, np.int64)
        if np.any(kept == 0):
            continue
        middle = a + 0.5 * (b - a)
        can = (a < middle) & (middle < b)
        v = int(np.argmax(np.where(kept > 1, gains[row], -np.inf))) if np.any(kept > 1) else -1
        if v >= 0 and (not np.any(can) or gains[row, v] >= GAIN * min(float(need[row]), 2.0)):
            for column in np.flatnonzero(states[columns[v] : columns[v + 1]]) + columns[v]:
                one = states.copy()
                one[columns[v] : columns[v + 1]] = False
                one[column] = True
                new.append((a, b, one))
            continue
        if not np.any(can):
            raise Rejected(f"a box around {a.tolist()} does not close, and is too small to be split")
        j = int(np.argmax(np.where(can, score[row], -1.0)))
        at = parts.cut(j, float(a[j]), float(b[j]))
        below, above = b.copy(), a.copy()
        below[j] = middle[j] if at is None else at
        above[j] = middle[j] if at is None else np.nextafter(at, np.inf)  # a cut belongs to the lower part
        new += [(a, below, states), (above, b, states)]
    if not new:
        return boxes[0][:0], boxes[1][:0], boxes[2][:0]
    return tuple(np.array(x) for x in zip(*new, strict=True))  # pyright: ignore[reportReturnType]


def _plain_score(peak: Floats, bound: Floats, slope: Floats) -> Floats:
    """Return how much each variable may raise components bounded by their peaks; used only to choose splits."""
    with np.errstate(invalid="ignore", over="ignore"):
        share = np.exp(np.minimum(peak - bound[:, None], 300.0))
    return np.einsum("bk,bkj->bj", np.nan_to_num(share), np.minimum(np.abs(slope), 3.0))


def kappa(z: Floats) -> Floats:
    """Return an upper bound on (e^y - 1 - y) / (y^2 / 2) for all y <= z, z >= 0; inf beyond 300."""
    near = np.minimum(z, 2.0)
    far = np.clip(z, 2.0, 300.0)
    series = 1.0 + near / 3.0 + near * near / (12.0 - 2.4 * near)
    exact = 2.0 * (np.exp(far) - 1.0 - far) / (far * far)
    return np.where(z <= 2.0, series, np.where(z <= 300.0, exact, np.inf)) * (1.0 + 32.0 * UNIT)


def second_order(value: Floats, peak: Floats, slope: Floats, bend: Floats) -> tuple[Floats, Floats, Floats]:
    """Bound logs of sums of components in boxes; return bounds (or NaN, inf), looseness per variable, a good t."""
    inner = tuple(range(2, bend.ndim))
    n_parts = value.shape[1]
    with np.errstate(all="ignore"):
        known = (peak - value <= FAR) & np.isfinite(value) & np.all(np.isfinite(bend), axis=inner)
        top = np.max(np.where(known, value, -np.inf), axis=1, keepdims=True, initial=-np.inf)
        share: Floats = np.where(known, np.exp(value - top), 0.0)
        known &= share > LEAST_SHARE
        share = np.where(known, share, 0.0)
        total = share.sum(axis=1)
        middle = top[:, 0] + np.log(total)
        outside = log_sum(np.where(known, -np.inf, peak), 1)
        score = _plain_score(np.where(known, -np.inf, peak), middle, slope)
        slope = np.where(known[:, :, None], slope, 0.0)
        bend = np.where(np.expand_dims(known, inner), bend, 0.0)
        factor, steep, matrix, sizes, loose = _gathered(share / total[:, None], known, slope, bend)
        good = np.isfinite(factor) & np.isfinite(sizes)
        rises = np.full(len(value), np.inf)
        at = np.zeros_like(steep)
        rises[good], at[good] = largest_quadratic(steep[good], matrix[good])
        error = UNIT * (n_parts + slope.shape[2] + 32.0) * (4.0 + np.abs(middle) + sizes)
        expanded = middle + np.log(factor) + rises + error
        return log_sum(np.stack([expanded, outside], axis=1), 1), np.nan_to_num(score + loose), at


def _gathered(
    share: Floats, known: Flags, slope: Floats, bend: Floats
) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Return a factor, slope and matrix M: factor exp(slope t - t M t / 2) bounds the sum of the majorants.

    Differences of bends from their mean raise the shares or enter a remainder, whichever is less. Also returns the
    sizes of all terms, and the looseness due to each variable.
    """
    is_full, inner, n = bend.ndim == 4, tuple(range(2, bend.ndim)), slope.shape[2]
    steep, bent = _mean(share, slope), _mean(share, bend)
    more: Floats = np.where(np.expand_dims(known, inner), 0.5 * (bend - bent[:, None]), 0.0)
    size = np.abs(more)
    curved: Floats = size.sum(axis=inner)
    straight: Floats = np.where(known, np.abs(slope - steep[:, None]).sum(axis=2), 0.0)
    rest: Floats = (share * kappa(straight + curved) * (straight + 0.5 * curved) * curved).sum(axis=1)
    lifted: Floats = share * np.exp(_rises(more, size, is_full))
    is_lifted: Flags = lifted.sum(axis=1) < 1.0 + rest
    weight: Floats = np.where(is_lifted[:, None], lifted, share)
    sums: Floats = weight.sum(axis=1)
    steep = np.where(is_lifted[:, None], _mean(weight, slope) / sums[:, None], steep)
    off: Floats = np.where(known[:, :, None], slope - steep[:, None], 0.0)
    straight = np.abs(off).sum(axis=2)
    raised: Floats = weight * kappa(np.where(is_lifted[:, None], straight, straight + curved))
    square: Floats = np.matmul((raised[:, :, None] * off).swapaxes(1, 2), off)
    zeros = tuple(range(1, bent.ndim))
    left: Floats = np.abs(_mean(weight, off)).sum(axis=1)  # means that would be 0 in exact arithmetic
    unlifted: Floats = rest + np.abs(_mean(share, more)).sum(axis=zeros)
    factor: Floats = sums + left + np.where(is_lifted, 0.0, unlifted)
    matrix = -square / factor[:, None, None] - (bent if is_full else bent[:, :, None] * np.eye(n))
    terms: Floats = (raised * (straight + straight * straight + curved * (1.0 + straight + curved))).sum(axis=1)
    sizes: Floats = np.abs(bent).sum(axis=zeros) + 2.0 * np.abs(steep).sum(axis=1) + 4.0 * terms
    counted: Floats = np.where(is_lifted[:, None], weight, raised * straight)
    own: Floats = np.diagonal(size, axis1=2, axis2=3) if is_full else size
    loose = np.einsum("bk,bkj->bj", raised, off * off) + np.einsum("bk,bkj->bj", counted, own)
    return factor, steep, matrix, sizes, loose


def _mean(weight: Floats, values: Floats) -> Floats:
    return np.einsum("bk,bk...->b...", weight, values)


def _rises(more: Floats, size: Floats, is_full: bool) -> Floats:
    """Return an upper bound on each quadratic function t `more` t over the box."""
    if not is_full:
        return np.maximum(more, 0.0).sum(axis=2)
    diagonal = np.diagonal(more, axis1=2, axis2=3)
    return size.sum(axis=(2, 3)) - np.abs(diagonal).sum(axis=2) + np.maximum(diagonal, 0.0).sum(axis=2)


def largest_quadratic(slope: Floats, matrix: Floats) -> tuple[Floats, Floats]:
    """Return upper bounds on the maximum of slope t - t M t / 2 over [-1, 1]^n, and approximate maximisers.

    Write M = P - N + E with P and N positive semidefinite, however inexact the eigenvalues are; E is bounded by
    its absolute size. With u the row sums of |N|, N is at most diag(u). So M + diag(u) in place of M costs half
    the sum of u, and makes the function concave: it lies below its tangent at any point.
    """
    n = slope.shape[1]
    if not n or not len(slope):
        return np.zeros(len(slope)), np.zeros_like(slope)
    values, vectors = np.linalg.eigh(matrix)
    turned = vectors.swapaxes(1, 2)
    positive, negative = (np.matmul(vectors * np.maximum(x, 0.0)[:, None], turned) for x in (values, -values))
    sizes = np.matmul(np.abs(vectors) * np.abs(values)[:, None], np.abs(turned)).sum(axis=(1, 2))
    error = np.abs(positive - negative - matrix).sum(axis=(1, 2)) + 8.0 * (n + 4.0) * UNIT * sizes
    lift = np.abs(negative).sum(axis=2)
    concave = matrix + lift[:, :, None] * np.eye(n)
    at = _highest(slope, concave)
    pull = slope - np.matmul(concave, at[:, :, None])[:, :, 0]
    value = (0.5 * (slope + pull) * at + np.abs(pull) - pull * at + 0.5 * lift).sum(axis=1)
    terms = np.abs(slope).sum(axis=1) + 2.0 * np.abs(concave).sum(axis=(1, 2)) + lift.sum(axis=1)
    return value + 2.0 * error + UNIT * (4.0 * n + 16.0) * terms, at


def _highest(slope: Floats, concave: Floats) -> Floats:
    """Return an approximate maximiser of slope t - t Q t / 2 in [-1, 1]^n; the bound holds at any point."""
    n = slope.shape[1]
    at = np.zeros_like(slope)
    own = np.maximum(np.diagonal(concave, axis1=1, axis2=2), 1e-300)
    for _ in range(2):
        for i in range(n):
            pull = slope[:, i] - (concave[:, i] * at).sum(axis=1) + own[:, i] * at[:, i]
            at[:, i] = np.clip(pull / own[:, i], -1.0, 1.0)
    ridge = 1e-12 * own.sum(axis=1) + 1e-300
    for _ in range(ROUNDS):
        pull = slope - np.matmul(concave, at[:, :, None])[:, :, 0]
        free = ~((np.abs(at) >= 1.0) & (pull * at > 0.0))
        among = np.where(free[:, :, None] & free[:, None], concave, 0.0)
        among = among + np.where(free, ridge[:, None], 1.0)[:, :, None] * np.eye(n)
        try:
            step = np.linalg.solve(among, np.where(free, pull, 0.0)[:, :, None])[:, :, 0]
        except np.linalg.LinAlgError:
            break
        at = np.clip(at + np.where(np.isfinite(step), step, 0.0), -1.0, 1.0)
    return at


@dataclass(frozen=True, eq=False)
class Leaves:
    """The distinct leaves over one variable."""

    kind: Ints
    params: Floats  # padded with 0
    scale: Floats  # logs of the densities' scale factors, rounded up
    low: Floats  # the ends of the supports
    high: Floats
    mode: Floats
    cuts: Floats  # all ends and kinks: a box on both sides of a cut is best split there
    own_cuts: Floats  # two for each leaf; inf for none

    @classmethod
    def of(cls, kinds: Sequence[int], params: Sequence[Sequence[float]]) -> Leaves:
        given = list(zip(kinds, params, strict=True))
        ends = [(-math.inf, math.inf) if k == GAUSSIAN else support(k, p) for k, p in given]
        low, high = np.array(ends, np.float64).T
        first = np.array([mode_of(k, p) for k, p in given])
        own = np.stack([np.nextafter(low, -np.inf), np.where(np.isinf(high), -np.inf, high)], axis=1)
        kind = np.array(kinds, np.int64)
        own[kind == LAPLACE, 0] = first[kind == LAPLACE]
        own = np.where(np.isfinite(own), own, np.inf)
        padded = np.array([[*p, 0.0, 0.0, 0.0][:4] for p in params])
        scale = np.array([_scale(k, p) for k, p in given])
        mode, cuts = np.clip(first, low, high), np.unique(own[np.isfinite(own)])
        return cls(kind, padded, scale, low, high, mode, cuts, own)

    def majorants(self, low: Floats, high: Floats) -> Majorants:
        """Bound leaves over intervals, shape (B,): arrays (B, leaves)."""
        a, b = low[:, None], high[:, None]
        middle = a + 0.5 * (b - a)
        reach = np.maximum(b - middle, middle - a) * (1.0 + 4.0 * UNIT)
        inner_low, inner_high = np.maximum(a, self.low), np.minimum(b, self.high)
        value, slope, bend, size = self._shapes(middle, reach, a, b)
        peak = np.clip(self.mode, inner_low, np.maximum(inner_high, inner_low))
        top, _, _, top_size = self._shapes(peak, 0.0, a, b)
        outside = inner_low > inner_high
        kinked = np.any((self.own_cuts >= a[:, :, None]) & (self.own_cuts < b[:, :, None]), axis=2)
        size = size + np.abs(slope) + np.abs(bend)
        value, top = value + 32.0 * UNIT * (1.0 + size), top + 32.0 * UNIT * (1.0 + top_size)
        value, top = (np.where(outside, -np.inf, x) for x in (value, top))
        return Majorants(value, top, np.where(kinked, 3.0, slope), np.where(kinked, np.inf, bend))

    def _shapes(self, at: Floats, reach: Any, low: Floats, high: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Return logs at points in [low, high], slopes and bends per `reach`, and the sizes of the logs' terms."""
        shape = np.broadcast_shapes(at.shape, self.kind.shape)
        at = np.broadcast_to(at, shape)
        ratio, slope, bend, more = (np.zeros(shape) for _ in range(4))
        p = self.params.T
        for kind in np.unique(self.kind).tolist():
            k = np.flatnonzero(self.kind == kind)
            here = at[:, k]
            if kind in (GAUSSIAN, TRUNCATED):
                z, step = (here - p[0, k]) / p[1, k], reach / p[1, k]
                ratio[:, k], slope[:, k], bend[:, k] = -0.5 * z * z, -z * step, -step * step
            elif kind == EXPONENTIAL:
                ratio[:, k], slope[:, k] = -p[0, k] * here, -p[0, k] * reach
            elif kind == LAPLACE:
                ratio[:, k] = -np.abs(here - p[0, k]) / p[1, k]
                slope[:, k] = -np.sign(here - p[0, k]) * reach / p[1, k]
            elif kind == STUDENT_T:
                df, step = p[2, k], reach / p[1, k]
                z, ends = (here - p[0, k]) / p[1, k], ((low - p[0, k]) / p[1, k], (high - p[0, k]) / p[1, k])
                ratio[:, k] = -0.5 * (df + 1.0) * np.log1p(z * z / df)
                slope[:, k] = -(df + 1.0) * z / (df + z * z) * step
                nearest = np.where(ends[0] * ends[1] <= 0.0, 0.0, np.minimum(ends[0] ** 2, ends[1] ** 2))
                u = np.clip(3.0 * df, nearest, np.maximum(ends[0] ** 2, ends[1] ** 2))  # the most convex point
                bend[:, k] = (df + 1.0) * (u - df) / (u + df) ** 2 * step * step
            elif kind in (BETA, GAMMA, LOGNORMAL):
                here, *ends = (np.clip(x, SMALL, 1.0 - UNIT if kind == BETA else BIG) for x in (here, low, high))
                with np.errstate(over="ignore", invalid="ignore"):
                    terms, bent = _curved(kind, p[:, k], here, *ends)
                    ratio[:, k], slope[:, k] = sum(terms[:2]), sum(terms[2:]) * reach
                    bend[:, k] = bent * reach * reach
                more[:, k] = np.abs(terms[:2]).sum(axis=0) + np.abs(terms[2:]).sum(axis=0) * reach
        return ratio + self.scale, slope, bend, np.abs(ratio) + np.abs(self.scale) + more


def _curved(kind: int, p: Floats, x: Floats, low: Floats, high: Floats) -> tuple[list[Floats], Floats]:
    """Return two terms of a log density at x, two of its slope, and its largest bend in [low, high]."""
    a, b = p[0] - 1.0, p[1] - 1.0
    if kind == BETA:
        bend = -a / high / high - b / (1.0 - low) / (1.0 - low)
        return [a * np.log(x), b * np.log1p(-x), a / x, -b / (1.0 - x)], bend
    if kind == GAMMA:
        return [a * np.log(x), -p[1] * x, a / x, np.broadcast_to(-p[1], x.shape)], -a / high / high
    z, most = (np.log(x) - p[0]) / p[1], np.clip(np.exp(p[0] + 1.5 - p[1] * p[1]), low, high)
    parts = 1.0, (np.log(most) - 1.0 - p[0]) / p[1] / p[1]
    bend = (
        (sum(parts) + 16.0 * UNIT * (1.0 + (1.0 + np.abs(np.log(most)) + np.abs(p[0])) / p[1] ** 2)) / most / most
    )
    known = (1.0 + 4.0 * np.abs(z)) * (np.abs(np.log(x)) + np.abs(p[0])) / p[1]  # rounding of the log
    return [-0.5 * z * z + UNIT * known, -np.log(x), -1.0 / x, -z / p[1] / x], bend


def _scale(kind: int, p: Sequence[float]) -> float:
    """Return the log of a density's scale factor, rounded up."""
    if kind == GAUSSIAN:
        return -HALF_LOG_2PI - math.log(p[1]) + (8.0 + abs(math.log(p[1]))) * UNIT
    if kind == TRUNCATED:
        return _scale(GAUSSIAN, p) - log_mass(p[0], p[1], p[2], p[3], -1)
    if kind in (BETA, GAMMA, LOGNORMAL):
        return total_of(log_constants(kind, p), 1)
    return log_density(kind, p, p[1] if kind == UNIFORM else mode_of(kind, p), 1)


@dataclass(frozen=True, eq=False)
class Products:
    """The products of a circuit."""

    log_weights: Floats
    chosen: Ints  # the leaf of each real variable
    tables: Floats  # the factor of each categorical state
    leaves: list[Leaves]
    within: Floats  # the interval of each real query variable

    @property
    def n_real(self) -> int:
        return len(self.leaves)

    @property
    def work(self) -> int:
        return 12 * self.chosen.size + 4 * self.tables.size + sum(16 * len(x.kind) for x in self.leaves)

    def start(self, threshold: float) -> tuple[Floats, Floats] | None:
        """Return the hull of each variable's peaks; from any point outside, every leaf rises towards the hull."""
        modes = np.array([[x.mode.min(), x.mode.max()] for x in self.leaves]).reshape(-1, 2)
        ends = np.clip(modes, self.within[:, :1], self.within[:, 1:])
        return ends[:, 0].copy(), ends[:, 1].copy()

    def majorants(self, low: Floats, high: Floats) -> Majorants:
        """Add up the majorants of each product's leaves."""
        found = [x.majorants(low[:, j], high[:, j]) for j, x in enumerate(self.leaves)]
        n_boxes, (n_parts, n) = len(low), self.chosen.shape
        slope, bend = np.empty((n_boxes, n_parts, n)), np.empty((n_boxes, n_parts, n))
        value, peak = (np.tile(self.log_weights, (n_boxes, 1)) for _ in range(2))
        for j, one in enumerate(found):
            at = self.chosen[:, j]
            slope[:, :, j], bend[:, :, j] = one.slope[:, at], one.bend[:, at]
            value, peak = up(value + one.value[:, at]), up(peak + one.peak[:, at])
        return Majorants(value, peak, slope, bend)

    def cut(self, variable: int, low: float, high: float) -> float | None:
        """Return the end or kink of a leaf in [low, high) nearest to the middle, or None."""
        cuts = self.leaves[variable].cuts
        inside = cuts[(cuts >= low) & (cuts < high)]
        return float(inside[np.argmin(np.abs(inside - (low + 0.5 * (high - low))))]) if len(inside) else None


def _refuse_more(n_parts: int, n_leaves: int) -> None:
    if n_parts > MOST_PARTS or n_leaves > MOST_LEAVES:
        raise Rejected(f"the circuit has more than {MOST_PARTS} products, or {MOST_LEAVES} leaves of them")


class _Flat(NamedTuple):
    """The components of a node: log weights, and the leaf or table of each query variable, -1 for none."""

    logs: Floats
    rows: Ints


@dataclass(eq=False)
class _Flattener:
    leaf_tables: Floats
    variable: Ints
    question: Question
    edges: Edges
    tables: list[Floats] = field(default_factory=list[Floats])

    def leaf(self, i: int) -> _Flat:
        v = int(self.variable[i])
        place = np.flatnonzero(self.question.queried == v)
        rows = np.full((1, len(self.question.queried)), -1, np.int64)
        table = self.leaf_tables[i, : self.question.sizes[v]]
        if v not in self.edges:
            table = up(table + self.question.weights_of(v))
        if not len(place):
            return _Flat(log_sum(table[None], 1), rows)
        if v in self.edges:
            rows[0, place] = i
            return _Flat(np.where(table > -np.inf, 0.0, -np.inf), rows)
        return self._table(table, rows, int(place[0]))

    def _table(self, table: Floats, rows: Ints, place: int) -> _Flat:
        rows[0, place] = len(self.tables)
        self.tables.append(table)
        return _Flat(np.full(1, 0.0 if np.any(table > -np.inf) else -np.inf), rows)

    def sum(self, parts: Sequence[_Flat], weights: Sequence[float]) -> _Flat:
        _refuse_more(sum(len(part.logs) for part in parts), sum(part.rows.size for part in parts))
        logs = np.concatenate([up(part.logs + w) for part, w in zip(parts, weights, strict=True)])
        rows = np.concatenate([part.rows for part in parts])
        keep = logs > -np.inf
        if not np.any(keep):
            return _Flat(logs[:1], rows[:1])
        logs, rows = logs[keep], rows[keep]
        has = np.flatnonzero(np.any(rows >= 0, axis=0))
        if not len(has):
            return _Flat(log_sum(logs[None], 1), rows[:1])
        if len(has) == 1 and int(self.question.queried[has[0]]) not in self.edges:
            stacked = np.stack([self.tables[int(r)] for r in rows[:, has[0]]]) + logs[:, None]
            return self._table(log_sum(up(stacked), 0), rows[:1].copy(), int(has[0]))
        return _Flat(logs, rows)

    def product(self, parts: Sequence[_Flat]) -> _Flat:
        n = len(self.question.queried)
        logs, rows = np.zeros(1), np.full((1, n), -1, np.int64)
        for part in parts:
            _refuse_more(len(logs) * len(part.logs), len(logs) * len(part.logs) * n)
            logs = up(logs[:, None] + part.logs).reshape(-1)
            rows = np.maximum(rows[:, None], part.rows).reshape(len(logs), n)
        return _Flat(logs, rows)


def products_of(graph: Graph, arrays: Arrays, question: Question, edges: Edges) -> Products:
    """Multiply out a circuit, its real variables in `edges`; reject whole numbers, and too many products."""
    flat = _Flattener(graph.tables(arrays, question, edges, 1), graph.variable, question, edges)
    found: dict[int, _Flat] = {}
    children: list[int] = graph.children.tolist()
    weights: list[float] = graph.log_weights.tolist()
    for i in np.argsort(graph.heights, kind="stable").tolist():
        graph.budget.look()
        first, last = int(graph.ptr[i]), int(graph.ptr[i + 1])
        below = [found[c] for c in children[first:last]]
        if graph.variable[i] >= 0:
            found[i] = flat.leaf(i)
        else:
            found[i] = flat.sum(below, weights[first:last]) if graph.is_sum[i] else flat.product(below)
        _refuse_more(len(found[i].logs), found[i].rows.size)
    return _products(arrays, question, edges, found[graph.root], flat.tables)


def _products(arrays: Arrays, question: Question, edges: Edges, flat: _Flat, tables: Sequence[Floats]) -> Products:
    kind, start = np.asarray(arrays["kind"], np.int64), np.asarray(arrays["param_ptr"], np.int64)
    leaves, within = list[Leaves](), list[tuple[float, float]]()
    chosen, factors = list[Ints](), [np.zeros((len(flat.logs), 0))]
    for place, v in enumerate(question.queried.tolist()):
        rows = flat.rows[:, place]
        if np.any(rows < 0) and np.any(flat.logs > -np.inf):
            raise Rejected("some part of the circuit lacks a query variable")
        if v not in edges:
            factors.append(np.array([tables[int(r)] for r in rows]))
            continue
        used, which = np.unique(rows, return_inverse=True)
        kinds: list[int] = kind[used].tolist()
        if not set(kinds) <= set(SMOOTH):
            raise Rejected("leaves of whole numbers have no slopes")
        given = [arrays["params"][start[i] : start[i + 1]].astype(np.float64).tolist() for i in used.tolist()]
        leaves.append(Leaves.of(kinds, given))
        chosen.append(which.reshape(-1))
        within.append((float(edges[v][0]), float(edges[v][-1])))
    picked = np.stack(chosen, axis=1) if chosen else np.zeros((len(flat.logs), 0), np.int64)
    ends = np.array(within, np.float64).reshape(-1, 2)
    return Products(flat.logs, picked, np.concatenate(factors, axis=1), leaves, ends)
