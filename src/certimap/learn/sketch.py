"""A sum-product network under construction: inner nodes with the counts of their leaves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.core.box import Points
from certimap.core.domain import Domain
from certimap.learn.leaf_families import LeafFamily
from certimap.learn.table import missing_in

LOWEST = -1e6  # replaces ln 0 while settings are compared: matrix products cannot hold infinities


@dataclass(slots=True)
class SketchNode:
    """A sum (with weights) or a product (of inner children and leaves).

    `children`: ids of inner children; larger than the node's own. `weights`: for a sum, the number of rows behind
    each child. `leaves`: for a product, the variables of its leaves. `statistics`: for each leaf, the counts of
    its states, or the values of its real variable in its rows.
    """

    children: list[int] = field(default_factory=lambda: [])
    weights: list[float] | None = None
    leaves: NDArray[np.int64] | None = None
    statistics: list[NDArray[np.float64]] = field(default_factory=lambda: [])


@dataclass
class Sketch:
    """Nodes, parents before children, node 0 the root; leaves are fitted and smoothed on reading.

    `families`: the family of leaves of each real variable.
    """

    domain: Domain
    nodes: list[SketchNode]
    families: Mapping[int, LeafFamily] = field(default_factory=dict[int, LeafFamily])

    def leaf_log_params(self, node: SketchNode, smoothing: float) -> list[NDArray[np.float64]]:
        """Return natural-log probabilities, or the parameters of its family, for each leaf."""
        out: list[NDArray[np.float64]] = []
        assert node.leaves is not None
        for variable, counts in zip(node.leaves, node.statistics, strict=True):
            if self.domain.n_states[variable] == 0:
                out.append(self.real_params(int(variable), counts, smoothing))
                continue
            smoothed = counts + smoothing
            with np.errstate(divide="ignore"):
                out.append(np.log(smoothed / smoothed.sum()))
        return out

    def real_params(self, variable: int, values: NDArray[np.float64], smoothing: float) -> NDArray[np.float64]:
        """Return the parameters of a real leaf; without known values, those of a leaf for the whole column."""
        weights = np.ones((len(values), 1))
        return self.families[variable].fit(values, weights, smoothing if len(values) else max(smoothing, 1.0))[0]

    def evaluator(self, points: Points) -> Callable[[float], NDArray[np.float64]]:
        """Prepare rows; the returned function gives the log-likelihoods of their known cells for a smoothing."""
        return _Evaluator(self, points)

    def to_circuit(self, smoothing: float) -> Circuit:
        """Return the circuit; `smoothing` pseudo-counts are added to every state of every leaf."""
        builder = CircuitBuilder(self.domain)
        ids: dict[int, int] = {}
        for i in range(len(self.nodes) - 1, -1, -1):
            node = self.nodes[i]
            inner = [ids[c] for c in node.children]
            if node.weights is not None:
                total = sum(node.weights)
                ids[i] = builder.sum(inner, log_weights=[math.log(w / total) for w in node.weights])
                continue
            if node.leaves is not None:
                params = self.leaf_log_params(node, smoothing)
                for variable, values in zip(node.leaves.tolist(), params, strict=True):
                    if self.domain.n_states[variable]:
                        inner.append(builder.categorical(variable, log_weights=values.tolist()))
                    else:
                        inner.append(self.families[variable].add(builder, variable, values))
            ids[i] = inner[0] if len(inner) == 1 else builder.product(inner)
        return builder.build(normalised=False)


class _Evaluator:
    """Log-likelihoods of rows: all leaf products at once as matrix products, then the inner nodes.

    Single precision inside: about six digits, enough to compare settings.
    """

    def __init__(self, sketch: Sketch, points: Points) -> None:
        self.sketch = sketch
        self.n_rows = len(points)
        self.points = points
        domain = sketch.domain
        self.one_hot = np.zeros((domain.total_states, len(points)), np.float32)
        rows = np.arange(len(points))
        for i in np.flatnonzero(domain.n_states).tolist():
            known = rows[~missing_in(points[:, i])]
            self.one_hot[domain.offsets[i] + points[known, i].astype(np.int64), known] = 1.0
        nodes = sketch.nodes
        owned = [(i, node.leaves) for i, node in enumerate(nodes) if node.leaves is not None and len(node.leaves)]
        self.owners = [i for i, _ in owned]
        leaves = [held for _, held in owned]
        variables = np.concatenate(leaves)
        ranks = np.repeat(np.arange(len(leaves)), [len(v) for v in leaves])
        discrete = domain.n_states[variables] > 0
        statistics = [values for i in self.owners for values in nodes[i].statistics]
        sizes = domain.n_states[variables[discrete]]
        self.starts = np.cumsum(sizes) - sizes
        self.sizes = sizes
        self.counts = np.concatenate([np.empty(0), *(statistics[k] for k in np.flatnonzero(discrete))])
        within = np.arange(len(self.counts)) - np.repeat(self.starts, sizes)
        self.columns = np.repeat(domain.offsets[variables[discrete]], sizes) + within
        self.ranks = np.repeat(ranks[discrete], sizes)
        self.reals = [(int(ranks[k]), int(variables[k]), statistics[k]) for k in np.flatnonzero(~discrete)]

    def __call__(self, smoothing: float) -> NDArray[np.float64]:
        nodes = self.sketch.nodes
        values: dict[int, NDArray[np.float32]] = {}
        leaves = self._leaf_products(smoothing)
        for i in range(len(nodes) - 1, -1, -1):
            node = nodes[i]
            if node.weights is not None:
                total = sum(node.weights)
                values[i] = np.logaddexp.reduce(
                    [values.pop(c) + math.log(w / total) for c, w in zip(node.children, node.weights, strict=True)]
                )
                continue
            value = leaves.pop(i) if i in leaves else np.zeros(self.n_rows, np.float32)
            for c in node.children:
                value += values.pop(c)
            values[i] = value
        return values[0].astype(np.float64)

    def _leaf_products(self, smoothing: float) -> dict[int, NDArray[np.float32]]:
        """Return ln of the product of leaves for each node with leaves, shape (n_rows,) each."""
        smoothed = self.counts + smoothing
        totals = np.add.reduceat(smoothed, self.starts) if len(self.starts) else np.empty(0)
        with np.errstate(divide="ignore"):
            logs = np.maximum(np.log(smoothed) - np.repeat(np.log(totals), self.sizes), LOWEST)
        products = np.empty((len(self.owners), self.n_rows), np.float32)
        for start in range(0, len(self.owners), 512):
            stop = min(start + 512, len(self.owners))
            some = slice(*np.searchsorted(self.ranks, [start, stop]))
            log_params = np.zeros((stop - start, len(self.one_hot)), np.float32)
            log_params[self.ranks[some] - start, self.columns[some]] = logs[some]
            np.matmul(log_params, self.one_hot, out=products[start:stop])
        for rank, variable, values in self.reals:
            known = np.flatnonzero(~missing_in(self.points[:, variable]))
            params = self.sketch.real_params(variable, values, smoothing)
            log_densities = self.sketch.families[variable].log_density(self.points[known, variable], params[None])
            products[rank, known] += np.maximum(log_densities[:, 0], LOWEST)
        return dict(zip(self.owners, products, strict=True))
