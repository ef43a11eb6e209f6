"""deeprob-kit's circuits as JSON (`save_spn_json`), with `edges`, or `links` from older versions of networkx."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from certimap.circuits.circuit import CircuitBuilder
from certimap.core.domain import MAX_STATES
from certimap.io.circuit_records import JsonCircuit, JsonNode, Leaf, Record, is_record, items, shown
from certimap.io.files import AnyPath, cut

_EDGE = ("source", "target", "idx")


class DeeprobCircuit(JsonCircuit):
    """Reader for deeprob-kit: a networkx graph with edges (or links) from children to parents."""

    def __init__(self, path: AnyPath, data: Record) -> None:
        super().__init__(path, data)
        for record in items(data["nodes"]):
            if not is_record(record) or not isinstance(record.get("class"), str):
                raise self.fail("has a node without a class; expected circuits of deeprob-kit (save_spn_json)")
            key = self.integer(record.get("id"), "the id of a node")
            if key in self.nodes:
                raise self.fail(f"the id {key} is defined twice; expected once")
            self.nodes[key] = JsonNode(record["class"], record)
        edges = data.get("edges", data.get("links"))
        if not isinstance(edges, list):
            raise self.fail("has neither 'edges' nor 'links'; expected a list of one or the other")
        places: dict[int, dict[int, int]] = {}
        for edge in items(edges):
            if not is_record(edge):
                raise self.fail(f"{shown(edge)} is no edge; expected objects with source, target and idx")
            child, parent, place = (self.integer(edge.get(key), f"the {key} of an edge") for key in _EDGE)
            if place in places.setdefault(parent, {}):
                raise self.fail(f"node {parent} has two children at the place {place}; expected one")
            places[parent][place] = child
        for parent, below in places.items():
            if parent not in self.nodes:
                raise self.fail(f"node {parent} is named by an edge and not defined")
            if sorted(below) != list(range(len(below))):
                raise self.fail(f"the children of node {parent} are not at the places 0 to {len(below) - 1}")
            self.nodes[parent].children = [below[k] for k in range(len(below))]

    def is_leaf(self, node: int) -> bool:
        return self.nodes[node].kind not in ("Sum", "Product")

    def inner(self, builder: CircuitBuilder, node: int, ids: Mapping[int, int]) -> int:
        children = [ids[child] for child in self.nodes[node].children]
        if self.nodes[node].kind == "Product":
            return builder.product(children)
        weights = self.field(self.nodes[node].record, "weights", node)
        return builder.sum(children, log_weights=self.probabilities(weights, f"a weight of node {node}"))

    def params(self, node: int) -> Record:
        found = self.field(self.nodes[node].record, "params", node)
        if not is_record(found):
            raise self.fail(f"node {node} has the params {shown(found)}; expected an object")
        return found

    def leaf(self, node: int) -> Leaf:
        kind, record, params = self.nodes[node].kind, self.nodes[node].record, self.params(node)
        if kind == "Bernoulli":
            p = self.number(self.field(params, "p", node), f"the probability of node {node}")
            return self.variable(record, node), self.probabilities([1.0 - p, p], f"a probability of node {node}")
        if kind == "Gaussian":
            mean, sd = (
                self.number(self.field(params, k, node), f"the {k} of node {node}") for k in ("mean", "stddev")
            )
            return self.variable(record, node), (mean, sd)
        if kind != "Categorical":
            raise self.fail(
                f"node {node} is a leaf of the class {cut(kind)}; expected Bernoulli, Categorical, Gaussian or "
                "BinaryCLT"
            )
        logs = self.probabilities(self.field(params, "probabilities", node), f"a probability of node {node}")
        states = self.field(params, "categories", node)
        places = [self.integer(s, f"a category of node {node}") for s in items(states)]
        if (
            len(places) != len(logs)
            or len({*places}) < len(places)
            or not 0 <= max(places, default=-1) < MAX_STATES
        ):
            raise self.fail(
                f"node {node} has {len(places)} categories and {len(logs)} probabilities; expected as many of one "
                "as of "
                f"the other, and categories below {MAX_STATES}"
            )
        own = [-math.inf] * (max(places) + 1)
        for place, log in zip(places, logs, strict=True):
            own[place] = log
        return self.variable(record, node), own

    def special_scope(self, node: int) -> list[int] | None:
        if self.nodes[node].kind != "BinaryCLT":
            return None
        scope = self.field(self.nodes[node].record, "scope", node)
        found = [self.integer(v, f"a variable of node {node}") for v in items(scope)]
        if not found or len(set(found)) < len(found):
            raise self.fail(f"node {node} has the scope {shown(scope)}; expected distinct variables")
        return found

    def special(self, builder: CircuitBuilder, node: int) -> int:
        """Add a Chow-Liu tree: for each variable and state of its parent, a sum over its states."""
        scope, params = self.special_scope(node) or [], self.params(node)
        tree = self.field(params, "tree", node)
        parents: list[int] = items(tree)
        table = self.tables(params, node, len(scope))
        n = len(scope)
        if len(parents) != n or not all(type(p) is int and -1 <= p < n for p in parents):
            raise self.fail(
                f"node {node} has the tree {shown(tree)}; expected the place of each variable's parent"
            )
        below: list[list[int]] = [list[int]() for _ in range(n)]
        roots = [i for i in range(n) if parents[i] == -1]
        for i in range(n):
            if parents[i] != -1:
                below[parents[i]].append(i)
        order = list(roots)
        for i in order:
            order += below[i]
        if len(roots) != 1 or len(order) != n:
            raise self.fail(f"the tree of node {node} is none; expected one root and no cycle")
        values: dict[tuple[int, int], int] = {}
        for i in reversed(order):
            terms = [builder.indicator(scope[i], k) for k in range(2)]
            if below[i]:
                terms = [builder.product([terms[k], *(values[c, k] for c in below[i])]) for k in range(2)]
            for state in range(2 if parents[i] != -1 else 1):
                values[i, state] = builder.sum(terms, log_weights=table[i][state])
        return values[roots[0], 0]

    def tables(self, params: Record, node: int, n: int) -> list[list[list[float]]]:
        """Return ln P(variable | parent), shape (n, 2, 2)."""
        given = self.field(params, "params", node)
        what = f"a log probability of node {node}"
        found: list[list[list[float]]] = []
        for rows in items(given):
            lists = items(rows)
            found.append([self.log_numbers(row, what) for row in lists])
        if len(found) != n or any(len(rows) != 2 or any(len(row) != 2 for row in rows) for rows in found):
            raise self.fail(f"node {node} has tables that are not of the shape ({n}, 2, 2), which is accepted")
        return found

    def log_numbers(self, value: Any, what: str) -> list[float]:
        """Return a list of finite numbers and -Infinity."""
        return [x if x == -math.inf else self.number(x, what) for x in items(value)]
