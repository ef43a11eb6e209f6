"""Mixtures of Gaussians with full covariances, by expectation-maximisation with missing cells summed out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import product
from typing import Any, NamedTuple, Unpack

import numpy as np

from certimap.core.arguments import keywords_hinted
from certimap.core.arrays import Flags, Floats, Ints
from certimap.core.domain import Domain
from certimap.core.logs import log_sum
from certimap.core.progress import Progress
from certimap.densities.gaussian_mixture import LOG_2PI, GaussianMixture
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
from certimap.learn.table import missing_in, refuse_categorical

COMPONENTS = (1, 2, 3, 4, 5, 6, 8)
SMOOTHINGS = (0.001, 0.03, 1.0, 10.0)  # near 0 for columns that determine each other
WITH_HOLES = (0.1, 1.0, 10.0)  # few rows know both of two columns, so their covariance needs more smoothing
PATTERNS = 512  # of missing cells, treated at once
PATIENCE = 2  # try up to this many times the best number of components so far, plus one


class FullChoice(NamedTuple):
    """Settings tried by `FullMixture`, and the mean natural-log likelihood of the validation rows, if any."""

    n_components: int
    smoothing: float
    log_likelihood: float | None


@dataclass(eq=False, repr=False)
class FullMixture(MixtureEstimator):
    """Learn a mixture of Gaussians with full covariances from real columns with missing cells.

    Expectation-maximisation gives a missing cell its conditional mean and covariance in each component
    (Ghahramani and Jordan 1994); cells are assumed to be missing at random. Columns are standardised while
    learning; the model is in the units of the data.

    - `n_components`, `n_starts`, `max_steps`, `tolerance`: as in `certimap.learn.estimator.MixtureEstimator`.
    - `smoothing`: pseudo-rows added to every covariance matrix, or several numbers to choose from. Their columns
      are uncorrelated, with the table's variances / n_components^(2 / columns) (Fraley and Raftery 2007). None
      tries .001, .03, 1 and 10, or with missing cells .1, 1 and 10.
    - `kinds`, `domain`, `random_state`, `time_limit`, `progress`: as in `LearnSPN`; all variables must be real.

    `model_`: the `certimap.GaussianMixture`. `choice_`, `choices_`: the `FullChoice` taken, and all that were
    tried.

    Validation rows choose the settings: `valid`, or a fifth of the rows (of 20 or more). The mixture is then
    learned from all rows. Cost of a step: rows times components times squared columns, and one matrix inverse per
    component and pattern of missing cells.
    """

    n_components: int | Sequence[int] = COMPONENTS
    _: KW_ONLY
    smoothing: float | Sequence[float] | None = None

    def _fit(self, table: Any, valid: Any, domain: Domain | None) -> None:
        rows, held_out = self._read(table, valid, domain, as_labels=False)
        smoothing = self.smoothing
        if smoothing is None:
            smoothing = WITH_HOLES if rows.missing.any() else SMOOTHINGS
        components, smoothings = several(self.n_components), several(smoothing)
        refuse_categorical(rows, "gaussian_mixture")
        columns = [c if len(c) else np.zeros(1) for c in map(rows.observed, range(len(rows.domain)))]
        centre = np.array([float(np.mean(column)) for column in columns])
        scale = np.array([float(np.std(column)) or 1.0 for column in columns])
        train = rows
        if len(components) * len(smoothings) > 1:
            train, held_out = split_rows(rows, held_out, HELD_OUT, self.seed_)
        data = _Patterns.of((train.points.astype(np.float64) - centre) / scale)
        judge = None if held_out is None else _Patterns.of((held_out.points - centre) / scale)
        with single_threaded_blas():
            found = self._choose(data, judge, components, smoothings)
            if train is not rows and not self._is_late():
                data = _Patterns.of((rows.points.astype(np.float64) - centre) / scale)
                found = self._best_start(data, self.choice_.n_components, self.choice_.smoothing)
        self.timed_out_ = self._is_late()
        covariances = found.covariances * scale[:, None] * scale
        names = rows.domain.names
        self.model_ = GaussianMixture(np.exp(found.log_weights), found.means * scale + centre, covariances, names)
        self.model_.domain = rows.domain  # which knows the whole numbers

    def _choose(
        self, data: _Patterns, judge: _Patterns | None, components: list[int], smoothings: list[float]
    ) -> _Components:
        """Try the settings; stop at numbers of components far above the best so far."""
        self.choices_: list[FullChoice] = []
        best: tuple[float, _Components] | None = None
        with Progress("Mixture of Gaussians", len(components) * len(smoothings), self.progress) as bar:
            for k, smoothing in product(components, smoothings):
                if best is not None and (self._is_late() or k >= PATIENCE * self.choice_.n_components + 2):
                    break
                found = self._best_start(data, k, smoothing)
                value = found.log_likelihood(data if judge is None else judge)
                self.choices_.append(FullChoice(k, smoothing, None if judge is None else value))
                if best is None or value > best[0]:
                    best, self.choice_ = (value, found), self.choices_[-1]
                bar.step(f"{k} components")
        assert best is not None
        return best[1]

    def _best_start(self, data: _Patterns, k: int, smoothing: float) -> _Components:
        filled = np.ascontiguousarray(np.where(np.isnan(data.points), 0.0, data.points), np.float32)

        def attempt(key: int) -> tuple[float, _Components]:
            found = _Components.first(data, first_shares(filled, k, key, own=1.0, rest=0.0), smoothing)
            before, steps = -np.inf, 0
            while True:
                expected = found.expect(data)
                logs = found.logs(data, expected)
                totals = log_sum(logs, 1)
                value = float(totals.mean())
                if value - before < self.tolerance or steps == self.max_steps or self._is_late():
                    return value, found
                before, steps = value, steps + 1
                found = found.step(data, np.exp(logs - totals[:, None]), smoothing, expected)

        return self._best_of_starts(k, attempt)


@dataclass(frozen=True, eq=False)
class _Patterns:
    """Standardised rows, sorted by pattern of known columns, in blocks."""

    n_rows: int
    blocks: list[_Block]
    points: Floats

    @classmethod
    def of(cls, points: Floats) -> _Patterns:
        patterns, which = np.unique(~missing_in(points), axis=0, return_inverse=True)
        which = which.ravel()
        order = np.argsort(which, kind="stable")
        blocks: list[_Block] = []
        for first in range(0, len(patterns), PATTERNS):
            rows = order[(which[order] >= first) & (which[order] < first + PATTERNS)]
            blocks.append(_Block(rows, patterns[first : first + PATTERNS], which[rows] - first))
        return cls(len(points), blocks, points)


@dataclass(frozen=True, eq=False)
class _Block:
    """Rows of some patterns: row numbers, known columns of each pattern (patterns, n), and each row's pattern."""

    rows: Ints
    known: Flags
    pattern: Ints


