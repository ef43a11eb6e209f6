"""The recursion of LearnSPN (Gens and Domingos 2013): split variables that are independent, else rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from importlib import import_module
from typing import Any

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.circuits.leaves.family import LeafFamily
from certimap.core.arrays import Array, Flags, Floats, Floats32, Ints
from certimap.core.box import Points
from certimap.core.domain import Domain
from certimap.learn.clusters import Clusters, mix, row_clusters
from certimap.learn.estimator import is_late
from certimap.learn.kernels.rows import independent_components
from certimap.learn.table import DataTable, missing_in

REAL_BINS = 4
MAX_DOF = 1024


@dataclass(frozen=True)
class StructureSettings:
    """Settings of one run of the recursion; see `learnspn` for their meaning."""

    min_rows: int
    n_clusters: int
    clusters: Clusters


@dataclass(slots=True)
class _Region:
    """Rows and variables still to be modelled.

    `indicators` is float32, (n_rows, columns): for each categorical variable one column for each state
    but the first; `reals` is float64, (n_rows, number of real variables). `known` says which cells are, (n_rows,
    n_variables), None where all are; unknown ones hold 0 in `indicators` and NaN in `reals`.
    """

    node: int
    key: int
    variables: Ints
    indicators: Floats32
    reals: Floats
    known: Flags | None = None


class StructureLearner:
    """Learns sketches of one table at several thresholds, sharing the clusters that they have in common.

    Clusters are a function of the region's rows and variables (through its key), so two thresholds that
    agree down to a region cluster it once.
    """

    def __init__(
        self, table: DataTable, settings: StructureSettings, key: int, families: Mapping[int, LeafFamily]
    ) -> None:
        domain, points = table.domain, table.points
        self.domain = domain
        self.families = families
        self.settings = settings
        self.key = key
        self._labels: dict[int, Ints] = {}
        self._n_columns: Ints = np.maximum(domain.n_states - 1, 0)
        self._is_real = domain.n_states == 0
        self._wide = bool(np.any(domain.n_states > 2))
        n = np.arange(len(points) + 1, dtype=np.float64)
        self._x_log_x = n * np.log(np.maximum(n, 1.0))
        self._indicators = _indicators(domain, points)
        real = np.flatnonzero(self._is_real)
        self._reals: Floats = np.array(points[:, real], np.float64)
        missing = table.missing
        self._known = ~missing if missing.any() else None
        spread = np.array([table.observed(i).std() if len(table.observed(i)) else 0.0 for i in real.tolist()])
        self._scale = np.where(spread > 0, spread, 1.0)
        self._real_rank = np.cumsum(self._is_real) - 1

    def learn(self, threshold: float, deadline: float | None = None) -> Sketch:
        """Return the sketch for G-tests at a significance level.

        After `deadline` (of `time.monotonic`) the regions left become products of leaves.
        """
        critical = _critical_values(threshold)
        nodes = [SketchNode()]
        everything = np.arange(len(self.domain), dtype=np.int64)
        stack = [_Region(0, self.key, everything, self._indicators, self._reals, self._known)]
        while stack:
            region = stack.pop()
            if is_late(deadline) or len(region.variables) == 1 or len(region.indicators) < self.settings.min_rows:
                self._make_leaves(nodes[region.node], region, np.ones(len(region.variables), np.bool_))
                continue
            component, n_components = self._components(region, critical)
            if n_components > 1:
                self._split_variables(nodes, stack, region, component, n_components)
            else:
                self._split_rows(nodes, stack, region)
        return Sketch(self.domain, nodes, self.families)

    def _components(self, region: _Region, critical: Floats) -> tuple[Ints, int]:
        n_states = self.domain.n_states[region.variables]
        indicators = region.indicators
        if region.reals.shape[1]:
            n_states = np.where(n_states == 0, REAL_BINS, n_states)
            indicators = self._with_bins(region)
        if region.known is not None:
            return components_of_known(indicators, n_states, region.known, critical)
        first = np.concatenate([[0], np.cumsum(n_states - 1)[:-1]]).astype(np.int64)
        pair_counts = indicators.T @ indicators
        component = np.empty(len(n_states), np.int64)
        n = len(indicators)
        count = independent_components(pair_counts, first, n_states, n, self._x_log_x, critical, component)
        return component, count

    def _with_bins(self, region: _Region) -> Floats32:
        """Return the indicators of all variables in order, real ones cut at their quartiles here."""
        parts: list[Floats32] = []
        column, real = 0, 0
        for variable in region.variables:
            width = int(self._n_columns[variable])
            if width or not self._is_real[variable]:
                parts.append(region.indicators[:, column : column + width])
                column += width
                continue
            values = region.reals[:, real]
            known = values[~np.isnan(values)]
            cuts = np.quantile(known if len(known) else np.zeros(1), np.arange(1, REAL_BINS) / REAL_BINS)
            bins = np.searchsorted(cuts, values, side="right")
            chosen = (bins[:, None] == np.arange(1, REAL_BINS)) & ~np.isnan(values)[:, None]
            parts.append(chosen.astype(np.float32))
            real += 1
        return np.ascontiguousarray(np.hstack(parts))

    def _split_variables(
        self, nodes: list[SketchNode], stack: list[_Region], region: _Region, component: Ints, count: int
    ) -> None:
        sizes = np.bincount(component, minlength=count)
        self._make_leaves(nodes[region.node], region, sizes[component] == 1)
        column_component = np.repeat(component, self._n_columns[region.variables])
        real_component = component[self._is_real[region.variables]]
        for c in np.flatnonzero(sizes > 1):
            variables = region.variables[component == c]
            digest = int.from_bytes(blake2b(variables.tobytes(), digest_size=8).digest(), "little")
            columns = np.ascontiguousarray(region.indicators[:, column_component == c])
            known = None if region.known is None else region.known[:, component == c]
            reals = region.reals[:, real_component == c]
            stack.append(_Region(_child(nodes, region), mix(region.key, digest), variables, columns, reals, known))

    def _split_rows(self, nodes: list[SketchNode], stack: list[_Region], region: _Region) -> None:
        labels = self._labels.get(region.key)
        if labels is None:
            settings = self.settings
            labels = row_clusters(self._features(region), settings.n_clusters, settings.clusters, region.key)
            self._labels[region.key] = labels
        sizes = np.bincount(labels)
        if len(sizes) < 2:
            self._make_leaves(nodes[region.node], region, np.ones(len(region.variables), np.bool_))
            return
        node = nodes[region.node]
        node.weights = []
        for c, size in enumerate(sizes.tolist()):
            rows = np.flatnonzero(labels == c)
            known = None if region.known is None else region.known[rows]
            parts = region.variables, region.indicators[rows], region.reals[rows], known
            stack.append(_Region(_child(nodes, region), mix(region.key, c), *parts))
            node.weights.append(float(size))

    def _features(self, region: _Region) -> Floats32:
        """Return what rows are clustered on: 0/1 columns and standardised real ones; missing cells at the mean."""
        indicators = region.indicators
        if region.known is not None:
            indicators = self._filled(region)
        parts: list[Array] = [indicators]
        if self._wide:  # with more than two states, the first one needs a column of its own
            start = 0
            for width in self._n_columns[region.variables].tolist():
                if width > 1:
                    parts.append(1.0 - indicators[:, start : start + width].sum(axis=1, keepdims=True))
                start += width
        if region.reals.shape[1]:
            real = region.variables[self._is_real[region.variables]]
            reals = region.reals
            if region.known is not None:
                known = ~np.isnan(reals)
                means = np.where(known, reals, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
                reals = np.where(known, reals, means)
            parts.append(reals / self._scale[self._real_rank[real]])
        return np.ascontiguousarray(np.hstack(parts), np.float32) if len(parts) > 1 else indicators

    def _filled(self, region: _Region) -> Floats32:
        """Return the indicators with the shares of the states in place of missing cells."""
        assert region.known is not None
        known = np.repeat(region.known, self._n_columns[region.variables], axis=1)
        shares = region.indicators.sum(axis=0) / np.maximum(known.sum(axis=0), 1)
        return np.where(known, region.indicators, shares).astype(np.float32)

    def _make_leaves(self, node: SketchNode, region: _Region, chosen: Flags) -> None:
        variables = region.variables
        node.leaves = variables[chosen]
        n_rows = float(len(region.indicators))
        n_known = (
            np.full(len(variables), n_rows) if region.known is None else region.known.sum(axis=0, dtype=float)
        )
        counts = region.indicators.sum(axis=0, dtype=np.float64)
        column, real = 0, 0
        for variable, wanted, n in zip(variables.tolist(), chosen.tolist(), n_known.tolist(), strict=True):
            if self._is_real[variable]:
                if wanted:
                    values = region.reals[:, real]
                    node.statistics.append(values[~np.isnan(values)])
                real += 1
                continue
            width = int(self._n_columns[variable])
            if wanted:
                some = counts[column : column + width]
                node.statistics.append(np.concatenate([[n - some.sum()], some]))
            column += width


def _child(nodes: list[SketchNode], region: _Region) -> int:
    """Add a node below a region's; return its number."""
    nodes[region.node].children.append(len(nodes))
    nodes.append(SketchNode())
    return len(nodes) - 1


