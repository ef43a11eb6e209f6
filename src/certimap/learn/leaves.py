"""Leaf families that a column may have, the choice among them by held-out rows, and bars for discrete learners.

Learners of discrete tables cut real columns into bars, which become piecewise uniform densities in the circuit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.circuits.leaves.gaussian import Gaussian
from certimap.circuits.leaves.geometric import Geometric
from certimap.circuits.leaves.kind import (
    ABOVE_ZERO,
    COUNTS,
    FROM_ZERO,
    LEAST_SD,
    LOG_SQRT_2PI,
    NUMBERS,
    SHARES,
    LeafFamily,
    is_count,
    leaf_kinds,
)
from certimap.circuits.leaves.poisson import Poisson
from certimap.core.arrays import Flags, Floats, Ints
from certimap.core.domain import Categorical, Domain, Real
from certimap.core.rounding import SMALLEST_NORMAL
from certimap.errors import DataError
from certimap.learn.table import MISSING, DataTable

MAX_BARS = 32
HELD_OUT = 5  # one row in so many is held out
SEEN = 3  # minimum rows per value: with rarer values, new ones would turn up later that labels cannot hold
PRIOR = 0.5  # pseudo-counts per label
RANGES = {NUMBERS: (-math.inf, math.inf), FROM_ZERO: (0.0, math.inf), ABOVE_ZERO: (SMALLEST_NORMAL, math.inf)}
RANGES[SHARES] = (SMALLEST_NORMAL, math.nextafter(1.0, 0.0))
TAIL_WIDTH = 3.0  # width of a histogram's tails, in standard deviations of the column


class Histogram(LeafFamily):
    """Constant densities on bars of about equally many rows, and a wide normal so that no value is impossible."""

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
        return np.ascontiguousarray(_shares(inside[:-1] + smoothing * self.whole[:, None], self.whole).T)

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
        with np.errstate(divide="ignore"):
            return np.log(_shares(counts, self.whole).T)

    def log_density(self, values: Floats, params: Floats) -> Floats:
        """Return natural logs of probabilities."""
        return params.T[values.astype(np.int64)]

    def add(self, builder: CircuitBuilder, variable: int, params: Floats) -> int:
        """Add a categorical leaf."""
        return builder.categorical(variable, log_weights=params.tolist())


def _shares(counts: Floats, otherwise: Floats) -> Floats:
    """Divide columns by their sums; a column of zeros becomes `otherwise`."""
    totals = counts.sum(axis=0)
    return np.where(totals > 0.0, counts / np.maximum(totals, SMALLEST_NORMAL), otherwise[:, None])


def are_labels(values: Floats) -> bool:
    """Return whether held-out values of a column of integers are clearly more probable as labels than as numbers.

    The lead over counts, bars and normal numbers must exceed its standard error; a density at an integer
    approximates the mass of the unit interval around it. Columns with a rare value are numbers.
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


def families_of(table: DataTable, i: int, wanted: Sequence[str] | None) -> list[LeafFamily]:
    """Return the families `wanted` (None: all) that column `i` may have, the plainest first; raises DataError."""
    values = table.observed(i)
    variable = table.domain.variables[i]
    if not isinstance(variable, Real):
        if wanted is not None:
            raise DataError(
                f"leaves names the column {variable.name!r}, which is categorical; name real columns and counts"
            )
        return [States(values, variable.n_states)]
    hint = table.whole.get(i)
    families = {kind.name: kind.family for kind in leaf_kinds().values() if kind.family is not None}
    families[Histogram.name] = Histogram
    if wanted is not None:
        names = [wanted] if isinstance(wanted, str) else [str(name) for name in wanted]
        for name in names:
            _check(name, families, variable.name, values)
    else:
        takes = [COUNTS] if hint == "count" or (hint == "whole" and np.all(is_count(values))) else []
        takes += [] if hint == "count" else [kind for kind in RANGES if np.all(_held(values, kind))]
        names = [name for kind in takes for name, family in families.items() if family.takes == kind]
    found, one = [families[name](values) for name in names], np.ones((len(values), 1))
    if wanted is not None:
        return found
    # at the end of their range, some have no density
    return [f for f in found if np.all(np.isfinite(f.log_density(values, f.fit(values, one, 1.0))))] or found[:1]


