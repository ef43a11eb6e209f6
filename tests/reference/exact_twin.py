"""Circuits evaluated with 50 digits (mpmath), whose exponents have no end; and everything by enumeration.

A circuit is read through `kind`, `children_of`, `params_of` alone; nothing of the engine is used.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mpmath
import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder, NodeKind
from certimap.core.domain import Domain

mpmath.mp.dps = 50
Number = Any


def exp(log_value: float) -> Number:
    return mpmath.exp(mpmath.mpf(log_value)) if log_value > -np.inf else mpmath.mpf(0)


def value(circuit: Circuit, leaf: Callable[[int, NodeKind, list[float]], Number]) -> Number:
    """Evaluate a circuit whose leaves are given by a function of (variable, kind, parameters)."""
    values: list[Number] = []
    for node in range(circuit.n_nodes):
        kind = NodeKind(int(circuit.kind[node]))
        below = [values[c] for c in circuit.children_of(node)]
        if kind == NodeKind.PRODUCT:
            values.append(mpmath.fprod(below))
        elif kind == NodeKind.SUM:
            start = int(circuit.child_ptr[node])
            values.append(mpmath.fsum(exp(circuit.log_weights[start + k]) * x for k, x in enumerate(below)))
        else:
            values.append(leaf(int(circuit.leaf_var[node]), kind, [float(x) for x in circuit.params_of(node)]))
    return values[-1]


def gaussian(x: Number, mean: float, sd: float) -> Number:
    return mpmath.npdf(mpmath.mpf(x), mpmath.mpf(mean), mpmath.mpf(sd))


def normal_mass(low: float, high: float) -> Number:
    """Return the mass of [low, high] under the standard normal distribution."""
    if low > 0:
        low, high = -high, -low
    with mpmath.workdps(100):
        below, above = (mpmath.erfc(-mpmath.mpf(x) / mpmath.sqrt(2)) / 2 for x in (low, high))
        return above - below


def mass(circuit: Circuit, box: Sequence[Any]) -> Number:
    """Return the mass of a box: per variable a collection of states, or a value of a real one (its density)."""

    def leaf(variable: int, kind: NodeKind, params: list[float]) -> Number:
        if kind == NodeKind.GAUSSIAN:
            return gaussian(box[variable], *params)
        return mpmath.fsum(exp(params[state]) for state in box[variable])

    return value(circuit, leaf)


def log(x: Number) -> float:
    return float(mpmath.log(x)) if x > 0 else -np.inf


def points(domain: Domain) -> Iterator[tuple[int, ...]]:
    return itertools.product(*(range(int(k)) for k in domain.n_states))


def ranking(circuit: Circuit) -> list[tuple[Number, tuple[int, ...]]]:
    """Return (p(q), q) of every point, the most probable first."""
    total = mass(circuit, [range(int(k)) for k in circuit.domain.n_states])
    found = [(mass(circuit, [(s,) for s in q]) / total, q) for q in points(circuit.domain)]
    return sorted(found, key=lambda pair: pair[0], reverse=True)


def wide_log(rng: np.random.Generator) -> float:
    """Return the log of a number that is tiny, ordinary, nearly 1, or (rarely) zero."""
    kind = rng.integers(6)
    if kind == 0:
        return float(-rng.exponential(1e-17))
    if kind == 1:
        return float(np.log(1e-320) * rng.random())
    if kind == 2:
        return float(-rng.exponential(2000.0)) if rng.random() < 0.3 else -745.0 + float(rng.normal(0, 3))
    return float(-rng.exponential(1.0)) if kind < 5 or rng.random() < 0.7 else -np.inf


def hostile_circuit(rng: np.random.Generator, sizes: Sequence[int]) -> Circuit:
    """Return a random smooth circuit over variables of some sizes, with parameters of every size, some shared."""
    domain = Domain.of_sizes(list(sizes))
    builder = CircuitBuilder(domain)
    pool: dict[tuple[int, ...], list[int]] = {}

    def logs(k: int) -> list[float]:
        values = [wide_log(rng) for _ in range(k)]
        return values if max(values) > -np.inf else [0.0, *values[1:]]

    def node(scope: tuple[int, ...]) -> int:
        if pool.get(scope) and rng.random() < 0.3:
            return int(rng.choice(pool[scope]))
        children: list[int] = []
        for _ in range(int(rng.integers(1, 4))):
            if len(scope) == 1:
                size = int(domain.n_states[scope[0]])
                one = rng.random() < 0.3
                state = int(rng.integers(size))
                children.append(
                    builder.indicator(scope[0], state)
                    if one
                    else builder.categorical(scope[0], log_weights=logs(size))
                )
            else:
                order = [int(v) for v in rng.permutation(scope)]
                cut = int(rng.integers(1, len(order)))
                parts = (tuple(sorted(order[:cut])), tuple(sorted(order[cut:])))
                children.append(builder.product([node(part) for part in parts]))
        added = builder.sum(children, log_weights=logs(len(children)))
        pool.setdefault(scope, []).append(added)
        return added

    node(tuple(range(len(domain))))
    return builder.build(normalised=False)
