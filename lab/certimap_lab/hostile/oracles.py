"""From models to exact distributions, by the plainest way that is feasible."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from certimap.circuits.circuit import Circuit, NodeKind
from certimap.core.domain import Domain
from certimap.learn.hidden_model import HiddenChowLiuModel
from certimap_lab.hostile.evidence import gaussian_weight, state_weights
from certimap_lab.hostile.exact import ONE, ZERO, Exact, exp_of, from_floats
from certimap_lab.hostile.truth import EliminationTruth, ExactFactor, TableTruth, Truth, table_of

LARGEST_TABLE = 2048


def factor_truth(
    domain: Domain, factors: Sequence[ExactFactor], query: Sequence[str], evidence: Mapping[str, Any]
) -> Truth:
    """Return the exact distribution of a query to a product of factors."""
    weights = state_weights(domain, evidence)
    own = [((v,), w) for v, w in enumerate(weights) if w is not None]
    n_states = [int(k) for k in domain.n_states]
    positions = [domain.index(name) for name in query]
    everything = [*factors, *own]
    if math.prod(n_states[v] for v in positions) <= LARGEST_TABLE:
        return table_of(n_states, everything, positions)
    return EliminationTruth(n_states, everything, positions)


def hidden_tree_truth(model: HiddenChowLiuModel, query: Sequence[str], evidence: Mapping[str, Any]) -> Truth:
    """Return the exact distribution of a query to a hidden tree: latent i is variable n + i of its factors."""
    n = len(model.domain)
    n_states = [int(k) for k in model.domain.n_states] + [model.n_hidden] * n
    factors: list[ExactFactor] = []
    for i, up in enumerate(model.parent.tolist()):
        factors.append(((n + i, i), from_floats(model.emission[i])))
        if up < 0:
            factors.append(((n + i,), from_floats(model.root_prior)))
        else:
            factors.append(((n + up, n + i), from_floats(model.transition[i])))
    weights = state_weights(model.domain, evidence)
    factors += [((v,), w) for v, w in enumerate(weights) if w is not None]
    positions = [model.domain.index(name) for name in query]
    if math.prod(n_states[v] for v in positions) <= LARGEST_TABLE:
        return table_of(n_states, factors, positions)
    return EliminationTruth(n_states, factors, positions)


def circuit_truth(circuit: Circuit, query: Sequence[str], evidence: Mapping[str, Any]) -> TableTruth:
    """Return the exact distribution of a discrete query to a circuit, node by node.

    Where the space is too large for one table, the factors below products at the root have one each.
    """
    domain = circuit.domain
    axis = {domain.index(name): i for i, name in enumerate(query)}
    sizes = [int(domain.n_states[v]) for v in axis]
    values = _NodeValues(circuit, axis, evidence)
    if math.prod(sizes) <= LARGEST_TABLE:
        scope, table = values.of(circuit.root)
        return TableTruth(sizes, [(tuple(range(len(sizes))), _over(table, scope, sizes))])
    parts: list[ExactFactor] = []
    constant = ONE
    stack = [circuit.root]
    while stack:
        node = stack.pop()
        if circuit.kind[node] == NodeKind.PRODUCT:
            stack.extend(circuit.children_of(node).tolist())
            continue
        scope, table = values.of(node)
        if scope:
            parts.append((scope, table))
        else:
            constant *= table.reshape(-1)[0]
    parts.append(((), np.array(constant, np.object_)))
    return TableTruth(sizes, parts)


def _over(table: Exact, scope: tuple[int, ...], sizes: Sequence[int]) -> Exact:
    """Repeat a table along the axes that it lacks."""
    shape = [sizes[i] if i in scope else 1 for i in range(len(sizes))]
    return np.broadcast_to(table.reshape(shape), tuple(sizes))


class _NodeValues:
    """Values of a circuit's nodes as tables over the query variables below them, axes in rising order."""

    def __init__(self, circuit: Circuit, axis: Mapping[int, int], evidence: Mapping[str, Any]) -> None:
        self._circuit, self._axis, self._evidence = circuit, axis, evidence
        self._sizes = {i: int(circuit.domain.n_states[v]) for v, i in axis.items()}
        self._weights = state_weights(circuit.domain, evidence)
        self._known: dict[int, ExactFactor] = {}

    def of(self, root: int) -> ExactFactor:
        stack = [root]
        while stack:
            node = stack[-1]
            waiting = [c for c in self._circuit.children_of(node).tolist() if c not in self._known]
            if waiting:
                stack.extend(waiting)
            else:
                stack.pop()
                if node not in self._known:
                    self._known[node] = self._value(node)
        return self._known[root]

    def _value(self, node: int) -> ExactFactor:
        circuit = self._circuit
        kind = NodeKind(int(circuit.kind[node]))
        if kind == NodeKind.CATEGORICAL:
            return self._leaf(node)
        if kind == NodeKind.GAUSSIAN:
            mean, sd = circuit.params_of(node).tolist()
            weight = gaussian_weight(circuit.domain, int(circuit.leaf_var[node]), self._evidence, mean, sd)
            return (), np.array(weight, np.object_)
        children = [self._known[c] for c in circuit.children_of(node).tolist()]
        scope = tuple(sorted({i for s, _ in children for i in s}))
        tables = [table.reshape([self._sizes[i] if i in s else 1 for i in scope]) for s, table in children]
        if kind == NodeKind.PRODUCT:
            product = math.prod(tables[1:], start=tables[0])
            return scope, np.asarray(product, np.object_)
        low, high = circuit.child_ptr[node : node + 2].tolist()
        total: Any = ZERO
        for table, log_weight in zip(tables, circuit.log_weights[low:high].tolist(), strict=True):
            total = total + table * exp_of(log_weight)
        return scope, np.broadcast_to(np.asarray(total, np.object_), [self._sizes[i] for i in scope])

    def _leaf(self, node: int) -> ExactFactor:
        circuit = self._circuit
        variable = int(circuit.leaf_var[node])
        values = np.empty(len(circuit.params_of(node)), np.object_)
        values[:] = [exp_of(w) for w in circuit.params_of(node).tolist()]
        weights = self._weights[variable]
        if weights is not None:
            values = values * weights
        if variable in self._axis:
            return (self._axis[variable],), values
        total: Decimal = values.sum()
        return (), np.array(total, np.object_)
