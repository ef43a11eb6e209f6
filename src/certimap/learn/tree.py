"""Chow-Liu trees, the best tree-shaped distributions of discrete variables by pair counts, and mixtures of them.

Chow and Liu (1968); mixtures by expectation-maximisation, after Meila and Jordan (2000).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Unpack

import numpy as np

from certimap.circuits.circuit import Circuit
from certimap.conversions.network_to_circuit import NodeStore
from certimap.core.arguments import keywords_hinted
from certimap.core.arrays import Floats, Floats32, Ints
from certimap.core.box import Points
from certimap.core.domain import Domain
from certimap.core.logs import log_of
from certimap.core.progress import Progress
from certimap.errors import DataError, ModelError
from certimap.learn.clusters import first_shares
from certimap.learn.estimator import (
    DensityEstimator,
    LearnerSettings,
    Seed,
    learned_by,
    score_samples,
    single_threaded_blas,
    split_rows,
)
from certimap.learn.leaves import Bars
from certimap.learn.table import DataTable, one_hot

if TYPE_CHECKING:
    from certimap.networks.bayesian import BayesianNetwork


ROWS_PER_BAR = 10.0  # of real columns: rows per entry of the table of a pair


@dataclass(frozen=True, eq=False)
class Tree:
    """A tree-shaped distribution."""

    domain: Domain
    order: Ints  # shape (n,): the variables from the root, parents first
    parent: Ints  # shape (n,); -1 marks the root
    tables: list[Floats]  # P(x_i | parent), shape (states of the parent, n_states); one row at the root

    @classmethod
    def of_counts(cls, counts: Floats, domain: Domain, smoothing: float) -> Tree:
        """Return the maximum-likelihood tree for pair counts (see `pair_counts`), smoothed."""
        joint = smoothed_joint(counts, domain, smoothing)
        order, parent = spanning_tree(mutual_information(joint, domain))
        offsets = domain.offsets
        tables: list[Floats] = []
        for i, up in enumerate(parent.tolist()):
            mine = slice(offsets[i], offsets[i + 1])
            above = np.diag(joint[mine, mine])[None] if up < 0 else joint[offsets[up] : offsets[up + 1], mine]
            tables.append(scaled_rows(above))
        return cls(domain, order, parent, tables)

    def log_likelihood(self, points: Points) -> Floats:
        """Return ln p of the known cells of each row, shape (n_rows,)."""
        positions = points.astype(np.int64)
        if np.any(positions < 0):
            return score_samples(self.to_network(), DataTable(self.domain, points))
        out = np.zeros(len(points))
        for i, up in enumerate(self.parent.tolist()):
            row = np.zeros(len(points), np.int64) if up < 0 else positions[:, up]
            with np.errstate(divide="ignore"):
                log_table: Floats = np.log(self.tables[i])
            out += log_table[row, positions[:, i]]
        return out

    def add_to(self, store: NodeStore, indicators: list[Ints]) -> Ints:
        """Add the tree to a circuit and return its root; `indicators[i]` are the leaves to use, by state."""
        return store.tree(self.order, self.parent, self.tables, indicators, is_seen=True)

    def to_circuit(self) -> Circuit:
        """Return the circuit; each sum of an inner variable is deterministic in that variable."""
        store = NodeStore(self.domain)
        self.add_to(store, indicator_leaves(store))
        return store.circuit()

    def to_network(self) -> BayesianNetwork:
        """Return the Bayesian network."""
        from certimap.networks.bayesian import BayesianNetwork
        from certimap.networks.factor import Factor

        pairs = enumerate(zip(self.parent.tolist(), self.tables, strict=True))
        factors = [Factor((i,), table[0]) if up < 0 else Factor((up, i), table) for i, (up, table) in pairs]
        return BayesianNetwork(self.domain, factors)


@dataclass(kw_only=True, eq=False, repr=False)
class ChowLiuTree(DensityEstimator):
    """Learn a Chow-Liu tree: the maximum spanning tree of the pairwise mutual information.

    - `smoothing`: pseudo-counts of every pair's table, spread evenly over it.
    - `kinds`, `domain`, `random_state`, `time_limit`, `progress`: as in `LearnSPN`. Real columns are learned as
      histograms (see `certimap.learn.leaves`). Nothing is random, and learning is one matrix product and a
      spanning tree.

    `model_`: the tree as a `BayesianNetwork`, or as a `Circuit` if a column is real. `tree_`: the tree itself,
    with its views `to_network()` and `to_circuit()`.
    """

    smoothing: float = 1.0
    ranges: ClassVar[str] = "smoothing [0, inf)"
    tree_: Tree = field(init=False)

    def _fit(self, table: Any, valid: Any, domain: Domain | None) -> None:
        rows, _ = self._read(table, valid, domain)
        self._bars = Bars.of(rows, ROWS_PER_BAR)
        rows = self._bars.coded(rows)
        counts = pair_counts(one_hot(rows.domain, rows.points))
        self.tree_ = Tree.of_counts(counts, rows.domain, self.smoothing)
        is_real = len(self._bars.histograms) > 0
        self.model_ = self._bars.to_circuit(self.tree_.to_circuit()) if is_real else self.tree_.to_network()

    def to_circuit(self) -> Circuit:
        """Return the tree as a circuit."""
        self._fitted()
        return self._bars.to_circuit(self.tree_.to_circuit())

    def to_network(self) -> BayesianNetwork:
        """Return the tree as a Bayesian network; ModelError where a column is real."""
        model = self._fitted()
        if self._bars.histograms:
            raise ModelError("a tree with real columns has no network of tables; to_circuit() is its view")
        return model


@keywords_hinted(DataError, "ChowLiuTree")
def chow_liu(
    data: Any,
    *,
    valid: Any = None,
    rng: Seed = None,
    form: Literal["network", "circuit"] | None = None,
    **settings: Unpack[LearnerSettings],
) -> BayesianNetwork | Circuit:
    """Return a Chow-Liu tree learned from a table, as a Bayesian network or as a circuit; see `ChowLiuTree`.

    `data`: a table, or a `Dataset`; with missing cells, each pair of columns uses the rows that know both.
    `valid`: more rows, of which only the labels are used, as further states. `rng` is ignored: nothing here is
    random. `form`: "network", "circuit", or None for a network unless a column is real. `settings`: parameters of
    `ChowLiuTree`. Raises DataError for an empty table, and ModelError for form="network" with real columns.
    """
    if form not in ("network", "circuit", None):
        raise DataError(f"form is {form!r}; expected 'network' or 'circuit'")
    learned = learned_by(ChowLiuTree, data, valid, rng, **settings)
    return learned.model_ if form is None else learned.to_network() if form == "network" else learned.to_circuit()


def indicator_leaves(store: NodeStore) -> list[Ints]:
    """Add the indicators of all states and return them by variable and state."""
    return [store.leaves(i, log_of(np.eye(size))) for i, size in enumerate(store.domain.n_states.tolist())]


def scaled_rows(table: Floats) -> Floats:
    """Scale rows (last axis) to sum 1; rows of zeros become uniform."""
    totals = table.sum(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(totals > 0, table / totals, 1.0 / table.shape[-1]), np.float64)


BATCH = 8192


def pair_counts(indicators: Floats32, weights: Floats | None = None) -> Floats:
    """Return (weighted) joint counts of all pairs of states; float32 sums of a batch are exact for whole ones."""
    size = indicators.shape[1]
    total = np.zeros((size, size))
    for start in range(0, len(indicators), BATCH):
        part = indicators[start : start + BATCH]
        left = part if weights is None else part * weights[start : start + BATCH, None].astype(np.float32)
        total += left.T @ part
    return total


def smoothed_joint(counts: Floats, domain: Domain, smoothing: float) -> Floats:
    """Return joint probabilities of all pairs of states; a diagonal block holds the margin on its diagonal."""
    # `smoothing` pseudo-counts are spread over each pair's table, so that all tables agree on their margins
    sizes = domain.n_states.astype(np.float64)
    per_state = np.repeat(smoothing / sizes, domain.n_states)
    pseudo = np.outer(per_state, 1.0 / np.repeat(sizes, domain.n_states))
    for i in range(len(domain)):
        block = slice(domain.offsets[i], domain.offsets[i + 1])
        pseudo[block, block] = np.diag(per_state[block])
    totals = _block_sums(counts, domain)
    spread = np.repeat(np.repeat(totals + smoothing, domain.n_states, axis=0), domain.n_states, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(spread > 0, (counts + pseudo) / spread, 0.0)


def mutual_information(joint: Floats, domain: Domain) -> Floats:
    """Return the mutual information of all pairs in nats, shape (n, n), each by the margins of its own table."""
    row_sums = np.add.reduceat(joint, domain.offsets[:-1], axis=1)  # P(state) in the table of each pair
    margin = np.repeat(row_sums, domain.n_states, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = joint * (np.log(joint) - np.log(margin) - np.log(margin.T))
    terms[~(joint > 0)] = 0.0
    information = np.maximum(_block_sums(terms, domain), 0.0)
    np.fill_diagonal(information, 0.0)
    return information


def spanning_tree(information: Floats) -> tuple[Ints, Ints]:
    """Return order and parents, as in `Tree`, of the maximum spanning tree, from a centre: it is shallow."""
    csgraph: Any = import_module("scipy.sparse.csgraph")  # no types there
    n = len(information)
    if n == 1:
        return np.zeros(1, np.int64), np.full(1, -1, np.int64)
    cost = information.max() + 1.0 - information  # positive: zeros would mean 'no edge'
    np.fill_diagonal(cost, 0.0)
    tree = csgraph.minimum_spanning_tree(cost)
    links = tree + tree.T
    far = int(csgraph.breadth_first_order(links, 0, directed=False)[0][-1])
    walk, before = csgraph.breadth_first_order(links, far, directed=False)
    path = [int(walk[-1])]
    while before[path[-1]] >= 0:
        path.append(int(before[path[-1]]))
    centre = path[len(path) // 2]
    order, before = csgraph.breadth_first_order(links, centre, directed=False)
    parent = np.array(before, np.int64)
    parent[centre] = -1
    return np.array(order, np.int64), parent


def _block_sums(values: Floats, domain: Domain) -> Floats:
    starts = domain.offsets[:-1]
    return np.add.reduceat(np.add.reduceat(values, starts, axis=0), starts, axis=1)


HELD_OUT = 0.1
PATIENCE = 3


@dataclass(eq=False, repr=False)
class ChowLiuMixture(DensityEstimator):
    """Learn a mixture of Chow-Liu trees, each with a structure of its own.

    - `n_components`: the number of trees; trees that lose all their rows are dropped.
    - `max_steps`: maximum number of steps of expectation-maximisation.
    - `tolerance`: learning stops when a step gains less than this, in nats per row.
    - `smoothing`: pseudo-counts of every pair's table in every tree, spread evenly over it.
    - `kinds`, `domain`, `random_state`, `time_limit`, `progress`: as in `LearnSPN`. Real columns are learned as
      histograms (see `certimap.learn.leaves`).

    `model_`: the mixture as a `Circuit`: one sum over trees. `weights_`, `trees_`: the share and the `Tree` of
    every component. `history_`: mean natural-log likelihood of the training rows before each step.

    Validation rows choose the best mixture: `valid`, or a held-out tenth of the rows (of 20 or more).
    Likelihoods sum missing cells out; the table of each pair of columns uses the rows that know both. A step
    costs one matrix product per component: rows times squared states.
    """

    n_components: int = 8
    _: KW_ONLY
    max_steps: int = 50
    tolerance: float = 1e-3
    smoothing: float = 1.0
    ranges: ClassVar[str] = "n_components, max_steps [1, inf); smoothing [0, inf)"

    def _fit(self, table: Any, valid: Any, domain: Domain | None) -> None:
        rows, held_out = self._read(table, valid, domain)
        bars = Bars.of(rows, ROWS_PER_BAR * self.n_components)
        judge = None if held_out is None else bars.coded(held_out)
        with single_threaded_blas():
            self._climb(*split_rows(bars.coded(rows), judge, HELD_OUT, self.seed_))
        store = NodeStore(bars.cut)
        leaves = indicator_leaves(store)
        roots = np.concatenate([tree.add_to(store, leaves) for tree in self.trees_])
        if len(roots) > 1:
            store.sums(np.array([len(roots)]), roots, np.log(self.weights_))
        self.model_ = bars.to_circuit(store.circuit())

    def _climb(self, rows: DataTable, held_out: DataTable | None) -> None:
        """Alternate trees and responsibilities, and keep the best mixture on the held-out rows."""
        indicators = one_hot(rows.domain, rows.points)
        responsibilities = first_shares(indicators, self.n_components, self._key)
        self.history_: list[float] = []
        self.timed_out_ = False
        best, since_best = -np.inf, 0
        with Progress(f"Mixture of {self.n_components} Chow-Liu trees", self.max_steps, self.progress) as bar:
            for step in range(self.max_steps):
                weights = responsibilities.mean(axis=0)
                kept = weights * len(rows) > 0.5
                weights, responsibilities = weights[kept] / weights[kept].sum(), responsibilities[:, kept]
                counts = (pair_counts(indicators, share) for share in responsibilities.T)
                trees = [Tree.of_counts(pairs, rows.domain, self.smoothing) for pairs in counts]
                log_probs = _component_logs(weights, trees, rows.points)
                total = np.logaddexp.reduce(log_probs, axis=1)
                responsibilities = np.exp(log_probs - total[:, None])
                self.history_.append(float(total.mean()))
                value = self.history_[-1]
                if held_out is not None:
                    logs = _component_logs(weights, trees, held_out.points)
                    value = float(np.logaddexp.reduce(logs, axis=1).mean())
                since_best += 1
                if value > best:
                    best, since_best = value, 0
                    self.weights_, self.trees_ = weights, trees
                bar.step(f"{self.history_[-1]:.3f} nats per row")
                gained = np.inf if step == 0 else self.history_[-1] - self.history_[-2]
                if gained < self.tolerance or since_best >= PATIENCE:
                    break
                if self._is_late():
                    self.timed_out_ = True
                    break


@keywords_hinted(DataError, "ChowLiuMixture")
def clt_mixture(data: Any, *, valid: Any = None, rng: Seed = None, **settings: Unpack[LearnerSettings]) -> Circuit:
    """Learn a mixture of Chow-Liu trees, missing cells allowed; see `ChowLiuMixture`.

    `data`, `valid`, `rng`: as in `learnspn`; a tenth of the rows choose the best step by default. `settings`:
    parameters of `ChowLiuMixture`, such as `n_components`, the number of trees (8).
    """
    return learned_by(ChowLiuMixture, data, valid, rng, **settings).model_


def _component_logs(weights: Floats, trees: list[Tree], points: Points) -> Floats:
    """Return ln(weight * probability), shape (n_rows, n_components)."""
    return np.stack([tree.log_likelihood(points) for tree in trees], axis=1) + np.log(weights)
