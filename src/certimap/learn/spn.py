"""LearnSPN: sum-product networks whose structure follows the data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from importlib import import_module
from itertools import product
from typing import Any, ClassVar, Literal, NamedTuple, Unpack

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.circuits.leaves.kind import LeafFamily, special
from certimap.core.arguments import keywords_hinted
from certimap.core.arrays import Array, Flags, Floats, Floats32, Ints
from certimap.core.box import Points
from certimap.core.domain import Domain
from certimap.core.logs import log_of
from certimap.core.progress import Progress
from certimap.errors import DataError
from certimap.learn.clusters import Clusterer, Clusters, check_clusters, mix, row_clusters
from certimap.learn.estimator import (
    DensityEstimator,
    LearnerSettings,
    Seed,
    is_late,
    learned_by,
    several,
    single_threaded_blas,
    split_rows,
)
from certimap.learn.kernels.rows import independent_components
from certimap.learn.leaves import densest, options_of
from certimap.learn.table import DataTable, missing_in, one_hot

THRESHOLDS = (0.05, 0.01, 1e-3, 1e-5, 1e-7, 1e-10)
SMOOTHINGS = (0.01, 0.1, 0.5, 1.0)
HELD_OUT = 0.1
REAL_BINS = 4
MAX_DOF = 1024
LOWEST = -1e6  # replaces ln 0 while settings are compared: matrix products cannot hold infinities

Names = Literal["kmeans", "em", "sklearn"]


class SettingsChoice(NamedTuple):
    """Settings tried by LearnSPN, and the mean natural-log likelihood of the validation rows, if any."""

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

    - `threshold`: significance level of the G-tests in (0, 1), or several to choose from; smaller ones find more
      independence.
    - `smoothing`: pseudo-counts added to every state of a leaf (Laplace), or several to choose from; for real
      columns, pseudo-rows distributed like the whole column.
    - `leaves`: families of real columns, as in `ProductMixture`. Validation rows choose among several.
    - `min_rows`: regions with fewer rows become products of leaves; or several numbers to choose from.
    - `n_clusters`: maximum number of clusters per split of rows, or several numbers to choose from.
    - `clusters`: "kmeans", "em", "sklearn" (scikit-learn's KMeans), or a scikit-learn clusterer.
    - `kinds`: overrules which columns are "categorical", "real", "count" or "day"; see `certimap.learn.table`.
    - `domain`: the variables and their states; by default they are read off the table.
    - `random_state`: seed or generator. With "kmeans" and "em", equal seeds give equal models whatever the
      threads.
    - `time_limit`: seconds; regions not yet learned then become products of leaves.
    - `progress`: whether to show progress; None means on a terminal.

    `model_`: the `Circuit`. `choice_`, `choices_`: the settings chosen, with the validation log-likelihood, and
    all that were tried. `leaves_`: the family of each real column.

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
    ranges: ClassVar[str] = "threshold (0, 1); smoothing [0, inf); min_rows [1, inf); n_clusters [2, inf)"

    def _fit(self, table: Any, valid: Any, domain: Domain | None) -> None:
        check_clusters(self.clusters)
        grid = list(product(several(self.min_rows), several(self.n_clusters), several(self.threshold)))
        self._smoothings: list[float] = several(self.smoothing)
        rows, held_out = self._read(table, valid, domain)
        options = enumerate(options_of(rows, self.leaves))
        self._options = {i: some for i, some in options if rows.domain.n_states[i] == 0}
        train = rows
        is_open = len(grid) * len(self._smoothings) > 1
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

    def _learner(
        self, table: DataTable, choice: SettingsChoice, families: Mapping[int, LeafFamily]
    ) -> StructureLearner:
        sizes = int(choice.min_rows), int(choice.n_clusters)
        return StructureLearner(table, *sizes, self.clusters, self._key, families)

    def _choose(self, train: DataTable, held_out: DataTable | None, grid: list[tuple[int, int, float]]) -> Sketch:
        """Try all settings, keep the best sketch, and record the choices."""
        self.choices_: list[SettingsChoice] = []
        best: tuple[float, Sketch, SettingsChoice] | None = None
        learner, learner_for = None, None
        plain = {i: some[0] for i, some in self._options.items()}
        with Progress("LearnSPN", len(grid), self.progress) as bar:
            for min_rows, n_clusters, threshold in grid:
                if best is not None and self._is_late():
                    break
                trial = SettingsChoice(threshold, self._smoothings[0], min_rows, n_clusters, None)
                if learner is None or learner_for != (min_rows, n_clusters):
                    learner, learner_for = self._learner(train, trial, plain), (min_rows, n_clusters)
                sketch = learner.learn(threshold, self._deadline)
                choices = [trial]
                if held_out is not None:
                    evaluate = _Evaluator(sketch, held_out.points)
                    worth = {s: float(np.mean(evaluate(s))) for s in self._smoothings}
                    choices = [trial._replace(smoothing=s, log_likelihood=worth[s]) for s in self._smoothings]
                for choice in choices:
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
        open_ones = {i: some for i, some in self._options.items() if len(some) > 1}
        for i, some in open_ones.items():
            if not self._is_late():
                tried = [replace(sketch, families={**sketch.families, i: family}) for family in some]
                judged = [_Evaluator(trial, held_out.points)(self.choice_.smoothing) for trial in tried]
                sketch = tried[densest(judged)]
        if open_ones:
            value = float(np.mean(_Evaluator(sketch, held_out.points)(self.choice_.smoothing)))
            self.choice_ = self.choice_._replace(log_likelihood=value)
        return sketch


@keywords_hinted(DataError, "LearnSPN")
def learnspn(data: Any, *, valid: Any = None, rng: Seed = None, **settings: Unpack[LearnerSettings]) -> Circuit:
    """Learn a sum-product network; see `LearnSPN`.

    `data`: a table (see `certimap.learn.table`), or a `Dataset`. `valid`: rows that choose the settings; by
    default a tenth of the rows. `rng`: seed or generator. `settings`: parameters of `LearnSPN`. Raises DataError
    for an empty table, columns that leaves cannot hold, or settings out of range.
    """
    return learned_by(LearnSPN, data, valid, rng, **settings).model_


@dataclass(slots=True)
class _Region:
    """Rows and variables still to be modelled; unknown cells hold 0 in `indicators` and NaN in `reals`."""

    node: int
    key: int
    variables: Ints
    indicators: Floats32  # (n_rows, columns): for each categorical variable a column for each state but the first
    reals: Floats  # (n_rows, number of real variables)
    known: Flags | None = None  # which cells are, (n_rows, n_variables); None where all are


class StructureLearner:
    """Learns sketches of one table at several thresholds: the recursion of Gens and Domingos.

    Clusters are a function of the region's rows and variables (through its key), so two thresholds that agree down
    to a region cluster it once. `min_rows`, `n_clusters` and `clusters` are as in `LearnSPN`.
    """

    def __init__(
        self,
        table: DataTable,
        min_rows: int,
        n_clusters: int,
        clusters: Clusters,
        key: int,
        families: Mapping[int, LeafFamily],
    ) -> None:
        domain, points = table.domain, table.points
        self.domain, self.families, self.key, self.min_rows = domain, families, key, min_rows
        self.n_clusters, self.clusters = n_clusters, clusters
        self._labels: dict[int, Ints] = {}
        self._n_columns: Ints = np.maximum(domain.n_states - 1, 0)
        self._is_real = domain.n_states == 0
        self._wide = bool(np.any(domain.n_states > 2))
        n = np.arange(len(points) + 1, dtype=np.float64)
        self._x_log_x = n * np.log(np.maximum(n, 1.0))
        others = np.ones(domain.total_states, np.bool_)
        others[domain.offsets[:-1][~self._is_real]] = False  # the first state of each variable
        self._indicators = np.ascontiguousarray(one_hot(domain, points)[:, others])
        real = np.flatnonzero(self._is_real)
        self._reals: Floats = np.array(points[:, real], np.float64)
        missing = table.missing
        self._known = ~missing if missing.any() else None
        columns = [table.observed(i) for i in real.tolist()]
        spread = np.array([column.std() if len(column) else 0.0 for column in columns])
        self._scale = np.where(spread > 0, spread, 1.0)
        self._real_rank = np.cumsum(self._is_real) - 1

    def learn(self, threshold: float, deadline: float | None = None) -> Sketch:
        """Return the sketch for G-tests at a significance level; after the deadline regions become leaves."""
        critical = _critical_values(threshold)
        nodes = [SketchNode()]
        everything = np.arange(len(self.domain), dtype=np.int64)
        stack = [_Region(0, self.key, everything, self._indicators, self._reals, self._known)]
        while stack:
            region = stack.pop()
            if is_late(deadline) or len(region.variables) == 1 or len(region.indicators) < self.min_rows:
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
        parts = self._by_variable(region, region.indicators)
        for rank, k in enumerate(np.flatnonzero(self._is_real[region.variables]).tolist()):
            values = region.reals[:, rank]
            known = values[~np.isnan(values)]
            cuts = np.quantile(known if len(known) else np.zeros(1), np.arange(1, REAL_BINS) / REAL_BINS)
            bins = np.searchsorted(cuts, values, side="right")
            chosen = (bins[:, None] == np.arange(1, REAL_BINS)) & ~np.isnan(values)[:, None]
            parts[k] = chosen.astype(np.float32)
        return np.ascontiguousarray(np.hstack(parts))

    def _by_variable(self, region: _Region, columns: Floats32) -> list[Floats32]:
        """Return the columns of each variable of a region; none of real ones."""
        return np.split(columns, np.cumsum(self._n_columns[region.variables])[:-1], axis=1)

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
            parts = variables, columns, region.reals[:, real_component == c], known
            stack.append(_Region(_child(nodes, region), mix(region.key, digest), *parts))

    def _split_rows(self, nodes: list[SketchNode], stack: list[_Region], region: _Region) -> None:
        labels = self._labels.get(region.key)
        if labels is None:
            labels = row_clusters(self._features(region), self.n_clusters, self.clusters, region.key)
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
        indicators = region.indicators if region.known is None else self._filled(region, region.known)
        parts: list[Array] = [indicators]
        if self._wide:  # with more than two states, the first one needs a column of its own
            each = self._by_variable(region, indicators)
            parts += [1.0 - own.sum(axis=1, keepdims=True) for own in each if own.shape[1] > 1]
        if region.reals.shape[1]:
            real = region.variables[self._is_real[region.variables]]
            reals = region.reals
            if region.known is not None:
                known = ~np.isnan(reals)
                means = np.where(known, reals, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
                reals = np.where(known, reals, means)
            parts.append(reals / self._scale[self._real_rank[real]])
        return np.ascontiguousarray(np.hstack(parts), np.float32) if len(parts) > 1 else indicators

    def _filled(self, region: _Region, is_known: Flags) -> Floats32:
        """Return the indicators with the shares of the states in place of missing cells."""
        known = np.repeat(is_known, self._n_columns[region.variables], axis=1)
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
        is_real, widths = self._is_real[variables], self._n_columns[variables]
        ranks, ends = np.cumsum(is_real) - 1, np.cumsum(widths)
        for k in np.flatnonzero(chosen).tolist():
            if is_real[k]:
                values = region.reals[:, ranks[k]]
                node.statistics.append(values[~np.isnan(values)])
            else:
                some = counts[ends[k] - widths[k] : ends[k]]
                node.statistics.append(np.concatenate([[n_known[k] - some.sum()], some]))


def _child(nodes: list[SketchNode], region: _Region) -> int:
    """Add a node below a region's; return its number."""
    nodes[region.node].children.append(len(nodes))
    nodes.append(SketchNode())
    return len(nodes) - 1


