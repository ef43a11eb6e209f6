"""AND/OR search, best first, with dives on request: expands the best partial assignment while memory lasts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from certimap.certify.ledger import Ledger
from certimap.core.box import Boxes
from certimap.core.control import Control
from certimap.networks.posterior import NetworkPosterior
from certimap.solvers.base import Effort
from certimap.solvers.baselines.and_or_graph import SHARE_OF_MEMORY, AndOrGraph, Node
from certimap.solvers.networks.and_or_solver import AndOrSolver
from certimap.solvers.networks.aobb import STEP_NODES, AndOrState, advance
from certimap.solvers.networks.relaxed import RELAXATION, point_of

LOOKAHEAD = 4  # nodes of a dive that is cut short
LONGEST_STRIDE = 64  # short dives between whole ones that have stopped helping


@dataclass(eq=False)
class BestFirstState:
    """The graph; `depth_first` takes over where it outgrows its memory.

    `stride` and `until_dive` time whole dives, where the solver makes any.
    """

    posterior: NetworkPosterior
    control: Control
    graph: AndOrGraph | None = None
    depth_first: AndOrState | None = None
    n_nodes: int = 0
    stride: int = 1
    until_dive: int = 0
    done: bool = False


@dataclass(frozen=True)
class AndOrBestFirst(AndOrSolver):
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

    Parameters
    ----------
    i_bound, iterations
        Of the mini-bucket relaxation that bounds the subproblems.
    dives
        Whether to alternate expansions with dives.
    """

    dives: bool = False

    name: ClassVar[str] = "aobf"

    def init(
        self, posterior: NetworkPosterior, control: Control, rng: np.random.Generator, boxes: Boxes | None = None
    ) -> BestFirstState:
        self.refuse_boxes(boxes)
        return BestFirstState(posterior, control)

    def effort(self, state: BestFirstState) -> Effort:
        deep = state.depth_first
        if deep is not None:
            return Effort(deep.n_nodes, 300 * len(deep.cache), deep.n_nodes)
        held = 0 if state.graph is None else state.graph.n_bytes
        return Effort(state.n_nodes, held, state.n_nodes)

    def step(self, state: BestFirstState, ledger: Ledger) -> BestFirstState:
        """Open the space, or expand a few hundred nodes."""
        if state.graph is None and state.depth_first is None:
            state.graph = AndOrGraph(self.open_space(state.posterior, ledger))
        if state.depth_first is not None:
            assert state.depth_first.space is not None
            advance(state.depth_first, state.depth_first.space, ledger)
            state.done = state.depth_first.done
            return state
        graph = state.graph
        assert graph is not None
        left = state.control.nodes_left(state.n_nodes)
        end = state.n_nodes + (STEP_NODES if left is None else min(STEP_NODES, left))
        while state.n_nodes < end and not state.control.should_stop:
            if graph.is_solved or graph.upper + graph.space.log_slack <= ledger.best_log_prob:
                break
            self.grow(graph, state, end - state.n_nodes)
            if graph.lower > ledger.best_log_prob + graph.space.log_slack:
                ledger.candidates(point_of(state.posterior, graph.assignment()))
        if graph.is_solved and graph.lower > -math.inf:
            ledger.candidates(point_of(state.posterior, graph.assignment()))
        ledger.upper_bound(max(graph.upper + graph.space.log_slack, ledger.best_log_prob), RELAXATION)
        state.done = graph.is_solved or graph.upper <= ledger.best_log_prob or graph.upper == -math.inf
        if not state.done and graph.n_bytes > SHARE_OF_MEMORY * state.control.memory_limit:
            state.depth_first = AndOrState(state.posterior, state.control, graph.space, cache=graph.solutions())
            state.depth_first.n_nodes = state.n_nodes
            state.graph = None
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
