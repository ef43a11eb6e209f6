"""A sum-product network under construction: inner nodes with the counts of their leaves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.box import Points
from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.domain import Domain

LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)


@dataclass(slots=True)
class Node:
    """A sum (with weights) or a product (of inner children and leaves).

    Attributes
    ----------
    children
        Ids of inner children; larger than the node's own.
    weights
        For a sum, the number of rows behind each child.
    leaves
        For a product, the variables of its leaves.
    statistics
        For each leaf the counts of its states, or (mean, sd) of a real variable, concatenated.
    """

    children: list[int] = field(default_factory=lambda: [])
    weights: list[float] | None = None
    leaves: NDArray[np.int64] | None = None
    statistics: list[NDArray[np.float64]] = field(default_factory=lambda: [])


@dataclass
class Sketch:
    """Nodes, parents before children, node 0 the root; leaves are smoothed when they are read."""

    domain: Domain
    nodes: list[Node]

    def leaf_log_params(self, node: Node, smoothing: float) -> list[NDArray[np.float64]]:
        """Return for each leaf its natural-log probabilities, or (mean, sd)."""
        out: list[NDArray[np.float64]] = []
        assert node.leaves is not None
        for variable, counts in zip(node.leaves, node.statistics, strict=True):
            if self.domain.n_states[variable] == 0:
                out.append(counts)
                continue
            smoothed = counts + smoothing
            with np.errstate(divide="ignore"):
                out.append(np.log(smoothed / smoothed.sum()))
        return out

    def evaluator(self, points: Points) -> Callable[[float], NDArray[np.float64]]:
        """Prepare complete rows; the function returned gives their log-likelihoods for a smoothing."""
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
                ids[i] = builder.sum(inner, [math.log(w / total) for w in node.weights])
                continue
            if node.leaves is not None:
                params = self.leaf_log_params(node, smoothing)
                for variable, values in zip(node.leaves.tolist(), params, strict=True):
                    if self.domain.n_states[variable]:
                        inner.append(builder.categorical(variable, values.tolist()))
                    else:
                        inner.append(builder.gaussian(variable, float(values[0]), float(values[1])))
            ids[i] = inner[0] if len(inner) == 1 else builder.product(inner)
        return builder.build()


class _Evaluator:
    """Log-likelihoods of rows: all leaf products at once as a matrix product, then the inner nodes."""

    def __init__(self, sketch: Sketch, points: Points) -> None:
        self.sketch = sketch
        self.n_rows = len(points)
        domain = sketch.domain
        self.one_hot = np.zeros((len(points), domain.total_states), np.float64)
        rows = np.arange(len(points))
        for i in range(len(domain)):
            if domain.n_states[i]:
                self.one_hot[rows, domain.offsets[i] + points[:, i].astype(np.int64)] = 1.0
        self.points = points

    def __call__(self, smoothing: float) -> NDArray[np.float64]:
        nodes = self.sketch.nodes
        values: dict[int, NDArray[np.float64]] = {}
        leaves = self._leaf_products(smoothing)
        for i in range(len(nodes) - 1, -1, -1):
            node = nodes[i]
            if node.weights is not None:
                total = sum(node.weights)
                terms = [values.pop(c) + math.log(w / total) for c, w in zip(node.children, node.weights, strict=True)]
                values[i] = _log_sum(terms)
                continue
            value = leaves.pop(i) if i in leaves else np.zeros(self.n_rows)
            for c in node.children:
                value += values.pop(c)
            values[i] = value
        return values[0]

    def _leaf_products(self, smoothing: float) -> dict[int, NDArray[np.float64]]:
        sketch, domain = self.sketch, self.sketch.domain
        owners = [i for i, node in enumerate(sketch.nodes) if node.leaves is not None and len(node.leaves)]
        out: dict[int, NDArray[np.float64]] = {}
        for start in range(0, len(owners), 512):
            chunk = owners[start : start + 512]
            log_params = np.zeros((len(chunk), domain.total_states))
            extra = np.zeros((len(chunk), self.n_rows)) if not domain.is_discrete else None
            for k, i in enumerate(chunk):
                node = sketch.nodes[i]
                assert node.leaves is not None
                for variable, values in zip(
                    node.leaves.tolist(), sketch.leaf_log_params(node, smoothing), strict=True
                ):
                    if domain.n_states[variable]:
                        log_params[k, domain.offsets[variable] : domain.offsets[variable + 1]] = values
                    elif extra is not None:
                        extra[k] += gaussian_log_density(self.points[:, variable], values[0], values[1])
            product: NDArray[Any] = np.ascontiguousarray(log_params @ self.one_hot.T)
            if extra is not None:
                product += extra
            out.update(zip(chunk, product, strict=True))
        return out


def gaussian_log_density(x: NDArray[Any], mean: float, sd: float) -> NDArray[np.float64]:
    """Return the natural-log density of a Gaussian at each value."""
    return -0.5 * ((x - mean) / sd) ** 2 - math.log(sd) - LOG_SQRT_2PI


def _log_sum(terms: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    total = terms[0]
    for term in terms[1:]:
        total = np.logaddexp(total, term)
    return total