def densest(judged: Sequence[Floats]) -> int:
    """Return the index of the largest log densities: 0 unless another's mean lead exceeds its standard error."""
    best, lead = 0, 0.0
    for k, logs in enumerate(judged[1:], 1):
        with np.errstate(invalid="ignore"):
            gains = logs - judged[0]
        gains = np.where(np.isnan(gains), 0.0, gains)  # impossible under both
        mean = float(gains.mean())
        if mean > lead and (mean == np.inf or mean > float(gains.std()) / len(gains) ** 0.5):
            best, lead = k, mean
    return best


def options_of(table: DataTable, leaves: Mapping[str, Any] | None) -> list[list[LeafFamily]]:
    """Return the families of every column as `families_of` does, by the names in `leaves`, if any."""
    wanted = leaves or {}
    for name in wanted:
        if name not in table.domain:
            raise DataError(f"leaves names the column {name!r}, which the table does not have")
    return [families_of(table, i, wanted.get(name)) for i, name in enumerate(table.domain.names)]


def _held(values: Floats, takes: str) -> Flags:
    low, high = RANGES[takes]
    return (low <= values) & (values <= high)


def _check(name: str, families: Mapping[str, type[LeafFamily]], column: str, values: Floats) -> None:
    if name not in families:
        raise DataError(f"the leaves of column {column!r} are {name!r}; expected one of {', '.join(families)}")
    takes = families[name].takes
    held = is_count(values) if takes == COUNTS else _held(values, takes)
    if not np.all(held):
        raise DataError(f"column {column!r} holds {values[~held][0]:g}; {name} leaves take {takes}")


@dataclass(frozen=True, eq=False)
class Bars:
    """Bars into which the real columns of a table are cut at quantiles.

    A distribution over bars is a piecewise constant density over values, with the same likelihood up to the bars'
    widths. Learning over bars thus equals learning with histogram leaves exactly.
    """

    domain: Domain  # the variables as users know them
    cut: Domain  # the same with the numbers of bars as the states of real ones
    histograms: dict[int, Histogram]  # by real column

    @classmethod
    def of(cls, table: DataTable, rows_per_bar: float = 1.0) -> Bars:
        """Cut each real column into sqrt(rows / `rows_per_bar`) bars, 32 at most."""
        real = [i for i, v in enumerate(table.domain) if isinstance(v, Real)]
        histograms = {i: Histogram(table.observed(i), rows_per_bar) for i in real}
        variables = [
            Categorical(v.name, tuple(range(len(histograms[i].edges) - 1))) if i in histograms else v
            for i, v in enumerate(table.domain)
        ]
        return cls(table.domain, Domain(variables), histograms)

    def coded(self, table: DataTable) -> DataTable:
        """Replace values by bars; values outside all bars go to the nearest."""
        if not self.histograms:
            return table
        codes = np.empty(table.points.shape, np.int16)
        missing = table.missing
        for i in range(len(self.domain)):
            values = np.where(missing[:, i], 0.0, table.points[:, i])
            if i in self.histograms:
                edges = self.histograms[i].edges
                values = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
            codes[:, i] = np.where(missing[:, i], MISSING, values)
        return DataTable(self.cut, codes)

    def to_circuit(
        self, circuit: Circuit, leaves: Mapping[int, tuple[LeafFamily, Floats]] | None = None
    ) -> Circuit:
        """Turn a circuit over bars into one over values; leaves over bars become histograms with wide tails.

        `leaves`: in their place, a family for each real column, with the parameters of its leaves, in order.
        """
        if not self.histograms:
            return circuit
        builder = CircuitBuilder(self.domain)
        ids: list[int] = []
        given = {i: (family, iter(rows)) for i, (family, rows) in (leaves or {}).items()}
        for node in range(circuit.n_nodes):
            variable, params = int(circuit.leaf_var[node]), circuit.params_of(node)
            if variable in self.histograms:
                family, rows = given.get(variable, (self.histograms[variable], iter([np.exp(params)])))
                ids.append(family.add(builder, variable, next(rows)))
                continue
            below: list[int] = circuit.children_of(node).tolist()
            weights = circuit.log_weights[circuit.child_ptr[node] : circuit.child_ptr[node + 1]].tolist()
            ids.append(builder.add(int(circuit.kind[node]), [ids[c] for c in below], weights, variable, params))
        return builder.build(normalised=False)
