"""AND/OR search of networks: a pseudo tree of the query, mini-bucket bounds, and the depth-first search of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from certimap.certify.ledger import Ledger
from certimap.core.arrays import Floats, Ints
from certimap.core.control import Control
from certimap.core.posterior import Capability, Posterior
from certimap.errors import SolverError
from certimap.networks.conditional import ConditionalSum
from certimap.networks.posterior import NetworkPosterior, TwoSidedNetworkPosterior
from certimap.networks.problem import Table, strides_of
from certimap.networks.relaxation.decoding import decode
from certimap.networks.relaxation.split_tree import PassClock, Region, SplitTree, limit, nuisance_first, split
from certimap.networks.relaxation.tighten import Tightener
from certimap.solvers.base import RELAXATION, Effort, Family, WholeSpaceSolver

TEMPERATURES = (0.1, 0.01)
MARGIN = 1e-12  # nats by which a subproblem must promise more than is known to be searched
# entries of the largest table, where variables have so many states that the i-bound allows more
TABLE_ENTRIES = 2.0**16
STEP_NODES, STEP_WORK = 500, 2.0**27  # nodes of a step, and table entries after which it ends before
NODE_WORK = 2.0**15  # table entries that take as long as a node does beside its sums
CACHE_ENTRIES = 2_000_000


@dataclass(frozen=True, eq=False)
class Lookups:
    """Entries of tables that the states of a path select, for every state of one variable."""

    values: Floats  # the tables, one after another
    # starts, own_strides: where each begins in `values`, and its stride of the variable, 0 where it does not
    # depend on it; shape (tables,)
    starts: Ints
    own_strides: Ints
    # columns, strides: the columns that matter besides, and the stride of each in each table; shapes (columns,),
    # (tables, columns)
    columns: Ints
    strides: Ints

    @classmethod
    def of(cls, values: Floats, tables: Sequence[tuple[int, Ints, Ints]], column: int) -> Lookups:
        """Lay out (start, columns, strides) of tables, for the states of one column."""
        columns = sorted({int(c) for _, own, _ in tables for c in own} - {column})
        place = {c: k for k, c in enumerate(columns)}
        own_strides = np.zeros(len(tables), np.int64)
        strides = np.zeros((len(tables), len(columns)), np.int64)
        for row, (_, own, steps) in enumerate(tables):
            for c, step in zip(own, steps, strict=True):
                if int(c) == column:
                    own_strides[row] = step
                else:
                    strides[row, place[int(c)]] = step
        starts = np.array([start for start, _, _ in tables], np.int64)
        return cls(values, starts, own_strides, np.array(columns, np.int64), strides)

    def total(self, states: Ints, numbers: Ints) -> Floats:
        """Return the sum of the entries at the states of a path and at each number of the variable's states."""
        at = self.starts + self.strides @ states[self.columns]
        return self.values[at[:, None] + self.own_strides[:, None] * numbers].sum(axis=0)


@dataclass(frozen=True)
class Branches:
    """What a variable's states lead to, given its path."""

    value: Floats  # nats that each state adds by itself: tables and exact sums of nuisance, shape (states,)
    bounds: Floats  # upper bounds on each child's subproblem, shape (children, states)

    @property
    def total(self) -> Floats:
        """Upper bounds on the subproblem by state."""
        return self.value + self.bounds.sum(axis=0)


