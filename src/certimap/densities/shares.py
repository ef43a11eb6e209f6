"""Bounds on a mixture of Gaussians that share one covariance, by a search over the components' shares.

In units in which the covariance is 1, ln f(x) = ln sum exp(a_k - |x - z_k|^2 / 2). At a stationary point, with p
the components' shares of f(x), x = sum p_k z_k and ln f(x) = g(p) = sum p_k (a_k - ln p_k) - p'Dp / 4, where D
holds the squared distances between the z_k. So boxes of shares are bounded and split: their number grows with the
overlap of components, not with the number of variables. `docs/what-a-certificate-means.md`, "Shares of
components", derives the bounds.
"""

from __future__ import annotations

import heapq
import math
from itertools import count

import numpy as np

from certimap.core.arrays import Floats
from certimap.core.logs import log_sum
from certimap.core.rounding import SMALLEST_NORMAL, ULP

REACH = 40.0  # standard deviations beyond which a component is below e^-750 of its top
MARGIN = 1e-9  # of sums of shares
BATCH = 128
ROUNDS = 2  # of narrowing a box
STEPS = 6  # towards the highest point of a box
HALVINGS = 45
NARROW = 1e-9  # shorter sides are not split
MOST_COMPONENTS = 400
MOST_OPEN = 100_000  # boxes
WORK = 80  # of a box per pair of components


def shares_of(tops: Floats, means: Floats, factors: Floats) -> Shares | None:
    """Return the search of a mixture as `NormalArrays` describes it; None if its covariances differ."""
    used = tops > np.max(tops) - 0.5 * REACH * REACH
    tops, means, factors = tops[used], means[used], factors[used]
    if len(tops) > MOST_COMPONENTS or np.any(factors != factors[0]):
        return None
    off = means - means[0]
    points = off @ factors[0].T
    moved = ULP * (means.shape[1] + 8.0) * np.linalg.norm(np.abs(off) @ np.abs(factors[0]).T, axis=1).max()
    slack = (REACH + 1.0) * moved + ULP * (means.shape[1] + 32.0) * (1.0 + np.abs(tops).max())
    return Shares(tops, points, means, slack) if moved < 1e-3 else None


