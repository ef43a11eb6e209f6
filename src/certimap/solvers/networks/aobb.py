"""AND/OR branch and bound, depth first: independent subproblems, cached by context, bounded by mini-buckets."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from certimap.certify.ledger import Ledger
from certimap.core.box import Boxes
from certimap.core.control import Control
from certimap.core.posterior import Capability, Posterior
from certimap.errors import SolverError
from certimap.networks.posterior import NetworkPosterior, TwoSidedNetworkPosterior
from certimap.networks.relaxation.decoding import decode
from certimap.solvers.base import RELAXATION, Effort, Family, Solver
from certimap.solvers.networks.and_or import MARGIN, AndOrSpace, Branches


def check_settings(i_bound: int, iterations: int) -> None:
    """Refuse settings out of range."""
    if i_bound < 1 or iterations < 0:
        raise SolverError(
            f"i_bound is {i_bound} and iterations {iterations}; an i_bound of at least 1 and iterations not below "
            "0 are expected"
        )


@dataclass(frozen=True)
class AndOrSolver(Solver):
    """A search of the AND/OR space of a query, bounded by mini-buckets.

    `i_bound`, `iterations`: of the mini-bucket relaxation, see `wmb`.
    """

    i_bound: int = 10
    iterations: int = 10

    needs: ClassVar[tuple[Capability, ...]] = (NetworkPosterior,)
    family: ClassVar[Family] = "search"

    def __post_init__(self) -> None:
        check_settings(self.i_bound, self.iterations)

    def unsuited(self, posterior: Posterior) -> str | None:
        """Refuse a network in which a point has no exact value, which the search needs at its leaves."""
        if isinstance(posterior, TwoSidedNetworkPosterior):
            return (
                f"solver {self.name!r} sums nuisance variables at every assignment, and these are too wide for "
                "that; use solver='auto' or 'wmb', or query more variables"
            )
        return None

    def open_space(self, posterior: NetworkPosterior, ledger: Ledger) -> AndOrSpace:
        """Build a search space, and report the bound and the answers of its relaxation."""
        space = AndOrSpace(posterior, self.i_bound, self.iterations)
        s = space.tree.scratch()
        ledger.upper_bound(min(space.tree.bound(scratch=s, clock=space.clock), posterior.log_ceiling), RELAXATION)
        start = posterior.point(decode(space.tree, scratch=s, clock=space.clock))
        ledger.candidates(start)
        ledger.candidates(posterior.prober().climb(start))
        return space


STEP_NODES = 500
CACHE_ENTRIES = 2_000_000


@dataclass(frozen=True)
class Solved:
    """A subproblem: the value reached, by which states, and an upper bound on it.

    Without states it was given up, because its bound was not enough.
    """

    value: float
    upper: float
    states: tuple[tuple[int, int], ...]

    @property
    def is_exact(self) -> bool:
        return bool(self.states)


GIVEN_UP = Solved(-math.inf, -math.inf, ())


@dataclass(eq=False)
class SearchFrame:
    """A variable under search: its states by falling bound, and the children of the present state.

    `need` is what the subproblem must exceed to matter; `sum` and `upper` are value and bound of the present state
    with its solved children, -inf once it is given up; `refuted` is the largest bound of states left behind.
    """

    variable: int
    key: tuple[int, bytes]
    need: float
    branches: Branches
    order: NDArray[np.int64]
    turn: int = -1
    child: int = 0
    sum: float = -math.inf
    upper: float = -math.inf
    parts: list[Solved] = field(default_factory=list[Solved])
    best: Solved = GIVEN_UP
    refuted: float = -math.inf


class DepthFirst:
    """The search of one root, as an explicit stack; `advance` does a bounded number of nodes."""

    def __init__(self, space: AndOrSpace, cache: dict[tuple[int, bytes], Solved], root: int, need: float) -> None:
        self.space, self.cache = space, cache
        self.states = np.zeros(len(space.query), np.int64)
        self.stack: list[SearchFrame] = []
        self.n_nodes = 0
        self.result: Solved | None = None
        self._open(root, need)

    def _open(self, variable: int, need: float) -> None:
        """Begin a subproblem, or take its result from the cache."""
        key = self.space.key(variable, self.states)
        known = self.cache.get(key)
        if known is not None and (known.is_exact or known.upper <= need + MARGIN):
            self._close(known)
            return
        branches = self.space.branches(variable, self.states)
        self.stack.append(SearchFrame(variable, key, need, branches, np.argsort(-branches.total, kind="stable")))
        self.n_nodes += 1

    def advance(self, n_nodes: int, control: Control) -> None:
        """Search on until so many more nodes are opened, the root is solved, or the run should stop."""
        end = self.n_nodes + n_nodes
        while self.stack and self.n_nodes < end and not control.should_stop:
            frame = self.stack[-1]
            if frame.turn < 0 or frame.child == len(self.space.children[frame.variable]):
                self._next_state(frame)
            else:
                self._next_child(frame)

    @property
    def bound(self) -> float:
        """An upper bound on the root's value as things stand."""
        if self.result is not None:
            return self.result.upper
        frame = self.stack[0]
        left = frame.branches.total[frame.order[max(frame.turn, 0) :]]
        return max(frame.refuted, float(left.max(initial=-math.inf)))

    def _next_state(self, frame: SearchFrame) -> None:
        """Enter the value of a finished state, and go on to the next one that may still win."""
        frame.refuted = max(frame.refuted, frame.upper)
        if frame.sum > frame.best.value:
            own = ((frame.variable, int(frame.order[frame.turn])),)
            states = own + tuple(pair for part in frame.parts for pair in part.states)
            frame.best = Solved(frame.sum, frame.upper, states)
        frame.sum = frame.upper = -math.inf
        frame.turn += 1
        total = frame.branches.total
        if frame.turn < len(frame.order):
            state = int(frame.order[frame.turn])
            if total[state] > max(frame.need, frame.best.value) + MARGIN:
                frame.child, frame.parts = 0, []
                frame.sum = frame.upper = float(frame.branches.value[state])
                self.states[frame.variable] = state
                return
            frame.refuted = max(frame.refuted, float(total[state]))
        self.stack.pop()
        wins = frame.best.value > frame.need
        found = Solved(frame.best.value, frame.refuted, frame.best.states if wins else ())
        if len(self.cache) < CACHE_ENTRIES:
            self.cache[frame.key] = found
        self._close(found)

    def _next_child(self, frame: SearchFrame) -> None:
        """Search the next child of the present state, if the others leave it something to win."""
        state = int(frame.order[frame.turn])
        rest = float(frame.branches.bounds[frame.child + 1 :, state].sum())
        need = max(frame.need, frame.best.value) - frame.sum - rest
        self.states[frame.variable] = state
        self._open(self.space.children[frame.variable][frame.child], need)

    def _close(self, found: Solved) -> None:
        """Hand a solved subproblem to the state above; one that falls short ends that state."""
        if not self.stack:
            self.result = found
            return
        frame = self.stack[-1]
        state = int(frame.order[frame.turn])
        rest = float(frame.branches.bounds[frame.child + 1 :, state].sum())
        frame.upper += found.upper
        frame.sum += found.value
        frame.child += 1
        if found.is_exact and frame.sum + rest > max(frame.need, frame.best.value) + MARGIN:
            frame.parts.append(found)
            return
        frame.refuted = max(frame.refuted, frame.upper + rest)
        frame.sum = frame.upper = -math.inf
        frame.child = len(self.space.children[frame.variable])


