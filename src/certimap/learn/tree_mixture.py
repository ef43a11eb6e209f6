"""Mixtures of Chow-Liu trees, by expectation-maximisation (Meila and Jordan 2000)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Unpack

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.core.arguments import keywords_hinted
from certimap.core.arrays import Floats
from certimap.core.box import Points
from certimap.core.domain import Domain
from certimap.core.progress import Progress
from certimap.errors import DataError
from certimap.learn.estimator import (
    DensityEstimator,
    LearnerSettings,
    Seed,
    check_count,
    single_threaded_blas,
    split_rows,
)
from certimap.learn.leaf_choice import Bars
from certimap.learn.mixtures import first_shares
from certimap.learn.table import DataTable
from certimap.learn.tree import ROWS_PER_BAR, Tree, check_smoothing, indicator_leaves, one_hot, pair_counts

HELD_OUT = 0.1
PATIENCE = 3


@dataclass(eq=False, repr=False)
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
    kinds, domain, random_state, time_limit, progress
        As in `LearnSPN`. Real columns are learned as histograms (see `certimap.learn.leaf_choice`).

    Attributes
    ----------
    model_
        The mixture as a `Circuit`: one sum over trees.
    weights_, trees_
        The share and the `Tree` of every component.
    history_
        Mean natural-log likelihood of the training rows before each step.

    Notes
    -----
    Validation rows choose the best mixture: `valid`, or a held-out tenth of the rows (of 20 or more).
    Likelihoods sum missing cells out; the table of each pair of columns uses the rows that know both. A step
    costs one matrix product per component: rows times squared states.
    """

    n_components: int = 8
    _: KW_ONLY
    max_steps: int = 50
    tolerance: float = 1e-3
    smoothing: float = 1.0

    def _fit(self, table: Any, valid: Any, domain: Domain | None) -> None:
        check_count("n_components", self.n_components, 1)
        check_count("max_steps", self.max_steps, 1)
        check_smoothing(self.smoothing)
        rows, held_out = self._read(table, valid, domain)
        bars = Bars.of(rows, ROWS_PER_BAR * self.n_components)
        judge = None if held_out is None else bars.coded(held_out)
        with single_threaded_blas():
            self._climb(*split_rows(bars.coded(rows), judge, HELD_OUT, self.seed_))
        builder = CircuitBuilder(bars.cut)
        leaves = indicator_leaves(builder)
        roots = [tree.add_to(builder, leaves) for tree in self.trees_]
        if len(roots) > 1:
            builder.sum(roots, log_weights=np.log(self.weights_).tolist())
        self.model_ = bars.to_circuit(builder.build(normalised=False))

    def _climb(self, rows: DataTable, held_out: DataTable | None) -> None:
        """Alternate trees and responsibilities, and keep the best mixture on the held-out rows."""
        indicators = one_hot(rows.domain, rows.points)
        responsibilities = first_shares(indicators, self.n_components, self._key)
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
                    logs = _component_logs(weights, trees, held_out.points)
                    value = float(np.logaddexp.reduce(logs, axis=1).mean())
                since_best += 1
                if value > best:
                    best, since_best = value, 0
                    self.weights_, self.trees_ = weights, trees
                bar.step(f"{self.history_[-1]:.3f} nats per row")
                gained = np.inf if step == 0 else self.history_[-1] - self.history_[-2]
                if gained < self.tolerance or since_best >= PATIENCE:
                    break
                if self._is_late():
                    self.timed_out_ = True
                    break


class _Settings(LearnerSettings, total=False):
    max_steps: int
    tolerance: float
    smoothing: float


@keywords_hinted(DataError, "ChowLiuMixture")
def clt_mixture(
    data: Any, *, n_components: int = 8, valid: Any = None, rng: Seed = None, **settings: Unpack[_Settings]
) -> Circuit:
    """Learn a mixture of Chow-Liu trees, missing cells allowed; see `ChowLiuMixture`.

    `data`, `valid`, `rng`: as in `learnspn`; a tenth of the rows choose the best step by default. `n_components`:
    the number of trees. `settings`: parameters of `ChowLiuMixture`.
    """
    return ChowLiuMixture(n_components, random_state=rng, **settings).fit(data, valid=valid).model_


def _component_logs(weights: Floats, trees: list[Tree], points: Points) -> Floats:
    """Return ln(weight * probability), shape (n_rows, n_components)."""
    return np.stack([tree.log_likelihood(points) for tree in trees], axis=1) + np.log(weights)
