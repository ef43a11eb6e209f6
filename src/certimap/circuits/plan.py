"""The arrays that every kernel of the engine walks: a conditioned, simplified, normalised circuit."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from certimap.circuits.circuit import Circuit, NodeKind
from certimap.domain import Domain
from certimap.errors import ModelError

GAUSSIAN_PARAMS = 5  # mean, sd, low, high, ln of the mass of [low, high] under the untruncated Gaussian


@dataclass(frozen=True, eq=False)
class Plan:
    """A circuit over the query variables in which every node is a distribution over its own scope.

    Nodes are products and sums in topological order (children first, in depth-first postorder, the
    root last); leaves are folded into the products. Each child of a sum is a product. A shared node
    appears once.

    Attributes
    ----------
    domain
        The query variables.
    is_sum
        bool, shape (n_nodes,).
    child_ptr, children
        int64, shape (n_nodes + 1,), and int32, shape (n_edges,): inner children of node i are
        `children[child_ptr[i]:child_ptr[i + 1]]`.
    weights, log_weights
        float64, shape (n_edges,): weights of the sums (those of one sum add to 1) and their natural
        logs; 1 and 0 on the edges of products. A weight may underflow to 0 where its log is finite.
    leaf_ptr, leaf_var, leaf_start
        int64, shape (n_nodes + 1,), int32 and int64, shape (n_leaves,): the leaves of product i are
        `leaf_ptr[i]:leaf_ptr[i + 1]`; a leaf's variable (position in `domain`) and the start of its
        vector in `tables`. Leaves may share a vector.
    tables, log_tables
        float64: for a categorical leaf one probability a state (they add to 1), and their natural logs.
        For a Gaussian leaf (in both arrays) mean, sd, low, high and ln of the mass that the untruncated
        Gaussian has in [low, high]: the leaf is the Gaussian restricted to that interval.
    decides
        int32, shape (n_nodes,): the query variable that a sum decides (its children allow disjoint
        sets of that variable's states), else -1.
    """

    domain: Domain
    is_sum: NDArray[np.bool_]
    child_ptr: NDArray[np.int64]
    children: NDArray[np.int32]
    weights: NDArray[np.float64]
    log_weights: NDArray[np.float64]
    leaf_ptr: NDArray[np.int64]
    leaf_var: NDArray[np.int32]
    leaf_start: NDArray[np.int64]
    tables: NDArray[np.float64]
    log_tables: NDArray[np.float64]
    decides: NDArray[np.int32]

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name != "domain":
                getattr(self, field.name).setflags(write=False)

    @property
    def n_nodes(self) -> int:
        return len(self.is_sum)

    @property
    def n_leaves(self) -> int:
        return len(self.leaf_var)

    @property
    def n_edges(self) -> int:
        """How many edges the circuit has, those to its leaves included."""
        return len(self.children) + len(self.leaf_var)

    def __repr__(self) -> str:
        return f"Plan({len(self.domain)} variables, {self.n_nodes} nodes, {self.n_edges} edges)"

    @cached_property
    def parent_of_edge(self) -> NDArray[np.int32]:
        """The node that each inner edge starts from, int32, shape (len(children),)."""
        return np.repeat(np.arange(self.n_nodes, dtype=np.int32), np.diff(self.child_ptr))

    @cached_property
    def parent_of_leaf(self) -> NDArray[np.int32]:
        """The product that each leaf belongs to, int32, shape (n_leaves,)."""
        return np.repeat(np.arange(self.n_nodes, dtype=np.int32), np.diff(self.leaf_ptr))

    def to_circuit(self) -> Circuit:
        """Return the same distribution as a `Circuit`; leaves that share a vector become one node.

        Raises ModelError when Gaussian leaves are restricted to intervals: a `Circuit` has none such.
        """
        gaussian = self.domain.n_states[self.leaf_var] == 0
        restricted = self.log_tables[self.leaf_start[gaussian] + 4] != 0.0
        if np.any(restricted):
            variable = self.domain.names[int(self.leaf_var[gaussian][restricted][0])]
            raise ModelError(
                f"variable {variable!r} is restricted to an interval; only whole Gaussian leaves are accepted"
            )
        starts, first, leaf_of = np.unique(self.leaf_start, return_index=True, return_inverse=True)
        n_leaf_nodes = len(starts)
        variables = self.leaf_var[first]
        is_gaussian = gaussian[first]
        sizes = np.where(is_gaussian, 2, self.domain.n_states[variables])
        param_ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        within = np.arange(int(param_ptr[-1])) - np.repeat(param_ptr[:-1], sizes)
        params = self.log_tables[np.repeat(starts, sizes) + within]
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
        kind = np.concatenate(
            [
                np.where(is_gaussian, NodeKind.GAUSSIAN, NodeKind.CATEGORICAL),
                np.where(self.is_sum, NodeKind.SUM, NodeKind.PRODUCT),
            ]
        ).astype(np.int8)
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
