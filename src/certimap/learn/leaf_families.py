"""Leaves of one column: families of densities fitted to weighted rows."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from certimap.circuits.circuit import CircuitBuilder
from certimap.core.rounding import SMALLEST_NORMAL

Floats = NDArray[np.float64]
LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
LEAST_SD = 0.01  # in standard deviations of the column: narrower leaves would overfit single rows
T_DEGREES = 4.0
T_STEPS = 20
MAX_BARS = 32
TAIL_WIDTH = 3.0  # width of a histogram's tails, in standard deviations of the column
CUT_FAR = 8.0  # standard deviations below the mean: a cut there has no effect
CUT_NEAR = 3.0  # above the mean: nearly exponential


class LeafFamily(ABC):
    """Model of one column in each component: fitting, densities, and leaves.

    Attributes
    ----------
    name
        Its public name: a leaf kind, "histogram" or "categorical".
    """

    name: ClassVar[str]

    @abstractmethod
    def fit(self, values: Floats, weights: Floats, smoothing: float) -> Floats:
        """Return parameters, shape (n_components, n_parameters), for weights of shape (n_rows, n_components).

        Every component also counts `smoothing` pseudo-rows distributed like the whole column.
        """

    @abstractmethod
    def log_density(self, values: Floats, params: Floats) -> Floats:
        """Return natural logs, shape (n_rows, n_components)."""

    @abstractmethod
    def add(self, builder: CircuitBuilder, variable: int, params: Floats) -> int:
        """Add the leaf of one component's parameters, and return its node."""


@dataclass(frozen=True, eq=False)
class _Moments:
    """Mean and standard deviation of the whole column."""

    mean: float
    sd: float

    @classmethod
    def of(cls, values: Floats) -> _Moments:
        sd = float(values.std()) if len(values) else 0.0
        return cls(float(values.mean()) if len(values) else 0.0, sd if sd > 0.0 else 1.0)

    def means(self, values: Floats, weights: Floats, smoothing: float) -> Floats:
        """Return the smoothed mean of each component; the column's mean for a component without rows."""
        totals = weights.sum(axis=0)
        sums = weights.T @ values + smoothing * self.mean
        return np.where(
            totals + smoothing > 0.0, sums / np.maximum(totals + smoothing, SMALLEST_NORMAL), self.mean
        )

    def variances(self, squares: Floats, totals: Floats, smoothing: float) -> Floats:
        """Return smoothed variances from weighted sums of squares, at least (LEAST_SD * sd)^2."""
        rows = np.maximum(totals + smoothing, SMALLEST_NORMAL)
        raw = np.where(totals + smoothing > 0.0, (squares + smoothing * self.sd**2) / rows, self.sd**2)
        return np.maximum(raw, (LEAST_SD * self.sd) ** 2)


class Gaussian(LeafFamily):
    """Normal distributions."""

    name = "gaussian"

    def __init__(self, values: Floats) -> None:
        self.column = _Moments.of(values)

    def fit(self, values: Floats, weights: Floats, smoothing: float) -> Floats:
        """Return (mean, sd) per component."""
        means = self.column.means(values, weights, smoothing)
        squares = np.einsum("nk,nk->k", weights, (values[:, None] - means) ** 2)
        return np.stack([means, np.sqrt(self.column.variances(squares, weights.sum(axis=0), smoothing))], axis=1)

    def log_density(self, values: Floats, params: Floats) -> Floats:
        """Return natural logs of normal densities."""
        mean, sd = params.T
        return -0.5 * ((values[:, None] - mean) / sd) ** 2 - np.log(sd) - LOG_SQRT_2PI

    def add(self, builder: CircuitBuilder, variable: int, params: Floats) -> int:
        """Add a Gaussian leaf."""
        return builder.gaussian(variable, float(params[0]), float(params[1]))


