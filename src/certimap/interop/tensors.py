"""Circuits from tensor libraries: node numbers instead of values go through their layers."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder, NodeKind
from certimap.core.arrays import Floats, Ints
from certimap.core.domain import Categorical, Domain, Real
from certimap.errors import ModelError

Ids = Ints
LeafTable = Floats | tuple[float, float]  # natural logs of all states, or mean and standard deviation


class _Leaf(NamedTuple):
    variable: int
    table: LeafTable
    log_scale: float


class _Inner(NamedTuple):
    kind: NodeKind
    children: list[int]
    log_weights: list[float]


class TensorCircuit:
    """Collects leaves, products and sums given as arrays of node numbers.

    Leaves wait until `build`, when the number of states of each variable is known: the maximum over its leaves.
    Smaller leaves are 0 on further states.
    """

    def __init__(self) -> None:
        self._nodes: list[_Leaf | _Inner] = []
        self._states: dict[int, int] = {}
        self._fewest: dict[int, int] = {}

    def leaf(self, variable: int, table: LeafTable, log_scale: float = 0.0, n_accepted: int | None = None) -> int:
        """Add a leaf times e^log_scale; the library accepts `n_accepted` of its states (None: all)."""
        size = 0 if isinstance(table, tuple) else len(table)
        accepted = size if n_accepted is None else n_accepted
        self._fewest[variable] = min(self._fewest.get(variable, accepted), accepted)
        known = self._states.setdefault(variable, size)
        if (known == 0) != (size == 0):
            raise ModelError(f"variable {variable} has discrete and real leaves; expected leaves of one sort")
        self._states[variable] = max(known, size)
        return self._add(_Leaf(variable, table, log_scale))

    def product(self, children: Sequence[int]) -> int:
        """Add a product and return it; a single child is returned itself."""
        if len(children) == 1:
            return children[0]
        return self._add(_Inner(NodeKind.PRODUCT, list(children), [0.0] * len(children)))

    def sum(self, children: Sequence[int], log_weights: Sequence[float]) -> int:
        """Add a sum and return it; a single child with weight 1 is returned itself."""
        if len(children) == 1 and log_weights[0] == 0.0:
            return children[0]
        return self._add(_Inner(NodeKind.SUM, list(children), list(log_weights)))

    def _add(self, node: _Leaf | _Inner) -> int:
        self._nodes.append(node)
        return len(self._nodes) - 1

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
        """The sorted numbers of the leaves' variables."""
        return sorted(self._states)

    @property
    def accepted(self) -> list[int]:
        """Number of states of each variable that the library accepts in all leaves; it may reject others."""
        return [self._fewest[v] for v in self.variables]

    def build(self, root: int, names: Sequence[str]) -> Circuit:
        """Return the circuit below a root; `names` are the names of `variables`, in order."""
        place = {v: i for i, v in enumerate(self.variables)}
        domain = Domain(
            Categorical(name, tuple(range(self._states[v]))) if self._states[v] else Real(name)
            for v, name in zip(self.variables, names, strict=True)
        )
        builder = CircuitBuilder(domain)
        number: dict[int, int] = {}
        for at in self._reached(root):
            node = self._nodes[at]
            if isinstance(node, _Inner):
                number[at] = builder.add(node.kind, [number[c] for c in node.children], node.log_weights)
                continue
            variable, size, scale = place[node.variable], self._states[node.variable], node.log_scale
            if isinstance(node.table, tuple):
                leaf = builder.gaussian(variable, *node.table)
                number[at] = leaf if scale == 0.0 else builder.sum([leaf], log_weights=[scale])
            else:
                logs = [*(node.table + scale).tolist(), *[-math.inf] * (size - len(node.table))]
                number[at] = builder.categorical(variable, log_weights=logs)
        return builder.build(normalised=False)

    def _reached(self, root: int) -> list[int]:
        """Return the nodes reachable from the root, children first."""
        needed = np.zeros(root + 1, np.bool_)
        needed[root] = True
        for at in range(root, -1, -1):
            node = self._nodes[at]
            if needed[at] and isinstance(node, _Inner):
                needed[node.children] = True
        return np.flatnonzero(needed).tolist()


def module_values(x: Any, ask: str, columns: Sequence[int], rows: Floats) -> Any:
    """Return the values of rows under a PyTorch module; `columns` are the columns of its leaves.

    Half precision gives only two digits, so a copy in double precision is evaluated.
    """
    torch: Any = sys.modules["torch"]
    parameters = [*x.parameters(), *x.buffers()]
    kinds = {str(p.dtype) for p in parameters}
    kind = torch.float32
    if kinds & {"torch.bfloat16", "torch.float16"}:
        x, kind = copy.deepcopy(x).double(), torch.float64
    elif "torch.float64" in kinds:
        kind = torch.float64
    table = torch.zeros((len(rows), max(columns) + 1), dtype=kind)
    table[:, list(columns)] = torch.as_tensor(rows, dtype=kind)
    with torch.no_grad():
        return getattr(x, ask)(table.to(parameters[0].device if parameters else "cpu"))


def log_choose(n: Floats, k: Floats) -> Floats:
    """Return ln of the number of ways to choose k of n; -inf where k > n. Within some roundings of n ln n."""
    from scipy.special import gammaln

    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(
            k <= n, gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(np.maximum(n - k, 0.0) + 1.0), -np.inf
        )
