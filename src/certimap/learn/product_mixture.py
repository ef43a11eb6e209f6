"""Mixtures of products of leaves, by expectation-maximisation: any columns, missing cells summed out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.core.domain import Domain
from certimap.core.logs import log_sum
from certimap.core.progress import Progress
from certimap.learn.blas import single_threaded_blas
from certimap.learn.clusters import mix, row_clusters
from certimap.learn.estimator import DensityEstimator, LearnerSettings, Seed, split_rows
from certimap.learn.leaf_choice import check_leaves, densest, families_of
from certimap.learn.leaf_families import LeafFamily
from certimap.learn.mixture_grid import mixture_grid
from certimap.learn.progress import deadline_of, is_late
from certimap.learn.table import DataTable, Kind, encode, read_table

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
COMPONENTS = (1, 2, 3, 4, 6, 8, 12, 16)
SMOOTHINGS = (0.1, 1.0)
HELD_OUT = 0.2


class MixtureChoice(NamedTuple):
    """Settings tried by `ProductMixture`, and their validation score.

    Attributes
    ----------
    n_components, smoothing
        The settings.
    leaves
        The family of each column, by column name.
    log_likelihood
        Mean natural-log likelihood of the validation rows; None without a choice to make.
    """

    n_components: int
    smoothing: float
    leaves: Mapping[str, str]
    log_likelihood: float | None


class ProductMixture(DensityEstimator):
    """Learn a mixture whose components are products of leaves, by expectation-maximisation (Dempster et al. 1977).

    Every step sums missing cells out; they are assumed to be missing at random.

    Parameters
    ----------
    n_components
        The number of components, or several to choose from.
    smoothing
        Pseudo-rows distributed like the whole table, added in every leaf, or several numbers to choose from.
    leaves
        Families of real columns by name, one or several to choose from: "gaussian", "laplace", "student_t",
        "truncated_gaussian" and "exponential" (from 0), "histogram", "poisson" and "geometric" (whole numbers from
        0). By default all that can hold the column's values; "poisson" and "geometric" for integers alone.
    n_starts
        Starts (k-means clusters) of each setting; the best on its own rows is kept.
    max_steps
        Maximum number of steps per start.
    tolerance
        A start ends when a step gains less than this, in nats per row.
    kinds, domain
        See `LearnSPN`; `kinds` knows "count" too.
    random_state
        Seed or generator.
    time_limit
        Seconds; the best mixture so far is kept.
    progress
        Whether to show progress; None means on a terminal.

    Attributes
    ----------
    model_
        The `Circuit`: one sum over products of leaves.
    choice_, choices_
        The `MixtureChoice` taken, and all that were tried.
    timed_out_
        Whether the time limit cut learning short.

    Notes
    -----
    Validation rows choose the settings: `valid`, or a fifth of the rows (of 20 or more). The mixture is then
    learned from all rows. Families are chosen last, column by column, by the density of a cell given the other
    cells of its validation row, and kept if they raise the likelihood of the validation rows. Cost of a step: rows
    times columns times components.
    """

    def __init__(
        self,
        n_components: int | Sequence[int] = COMPONENTS,
        *,
        smoothing: float | Sequence[float] = SMOOTHINGS,
        leaves: Mapping[str, str | Sequence[str]] | None = None,
        n_starts: int = 3,
        max_steps: int = 200,
        tolerance: float = 1e-4,
        kinds: Mapping[str, Kind] | None = None,
        domain: Domain | None = None,
        random_state: Seed = None,
        time_limit: float | None = None,
        progress: bool | None = None,
    ) -> None:
        self.n_components = n_components
        self.smoothing = smoothing
        self.leaves = leaves
        self.n_starts = n_starts
        self.max_steps = max_steps
        self.tolerance = tolerance
        self.kinds = kinds
        self.domain = domain
        self.random_state = random_state
        self.time_limit = time_limit
        self.progress = progress

    def _fit(self, table: Any, valid: Any, domain: Domain | None) -> None:
        components, smoothings = mixture_grid(self.n_components, self.smoothing, self.n_starts, self.max_steps)
        deadline = deadline_of(self.time_limit)
        also = [] if valid is None else [valid]
        rows = read_table(table, domain=domain, kinds=self.kinds, also=also, integers="chosen")
        check_leaves(self.leaves, rows.domain)
        options = [families_of(rows, i, (self.leaves or {}).get(name)) for i, name in enumerate(rows.domain.names)]
        held_out = None if valid is None else encode(valid, rows.domain)
        open_choices = len(components) * len(smoothings) > 1 or any(len(some) > 1 for some in options)
        train = rows
        if held_out is None and open_choices and len(rows) >= 20:
            kept, held = split_rows(len(rows), HELD_OUT, np.random.default_rng(self.seed_))
            train, held_out = rows.rows(kept), rows.rows(held)
        self.domain_ = rows.domain
        self.timed_out_ = False
        with single_threaded_blas():
            fitted = self._choose(train, held_out, options, components, smoothings, deadline)
            if train is not rows and not is_late(deadline):
                again = self._refit(rows, options, deadline)
                fitted = again if again is not None else fitted
        self.timed_out_ = is_late(deadline)
        self.model_ = fitted.to_circuit(rows.domain)

    def _choose(
        self,
        train: DataTable,
        held_out: DataTable | None,
        options: list[list[LeafFamily]],
        components: list[int],
        smoothings: list[float],
        deadline: float | None,
    ) -> _Mixture:
        """Try all numbers of components and smoothings with the plainest leaves, then other leaves."""
        data, judge = _Columns.of(train), None if held_out is None else _Columns.of(held_out)
        plain = [some[0] for some in options]
        self.choices_: list[MixtureChoice] = []
        best: tuple[float, _Mixture] | None = None
        with Progress("Mixture", len(components) * len(smoothings), self.progress) as bar:
            for k in components:
                for smoothing in smoothings:
                    if best is not None and is_late(deadline):
                        break
                    found = self._best_start(data, plain, k, smoothing, deadline)
                    best = (
                        max(best, self._judged(found, data, judge), key=lambda pair: pair[0])
                        if best
                        else (self._judged(found, data, judge))
                    )
                    bar.step(f"{k} components, {best[0]:.3f} nats per row")
        assert best is not None
        if judge is not None and any(len(some) > 1 for some in options):
            other = [_preferred(best[1], some, i, data, judge) for i, some in enumerate(options)]
            if other != plain and not is_late(deadline):
                changed = self._improved(data, best[1].with_families(other, data), deadline)
                best = max(best, self._judged(changed, data, judge), key=lambda pair: pair[0])
        self.choice_ = next(c for c in self.choices_ if c.log_likelihood is None or c.log_likelihood == best[0])
        return best[1]

    def _judged(self, found: _Mixture, data: _Columns, judge: _Columns | None) -> tuple[float, _Mixture]:
        """Record a trial; return its score and the mixture."""
        worth = float(found.log_likelihoods(judge or data).mean())
        names = {n: f.name for n, f in zip(self.domain_.names, found.families, strict=True)}
        asked = found.n_wanted
        self.choices_.append(MixtureChoice(asked, found.smoothing, names, None if judge is None else worth))
        return worth, found

    def _refit(self, rows: DataTable, options: list[list[LeafFamily]], deadline: float | None) -> _Mixture | None:
        """Learn from all rows with the chosen settings."""
        names = list(self.choice_.leaves.values())
        families = [next(f for f in some if f.name == name) for some, name in zip(options, names, strict=True)]
        plain = [some[0] for some in options]
        data, choice = _Columns.of(rows), self.choice_
        found = self._best_start(data, plain, choice.n_components, choice.smoothing, deadline)
        if families != plain and not is_late(deadline):
            found = self._improved(data, found.with_families(families, data), deadline)
        elif families != plain:
            return None
        return found

    def _best_start(
        self, data: _Columns, families: list[LeafFamily], k: int, smoothing: float, deadline: float | None
    ) -> _Mixture:
        """Return the best of several starts, judged on the training rows."""
        best: tuple[float, _Mixture] | None = None
        for start in range(self.n_starts if k > 1 else 1):
            if best is not None and is_late(deadline):
                break
            shares = _clusters(data, k, mix(self.seed_ & ((1 << 64) - 1), start))
            found = self._improved(data, _Mixture.of(data, families, shares, smoothing, k), deadline)
            worth = float(found.log_likelihoods(data).mean())
            if best is None or worth > best[0]:
                best = worth, found
        assert best is not None
        return best[1]

    def _improved(self, data: _Columns, mixture: _Mixture, deadline: float | None) -> _Mixture:
        """Return the mixture after steps of expectation-maximisation."""
        before = -np.inf
        for _ in range(self.max_steps):
            logs = mixture.log_components(data)
            totals = log_sum(logs, 1)
            value = float(totals.mean())
            if value - before < self.tolerance or is_late(deadline):
                break
            before = value
            shares = np.exp(logs - totals[:, None])
            mixture = _Mixture.of(data, mixture.families, shares, mixture.smoothing, mixture.n_wanted)
        return mixture


@dataclass(frozen=True, eq=False)
class _Columns:
    """Known values of each column, with their rows."""

    n_rows: int
    known: list[NDArray[np.int64]]
    values: list[Floats]
    domain: Domain

    @classmethod
    def of(cls, table: DataTable) -> _Columns:
        known = [np.flatnonzero(~column) for column in table.missing.T]
        values = [table.points[rows, i].astype(np.float64) for i, rows in enumerate(known)]
        return cls(len(table), known, values, table.domain)


@dataclass(frozen=True, eq=False)
class _Mixture:
    """Log weights, and each column's parameters in every component."""

    log_weights: Floats
    families: list[LeafFamily]
    params: list[Floats]
    smoothing: float
    n_wanted: int

    @classmethod
    def of(
        cls, data: _Columns, families: list[LeafFamily], shares: Floats, smoothing: float, n_wanted: int
    ) -> _Mixture:
        """Return the most probable mixture given the shares; components without rows are dropped."""
        totals = shares.sum(axis=0)
        shares = shares[:, totals > 0.5] if np.any(totals > 0.5) else shares
        weights = shares.sum(axis=0)
        params = [
            family.fit(values, shares[rows], smoothing)
            for family, rows, values in zip(families, data.known, data.values, strict=True)
        ]
        return cls(np.log(weights / weights.sum()), families, params, smoothing, n_wanted)

    def column_logs(self, data: _Columns, i: int) -> Floats:
        """Return ln of a column's density in each component, 0 for missing cells."""
        out = np.zeros((data.n_rows, len(self.log_weights)))
        out[data.known[i]] = self.families[i].log_density(data.values[i], self.params[i])
        return out

    def log_components(self, data: _Columns) -> Floats:
        """Return ln(weight * density of the known cells), shape (n_rows, n_components)."""
        out = np.tile(self.log_weights, (data.n_rows, 1))
        for i in range(len(self.families)):
            out += self.column_logs(data, i)
        return out

    def log_likelihoods(self, data: _Columns) -> Floats:
        """Return ln of the density of each row."""
        return log_sum(self.log_components(data), 1)

    def with_families(self, families: list[LeafFamily], data: _Columns) -> _Mixture:
        """Fit other leaf families to the same shares of rows."""
        logs = self.log_components(data)
        shares = np.exp(logs - log_sum(logs, 1)[:, None])
        params = [
            own if family is before else family.fit(values, shares[rows], self.smoothing)
            for family, before, own, rows, values in zip(
                families, self.families, self.params, data.known, data.values, strict=True
            )
        ]
        return replace(self, families=families, params=params)

    def to_circuit(self, domain: Domain) -> Circuit:
        """Return the circuit."""
        builder = CircuitBuilder(domain)
        parts: list[int] = []
        for k in range(len(self.log_weights)):
            leaves = [family.add(builder, i, self.params[i][k]) for i, family in enumerate(self.families)]
            parts.append(leaves[0] if len(leaves) == 1 else builder.product(leaves))
        if len(parts) > 1:
            builder.sum(parts, log_weights=self.log_weights.tolist())
        return builder.build(normalised=False)