@dataclass(eq=False)
class AndOrState:
    """The space, and the roots that are solved."""

    posterior: NetworkPosterior
    control: Control
    space: AndOrSpace | None = None
    search: DepthFirst | None = None
    cache: dict[tuple[int, bytes], Solved] = field(default_factory=dict[tuple[int, bytes], Solved])
    solved: list[Solved] = field(default_factory=list[Solved])
    step_nodes: int = STEP_NODES
    n_nodes: int = 0
    done: bool = False


@dataclass(frozen=True)
class AndOrBranchAndBound(AndOrSolver):
    """Search a pseudo tree of the query depth first; nuisance variables are summed exactly below it.

    Subproblems that share a context are solved once, those of different children apart; each is bounded by the
    messages of a mini-bucket relaxation with shifted costs. An answer is there from the start (read off the
    relaxation and improved), and each solved subproblem improves the bound.

    Sources: Marinescu and Dechter (2009), 'AND/OR branch-and-bound search for combinatorial optimization in
    graphical models'; Marinescu, Dechter and Ihler (2014) for marginal MAP. Cost: one table look-up per message
    and state for each node, and one conditional sum per state where nuisance variables hang.
    """

    step_nodes: int = STEP_NODES

    name: ClassVar[str] = "aobb"

    def init(
        self, posterior: NetworkPosterior, control: Control, rng: np.random.Generator, boxes: Boxes | None = None
    ) -> AndOrState:
        self.refuse_boxes(boxes)
        return AndOrState(posterior, control, step_nodes=self.step_nodes)

    def effort(self, state: AndOrState) -> Effort:
        held = 0 if state.space is None else state.space.tree.n_bytes
        return Effort(state.n_nodes, held + 300 * len(state.cache), state.n_nodes)

    def step(self, state: AndOrState, ledger: Ledger) -> AndOrState:
        """Open the space, or search `step_nodes` nodes."""
        if state.space is None:
            state.space = self.open_space(state.posterior, ledger)
        advance(state, state.space, ledger)
        return state