def _critical_values(threshold: float) -> Floats:
    """Return the G value that has probability `threshold` under independence, by degrees of freedom."""
    return np.asarray(special("chdtri")(np.maximum(np.arange(MAX_DOF + 1), 1), threshold), np.float64)


def components_of_known(indicators: Floats32, n_states: Ints, known: Flags, critical: Floats) -> tuple[Ints, int]:
    """Return the connected component of each variable in the graph of dependent pairs, and their number.

    `indicators` and `known` are as in a region. A pair is dependent where its G value exceeds the critical one of
    its degrees of freedom, which count only states that occur in the pair's rows; the last serves all higher ones.
    """
    every = np.repeat(np.arange(len(n_states)), n_states)
    first = np.cumsum(n_states) - n_states
    columns = np.empty((len(indicators), len(every)), np.float32)
    columns[:, np.delete(np.arange(len(every)), first)] = indicators
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


@dataclass(slots=True)
class SketchNode:
    """A sum (with weights) or a product (of inner children and leaves)."""

    children: list[int] = field(default_factory=list[int])  # ids, larger than the node's own
    weights: list[float] | None = None  # of a sum: the number of rows behind each child
    leaves: Ints | None = None  # of a product: the variables of its leaves
    # for each leaf, the counts of its states, or the values of its real variable in its rows
    statistics: list[Floats] = field(default_factory=list[Floats])


