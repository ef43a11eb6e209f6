"""Building a circuit in batches: many nodes of a kind at a time, without duplicates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from certimap.circuits.circuit import Circuit, NodeKind
from certimap.core.domain import Domain

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Hashes = NDArray[np.uint64]

# Log weights closer than this are equal in comparisons of nodes: rows of a table that differ only by rounding
# then share their circuits. The resulting error is below the error of summing in float64.
LOG_WEIGHT_GRAIN = 2.0**-42


class NodeStore:
    """Nodes of a circuit under construction, children before parents."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self.n_nodes = 0
        self._kinds: list[NDArray[np.int8]] = []
        self._n_children: list[Ints] = []
        self._children: list[Ints] = []
        self._log_weights: list[Floats] = []
        self._leaf_vars: list[NDArray[np.int32]] = []
        self._n_params: list[Ints] = []
        self._params: list[Floats] = []

    def leaves(self, variable: int, log_weights: Floats) -> Ints:
        """Add a categorical leaf per row of `log_weights`, shape (n, n_states); return their ids."""
        n, size = int(log_weights.shape[0]), int(log_weights.shape[1])
        self._params.append(log_weights.reshape(-1))
        return self._add(NodeKind.CATEGORICAL, np.zeros(n, np.int64), variable, size)

    def products(self, children: Ints) -> Ints:
        """Add a product per row of `children`, shape (n, n_children); return their ids."""
        n, size = int(children.shape[0]), int(children.shape[1])
        self._children.append(children.reshape(-1))
        self._log_weights.append(np.zeros(n * size))
        return self._add(NodeKind.PRODUCT, np.full(n, size, np.int64))

    def sums(self, n_children: Ints, children: Ints, log_weights: Floats) -> Ints:
        """Add sums with `n_children` children each, listed one after the other; return their ids."""
        self._children.append(children)
        self._log_weights.append(log_weights)
        return self._add(NodeKind.SUM, n_children)

    def _add(self, kind: NodeKind, n_children: Ints, variable: int = -1, n_params: int = 0) -> Ints:
        n = len(n_children)
        self._kinds.append(np.full(n, kind, np.int8))
        self._n_children.append(n_children)
        self._leaf_vars.append(np.full(n, variable, np.int32))
        self._n_params.append(np.full(n, n_params, np.int64))
        self.n_nodes += n
        return np.arange(self.n_nodes - n, self.n_nodes, dtype=np.int64)

    def circuit(self) -> Circuit:
        """Return the circuit whose root is the last node added, without unreachable nodes."""
        kind = np.concatenate(self._kinds)
        child_ptr = _starts(np.concatenate(self._n_children))
        children = np.concatenate([*self._children, np.zeros(0, np.int64)])
        log_weights = np.concatenate([*self._log_weights, np.zeros(0)])
        leaf_var = np.concatenate(self._leaf_vars)
        param_ptr = _starts(np.concatenate(self._n_params))
        params = np.concatenate([*self._params, np.zeros(0)])
        alive = _reached(child_ptr, children)
        if not alive.all():
            renumbered = np.cumsum(alive) - 1
            kept = np.repeat(alive, np.diff(child_ptr))
            children, log_weights = renumbered[children[kept]], log_weights[kept]
            params = params[np.repeat(alive, np.diff(param_ptr))]
            child_ptr, param_ptr = _starts(np.diff(child_ptr)[alive]), _starts(np.diff(param_ptr)[alive])
            kind, leaf_var = kind[alive], leaf_var[alive]
        return Circuit(self.domain, kind, child_ptr, children, log_weights, leaf_var, param_ptr, params)


def _starts(counts: Ints) -> Ints:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]).astype(np.int64)


def _reached(child_ptr: Ints, children: Ints) -> NDArray[np.bool_]:
    """Return which nodes are reachable from the last one, shape (n_nodes,); each node is expanded once."""
    alive = np.zeros(len(child_ptr) - 1, np.bool_)
    alive[-1] = True
    front = np.array([len(alive) - 1])
    while len(front):
        below = children[spans(child_ptr[front], child_ptr[front + 1] - child_ptr[front])]
        below = below[~alive[below]]
        alive[below] = True
        front = np.unique(below)
    return alive


def spans(starts: Ints, lengths: Ints) -> Ints:
    """Return the indices `starts[i] ... starts[i] + lengths[i] - 1` of all spans, one after the other."""
    ends = np.cumsum(lengths)
    return np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(starts - ends + lengths, lengths)


def distinct(columns: Sequence[Ints | Hashes]) -> tuple[Ints, Ints]:
    """Find the distinct rows of a table given by columns.

    Returns the first occurrence of each distinct row, in sorted order of rows, and each row's index among them.
    """
    order = np.lexsort(columns[::-1])
    new = np.zeros(len(order), np.bool_)
    new[:1] = True
    for column in columns:
        placed = column[order]
        new[1:] |= placed[1:] != placed[:-1]
    which = np.empty(len(order), np.int64)
    which[order] = np.cumsum(new) - 1
    return order[new], which


def scrambled(values: Ints | Hashes, seed: int) -> Hashes:
    """Return a 64-bit hash of each integer (the finaliser of splitmix64)."""
    z = values.astype(np.uint64) + np.uint64(seed * 0x9E3779B97F4A7C15 % 2**64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def grains(log_weights: Floats) -> Ints:
    """Round log weights (-inf is accepted) to integers, equal for nearly equal weights."""
    return np.rint(np.clip(log_weights, -1e6, 1e6) / LOG_WEIGHT_GRAIN).astype(np.int64)


def hashed_rows(parts: Sequence[Ints], starts: Ints) -> list[Hashes]:
    """Return two 64-bit hashes of each run of entries, each entry a tuple of one integer per part.

    Runs begin at `starts` and are never empty; the order of entries inside a run does not count.
    """
    hashes: list[Hashes] = []
    for seed in (1, 2):
        entry = np.zeros(len(parts[0]), np.uint64)
        for k, part in enumerate(parts):
            entry = scrambled(entry ^ scrambled(part, seed), seed + 2 * (k + 1))
        hashes.append(np.add.reduceat(entry, starts) if len(starts) else entry[:0])
    return hashes
