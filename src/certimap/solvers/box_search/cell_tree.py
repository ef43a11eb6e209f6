"""A tree of cells over real variables, each with the density at its centre and a bound."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from certimap.certify.ledger import Ledger
from certimap.core.box import Points
from certimap.core.control import Control
from certimap.core.domain import Real
from certimap.core.posterior import Posterior, Prober, Probes
from certimap.core.search_boxes import Layout, SearchBoxes
from certimap.solvers.box_search.probe import prober_of

Floats = NDArray[np.float64]
PARTS = 3  # children per cut cell; the middle one keeps its parent's centre
REACH = 8.0  # scales from the outermost starts to the window's ends; widths from there to the cut of a tail
LN2 = math.log(2.0)
FARTHEST = 1e300  # of a first cut from 0
Kind = TypeVar("Kind", bound=np.generic)


@dataclass(eq=False)
class CellTree:
    """Cells in the order of creation; the first is the whole space."""

    posterior: Posterior
    prober: Prober | None
    bits: float | None
    layout: Layout
    # low, high: float64, shape (capacity, n)
    low: Floats
    high: Floats
    value: Floats  # ln of the density at each cell's centre, shape (capacity,)
    log_bound: Floats  # natural log of an upper bound on the density in each cell; inf without a bound
    # the smaller of `log_bound` and the bound from a Lipschitz constant of `bits`, shape (capacity,)
    log_optimism: Floats
    depth: NDArray[np.int64]  # int64, shape (capacity,)
    # int64, shape (capacity,): the first of `PARTS` consecutive children; -1 for a leaf
    first_child: NDArray[np.int64]
    is_stuck: NDArray[np.bool_]  # bool, shape (capacity,): cells too narrow to cut
    # the region of an unbounded domain that is searched first: its ends, shape (n,) each
    window: tuple[Floats, Floats]
    n: int = 0  # the number of cells

    @classmethod
    def of(cls, posterior: Posterior, bits: float | None, control: Control) -> CellTree:
        """Return a tree without cells; `bits` is the Lipschitz constant that bounds cells, or None."""
        prober = prober_of(posterior, control) if isinstance(posterior, Probes) else None
        layout = Layout.of(posterior.domain) if prober is None else prober.layout
        n = len(posterior.domain)
        window = np.full(n, -1.0), np.full(n, 1.0)
        if prober is not None:
            starts = np.asarray(prober.starts(), np.float64)
            if len(starts):
                reach = np.minimum(REACH * layout.scales, FARTHEST)
                first, last = starts.min(axis=0) - reach, starts.max(axis=0) + reach
                window = np.maximum(first, -FARTHEST), np.minimum(last, FARTHEST)
        empty = np.empty(0)
        return cls(
            posterior,
            prober,
            bits,
            layout,
            np.empty((0, n)),
            np.empty((0, n)),
            empty,
            empty,
            empty,
            np.empty(0, np.int64),
            np.empty(0, np.int64),
            np.empty(0, np.bool_),
            window,
        )

    @property
    def n_bytes(self) -> int:
        """Memory held, in bytes."""
        return self.low.nbytes * 2 + 40 * len(self.value)

    def plant(self, ledger: Ledger) -> None:
        """Make the first cell: the part of the space that the evidence allows."""
        whole = self.layout.allowed()
        self._add(ledger, whole.low, whole.high, np.zeros(1, np.int64), np.full(1, np.inf))

    def leaves(self) -> NDArray[np.int64]:
        """Return the cells that are not cut yet."""
        return np.flatnonzero(self.first_child[: self.n] < 0)

    def cut(self, ledger: Ledger, cells: NDArray[np.int64]) -> NDArray[np.int64]:
        """Cut leaves along their longest sides; return the children, `PARTS` per leaf that could be cut."""
        low, high = self.low[cells], self.high[cells]
        side, ends = self._places(low, high)
        rows = np.arange(len(cells))
        can = (low[rows, side] < ends[:, 0]) & (ends[:, 0] < ends[:, 1]) & (ends[:, 1] < high[rows, side])
        self.is_stuck[cells[~can]] = True
        cells, side, ends = cells[can], side[can], ends[can]
        if not len(cells):
            return cells
        low, high = (np.repeat(x[cells], PARTS, axis=0) for x in (self.low, self.high))
        first = np.arange(len(cells)) * PARTS
        high[first, side] = low[first + 1, side] = ends[:, 0]
        high[first + 1, side] = low[first + 2, side] = ends[:, 1]
        start = self.n
        self.first_child[cells] = start + first
        parents = np.repeat(cells, PARTS)
        self._add(ledger, low, high, self.depth[parents] + 1, self.log_bound[parents])
        return np.arange(start, self.n)

    def inside(self, cell: int, rng: np.random.Generator) -> Points:
        """Return a random point of a cell, uniform if the cell is bounded, shape (1, n)."""
        low, high = self._finite(self.low[cell], self.high[cell])
        share = rng.uniform(size=len(low))  # a convex combination, because the width of a cell may overflow
        return np.clip((1.0 - share) * low + share * high, low, high)[None, :]

    def centres(self, low: Floats, high: Floats) -> Points:
        """Return the centres of cells; an unbounded side is first cut off by `_finite`."""
        low, high = self._finite(low, high)
        return np.clip(0.5 * low + 0.5 * high, low, high)

    def _finite(self, low: Floats, high: Floats) -> tuple[Floats, Floats]:
        """Replace infinite ends by the window's end, or by the side's other end beyond the window."""
        start, end = self.window
        bounded_low = np.where(np.isfinite(low), low, np.where(np.isfinite(high), np.minimum(start, high), start))
        bounded_high = np.where(np.isfinite(high), high, np.where(np.isfinite(low), np.maximum(end, low), end))
        return bounded_low, bounded_high

    def _places(self, low: Floats, high: Floats) -> tuple[NDArray[np.int64], Floats]:
        """Return the side to cut of each cell, shape (batch,), and the two cut points, shape (batch, 2)."""
        rows = np.arange(len(low))
        with np.errstate(over="ignore", invalid="ignore"):
            lengths = high - low
            side = np.argmax(lengths if self.bits is not None else lengths / self.layout.scales, axis=1)
            a, b = low[rows, side], high[rows, side]
            third = b / PARTS - a / PARTS
            first, second = a + third, b - third
        start, end, scale = self.window[0][side], self.window[1][side], self.layout.scales[side]
        width = np.maximum(end - start, scale)
        with np.errstate(invalid="ignore"):  # pieces grow with the distance from the window
            far = np.maximum(np.where(np.isfinite(a), a - end, 0.0), np.where(np.isfinite(b), start - b, 0.0))
        width = np.maximum(width, far)
        no_low, no_high = np.isinf(a), np.isinf(b)
        reach = REACH * width
        first = np.where(no_high & ~no_low, a + reach, first)  # a tail: two bounded pieces, and the rest
        second = np.where(no_high & ~no_low, a + 4.0 * reach, second)
        first = np.where(no_low & ~no_high, b - 4.0 * reach, first)
        second = np.where(no_low & ~no_high, b - reach, second)
        first = np.where(no_low & no_high, start, first)
        second = np.where(no_low & no_high, end, second)
        # If the finite end lies outside the window, the first cuts are at the window.
        first = np.where(no_high & ~no_low & (a < start), start, first)
        second = np.where(no_high & ~no_low & (a < end) & (end > first), end, second)
        second = np.where(no_low & ~no_high & (b > end), end, second)
        first = np.where(no_low & ~no_high & (b > start) & (start < second), start, first)
        return side.astype(np.int64), np.stack([first, second], axis=1)

    def _add(self, ledger: Ledger, low: Floats, high: Floats, depth: NDArray[np.int64], log_bound: Floats) -> None:
        """Evaluate and bound new cells."""
        batch = len(low)
        if self.n + batch > len(self.value):
            self._grow(max(2 * len(self.value), self.n + batch, 1024))
        rows = slice(self.n, self.n + batch)
        self.low[rows], self.high[rows], self.depth[rows] = low, high, depth
        self.first_child[rows], self.is_stuck[rows] = -1, False
        self.value[rows] = ledger.candidates(self.centres(low, high))
        if self.prober is not None:
            mask = np.ones((batch, int(self.layout.offsets[-1])), np.uint8)
            found = self.prober.probe(SearchBoxes(mask, np.ascontiguousarray(low), np.ascontiguousarray(high)))
            log_bound = np.minimum(log_bound, found.log_bound)
        self.log_bound[rows] = log_bound
        self.log_optimism[rows] = log_bound
        if self.bits is not None:
            with np.errstate(over="ignore"):
                radius = 0.5 * np.sqrt(np.sum(np.square(high - low), axis=1)) * (1.0 + 1e-12)
            self.log_optimism[rows] = np.minimum(log_bound, self.value[rows] + self.bits * LN2 * radius)
        self.n += batch

    def _grow(self, capacity: int) -> None:
        n = self.n
        self.low, self.high = _grown(self.low, n, capacity), _grown(self.high, n, capacity)
        self.value, self.log_bound = _grown(self.value, n, capacity), _grown(self.log_bound, n, capacity)
        self.log_optimism = _grown(self.log_optimism, n, capacity)
        self.depth, self.first_child = _grown(self.depth, n, capacity), _grown(self.first_child, n, capacity)
        self.is_stuck = _grown(self.is_stuck, n, capacity)


def _grown(array: NDArray[Kind], n: int, capacity: int) -> NDArray[Kind]:
    """Return a copy with more rows, of which the first n are kept."""
    out = np.empty((capacity, *array.shape[1:]), array.dtype)
    out[:n] = array[:n]
    return out


def is_bounded(posterior: Posterior) -> bool:
    """Whether every real variable has a bounded interval."""
    return all(isinstance(v, Real) and math.isfinite(v.low) and math.isfinite(v.high) for v in posterior.domain)
