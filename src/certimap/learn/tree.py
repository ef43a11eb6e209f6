"""Chow-Liu trees: the best tree-shaped distribution of discrete variables (Chow and Liu 1968)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from certimap.box import Points
from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.domain import Domain
from certimap.errors import DataError
from certimap.learn.estimator import DensityEstimator, Seed
from certimap.learn.pairs import Floats, mutual_information, one_hot, pair_counts, smoothed_joint, spanning_tree
from certimap.learn.table import Kind, read_table, refuse_missing, refuse_real

if TYPE_CHECKING:
    from certimap.networks.bayesian import BayesianNetwork


@dataclass(frozen=True, eq=False)
class Tree:
    """A tree-shaped distribution.

    Attributes
    ----------
    domain
        The variables.
    order, parent
        int64, shape (n,): variables from the root, parents first; -1 marks the root.
    tables
        One float64 array a variable, shape (states of the parent, n_states): P(x_i | parent); one row at
        the root.
    """

    domain: Domain
    order: NDArray[np.int64]
    parent: NDArray[np.int64]
    tables: list[Floats]

    @classmethod
    def of_counts(cls, counts: Floats, domain: Domain, smoothing: float) -> Tree:
        """Return the maximum-likelihood tree of pair counts (see `pair_counts`), smoothed."""
        joint = smoothed_joint(counts, domain, smoothing)
        order, parent = spanning_tree(mutual_information(joint, domain))
        offsets = domain.offsets
        tables: list[Floats] = []
        for i, up in enumerate(parent.tolist()):
            mine = slice(offsets[i], offsets[i + 1])
            if up < 0:
                tables.append(_rows(np.diag(joint[mine, mine])[None]))
            else:
                tables.append(_rows(joint[offsets[up] : offsets[up + 1], mine]))
        return cls(domain, order, parent, tables)

    def log_likelihood(self, points: Points) -> Floats:
        """Return ln p of complete rows, shape (n_rows,)."""
        positions = points.astype(np.int64)
        out = np.zeros(len(points))
        for i, up in enumerate(self.parent.tolist()):
            row = np.zeros(len(points), np.int64) if up < 0 else positions[:, up]
            with np.errstate(divide="ignore"):
                log_table: Floats = np.log(self.tables[i])
            out += log_table[row, positions[:, i]]
        return out

    def add_to(self, builder: CircuitBuilder, indicators: list[list[int]]) -> int:
        """Add the tree to a circuit and return its root; `indicators[i][s]` are the leaves to use."""
        below: dict[int, list[list[int]]] = {}
        nothing: list[int] = []
        backwards: list[int] = self.order[::-1].tolist()
        for i in backwards:
            with np.errstate(divide="ignore"):
                log_table: list[list[float]] = np.log(self.tables[i]).tolist()
            hanging = below.pop(i, None)
            if hanging is None:
                sums = [builder.categorical(i, row) for row in log_table]
            else:
                parts = [builder.product([leaf, *more]) for leaf, more in zip(indicators[i], hanging, strict=True)]
                sums = [builder.sum(parts, row) for row in log_table]
            up = int(self.parent[i])
            if up < 0:
                return sums[0]
            lists = below.setdefault(up, [list(nothing) for _ in sums])
            for own, node in zip(lists, sums, strict=True):
                own.append(node)
        raise AssertionError("the order ends at the root")

    def to_circuit(self) -> Circuit:
        """Return the circuit; every sum of an inner variable decides that variable."""
        builder = CircuitBuilder(self.domain)
        self.add_to(builder, indicator_leaves(builder))
        return builder.build()

    def to_network(self) -> BayesianNetwork:
        """Return the Bayesian network."""
        from certimap.networks.bayesian import BayesianNetwork
        from certimap.networks.factor import Factor

        return BayesianNetwork(
            self.domain,
            [
                Factor((i,), self.tables[i][0]) if up < 0 else Factor((up, i), self.tables[i])
                for i, up in enumerate(self.parent.tolist())
            ],
        )


class ChowLiuTree(DensityEstimator):
    """Learn a Chow-Liu tree: the maximum spanning tree of the pairwise mutual information.

    Parameters
    ----------
    smoothing
        Pseudo-counts of every pair's table, spread evenly over it.
    kinds, domain
        See `LearnSPN`; all variables must be categorical.
    random_state
        Taken for the sake of uniformity: nothing here is random.
    time_limit, progress
        Taken for the sake of uniformity: learning is one matrix product and a spanning tree.

    Attributes
    ----------
    model_
        The tree as a `BayesianNetwork`.
    tree_
        The tree itself, with its views `to_network()` and `to_circuit()`.
    """

    def __init__(
        self,
        *,
        smoothing: float = 1.0,
        kinds: Mapping[str, Kind] | None = None,
        domain: Domain | None = None,
        random_state: Seed = None,
        time_limit: float | None = None,
        progress: bool | None = None,
    ) -> None:
        self.smoothing = smoothing
        self.kinds = kinds
        self.domain = domain
        self.random_state = random_state
        self.time_limit = time_limit
        self.progress = progress

    def _fit(self, table: Any, valid: Any, domain: Domain | None) -> None:
        check_smoothing(self.smoothing)
        rows = read_table(table, domain=domain, kinds=self.kinds, also=[] if valid is None else [valid])
        refuse_real(rows, "chow_liu")
        refuse_missing(rows, "chow_liu")
        self.domain_ = rows.domain
        counts = pair_counts(one_hot(rows.domain, rows.points))
        self.tree_ = Tree.of_counts(counts, rows.domain, self.smoothing)
        self.model_ = self.tree_.to_network()

    def to_circuit(self) -> Circuit:
        """Return the tree as a circuit."""
        self._fitted()
        return self.tree_.to_circuit()

    def to_network(self) -> BayesianNetwork:
        """Return the tree as a Bayesian network."""
        return self._fitted()


def chow_liu(
    data: Any,
    *,
    valid: Any = None,
    rng: Seed = None,
    form: Literal["network", "circuit"] = "network",
    **settings: Any,
) -> Any:
    """Learn a Chow-Liu tree and return it as a Bayesian network or as a circuit.

    Parameters
    ----------
    data
        A table of categorical columns without missing values, or a `Dataset`.
    valid
        More rows, whose labels count as states too; nothing is chosen on them.
    rng
        Not needed: nothing here is random.
    form
        "network" (a `BayesianNetwork`) or "circuit".
    **settings
        Those of `ChowLiuTree`.

    Returns
    -------
    BayesianNetwork or Circuit
        As `form` says.

    Raises
    ------
    DataError
        For an empty table, a continuous column or missing values.
    """
    if form not in ("network", "circuit"):
        raise DataError(f"form is {form!r}; expected 'network' or 'circuit'")
    learned = ChowLiuTree(random_state=rng, **settings).fit(data, valid=valid)
    return learned.model_ if form == "network" else learned.to_circuit()


def indicator_leaves(builder: CircuitBuilder) -> list[list[int]]:
    """Add the indicators of all states and return them by variable and state."""
    sizes = builder.domain.n_states.tolist()
    return [[builder.indicator(i, s) for s in range(size)] for i, size in enumerate(sizes)]


def check_smoothing(smoothing: float) -> None:
    """Raise DataError unless the pseudo-counts are a nonnegative number."""
    if not smoothing >= 0:
        raise DataError(f"smoothing is {smoothing!r}; expected a nonnegative number")


def _rows(table: Floats) -> Floats:
    """Return the rows scaled to sum 1; rows of nothing become uniform."""
    totals = table.sum(axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(totals > 0, table / totals, 1.0 / table.shape[1]), np.float64)
