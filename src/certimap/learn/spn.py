"""LearnSPN: sum-product networks whose structure follows the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, NamedTuple, TypeVar, Unpack

import numpy as np

from certimap.circuits.circuit import Circuit
from certimap.circuits.leaves.family import LeafFamily
from certimap.core.arguments import is_iterable, keywords_hinted
from certimap.core.domain import Domain
from certimap.core.progress import Progress
from certimap.errors import DataError
from certimap.learn.clusters import Clusterer, check_clusters
from certimap.learn.estimator import (
    DensityEstimator,
    LearnerSettings,
    Seed,
    check_real,
    single_threaded_blas,
    split_rows,
)
from certimap.learn.leaf_choice import check_leaves, densest, families_of
from certimap.learn.structure import Sketch, StructureLearner, StructureSettings
from certimap.learn.table import DataTable

THRESHOLDS = (0.05, 0.01, 1e-3, 1e-5, 1e-7, 1e-10)
SMOOTHINGS = (0.01, 0.1, 0.5, 1.0)
HELD_OUT = 0.1

T = TypeVar("T", int, float)
Names = Literal["kmeans", "em", "sklearn"]


class SettingsChoice(NamedTuple):
    """Settings tried by LearnSPN, and their validation score.

    `threshold`, `smoothing`, `min_rows`, `n_clusters`: the settings. `log_likelihood`: mean natural-log likelihood
    of the validation rows; None without a choice to make.
    """

    threshold: float
    smoothing: float
    min_rows: int
    n_clusters: int
    log_likelihood: float | None


@dataclass(kw_only=True, eq=False, repr=False)
class LearnSPN(DensityEstimator):
    """Learn a sum-product network (Gens and Domingos 2013).

    Variables that G-tests find independent become factors; otherwise rows are clustered and each cluster
    is modelled in turn. Categorical variables get smoothed counts as leaves, real ones (tested in quartile
    bins) a family of densities per column. Tests and leaves ignore missing cells: each pair of variables is
    tested on the rows that know both. Clustering puts them at the mean, and likelihoods sum them out. The
    significance level decides the quality, and no level suits all data: by default validation rows choose it,
    together with the smoothing.

    Parameters
    ----------
    threshold
        Significance level of the G-tests in (0, 1), or several to choose from; smaller ones find more
        independence.
    smoothing
        Pseudo-counts added to every state of a leaf (Laplace), or several to choose from; for real columns,
        pseudo-rows distributed like the whole column.
    leaves
        Families of real columns, as in `ProductMixture`. Validation rows choose among several.
    min_rows
        Regions with fewer rows become products of leaves; or several numbers to choose from.
    n_clusters
        Maximum number of clusters per split of rows, or several numbers to choose from.
    clusters
        "kmeans", "em", "sklearn" (scikit-learn's KMeans), or a scikit-learn clusterer.
    kinds
        Overrules which columns are "categorical", "real" or a "count"; see `certimap.learn.table`.
    domain
        The variables and their states; by default they are read off the table.
    random_state
        Seed or generator. With "kmeans" and "em", equal seeds give equal models whatever the threads.
    time_limit
        Seconds; regions not yet learned then become products of leaves.
    progress
        Whether to show progress; None means on a terminal.

    Attributes
    ----------
    model_
        The `Circuit`.
    choice_, choices_
        The settings chosen, with the validation log-likelihood, and all that were tried.
    leaves_
        The family of each real column.

    Notes
    -----
    Cost of one threshold: rows times variables squared at the root, less in every level below. Rows are
    held out only if there is a choice to make; the network is then learned again from all rows with the
    chosen settings.
    """

    threshold: float | Sequence[float] = THRESHOLDS
    smoothing: float | Sequence[float] = SMOOTHINGS
    min_rows: int | Sequence[int] = 30
    n_clusters: int | Sequence[int] = 2
    clusters: Names | Clusterer = "kmeans"
    leaves: Mapping[str, str | Sequence[str]] | None = None

    def _fit(self, table: Any, valid: Any, domain: Domain | None) -> None:
        grid = self._grid()
        rows, held_out = self._read(table, valid, domain)
        self._options = self._families(rows)
        train = rows
        is_open = len(grid) * len(_several("smoothing", self.smoothing)) > 1
        if is_open or any(len(some) > 1 for some in self._options.values()):
            train, held_out = split_rows(rows, held_out, HELD_OUT, self.seed_, least=2)
        with single_threaded_blas():
            sketch = self._choose(train, held_out, grid)
            if train is not rows:
                learner = self._learner(rows, self.choice_, sketch.families)
                sketch = learner.learn(self.choice_.threshold, self._deadline)
        self.timed_out_ = self._is_late()
        self.leaves_ = {rows.domain.names[i]: family.name for i, family in sketch.families.items()}
        self.model_ = sketch.to_circuit(self.choice_.smoothing)

    def _families(self, rows: DataTable) -> dict[int, list[LeafFamily]]:
        """Return the families to choose from for each real column."""
        check_leaves(self.leaves, rows.domain)
        wanted = {name: (self.leaves or {}).get(name) for name in rows.domain.names}
        found = {i: families_of(rows, i, wanted[name]) for i, name in enumerate(rows.domain.names)}
        return {i: some for i, some in found.items() if rows.domain.n_states[i] == 0}

    def _grid(self) -> list[tuple[int, int, float]]:
        """Return (min_rows, n_clusters, threshold) to try, checked."""
        check_clusters(self.clusters)
        thresholds = _several("threshold", self.threshold, lambda x: 0 < x < 1, "a number in (0, 1)")
        rows = _several("min_rows", self.min_rows, lambda x: x >= 1, "an integer of at least 1")
        clusters = _several("n_clusters", self.n_clusters, lambda x: x >= 2, "an integer of at least 2")
        _several("smoothing", self.smoothing, lambda x: x >= 0, "a nonnegative number")
        return list(product(rows, clusters, thresholds))

    def _learner(
        self, table: DataTable, choice: SettingsChoice, families: Mapping[int, LeafFamily]
    ) -> StructureLearner:
        settings = StructureSettings(int(choice.min_rows), int(choice.n_clusters), self.clusters)
        return StructureLearner(table, settings, self._key, families)

    def _choose(self, train: DataTable, held_out: DataTable | None, grid: list[tuple[int, int, float]]) -> Sketch:
        """Try all settings, keep the best sketch, and record the choices."""
        smoothings = _several("smoothing", self.smoothing)
        self.choices_: list[SettingsChoice] = []
        best: tuple[float, Sketch, SettingsChoice] | None = None
        learner, learner_for = None, None
        plain = {i: some[0] for i, some in self._options.items()}
        with Progress("LearnSPN", len(grid), self.progress) as bar:
            for min_rows, n_clusters, threshold in grid:
                if best is not None and self._is_late():
                    break
                trial = SettingsChoice(threshold, smoothings[0], min_rows, n_clusters, None)
                if learner is None or learner_for != (min_rows, n_clusters):
                    learner, learner_for = self._learner(train, trial, plain), (min_rows, n_clusters)
                sketch = learner.learn(threshold, self._deadline)
                for choice in _judge(sketch, held_out, smoothings, trial):
                    self.choices_.append(choice)
                    worth = 0.0 if choice.log_likelihood is None else choice.log_likelihood
                    if best is None or worth > best[0]:
                        best = worth, sketch, choice
                bar.step(f"threshold {threshold:g}, {len(sketch.nodes)} nodes")
        assert best is not None
        sketch, self.choice_ = best[1], best[2]
        return sketch if held_out is None else self._with_best_leaves(sketch, held_out)

    def _with_best_leaves(self, sketch: Sketch, held_out: DataTable) -> Sketch:
        """Choose the family of each real column in turn, by the held-out rows."""
        if not any(len(some) > 1 for some in self._options.values()):
            return sketch
        for i, some in self._options.items():
            if len(some) > 1 and not self._is_late():
                tried = [replace(sketch, families={**sketch.families, i: family}) for family in some]
                judged = [trial.evaluator(held_out.points)(self.choice_.smoothing) for trial in tried]
                sketch = tried[densest(judged)]
        value = float(np.mean(sketch.evaluator(held_out.points)(self.choice_.smoothing)))
        self.choice_ = self.choice_._replace(log_likelihood=value)
        return sketch


def _judge(
    sketch: Sketch, held_out: DataTable | None, smoothings: Sequence[float], trial: SettingsChoice
) -> Iterable[SettingsChoice]:
    """Return one choice per smoothing for a sketch, each with its validation likelihood."""
    if held_out is None:
        return [trial]
    evaluate = sketch.evaluator(held_out.points)
    worth = [float(np.mean(evaluate(smoothing))) for smoothing in smoothings]
    return [
        trial._replace(smoothing=smoothing, log_likelihood=value)
        for smoothing, value in zip(smoothings, worth, strict=True)
    ]


def _several(
    name: str, value: T | Sequence[T], accepts: Callable[[float], bool] | None = None, accepted: str = ""
) -> list[T]:
    """Return the values of a setting as a list, each checked."""
    values: list[Any] = list(value) if is_iterable(value) else [value]
    for one in values if accepts is not None else []:
        assert accepts is not None
        number = check_real(name, one, expected := f"{accepted}, or several of them")
        if not (math.isfinite(number) and accepts(number)):
            raise DataError(f"{name} is {one!r}; expected {expected}")
    if not values:
        raise DataError(f"{name} is empty; at least one value is needed")
    return values


class _Settings(LearnerSettings, total=False):
    threshold: float | Sequence[float]
    smoothing: float | Sequence[float]
    min_rows: int | Sequence[int]
    n_clusters: int | Sequence[int]
    clusters: Names | Clusterer
    leaves: Mapping[str, str | Sequence[str]] | None


@keywords_hinted(DataError, "LearnSPN")
def learnspn(data: Any, *, valid: Any = None, rng: Seed = None, **settings: Unpack[_Settings]) -> Circuit:
    """Learn a sum-product network; see `LearnSPN`.

    `data`: a table (see `certimap.learn.table`), or a `Dataset`. `valid`: rows that choose the settings; by
    default a tenth of the rows. `rng`: seed or generator. `settings`: parameters of `LearnSPN`. Raises DataError
    for an empty table, columns that leaves cannot hold, or settings out of range.
    """
    return LearnSPN(random_state=rng, **settings).fit(data, valid=valid).model_