class AndOrSpace:
    """The search space of one problem.

    Query variables form a pseudo tree along the constrained elimination order: given the states on its path, a
    variable's subproblem depends on its *context* only, and the subproblems of its children are independent.
    Groups of nuisance variables hang below the lowest query variable that they meet, and are summed exactly there.

    `posterior`: whose problem is searched. `i_bound`, `iterations`: of the mini-bucket relaxation whose messages
    bound the subproblems. Raises TimeUp when the relaxation would not be ready in time.
    """

    def __init__(self, posterior: NetworkPosterior, i_bound: int, iterations: int) -> None:
        problem = posterior.problem
        order = nuisance_first(problem, control=posterior.control)
        self.problem, self.posterior = problem, posterior
        self.query = [v for v in reversed(order) if v in problem.query]  # ancestors first
        self.column = {v: i for i, v in enumerate(self.query)}
        self.n_states = np.array([problem.sizes[v] for v in self.query], np.int64)
        regions = split(problem, order, lambda scope: True)
        self._hang(regions, order)
        fits, memory = limit(problem.sizes, TABLE_ENTRIES, i_bound), posterior.control.memory_limit
        self.tree = SplitTree.of(problem, order, fits, memory)
        self.clock = PassClock(posterior.control)
        self.work = float(max(iterations, 1) * self.tree.n_entries)
        self._tighten(iterations)
        self._place_values()
        self._place_messages()

    # --- construction ------------------------------------------------------------------------------------

    def _hang(self, regions: Sequence[Region], order: Sequence[int]) -> None:
        """Find each query variable's parent and context, and where each nuisance variable hangs."""
        place = {v: i for i, v in enumerate(order)}
        n = len(self.query)
        self.parent = np.full(n, -1, np.int64)
        self.context: list[Ints] = [np.empty(0, np.int64) for _ in range(n)]
        self.below: dict[int, int] = {}  # by nuisance variable; -1 where no query variable is met
        for region in reversed(regions):
            if region.own in self.column:
                i = self.column[region.own]
                self.context[i] = np.array(sorted(self.column[u] for u in region.separator), np.int64)
                if region.separator:
                    self.parent[i] = self.column[min(region.separator, key=place.__getitem__)]
            elif region.separator:
                next_one = min(region.separator, key=place.__getitem__)
                self.below[region.own] = self.column.get(next_one, self.below.get(next_one, -1))
            else:
                self.below[region.own] = -1
        self.children: list[list[int]] = [[] for _ in range(n)]
        for i, p in enumerate(self.parent):
            if p >= 0:
                self.children[p].append(i)
        self.roots = [i for i in range(n) if self.parent[i] < 0]

    def _tighten(self, iterations: int) -> None:
        if self.tree.is_split:
            tightener = Tightener(self.tree, self.clock)
            n_steps = -(-iterations // len(TEMPERATURES))
            for temperature in TEMPERATURES:
                tightener.run(temperature, n_steps)

    def _place_values(self) -> None:
        """Give each table and each nuisance sum to the lowest query variable that it depends on."""
        problem = self.problem
        placed: list[list[Table]] = [[] for _ in self.query]
        self.sums: list[list[tuple[ConditionalSum, Ints]]] = [[] for _ in self.query]
        constants = [float(problem.constant)]
        for table in problem.tables:
            if all(v in self.column for v in table.scope):
                if table.scope:
                    placed[max(self.column[v] for v in table.scope)].append(table)
                else:
                    constants.append(float(table.log_values))
        variables = self.posterior.states.variables
        for part in self.posterior.evaluator.sums:
            columns = np.array([self.column[variables[c]] for c in part.query], np.int64)
            if len(columns):
                self.sums[int(columns.max())].append((part, columns))
            else:
                constants.append(float(part.log_values(np.zeros((1, 0), np.int64))[0]))
        self.constant = math.fsum(constants)
        self.numbers: list[Ints] = [np.arange(int(n), dtype=np.int64) for n in self.n_states]
        self.tables = [self._lookups_of(tables, i) for i, tables in enumerate(placed)]

    def _lookups_of(self, tables: Sequence[Table], column: int) -> Lookups:
        ends = np.cumsum([0, *(t.log_values.size for t in tables)])
        columns = [np.array([self.column[v] for v in t.scope], np.int64) for t in tables]
        laid = [
            (int(start), own, self._steps(t.scope))
            for start, own, t in zip(ends[:-1], columns, tables, strict=True)
        ]
        flat = [np.ravel(t.log_values) for t in tables]
        return Lookups.of(np.concatenate(flat) if flat else np.empty(0), laid, column)

    def _place_messages(self) -> None:
        """Collect, for each query variable, the messages that leave its subtree, and the scales within it."""
        tree, a = self.tree, self.tree.arrays
        s = tree.scratch()
        self.is_possible = tree.bound(scratch=s, clock=self.clock) > -np.inf  # fills the messages in
        at = np.array([self.column.get(v, self.below.get(v, -1)) for v in tree.variables], np.int64)
        messages: list[list[tuple[int, Ints, Ints]]] = [[] for _ in self.query]
        self.scale = np.full(len(self.query), 0.0)
        for r in range(len(a.own)):
            place = int(at[a.own[r]])
            if place < 0:
                continue
            leaves_to = int(at[a.own[a.parent[r]]]) if a.parent[r] >= 0 else -1
            message = self._message(r)
            i = place
            while i >= 0 and i != leaves_to:
                self.scale[i] += float(s.offset[r] + tree.scales[r])
                if message is not None:
                    messages[i].append(message)
                i = int(self.parent[i])
            while i >= 0:
                self.scale[i] += float(s.offset[r] + tree.scales[r])
                i = int(self.parent[i])

        values = s.message.copy()
        self.messages = [Lookups.of(values, row, int(p)) for row, p in zip(messages, self.parent, strict=True)]

    def _message(self, region: int) -> tuple[int, Ints, Ints] | None:
        """Return where a region's message lies if queried variables select its entries; one over hidden ones never
        leaves.
        """
        a = self.tree.arrays
        first, last = int(a.axis_ptr[region]), int(a.axis_ptr[region + 1]) - 1
        if first == last or a.n_query_axes[region] < last - first:
            return None
        variables = [self.tree.variables[int(a.axes[i])] for i in range(first, last)]
        columns = np.array([self.column[v] for v in variables], np.int64)
        return int(a.message_ptr[region]), columns, self._steps(variables)

    def _steps(self, scope: Sequence[int]) -> Ints:
        strides = strides_of(scope, self.problem.sizes)
        return np.array([strides[v] for v in scope], np.int64)

    # --- questions ---------------------------------------------------------------------------------------

    def branches(self, variable: int, states: Ints) -> Branches:
        """Return values and bounds of a variable's states; `states` holds the path's (others are ignored)."""
        numbers = self.numbers[variable]
        n = len(numbers)
        self.work += NODE_WORK + n * sum([part.n_entries for part, _ in self.sums[variable]])
        value = self.tables[variable].total(states, numbers)
        for part, columns in self.sums[variable]:
            rows = np.repeat(states[columns][None, :], n, axis=0)
            rows[:, columns == variable] = numbers[:, None]
            value += part.log_values(np.ascontiguousarray(rows))
        children = self.children[variable]
        bounds = np.empty((len(children), n))
        for k, child in enumerate(children):
            bounds[k] = self.messages[child].total(states, numbers) + self.scale[child]
        return Branches(value, bounds)

    def root_bound(self, root: int) -> float:
        """Return an upper bound on the whole subproblem of a root."""
        return float(self.scale[root])

    def key(self, variable: int, states: Ints) -> tuple[int, bytes]:
        """Return what a variable's subproblem depends on."""
        return variable, states[self.context[variable]].tobytes()

    @property
    def log_slack(self) -> float:
        """How far (nats) bounds and values may be off by rounding."""
        return self.tree.log_slack + self.posterior.evaluator.log_slack + 1e-13 * len(self.tree.arrays.own)

    def assignment(self, states: Ints) -> Mapping[int, int]:
        """Return states by query variable."""
        return {v: int(states[i]) for i, v in enumerate(self.query)}


def check_settings(i_bound: int, iterations: int) -> None:
    """Refuse settings out of range."""
    if i_bound < 1 or iterations < 0:
        raise SolverError(
            f"i_bound is {i_bound} and iterations {iterations}; an i_bound of at least 1 and iterations not below "
            "0 are expected"
        )


@dataclass(frozen=True)
class AndOrSolver(WholeSpaceSolver):
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
        start, before = posterior.point(decode(space.tree, scratch=s, clock=space.clock)), ledger.best_log_prob
        ledger.candidates(start)
        if ledger.best_log_prob > before:
            ledger.candidates(posterior.prober().climb(start))
        return space


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
    order: Ints
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

    def advance(self, n_nodes: int, most: float, control: Control) -> None:
        """Search until so many nodes are opened, the work is `most`, the root is solved, or the run ends."""
        end = self.n_nodes + n_nodes
        while self.stack and self.n_nodes < end and self.space.work < most and not control.should_stop:
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

    name: ClassVar[str] = "aobb"

    def start(self, posterior: NetworkPosterior, control: Control, rng: np.random.Generator) -> AndOrState:
        return AndOrState(posterior, control)

    def effort(self, state: AndOrState) -> Effort:
        held = 0 if state.space is None else state.space.tree.n_bytes
        work = 0.0 if state.space is None else state.space.work
        return Effort(state.n_nodes, held + 300 * len(state.cache), int(work))

    def step(self, state: AndOrState, ledger: Ledger) -> AndOrState:
        """Open the space, or search some nodes."""
        if state.space is None:
            state.space = self.open_space(state.posterior, ledger)
        advance(state, state.space, ledger)
        return state


def advance(state: AndOrState, space: AndOrSpace, ledger: Ledger) -> None:
    """Search one step's nodes depth first, root after root, and report what that proves."""
    left = state.control.nodes_left(state.n_nodes)
    budget = STEP_NODES if left is None else max(1, min(STEP_NODES, left))
    most = space.work + STEP_WORK
    while budget > 0 and space.work < most and len(state.solved) < len(space.roots):
        if state.search is None:
            need = _need(state, space, ledger)
            state.search = DepthFirst(space, state.cache, space.roots[len(state.solved)], need)
        before = state.search.n_nodes
        state.search.advance(budget, most, state.control)
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