class Laplace(LeafFamily):
    """Laplace distributions: weighted medians and mean distances from them."""

    name = "laplace"

    def __init__(self, values: Floats) -> None:
        self.column = _Moments.of(values)

    def fit(self, values: Floats, weights: Floats, smoothing: float) -> Floats:
        """Return (median, scale) per component."""
        order = np.argsort(values, kind="stable")
        running = np.cumsum(weights[order], axis=0)
        if not len(values):
            return np.tile([self.column.mean, self.column.sd], (weights.shape[1], 1))
        middle = np.argmax(running >= 0.5 * running[-1], axis=0)
        medians = np.where(running[-1] > 0.0, values[order][middle], self.column.mean)
        far = np.einsum("nk,nk->k", weights, np.abs(values[:, None] - medians)) + smoothing * self.column.sd
        rows = np.maximum(running[-1] + smoothing, SMALLEST_NORMAL)
        scales = np.where(running[-1] + smoothing > 0.0, far / rows, self.column.sd)
        return np.stack([medians, np.maximum(scales, LEAST_SD * self.column.sd)], axis=1)

    def log_density(self, values: Floats, params: Floats) -> Floats:
        """Return natural logs of Laplace densities."""
        middle, scale = params.T
        return -np.abs(values[:, None] - middle) / scale - np.log(2.0 * scale)

    def add(self, builder: CircuitBuilder, variable: int, params: Floats) -> int:
        """Add a Laplace leaf."""
        return builder.real("laplace", variable, *params.tolist())


class StudentT(LeafFamily):
    """Student t distributions of 4 degrees of freedom, by iteratively reweighted rows (Lange et al. 1989)."""

    name = "student_t"

    def __init__(self, values: Floats) -> None:
        self.column = _Moments.of(values)

    def fit(self, values: Floats, weights: Floats, smoothing: float) -> Floats:
        """Return (centre, scale, 4) per component."""
        totals = weights.sum(axis=0)
        centre, variance = self.column.means(values, weights, smoothing), np.full(len(totals), self.column.sd**2)
        for _ in range(T_STEPS):
            squares = (values[:, None] - centre) ** 2
            shares = weights * (T_DEGREES + 1.0) / (T_DEGREES + squares / variance)
            centre = self.column.means(values, shares, smoothing)
            variance = self.column.variances(np.einsum("nk,nk->k", shares, squares), totals, smoothing)
        return np.stack([centre, np.sqrt(variance), np.full(len(totals), T_DEGREES)], axis=1)

    def log_density(self, values: Floats, params: Floats) -> Floats:
        """Return natural logs of Student t densities."""
        centre, scale, df = params.T
        top = math.lgamma(0.5 * (T_DEGREES + 1.0)) - math.lgamma(0.5 * T_DEGREES)
        squares = ((values[:, None] - centre) / scale) ** 2
        return top - 0.5 * np.log(df * math.pi) - np.log(scale) - 0.5 * (df + 1.0) * np.log1p(squares / df)

    def add(self, builder: CircuitBuilder, variable: int, params: Floats) -> int:
        """Add a Student t leaf."""
        return builder.real("student_t", variable, *params.tolist())


class Exponential(LeafFamily):
    """Exponential distributions of numbers from 0."""

    name = "exponential"

    def __init__(self, values: Floats) -> None:
        self.column = _Moments.of(values)
        self.least = LEAST_SD * self.column.sd

    def fit(self, values: Floats, weights: Floats, smoothing: float) -> Floats:
        """Return the rate per component."""
        return 1.0 / np.maximum(self.column.means(values, weights, smoothing), self.least)[:, None]

    def log_density(self, values: Floats, params: Floats) -> Floats:
        """Return natural logs of exponential densities, -inf below 0."""
        rate = params[:, 0]
        return np.where(values[:, None] >= 0.0, np.log(rate) - values[:, None] * rate, -np.inf)

    def add(self, builder: CircuitBuilder, variable: int, params: Floats) -> int:
        """Add an exponential leaf."""
        return builder.real("exponential", variable, float(params[0]))


