"""The arrays for all kernels of the engine: a conditioned, simplified, normalised circuit."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from certimap.circuits.circuit import Circuit, NodeKind
from certimap.circuits.leaves import leaf_kinds
from certimap.core.arrays import Flags, Floats, Ints, Ints32
from certimap.core.domain import Domain
from certimap.errors import ModelError

REAL_SIZE = 8  # size of a real leaf's vector; `kernels/real.py` describes its layout
REAL_LOW, REAL_HIGH, REAL_LOG_NORM, REAL_FIRST = 1, 2, 3, 4


@dataclass(frozen=True, eq=False)
class Plan:
    """A circuit over the query variables in which every node is a distribution over its own scope.

    Nodes are products and sums in topological order (children first, in depth-first postorder, the
    root last); leaves are folded into the products. Each child of a sum is a product. A shared node
    appears once.
    """

    domain: Domain  # the query variables
    is_sum: Flags  # (n_nodes,)
    # child_ptr, children: (n_nodes + 1,), and (n_edges,): inner children of node i are
    # `children[child_ptr[i]:child_ptr[i + 1]]`
    child_ptr: Ints
    children: Ints32
    # weights, log_weights: (n_edges,): weights of the sums (each sum's weights add to 1) and their natural logs; 1
    # and 0 on the edges of products. A weight may underflow to 0 though its log is finite
    weights: Floats
    log_weights: Floats
    # leaf_ptr, leaf_var, leaf_start: (n_nodes + 1,), int32 and (n_leaves,): the leaves of product i are
    # `leaf_ptr[i]:leaf_ptr[i + 1]`; a leaf's variable (position in `domain`) and the start of its vector in
    # `tables`. Leaves may share a vector
    leaf_ptr: Ints
    leaf_var: Ints32
    leaf_start: Ints
    # tables, log_tables: float64: for a categorical leaf one probability per state (they add to 1), and their
    # natural logs. For a real leaf (in both arrays) its vector of `REAL_SIZE` numbers, see `kernels/real.py`: the
    # leaf is restricted to an interval, and normalised there
    tables: Floats
    log_tables: Floats
    # (n_nodes,): the query variable that a sum decides (its children allow disjoint sets of that variable's
    # states), else -1
    decides: Ints32
    # (n_nodes,): for each sum, its source's index among the original circuit's sums; else -1
    sum_numbers: Ints
    # a bound (nats) on the error of log-probabilities from conditioning: weights and leaves are rounded
    log_error: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name not in ("domain", "log_error"):
                getattr(self, field.name).setflags(write=False)

    @property
    def n_nodes(self) -> int:
        return len(self.is_sum)

    @property
    def n_leaves(self) -> int:
        return len(self.leaf_var)

    @property
    def n_edges(self) -> int:
        """Number of edges, including edges to leaves."""
        return len(self.children) + len(self.leaf_var)

    @cached_property
    def is_whole(self) -> Flags:
        """Which real variables take whole numbers only, bool, shape (n,)."""
        marks = np.zeros(len(self.domain), np.bool_)
        real = self.domain.n_states[self.leaf_var] == 0
        codes = self.log_tables[self.leaf_start[real]].astype(np.int64)
        whole = [code for code, kind in leaf_kinds().items() if kind.is_whole]
        marks[self.leaf_var[real][np.isin(codes, whole)]] = True
        return marks

    @cached_property
    def ends(self) -> tuple[Floats, Floats]:
        """The interval of each variable left by the evidence and the domain, shape (n,) each."""
        low, high = np.full(len(self.domain), np.inf), np.full(len(self.domain), -np.inf)
        real = self.domain.n_states[self.leaf_var] == 0
        starts, variables = self.leaf_start[real], self.leaf_var[real]
        np.minimum.at(low, variables, self.log_tables[starts + REAL_LOW])
        np.maximum.at(high, variables, self.log_tables[starts + REAL_HIGH])
        low[self.domain.n_states > 0], high[self.domain.n_states > 0] = -np.inf, np.inf
        return low, high

    def __repr__(self) -> str:
        return f"Plan({len(self.domain)} variables, {self.n_nodes} nodes, {self.n_edges} edges)"

    @cached_property
    def parent_of_edge(self) -> Ints32:
        """The node that each inner edge starts from, int32, shape (len(children),)."""
        return np.repeat(np.arange(self.n_nodes, dtype=np.int32), np.diff(self.child_ptr))

    @cached_property
    def parent_of_leaf(self) -> Ints32:
        """The product that each leaf belongs to, int32, shape (n_leaves,)."""
        return np.repeat(np.arange(self.n_nodes, dtype=np.int32), np.diff(self.leaf_ptr))

    def to_circuit(self) -> Circuit:
        """Return the same distribution as a `Circuit`; leaves that share a vector become one node.

        Raises ModelError if real leaves are restricted to intervals, which a `Circuit` cannot express.
        """
        is_real = self.domain.n_states[self.leaf_var] == 0
        restricted = self.log_tables[self.leaf_start[is_real] + REAL_LOG_NORM] != 0.0
        if np.any(restricted):
            variable = self.domain.names[int(self.leaf_var[is_real][restricted][0])]
            raise ModelError(
                f"variable {variable!r} is restricted to an interval; expected whole leaves of real variables"
            )
        starts, first, leaf_of = np.unique(self.leaf_start, return_index=True, return_inverse=True)
        n_leaf_nodes = len(starts)
        variables = self.leaf_var[first]
        real = is_real[first]
        leaf_code = np.where(real, self.log_tables[starts], NodeKind.CATEGORICAL).astype(np.int8)
        sizes = self.domain.n_states[variables].astype(np.int64)
        for code, leaf in leaf_kinds().items():
            sizes[leaf_code == code] = len(leaf.parameters)
        param_ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        within = np.arange(int(param_ptr[-1])) - np.repeat(param_ptr[:-1], sizes)
        params = self.log_tables[np.repeat(starts + np.where(real, REAL_FIRST, 0), sizes) + within]
        counts = np.diff(self.child_ptr) + np.diff(self.leaf_ptr)
        child_ptr = np.concatenate([np.zeros(n_leaf_nodes + 1, np.int64), np.cumsum(counts)])
        leaf_slots = child_ptr[n_leaf_nodes + self.parent_of_leaf]
        leaf_slots += np.arange(self.n_leaves) - self.leaf_ptr[self.parent_of_leaf]
        inner_slots = child_ptr[n_leaf_nodes + self.parent_of_edge] + np.diff(self.leaf_ptr)[self.parent_of_edge]
        inner_slots += np.arange(len(self.children)) - self.child_ptr[self.parent_of_edge]
        children = np.empty(self.n_edges, np.int64)
        children[leaf_slots] = leaf_of
        children[inner_slots] = self.children.astype(np.int64) + n_leaf_nodes
        log_weights = np.zeros(self.n_edges)
        log_weights[inner_slots] = self.log_weights
        kind = np.concatenate([leaf_code, np.where(self.is_sum, NodeKind.SUM, NodeKind.PRODUCT)]).astype(np.int8)
        n_nodes = n_leaf_nodes + self.n_nodes
        return Circuit(
            self.domain,
            kind,
            child_ptr,
            children,
            log_weights,
            np.concatenate([variables, np.full(self.n_nodes, -1)]).astype(np.int32),
            np.concatenate([param_ptr, np.full(n_nodes - n_leaf_nodes, param_ptr[-1])]).astype(np.int64),
            np.ascontiguousarray(params),
        )
