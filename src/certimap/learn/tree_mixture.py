"""Mixtures of Chow-Liu trees, by expectation-maximisation (Meila and Jordan 2000)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.core.box import Points
from certimap.core.domain import Domain
from certimap.core.progress import Progress
from certimap.learn.bars import Bars
from certimap.learn.blas import single_threaded_blas
from certimap.learn.clusters import row_clusters
from certimap.learn.estimator import DensityEstimator, LearnerSettings, Seed, split_rows
from certimap.learn.pairs import Floats, one_hot, pair_counts
from certimap.learn.progress import deadline_of, is_late
from certimap.learn.settings import check_count
from certimap.learn.table import DataTable, Kind, encode, read_table
from certimap.learn.tree import ROWS_PER_BAR, Tree, check_smoothing, indicator_leaves

HELD_OUT = 0.1
PATIENCE = 3


class ChowLiuMixture(DensityEstimator):
    """Learn a mixture of Chow-Liu trees, each with a structure of its own.

    Parameters
    ----------
    n_components
        The number of trees; trees that lose all their rows are dropped.
    max_steps
        Maximum number of steps of expectation-maximisation.
    tolerance
        Learning stops when a step gains less than this, in nats per row.
    smoothing
        Pseudo-counts of every pair's table in every tree, spread evenly over it.
    kinds, domain
        See `LearnSPN`. Real columns are learned as histograms (see `certimap.learn.bars`).
    random_state
        Seed or generator (for the initial k-means clusters).
    time_limit
        Seconds; the best mixture so far is kept.
    progress
        Whether to show progress; None means on a terminal.

    Attributes
    ----------
    model_
        The mixture as a `Circuit`: one sum over trees.
    weights_, trees_
        The share and the `Tree` of every component.
    history_
        Mean natural-log likelihood of the training rows before each step.
    timed_out_
        Whether the time limit ended learning.

    Notes
    -----
    Validation rows choose the best mixture: `valid`, or a held-out tenth of the rows (of 20 or more).
    Likelihoods sum missing cells out; the table of each pair of columns uses the rows that know both. A step
    costs one matrix product per component: rows times squared states.
    """

    def __init__(
        self,
        n_components: int = 8,
        *,
        max_steps: int = 50,
        tolerance: float = 1e-3,
        smoothing: float = 1.0,
        kinds: Mapping[str, Kind] | None = None,
        domain: Domain | None = None,
        random_state: Seed = None,
        time_limit: float | None = None,
        progress: bool | None = None,
    ) -> None:
        self.n_components = n_components
        self.max_steps = max_steps
        self.tolerance = tolerance
        self.smoothing = smoothing
        self.kinds = kinds
        self.domain = domain
        self.random_state = random_state
        self.time_limit = time_limit
        self.progress = progress

    def _fit(self, table: Any, valid: Any, domain: Domain | None) -> None:
        check_count("n_components", self.n_components, 1)
        check_count("max_steps", self.max_steps, 1)
        check_smoothing(self.smoothing)
        deadline = deadline_of(self.time_limit)
        also = [] if valid is None else [valid]
        rows = read_table(table, domain=domain, kinds=self.kinds, also=also, integers="chosen")
        bars, self.domain_ = Bars.of(rows, ROWS_PER_BAR * self.n_components), rows.domain
        held_out = None if valid is None else bars.coded(encode(valid, rows.domain))
        rows = bars.coded(rows)
        if held_out is None and len(rows) >= 20:
            kept, held = split_rows(len(rows), HELD_OUT, np.random.default_rng(self.seed_))
            held_out = DataTable(rows.domain, rows.points[held])
            rows = DataTable(rows.domain, rows.points[kept])
        with single_threaded_blas():
            self._climb(rows, held_out, deadline)
        circuit = _mixture_circuit(rows.domain, self.weights_, self.trees_)
        self.model_ = bars.to_circuit(circuit) if bars.histograms else circuit

    def _climb(self, rows: DataTable, held_out: DataTable | None, deadline: float | None) -> None:
        """Alternate trees and responsibilities, and keep the best mixture on the held-out rows."""
        indicators = one_hot(rows.domain, rows.points)
        responsibilities = _start(indicators, self.n_components, self.seed_ & ((1 << 64) - 1))
        self.history_: list[float] = []
        self.timed_out_ = False
        best, since_best = -np.inf, 0
        with Progress(f"Mixture of {self.n_components} Chow-Liu trees", self.max_steps, self.progress) as bar:
            for step in range(self.max_steps):
                weights = responsibilities.mean(axis=0)
                kept = weights * len(rows) > 0.5
                weights, responsibilities = weights[kept] / weights[kept].sum(), responsibilities[:, kept]
                trees = [
                    Tree.of_counts(pair_counts(indicators, share), rows.domain, self.smoothing)
                    for share in responsibilities.T
                ]
                log_probs = _component_logs(weights, trees, rows.points)
                total = np.logaddexp.reduce(log_probs, axis=1)
                responsibilities = np.exp(log_probs - total[:, None])
                self.history_.append(float(total.mean()))
                value = self.history_[-1]
                if held_out is not None:
                    value = float(
                        np.logaddexp.reduce(_component_logs(weights, trees, held_out.points), axis=1).mean()
                    )
                since_best += 1
                if value > best:
                    best, since_best = value, 0
                    self.weights_, self.trees_ = weights, trees
                bar.step(f"{self.history_[-1]:.3f} nats per row")
                gained = np.inf if step == 0 else self.history_[-1] - self.history_[-2]
                if gained < self.tolerance or since_best >= PATIENCE:
                    break
                if is_late(deadline):
                    self.timed_out_ = True
                    break


class TreeMixtureSettings(LearnerSettings, total=False):
    """Settings of `ChowLiuMixture`."""

    max_steps: int
    tolerance: float
    smoothing: float


def clt_mixture(
    data: Any,
    *,
    n_components: int = 8,
    valid: Any = None,
    rng: Seed = None,
    **settings: Unpack[TreeMixtureSettings],
) -> Circuit:
    """Learn a mixture of Chow-Liu trees and return it as a circuit.

    Parameters
    ----------
    data
        A table (see `certimap.learn.table`), missing cells allowed, or a `Dataset`.
    n_components
        The number of trees.
    valid
        Rows that choose the best step; by default a tenth of the rows.
    rng
        Seed or generator.
    **settings
        Parameters of `ChowLiuMixture`.

    Returns
    -------
    Circuit

    Raises
    ------
    DataError
        For an empty table, or settings out of range.
    """
    return ChowLiuMixture(n_components, random_state=rng, **settings).fit(data, valid=valid).model_


def _start(indicators: Any, n_components: int, key: int) -> Floats:
    """Return responsibilities, shape (n_rows, n_components): nine tenths to the row's k-means cluster."""
    if n_components == 1 or len(indicators) < 2:
        return np.ones((len(indicators), 1))
    labels = row_clusters(indicators, n_components, "kmeans", key)
    n_found = int(labels.max()) + 1
    return 0.9 * np.eye(n_found)[labels] + 0.1 / n_found


def _component_logs(weights: Floats, trees: list[Tree], points: Points) -> Floats:
    """Return ln(weight * probability), shape (n_rows, n_components)."""
    return np.stack([tree.log_likelihood(points) for tree in trees], axis=1) + np.log(weights)


def _mixture_circuit(domain: Domain, weights: Floats, trees: list[Tree]) -> Circuit:
    builder = CircuitBuilder(domain)
    leaves = indicator_leaves(builder)
    roots = [tree.add_to(builder, leaves) for tree in trees]
    if len(roots) > 1:
        builder.sum(roots, log_weights=np.log(weights).tolist())
    return builder.build(normalised=False)