class TruncatedGaussian(LeafFamily):
    """Normal distributions cut at 0, with the mean and variance of the rows: maximum likelihood (Cohen 1950)."""

    name = "truncated_gaussian"

    def __init__(self, values: Floats) -> None:
        self.column = _Moments.of(values)
        self.gaussian = Gaussian(values)
        # where the cut lies in standard deviations settles variance / mean^2, which rises from 0 to 1
        self.cuts = np.linspace(-CUT_FAR, CUT_NEAR, 2001)
        above = self._means_above(self.cuts)
        self.ratios = (1.0 + self.cuts * above - above**2) / (above - self.cuts) ** 2

    def _means_above(self, cuts: Floats) -> Floats:
        """Return the mean of a standard normal beyond each cut."""
        return np.exp(-0.5 * cuts**2 - LOG_SQRT_2PI - _log_cdf(-cuts))

    def fit(self, values: Floats, weights: Floats, smoothing: float) -> Floats:
        """Return (mean, sd, 0, inf) per component; mean and sd are of the normal before the cut."""
        fitted = self.gaussian.fit(values, weights, smoothing)
        sd: Floats = fitted[:, 1]
        mean: Floats = np.maximum(fitted[:, 0], LEAST_SD * self.column.sd)
        ratio = (sd / mean) ** 2
        cut: Floats = np.interp(ratio, self.ratios, self.cuts)
        spread = np.where(ratio > self.ratios[0], mean / (self._means_above(cut) - cut), sd)
        before = np.where(ratio > self.ratios[0], -cut * spread, mean)
        return np.stack([before, spread, np.zeros_like(mean), np.full_like(mean, np.inf)], axis=1)

    def log_density(self, values: Floats, params: Floats) -> Floats:
        """Return natural logs of cut normal densities, -inf below 0."""
        mean, sd = params[:, 0], params[:, 1]
        logs = self.gaussian.log_density(values, params[:, :2]) - _log_cdf(mean / sd)
        return np.where(values[:, None] >= 0.0, logs, -np.inf)

    def add(self, builder: CircuitBuilder, variable: int, params: Floats) -> int:
        """Add a truncated Gaussian leaf."""
        return builder.real("truncated_gaussian", variable, *params.tolist())


class Histogram(LeafFamily):
    """Piecewise constant densities, mixed with a wide normal of little weight so that no value is impossible.

    All components share the bars, each with about equally many rows.
    """

    name = "histogram"

    def __init__(self, values: Floats, rows_per_bar: float = 1.0) -> None:
        self.column = _Moments.of(values)
        n_bars = int(min(max(round((len(values) / rows_per_bar) ** 0.5), 2), MAX_BARS))
        margin = 0.05 * max(float(np.ptp(values)) if len(values) else 0.0, self.column.sd)
        cuts = np.quantile(values, np.linspace(0.0, 1.0, n_bars + 1)) if len(values) else np.array([-1.0, 1.0])
        edges = np.unique(np.concatenate([[cuts[0] - margin], cuts[1:-1], [cuts[-1] + margin]]))
        wide = np.diff(edges) > LEAST_SD * margin
        self.edges: Floats = edges[np.concatenate([[True], wide])] if wide[-1] else edges[[0, -1]]
        bins = self._bins(values)
        self.whole = np.bincount(bins[bins >= 0], minlength=len(self.edges) - 1) / max(len(values), 1)
        self.log_tail = -math.log(len(values) + 2.0)

    def _bins(self, values: Floats) -> NDArray[np.int64]:
        """Return the bar of each value, or -1; inner edges belong to the bar above."""
        bins = np.searchsorted(self.edges, values, side="right") - 1
        bins[values == self.edges[-1]] = len(self.edges) - 2
        return np.where(bins < len(self.edges) - 1, bins, -1).astype(np.int64)

    def fit(self, values: Floats, weights: Floats, smoothing: float) -> Floats:
        """Return the mass of each bar per component."""
        inside = np.zeros((len(self.edges), weights.shape[1]))
        np.add.at(inside, self._bins(values), weights)
        counts = inside[:-1] + smoothing * self.whole[:, None]
        totals = counts.sum(axis=0)
        shares = np.where(totals > 0.0, counts / np.maximum(totals, SMALLEST_NORMAL), self.whole[:, None])
        return np.ascontiguousarray(shares.T)

    def log_density(self, values: Floats, params: Floats) -> Floats:
        """Return natural logs of the densities of bars and tails together."""
        bins = self._bins(values)
        with np.errstate(divide="ignore"):
            logs = np.log(params.T / np.diff(self.edges)[:, None])[bins] + math.log1p(-math.exp(self.log_tail))
        logs[bins < 0] = -np.inf
        sd = TAIL_WIDTH * self.column.sd
        tail = -0.5 * ((values - self.column.mean) / sd) ** 2 - math.log(sd) - LOG_SQRT_2PI + self.log_tail
        return np.logaddexp(logs, tail[:, None])

    def add(self, builder: CircuitBuilder, variable: int, params: Floats) -> int:
        """Add the sum of bars and tail."""
        with np.errstate(divide="ignore"):
            logs: list[float] = np.log(params / params.sum()).tolist()
        bars = builder.histogram(variable, self.edges.tolist(), log_masses=logs)
        tail = builder.gaussian(variable, self.column.mean, TAIL_WIDTH * self.column.sd)
        return builder.sum([bars, tail], log_weights=[math.log1p(-math.exp(self.log_tail)), self.log_tail])


