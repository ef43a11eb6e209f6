"""The open boxes of a search: packed, with their bounds and masses; and how a batch of them is expanded."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from certimap.certify.recorder import Recorder
from certimap.core.arrays import Array, Flags, Floats, Ints, Ints32, grown
from certimap.core.box import Answers, Layout, Points, SearchBoxes
from certimap.core.logs import log_sum
from certimap.core.posterior import Prober
from certimap.kernels.branching import interval_score

MAX_HINTS = 4  # hints per generation


class OpenRows(NamedTuple):
    """Boxes to open, with natural-log bounds and masses, and depths."""

    boxes: SearchBoxes
    bounds: Floats
    masses: Floats
    depths: Ints32


class OpenBoxes:
    """A growing table of boxes, their masks packed to bits, with natural-log bounds and masses, and depths."""

    def __init__(self, n_columns: int, n_real: int) -> None:
        self.n_columns = n_columns
        self.n = 0
        self._bits = np.zeros((16, (n_columns + 7) // 8), np.uint8)
        self._low = np.zeros((16, n_real))
        self._high = np.zeros((16, n_real))
        self._bounds = np.zeros(16)
        self._masses = np.zeros(16)
        self._depths = np.zeros(16, np.int32)

    def __len__(self) -> int:
        return self.n

    @property
    def bounds(self) -> Floats:
        return self._bounds[: self.n]

    @property
    def log_masses(self) -> Floats:
        return self._masses[: self.n]

    @property
    def log_mass(self) -> float:
        """ln of the mass of all open boxes."""
        return float(log_sum(self.log_masses))

    def hull(self) -> SearchBoxes:
        """Return the smallest box that contains all open boxes; at least one must be open."""
        bits = np.bitwise_or.reduce(self._bits[: self.n], axis=0)
        mask = np.unpackbits(bits[None], axis=1, count=self.n_columns)
        low, high = self._low[: self.n].min(axis=0), self._high[: self.n].max(axis=0)
        return SearchBoxes(mask, low[None], high[None])

    def longest(self, is_real: Flags) -> float:
        """Return the longest side of any box; 0 when nothing is open."""
        return float(np.max((self._high - self._low)[: self.n, is_real], initial=0.0))

    @property
    def log_bound(self) -> float:
        """The largest bound; -inf when nothing is open."""
        return float(np.max(self.bounds)) if self.n else -np.inf

    @property
    def n_bytes(self) -> int:
        return sum(a.nbytes for a in self._arrays())

    @property
    def bytes_each(self) -> int:
        return self.n_bytes // len(self._bounds)

    def _arrays(self) -> tuple[Array, ...]:
        return (self._bits, self._low, self._high, self._bounds, self._masses, self._depths)

    def push(self, given: OpenRows) -> None:
        """Add boxes."""
        boxes, bounds, masses, depths = given
        end = self.n + len(boxes)
        if end > len(self._bounds):
            room = max(end, len(self._bounds) + len(self._bounds) // 2)
            arrays = [grown(a, room, self.n) for a in self._arrays()]
            self._bits, self._low, self._high, self._bounds, self._masses, self._depths = arrays
        rows = slice(self.n, end)
        self._bits[rows] = np.packbits(boxes.mask, axis=1)
        self._low[rows], self._high[rows] = boxes.low, boxes.high
        self._bounds[rows], self._masses[rows], self._depths[rows] = bounds, masses, depths
        self.n = end

    def boxes(self, rows: Ints | slice) -> SearchBoxes:
        """Return some boxes, unpacked."""
        bits = self._bits[: self.n][rows]
        mask = np.unpackbits(bits, axis=1, count=self.n_columns)
        return SearchBoxes(mask, self._low[: self.n][rows].copy(), self._high[: self.n][rows].copy())

    def take(self, count: int, deepest: bool, scales: Floats | None = None) -> OpenRows:
        """Remove up to `count` boxes: the deepest, the widest in units of `scales`, or those of largest bound."""
        if count >= self.n:
            rows = np.arange(self.n)
        elif deepest:
            rows = np.lexsort((-self.bounds, -self._depths[: self.n]))[:count]
        elif scales is not None:
            widths = np.max((self._high[: self.n] - self._low[: self.n]) / scales, axis=1)
            rows = np.argpartition(-widths, count - 1)[:count]
        else:
            rows = np.argpartition(-self.bounds, count - 1)[:count]
        taken = OpenRows(self.boxes(rows), self.bounds[rows], self.log_masses[rows], self._depths[rows])
        keep = np.ones(self.n, np.bool_)
        keep[rows] = False
        self._fill_gaps(rows, keep)
        return taken

    def cap(self, log_bound: float) -> None:
        """Lower every box's bound to at most `log_bound`, a bound on all open boxes."""
        np.minimum(self.bounds, log_bound, out=self.bounds)

    def prune(self, threshold: float) -> tuple[float, float]:
        """Remove the boxes whose bound is at most `threshold`; return ln of their mass and their largest bound."""
        dead = self.bounds <= threshold
        if not np.any(dead):
            return -np.inf, -np.inf
        mass, bound = float(log_sum(self.log_masses[dead])), float(np.max(self.bounds[dead]))
        self._fill_gaps(np.flatnonzero(dead), ~dead)
        return mass, bound

    def _fill_gaps(self, rows: Ints, keep: Flags) -> None:
        """Move boxes from the end into the gaps left by `rows`."""
        left = self.n - len(rows)
        gaps = np.sort(rows[rows < left])
        movers = left + np.flatnonzero(keep[left:])
        for array in self._arrays():
            array[gaps] = array[movers]
        self.n = left