def _indicators(domain: Domain, points: Points) -> Floats32:
    columns: list[Floats32] = [
        np.equal(points[:, i, None], np.arange(1, k)).astype(np.float32)
        for i, k in enumerate(int(size) for size in domain.n_states)
        if k
    ]
    if not columns:
        return np.empty((len(points), 0), np.float32)
    return np.ascontiguousarray(np.hstack(columns))


def _critical_values(threshold: float) -> Floats:
    """Return the G value that has probability `threshold` under independence, by degrees of freedom."""
    from scipy.special import chdtri

    inverse: Any = chdtri
    return np.asarray(inverse(np.maximum(np.arange(MAX_DOF + 1), 1), threshold), np.float64)


def components_of_known(indicators: Floats32, n_states: Ints, known: Flags, critical: Floats) -> tuple[Ints, int]:
    """Return the connected component of each variable in the graph of dependent pairs, and their number.

    `indicators`: shape (n_rows, columns): per variable, one column per state except the first; 0 where it is
    missing. `n_states`: states of each variable, at least 1. `known`: known cells, shape (n_rows, n_variables).
    `critical`: G values above which a pair is dependent, by degrees of freedom; the last entry serves all higher
    ones. Degrees of freedom count only states that occur in the pair's rows. Cost: rows times squared columns.
    """
    every = np.repeat(np.arange(len(n_states)), n_states)
    first = np.cumsum(n_states) - n_states
    columns = np.empty((len(indicators), len(every)), np.float32)
    own = np.ones(len(every), np.bool_)
    own[first] = False
    columns[:, own] = indicators
    for i, start in enumerate(first.tolist()):
        columns[:, start] = known[:, i] - columns[:, start + 1 : start + int(n_states[i])].sum(axis=1)
    joint = (columns.T @ columns).astype(np.float64)
    left = np.add.reduceat(joint, first, axis=1)  # occurrences of each state in rows that know the other variable
    totals = np.add.reduceat(left, first, axis=0)
    terms = np.add.reduceat(np.add.reduceat(_x_log_x(joint), first, axis=0), first, axis=1)
    margins = np.add.reduceat(_x_log_x(left), first, axis=0)
    g = 2.0 * (terms - margins - margins.T + _x_log_x(totals))
    seen = np.add.reduceat((left > 0.0).astype(np.int64), first, axis=0)
    dof = np.minimum(np.maximum(seen - 1, 0) * np.maximum(seen.T - 1, 0), len(critical) - 1)
    csgraph: Any = import_module("scipy.sparse.csgraph")
    count, labels = csgraph.connected_components((g > critical[dof]) & (dof > 0), directed=False)
    return np.asarray(labels, np.int64), int(count)


