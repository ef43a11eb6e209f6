"""Random circuits in the shapes that learners give, for measuring the engine without learning first."""

from __future__ import annotations

import math
import random

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.core.domain import Domain
from certimap.learn.region_circuit import pixel_of, region_graph_of

CONCENTRATION = 0.3
SMALLEST = 1e-12  # of drawn weights, which may underflow


def random_learnspn(n_variables: int, n_edges: int, *, seed: int = 0, n_states: int = 2) -> Circuit:
    """Return a random normalised tree of alternating sums and products with about `n_edges` edges.

    Sums have two to four children; a product multiplies some leaves and sums over groups of the remaining
    variables, or leaves alone where few variables or edges are left. Every leaf belongs to one product.
    Deterministic in `seed`. A tree over few variables has an end to its size: take more than
    `n_edges` / 1000 variables.
    """
    budget, best = float(n_edges), grown_learnspn(n_variables, n_edges, seed=seed, n_states=n_states)
    for _ in range(6):  # what is asked for and what grows differ by a factor that changes slowly
        if abs(best.n_edges - n_edges) <= 0.02 * n_edges:
            break
        budget *= n_edges / best.n_edges
        tree = grown_learnspn(n_variables, budget, seed=seed, n_states=n_states)
        best = min(best, tree, key=lambda c: abs(c.n_edges - n_edges))
    return best


def grown_learnspn(n_variables: int, n_edges: float, *, seed: int = 0, n_states: int = 2) -> Circuit:
    """Return such a tree at the first attempt, whose size may be off by a tenth or so."""
    tree = _Tree(n_variables, seed, n_states)
    tree.add_sum(list(range(n_variables)), float(n_edges))
    return tree.builder.build(normalised=False)


def random_region_graph(
    height: int, width: int, n_nodes: int, *, step: int | None = None, seed: int = 0, n_states: int = 2
) -> Circuit:
    """Return a random circuit over a picture whose rectangles are split in several ways.

    Regions have `n_nodes` sums over all their splits' products, product k of a split being that of the nodes k of
    its two parts; weights and leaves are drawn from Dirichlet(.3). `step` is that of
    `certimap.learn.RegionGraphCircuit`. Deterministic in `seed`.
    """
    rng = np.random.default_rng([seed, height, width, n_nodes, n_states, step or 0])
    builder = CircuitBuilder(Domain.of_sizes([n_states] * (height * width)))
    graph = region_graph_of(height, width, step)
    nodes: list[list[int]] = []

    def log_weights(size: int) -> list[float]:
        return np.log(np.maximum(rng.dirichlet(np.full(size, CONCENTRATION)), SMALLEST)).tolist()

    for r, splits in enumerate(graph.splits):
        n_here = 1 if r == len(graph.splits) - 1 else n_nodes
        if not splits:
            pixel = pixel_of(graph.rectangles[r], width)
            nodes.append([builder.categorical(pixel, log_weights=log_weights(n_states)) for _ in range(n_here)])
            continue
        pairs = [pair for a, b in splits for pair in zip(nodes[a], nodes[b], strict=True)]
        products = [builder.product(pair) for pair in pairs]
        nodes.append([builder.sum(products, log_weights=log_weights(len(products))) for _ in range(n_here)])
    return builder.build(normalised=False)


class _Tree:
    def __init__(self, n_variables: int, seed: int, n_states: int) -> None:
        self.random = random.Random(seed)
        self.n_states = n_states
        self.builder = CircuitBuilder(Domain.of_sizes([n_states] * n_variables))

    def _log_weights(self, size: int) -> list[float]:
        weights = [0.02 + self.random.random() ** 2 for _ in range(size)]
        log_total = math.log(math.fsum(weights))
        return [math.log(w) - log_total for w in weights]

    def _leaf(self, variable: int) -> int:
        return self.builder.categorical(variable, log_weights=self._log_weights(self.n_states))

    def add_sum(self, scope: list[int], budget: float) -> int:
        n_children = self.random.randint(2, 4)
        children = [self.add_product(scope, budget / n_children) for _ in range(n_children)]
        return self.builder.sum(children, log_weights=self._log_weights(n_children))

    def add_product(self, scope: list[int], budget: float) -> int:
        shuffled = self.random.sample(scope, len(scope))
        if len(scope) <= 3 or budget <= 2 * len(scope):
            return self.builder.product([self._leaf(v) for v in shuffled])
        n_leaves = int(len(scope) * self.random.uniform(0.1, 0.6))
        members = [self._leaf(v) for v in shuffled[:n_leaves]]
        rest = shuffled[n_leaves:]
        cut = len(rest) // 2 if self.random.random() < 0.5 else 0
        for group in (rest[:cut], rest[cut:]):
            if group:
                members.append(self.add_sum(group, (budget - n_leaves) * len(group) / len(rest)))
        return self.builder.product(members)
