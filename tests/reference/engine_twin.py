"""Slow twins of the engine: a circuit evaluated node by node in Python floats, and everything by enumeration.

Nothing here uses the engine. A circuit is read through `kind`, `children_of`, `params_of` alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder, NodeKind
from certimap.core.domain import Categorical, Domain, Real
from certimap.core.query import Query

Leaf = Callable[[int, NodeKind, list[float]], float]


def value(circuit: Circuit, leaf: Leaf) -> float:
    """Evaluate a circuit whose leaves are given by a function of (variable, kind, parameters)."""
    values: list[float] = []
    for node in range(circuit.n_nodes):
        kind = NodeKind(int(circuit.kind[node]))
        children = [values[c] for c in circuit.children_of(node)]
        if kind == NodeKind.PRODUCT:
            values.append(math.prod(children))
        elif kind == NodeKind.SUM:
            start = int(circuit.child_ptr[node])
            weights = [math.exp(circuit.log_weights[start + k]) for k in range(len(children))]
            values.append(math.fsum(w * c for w, c in zip(weights, children, strict=True)))
        else:
            values.append(leaf(int(circuit.leaf_var[node]), kind, [float(x) for x in circuit.params_of(node)]))
    return values[-1]


def normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def density(x: float, mean: float, sd: float) -> float:
    return math.exp(-0.5 * ((x - mean) / sd) ** 2) / (sd * math.sqrt(2 * math.pi))


class Twin:
    """p(q | e) of a circuit, the slow way.

    `restrict` maps positions in the circuit's domain to a state, a set of states, a real value, or an
    interval of reals.
    """

    def __init__(self, circuit: Circuit, query: Query) -> None:
        self.circuit = circuit
        self.query = query
        self.total = self.mass({})

    def mass(self, restrict: dict[int, Any]) -> float:
        query, domain = self.query, self.circuit.domain

        def leaf(variable: int, kind: NodeKind, params: list[float]) -> float:
            if kind == NodeKind.GAUSSIAN:
                real = domain.variables[variable]
                assert isinstance(real, Real)
                if variable in query.values:
                    return density(query.values[variable], *params)
                low, high = query.intervals.get(variable, (real.low, real.high))
                asked = restrict.get(variable, (low, high))
                if not isinstance(asked, tuple):
                    return density(asked, *params) if low <= asked <= high else 0.0
                low, high = max(low, asked[0]), min(high, asked[1])
                mean, sd = params
                return max(normal_cdf((high - mean) / sd) - normal_cdf((low - mean) / sd), 0.0)
            asked = restrict.get(variable, range(len(params)))
            states = asked if isinstance(asked, set | range) else {int(asked)}
            first = int(domain.offsets[variable])
            return math.fsum(math.exp(params[s] + query.log_weights[first + s]) for s in states)

        return value(self.circuit, leaf)

    def prob(self, point: Any) -> float:
        """p(q | e) at one point in the query's order."""
        restrict = {
            int(v): (float(x) if self.circuit.domain.n_states[v] == 0 else int(x)) for v, x in self.pairs(point)
        }
        return self.mass(restrict) / self.total

    def pairs(self, point: Any) -> Iterator[tuple[int, Any]]:
        return zip((int(v) for v in self.query.variables), point, strict=True)

    def box_mass(self, sets: list[Any]) -> float:
        """P(box | e); one set of states or interval for each query variable."""
        return self.mass(dict(self.pairs(sets))) / self.total


def all_points(domain: Domain) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(int(k)) for k in domain.n_states)))


class RandomCircuits:
    """Random smooth, decomposable, unnormalised circuits: trees or DAGs, zeros, sums that decide, Gaussians."""

    def __init__(self, seed: int, sizes: list[int], *, share: float = 0.3, zeros: float = 0.15) -> None:
        self.rng = np.random.default_rng(seed)
        self.domain = Domain(
            Real(f"v{i}") if k == 0 else Categorical(f"v{i}", tuple(range(k))) for i, k in enumerate(sizes)
        )
        self.share, self.zeros = share, zeros
        self.builder = CircuitBuilder(self.domain)
        self.known: dict[tuple[int, ...], list[int]] = {}

    def build(self) -> Circuit:
        root = self.node(list(range(len(self.domain))), 0)
        self.builder.product([root])
        return self.builder.build(normalised=False)

    def leaf(self, v: int, allowed: set[int] | None = None) -> int:
        size = int(self.domain.n_states[v])
        if size == 0:
            return self.builder.gaussian(v, float(self.rng.normal()), float(self.rng.uniform(0.3, 2)))
        weights = self.rng.dirichlet(np.full(size, 0.7)) * self.rng.uniform(0.2, 3)
        weights[self.rng.random(size) < self.zeros] = 0.0
        if not weights.any():
            weights[self.rng.integers(size)] = 0.5
        if allowed is not None:
            weights = np.where([s in allowed for s in range(size)], np.maximum(weights, 0.05), 0.0)
        with np.errstate(divide="ignore"):
            return self.builder.categorical(v, log_weights=np.log(weights))

    def node(self, scope: list[int], depth: int) -> int:
        key = tuple(sorted(scope))
        if self.known.get(key) and self.rng.random() < self.share:
            return int(self.rng.choice(self.known[key]))
        made = self._node(list(key), depth)
        self.known.setdefault(key, []).append(made)
        return made

    def _node(self, scope: list[int], depth: int) -> int:
        if len(scope) == 1 and (depth > 4 or self.rng.random() < 0.6):
            return self.leaf(scope[0])
        if len(scope) > 1 and (depth > 4 or self.rng.random() < 0.4):
            return self.product(scope, depth)
        discrete = [v for v in scope if self.domain.n_states[v] > 1]
        if discrete and self.rng.random() < 0.4:
            return self.deciding(scope, int(self.rng.choice(discrete)), depth)
        n_children = int(self.rng.integers(1, 4))
        children = [self.node(scope, depth + 1) for _ in range(n_children)]
        log_weights = np.log(self.rng.uniform(0.1, 2, n_children))
        if n_children > 1 and self.rng.random() < self.zeros:
            log_weights[0] = -math.inf
        return self.builder.sum(children, log_weights=log_weights.tolist())

    def product(self, scope: list[int], depth: int) -> int:
        shuffled = [int(v) for v in self.rng.permutation(scope)]
        cut = int(self.rng.integers(1, len(scope)))
        return self.builder.product([self.node(shuffled[:cut], depth + 1), self.node(shuffled[cut:], depth + 1)])

    def deciding(self, scope: list[int], v: int, depth: int) -> int:
        states = self.rng.permutation(int(self.domain.n_states[v]))
        cut = int(self.rng.integers(1, len(states)))
        rest = [u for u in scope if u != v]
        children: list[int] = []
        for part in (states[:cut], states[cut:]):
            leaf = self.leaf(v, {int(s) for s in part})
            children.append(self.builder.product([leaf, self.node(rest, depth + 1)]) if rest else leaf)
        return self.builder.sum(children, log_weights=np.log(self.rng.uniform(0.1, 2, 2)).tolist())
