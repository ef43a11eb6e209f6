"""RegionGraphCircuit: circuits over pictures, with several splits per region, learned by EM."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple, Unpack

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.core.arguments import keywords_hinted, shown
from certimap.core.arrays import Floats, Ints
from certimap.core.domain import Domain
from certimap.errors import DataError
from certimap.learn.batched_em import BatchedEM, BatchLearner
from certimap.learn.clusters import row_clusters
from certimap.learn.estimator import (
    LearnerSettings,
    Seed,
    check_count,
    check_positive,
    single_threaded_blas,
    split_rows,
)
from certimap.learn.leaf_choice import Bars
from certimap.learn.region_passes import RegionGraph, RegionPasses, Tables, pixel_of, region_graph_of
from certimap.learn.table import DataTable
from certimap.learn.tree import one_hot

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

    Parameters
    ----------
    n_nodes
        Nodes per region.
    shape
        Height and width of the picture. By default a square.
    step
        None takes quad graphs; a number cuts rectangles at all its multiples, both ways.
    max_steps, batch_rows, patience, workers
        As in `certimap.learn.batched_em.BatchLearner`.
    smoothing
        Pseudo-counts of every distribution, spread over its states: leaves towards the pixel's margin, weights
        evenly.
    kinds, domain, random_state, time_limit, progress
        As in `LearnSPN`. Real columns are learned as histograms (see `certimap.learn.leaf_choice`).

    Attributes
    ----------
    model_
        The `Circuit`.
    history_
        One `TrainingStep` per pass: mean natural-log likelihoods before it (train) and after it (validation).

    Notes
    -----
    The pass with the best validation likelihood gives the circuit. Validation rows are `valid`, or a random
    held-out tenth of the rows (of 20 or more). Missing cells are summed out. One pass costs about 6
    multiplications per row and edge.
    """

    n_nodes: int = 16
    _: KW_ONLY
    shape: Sequence[int] | None = None
    step: int | None = None
    smoothing: float = 0.3

    def _fit(self, table: Any, valid: Any, domain: Domain | None) -> None:
        check_count("n_nodes", self.n_nodes, 1)
        check_count("step", 1 if self.step is None else self.step, 1)
        self._check_schedule()
        check_positive("smoothing", self.smoothing)
        rows, held_out = self._read(table, valid, domain, "labels")
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
        self.margins = _margins(table)
        running = self._first_counts(table, k, rng)
        passes, *judges = (
            RegionPasses(graph, self.pixels, rows.codes, k, settings.workers)
            for rows in (table, held_out)
            if rows is not None
        )
        judge = judges[0] if judges else None
        super().__init__(settings, passes, judge, rng, running, self.maximise(running))

    def _first_counts(self, table: DataTable, k: int, rng: np.random.Generator) -> Tables:
        """Return counts in which node c of every region is cluster c of the rows for half of the weight."""
        nothing, last = np.empty((0, 0)), len(self.pixels) - 1
        found = _clusters(table, k, rng)
        of_cluster = np.bincount(found.labels, minlength=k) + 1.0
        weights: list[Floats] = []
        leaves: list[Floats] = []
        for r, ways in enumerate(self.graph.splits):
            if not ways:
                pixel = self.pixels[r]
                columns = slice(self.domain.offsets[pixel], self.domain.offsets[pixel + 1])
                counts = found.counts[:, columns] + self.margins[pixel]
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

    def move(self, running: Tables, counts: Tables, rate: float, n_batch: int) -> None:
        running.blend(counts, 1.0 - rate, rate * self.n_rows / n_batch)

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


class _Clusters(NamedTuple):
    """Cluster numbers of some rows, and counts of states per cluster, (clusters, total_states)."""

    labels: Ints
    counts: Floats


def _clusters(table: DataTable, k: int, rng: np.random.Generator) -> _Clusters:
    """Cluster the rows, or a sample of many rows."""
    rows = np.sort(rng.permutation(len(table))[:ROWS_CLUSTERED])
    indicators = one_hot(table.domain, table.points[rows])
    labels = np.zeros(len(rows), np.int64)
    if k > 1 and len(rows) > 1:
        labels = row_clusters(indicators, k, "kmeans", int(rng.integers(1 << 63)))
    members = (labels == np.arange(k)[:, None]).astype(np.float32)
    return _Clusters(labels, (members @ indicators).astype(np.float64))


def _shares(counts: Floats) -> Floats:
    return counts / counts.sum(axis=1, keepdims=True)


def _margins(table: DataTable) -> list[Floats]:
    """Return each variable's shares of states, with one pseudo-row spread over them."""
    sizes: list[int] = table.domain.n_states.tolist()
    columns = [table.observed(i).astype(np.int64) for i in range(len(sizes))]
    counts = [np.bincount(column, minlength=size) for column, size in zip(columns, sizes, strict=True)]
    return [(c + 1.0 / len(c)) / (c.sum() + 1.0) for c in counts]


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


class _Settings(LearnerSettings, total=False):
    step: int | None
    max_steps: int
    batch_rows: int | None
    smoothing: float
    patience: int
    workers: int | None


@keywords_hinted(DataError, "RegionGraphCircuit")
def region_graph(
    data: Any,
    *,
    n_nodes: int = 16,
    shape: Sequence[int] | None = None,
    valid: Any = None,
    rng: Seed = None,
    **settings: Unpack[_Settings],
) -> Circuit:
    """Learn a circuit over pictures, missing cells allowed; see `RegionGraphCircuit`.

    `data`, `valid`, `rng`: as in `learnspn`: a column per pixel, row by row. A tenth of the rows choose the best
    pass by default. `n_nodes`: nodes per region. `shape`: height and width of the picture; by default a square.
    `settings`: parameters of `RegionGraphCircuit`.
    """
    return RegionGraphCircuit(n_nodes, shape=shape, random_state=rng, **settings).fit(data, valid=valid).model_
