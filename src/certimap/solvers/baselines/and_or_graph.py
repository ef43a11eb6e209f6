"""The context-minimal AND/OR graph of a search space, grown node by node, with bounds on both sides."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from certimap.solvers.networks.and_or import AndOrSpace, Branches
from certimap.solvers.networks.aobb import Solved

NODE_BYTES = 1200
SHARE_OF_MEMORY = 0.5


@dataclass(eq=False)
class Node:
    """A variable in a context, and once expanded its states' children.

    `states` holds the path by which it was reached first; its subproblem depends on the context only. `upper`
    bounds the subproblem, and `choice` is the state that promises it; `lower` is the value of an assignment that
    the graph holds, which begins with state `known`.
    """

    variable: int
    states: NDArray[np.int64]
    upper: float
    depth: int
    lower: float = -math.inf
    branches: Branches | None = None
    children: list[list[Node]] = field(default_factory=list[list["Node"]])
    parents: list[Node] = field(default_factory=list["Node"])
    choice: int = -1
    known: int = -1
    is_solved: bool = False

    def revise(self) -> bool:
        """Recompute bounds and choices from the children; return whether anything changed."""
        assert self.branches is not None
        value = self.branches.value.tolist()
        choice, known, upper, lower = 0, self.known, -math.inf, self.lower
        for s, row in enumerate(self.children):
            most, least = value[s], value[s]
            for child in row:
                most += child.upper
                least += child.lower
            if most > upper:
                choice, upper = s, most
            if least > lower:
                known, lower = s, least
        upper = min(self.upper, upper)
        is_solved = upper <= lower or all(c.is_solved for c in self.children[choice])
        changed = upper < self.upper or lower > self.lower or is_solved != self.is_solved
        self.choice, self.known, self.upper, self.lower, self.is_solved = choice, known, upper, lower, is_solved
        return changed


class AndOrGraph:
    """What a best-first search has seen of a space: nodes by context, and bounds that follow from them."""

    def __init__(self, space: AndOrSpace) -> None:
        self.space = space
        self.nodes: dict[tuple[int, bytes], Node] = {}
        empty = np.zeros(len(space.query), np.int64)
        self.roots = [self._node(r, empty, space.root_bound(r), 0) for r in space.roots]

    def _node(self, variable: int, states: NDArray[np.int64], upper: float, depth: int) -> Node:
        key = self.space.key(variable, states)
        if key not in self.nodes:
            self.nodes[key] = Node(variable, states, upper, depth)
        return self.nodes[key]

    @property
    def upper(self) -> float:
        """An upper bound on the whole."""
        return math.fsum([self.space.constant, *(r.upper for r in self.roots)])

    @property
    def lower(self) -> float:
        """The value of the best assignment that the graph holds; -inf where it holds none."""
        return math.fsum([self.space.constant, *(r.lower for r in self.roots)])

    @property
    def is_solved(self) -> bool:
        return all(r.is_solved for r in self.roots)

    @property
    def n_bytes(self) -> int:
        """The memory of the nodes, about."""
        return NODE_BYTES * len(self.nodes)

    def open_node(self) -> Node:
        """Return a node without children of the assignment that promises most."""
        node = next(r for r in self.roots if not r.is_solved)
        while node.branches is not None:
            node = next(c for c in node.children[node.choice] if not c.is_solved)
        return node

    def expand(self, node: Node) -> None:
        """Give a node its children, and revise it, but nothing above it."""
        space, v = self.space, node.variable
        node.branches = space.branches(v, node.states)
        for s in range(int(space.n_states[v])):
            states = node.states.copy()
            states[v] = s
            row: list[Node] = []
            for k, child in enumerate(space.children[v]):
                found = self._node(child, states, float(node.branches.bounds[k, s]), node.depth + 1)
                found.parents.append(node)
                row.append(found)
            node.children.append(row)
        node.revise()

    def revise_above(self, nodes: Iterable[Node]) -> None:
        """Revise the ancestors of nodes that have changed, as far as that changes them, deepest first."""
        waiting: dict[int, dict[int, Node]] = {}
        deepest = 0
        for node in nodes:
            waiting.setdefault(node.depth, {})[id(node)] = node
            deepest = max(deepest, node.depth)
        begun = {key for row in waiting.values() for key in row}
        for depth in range(deepest, -1, -1):
            for key, one in waiting.pop(depth, {}).items():
                if one.revise() or key in begun:
                    for parent in one.parents:
                        waiting.setdefault(parent.depth, {})[id(parent)] = parent

    def assignment(self) -> dict[int, int]:
        """Return the states of the best assignment that the graph holds, by query variable."""
        return {self.space.query[i]: s for root in self.roots for i, s in _states_below(root)}

    def solutions(self) -> dict[tuple[int, bytes], Solved]:
        """Return what is proved of each subproblem, as a depth-first search keeps it."""
        return {key: _as_solved(node) for key, node in self.nodes.items() if node.branches is not None}


def _as_solved(node: Node) -> Solved:
    if node.is_solved and node.lower > -math.inf:
        return Solved(node.lower, node.upper, tuple(_states_below(node)))
    return Solved(-math.inf, node.upper, ())


def _states_below(node: Node) -> Iterable[tuple[int, int]]:
    stack = [node]
    while stack:
        one = stack.pop()
        yield one.variable, one.known
        stack.extend(one.children[one.known])