@dataclass
class Sketch:
    """Nodes, parents before children, node 0 the root; leaves are fitted and smoothed on reading."""

    domain: Domain
    nodes: list[SketchNode]
    families: Mapping[int, LeafFamily]  # of the leaves of each real variable

    def real_params(self, variable: int, values: Floats, smoothing: float) -> Floats:
        """Return the parameters of a real leaf; without known values, those of a leaf for the whole column."""
        weights = np.ones((len(values), 1))
        return self.families[variable].fit(values, weights, smoothing if len(values) else max(smoothing, 1.0))[0]

    def to_circuit(self, smoothing: float) -> Circuit:
        """Return the circuit; `smoothing` pseudo-counts are added to every state of every leaf."""
        builder = CircuitBuilder(self.domain)
        ids: dict[int, int] = {}
        for i, node in reversed(list(enumerate(self.nodes))):
            inner = [ids[c] for c in node.children]
            if node.weights is not None:
                total = sum(node.weights)
                ids[i] = builder.sum(inner, log_weights=[math.log(w / total) for w in node.weights])
                continue
            leaves: list[int] = [] if node.leaves is None else node.leaves.tolist()
            for variable, values in zip(leaves, node.statistics, strict=True):
                if self.domain.n_states[variable]:
                    shares = (values + smoothing) / (values + smoothing).sum()
                    inner.append(builder.categorical(variable, log_weights=log_of(shares).tolist()))
                else:
                    params = self.real_params(variable, values, smoothing)
                    inner.append(self.families[variable].add(builder, variable, params))
            ids[i] = inner[0] if len(inner) == 1 else builder.product(inner)
        return builder.build(normalised=False)


