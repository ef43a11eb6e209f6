"""Families of columns that are no leaf kind: histograms, states; and which columns of integers are labels."""

from __future__ import annotations

import math

import numpy as np

from certimap.circuits.circuit import CircuitBuilder
from certimap.circuits.leaves.family import LEAST_SD, LOG_SQRT_2PI, LeafFamily, is_count
from certimap.circuits.leaves.gaussian import Gaussian
from certimap.circuits.leaves.geometric import Geometric
from certimap.circuits.leaves.poisson import Poisson
from certimap.core.arrays import Floats, Ints
from certimap.core.rounding import SMALLEST_NORMAL

MAX_BARS = 32
TAIL_WIDTH = 3.0  # width of a histogram's tails, in standard deviations of the column


class Histogram(LeafFamily):
    """Piecewise constant densities, mixed with a wide normal of little weight so that no value is impossible.

    All components share the bars, each with about equally many rows.
    """

    name = "histogram"

    def __init__(self, values: Floats, rows_per_bar: float = 1.0) -> None:
        super().__init__(values)
        n_bars = int(min(max(round((len(values) / rows_per_bar) ** 0.5), 2), MAX_BARS))
        margin = 0.05 * max(float(np.ptp(values)) if len(values) else 0.0, self.column.sd)
        cuts = np.quantile(values, np.linspace(0.0, 1.0, n_bars + 1)) if len(values) else np.array([-1.0, 1.0])
        edges = np.unique(np.concatenate([[cuts[0] - margin], cuts[1:-1], [cuts[-1] + margin]]))
        wide = np.diff(edges) > LEAST_SD * margin
        self.edges: Floats = edges[np.concatenate([[True], wide])] if wide[-1] else edges[[0, -1]]
        bins = self._bins(values)
        self.whole = np.bincount(bins[bins >= 0], minlength=len(self.edges) - 1) / max(len(values), 1)
        self.log_tail = -math.log(len(values) + 2.0)

    def _bins(self, values: Floats) -> Ints:
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


HELD_OUT = 5  # one row in so many is held out
SEEN = 3  # minimum rows per value: with rarer values, new ones would turn up later that labels cannot hold
PRIOR = 0.5  # pseudo-counts per label


def are_labels(values: Floats) -> bool:
    """Return whether held-out values are more probable as labels than as counts, bars or normal numbers.

    The lead must exceed the standard error of the difference. A density at an integer approximates the mass of the
    unit interval around it. Columns with a rare value are numbers. Equal values give equal answers. `values`: the
    known cells of a column of integers.
    """
    order = np.random.default_rng(0).permutation(len(values))
    kept, held = values[order[len(values) // HELD_OUT :]], values[order[: len(values) // HELD_OUT]]
    labels, rows = np.unique(values, return_counts=True)
    if not len(held) or rows.min() < SEEN:
        return False
    counts = np.bincount(np.searchsorted(labels, kept), minlength=len(labels)) + PRIOR
    as_labels = np.log(counts / counts.sum())[np.searchsorted(labels, held)]
    families: list[LeafFamily] = [Histogram(kept), Gaussian(kept)]
    if np.all(is_count(values)):
        families += [Poisson(kept), Geometric(kept)]
    one = np.ones((len(kept), 1))
    judged = [family.log_density(held, family.fit(kept, one, 1.0))[:, 0] for family in families]
    gains = as_labels - max(judged, key=lambda logs: float(logs.mean()))
    return float(gains.mean()) > float(gains.std()) / len(gains) ** 0.5
