"""Slow twins of the heuristics, by recursion over a `Circuit` and dictionaries; no code is shared."""

from __future__ import annotations

import math

from certimap.circuits.circuit import Circuit, NodeKind


def log_add(values):
    peak = max(values, default=-math.inf)
    return -math.inf if peak == -math.inf else peak + math.log(sum(math.exp(v - peak) for v in values))


class Heuristics:
    """Values of a circuit's nodes at partial assignments, and what each heuristic keeps."""

    def __init__(self, circuit: Circuit, observed: dict[int, float] | None = None) -> None:
        self.circuit = circuit
        self.observed = observed or {}

    def leaf_log(self, node: int, value: float) -> float:
        params = self.circuit.params_of(node)
        if self.circuit.kind[node] == NodeKind.GAUSSIAN:
            mean, sd = params
            return -0.5 * ((value - mean) / sd) ** 2 - math.log(sd * math.sqrt(2 * math.pi))
        return float(params[int(value)])

    def peak(self, node: int) -> float:
        params = list(self.circuit.params_of(node))
        if int(self.circuit.leaf_var[node]) in self.observed:
            return self.observed[int(self.circuit.leaf_var[node])]
        return params[0] if self.circuit.kind[node] == NodeKind.GAUSSIAN else params.index(max(params))

    def edges(self, node: int):
        first, last = self.circuit.child_ptr[node : node + 2]
        return list(zip(self.circuit.children[first:last], self.circuit.log_weights[first:last], strict=True))

    def log_value(self, node: int, point: dict[int, float]) -> float:
        kind = self.circuit.kind[node]
        if kind == NodeKind.SUM:
            return log_add([w + self.log_value(c, point) for c, w in self.edges(node)])
        if kind == NodeKind.PRODUCT:
            return sum(self.log_value(c, point) for c, _ in self.edges(node))
        return self.leaf_log(node, point[int(self.circuit.leaf_var[node])])

    def max_product(self, node: int) -> tuple[float, dict[int, float]]:
        """The value that max-product gives a node, and what it decodes there."""
        kind = self.circuit.kind[node]
        if kind < NodeKind.PRODUCT:
            value = self.peak(node)
            return self.leaf_log(node, value), {int(self.circuit.leaf_var[node]): value}
        parts = [(w, *self.max_product(c)) for c, w in self.edges(node)]
        if kind == NodeKind.SUM:
            best = max(range(len(parts)), key=lambda k: parts[k][0] + parts[k][1])
            return parts[best][0] + parts[best][1], parts[best][2]
        point: dict[int, float] = {}
        for _, _, part in parts:
            point |= part
        return sum(value for _, value, _ in parts), point

    def argmax_product(self, node: int) -> dict[int, float]:
        """The assignment that argmax-product keeps at a node."""
        kind = self.circuit.kind[node]
        if kind < NodeKind.PRODUCT:
            return {int(self.circuit.leaf_var[node]): self.peak(node)}
        parts = [self.argmax_product(c) for c, _ in self.edges(node)]
        if kind == NodeKind.SUM:
            return max(parts, key=lambda point: self.log_value(node, point))
        return {k: v for part in parts for k, v in part.items()}