class Shares:
    """A search for the largest value of a mixture, from logs of tops (K,) and whitened means, `points` (K, n).

    `slack` bounds the error, in nats, of the mixture that these describe. `work` is the cost of a box.
    """

    def __init__(self, tops: Floats, points: Floats, means: Floats, slack: float) -> None:
        self.tops, self.points, self.means, self.slack = tops, points, means, slack
        self.squares: Floats = np.square(points[:, None] - points).sum(axis=2)
        self.rounding = ULP * (4.0 * len(tops) + 4.0 * points.shape[1] + 128.0)
        self.work, self.numbers = WORK * len(tops) ** 2, count(1)
        self.open = [(-math.inf, 0, np.zeros(len(tops)), np.ones(len(tops)))]
        self.level = -math.inf
        self.found: Floats | None = None  # a point, in the mixture's units, above the threshold

    @property
    def log_bound(self) -> float:
        """An upper bound on ln f, in nats."""
        return max(self.level, -self.open[0][0] if self.open else -math.inf)

    def advance(self, work: int, threshold: float) -> int:
        """Bound and split the boxes of the largest bounds; return the work done.

        Closes what cannot hold a stationary point above the threshold (nats). Stops early if it finds one.
        """
        done, self.found, self.level = 0, None, max(self.level, threshold)
        while self.open and done < work and self.found is None and len(self.open) < MOST_OPEN:
            taken = [heapq.heappop(self.open) for _ in range(min(BATCH, len(self.open)))]
            taken = [one for one in taken if -one[0] > threshold]
            if taken:
                done += len(taken) * self.work
                self._open(np.array([x[2] for x in taken]), np.array([x[3] for x in taken]), threshold)
        return done

    def _open(self, low: Floats, high: Floats, threshold: float) -> None:
        level = threshold - self.slack  # for bounds without the slack
        plain = np.full(len(low), math.inf)
        for _ in range(ROUNDS):
            low, high, (plain,) = _feasible(low, high, plain)
            caps, plain = self.caps(low, high)
            high = np.minimum(
                high, np.maximum(np.exp(np.minimum(caps - level, 0.0)) * (1.0 + 4.0 * ULP), SMALLEST_NORMAL)
            )
            low, high, plain = (x[plain > level] for x in (low, high, plain))
        low, high, (plain,) = _feasible(low, high, plain)
        line, fixed, least = self.lines(low, high)
        at, level_of = _poured(line, low, high)
        first = fixed + _entropic(line, at, low, high, level_of)
        first += self._error(low, high, np.abs(line) - _log(at), level_of)
        rows = np.minimum(first, plain) > level
        low, high, line, fixed, least, at = (x[rows] for x in (low, high, line, fixed, least, at))
        second, better = self.tangents(low, high, at, line, fixed)
        bounds = np.minimum(np.minimum(first, plain)[rows], second)
        rows = bounds > level
        self._halve(bounds[rows] + self.slack, *(x[rows] for x in (low, high, at, least)))
        values = np.einsum("bk,bk->b", better, self.tops - _log(better) - 0.25 * (better @ self.squares))
        best = int(np.argmax(values)) if len(values) else -1
        if best >= 0 and values[best] > threshold:
            self.found = better[best] @ self.means / better[best].sum()

    def _halve(self, bounds: Floats, low: Floats, high: Floats, at: Floats, least: Floats) -> None:
        """Split boxes at the component whose share of the loss is largest; tiny ones stay open for ever."""
        sides, off = high - low, at - low
        score = off * (off @ self.squares - least) + 1e-9 * sides
        score = np.where(sides > NARROW, score, -1.0)
        choice, rows = np.argmax(score, axis=1), np.arange(len(low))
        self.level = max(self.level, float(bounds[score[rows, choice] < 0.0].max(initial=-math.inf)))
        middle = 0.5 * (low[rows, choice] + high[rows, choice])
        lower, upper = high.copy(), low.copy()
        lower[rows, choice] = upper[rows, choice] = middle
        for row in np.flatnonzero(score[rows, choice] >= 0.0):
            for ends in ((low[row], lower[row]), (upper[row], high[row])):
                heapq.heappush(self.open, (-float(bounds[row]), next(self.numbers), *ends))

    def caps(self, low: Floats, high: Floats) -> tuple[Floats, Floats]:
        """Return bounds on ln of each component, (B, K), and of f, (B,), at the points of boxes of shares.

        |x - z_k|^2 / 2 lies above its tangent at any point, and x is linear in the shares.
        """
        middle = low + high
        off = self.points - (middle / middle.sum(axis=1, keepdims=True) @ self.points)[:, None]
        products = np.einsum("bkd,bjd->bkj", off, off)
        halves = 0.5 * np.einsum("bkk->bk", products)
        lengths = np.sqrt(2.0 * halves)
        reach = np.einsum("bj,bj->b", high, lengths) + lengths.max(axis=1, initial=0.0)
        size = np.abs(self.tops) + halves + lengths * reach[:, None]
        spare = 1.0 - low.sum(axis=1)
        highest = np.einsum("bkj,bj->bk", products, low) + _most(products, high - low, spare)
        caps = self.tops - halves + highest + self.rounding * (1.0 + size)
        plain = log_sum(caps, 1)
        return caps, plain + self.rounding * (1.0 + np.abs(plain))

    def lines(self, low: Floats, high: Floats) -> tuple[Floats, Floats, Floats]:
        """Return slopes (B, K) and constants (B,) of linear functions above g less the entropy, and a loss."""
        shape = (len(low), *self.squares.shape)
        least = -_most(np.broadcast_to(-self.squares, shape), high - low, 1.0 - low.sum(axis=1) - MARGIN)
        across = low @ self.squares
        line = self.tops - 0.5 * across - 0.25 * least
        return line, np.einsum("bk,bk->b", self.tops - 0.25 * across - line, low), least

    def _error(self, low: Floats, high: Floats, sizes: Floats, level: Floats) -> Floats:
        """Return bounds on the rounding of bounds, (B,)."""
        sizes = sizes + 2.0 * (low @ self.squares) + 2.0 * np.abs(self.tops) + np.abs(level)[:, None]
        return self.rounding * (1.0 + np.abs(level) + np.einsum("bk,bk->b", high, sizes))

    def tangents(
        self, low: Floats, high: Floats, at: Floats, line: Floats, fixed: Floats
    ) -> tuple[Floats, Floats]:
        """Return bounds (B,) by concave functions above g, which lie below their tangents, and points near theirs.

        A share of -p'Dp/4 that the entropy makes concave is kept; the linear function replaces the rest.
        """
        off = self.points - (at @ self.points)[:, None]
        squares, spare = np.square(off).sum(axis=2), 1.0 - low.sum(axis=1) + 2.0 * MARGIN
        of_low, of_high = (np.einsum("bk,bkd,bke->bde", x, off, off) for x in (low, high))
        spread = np.linalg.eigvalsh(of_low)[:, -1] + _most(squares[:, None], high - low, spare)[:, 0]
        spread = np.minimum(spread, np.linalg.eigvalsh(of_high)[:, -1])
        spread += 1e-9 * spread + 1e-12 * (np.einsum("bk,bk->b", high, squares) + squares.max(axis=1, initial=0.0))
        kept = np.minimum(1.0, 1.0 / np.maximum(spread, 1e-9))[:, None]

        def slope_at(at: Floats) -> tuple[Floats, Floats]:
            mean = np.einsum("bk,bkd->bd", at, off)
            curved = self.tops - 0.5 * squares + np.einsum("bkd,bd->bk", off, mean)
            return kept * curved + (1.0 - kept) * line, 0.5 * np.square(mean).sum(axis=1)

        for _ in range(STEPS):
            at = 0.3 * at + 0.7 * _poured(slope_at(at)[0], low, high)[0]
        slope, half = slope_at(at)
        level = _poured(slope, low, high)[1]
        bound = (1.0 - kept[:, 0]) * fixed - kept[:, 0] * half + _entropic(slope, at, low, high, level)
        sizes = np.abs(line) - _log(at) + squares + np.sqrt(squares * 2.0 * half[:, None])
        bound += self._error(low, high, sizes, level) + self.rounding * (np.abs(fixed) + half)
        return np.where(np.abs(at.sum(axis=1) - 1.0) <= MARGIN, bound, math.inf), at


