"""AND/OR search of networks: a pseudo tree of the query, mini-bucket bounds, and the depth-first search of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from certimap.certify.ledger import Ledger
from certimap.core.arrays import Floats, Ints
from certimap.core.cached import cached_property
from certimap.core.control import Control
from certimap.core.posterior import Posterior
from certimap.networks.conditional import ConditionalSum
from certimap.networks.posterior import NetworkPosterior, TwoSidedNetworkPosterior
from certimap.networks.problem import Table, strides_of
from certimap.networks.relaxation.decoding import decode
from certimap.networks.relaxation.split_tree import PassClock, Region, SplitTree, limit, nuisance_first, split
from certimap.networks.relaxation.tighten import Tightener
from certimap.solvers.base import RELAXATION, Effort, WholeSpaceSolver

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
        return np.add.reduce(self.values[at[:, None] + self.own_strides[:, None] * numbers], axis=0)


@dataclass(frozen=True)
class Branches:
    """What a variable's states lead to, given its path."""

    value: Floats  # nats that each state adds by itself: tables and exact sums of nuisance, shape (states,)
    bounds: Floats  # upper bounds on each child's subproblem, shape (children, states)

    @cached_property
    def total(self) -> Floats:
        """Upper bounds on the subproblem by state."""
        return self.value + np.add.reduce(self.bounds, axis=0)

    def rest(self, child: int, state: int) -> float:
        """Return the sum of the bounds of the children after one."""
        return float(self.bounds[child + 1 :, state].sum()) if child + 1 < len(self.bounds) else 0.0