@dataclass(eq=False)
class Expansion:
    """The result of expanding a batch of boxes; natural logs, and masses in the prober's measure.

    `closed`: (largest bound, mass) of the closed boxes. `stuck`: the largest bound of real boxes too small to
    split.
    `points`, `hints`: boxes of one point, and points worth scoring.
    """

    children: list[OpenRows] = field(default_factory=list[OpenRows])
    closed: tuple[float, float] = (-math.inf, -math.inf)
    stuck: float = -math.inf
    points: list[Points] = field(default_factory=list[Points])
    hints: list[Points] = field(default_factory=list[Points])
    n_probed: int = 0

    def close(self, bounds: Floats, masses: Floats) -> None:
        """Count boxes, or parts of boxes, as closed."""
        if len(bounds):
            known = masses[~np.isnan(masses)]  # no measure where a variable is real
            mass = float(np.logaddexp(self.closed[1], float(log_sum(known))))
            self.closed = max(self.closed[0], float(np.max(bounds))), mass


def expand(prober: Prober, rows: OpenRows, threshold: float, recorder: Recorder | None = None) -> Expansion:
    """Probe boxes until no more columns can be dropped, then branch.

    A column whose bound is at most `threshold` (nats) is dropped; a box in which some variable has no column left
    is closed. Each other box branches on the variable whose column bounds have the smallest sum.
    """
    layout, result = prober.layout, Expansion()
    before: Floats | None = None
    boxes, bounds, _, depths = rows
    opened = boxes
    while len(boxes):
        answers = prober.probe(boxes)
        result.n_probed += len(boxes)
        bounds = np.minimum(bounds, answers.log_bound)
        if before is not None:
            result.close(np.full(1, -np.inf), log_difference(before, answers.log_mass))
        each = np.minimum(answers.each_bound, bounds[:, None])
        alive = (each > threshold) & (boxes.mask > 0)
        frozen = np.isnan(answers.splits) & layout.is_real
        alive |= frozen[:, layout.variable_of]
        n_alive = np.add.reduceat(alive, layout.offsets[:-1], axis=1, dtype=np.int64)
        dead = (bounds <= threshold) | np.any(n_alive == 0, axis=1)
        lost = np.where((boxes.mask > 0) & ~alive, each, -np.inf).max(axis=1)
        result.close(np.where(bounds <= threshold, bounds, lost)[dead], answers.log_mass[dead])
        halved = (n_alive == 1) & layout.is_real
        shrunk = ~dead & (np.any((boxes.mask > 0) & ~alive, axis=1))
        ready = ~dead & ~shrunk
        rows = OpenRows(boxes.rows(ready), bounds[ready], answers.log_mass[ready], depths[ready])
        there = {name: x[ready] for name, x in vars(answers).items() if x is not None}
        choice = _finish(layout, result, rows, replace(answers, **there), each[ready])
        if recorder is not None:
            at, halves = np.nonzero((n_alive < 2) & layout.is_real)
            recorder.cut(halves, answers.splits[at, halves])
            at = np.flatnonzero(ready)[choice >= 0]
            chosen = choice[choice >= 0]
            values = np.where(layout.is_real[chosen], answers.splits[at, chosen], np.nan)
            recorder.split(opened.rows(at), chosen, boxes.rows(at), values)
            opened = opened.rows(shrunk)
        result.close(lost[shrunk], np.full(int(shrunk.sum()), -np.inf))
        boxes = _shrink(layout, boxes.rows(shrunk), alive[shrunk], halved[shrunk], answers.splits[shrunk])
        bounds, depths, before = bounds[shrunk], depths[shrunk], answers.log_mass[shrunk]
    return result


