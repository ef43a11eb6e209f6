"""A plan cut into layers whose nodes depend only on earlier layers, for computation with tensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from certimap.circuits.plan import Plan
from certimap.core.arrays import Floats, Ints
from certimap.errors import ModelError


@dataclass(frozen=True, eq=False)
class Layer:
    """Nodes of one kind with similar numbers of members, all from earlier layers."""

    rows: Ints  # (n,): the nodes' rows
    members: Ints  # (n, k): rows of their members, padded with row 0 (ln 1)
    log_weights: Floats | None  # (n, k), for sums: natural logs, -inf for padding. None for products


@dataclass(frozen=True, eq=False)
class Layers:
    """A plan over categorical variables as rows of values: row 0 (ln 1), one per distinct leaf, one per node."""

    n_rows: int  # number of rows; the root's is the last
    leaf_var: Ints  # (n_leaves,): the variable of the leaf in row 1 + i
    leaf_log_tables: Floats  # (n_leaves, largest number of states): natural logs, -inf beyond a variable's states
    leaf_columns: Ints  # int64, of that shape: the column of each state among all states of the domain, 0 beyond
    layers: tuple[Layer, ...]  # in an order in which every member is computed before it is used

    @property
    def widest(self) -> int:
        """The largest number of values of a layer per row of a batch."""
        return max((layer.members.size for layer in self.layers), default=1)

    @classmethod
    def of(cls, plan: Plan) -> Layers:
        """Cut a plan; linear in its edges up to logarithms, for sorting. Raises ModelError for real variables."""
        domain = plan.domain
        if not domain.is_discrete:
            name = next(v.name for v, k in zip(domain, domain.n_states, strict=True) if k == 0)
            raise ModelError(
                f"variable {name!r} is real, and tensors take categorical variables alone; leave device= out"
            )
        starts, first, leaf_of = np.unique(plan.leaf_start, return_index=True, return_inverse=True)
        leaf_var = plan.leaf_var[first].astype(np.int64)
        n_states, n_leaves = domain.n_states[leaf_var].astype(np.int64), len(starts)
        within = np.arange(int(n_states.max(initial=1)))
        exists = within < n_states[:, None]
        places = np.where(exists, starts[:, None] + within, 0)
        tables = np.where(exists, plan.log_tables[places], -np.inf)
        columns = np.where(exists, domain.offsets[leaf_var][:, None] + within, 0)
        return cls(
            1 + n_leaves + plan.n_nodes,
            leaf_var,
            tables,
            columns,
            _layers(plan, leaf_of.astype(np.int64), n_leaves),
        )


def _layers(plan: Plan, leaf_of: Ints, n_leaves: int) -> tuple[Layer, ...]:
    """Group nodes by height, kind, and number of members up to a third more."""
    base = 1 + n_leaves
    counts = np.diff(plan.child_ptr) + np.diff(plan.leaf_ptr)
    size = _rounded(counts)
    height = _heights(plan)
    order = np.lexsort((size, plan.is_sum, height))
    keys = np.stack([height, plan.is_sum.astype(np.int64), size])[:, order]
    ends = [*(np.flatnonzero(np.any(keys[:, 1:] != keys[:, :-1], axis=0)) + 1).tolist(), plan.n_nodes]
    found: list[Layer] = []
    for start, stop in zip([0, *ends], ends, strict=False):
        nodes = order[start:stop]
        members = np.zeros((len(nodes), int(size[nodes[0]])), np.int64)
        weights = np.full(members.shape, -np.inf) if plan.is_sum[nodes[0]] else None
        for i, node in enumerate(nodes):
            leaves, edges = (slice(ptr[node], ptr[node + 1]) for ptr in (plan.leaf_ptr, plan.child_ptr))
            own = np.concatenate([1 + leaf_of[leaves], base + plan.children[edges].astype(np.int64)])
            members[i, : len(own)] = own
            if weights is not None:
                weights[i, : len(own)] = plan.log_weights[edges]
        found.append(Layer(base + nodes, members, weights))
    return tuple(found)


def _rounded(counts: Ints) -> Ints:
    """Return numbers rounded up to 1, 2, 3, 4, 6, 8, 12, 16, ...: few sizes, and little padding."""
    power = 2 ** np.ceil(np.log2(np.maximum(counts, 1))).astype(np.int64)
    between = power - power // 4
    return np.where(counts <= between, between, power)


def _heights(plan: Plan) -> Ints:
    """Return the length of the longest path from each node down to a leaf, shape (n_nodes,)."""
    heights = [0] * plan.n_nodes
    ptr: list[int] = plan.child_ptr.tolist()
    children: list[int] = plan.children.tolist()
    for node in range(plan.n_nodes):
        own = children[ptr[node] : ptr[node + 1]]
        if own:
            heights[node] = 1 + max(heights[child] for child in own)
    return np.array(heights, np.int64)
