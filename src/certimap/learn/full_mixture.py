"""Mixtures of Gaussians with full covariances, by expectation-maximisation with missing cells summed out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from certimap.core.domain import Domain
from certimap.core.logs import log_sum
from certimap.core.progress import Progress
from certimap.densities.gaussian_mixture import LOG_2PI, GaussianMixture
from certimap.learn.blas import single_threaded_blas
from certimap.learn.clusters import mix, row_clusters
from certimap.learn.estimator import DensityEstimator, LearnerSettings, Seed, split_rows
from certimap.learn.mixture_grid import mixture_grid
from certimap.learn.progress import deadline_of, is_late
from certimap.learn.table import Kind, encode, missing_in, read_table, refuse_categorical

Floats = NDArray[np.float64]
COMPONENTS = (1, 2, 3, 4, 5, 6, 8)
SMOOTHINGS = (0.001, 0.03, 1.0, 10.0)  # near 0 for columns that determine each other
WITH_HOLES = (0.1, 1.0, 10.0)  # few rows know both of two columns, so their covariance needs more smoothing
HELD_OUT = 0.2
PATTERNS = 512  # of missing cells, treated at once
PATIENCE = 2  # try up to this many times the best number of components so far, plus one


class FullChoice(NamedTuple):
    """Settings tried by `FullMixture`, and the mean natural-log likelihood of the validation rows, if any."""

    n_components: int
    smoothing: float
    log_likelihood: float | None


class FullMixture(DensityEstimator):
    """Learn a mixture of Gaussians with full covariances from real columns with missing cells.

    Expectation-maximisation gives a missing cell its conditional mean and covariance in each component
    (Ghahramani and Jordan 1994); cells are assumed to be missing at random. Columns are standardised while
    learning; the model is in the units of the data.

    Parameters
    ----------
    n_components
        The number of components, or several to choose from.
    smoothing
        Pseudo-rows added to every covariance matrix, or several numbers to choose from. Their columns are
        uncorrelated, with the table's variances / n_components^(2 / columns) (Fraley and Raftery 2007). None
        tries .001, .03, 1 and 10, or with missing cells .1, 1 and 10.
    n_starts
        Starts (k-means clusters) of each setting; the best on its own rows is kept.
    max_steps
        Maximum number of steps per start.
    tolerance
        A start ends when a step gains less than this, in nats per row.
    kinds, domain
        See `LearnSPN`; all variables must be real.
    random_state
        Seed or generator.
    time_limit
        Seconds; the best mixture so far is kept.
    progress
        Whether to show progress; None means on a terminal.

    Attributes
    ----------
    model_
        The `certimap.GaussianMixture`.
    choice_, choices_
        The `FullChoice` taken, and all that were tried.
    timed_out_
        Whether the time limit cut learning short.

    Notes
    -----
    Validation rows choose the settings: `valid`, or a fifth of the rows (of 20 or more). The mixture is then
    learned from all rows. Cost of a step: rows times components times squared columns, and one matrix inverse per
    component and pattern of missing cells.
    """

    def __init__(
        self,
        n_components: int | Sequence[int] = COMPONENTS,
        *,
        smoothing: float | Sequence[float] | None = None,
        n_starts: int = 2,
        max_steps: int = 100,
        tolerance: float = 1e-3,
        kinds: Mapping[str, Kind] | None = None,
        domain: Domain | None = None,
        random_state: Seed = None,
        time_limit: float | None = None,
        progress: bool | None = None,
    ) -> None:
        self.n_components = n_components
        self.smoothing = smoothing
        self.n_starts = n_starts
        self.max_steps = max_steps
        self.tolerance = tolerance
        self.kinds = kinds
        self.domain = domain
        self.random_state = random_state
        self.time_limit = time_limit
        self.progress = progress

    def _fit(self, table: Any, valid: Any, domain: Domain | None) -> None:
        deadline = deadline_of(self.time_limit)
        also = [] if valid is None else [valid]
        rows = read_table(table, domain=domain, kinds=self.kinds, also=also, integers="numbers")
        smoothing = self.smoothing
        if smoothing is None:
            smoothing = WITH_HOLES if rows.missing.any() else SMOOTHINGS
        components, smoothings = mixture_grid(self.n_components, smoothing, self.n_starts, self.max_steps)
        refuse_categorical(rows, "gaussian_mixture")
        self.domain_ = rows.domain
        points: Floats = rows.points.astype(np.float64)
        with np.errstate(invalid="ignore"):
            centre = np.array([_or(np.mean, rows.observed(i), 0.0) for i in range(len(rows.domain))])
            scale = np.array([_or(np.std, rows.observed(i), 1.0) or 1.0 for i in range(len(rows.domain))])
        points = (points - centre) / scale
        held_out = None if valid is None else (encode(valid, rows.domain).points - centre) / scale
        train = points
        if held_out is None and len(components) * len(smoothings) > 1 and len(points) >= 20:
            kept, held = split_rows(len(points), HELD_OUT, np.random.default_rng(self.seed_))
            train, held_out = points[kept], points[held]
        with single_threaded_blas():
            found = self._choose(train, held_out, components, smoothings, deadline)
            if train is not points and not is_late(deadline):
                found = self._best_start(
                    _Patterns.of(points), self.choice_.n_components, self.choice_.smoothing, deadline
                )
        self.timed_out_ = is_late(deadline)
        self.model_ = GaussianMixture(
            np.exp(found.log_weights),
            found.means * scale + centre,
            found.covariances * scale[:, None] * scale,
            rows.domain.names,
        )

    def _choose(
        self,
        train: Floats,
        held_out: Floats | None,
        components: list[int],
        smoothings: list[float],
        deadline: float | None,
    ) -> _Components:
        data = _Patterns.of(train)
        judge = data if held_out is None else _Patterns.of(held_out)
        self.choices_: list[FullChoice] = []
        best: tuple[float, _Components] | None = None
        with Progress("Mixture of Gaussians", len(components) * len(smoothings), self.progress) as bar:
            for k in components:
                if best is not None and k >= PATIENCE * self.choice_.n_components + 2:
                    break
                for smoothing in smoothings:
                    if best is not None and is_late(deadline):
                        break
                    found = self._best_start(data, k, smoothing, deadline)
                    value = float(log_sum(found.logs(judge, found.expect(judge)), 1).mean())
                    self.choices_.append(FullChoice(k, smoothing, None if held_out is None else value))
                    if best is None or value > best[0]:
                        best, self.choice_ = (value, found), self.choices_[-1]
                    bar.step(f"{k} components")
        assert best is not None
        return best[1]

    def _best_start(self, data: _Patterns, k: int, smoothing: float, deadline: float | None) -> _Components:
        """Return the best of several starts, judged on the training rows."""
        filled = np.ascontiguousarray(np.where(np.isnan(data.points), 0.0, data.points), np.float32)
        best: tuple[float, _Components] | None = None
        for start in range(self.n_starts if k > 1 else 1):
            if best is not None and is_late(deadline):
                break
            shares = np.ones((len(filled), 1))
            if k > 1 and len(filled) > 1:
                labels = row_clusters(filled, k, "kmeans", mix(self.seed_ & ((1 << 64) - 1), start))
                shares = np.eye(int(labels.max()) + 1)[labels]
            found = _Components.first(data, shares, smoothing)
            before, value, steps = -np.inf, -np.inf, 0
            while True:
                expected = found.expect(data)
                logs = found.logs(data, expected)
                totals = log_sum(logs, 1)
                value = float(totals.mean())
                if value - before < self.tolerance or steps == self.max_steps or is_late(deadline):
                    break
                before, steps = value, steps + 1
                found = found.step(data, np.exp(logs - totals[:, None]), smoothing, expected)
            if best is None or value > best[0]:
                best = value, found
        assert best is not None
        return best[1]


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

    rows: NDArray[np.int64]
    known: NDArray[np.bool_]
    pattern: NDArray[np.int64]


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

    def step(
        self, data: _Patterns, shares: Floats, smoothing: float, expected: list[list[_Expected]]
    ) -> _Components:
        """Return the most probable components given shares and each component's expectations of missing cells."""
        weights: Floats = shares.sum(axis=0)
        kept: NDArray[np.bool_] = (
            weights > 0.5 if np.any(weights > 0.5) else weights >= 0.0
        )  # drop components that lost all rows
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
    """Condition one Gaussian on the known columns of each pattern, all patterns at once.

    In the matrices, missing columns are independent with variance 1, which leaves the inverses unchanged.
    """
    known = block.known.astype(np.float64)
    both = known[:, :, None] * known[:, None, :]
    n = len(mean)
    matrices = covariance * both + np.eye(n) * (1.0 - known)[:, None, :]
    precisions: Floats = np.asarray(np.linalg.inv(matrices), np.float64) * both
    log_dets: Floats = np.asarray(np.linalg.slogdet(matrices)[1], np.float64)
    there = block.known[block.pattern]
    centred = np.where(there, points - mean, 0.0)
    scaled = np.einsum("rij,rj->ri", precisions[block.pattern], centred)
    squares = np.einsum("ri,ri->r", centred, scaled)
    logs = -0.5 * (squares + log_dets[block.pattern] + known.sum(axis=1)[block.pattern] * LOG_2PI)
    filled = np.where(there, points, mean + scaled @ covariance)
    left = (
        (covariance - covariance @ precisions @ covariance) * (1.0 - known)[:, :, None] * (1.0 - known)[:, None, :]
    )
    return _Expected(logs, filled, left)


def _or(function: Any, values: Floats, otherwise: float) -> float:
    return float(function(values)) if len(values) else otherwise


class FullMixtureSettings(LearnerSettings, total=False):
    """Settings of `FullMixture`."""

    n_components: int | Sequence[int]
    smoothing: float | Sequence[float] | None
    n_starts: int
    max_steps: int
    tolerance: float


def gaussian_mixture(
    data: Any, *, valid: Any = None, rng: Seed = None, **settings: Unpack[FullMixtureSettings]
) -> GaussianMixture:
    """Learn a mixture of Gaussians with full covariances.

    Parameters
    ----------
    data
        A table (see `certimap.learn.table`) of real columns, missing cells allowed.
    valid
        Rows that choose the settings; by default a fifth of the rows.
    rng
        Seed or generator.
    **settings
        Parameters of `FullMixture`.

    Returns
    -------
    GaussianMixture

    Raises
    ------
    DataError
        For an empty table, a categorical column, or settings out of range.
    """
    return FullMixture(random_state=rng, **settings).fit(data, valid=valid).model_