class _Evaluator:
    """Log-likelihoods of rows in single precision: leaf products as matrix products, then the inner nodes."""

    def __init__(self, sketch: Sketch, points: Points) -> None:
        self.sketch, self.points, self.n_rows = sketch, points, len(points)
        domain, nodes = sketch.domain, sketch.nodes
        self.one_hot = np.ascontiguousarray(one_hot(domain, points).T)
        owned = [(i, node.leaves) for i, node in enumerate(nodes) if node.leaves is not None and len(node.leaves)]
        self.owners = [i for i, _ in owned]
        leaves = [held for _, held in owned]
        variables = np.concatenate(leaves)
        ranks = np.repeat(np.arange(len(leaves)), [len(v) for v in leaves])
        discrete = domain.n_states[variables] > 0
        statistics = [values for i in self.owners for values in nodes[i].statistics]
        self.sizes = sizes = domain.n_states[variables[discrete]]
        self.starts = np.cumsum(sizes) - sizes
        self.counts = np.concatenate([np.empty(0), *(statistics[k] for k in np.flatnonzero(discrete))])
        within = np.arange(len(self.counts)) - np.repeat(self.starts, sizes)
        self.columns = np.repeat(domain.offsets[variables[discrete]], sizes) + within
        self.ranks = np.repeat(ranks[discrete], sizes)
        self.reals = [(int(ranks[k]), int(variables[k]), statistics[k]) for k in np.flatnonzero(~discrete)]

    def __call__(self, smoothing: float) -> Floats:
        values: dict[int, Floats32] = {}
        leaves = self._leaf_products(smoothing)
        for i, node in reversed(list(enumerate(self.sketch.nodes))):
            if node.weights is not None:
                total, parts = sum(node.weights), zip(node.children, node.weights, strict=True)
                values[i] = np.logaddexp.reduce([values.pop(c) + math.log(w / total) for c, w in parts])
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