def _preferred(mixture: _Mixture, some: list[LeafFamily], i: int, data: _Columns, judge: _Columns) -> LeafFamily:
    """Return the family under which held-out cells of a column, given the rest of their rows, are densest.

    The plainest family stays unless another leads by more than the standard error of the difference.
    """
    rows = judge.known[i]
    if len(some) == 1 or len(rows) < 2:
        return some[0]
    logs = mixture.log_components(data)
    shares = np.exp(logs - log_sum(logs, 1)[:, None])[data.known[i]]
    others = mixture.log_weights + sum(
        mixture.column_logs(judge, j)[rows] for j in range(len(mixture.families)) if j != i
    )
    judged = [
        log_sum(
            others + family.log_density(judge.values[i], family.fit(data.values[i], shares, mixture.smoothing)), 1
        )
        for family in some
    ]
    return some[densest(judged)]


def _clusters(data: _Columns, k: int, key: int) -> Floats:
    """Return initial shares of rows, shape (n_rows, n_clusters): nine tenths to the k-means cluster."""
    if k == 1 or data.n_rows < 2:
        return np.ones((data.n_rows, 1))
    parts: list[Floats] = []
    for i, (rows, values) in enumerate(zip(data.known, data.values, strict=True)):
        size = int(data.domain.n_states[i])
        columns = np.eye(size)[values.astype(np.int64)] if size else values[:, None]
        spread = columns.std(axis=0) if len(rows) and not size else np.ones(columns.shape[1])
        filled = np.zeros((data.n_rows, columns.shape[1]))  # the mean, where a cell is missing
        if len(rows):
            filled[rows] = (columns - columns.mean(axis=0)) / np.where(spread > 0.0, spread, 1.0)
        parts.append(filled)
    features = np.ascontiguousarray(np.hstack(parts), np.float32)
    labels = row_clusters(features, k, "kmeans", key)
    n_found = int(labels.max()) + 1
    return 0.9 * np.eye(n_found)[labels] + 0.1 / n_found


class MixtureSettings(LearnerSettings, total=False):
    """Settings of `ProductMixture`."""

    n_components: int | Sequence[int]
    smoothing: float | Sequence[float]
    leaves: Mapping[str, str | Sequence[str]] | None
    n_starts: int
    max_steps: int
    tolerance: float


def mixture(data: Any, *, valid: Any = None, rng: Seed = None, **settings: Unpack[MixtureSettings]) -> Circuit:
    """Learn a mixture of products of leaves and return it as a circuit.

    Parameters
    ----------
    data
        A table (see `certimap.learn.table`) of any columns, missing cells allowed, or a `Dataset`.
    valid
        Rows that choose the settings; by default a fifth of the rows.
    rng
        Seed or generator.
    **settings
        Parameters of `ProductMixture`.

    Returns
    -------
    Circuit

    Raises
    ------
    DataError
        For an empty table, columns that leaves cannot hold, or settings out of range.
    """
    return ProductMixture(random_state=rng, **settings).fit(data, valid=valid).model_