class AndOrSpace:
    """The search space of one problem.

    Query variables form a pseudo tree along the constrained elimination order: given the states on its path, a
    variable's subproblem depends on its *context* only, and the subproblems of its children are independent.
    Groups of nuisance variables hang below the lowest query variable that they meet, and are summed exactly there.

    `tree`: the mini-buckets along that order, whose messages bound the subproblems. `clock`: of its passes.
    `sums`: of the nuisance variables, each with the queried variables that it depends on. `log_slack`: nats by
    which the sums may be off. Raises TimeUp when the messages would not be ready in time.
    """

    def __init__(
        self,
        tree: SplitTree,
        clock: PassClock,
        sums: Sequence[tuple[ConditionalSum, Sequence[int]]] = (),
        log_slack: float = 0.0,
    ) -> None:
        problem = tree.problem
        order = [tree.variables[int(i)] for i in tree.order]
        self.problem, self.tree, self.clock = problem, tree, clock
        self.query = [v for v in reversed(order) if v in problem.query]  # ancestors first
        self.column = {v: i for i, v in enumerate(self.query)}
        self.n_states = np.array([problem.sizes[v] for v in self.query], np.int64)
        self.log_slack = tree.log_slack + log_slack + 1e-13 * len(tree.arrays.own)
        self.work = 0.0
        self._hang(split(problem, order, lambda scope: True), order)
        self._place_values(sums)
        self._place_messages()

    @classmethod
    def of(cls, posterior: NetworkPosterior, i_bound: int, iterations: int) -> AndOrSpace:
        """Return the space of a query, bounded by a relaxation that so many iterations have tightened."""
        problem, clock = posterior.problem, PassClock(posterior.control)
        order, fits = nuisance_first(problem, control=clock.control), limit(problem.sizes, TABLE_ENTRIES, i_bound)
        tree = SplitTree.of(problem, order, fits, clock.control.memory_limit)
        if tree.is_split:
            tightener = Tightener(tree, clock)
            for temperature in TEMPERATURES:
                tightener.run(temperature, -(-iterations // len(TEMPERATURES)))
        variables, evaluator = posterior.states.variables, posterior.evaluator
        sums = [(part, [variables[int(c)] for c in part.query]) for part in evaluator.sums]
        space = cls(tree, clock, sums, evaluator.log_slack)
        space.work = float(max(iterations, 1) * tree.n_entries)
        return space

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

    def _place_values(self, sums: Sequence[tuple[ConditionalSum, Sequence[int]]]) -> None:
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
        for part, scope in sums:
            columns = np.array([self.column[v] for v in scope], np.int64)
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
        tree.bound(scratch=s, clock=self.clock)  # fills the messages in
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
        """Return where a region's message lies if queried variables select its entries."""
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


@dataclass(frozen=True)
class AndOrSolver(WholeSpaceSolver, needs=(NetworkPosterior,), family="search"):
    """A search of a query's AND/OR space; `i_bound` and `iterations` are of the mini-buckets that bound it."""

    i_bound: int = 10
    iterations: int = 10
    ranges = "i_bound [1, inf); iterations [0, inf)"

    def unsuited(self, posterior: Posterior) -> str | None:
        """Refuse a network in which a point has no exact value, which the search needs at its leaves."""
        if isinstance(posterior, TwoSidedNetworkPosterior):
            wide = "sums nuisance variables at every assignment, and these are too wide for that"
            return f"solver {self.name!r} {wide}; use solver='auto' or 'wmb', or query more variables"
        return None

    def open_space(self, posterior: NetworkPosterior, ledger: Ledger) -> AndOrSpace:
        """Build a search space, and report the bound and the answers of its relaxation."""
        space = AndOrSpace.of(posterior, self.i_bound, self.iterations)
        s = space.tree.scratch()
        ledger.upper_bound(min(space.tree.bound(scratch=s, clock=space.clock), posterior.log_ceiling), RELAXATION)
        start, before = posterior.point(decode(space.tree, scratch=s, clock=space.clock)), ledger.best_log_prob
        ledger.candidates(start)
        if ledger.best_log_prob > before == -math.inf:
            ledger.candidates(posterior.prober().climb(start))
        return space


@dataclass(frozen=True)
class Solved:
    """A subproblem: the value reached, its states (none where its bound was too low), and an upper bound."""

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

    @property
    def progress(self) -> float:
        """The share of the space that is behind, where all open states, and all children of one, count alike."""
        behind, share = 0.0, 1.0
        for frame in self.stack:
            n_open = int((frame.branches.total > max(frame.need, frame.best.value)).sum())
            share /= max(n_open, frame.turn + 1, 1)
            behind += share * max(frame.turn, 0)
            share /= max(1, len(self.space.children[frame.variable]))
            behind += share * frame.child
        return behind

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
        rest = frame.branches.rest(frame.child, state)
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
        rest = frame.branches.rest(frame.child, state)
        frame.upper += found.upper
        frame.sum += found.value
        frame.child += 1
        if found.is_exact and frame.sum + rest > max(frame.need, frame.best.value) + MARGIN:
            frame.parts.append(found)
            return
        frame.refuted = max(frame.refuted, frame.upper + rest)
        frame.sum = frame.upper = -math.inf
        frame.child = len(self.space.children[frame.variable])


class Tour:
    """The depth-first search of a space, root after root; `cache`: subproblems that are solved already."""

    def __init__(self, space: AndOrSpace, cache: dict[tuple[int, bytes], Solved] | None = None) -> None:
        self.space, self.n_nodes = space, 0
        self.cache: dict[tuple[int, bytes], Solved] = {} if cache is None else cache
        self._solved: list[Solved] = []
        self._search: DepthFirst | None = None

    @property
    def has_failed(self) -> bool:
        """Whether nothing beats the value that was known."""
        return bool(self._solved) and not self._solved[-1].is_exact

    @property
    def is_done(self) -> bool:
        return self.has_failed or len(self._solved) == len(self.space.roots)

    @property
    def progress(self) -> float:
        """About which share of the space is behind: of the roots one after another."""
        own = 0.0 if self._search is None else self._search.progress
        return (len(self._solved) + own) / max(1, len(self.space.roots))

    @property
    def bound(self) -> float:
        """Nats that no assignment exceeds which beats the value that was known, rounding included."""
        under_way = [] if self._search is None else [self._search.bound]
        parts = [self.space.constant, *(s.upper for s in self._solved), *under_way]
        left = self.space.roots[len(self._solved) + len(under_way) :]
        return math.fsum([*parts, *(self.space.root_bound(r) for r in left)]) + self.space.log_slack

    @property
    def found(self) -> dict[int, int] | None:
        """The states of the best assignment; None before it is found, and where nothing beats what was known."""
        if not self.is_done or self.has_failed:
            return None
        return {self.space.query[i]: s for part in self._solved for i, s in part.states}

    def advance(self, n_nodes: int, work: float, known: float, control: Control) -> None:
        """Open about so many nodes, for so much work, of assignments that beat the value `known` (nats)."""
        space, left, end = self.space, n_nodes, self.space.work + work
        while left > 0 and space.work < end and not self.is_done:
            if self._search is None:
                rest = sum(space.root_bound(r) for r in space.roots[len(self._solved) + 1 :])
                need = known - space.constant - sum(s.value for s in self._solved) - rest
                self._search = DepthFirst(space, self.cache, space.roots[len(self._solved)], need)
            before = self._search.n_nodes
            self._search.advance(left, end, control)
            opened = self._search.n_nodes - before
            left = 0 if control.should_stop else left - max(opened, 1)
            self.n_nodes += opened
            if self._search.result is not None:
                self._solved.append(self._search.result)
                self._search = None


@dataclass(eq=False)
class AndOrState:
    """The search, once its space is open."""

    posterior: NetworkPosterior
    control: Control
    tour: Tour | None = None
    n_nodes: int = 0
    done: bool = False


@dataclass(frozen=True)
class AndOrBranchAndBound(AndOrSolver, name="aobb"):
    """Search a pseudo tree of the query depth first; nuisance variables are summed exactly below it.

    Subproblems that share a context are solved once, those of different children apart; each is bounded by the
    messages of a mini-bucket relaxation with shifted costs. An answer is there from the start (read off the
    relaxation and improved), and each solved subproblem improves the bound.

    Sources: Marinescu and Dechter (2009), 'AND/OR branch-and-bound search for combinatorial optimization in
    graphical models'; Marinescu, Dechter and Ihler (2014) for marginal MAP. Cost: one table look-up per message
    and state for each node, and one conditional sum per state where nuisance variables hang.
    """

    def start(self, posterior: NetworkPosterior, control: Control, rng: np.random.Generator) -> AndOrState:
        return AndOrState(posterior, control)

    def effort(self, state: AndOrState) -> Effort:
        if state.tour is None:
            return Effort(state.n_nodes)
        held = state.tour.space.tree.n_bytes + 300 * len(state.tour.cache)
        return Effort(state.n_nodes, held, int(state.tour.space.work))

    def step(self, state: AndOrState, ledger: Ledger) -> AndOrState:
        """Open the space, or search some nodes of it."""
        if state.tour is None:
            state.tour = Tour(self.open_space(state.posterior, ledger))
        else:
            advance(state, state.tour, ledger)
        return state


def advance(state: AndOrState, tour: Tour, ledger: Ledger) -> None:
    """Search one step's nodes depth first, and report what that proves."""
    left, before = state.control.nodes_left(state.n_nodes), tour.n_nodes
    n_nodes = STEP_NODES if left is None else max(1, min(STEP_NODES, left))
    tour.advance(n_nodes, STEP_WORK, ledger.best_log_prob, state.control)
    state.n_nodes += tour.n_nodes - before
    if tour.found is not None:
        ledger.candidates(state.posterior.point(tour.found))
    state.done = tour.is_done
    ledger.upper_bound(max(tour.bound, ledger.best_log_prob), RELAXATION)