class _Expected(NamedTuple):
    """Expectations of one component for a block: log densities, filled rows, covariances per pattern."""

    logs: Floats
    filled: Floats
    left: Floats


@dataclass(frozen=True, eq=False)
class _Components:
    """A mixture of standardised columns."""

    log_weights: Floats
    means: Floats
    covariances: Floats

    @classmethod
    def first(cls, data: _Patterns, shares: Floats, smoothing: float) -> _Components:
        """Make one step from standard normal components, which gives missing cells a spread."""
        k, n = int(shares.shape[1]), int(data.points.shape[1])
        same: Floats = np.zeros(k) - math.log(k)
        start = cls(same, np.zeros((k, n)), np.tile(np.eye(n), (k, 1, 1)))
        return start.step(data, shares, smoothing, start.expect(data))

    def expect(self, data: _Patterns) -> list[list[_Expected]]:
        """Return the expectations of each component for each block."""
        return [
            [_expected(data.points[block.rows], block, mean, covariance) for block in data.blocks]
            for mean, covariance in zip(self.means, self.covariances, strict=True)
        ]

    def logs(self, data: _Patterns, expected: list[list[_Expected]]) -> Floats:
        """Return ln(weight * density of the known cells), shape (n_rows, n_components)."""
        out = np.empty((data.n_rows, len(self.log_weights)))
        for k, own in enumerate(expected):
            for block, found in zip(data.blocks, own, strict=True):
                out[block.rows, k] = self.log_weights[k] + found.logs
        return out

    def log_likelihood(self, data: _Patterns) -> float:
        """Return the mean log-likelihood of the rows."""
        return float(log_sum(self.logs(data, self.expect(data)), 1).mean())

    def step(
        self, data: _Patterns, shares: Floats, smoothing: float, expected: list[list[_Expected]]
    ) -> _Components:
        """Return the most probable components given shares and each component's expectations of missing cells."""
        weights: Floats = shares.sum(axis=0)
        lively = weights > 0.5
        kept: Flags = lively if np.any(lively) else weights >= 0.0  # drop components that lost all rows
        n = data.points.shape[1]
        prior = np.eye(n) / float(kept.sum()) ** (2.0 / n)
        means: list[Floats] = []
        covariances: list[Floats] = []
        for k in np.flatnonzero(kept).tolist():
            parts = list(zip(data.blocks, expected[k], strict=True))
            mean = sum((shares[block.rows, k] @ found.filled for block, found in parts), np.zeros(n)) / weights[k]
            squares = smoothing * prior
            for block, found in parts:
                own = shares[block.rows, k]
                centred = found.filled - mean
                per_pattern = np.bincount(block.pattern, own, minlength=len(block.known))
                squares = squares + (centred * own[:, None]).T @ centred
                squares = squares + np.tensordot(per_pattern, found.left, 1)
            means.append(mean)
            covariances.append(0.5 * (squares + squares.T) / (weights[k] + smoothing))
        shown: Floats = weights[kept]
        logs = np.log(shown) - float(np.log(shown.sum()))
        return _Components(logs, np.array(means), np.array(covariances))


