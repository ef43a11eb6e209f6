"""Sentential decision diagrams of PySDD, with literal weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.core.domain import Categorical, Domain
from certimap.errors import ModelError
from certimap.interop.reading import Floats, Reading, Wishes, attribute, classes_of, logs, named, numbers, refuse

_FALSE = -1
_TRUE = -2


def convert(x: Any, wishes: Wishes) -> Reading:
    """Read a node, with weight 1 per model, or a manager of weighted counts with its current weights.

    Variables are named by their numbers, from "1", and have the states False and True. Like weighted counts, the
    circuit is over all variables of the node's manager.
    """
    kinds = classes_of(x)
    if "SddNode" in kinds:
        return _reading(x, wishes, x, lambda literal: 0.0)
    if "WmcManager" not in kinds:
        raise refuse(x, "expected an SddNode, or a WmcManager (node.wmc()) with the weights of literals")
    in_logs = float(attribute(x, "zero_weight")) == -math.inf
    weight = attribute(x, "literal_weight")

    def log_weight(literal: int) -> float:
        value = float(weight(literal))
        if math.isnan(value) or value == math.inf or (value < 0.0 and not in_logs):
            raise ModelError(f"literal {literal} has the weight {value}; expected numbers that are not negative")
        return value if in_logs else float(logs(numbers(value)))

    return _reading(x, wishes, attribute(x, "node"), log_weight)


def _reading(x: Any, wishes: Wishes, node: Any, log_weight: Callable[[int], float]) -> Reading:
    """Read a node; PySDD's own values are weighted counts with all weight on one assignment."""
    circuit = _Reader(x, wishes, node, log_weight).circuit()

    def theirs(points: Floats) -> list[float]:
        counts: list[float] = []
        for row in points:
            manager = node.wmc(log_mode=True)
            for v, state in enumerate(row.tolist(), 1):
                chosen = v if state else -v
                manager.set_literal_weight(chosen, log_weight(chosen))
                manager.set_literal_weight(-chosen, manager.zero_weight)
            counts.append(float(manager.propagate()))
        return counts

    return Reading(circuit, theirs)


class _Reader:
    """Reads decision nodes, primes and subs first, and adds leaves for variables free in an element."""

    def __init__(self, x: Any, wishes: Wishes, root: Any, log_weight: Callable[[int], float]) -> None:
        self.root = root
        self.n = int(attribute(root, "manager").var_count())
        names = named(wishes, [str(v) for v in range(1, self.n + 1)], x)
        self.builder = CircuitBuilder(Domain(Categorical(name, (False, True)) for name in names))
        self.weights = [(log_weight(-v), log_weight(v)) for v in range(1, self.n + 1)]
        self.literals: dict[int, int] = {}
        self.free: dict[int, int] = {}
        self.known: dict[int, tuple[int, int]] = {}  # node id to circuit node (or a constant) and scope, in bits

    def circuit(self) -> Circuit:
        """Return the circuit; raises ModelError for a node without models."""
        node, scope = self._read_all()
        if node == _FALSE:
            raise ModelError("the SDD is false: it has no model, and so no distribution")
        everything = (1 << self.n) - 1
        parts = [] if node == _TRUE else [node]
        parts += self._free_leaves(everything & ~scope)
        self.builder.product(parts)
        return self.builder.build(normalised=False)

    def _read_all(self) -> tuple[int, int]:
        """Read the root, without recursion; return its node and scope."""
        waiting = [self.root]
        while waiting:
            node = waiting[-1]
            key = int(node.id)
            if key not in self.known:
                below = [child for pair in node.elements() for child in pair] if node.is_decision() else []
                lacking = [child for child in below if int(child.id) not in self.known]
                if lacking:
                    waiting += lacking
                    continue
                self.known[key] = self._read(node)
            waiting.pop()
        return self.known[int(self.root.id)]

    def _read(self, node: Any) -> tuple[int, int]:
        if node.is_true():
            return _TRUE, 0
        if node.is_false():
            return _FALSE, 0
        if node.is_literal():
            literal = int(node.literal)
            return self._literal(literal), 1 << (abs(literal) - 1)
        elements = [tuple(self.known[int(child.id)] for child in pair) for pair in node.elements()]
        alive = [(prime, sub) for prime, sub in elements if _FALSE not in (prime[0], sub[0])]
        if not alive:
            return _FALSE, 0
        scope = 0
        for prime, sub in alive:
            scope |= prime[1] | sub[1]
        parts: list[int] = []
        for prime, sub in alive:
            factors = [p for p, _ in (prime, sub) if p != _TRUE]
            factors += self._free_leaves(scope & ~(prime[1] | sub[1]))
            parts.append(factors[0] if len(factors) == 1 else self.builder.product(factors))
        return (parts[0] if len(parts) == 1 else self.builder.sum(parts, log_weights=[0.0] * len(parts))), scope

    def _literal(self, literal: int) -> int:
        if literal not in self.literals:
            v = abs(literal) - 1
            no, yes = self.weights[v]
            weights = (no, -math.inf) if literal < 0 else (-math.inf, yes)
            self.literals[literal] = self.builder.categorical(v, log_weights=weights)
        return self.literals[literal]

    def _free_leaves(self, scope: int) -> list[int]:
        """Return leaves that allow both literals, for the variables whose bits are set."""
        out: list[int] = []
        for v in (v for v in range(self.n) if scope >> v & 1):
            if v not in self.free:
                self.free[v] = self.builder.categorical(v, log_weights=self.weights[v])
            out.append(self.free[v])
        return out
