"""AND/OR search, best first: expands what the best partial assignment still leaves open, while memory lasts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from certimap.networks.posterior import NetworkPosterior
from certimap.solvers.base import Effort
from certimap.solvers.networks.and_or import AndOrSpace, Branches
from certimap.solvers.networks.and_or_solver import AndOrSolver
from certimap.solvers.networks.aobb import STEP_NODES, AndOrState, advance
from certimap.solvers.networks.relaxed import RELAXATION, point_of

if TYPE_CHECKING:
    from certimap.box import Boxes
    from certimap.certify.ledger import Ledger
    from certimap.control import Control

NODE_BYTES = 1200
SHARE_OF_MEMORY = 0.5


@dataclass(eq=False)
class Node:
    """A variable in a context: an upper bound, and once expanded its states' children.

    `states` holds the path by which it was reached first; its subproblem depends on the context only.
    """

    variable: int
    states: NDArray[np.int64]
    upper: float
    depth: int
    branches: Branches | None = None
    children: list[list[Node]] = field(default_factory=list[list["Node"]])
    parents: list[Node] = field(default_factory=list["Node"])
    choice: int = -1
    is_solved: bool = False

    def revise(self) -> bool:
        """Recompute bound and choice from the children; return whether anything changed."""
        assert self.branches is not None
        totals = self.branches.value + np.array([sum(c.upper for c in row) for row in self.children])
        self.choice = int(np.argmax(totals))
        upper = min(self.upper, float(totals[self.choice]))
        is_solved = all(c.is_solved for c in self.children[self.choice])
        changed = upper < self.upper or is_solved != self.is_solved
        self.upper, self.is_solved = upper, is_solved
        return changed


class BestFirst:
    """AO* on the context-minimal AND/OR graph of one search space."""

    def __init__(self, space: AndOrSpace) -> None:
        self.space = space
        self.nodes: dict[tuple[int, bytes], Node] = {}
        empty = np.zeros(len(space.query), np.int64)
        self.roots = [self._node(r, empty, space.root_bound(r), 0) for r in space.roots]

    def _node(self, variable: int, states: NDArray[np.int64], upper: float, depth: int) -> Node:
        key = self.space.key(variable, states)
        if key not in self.nodes:
            self.nodes[key] = Node(variable, states.copy(), upper, depth)
        return self.nodes[key]

    @property
    def upper(self) -> float:
        """An upper bound on the whole."""
        return math.fsum([self.space.constant, *(r.upper for r in self.roots)])

    @property
    def is_solved(self) -> bool:
        return all(r.is_solved for r in self.roots)

    def expand(self) -> None:
        """Expand one open node of the best partial assignment, and revise what lies above."""
        node = next(r for r in self.roots if not r.is_solved)
        while node.branches is not None:
            node = next(c for c in node.children[node.choice] if not c.is_solved)
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
        self._revise_from(node)

    def _revise_from(self, node: Node) -> None:
        """Revise a node, and its ancestors as far as that changes them, deepest first."""
        waiting: dict[int, dict[int, Node]] = {node.depth: {id(node): node}}
        for depth in range(node.depth, -1, -1):
            for one in waiting.pop(depth, {}).values():
                if one.revise():
                    for parent in one.parents:
                        waiting.setdefault(parent.depth, {})[id(parent)] = parent

    def assignment(self) -> dict[int, int]:
        """Return the states of a solved space, by query variable."""
        found: dict[int, int] = {}
        stack = list(self.roots)
        while stack:
            node = stack.pop()
            found[self.space.query[node.variable]] = node.choice
            stack.extend(node.children[node.choice])
        return found


@dataclass(eq=False)
class BestFirstState:
    """The space and the graph; `depth_first` takes over where the graph outgrows its memory."""

    posterior: NetworkPosterior
    control: Control
    search: BestFirst | None = None
    depth_first: AndOrState | None = None
    n_nodes: int = 0
    done: bool = False


@dataclass(frozen=True)
class AndOrBestFirst(AndOrSolver):
    """Search the AND/OR graph of the query best first (AO*), bounded by mini-buckets.

    Expands the fewest nodes of all searches with these bounds, and improves the upper bound all the while, but
    keeps them all; once they take half of the memory that the run may hold, a depth-first search goes on (see
    `aobb`), with the bound kept.

    Source: Marinescu and Dechter (2007), 'Best-first AND/OR search for graphical models'. Cost: as `aobb` per
    node.
    """

    name: ClassVar[str] = "aobf"

    def init(
        self,
        posterior: NetworkPosterior,
        control: Control,
        rng: np.random.Generator,
        boxes: Boxes | None = None,
    ) -> BestFirstState:
        self.refuse_boxes(boxes)
        return BestFirstState(posterior, control)

    def effort(self, state: BestFirstState) -> Effort:
        if state.depth_first is not None:
            return Effort(state.n_nodes + state.depth_first.n_nodes, 300 * len(state.depth_first.cache))
        held = 0 if state.search is None else NODE_BYTES * len(state.search.nodes)
        return Effort(state.n_nodes, held, state.n_nodes)

    def step(self, state: BestFirstState, ledger: Ledger) -> BestFirstState:
        """Open the space, or expand a few hundred nodes."""
        if state.search is None:
            state.search = BestFirst(self.open_space(state.posterior, ledger))
        if state.depth_first is not None:
            advance(state.depth_first, state.search.space, ledger)
            state.done = state.depth_first.done
            return state
        search = state.search
        left = state.control.nodes_left(state.n_nodes)
        for _ in range(STEP_NODES if left is None else min(STEP_NODES, left)):
            if search.is_solved or search.upper + search.space.log_slack <= ledger.best_log_prob:
                break
            if state.control.should_stop:
                break
            search.expand()
            state.n_nodes += 1
        if search.is_solved:
            ledger.candidates(point_of(state.posterior, search.assignment()))
        ledger.upper_bound(max(search.upper + search.space.log_slack, ledger.best_log_prob), RELAXATION)
        state.done = search.is_solved or search.upper <= ledger.best_log_prob or search.upper == -math.inf
        if not state.done and NODE_BYTES * len(search.nodes) > SHARE_OF_MEMORY * state.control.memory_limit:
            space = search.space
            state.search = BestFirst(space)
            state.depth_first = AndOrState(state.posterior, state.control, space)
        return state