def _expected(points: Floats, block: _Block, mean: Floats, covariance: Floats) -> _Expected:
    """Condition one Gaussian on the known columns of each pattern, all patterns at once."""
    # missing columns are made independent with variance 1, which leaves the inverses unchanged
    known = block.known.astype(np.float64)
    both, lost = known[:, :, None] * known[:, None, :], 1.0 - known
    matrices = covariance * both + np.eye(len(mean)) * lost[:, None, :]
    precisions: Floats = np.asarray(np.linalg.inv(matrices), np.float64) * both
    log_dets: Floats = np.asarray(np.linalg.slogdet(matrices)[1], np.float64)
    there = block.known[block.pattern]
    centred = np.where(there, points - mean, 0.0)
    scaled = np.einsum("rij,rj->ri", precisions[block.pattern], centred)
    squares = np.einsum("ri,ri->r", centred, scaled)
    logs = -0.5 * (squares + log_dets[block.pattern] + known.sum(axis=1)[block.pattern] * LOG_2PI)
    filled = np.where(there, points, mean + scaled @ covariance)
    left = (covariance - covariance @ precisions @ covariance) * lost[:, :, None] * lost[:, None, :]
    return _Expected(logs, filled, left)


@keywords_hinted(DataError, "FullMixture")
def gaussian_mixture(
    data: Any, *, valid: Any = None, rng: Seed = None, **settings: Unpack[LearnerSettings]
) -> GaussianMixture:
    """Learn a mixture of Gaussians with full covariances from real columns, missing cells allowed.

    `data`, `valid`, `rng`: as in `learnspn`; a fifth of the rows choose the settings by default. `settings`:
    parameters of `FullMixture`.
    """
    return learned_by(FullMixture, data, valid, rng, **settings).model_
