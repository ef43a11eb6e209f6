"""Sentential decision diagrams of PySDD, with literal weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from certimap.circuits.circuit import Circuit
from certimap.core.arrays import Floats
from certimap.core.logs import log_of
from certimap.errors import ModelError
from certimap.interop.reading import Reading, Wishes, attribute, classes_of, named, numbers, refuse
from certimap.io.logic import FALSE, TRUE, LogicBuilder


def convert(x: Any, wishes: Wishes) -> Reading:
    """Read a node, with weight 1 per model, or a manager of weighted counts with its current weights.

    The circuit is over all variables of the node's manager, named by their numbers, from "1".
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
        return value if in_logs else float(log_of(numbers(value)))

    return _reading(x, wishes, attribute(x, "node"), log_weight)


def _reading(x: Any, wishes: Wishes, node: Any, log_weight: Callable[[int], float]) -> Reading:
    """Read a node; PySDD's own values are weighted counts with all weight on one assignment."""
    n = int(attribute(node, "manager").var_count())
    names = named(wishes, [str(v) for v in range(1, n + 1)], x)
    weights = {literal: log_weight(literal) for v in range(1, n + 1) for literal in (-v, v)}
    circuit = _circuit(node, names, weights)

    def theirs(points: Floats) -> list[float]:
        counts: list[float] = []
        for row in points:
            manager = node.wmc(log_mode=True)
            for v, state in enumerate(row.tolist(), 1):
                chosen = v if state else -v
                manager.set_literal_weight(chosen, weights[chosen])
                manager.set_literal_weight(-chosen, manager.zero_weight)
            counts.append(float(manager.propagate()))
        return counts

    return Reading(circuit, theirs)


def _circuit(root: Any, names: list[str], weights: dict[int, float]) -> Circuit:
    """Read decision nodes, primes and subs first, without recursion; ModelError for a node without models."""
    builder = LogicBuilder("PySDD", len(names), names)
    known: dict[int, int] = {}
    waiting = [root]
    while waiting:
        node = waiting[-1]
        if int(node.id) in known:
            waiting.pop()
            continue
        pairs = list(node.elements()) if node.is_decision() else []
        lacking = [child for pair in pairs for child in pair if int(child.id) not in known]
        if lacking:
            waiting += lacking
        elif pairs:
            elements = [builder.conjunction([known[int(child.id)] for child in pair]) for pair in pairs]
            known[int(node.id)] = builder.disjunction(elements)
        elif node.is_literal():
            known[int(node.id)] = builder.literal(int(node.literal))
        else:
            known[int(node.id)] = TRUE if node.is_true() else FALSE
    if known[int(root.id)] == FALSE:
        raise ModelError("the SDD is false: it has no model, and so no distribution")
    return builder.circuit(known[int(root.id)], weights)
