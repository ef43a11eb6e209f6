"""Circuits from libraries that compute with tensors: node numbers go through their layers in place of values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.circuits.circuit import Circuit, CircuitBuilder, NodeKind
from certimap.core.domain import Categorical, Domain, Real
from certimap.errors import ModelError
from certimap.interop.reading import Floats

Ids = NDArray[np.int64]
LeafTable = Floats | tuple[float, float]  # natural logs of all states, or mean and standard deviation
AGREEMENT = 1e-3  # nats by which the library's own value of a point may differ: single precision in large circuits


class TensorCircuit:
    """Collects leaves, products and sums given as arrays of node numbers.

    Leaves are kept back until `build`, when the number of states of each variable is known: the most that any of
    its leaves has, the others being 0 on the rest.
    """

    def __init__(self) -> None:
        self._leaves: list[tuple[int, LeafTable, float]] = []
        self._leaf_of: dict[int, int] = {}
        self._inner: list[tuple[NodeKind, list[int], list[float]]] = []
        self._order: list[int] = []  # leaves as -1 - number, inner nodes by number
        self._states: dict[int, int] = {}

    def leaf(self, variable: int, table: LeafTable, log_scale: float = 0.0) -> int:
        """Add a leaf, and a constant factor e^log_scale."""
        size = 0 if isinstance(table, tuple) else len(table)
        known = self._states.setdefault(variable, size)
        if (known == 0) != (size == 0):
            raise ModelError(f"variable {variable} has discrete and real leaves; expected leaves of one sort")
        self._states[variable] = max(known, size)
        self._leaves.append((variable, table, log_scale))
        self._order.append(-len(self._leaves))
        return len(self._order) - 1

    def product(self, children: Sequence[int]) -> int:
        """Add a product; of one child, the child itself."""
        if len(children) == 1:
            return children[0]
        return self._add(NodeKind.PRODUCT, list(children), [0.0] * len(children))

    def sum(self, children: Sequence[int], log_weights: Sequence[float]) -> int:
        """Add a sum; of one child with the weight 1, the child itself."""
        if len(children) == 1 and log_weights[0] == 0.0:
            return children[0]
        return self._add(NodeKind.SUM, list(children), list(log_weights))

    def _add(self, kind: NodeKind, children: list[int], log_weights: list[float]) -> int:
        self._inner.append((kind, children, log_weights))
        self._order.append(len(self._inner) - 1)
        return len(self._order) - 1

    def products(self, children: Ids) -> Ids:
        """Add a product for each row of the last axis; return their numbers."""
        rows = children.reshape(-1, children.shape[-1]).tolist()
        return np.array([self.product(row) for row in rows], np.int64).reshape(children.shape[:-1])

    def sums(self, children: Ids, log_weights: Floats) -> Ids:
        """Add a sum for each row of the last axis; children and weights are broadcast against each other."""
        ids, weights = np.broadcast_arrays(children, log_weights)
        shape = ids.shape
        rows, row_weights = ids.reshape(-1, shape[-1]).tolist(), weights.reshape(-1, shape[-1]).tolist()
        out = [self.sum(row, w) for row, w in zip(rows, row_weights, strict=True)]
        return np.array(out, np.int64).reshape(shape[:-1])

    @property
    def variables(self) -> list[int]:
        """The numbers of the variables that leaves have named, in order."""
        return sorted(self._states)

    @property
    def is_padded(self) -> bool:
        """Whether some leaf has fewer states than its variable: the library itself may refuse the others."""
        return any(not isinstance(table, tuple) and len(table) < self._states[v] for v, table, _ in self._leaves)

    def build(self, root: int, names: Sequence[str]) -> Circuit:
        """Return the circuit of what a root reaches; `names` are those of `variables`, in order."""
        place = {v: i for i, v in enumerate(self.variables)}
        domain = Domain(
            Categorical(name, tuple(range(self._states[v]))) if self._states[v] else Real(name)
            for v, name in zip(self.variables, names, strict=True)
        )
        builder = CircuitBuilder(domain)
        number: dict[int, int] = {}
        for node in self._reached(root):
            k = self._order[node]
            if k < 0:
                number[node] = self._build_leaf(builder, place, *self._leaves[-1 - k])
                continue
            kind, children, log_weights = self._inner[k]
            below = [number[c] for c in children]
            number[node] = builder.product(below) if kind == NodeKind.PRODUCT else builder.sum(below, log_weights)
        return builder.build()

    def _build_leaf(
        self, builder: CircuitBuilder, place: dict[int, int], variable: int, table: LeafTable, log_scale: float
    ) -> int:
        if isinstance(table, tuple):
            leaf = builder.gaussian(place[variable], *table)
            return leaf if log_scale == 0.0 else builder.sum([leaf], [log_scale])
        padded = np.full(self._states[variable], -math.inf)
        padded[: len(table)] = table + log_scale
        return builder.categorical(place[variable], padded.tolist())

    def _reached(self, root: int) -> list[int]:
        """Return what the root reaches, children first."""
        needed = np.zeros(root + 1, np.bool_)
        needed[root] = True
        for node in range(root, -1, -1):
            k = self._order[node]
            if needed[node] and k >= 0:
                needed[self._inner[k][1]] = True
        return np.flatnonzero(needed).tolist()


def check_agreement(circuit: Circuit, theirs: Callable[[Floats], Any], columns: int, x: Any) -> None:
    """Compare a circuit with the library's own values of a few points.

    Parameters
    ----------
    circuit
        What was read.
    theirs
        Returns the library's log values of rows, shape (n, columns).
    columns
        The number of columns that the library expects; variables take those they are numbered by.
    x
        The object, for the error.

    Raises
    ------
    ModelError
        Where they differ by more than `AGREEMENT` nats (relative to 1 and the size of the log).
    """
    rng = np.random.default_rng(0)
    rows = np.zeros((4, columns))
    sizes = circuit.domain.n_states
    points = np.array([[rng.integers(k) if k else rng.normal() for k in sizes] for _ in rows], np.float64)
    rows[:, : points.shape[1]] = points
    ours = np.array([value_of(circuit, point) for point in points])
    found = np.asarray(theirs(rows), np.float64).reshape(-1)
    same = ((ours == found) | (np.abs(ours - found) <= AGREEMENT * (1.0 + np.abs(ours)))) & ~np.isnan(ours)
    if found.shape != ours.shape or not np.all(same):
        raise ModelError(
            f"this {type(x).__module__}.{type(x).__name__} computes log values {found.tolist()} where what was "
            f"read has {ours.tolist()}; this version of the library is not understood, and nothing is guessed"
        )


def value_of(circuit: Circuit, point: Floats) -> float:
    """Return ln of a circuit's value at one point, node by node; slow, and independent of all kernels."""
    values: list[float] = []
    children: list[int] = circuit.children.tolist()
    weights: list[float] = circuit.log_weights.tolist()
    params: list[float] = circuit.params.tolist()
    ptr: list[int] = circuit.child_ptr.tolist()
    param_ptr: list[int] = circuit.param_ptr.tolist()
    kinds: list[int] = circuit.kind.tolist()
    leaf_var: list[int] = circuit.leaf_var.tolist()
    for node, kind in enumerate(kinds):
        if kind == NodeKind.CATEGORICAL:
            values.append(params[param_ptr[node] + int(point[leaf_var[node]])])
            continue
        if kind == NodeKind.GAUSSIAN:
            mean, sd = params[param_ptr[node] : param_ptr[node] + 2]
            scaled = (point[leaf_var[node]] - mean) / sd
            values.append(-0.5 * scaled * scaled - math.log(sd) - 0.5 * math.log(2.0 * math.pi))
            continue
        span = range(ptr[node], ptr[node + 1])
        if kind == NodeKind.PRODUCT:
            values.append(sum(values[children[e]] for e in span))
            continue
        terms = [values[children[e]] + weights[e] for e in span]
        top = max(terms)
        values.append(top + math.log(sum(math.exp(t - top) for t in terms)) if top > -math.inf else top)
    return values[-1]