class Poisson(LeafFamily):
    """Poisson distributions of counts."""

    name = "poisson"

    def __init__(self, values: Floats) -> None:
        self.column = _Moments.of(values)
        self.least = 1.0 / (len(values) + 1.0)

    def fit(self, values: Floats, weights: Floats, smoothing: float) -> Floats:
        """Return the mean per component."""
        return np.maximum(self.column.means(values, weights, smoothing), self.least)[:, None]

    def log_density(self, values: Floats, params: Floats) -> Floats:
        """Return natural logs of probabilities, -inf where a value is no whole number from 0."""
        log_factorial = np.asarray(_special("gammaln")(np.maximum(values, 0.0) + 1.0), np.float64)
        logs = values[:, None] * np.log(params[:, 0]) - params[:, 0] - log_factorial[:, None]
        return np.where(is_count(values)[:, None], logs, -np.inf)

    def add(self, builder: CircuitBuilder, variable: int, params: Floats) -> int:
        """Add a Poisson leaf."""
        return builder.real("poisson", variable, float(params[0]))


class Geometric(LeafFamily):
    """Geometric distributions of counts: failures before the first success."""

    name = "geometric"

    def __init__(self, values: Floats) -> None:
        self.column = _Moments.of(values)
        self.least = 1.0 / (len(values) + 1.0)

    def fit(self, values: Floats, weights: Floats, smoothing: float) -> Floats:
        """Return the probability of a success per component."""
        return 1.0 / (1.0 + np.maximum(self.column.means(values, weights, smoothing), self.least)[:, None])

    def log_density(self, values: Floats, params: Floats) -> Floats:
        """Return natural logs of probabilities, -inf where a value is no whole number from 0."""
        p = params[:, 0]
        return np.where(is_count(values)[:, None], np.log(p) + values[:, None] * np.log1p(-p), -np.inf)

    def add(self, builder: CircuitBuilder, variable: int, params: Floats) -> int:
        """Add a geometric leaf."""
        return builder.real("geometric", variable, float(params[0]))


class States(LeafFamily):
    """Categorical distributions of positions."""

    name = "categorical"

    def __init__(self, values: Floats, n_states: int) -> None:
        self.n_states = n_states
        self.whole = (np.bincount(values.astype(np.int64), minlength=n_states) + 1.0) / (len(values) + n_states)

    def fit(self, values: Floats, weights: Floats, smoothing: float) -> Floats:
        """Return natural-log probabilities per component, shape (n_components, n_states)."""
        counts = np.eye(self.n_states)[values.astype(np.int64)].T @ weights + smoothing * self.whole[:, None]
        totals = counts.sum(axis=0)
        shares = np.where(totals > 0.0, counts / np.maximum(totals, SMALLEST_NORMAL), self.whole[:, None])
        with np.errstate(divide="ignore"):
            return np.log(shares.T)

    def log_density(self, values: Floats, params: Floats) -> Floats:
        """Return natural logs of probabilities."""
        return params.T[values.astype(np.int64)]

    def add(self, builder: CircuitBuilder, variable: int, params: Floats) -> int:
        """Add a categorical leaf."""
        return builder.categorical(variable, log_weights=params.tolist())


def is_count(values: Floats) -> NDArray[np.bool_]:
    """Return which values are whole numbers from 0."""
    return (values >= 0.0) & (values == np.rint(values))


def _special(name: str) -> Any:
    return vars(import_module("scipy.special"))[name]


def _log_cdf(x: Floats) -> Floats:
    return np.asarray(_special("log_ndtr")(x), np.float64)
