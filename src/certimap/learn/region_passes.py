"""Region graphs over pictures, and passes over blocks of rows: likelihoods and expected counts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import numpy as np

from certimap.core.arrays import Floats, Ints
from certimap.learn.batched_em import RowPasses, in_threads

Rows = Ints
T = TypeVar("T")
MAX_BLOCK = 512
BLOCK_NUMBERS = 1 << 24  # values and products of one block


@dataclass(frozen=True, eq=False)
class Tables:
    """Numbers of a circuit, or expected counts of them.

    `weights`: weights of each region's sums, shape (sums, products), products split by split; empty for pixels.
    `leaves`: for each region of one pixel, P(state) under its nodes, shape (n_nodes, n_states + 1). The last
    column is for a missing value. Empty for larger regions.
    """

    weights: list[Floats]
    leaves: list[Floats]

    def blend(self, other: Tables, keep: float, add: float) -> None:
        """Multiply by `keep` and add `add` times the other tables."""
        for mine, theirs in zip([*self.weights, *self.leaves], [*other.weights, *other.leaves], strict=True):
            mine *= keep
            mine += add * theirs

    def zeros(self) -> Tables:
        """Return tables of 0 of the same shapes."""
        return Tables([np.zeros_like(w) for w in self.weights], [np.zeros_like(e) for e in self.leaves])


@dataclass(frozen=True, eq=False)
class _Values:
    """Values from an upward pass, by region.

    `of_regions` (rows, nodes) are the values of sums, scaled to maximum 1 per row. `products` (rows, splits *
    nodes) are the terms of these sums: products of two parts' values, times `factors` (splits, rows).
    """

    of_regions: list[Floats]
    products: list[Floats]
    factors: list[Floats]
    log_probs: Floats


class RegionPasses(RowPasses[Tables, Tables]):
    """Rows of a table, cut into blocks for threads; results do not depend on the number of threads.

    `graph`: the regions. Product k of a split multiplies node k of both parts. `pixels`: the variable of each
    region of one pixel, -1 for others. `codes`: int64, shape (n_rows, n): positions of the states, `n_states[i]`
    where missing. `n_nodes`: nodes per region, for the size of blocks. `workers`: threads; None takes one per
    processor.
    """

    def __init__(
        self, graph: RegionGraph, pixels: list[int], codes: Ints, n_nodes: int, workers: int | None
    ) -> None:
        self.graph, self.pixels, self.codes = graph, pixels, codes
        fitting = BLOCK_NUMBERS // ((2 * len(pixels) + graph.n_splits) * n_nodes)
        self.block = max(16, min(MAX_BLOCK, fitting))
        self.n_rows = len(codes)
        self.workers = workers or os.cpu_count() or 1

    def expected_counts(self, parameters: Tables, rows: Rows | None = None) -> tuple[Tables, float]:
        """Return the expected counts of some rows and the sum of their natural-log likelihoods."""
        total, log_likelihood = parameters.zeros(), 0.0
        for counts, log_probs in self._map(self._block_counts, parameters, rows):
            total.blend(counts, 1.0, 1.0)
            log_likelihood += float(log_probs.sum())
        return total, log_likelihood

    def mean_log_likelihood(self, parameters: Tables) -> float:
        """Return the mean natural-log likelihood of all rows."""
        blocks = self._map(lambda tables, codes: self._upward(tables, codes).log_probs, parameters, None)
        return sum(float(v.sum()) for v in blocks) / self.n_rows

    def _map(self, work: Callable[[Tables, Rows], T], tables: Tables, rows: Rows | None) -> Iterator[T]:
        """Apply a function to all blocks and yield its results in their order."""
        codes = self.codes if rows is None else self.codes[rows]
        blocks = [codes[a : a + self.block] for a in range(0, len(codes), self.block)]
        return in_threads(partial(work, tables), blocks, self.workers, ahead=2)

    def _upward(self, tables: Tables, codes: Rows) -> _Values:
        out = _Values([], [], [], np.empty(0))
        logs: list[Floats] = []
        for r, splits in enumerate(self.graph.splits):
            if not splits:
                out.of_regions.append(tables.leaves[r].T[codes[:, self.pixels[r]]])
                out.products.append(out.log_probs)
                out.factors.append(out.log_probs)
                logs.append(np.zeros(len(codes)))
                continue
            scales = np.stack([logs[a] + logs[b] for a, b in splits])
            largest = scales.max(axis=0)
            factors = np.exp(scales - largest)
            pairs = [
                out.of_regions[a] * out.of_regions[b] * factor[:, None]
                for (a, b), factor in zip(splits, factors, strict=True)
            ]
            joined = np.concatenate(pairs, axis=1)
            sums = joined @ tables.weights[r].T
            top = sums.max(axis=1)
            out.of_regions.append(sums / top[:, None])
            out.products.append(joined / top[:, None])
            out.factors.append(factors / top)
            logs.append(largest + np.log(top))
        return replace(out, log_probs=logs[-1] + np.log(out.of_regions[-1][:, 0]))

    def _block_counts(self, tables: Tables, codes: Rows) -> tuple[Tables, Floats]:
        """Return the expected counts of a block and ln p of its rows: values times their gradients, top down."""
        found = self._upward(tables, codes)
        values, counts = found.of_regions, tables.zeros()
        gradients = [np.zeros(v.shape) for v in values]
        gradients[-1] = 1.0 / values[-1]
        for r in range(len(values) - 1, -1, -1):
            splits, gradient = self.graph.splits[r], gradients[r]
            if not splits:
                n_columns = counts.leaves[r].shape[1]
                states = np.eye(n_columns)[codes[:, self.pixels[r]]]
                counts.leaves[r][:] = (gradient * values[r]).T @ states
                continue
            counts.weights[r][:] = tables.weights[r] * (gradient.T @ found.products[r])
            parts = np.split(gradient @ tables.weights[r], len(splits), axis=1)
            for (a, b), part, factor in zip(splits, parts, found.factors[r], strict=True):
                part *= factor[:, None]
                gradients[a] += part * values[b]
                gradients[b] += part * values[a]
        return counts, found.log_probs


Rectangle = tuple[int, int, int, int]  # first row, first column, end of the rows, end of the columns
Cut = tuple[Rectangle, Rectangle]


@dataclass(frozen=True)
class RegionGraph:
    """Regions of a picture, parts before the whole, and the splits of each region in two.

    `rectangles`: the regions; the last is the whole picture. `splits`: for each region, pairs of region numbers;
    none for a single pixel.
    """

    rectangles: list[Rectangle] = field(default_factory=list[Rectangle])
    splits: list[list[tuple[int, int]]] = field(default_factory=list[list[tuple[int, int]]])

    @property
    def n_splits(self) -> int:
        return sum(len(ways) for ways in self.splits)


def region_graph_of(height: int, width: int, step: int | None) -> RegionGraph:
    """Return the region graph of a picture.

    `height`, `width`: size of the picture in pixels. `step`: None halves squares both ways, and then the halves
    into squares: quad graphs. A number cuts rectangles at all its multiples, both ways, and halves smaller
    rectangles (after Poon and Domingos 2011). Splits share regions: each rectangle occurs once.
    """
    graph = RegionGraph()
    numbers: dict[Rectangle, int] = {}
    stack: list[tuple[Rectangle, list[Cut] | None]] = [((0, 0, height, width), None)]
    while stack:  # each rectangle is popped twice: its parts get numbers in between
        rectangle, cuts = stack.pop()
        if rectangle in numbers:
            continue
        if cuts is None:
            cuts = _halves(rectangle) if step is None else _cuts(rectangle, step)
            stack.append((rectangle, cuts))
            stack.extend((part, None) for cut in cuts for part in cut)
            continue
        numbers[rectangle] = len(graph.rectangles)
        graph.rectangles.append(rectangle)
        graph.splits.append([(numbers[a], numbers[b]) for a, b in cuts])
    return graph


def pixel_of(rectangle: Rectangle, width: int) -> int:
    """Return the number of a rectangle's first pixel, counted by rows."""
    return rectangle[0] * width + rectangle[1]


def _halves(rectangle: Rectangle) -> list[Cut]:
    """Halve the longer side; return both halvings of a square."""
    top, left, bottom, right = rectangle
    height, width = bottom - top, right - left
    cuts: list[Cut] = []
    if width >= height and width > 1:
        cuts.append(_beside(rectangle, left + width // 2))
    if height >= width and height > 1:
        cuts.append(_above(rectangle, top + height // 2))
    return cuts


def _cuts(rectangle: Rectangle, step: int) -> list[Cut]:
    """Cut at all multiples of `step` in both directions; in halves where there are none inside."""
    top, left, bottom, right = rectangle
    cuts = [_beside(rectangle, at) for at in range(left - left % step + step, right, step)]
    cuts += [_above(rectangle, at) for at in range(top - top % step + step, bottom, step)]
    return cuts or _halves(rectangle)


def _beside(rectangle: Rectangle, at: int) -> Cut:
    top, left, bottom, right = rectangle
    return (top, left, bottom, at), (top, at, bottom, right)


def _above(rectangle: Rectangle, at: int) -> Cut:
    top, left, bottom, right = rectangle
    return (top, left, at, right), (at, left, bottom, right)