def _x_log_x(x: Floats) -> Floats:
    return x * np.log(np.maximum(x, 1.0))


LOWEST = -1e6  # replaces ln 0 while settings are compared: matrix products cannot hold infinities


@dataclass(slots=True)
class SketchNode:
    """A sum (with weights) or a product (of inner children and leaves).

    `children`: ids of inner children; larger than the node's own. `weights`: for a sum, the number of rows behind
    each child. `leaves`: for a product, the variables of its leaves. `statistics`: for each leaf, the counts of
    its states, or the values of its real variable in its rows.
    """

    children: list[int] = field(default_factory=lambda: [])
    weights: list[float] | None = None
    leaves: Ints | None = None
    statistics: list[Floats] = field(default_factory=lambda: [])


@dataclass
class Sketch:
    """Nodes, parents before children, node 0 the root; leaves are fitted and smoothed on reading.

    `families`: the family of leaves of each real variable.
    """

    domain: Domain
    nodes: list[SketchNode]
    families: Mapping[int, LeafFamily] = field(default_factory=dict[int, LeafFamily])

    def leaf_log_params(self, node: SketchNode, smoothing: float) -> list[Floats]:
        """Return natural-log probabilities, or the parameters of its family, for each leaf."""
        out: list[Floats] = []
        assert node.leaves is not None
        for variable, counts in zip(node.leaves, node.statistics, strict=True):
            if self.domain.n_states[variable] == 0:
                out.append(self.real_params(int(variable), counts, smoothing))
                continue
            smoothed = counts + smoothing
            with np.errstate(divide="ignore"):
                out.append(np.log(smoothed / smoothed.sum()))
        return out

    def real_params(self, variable: int, values: Floats, smoothing: float) -> Floats:
        """Return the parameters of a real leaf; without known values, those of a leaf for the whole column."""
        weights = np.ones((len(values), 1))
        return self.families[variable].fit(values, weights, smoothing if len(values) else max(smoothing, 1.0))[0]

    def evaluator(self, points: Points) -> Callable[[float], Floats]:
        """Prepare rows; the returned function gives the log-likelihoods of their known cells for a smoothing."""
        return _Evaluator(self, points)

    def to_circuit(self, smoothing: float) -> Circuit:
        """Return the circuit; `smoothing` pseudo-counts are added to every state of every leaf."""
        builder = CircuitBuilder(self.domain)
        ids: dict[int, int] = {}
        for i in range(len(self.nodes) - 1, -1, -1):
            node = self.nodes[i]
            inner = [ids[c] for c in node.children]
            if node.weights is not None:
                total = sum(node.weights)
                ids[i] = builder.sum(inner, log_weights=[math.log(w / total) for w in node.weights])
                continue
            if node.leaves is not None:
                params = self.leaf_log_params(node, smoothing)
                for variable, values in zip(node.leaves.tolist(), params, strict=True):
                    if self.domain.n_states[variable]:
                        inner.append(builder.categorical(variable, log_weights=values.tolist()))
                    else:
                        inner.append(self.families[variable].add(builder, variable, values))
            ids[i] = inner[0] if len(inner) == 1 else builder.product(inner)
        return builder.build(normalised=False)


