"""AND/OR search, best first, with dives on request: expands the best partial assignment while memory lasts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from certimap.certify.ledger import Ledger
from certimap.core.arrays import Ints
from certimap.core.control import Control
from certimap.networks.posterior import NetworkPosterior
from certimap.solvers.base import RELAXATION, Effort
from certimap.solvers.networks.and_or import (
    STEP_NODES,
    AndOrSolver,
    AndOrSpace,
    AndOrState,
    Branches,
    Solved,
    Tour,
    advance,
)

NODE_BYTES = 1200
SHARE_OF_MEMORY = 0.5
LOOKAHEAD = 4  # nodes of a dive that is cut short
LONGEST_STRIDE = 64  # short dives between whole ones that have stopped helping


@dataclass(eq=False)
class Node:
    """A variable in a context, and once expanded its states' children.

    `states`: the path by which it was reached first. `upper`, `choice`: a bound on the subproblem, and the state
    that promises it. `lower`, `known`: the value of an assignment that the graph holds, and its first state.
    """

    variable: int
    states: Ints
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

    def _node(self, variable: int, states: Ints, upper: float, depth: int) -> Node:
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
            bounds = node.branches.bounds[:, s].tolist()
            pairs = zip(space.children[v], bounds, strict=True)
            node.children.append([self._node(child, states, bound, node.depth + 1) for child, bound in pairs])
            for found in node.children[-1]:
                found.parents.append(node)
        node.revise()

    def revise_above(self, nodes: Iterable[Node]) -> None:
        """Revise the ancestors of nodes that have changed, as far as that changes them, deepest first."""
        waiting: dict[int, dict[int, Node]] = {}
        for node in nodes:
            waiting.setdefault(node.depth, {})[id(node)] = node
        begun = {key for row in waiting.values() for key in row}
        for depth in range(max(waiting, default=0), -1, -1):
            for key, one in waiting.pop(depth, {}).items():
                if one.revise() or key in begun:
                    for parent in one.parents:
                        waiting.setdefault(parent.depth, {})[id(parent)] = parent

    def assignment(self) -> dict[int, int]:
        """Return the states of the best assignment that the graph holds, by query variable."""
        return {self.space.query[i]: s for root in self.roots for i, s in _states_below(root)}

    def solutions(self) -> dict[tuple[int, bytes], Solved]:
        """Return what is proved of each subproblem, as a depth-first search keeps it."""
        found: dict[tuple[int, bytes], Solved] = {}
        for key, node in self.nodes.items():
            if node.branches is not None:
                is_known = node.is_solved and node.lower > -math.inf
                states = tuple(_states_below(node)) if is_known else ()
                found[key] = Solved(node.lower if is_known else -math.inf, node.upper, states)
        return found


def _states_below(node: Node) -> Iterable[tuple[int, int]]:
    stack = [node]
    while stack:
        one = stack.pop()
        yield one.variable, one.known
        stack.extend(one.children[one.known])


@dataclass(eq=False)
class BestFirstState(AndOrState):
    """The graph, None once it has outgrown its memory; `stride` and `until_dive` time whole dives."""

    graph: AndOrGraph | None = None
    stride: int = 1
    until_dive: int = 0


@dataclass(frozen=True)
class AndOrBestFirst(AndOrSolver, name="aobf"):
    """Search the AND/OR graph of the query best first (AO*), bounded by mini-buckets.

    Expands the fewest nodes of all searches with these bounds, and improves the upper bound all the while, but
    keeps them all; once they take half of the memory that the run may hold, a depth-first search goes on (see
    `aobb`), with what the graph has proved of each subproblem.

    With dives (`aaobf`) the best partial assignment is completed greedily, depth first, and the nodes that a dive
    meets enter the graph, so that answers get better and the upper bound falls in one search. Dives that find
    nothing better become rarer; between them come short ones of a few nodes. What lies above is revised once per
    dive, which makes a node cheaper. A proof takes somewhat more nodes; dives help where the first answer is poor.

    Sources: Marinescu and Dechter (2007), 'Best-first AND/OR search for graphical models'; Marinescu, Lee, Dechter
    and Ihler (2018), 'AND/OR search for marginal MAP', for dives and look-aheads. Cost: as `aobb` per node.

    `i_bound`, `iterations`: of the mini-bucket relaxation that bounds the subproblems. `dives`: whether to
    alternate expansions with dives.
    """

    dives: bool = False

    def start(self, posterior: NetworkPosterior, control: Control, rng: np.random.Generator) -> BestFirstState:
        return BestFirstState(posterior, control)

    def effort(self, state: BestFirstState) -> Effort:
        kept = 0 if state.tour is None else 300 * len(state.tour.cache)
        held = kept if state.graph is None else state.graph.n_bytes
        return Effort(state.n_nodes, held, state.n_nodes)

    def step(self, state: BestFirstState, ledger: Ledger) -> BestFirstState:
        """Open the space, or expand a few hundred nodes."""
        if state.tour is not None:
            advance(state, state.tour, ledger)
            return state
        graph = state.graph = state.graph or AndOrGraph(self.open_space(state.posterior, ledger))
        left = state.control.nodes_left(state.n_nodes)
        end = state.n_nodes + (STEP_NODES if left is None else min(STEP_NODES, left))
        while state.n_nodes < end and not state.control.should_stop:
            if graph.is_solved or graph.upper + graph.space.log_slack <= ledger.best_log_prob:
                break
            self.grow(graph, state, end - state.n_nodes)
            if graph.lower > ledger.best_log_prob + graph.space.log_slack:
                ledger.candidates(state.posterior.point(graph.assignment()))
        if graph.is_solved and graph.lower > -math.inf:
            ledger.candidates(state.posterior.point(graph.assignment()))
        ledger.upper_bound(max(graph.upper + graph.space.log_slack, ledger.best_log_prob), RELAXATION)
        state.done = graph.is_solved or graph.upper <= ledger.best_log_prob or graph.upper == -math.inf
        if not state.done and graph.n_bytes > SHARE_OF_MEMORY * state.control.memory_limit:
            state.tour, state.graph = Tour(graph.space, graph.solutions()), None
        return state

    def grow(self, graph: AndOrGraph, state: BestFirstState, n_nodes: int) -> None:
        """Expand the node that the best partial assignment leaves open, or dive from it; at most so many nodes."""
        if not self.dives:
            node = graph.open_node()
            graph.expand(node)
            graph.revise_above([node])
            state.n_nodes += 1
        elif state.until_dive > 0:
            state.until_dive -= 1
            state.n_nodes += len(dive(graph, min(LOOKAHEAD, n_nodes)))
        else:
            before = graph.lower
            state.n_nodes += len(dive(graph, n_nodes))
            state.stride = 1 if graph.lower > before else min(2 * state.stride, LONGEST_STRIDE)
            state.until_dive = state.stride - 1


def dive(graph: AndOrGraph, n_nodes: int) -> list[Node]:
    """Expand at most so many nodes to complete the best partial assignment; return them."""
    expanded: list[Node] = []
    waiting = [graph.open_node()]
    while waiting and len(expanded) < n_nodes:
        node = waiting.pop()
        if node.is_solved:
            continue
        if node.branches is None:
            graph.expand(node)
            expanded.append(node)
        waiting.extend(c for c in node.children[node.choice] if c.branches is None)
    graph.revise_above(expanded)
    return expanded
