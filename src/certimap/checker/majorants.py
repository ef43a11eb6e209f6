"""Multiplies a circuit out into a mixture of products of leaves, and bounds each leaf in a box by a majorant.

In a box the log of a leaf is at most value + slope t + bend t^2 / 2 for t in [-1, 1]. The Gaussian is such a
function; the exponential and the Laplace lie below their tangents; Student's t has a bounded second derivative.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from certimap.checker.circuit import Graph
from certimap.checker.leaves import (
    EXPONENTIAL,
    GAUSSIAN,
    HALF_LOG_2PI,
    LAPLACE,
    STUDENT_T,
    TRUNCATED,
    UNIFORM,
    Edges,
    log_density,
    log_mass,
    support,
)
from certimap.checker.mixtures import Majorants
from certimap.checker.models import Arrays, Question, Rejected
from certimap.checker.numbers import UNIT, Floats, Ints, log_sum, up

SMOOTH = (GAUSSIAN, TRUNCATED, UNIFORM, EXPONENTIAL, LAPLACE, STUDENT_T)
MOST_PARTS, MOST_LEAVES = 8000, 64_000


@dataclass(frozen=True, eq=False)
class Leaves:
    """The distinct leaves over one variable: kinds, parameters (padded with 0), log scales of the densities.

    `low` and `high` are the ends of the supports, `mode` the peaks. `cuts` are all ends and kinks: a box that lies
    on both sides of a cut is best split there; the cut itself belongs to the lower part.
    """

    kind: Ints
    params: Floats
    scale: Floats
    low: Floats
    high: Floats
    mode: Floats
    cuts: Floats
    own_cuts: Floats  # two for each leaf; inf for none

    @classmethod
    def of(cls, kinds: Sequence[int], params: Sequence[Sequence[float]]) -> Leaves:
        ends = [
            (-math.inf, math.inf) if k == GAUSSIAN else support(k, p) for k, p in zip(kinds, params, strict=True)
        ]
        low, high = np.array(ends, np.float64).T
        first = np.array(
            [0.0 if k in (UNIFORM, EXPONENTIAL) else p[0] for k, p in zip(kinds, params, strict=True)]
        )
        own = np.stack([np.nextafter(low, -np.inf), np.where(np.isinf(high), -np.inf, high)], axis=1)
        kind = np.array(kinds, np.int64)
        own[kind == LAPLACE, 0] = first[kind == LAPLACE]
        own = np.where(np.isfinite(own), own, np.inf)
        padded = np.array([[*p, 0.0, 0.0, 0.0][:4] for p in params])
        scale = np.array([_scale(k, p) for k, p in zip(kinds, params, strict=True)])
        mode, cuts = np.clip(first, low, high), np.unique(own[np.isfinite(own)])
        return cls(kind, padded, scale, low, high, mode, cuts, own)

    def majorants(self, low: Floats, high: Floats) -> Majorants:
        """Bound leaves over intervals, shape (B,): arrays (B, leaves)."""
        a, b = low[:, None], high[:, None]
        middle = a + 0.5 * (b - a)
        reach = np.maximum(b - middle, middle - a) * (1.0 + 4.0 * UNIT)
        inner_low, inner_high = np.maximum(a, self.low), np.minimum(b, self.high)
        value, slope, bend, size = self._shapes(middle, reach, a, b)
        top, _, _, top_size = self._shapes(
            np.clip(self.mode, inner_low, np.maximum(inner_high, inner_low)), 0.0, a, b
        )
        outside = inner_low > inner_high
        kinked = np.any((self.own_cuts >= a[:, :, None]) & (self.own_cuts < b[:, :, None]), axis=2)
        size = size + np.abs(slope) + np.abs(bend)
        value, top = value + 32.0 * UNIT * (1.0 + size), top + 32.0 * UNIT * (1.0 + top_size)
        return Majorants(
            np.where(outside, -np.inf, value),
            np.where(outside, -np.inf, top),
            np.where(kinked, 3.0, slope),
            np.where(kinked, np.inf, bend),
        )

    def _shapes(self, at: Floats, reach: Any, low: Floats, high: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Return logs at points in [low, high], slopes and bends per `reach`, and the sizes of the logs' terms."""
        shape = np.broadcast_shapes(at.shape, self.kind.shape)
        at = np.broadcast_to(at, shape)
        ratio, slope, bend = np.zeros(shape), np.zeros(shape), np.zeros(shape)
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
        return ratio + self.scale, slope, bend, np.abs(ratio) + np.abs(self.scale)


def _scale(kind: int, p: Sequence[float]) -> float:
    """Return the log of a density's scale factor, rounded up."""
    if kind == GAUSSIAN:
        return -HALF_LOG_2PI - math.log(p[1]) + (8.0 + abs(math.log(p[1]))) * UNIT
    if kind == TRUNCATED:
        return _scale(GAUSSIAN, p) - log_mass(p[0], p[1], p[2], p[3], -1)
    return log_density(kind, p, p[1] if kind == UNIFORM else 0.0 if kind == EXPONENTIAL else p[0], 1)


@dataclass(frozen=True, eq=False)
class Products:
    """The products of a circuit: log weights, the leaf of each real variable, factors of categorical states."""

    log_weights: Floats
    chosen: Ints
    tables: Floats
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


@dataclass(eq=False)
class _Flat:
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
        out = _Flat(np.zeros(1), np.full((1, n), -1, np.int64))
        for part in parts:
            _refuse_more(len(out.logs) * len(part.logs), len(out.logs) * len(part.logs) * n)
            logs = up(out.logs[:, None] + part.logs).reshape(-1)
            rows = np.maximum(out.rows[:, None], part.rows).reshape(len(logs), n)
            out = _Flat(logs, rows)
        return out


def products_of(graph: Graph, arrays: Arrays, question: Question, edges: Edges) -> Products:
    """Multiply out a circuit under a query; reject leaves over whole numbers, and too many products.

    In `question` each real variable has one state: the whole interval given by its `edges`.
    """
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
    leaves: list[Leaves] = []
    chosen: list[Ints] = []
    factors: list[Floats] = [np.zeros((len(flat.logs), 0))]
    within: list[tuple[float, float]] = []
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
    n_parts = len(flat.logs)
    picked = np.stack(chosen, axis=1) if chosen else np.zeros((n_parts, 0), np.int64)
    return Products(
        flat.logs, picked, np.concatenate(factors, axis=1), leaves, np.array(within, np.float64).reshape(-1, 2)
    )