def advance(state: AndOrState, space: AndOrSpace, ledger: Ledger) -> None:
    """Search one step's nodes depth first, root after root, and report what that proves."""
    left = state.control.nodes_left(state.n_nodes)
    budget = state.step_nodes if left is None else max(1, min(state.step_nodes, left))
    while budget > 0 and len(state.solved) < len(space.roots):
        if state.search is None:
            need = _need(state, space, ledger)
            state.search = DepthFirst(space, state.cache, space.roots[len(state.solved)], need)
        before = state.search.n_nodes
        state.search.advance(budget, state.control)
        budget = 0 if state.control.should_stop else budget - max(state.search.n_nodes - before, 1)
        state.n_nodes += state.search.n_nodes - before
        if state.search.result is not None:
            state.solved.append(state.search.result)
            state.search = None
            if not state.solved[-1].is_exact:  # nothing beats the best point
                break
    _report(state, space, ledger)


def _need(state: AndOrState, space: AndOrSpace, ledger: Ledger) -> float:
    """Return what the next root must exceed for the whole to beat the best point."""
    rest = sum(space.root_bound(r) for r in space.roots[len(state.solved) + 1 :])
    return ledger.best_log_prob - space.constant - sum(s.value for s in state.solved) - rest


def _report(state: AndOrState, space: AndOrSpace, ledger: Ledger) -> None:
    """Bound the whole by what is solved, what is under search and what is to come; pass on a new answer."""
    n_begun = len(state.solved)
    bounds = [space.constant, *(s.upper for s in state.solved)]
    if state.search is not None:
        bounds.append(state.search.bound)
        n_begun += 1
    bound = math.fsum([*bounds, *(space.root_bound(r) for r in space.roots[n_begun:])])
    gave_up = bool(state.solved) and not state.solved[-1].is_exact
    if len(state.solved) == len(space.roots) and not gave_up:
        found = {space.query[i]: s for part in state.solved for i, s in part.states}
        ledger.candidates(state.posterior.point(found))
    state.done = gave_up or len(state.solved) == len(space.roots)
    ledger.upper_bound(max(bound + space.log_slack, ledger.best_log_prob), RELAXATION)