class _Evaluator:
    """Log-likelihoods of rows: all leaf products at once as matrix products, then the inner nodes.

    Single precision inside: about six digits, enough to compare settings.
    """

    def __init__(self, sketch: Sketch, points: Points) -> None:
        self.sketch = sketch
        self.n_rows = len(points)
        self.points = points
        domain = sketch.domain
        self.one_hot = np.zeros((domain.total_states, len(points)), np.float32)
        rows = np.arange(len(points))
        for i in np.flatnonzero(domain.n_states).tolist():
            known = rows[~missing_in(points[:, i])]
            self.one_hot[domain.offsets[i] + points[known, i].astype(np.int64), known] = 1.0
        nodes = sketch.nodes
        owned = [(i, node.leaves) for i, node in enumerate(nodes) if node.leaves is not None and len(node.leaves)]
        self.owners = [i for i, _ in owned]
        leaves = [held for _, held in owned]
        variables = np.concatenate(leaves)
        ranks = np.repeat(np.arange(len(leaves)), [len(v) for v in leaves])
        discrete = domain.n_states[variables] > 0
        statistics = [values for i in self.owners for values in nodes[i].statistics]
        sizes = domain.n_states[variables[discrete]]
        self.starts = np.cumsum(sizes) - sizes
        self.sizes = sizes
        self.counts = np.concatenate([np.empty(0), *(statistics[k] for k in np.flatnonzero(discrete))])
        within = np.arange(len(self.counts)) - np.repeat(self.starts, sizes)
        self.columns = np.repeat(domain.offsets[variables[discrete]], sizes) + within
        self.ranks = np.repeat(ranks[discrete], sizes)
        self.reals = [(int(ranks[k]), int(variables[k]), statistics[k]) for k in np.flatnonzero(~discrete)]

    def __call__(self, smoothing: float) -> Floats:
        nodes = self.sketch.nodes
        values: dict[int, Floats32] = {}
        leaves = self._leaf_products(smoothing)
        for i in range(len(nodes) - 1, -1, -1):
            node = nodes[i]
            if node.weights is not None:
                total = sum(node.weights)
                values[i] = np.logaddexp.reduce(
                    [values.pop(c) + math.log(w / total) for c, w in zip(node.children, node.weights, strict=True)]
                )
                continue
            value = leaves.pop(i) if i in leaves else np.zeros(self.n_rows, np.float32)
            for c in node.children:
                value += values.pop(c)
            values[i] = value
        return values[0].astype(np.float64)

    def _leaf_products(self, smoothing: float) -> dict[int, Floats32]:
        """Return ln of the product of leaves for each node with leaves, shape (n_rows,) each."""
        smoothed = self.counts + smoothing
        totals = np.add.reduceat(smoothed, self.starts) if len(self.starts) else np.empty(0)
        with np.errstate(divide="ignore"):
            logs = np.maximum(np.log(smoothed) - np.repeat(np.log(totals), self.sizes), LOWEST)
        products = np.empty((len(self.owners), self.n_rows), np.float32)
        for start in range(0, len(self.owners), 512):
            stop = min(start + 512, len(self.owners))
            some = slice(*np.searchsorted(self.ranks, [start, stop]))
            log_params = np.zeros((stop - start, len(self.one_hot)), np.float32)
            log_params[self.ranks[some] - start, self.columns[some]] = logs[some]
            np.matmul(log_params, self.one_hot, out=products[start:stop])
        for rank, variable, values in self.reals:
            known = np.flatnonzero(~missing_in(self.points[:, variable]))
            params = self.sketch.real_params(variable, values, smoothing)
            log_densities = self.sketch.families[variable].log_density(self.points[known, variable], params[None])
            products[rank, known] += np.maximum(log_densities[:, 0], LOWEST)
        return dict(zip(self.owners, products, strict=True))
