"""The recursion of LearnSPN (Gens and Domingos 2013): split variables that are independent, else rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.core.box import Points
from certimap.core.domain import Domain
from certimap.learn.clusters import Clusters, mix, row_clusters
from certimap.learn.estimator import is_late
from certimap.learn.kernels.rows import independent_components
from certimap.learn.known_pairs import components_of_known
from certimap.learn.leaf_families import LeafFamily
from certimap.learn.sketch import Sketch, SketchNode
from certimap.learn.table import DataTable

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
    variables: NDArray[np.int64]
    indicators: NDArray[np.float32]
    reals: NDArray[np.float64]
    known: NDArray[np.bool_] | None = None


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
        self._labels: dict[int, NDArray[np.int64]] = {}
        self._n_columns: NDArray[np.int64] = np.maximum(domain.n_states - 1, 0)
        self._is_real = domain.n_states == 0
        self._wide = bool(np.any(domain.n_states > 2))
        n = np.arange(len(points) + 1, dtype=np.float64)
        self._x_log_x = n * np.log(np.maximum(n, 1.0))
        self._indicators = _indicators(domain, points)
        real = np.flatnonzero(self._is_real)
        self._reals: NDArray[np.float64] = np.array(points[:, real], np.float64)
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

    # ------------------------------------------------------------ independence

    def _components(self, region: _Region, critical: NDArray[np.float64]) -> tuple[NDArray[np.int64], int]:
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

    def _with_bins(self, region: _Region) -> NDArray[np.float32]:
        """Return the indicators of all variables in order, real ones cut at their quartiles here."""
        parts: list[NDArray[np.float32]] = []
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
        self,
        nodes: list[SketchNode],
        stack: list[_Region],
        region: _Region,
        component: NDArray[np.int64],
        count: int,
    ) -> None:
        sizes = np.bincount(component, minlength=count)
        self._make_leaves(nodes[region.node], region, sizes[component] == 1)
        column_component = np.repeat(component, self._n_columns[region.variables])
        real_component = component[self._is_real[region.variables]]
        for c in np.flatnonzero(sizes > 1):
            variables = region.variables[component == c]
            digest = int.from_bytes(blake2b(variables.tobytes(), digest_size=8).digest(), "little")
            child = _Region(
                len(nodes),
                mix(region.key, digest),
                variables,
                np.ascontiguousarray(region.indicators[:, column_component == c]),
                region.reals[:, real_component == c],
                None if region.known is None else region.known[:, component == c],
            )
            nodes[region.node].children.append(child.node)
            nodes.append(SketchNode())
            stack.append(child)

    # ------------------------------------------------------------ clusters of rows

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
            child = _Region(
                len(nodes),
                mix(region.key, c),
                region.variables,
                region.indicators[rows],
                region.reals[rows],
                None if region.known is None else region.known[rows],
            )
            node.children.append(child.node)
            node.weights.append(float(size))
            nodes.append(SketchNode())
            stack.append(child)

    def _features(self, region: _Region) -> NDArray[np.float32]:
        """Return what rows are clustered on: 0/1 columns and standardised real ones; missing cells at the mean."""
        indicators = region.indicators
        if region.known is not None:
            indicators = self._filled(region)
        parts: list[NDArray[Any]] = [indicators]
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

    def _filled(self, region: _Region) -> NDArray[np.float32]:
        """Return the indicators with the shares of the states in place of missing cells."""
        assert region.known is not None
        known = np.repeat(region.known, self._n_columns[region.variables], axis=1)
        shares = region.indicators.sum(axis=0) / np.maximum(known.sum(axis=0), 1)
        return np.where(known, region.indicators, shares).astype(np.float32)

    # ------------------------------------------------------------ leaves

    def _make_leaves(self, node: SketchNode, region: _Region, chosen: NDArray[np.bool_]) -> None:
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


def _indicators(domain: Domain, points: Points) -> NDArray[np.float32]:
    columns: list[NDArray[np.float32]] = [
        np.equal(points[:, i, None], np.arange(1, k)).astype(np.float32)
        for i, k in enumerate(int(size) for size in domain.n_states)
        if k
    ]
    if not columns:
        return np.empty((len(points), 0), np.float32)
    return np.ascontiguousarray(np.hstack(columns))


def _critical_values(threshold: float) -> NDArray[np.float64]:
    """Return the G value that has probability `threshold` under independence, by degrees of freedom."""
    from scipy.special import chdtri

    inverse: Any = chdtri
    return np.asarray(inverse(np.maximum(np.arange(MAX_DOF + 1), 1), threshold), np.float64)
