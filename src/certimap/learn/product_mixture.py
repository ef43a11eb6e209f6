"""Mixtures of products of leaves, by expectation-maximisation: any columns, missing cells summed out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import product
from typing import Any, NamedTuple, Unpack

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.circuits.leaves.kind import LeafFamily
from certimap.core.arguments import keywords_hinted
from certimap.core.arrays import Floats, Ints
from certimap.core.domain import Domain
from certimap.core.logs import log_sum
from certimap.core.progress import Progress
from certimap.errors import DataError
from certimap.learn.clusters import first_shares
from certimap.learn.estimator import (
    HELD_OUT,
    LearnerSettings,
    MixtureEstimator,
    Seed,
    learned_by,
    several,
    single_threaded_blas,
    split_rows,
)
from certimap.learn.leaves import densest, options_of
from certimap.learn.table import DataTable

COMPONENTS = (1, 2, 3, 4, 6, 8, 12, 16)
SMOOTHINGS = (0.1, 1.0)


class MixtureChoice(NamedTuple):
    """Settings tried by `ProductMixture`, and the mean natural-log likelihood of the validation rows, if any."""

    n_components: int
    smoothing: float
    leaves: Mapping[str, str]  # the family of each column, by column name
    log_likelihood: float | None


@dataclass(eq=False, repr=False)
class ProductMixture(MixtureEstimator):
    """Learn a mixture whose components are products of leaves, by expectation-maximisation (Dempster et al. 1977).

    Every step sums missing cells out; they are assumed to be missing at random.

    - `n_components`, `n_starts`, `max_steps`, `tolerance`: as in `certimap.learn.estimator.MixtureEstimator`.
    - `smoothing`: pseudo-rows distributed like the whole table, added in every leaf, or several numbers to choose
      from; None for .1 and 1.
    - `leaves`: families of real columns by name, one or several to choose from: "gaussian", "laplace",
      "student_t", "truncated_gaussian" and "exponential" (from 0), "gamma" and "lognormal" (above 0), "beta"
      (between 0 and 1), "histogram", "poisson", "geometric" and "negative_binomial" (whole numbers from 0). By
      default all that can hold the column's values; those of whole numbers for integers alone.
    - `kinds`, `domain`, `random_state`, `time_limit`, `progress`: as in `LearnSPN`.

    `model_`: the `Circuit`: one sum over products of leaves. `choice_`, `choices_`: the `MixtureChoice` taken,
    and all that were tried.

    Validation rows choose the settings: `valid`, or a fifth of the rows (of 20 or more). The mixture is then
    learned from all rows. Families are chosen last, column by column, by the density of a cell given the other
    cells of its validation row, and kept if they raise the likelihood of the validation rows. Cost of a step: rows
    times columns times components.
    """

    n_components: int | Sequence[int] = COMPONENTS
    _: KW_ONLY
    smoothing: float | Sequence[float] | None = SMOOTHINGS
    leaves: Mapping[str, str | Sequence[str]] | None = None
    n_starts: int = 3
    max_steps: int = 200
    tolerance: float = 1e-4

    def _fit(self, table: Any, valid: Any, domain: Domain | None) -> None:
        components = several(self.n_components)
        smoothings = several(SMOOTHINGS if self.smoothing is None else self.smoothing)
        rows, held_out = self._read(table, valid, domain)
        options = options_of(rows, self.leaves)
        train = rows
        if len(components) * len(smoothings) > 1 or any(len(some) > 1 for some in options):
            train, held_out = split_rows(rows, held_out, HELD_OUT, self.seed_)
        with single_threaded_blas():
            fitted = self._choose(train, held_out, options, components, smoothings)
            if train is not rows and not self._is_late():
                fitted = self._refit(rows, options) or fitted
        self.timed_out_ = self._is_late()
        self.model_ = fitted.to_circuit(rows.domain)

    def _choose(
        self,
        train: DataTable,
        held_out: DataTable | None,
        options: list[list[LeafFamily]],
        components: list[int],
        smoothings: list[float],
    ) -> _Mixture:
        """Try all numbers of components and smoothings with the plainest leaves, then other leaves."""
        data, judge = _Columns.of(train), None if held_out is None else _Columns.of(held_out)
        plain = [some[0] for some in options]
        self.choices_: list[MixtureChoice] = []
        best: tuple[float, _Mixture] | None = None
        with Progress("Mixture", len(components) * len(smoothings), self.progress) as bar:
            for k, smoothing in product(components, smoothings):
                if best is not None and self._is_late():
                    break
                trial = self._judged(self._best_start(data, plain, k, smoothing), data, judge)
                best = trial if best is None else max(best, trial, key=lambda pair: pair[0])
                bar.step(f"{k} components, {best[0]:.3f} nats per row")
        assert best is not None
        if judge is not None and any(len(some) > 1 for some in options):
            other = [_preferred(best[1], some, i, data, judge) for i, some in enumerate(options)]
            if other != plain and not self._is_late():
                changed = self._improved(data, best[1].with_families(other, data))
                best = max(best, self._judged(changed, data, judge), key=lambda pair: pair[0])
        self.choice_ = next(c for c in self.choices_ if c.log_likelihood is None or c.log_likelihood == best[0])
        return best[1]

    def _judged(self, found: _Mixture, data: _Columns, judge: _Columns | None) -> tuple[float, _Mixture]:
        """Record a trial; return its score and the mixture."""
        worth = float(found.log_likelihoods(judge or data).mean())
        names = {n: f.name for n, f in zip(self.domain_.names, found.families, strict=True)}
        score = None if judge is None else worth
        self.choices_.append(MixtureChoice(found.n_wanted, found.smoothing, names, score))
        return worth, found

    def _refit(self, rows: DataTable, options: list[list[LeafFamily]]) -> _Mixture | None:
        """Learn from all rows with the chosen settings; None where time does not suffice for the leaves."""
        choice, data = self.choice_, _Columns.of(rows)
        pairs = zip(options, choice.leaves.values(), strict=True)
        families = [next(f for f in some if f.name == name) for some, name in pairs]
        plain = [some[0] for some in options]
        found = self._best_start(data, plain, choice.n_components, choice.smoothing)
        if families == plain:
            return found
        return None if self._is_late() else self._improved(data, found.with_families(families, data))

    def _best_start(self, data: _Columns, families: list[LeafFamily], k: int, smoothing: float) -> _Mixture:
        def attempt(key: int) -> tuple[float, _Mixture]:
            shares = data.first_shares(k, key)
            found = self._improved(data, _Mixture.of(data, families, shares, smoothing, k))
            return float(found.log_likelihoods(data).mean()), found

        return self._best_of_starts(k, attempt)

    def _improved(self, data: _Columns, mixture: _Mixture) -> _Mixture:
        """Return the mixture after steps of expectation-maximisation."""
        before = -np.inf
        for _ in range(self.max_steps):
            shares, value = mixture.shares(data)
            if value - before < self.tolerance or self._is_late():
                break
            before = value
            mixture = _Mixture.of(data, mixture.families, shares, mixture.smoothing, mixture.n_wanted)
        return mixture


@dataclass(frozen=True, eq=False)
class _Columns:
    """Known values of each column, with their rows."""

    n_rows: int
    known: list[Ints]
    values: list[Floats]
    domain: Domain

    @classmethod
    def of(cls, table: DataTable) -> _Columns:
        known = [np.flatnonzero(~column) for column in table.missing.T]
        values = [table.points[rows, i].astype(np.float64) for i, rows in enumerate(known)]
        return cls(len(table), known, values, table.domain)

    def first_shares(self, k: int, key: int) -> Floats:
        """Return initial shares of rows, from clusters of standardised columns."""
        parts: list[Floats] = []
        for i, (rows, values) in enumerate(zip(self.known, self.values, strict=True)):
            size = int(self.domain.n_states[i])
            columns = np.eye(size)[values.astype(np.int64)] if size else values[:, None]
            spread = columns.std(axis=0) if len(rows) and not size else np.ones(columns.shape[1])
            filled = np.zeros((self.n_rows, columns.shape[1]))  # the mean, where a cell is missing
            if len(rows):
                filled[rows] = (columns - columns.mean(axis=0)) / np.where(spread > 0.0, spread, 1.0)
            parts.append(filled)
        return first_shares(np.ascontiguousarray(np.hstack(parts), np.float32), k, key)


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
        columns = zip(families, data.known, data.values, strict=True)
        params = [family.fit(values, shares[rows], smoothing) for family, rows, values in columns]
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

    def shares(self, data: _Columns) -> tuple[Floats, float]:
        """Return the share of each component in each row, and the mean log-likelihood."""
        logs = self.log_components(data)
        totals = log_sum(logs, 1)
        return np.exp(logs - totals[:, None]), float(totals.mean())

    def with_families(self, families: list[LeafFamily], data: _Columns) -> _Mixture:
        """Fit other leaf families to the same shares of rows."""
        shares, _ = self.shares(data)
        columns = zip(families, self.families, self.params, data.known, data.values, strict=True)
        params = [
            own if family is before else family.fit(values, shares[rows], self.smoothing)
            for family, before, own, rows, values in columns
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
    """Return the family under which held-out cells of a column are densest, given the rest of their rows."""
    rows = judge.known[i]
    if len(some) == 1 or len(rows) < 2:
        return some[0]
    shares = mixture.shares(data)[0][data.known[i]]
    rest = (j for j in range(len(mixture.families)) if j != i)
    others = mixture.log_weights + sum(mixture.column_logs(judge, j)[rows] for j in rest)
    params = (family.fit(data.values[i], shares, mixture.smoothing) for family in some)
    logs = [family.log_density(judge.values[i], own) for family, own in zip(some, params, strict=True)]
    return some[densest([log_sum(others + own, 1) for own in logs])]


@keywords_hinted(DataError, "ProductMixture")
def mixture(data: Any, *, valid: Any = None, rng: Seed = None, **settings: Unpack[LearnerSettings]) -> Circuit:
    """Learn a mixture of products of leaves, missing cells allowed; see `ProductMixture`.

    `data`, `valid`, `rng`: as in `learnspn`; a fifth of the rows choose the settings by default. `settings`:
    parameters of `ProductMixture`.
    """
    return learned_by(ProductMixture, data, valid, rng, **settings).model_