def _entropic(slope: Floats, at: Floats, low: Floats, high: Floats, level: Floats) -> Floats:
    """Return upper bounds (B,) on slope p - sum p ln p over shares in boxes.

    The entropy lies below its tangent at `at`; for a linear function, any `level` (B,) gives a bound by duality.
    """
    off = slope - _log(at) - level[:, None]
    return level + np.maximum(off * low, off * high).sum(axis=1) + at.sum(axis=1) - 1.0


def _log(shares: Floats) -> Floats:
    return np.log(np.maximum(shares, SMALLEST_NORMAL))


def _feasible(low: Floats, high: Floats, *more: Floats) -> tuple[Floats, Floats, list[Floats]]:
    """Cut boxes to shares that can add up to 1; leave out empty ones."""
    for _ in range(2):
        high = np.minimum(high, 1.0 - (low.sum(axis=1, keepdims=True) - low) + 1e-12)
        low = np.maximum(low, 1.0 - (high.sum(axis=1, keepdims=True) - high) - 1e-12)
    rows = (low.sum(axis=1) <= 1.0 + 1e-9) & (high.sum(axis=1) >= 1.0 - 1e-9) & np.all(low <= high + 1e-9, axis=1)
    return low[rows], np.maximum(high, low)[rows], [x[rows] for x in more]


def _most(values: Floats, room: Floats, spare: Floats) -> Floats:
    """Return the largest sums of values (B, M, K) times amounts up to `room` (B, K) that add to `spare` (B,)."""
    order = np.argsort(-values, axis=2)
    room = np.take_along_axis(np.broadcast_to(room[:, None], values.shape), order, 2)
    taken = np.clip(np.maximum(spare, 0.0)[:, None, None] - (np.cumsum(room, axis=2) - room), 0.0, room)
    return np.einsum("bmk,bmk->bm", taken, np.take_along_axis(values, order, 2))


def _poured(logs: Floats, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Return exp(logs - level) cut to [low, high], (B, K), and the level (B,) at which they add to about 1."""
    first: Floats = logs.max(axis=1) - 700.0
    last: Floats = logs.max(axis=1) + 700.0
    for _ in range(HALVINGS):
        level = 0.5 * (first + last)
        above = np.clip(np.exp(np.minimum(logs - level[:, None], 1.0)), low, high).sum(axis=1) > 1.0
        first, last = np.where(above, level, first), np.where(above, last, level)
    return np.clip(np.exp(np.minimum(logs - last[:, None], 1.0)), low, high), last
