"""RegionGraphCircuit: circuits over pictures, with several splits per region, learned by EM."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, ClassVar, Unpack

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.core.arguments import keywords_hinted, shown
from certimap.core.arrays import Array, Floats, Ints
from certimap.core.domain import Domain
from certimap.errors import DataError
from certimap.learn.batched_em import BatchedEM, BatchLearner, ExpectedCounts, RowPasses
from certimap.learn.clusters import row_clusters
from certimap.learn.estimator import LearnerSettings, Seed, learned_by, single_threaded_blas, split_rows
from certimap.learn.leaves import Bars
from certimap.learn.table import DataTable, one_hot

MAX_BLOCK = 512
BLOCK_NUMBERS = 1 << 24  # values and products of one block


@dataclass(frozen=True, eq=False)
class Tables(ExpectedCounts):
    """Numbers of a circuit, or expected counts of them."""

    weights: list[Floats]  # of each region's sums, (sums, products), products split by split; empty for pixels
    # P(state) under the nodes of a region of one pixel, (n_nodes, n_states + 1), the last column for a missing
    # value; empty for larger regions
    leaves: list[Floats]

    @property
    def arrays(self) -> list[Array]:
        return [*self.weights, *self.leaves]


@dataclass(frozen=True, eq=False)
class _Values:
    """Values from an upward pass, by region."""

    of_regions: list[Floats]  # values of sums, (rows, nodes), scaled to maximum 1 per row
    products: list[Floats]  # terms of these sums, (rows, splits * nodes): products of parts' values and factors
    factors: list[Floats]  # (splits, rows)
    log_probs: Floats


class RegionPasses(RowPasses[Tables, Tables, Ints]):
    """Rows of a table, cut into blocks for threads; results do not depend on the number of threads."""

    # `pixels`: variables of regions of one pixel, else -1; `codes`: (n_rows, n), `n_states[i]` where missing
    ahead = 2

    def __init__(
        self, graph: RegionGraph, pixels: list[int], codes: Ints, n_nodes: int, workers: int | None
    ) -> None:
        self.graph, self.pixels, self.codes = graph, pixels, codes
        fitting = BLOCK_NUMBERS // ((2 * len(pixels) + graph.n_splits) * n_nodes)
        self.block = max(16, min(MAX_BLOCK, fitting))
        self.n_rows = len(codes)
        self.workers = workers or os.cpu_count() or 1

    def blocks(self, rows: Ints | None) -> list[Ints]:
        codes = self.codes if rows is None else self.codes[rows]
        return [codes[a : a + self.block] for a in range(0, len(codes), self.block)]

    def log_prob_of(self, parameters: Tables, block: Ints) -> float:
        return float(self._upward(parameters, block).log_probs.sum())

    def _upward(self, tables: Tables, codes: Ints) -> _Values:
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

    def counts_of(self, parameters: Tables, block: Ints) -> tuple[Tables, float]:
        found = self._upward(parameters, block)  # then values times their gradients, top down
        zeros = ([np.zeros_like(x) for x in arrays] for arrays in (parameters.weights, parameters.leaves))
        counts = Tables(*zeros)
        values = found.of_regions
        gradients = [np.zeros(v.shape) for v in values]
        gradients[-1] = 1.0 / values[-1]
        for r in range(len(values) - 1, -1, -1):
            splits, gradient = self.graph.splits[r], gradients[r]
            if not splits:
                n_columns = counts.leaves[r].shape[1]
                states = np.eye(n_columns)[block[:, self.pixels[r]]]
                counts.leaves[r][:] = (gradient * values[r]).T @ states
                continue
            counts.weights[r][:] = parameters.weights[r] * (gradient.T @ found.products[r])
            parts = np.split(gradient @ parameters.weights[r], len(splits), axis=1)
            for (a, b), part, factor in zip(splits, parts, found.factors[r], strict=True):
                part *= factor[:, None]
                gradients[a] += part * values[b]
                gradients[b] += part * values[a]
        return counts, float(found.log_probs.sum())


Rectangle = tuple[int, int, int, int]  # first row, first column, end of the rows, end of the columns
Cut = tuple[Rectangle, Rectangle]


@dataclass(frozen=True)
class RegionGraph:
    """Regions of a picture, parts before the whole, and the splits of each region in two."""

    rectangles: list[Rectangle] = field(default_factory=list[Rectangle])
    # for each region, pairs of region numbers; none for a single pixel
    splits: list[list[tuple[int, int]]] = field(default_factory=list[list[tuple[int, int]]])

    @property
    def n_splits(self) -> int:
        return sum(len(ways) for ways in self.splits)


def region_graph_of(height: int, width: int, step: int | None) -> RegionGraph:
    """Return the region graph of a picture; each rectangle occurs once, so that splits share regions.

    Without a `step`, squares are halved both ways, and the halves into squares: quad graphs. A number cuts
    rectangles at all its multiples, both ways, and halves smaller rectangles (after Poon and Domingos 2011).
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
    columns = [left + width // 2] if width >= height and width > 1 else []
    return _cut(rectangle, columns, [top + height // 2] if height >= width and height > 1 else [])


def _cuts(rectangle: Rectangle, step: int) -> list[Cut]:
    """Cut at all multiples of `step` in both directions; in halves where there are none inside."""
    top, left, bottom, right = rectangle
    columns = range(left - left % step + step, right, step)
    return _cut(rectangle, columns, range(top - top % step + step, bottom, step)) or _halves(rectangle)


def _cut(rectangle: Rectangle, columns: Iterable[int], rows: Iterable[int]) -> list[Cut]:
    """Return the cuts at columns, then at rows."""
    top, left, bottom, right = rectangle
    cuts: list[Cut] = [((top, left, bottom, at), (top, at, bottom, right)) for at in columns]
    return cuts + [((top, left, at, right), (at, left, bottom, right)) for at in rows]


HELD_OUT = 0.1
SPREAD = 0.5  # initial weights are drawn between 1 - SPREAD and 1 + SPREAD times their shares
OWN = 0.5  # share of a node's initial weights for products of the same cluster
ROWS_CLUSTERED = 4000


@dataclass(eq=False, repr=False)
class RegionGraphCircuit(BatchLearner):
    """Learn a circuit over a picture, with several splits per region (after Poon and Domingos 2011).

    Columns are the pixels of a picture, row by row. By default squares are halved across and along, and halves
    into squares (quad graphs, Mari et al. 2023); splits share regions. A region has `n_nodes` sums over the
    products of all its splits; product k of a split multiplies node k of both parts. Parameters start from
    clusters of the rows. Expectation-maximisation improves them, first on batches of rows, then on all rows.

    - `n_nodes`: nodes per region.
    - `shape`: height and width of the picture. By default a square.
    - `step`: None takes quad graphs; a number cuts rectangles at all its multiples, both ways.
    - `max_steps`, `batch_rows`, `patience`, `workers`: as in `certimap.learn.batched_em.BatchLearner`.
    - `smoothing`: pseudo-counts of every distribution, spread over its states: leaves towards the pixel's margin,
      weights evenly.
    - `kinds`, `domain`, `random_state`, `time_limit`, `progress`: as in `LearnSPN`. Real columns are learned as
      histograms (see `certimap.learn.leaves`).

    `model_`: the `Circuit`. `history_`: one `TrainingStep` per pass: mean natural-log likelihoods before it
    (train) and after it (validation).

    The pass with the best validation likelihood gives the circuit. Validation rows are `valid`, or a random
    held-out tenth of the rows (of 20 or more). Missing cells are summed out. One pass costs about 6
    multiplications per row and edge.
    """

    n_nodes: int = 16
    _: KW_ONLY
    shape: Sequence[int] | None = None
    step: int | None = None
    smoothing: float = 0.3
    ranges: ClassVar[str] = f"{BatchLearner.ranges}; n_nodes, step [1, inf); smoothing (0, inf)"

    def _fit(self, table: Any, valid: Any, domain: Domain | None) -> None:
        rows, held_out = self._read(table, valid, domain, as_labels=True)
        height, width = _shape_of(self.shape, len(rows.domain))
        bars = Bars.of(rows)
        rng = np.random.default_rng(self.seed_)
        judge = None if held_out is None else bars.coded(held_out)
        rows, judge = split_rows(bars.coded(rows), judge, HELD_OUT, rng)
        graph = region_graph_of(height, width, self.step)
        with single_threaded_blas():
            run = _Training(self, graph, width, rows, judge, rng)
            self.timed_out_ = run.train(f"Region graph, {self.n_nodes} nodes per region", self._deadline)
        self.model_ = bars.to_circuit(run.best_circuit())
        self.history_ = run.history


class _Training(BatchedEM[Tables, Tables]):
    """One run, from clusters of the rows."""

    def __init__(
        self,
        settings: RegionGraphCircuit,
        graph: RegionGraph,
        width: int,
        table: DataTable,
        held_out: DataTable | None,
        rng: np.random.Generator,
    ) -> None:
        self.smoothing, self.graph, self.domain = settings.smoothing, graph, table.domain
        self.pixels = [
            -1 if ways else pixel_of(rectangle, width)
            for rectangle, ways in zip(graph.rectangles, graph.splits, strict=True)
        ]
        k = int(settings.n_nodes)
        self.margins = table.margins()
        running = self._first_counts(table, k, rng)
        passes = RegionPasses(graph, self.pixels, table.codes, k, settings.workers)
        judged = None if held_out is None else held_out.codes
        judge = None if judged is None else RegionPasses(graph, self.pixels, judged, k, settings.workers)
        super().__init__(settings, passes, judge, rng, running, self.maximise(running))

    def _first_counts(self, table: DataTable, k: int, rng: np.random.Generator) -> Tables:
        """Return counts in which node c of every region is cluster c of the rows for half of the weight."""
        nothing, last = np.empty((0, 0)), len(self.pixels) - 1
        labels, of_states = _clusters(table, k, rng)
        of_cluster = np.bincount(labels, minlength=k) + 1.0
        weights: list[Floats] = []
        leaves: list[Floats] = []
        for r, ways in enumerate(self.graph.splits):
            if not ways:
                pixel = self.pixels[r]
                columns = slice(self.domain.offsets[pixel], self.domain.offsets[pixel + 1])
                counts = of_states[:, columns] + self.margins[pixel]
                if r == last:
                    counts = counts.sum(axis=0, keepdims=True)
                leaves.append(np.append(counts, np.zeros((len(counts), 1)), axis=1))
                weights.append(nothing)
                continue
            shares = of_cluster[:, None] * (OWN * np.eye(k) + (1.0 - OWN) / k)
            if r == last:
                shares = shares.sum(axis=0, keepdims=True)
            shares = np.tile(shares, (1, len(ways))) / len(ways)
            weights.append(shares * rng.uniform(1.0 - SPREAD, 1.0 + SPREAD, shares.shape))
            leaves.append(nothing)
        return Tables(weights, leaves)

    def maximise(self, counts: Tables) -> Tables:
        """Return the most probable parameters given expected counts and smoothing."""
        smoothing = self.smoothing
        weights = [_shares(w + smoothing / w.shape[1]) if w.size else w for w in counts.weights]
        leaves: list[Floats] = []
        for e, pixel in zip(counts.leaves, self.pixels, strict=True):
            if not e.size:
                leaves.append(e)
                continue
            states = _shares(e[:, :-1] + smoothing * self.margins[pixel])
            leaves.append(np.concatenate([states, np.ones((len(e), 1))], axis=1))
        return Tables(weights, leaves)

    def best_circuit(self) -> Circuit:
        """Return the best parameters as a circuit."""
        builder = CircuitBuilder(self.domain)
        nodes: list[list[int]] = []
        for r, ways in enumerate(self.graph.splits):
            if not ways:
                logs = np.log(self.best.leaves[r][:, :-1]).tolist()
                nodes.append([builder.categorical(self.pixels[r], log_weights=row) for row in logs])
                continue
            products = [builder.product(pair) for a, b in ways for pair in zip(nodes[a], nodes[b], strict=True)]
            logs = np.log(self.best.weights[r]).tolist()
            nodes.append([builder.sum(products, log_weights=row) for row in logs])
        return builder.build(normalised=False)


def _clusters(table: DataTable, k: int, rng: np.random.Generator) -> tuple[Ints, Floats]:
    """Cluster the rows, or a sample of many; return their numbers and the counts (clusters, total_states)."""
    rows = np.sort(rng.permutation(len(table))[:ROWS_CLUSTERED])
    indicators = one_hot(table.domain, table.points[rows])
    labels = np.zeros(len(rows), np.int64)
    if k > 1 and len(rows) > 1:
        labels = row_clusters(indicators, k, "kmeans", int(rng.integers(1 << 63)))
    members = (labels == np.arange(k)[:, None]).astype(np.float32)
    return labels, (members @ indicators).astype(np.float64)


def _shares(counts: Floats) -> Floats:
    return counts / counts.sum(axis=1, keepdims=True)


def _shape_of(shape: Sequence[int] | None, n_columns: int) -> tuple[int, int]:
    """Return height and width; raise DataError if they do not fit the number of columns."""
    side = math.isqrt(n_columns)
    if shape is None:
        if side * side != n_columns:
            raise DataError(f"{n_columns} columns make no square picture; give its shape, height and width")
        return side, side
    try:
        sides: list[Any] = [*shape]
    except TypeError:  # a single number
        sides = []
    whole = all(isinstance(s, int | np.integer) and s >= 1 for s in sides)
    if len(sides) != 2 or not whole or sides[0] * sides[1] != n_columns:
        raise DataError(f"shape is {shown(shape)}; expected height and width of a picture of {n_columns} pixels")
    return int(sides[0]), int(sides[1])


@keywords_hinted(DataError, "RegionGraphCircuit")
def region_graph(
    data: Any,
    *,
    n_nodes: int = 16,
    shape: Sequence[int] | None = None,
    valid: Any = None,
    rng: Seed = None,
    **settings: Unpack[LearnerSettings],
) -> Circuit:
    """Learn a circuit over pictures, missing cells allowed; see `RegionGraphCircuit`.

    `data`, `valid`, `rng`: as in `learnspn`: a column per pixel, row by row. A tenth of the rows choose the best
    pass by default. `n_nodes`: nodes per region. `shape`: height and width of the picture; by default a square.
    `settings`: parameters of `RegionGraphCircuit`.
    """
    return learned_by(RegionGraphCircuit, data, valid, rng, n_nodes=n_nodes, shape=shape, **settings).model_