def _shrink(layout: Layout, boxes: SearchBoxes, alive: Flags, halved: Flags, splits: Floats) -> SearchBoxes:
    """Drop dead columns; a real variable keeps its live half."""
    mask = boxes.mask & (alive | layout.is_real[layout.variable_of])
    rows, variables = np.nonzero(halved)
    lower = alive[rows, layout.offsets[variables]]
    boxes.high[rows[lower], variables[lower]] = splits[rows[lower], variables[lower]]
    boxes.low[rows[~lower], variables[~lower]] = np.nextafter(splits[rows[~lower], variables[~lower]], np.inf)
    return SearchBoxes(mask, boxes.low, boxes.high)


def _finish(layout: Layout, result: Expansion, rows: OpenRows, answers: Answers, each: Floats) -> Ints:
    """Record points and boxes too small to split, branch the others; return each split variable, -1 for none."""
    boxes, bounds, _, depths = rows
    if not len(boxes):
        return np.empty(0, np.int64)
    counts = np.add.reduceat(boxes.mask, layout.offsets[:-1], axis=1, dtype=np.int64)
    counts[:, layout.is_real] = np.where(np.isnan(answers.splits[:, layout.is_real]), 1, 2)
    best = _promising(layout, boxes, answers, each)
    single = np.all(counts == 1, axis=1)
    if np.any(single) and layout.domain.is_discrete:
        result.points.append(best[single])
    elif np.any(single):
        result.hints.append(best[single][:MAX_HINTS])
        result.stuck = max(result.stuck, float(np.max(bounds[single])))
    open_rows = np.flatnonzero(~single)
    if not len(open_rows):
        return np.full(len(boxes), -1)
    order = np.argsort(-bounds[open_rows], kind="stable")[:MAX_HINTS]
    result.hints.append(best[open_rows[order]])
    shares = np.exp(each - bounds[:, None])
    scores = np.add.reduceat(shares, layout.offsets[:-1], axis=1)
    if not layout.domain.is_discrete:
        widths = (boxes.high - boxes.low)[:, layout.is_real] / layout.scales[layout.is_real]
        scores[:, layout.is_real] = interval_score(scores[:, layout.is_real], widths)
    scores[counts == 1] = np.inf
    choice = np.argmin(scores, axis=1)
    result.children.append(_branch(layout, boxes, depths, answers, each, open_rows, choice))
    return np.where(single, -1, choice)


def _promising(layout: Layout, boxes: SearchBoxes, answers: Answers, each: Floats) -> Points:
    """Return the point in each box that takes the columns of largest bounds."""
    points = np.zeros((len(boxes), len(layout.domain)), layout.domain.point_dtype)
    for v in range(len(layout.domain)):
        columns = slice(layout.offsets[v], layout.offsets[v + 1])
        if layout.is_real[v]:
            low, high, split = boxes.low[:, v], boxes.high[:, v], answers.splits[:, v]
            middle = np.where(np.isfinite(low), low, np.where(np.isfinite(high), high, 0.0))
            points[:, v] = np.where(np.isnan(split), middle, split)
            if answers.middles is not None:
                points[:, v] = answers.middles[:, v]
            if layout.is_whole[v]:
                points[:, v] = np.clip(np.round(points[:, v]), np.ceil(low), np.floor(high))
        else:
            points[:, v] = np.argmax(np.where(boxes.mask[:, columns] > 0, each[:, columns], -np.inf), axis=1)
            if answers.middles is not None and layout.domain.is_discrete:
                known = ~np.isnan(answers.middles[:, v])
                points[known, v] = answers.middles[known, v]
    return points


def _branch(
    layout: Layout, boxes: SearchBoxes, depths: Ints32, answers: Answers, each: Floats, rows: Ints, choice: Ints
) -> OpenRows:
    """Split each of `rows` into one box per column of its chosen variable."""
    chosen = layout.variable_of == choice[rows][:, None]
    which, columns = np.nonzero(chosen & (boxes.mask[rows] > 0))
    parents = rows[which]
    variables = choice[parents]
    real = layout.is_real[variables]
    mask = boxes.mask[parents] & (~chosen[which] | real[:, None])
    mask[np.arange(len(parents)), columns] = 1
    low, high = boxes.low[parents], boxes.high[parents]
    lower = real & (columns == layout.offsets[variables])
    upper = real & ~lower
    high[lower, variables[lower]] = answers.splits[parents[lower], variables[lower]]
    low[upper, variables[upper]] = np.nextafter(answers.splits[parents[upper], variables[upper]], np.inf)
    at = parents, columns
    return OpenRows(SearchBoxes(mask, low, high), each[at], answers.each_mass[at], depths[parents] + np.int32(1))


def log_difference(larger: Floats, smaller: Floats) -> Floats:
    """Return ln(exp(larger) - exp(smaller)), or -inf if rounding makes the difference 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.exp(np.minimum(smaller - larger, 0.0))
        return np.where(np.isfinite(larger), larger + np.log1p(-share), -np.inf)
