"""Shared reader of circuits in JSON: checked fields, the order of nodes, variables and leaves."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.core.domain import MAX_STATES, Categorical, Domain, Real, Variable
from certimap.errors import ParseError
from certimap.io.files import AnyPath, cut

Record = Mapping[str, Any]
Leaf = tuple[int, list[float] | tuple[float, float]]  # a variable; log weights of its states, or mean and sd
FREE_VARIABLES = 20_000  # limit on variables beyond one per node
MAX_ENTRIES = 2**25  # limit on entries of all leaves: one per state of their variable


def is_record(value: Any) -> TypeGuard[Record]:
    return isinstance(value, dict)


@dataclass
class JsonNode:
    """One node in either format: its kind, its record and its children by id."""

    kind: str
    record: Record
    children: list[int] = field(default_factory=list[int])


class JsonCircuit:
    """Base reader of both formats: checked fields, the order of nodes, and leaves."""

    def __init__(self, path: AnyPath, data: Record) -> None:
        self.path = path
        self.data = data
        self.nodes: dict[int, JsonNode] = {}
        self.root = 0

    def fail(self, message: str) -> ParseError:
        return ParseError(message, self.path)

    def integer(self, value: Any, what: str) -> int:
        if type(value) is not int or not 0 <= value < 2**31:
            raise self.fail(f"{shown(value)} is {what}; expected an integer of at least 0")
        return value

    def number(self, value: Any, what: str) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(_as_float(value)):
            raise self.fail(f"{shown(value)} is {what}; expected a finite number")
        return float(value)

    def numbers(self, value: Any, what: str) -> list[float]:
        if not isinstance(value, list):
            raise self.fail(f"{shown(value)} stands where a list of numbers, {what}, is expected")
        return [self.number(item, what) for item in items(value)]

    def probabilities(self, value: Any, what: str) -> list[float]:
        """Return natural logs of a list of nonnegative numbers."""
        found = self.numbers(value, what)
        if any(x < 0.0 for x in found):
            raise self.fail(f"{min(found)} is {what}; expected numbers that are not negative")
        return [math.log(x) if x > 0.0 else -math.inf for x in found]

    def field(self, record: Record, key: str, node: int) -> Any:
        if key not in record:
            raise self.fail(f"node {node} has no {key!r}; one is needed")
        return record[key]

    def variable(self, record: Record, node: int) -> int:
        """Return the one variable of a leaf."""
        scope = self.field(record, "scope", node)
        members = items(scope) if is_list(scope) else [scope]
        if len(members) != 1:
            raise self.fail(f"node {node} has a scope of {len(members)} variables; expected a leaf of one")
        return self.integer(members[0], f"a variable of node {node}")

    def order(self) -> list[int]:
        """Return the nodes below the root, children before parents; reject cycles."""
        found: list[int] = []
        state: dict[int, int] = {}  # 1 while its descendants are visited, 2 afterwards
        waiting = [self.root]
        while waiting:
            node = waiting[-1]
            if node not in self.nodes:
                raise self.fail(f"node {node} is named and not defined")
            if state.get(node) == 2:
                waiting.pop()
            elif state.get(node) == 1:
                state[node] = 2
                found.append(waiting.pop())
            else:
                state[node] = 1
                for child in self.nodes[node].children:
                    if state.get(child) == 1:
                        raise self.fail(f"the edges form a cycle through node {child}")
                    if child not in state:
                        waiting.append(child)
        return found

    def domain(self, sizes: Mapping[int, int], n_entries: int) -> Domain:
        """Return variables 0 to the largest; without a size they are binary, size 0 is real."""
        largest = max(sizes, default=-1)
        if largest < 0 or largest > FREE_VARIABLES + len(self.nodes):
            raise self.fail(
                f"has the variable {largest:,} in {len(self.nodes):,} nodes; expected at least one, and none "
                "beyond "
                f"{FREE_VARIABLES:,} more than nodes"
            )
        if n_entries > MAX_ENTRIES or max(sizes.values()) > MAX_STATES:
            raise self.fail(
                f"has leaves with {n_entries:,} entries and variables of {max(sizes.values()):,} states; expected "
                "at "
                f"most {MAX_ENTRIES:,} and {MAX_STATES:,}"
            )
        variables: list[Variable] = []
        for v in range(largest + 1):
            size = sizes.get(v, 2)
            variables.append(Categorical(str(v), tuple(range(size))) if size else Real(str(v)))
        return Domain(variables)

    def leaf(self, node: int) -> Leaf:
        """Return the variable of a leaf, and log weights of its states (a list) or mean and sd (a pair)."""
        raise NotImplementedError

    def inner(self, builder: CircuitBuilder, node: int, ids: Mapping[int, int]) -> int:
        """Add a sum or product."""
        raise NotImplementedError

    def special(self, builder: CircuitBuilder, node: int) -> int:
        """Add a leaf over several variables."""
        raise NotImplementedError

    def special_scope(self, node: int) -> list[int] | None:
        """Return the binary variables of a leaf over several, or None for any other node."""
        return None

    def is_leaf(self, node: int) -> bool:
        raise NotImplementedError

    def circuit(self) -> Circuit:
        order = self.order()
        sizes: dict[int, int] = {}
        leaves: dict[int, Leaf] = {}
        for node in order:
            scope = self.special_scope(node)
            needs = [(v, 2) for v in scope or ()]
            if scope is None and self.is_leaf(node):
                variable, values = leaves[node] = self.leaf(node)
                needs = [(variable, len(values) if isinstance(values, list) else 0)]
            for variable, size in needs:
                if variable in sizes and (sizes[variable] == 0) != (size == 0):
                    raise self.fail(f"variable {variable} is real and discrete; expected one or the other")
                sizes[variable] = max(sizes.get(variable, 0), size)
        builder = CircuitBuilder(self.domain(sizes, sum(sizes[v] for v, _ in leaves.values())))
        ids: dict[int, int] = {}
        for node in order:
            if node not in leaves:
                scope = self.special_scope(node)
                ids[node] = self.inner(builder, node, ids) if scope is None else self.special(builder, node)
                continue
            variable, values = leaves[node]
            if isinstance(values, tuple):
                ids[node] = builder.gaussian(variable, *values)
            else:
                ids[node] = builder.categorical(
                    variable, log_weights=[*values, *[-math.inf] * (sizes[variable] - len(values))]
                )
        return over_own_variables(builder.build(normalised=False))


def over_own_variables(circuit: Circuit) -> Circuit:
    """Return the part of a circuit reachable from its root, over the variables of its leaves alone.

    Files number variables and may skip numbers. A variable without leaves would be free in the circuit, with
    weight 1 in each state.
    """
    reached = np.zeros(circuit.n_nodes, np.bool_)
    reached[circuit.root] = True
    for node in np.flatnonzero(np.diff(circuit.child_ptr))[::-1].tolist():
        if reached[node]:
            reached[circuit.children_of(node)] = True
    own = np.unique(circuit.leaf_var[reached & (circuit.leaf_var >= 0)])
    if len(own) == len(circuit.domain):
        return circuit
    place = np.full(len(circuit.domain) + 1, -1, np.int32)  # the last entry maps the -1 of inner nodes to itself
    place[own] = np.arange(len(own))
    number = np.cumsum(reached) - 1
    on_edges = np.repeat(reached, np.diff(circuit.child_ptr))
    on_params = np.repeat(reached, np.diff(circuit.param_ptr))
    return Circuit(
        circuit.domain.subset(own.tolist()),
        circuit.kind[reached],
        np.concatenate([[0], np.cumsum(np.diff(circuit.child_ptr)[reached])]).astype(np.int64),
        number[circuit.children[on_edges]],
        circuit.log_weights[on_edges],
        place[circuit.leaf_var[reached]],
        np.concatenate([[0], np.cumsum(np.diff(circuit.param_ptr)[reached])]).astype(np.int64),
        circuit.params[on_params],
    )


def _as_float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def is_list(value: Any) -> TypeGuard[list[Any]]:
    """Whether a value is a list."""
    return isinstance(value, list)


def items(value: Any) -> list[Any]:
    """Return the value if it is a list, else an empty list."""
    return value if is_list(value) else []


def shown(value: Any) -> str:
    """Show a value from a file, shortened."""
    return cut(value) if isinstance(value, str) else reprlib.repr(value)  # values may be deeply nested
