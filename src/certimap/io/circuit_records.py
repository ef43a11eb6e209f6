"""Shared parts of the readers of circuits: values from files, the order of nodes, variables by number, leaves."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.core.arguments import is_list
from certimap.core.arrays import Floats
from certimap.core.domain import Categorical, Domain, Real, Variable
from certimap.errors import ParseError
from certimap.io.files import cut

Record = Mapping[str, Any]
LeafValues = Sequence[float] | Floats | tuple[float, float]  # log weights of states, or mean and sd
FREE_VARIABLES = 20_000  # limit on variables beyond one per node
MAX_ENTRIES = 2**25  # limit on entries of all leaves: one per state of their variable


def is_record(value: Any) -> TypeGuard[Record]:
    return isinstance(value, dict)


def items(value: Any) -> list[Any]:
    """Return the value if it is a list, else an empty list."""
    return value if is_list(value) else []


def shown(value: Any) -> str:
    """Show a value from a file, shortened."""
    return cut(value) if isinstance(value, str) else reprlib.repr(value)  # values may be deeply nested


def children_first(
    root: int, children: Callable[[int], Iterable[int]], cycle: Callable[[int, int], ParseError]
) -> list[int]:
    """Return the nodes below a root, children before parents; raise `cycle(parent, child)` at a cycle."""
    found: list[int] = []
    state: dict[int, int] = {}  # 1 while its descendants are visited, 2 afterwards
    waiting = [root]
    while waiting:
        node = waiting[-1]
        known = state.get(node)
        if known is not None:
            if known == 1:
                state[node] = 2
                found.append(node)
            waiting.pop()
            continue
        below = list(children(node))
        state[node] = 1
        for child in below:
            if state.get(child) == 1:
                raise cycle(node, child)
            if child not in state:
                waiting.append(child)
    return found


def numbered(sizes: Mapping[int, int], numbers: Iterable[int], boolean: Collection[int] = ()) -> Domain:
    """Return variables named by numbers: binary without a size, real for size 0; `boolean` ones False and True."""
    variables: list[Variable] = []
    for v in numbers:
        size = sizes.get(v, 2)
        states = (False, True) if v in boolean else tuple(range(size))
        variables.append(Categorical(str(v), states) if size else Real(str(v)))
    return Domain(variables)


def joined_size(sizes: dict[int, int], variable: int, size: int) -> bool:
    """Raise a variable's number of states to `size`; False if it is discrete here and real elsewhere."""
    if (sizes.get(variable, size) == 0) != (size == 0):
        return False
    sizes[variable] = max(sizes.get(variable, 0), size)
    return True


def add_leaf(builder: CircuitBuilder, variable: int, values: LeafValues) -> int:
    """Add a Gaussian (a pair: mean and sd), or log weights of the first states; others are impossible."""
    if isinstance(values, tuple):
        return builder.gaussian(variable, *values)
    size = int(builder.domain.n_states[variable])
    return builder.categorical(variable, log_weights=[*values, *[-math.inf] * (size - len(values))])


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
