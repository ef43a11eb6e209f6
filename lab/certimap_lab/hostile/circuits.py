"""Hostile circuits: leaves, products of unequal sizes, mixtures with long evidence, shared nodes, Gaussians."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.core.domain import Categorical, Domain, Real
from certimap_lab.hostile.case import HostileCase, choose_evidence, choose_query
from certimap_lab.hostile.numbers import log_vector, pick_style, shuffled
from certimap_lab.hostile.oracles import circuit_truth


def case_of(circuit: Circuit, query: list[str], evidence: dict[str, Any]) -> HostileCase:
    """Return the case of a query to a circuit."""
    return HostileCase(circuit, query, evidence, circuit_truth(circuit, query, evidence))


def leaf(rng: np.random.Generator) -> HostileCase:
    """One categorical variable: a leaf, or a sum of leaves."""
    domain = Domain.of_sizes([int(rng.integers(2, 9))])
    build = CircuitBuilder(domain)
    leaves = [_leaf(rng, build, 0, pick_style(rng)) for _ in range(int(rng.integers(1, 4)))]
    if len(leaves) > 1:
        build.sum(leaves, log_weights=log_vector(rng, len(leaves), pick_style(rng)).tolist())
    return case_of(build.build(normalised=False), ["0"], choose_evidence(rng, domain, ["0"]))


def independent(rng: np.random.Generator) -> HostileCase:
    """A product of leaves: a few, or hundreds of them."""
    many = rng.random() < 0.1
    n = int(rng.integers(200, 800)) if many else int(rng.integers(2, 7))
    domain = Domain.of_sizes([2] * n if many else rng.integers(2, 5, n).tolist())
    build = CircuitBuilder(domain)
    styles = [pick_style(rng) for _ in range(3)]
    tables = [log_vector(rng, 2, style) for style in styles for _ in range(4)]
    leaves: list[int] = []
    for v in range(n):
        if many:  # few different tables, so that their exact values are found once
            leaves.append(build.categorical(v, log_weights=tables[int(rng.integers(len(tables)))].tolist()))
        else:
            leaves.append(_leaf(rng, build, v, styles[int(rng.integers(3))]))
    build.product(leaves)
    query = list(domain.names) if many else choose_query(rng, domain)
    evidence: dict[str, Any] = {} if many else choose_evidence(rng, domain, query)
    return case_of(build.build(normalised=False), query, evidence)


def sizes(rng: np.random.Generator) -> HostileCase:
    """Products and sums of parts whose sizes are far apart, in both orders."""
    n = int(rng.integers(2, 6))
    domain = Domain.of_sizes(rng.integers(2, 5, n).tolist())
    build = CircuitBuilder(domain)
    scale = rng.choice([-1500.0, -430.0, -390.0, -180.0, 0.0, 250.0, 690.0], n)
    parts: list[int] = []
    for v in range(n):
        logs = log_vector(rng, int(domain.n_states[v]), str(rng.choice(["mild", "ties", "zeros", "wide"])))
        parts.append(build.categorical(v, log_weights=(logs + scale[v]).tolist()))
    if rng.random() < 0.5:
        parts.reverse()
    node = parts[0]
    for part in parts[1:]:
        pair = [node, part] if rng.random() < 0.5 else [part, node]
        node = build.product(pair)
        if rng.random() < 0.4:
            node = build.sum([node], log_weights=[float(rng.choice([-700.0, -300.0, 0.0, 300.0, 700.0]))])
    query = choose_query(rng, domain)
    return case_of(build.build(normalised=False), query, choose_evidence(rng, domain, query))


def mixture(rng: np.random.Generator) -> HostileCase:
    """A mixture of products whose evidence, up to thousands of leaves, tells the components e^-5000 apart."""
    n_query, n_nuisance = int(rng.integers(1, 6)), int(rng.integers(0, 4))
    n_evidence = int(rng.choice([0, 3, 300, 1200], p=[0.4, 0.3, 0.2, 0.1]))
    n_components = int(rng.integers(2, 5))
    few = rng.integers(2, 4, n_query + n_nuisance).tolist()
    domain = Domain.of_sizes([*few, *[2] * n_evidence])
    build = CircuitBuilder(domain)
    gaps = [float(x) for x in rng.choice([0.0, 0.7, 2.0, 4.0, 6.0], n_components)]
    styles = [pick_style(rng) for _ in range(n_components)]
    products: list[int] = []
    for style, gap in zip(styles, gaps, strict=True):
        leaves = [_leaf(rng, build, v, style) for v in range(len(few))]
        observed = [math.log1p(-math.exp(-0.1 - gap)), -0.1 - gap]
        leaves += [build.categorical(v, log_weights=observed) for v in range(len(few), len(domain))]
        products.append(build.product(leaves))
    build.sum(products, log_weights=log_vector(rng, n_components, pick_style(rng)).tolist())
    candidates = list(domain.names[: len(few)])
    query = choose_query(rng, domain, candidates=candidates)
    evidence: dict[str, Any] = choose_evidence(rng, domain.subset(range(len(few))), query)
    likely = rng.choice([0.0, 0.5, 1.0])
    for name in domain.names[len(few) :]:
        evidence[name] = int(rng.random() < likely)
    return case_of(build.build(normalised=False), query, evidence)


def shared(rng: np.random.Generator) -> HostileCase:
    """A circuit whose nodes have several parents."""
    return _grown(rng, share=0.5, decide=0.1)


def deciding(rng: np.random.Generator) -> HostileCase:
    """A circuit with sums whose children allow disjoint states of a variable."""
    return _grown(rng, share=0.15, decide=0.7)


def structured(rng: np.random.Generator) -> HostileCase:
    """A circuit with one split per region and a pool of nodes for each: a tree of regions."""
    n = int(rng.integers(2, 8))
    domain = Domain.of_sizes(rng.integers(2, 4, n).tolist())
    build = CircuitBuilder(domain)
    n_pool = int(rng.integers(1, 4))
    style = pick_style(rng)

    def pool(scope: list[int]) -> list[int]:
        if len(scope) == 1:
            return [_leaf(rng, build, scope[0], style) for _ in range(n_pool)]
        order = [scope[i] for i in shuffled(rng, len(scope))]
        cut = int(rng.integers(1, len(order)))
        left, right = pool(order[:cut]), pool(order[cut:])
        pairs = [build.product([left[i], right[j]]) for i in range(n_pool) for j in range(n_pool)]
        return [
            build.sum(
                pairs, log_weights=log_vector(rng, len(pairs), style if rng.random() < 0.5 else "mild").tolist()
            )
            for _ in range(n_pool)
        ]

    build.sum(pool(list(range(n))), log_weights=log_vector(rng, n_pool, "mild").tolist())
    query = choose_query(rng, domain)
    return case_of(build.build(normalised=False), query, choose_evidence(rng, domain, query))


def gaussian(rng: np.random.Generator) -> HostileCase:
    """A mixture with Gaussian leaves: observed fifty standard deviations away, in intervals far out, or free."""
    n_real, n_few = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    reals = [Real(f"x{i}") if rng.random() < 0.7 else Real(f"x{i}", -1.0, 60.0) for i in range(n_real)]
    few = [Categorical(f"c{i}", tuple(range(int(rng.integers(2, 4))))) for i in range(n_few)]
    domain = Domain([*few, *reals])
    build = CircuitBuilder(domain)
    products: list[int] = []
    for _ in range(int(rng.integers(1, 5))):
        leaves = [_leaf(rng, build, v, pick_style(rng)) for v in range(n_few)]
        for v in range(n_few, len(domain)):
            leaves.append(
                build.gaussian(v, float(rng.normal(0.0, 2.0)), float(rng.choice([1e-3, 0.5, 1.0, 30.0])))
            )
        products.append(build.product(leaves))
    build.sum(products, log_weights=log_vector(rng, len(products), pick_style(rng)).tolist())
    query = choose_query(rng, domain)
    evidence: dict[str, Any] = choose_evidence(rng, domain, query)
    for real in reals:
        kind = int(rng.integers(0, 4))
        far = float(rng.choice([0.1, 3.0, 20.0, 50.0]))
        if kind == 1:
            evidence[real.name] = far
        elif kind == 2:
            evidence[real.name] = (far, far + float(rng.choice([1e-6, 0.5, 10.0])))
        elif kind == 3:
            evidence[real.name] = (far, math.inf)
    return case_of(build.build(normalised=False), query, evidence)


def _leaf(rng: np.random.Generator, build: CircuitBuilder, variable: int, style: str) -> int:
    return build.categorical(
        variable, log_weights=log_vector(rng, int(build.domain.n_states[variable]), style).tolist()
    )


def _grown(rng: np.random.Generator, *, share: float, decide: float) -> HostileCase:
    n = int(rng.integers(2, 7))
    domain = Domain.of_sizes(rng.integers(2, 4, n).tolist())
    growth = _Growth(rng, domain, share, decide)
    growth.build.product([growth.node(tuple(range(n)), 0)])
    query = choose_query(rng, domain)
    return case_of(growth.build.build(normalised=False), query, choose_evidence(rng, domain, query))


class _Growth:
    """Grows a random smooth and decomposable circuit from the root down."""

    def __init__(self, rng: np.random.Generator, domain: Domain, share: float, decide: float) -> None:
        self.rng, self.share, self.decide = rng, share, decide
        self.build = CircuitBuilder(domain)
        self._n_states = [int(k) for k in domain.n_states]
        self._made: dict[tuple[int, ...], list[int]] = {}
        self._styles = [pick_style(rng), pick_style(rng), "mild"]

    def node(self, scope: tuple[int, ...], depth: int) -> int:
        known = self._made.setdefault(scope, [])
        if known and (depth > 12 or self.rng.random() < self.share):
            return known[int(self.rng.integers(len(known)))]
        made = self._new(scope, depth)
        known.append(made)
        return made

    def _new(self, scope: tuple[int, ...], depth: int) -> int:
        if len(scope) == 1 and (depth > 3 or self.rng.random() < 0.6):
            return self.build.categorical(scope[0], log_weights=self._logs(self._n_states[scope[0]]))
        if len(scope) > 1 and (depth > 3 or self.rng.random() < 0.4):
            order = [scope[i] for i in shuffled(self.rng, len(scope))]
            cut = int(self.rng.integers(1, len(order)))
            halves = (tuple(sorted(order[:cut])), tuple(sorted(order[cut:])))
            return self.build.product([self.node(half, depth + 1) for half in halves])
        if self.rng.random() < self.decide:
            return self._deciding(scope, depth)
        children = [self.node(scope, depth + 1) for _ in range(int(self.rng.integers(1, 4)))]
        return self.build.sum(children, log_weights=self._logs(len(children)))

    def _deciding(self, scope: tuple[int, ...], depth: int) -> int:
        v = scope[int(self.rng.integers(len(scope)))]
        rest = tuple(u for u in scope if u != v)
        side = self.rng.permutation(self._n_states[v]) < self._n_states[v] // 2
        children: list[int] = []
        for part in (side, ~side):
            logs = [w if inside else -math.inf for w, inside in zip(self._logs(len(part)), part, strict=True)]
            own = self.build.categorical(v, log_weights=logs)
            children.append(self.build.product([own, self.node(rest, depth + 1)]) if rest else own)
        return self.build.sum(children, log_weights=self._logs(2))

    def _logs(self, size: int) -> list[float]:
        style = self._styles[int(self.rng.integers(len(self._styles)))]
        return log_vector(self.rng, size, style).tolist()
