"""Integer problems as kernels keep them: costs, sweeps, climbs, and hybrid best-first search.

The search dives depth first, with few backtracks, below the open node of largest bound, and leaves the open
branches of each dive to the list: after Allouche, de Givry, Katsirelos, Schiex and Zytnicki, "Anytime hybrid
best-first search with tree decomposition for weighted CSP" (2015).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence

import numpy as np

from certimap.core.arrays import Ints, pointers, spread
from certimap.networks.kernels import searches as kernels
from certimap.networks.kernels.dual_ascent import CostArrays, DualState, SweepRule, ascend
from certimap.networks.problem import FLOOR, HARD, Problem, Table, restrict


class Costs:
    """An integer problem as arrays, its largest entries moved to the constant.

    `problem`: integers, without nuisance variables.
    `variables`: the problem's variables in the order in which sweeps visit them.
    `arrays`: for the kernels; variable number i is `variables[i]`.
    `constant`: added to the sum of the entries, in units.
    """

    def __init__(self, problem: Problem, variables: Sequence[int]) -> None:
        self.problem = problem
        self.variables = tuple(variables)
        place = {v: i for i, v in enumerate(self.variables)}
        n_states = np.array([problem.sizes[v] for v in self.variables], np.int64)
        offset = pointers(n_states)
        unary = np.zeros(int(offset[-1]), np.int64)
        scopes, strides, parts = list[int](), list[int](), list[Ints]()
        scope_ptr, table_ptr = [0], [0]
        touching: list[list[tuple[int, int]]] = [[] for _ in self.variables]
        self.constant = int(problem.constant)
        for scope, values in problem.tables:
            if len(scope) == 1:
                unary[offset[place[scope[0]]] : offset[place[scope[0]] + 1]] += values
                continue
            ordered = tuple(sorted(scope, key=place.__getitem__))
            table = np.ascontiguousarray(spread(values, scope, ordered))
            for axis, v in enumerate(ordered):
                touching[place[v]].append((len(scope_ptr) - 1, axis))
                scopes.append(place[v])
                strides.append(table.strides[axis] // table.itemsize)
            scope_ptr.append(len(scopes))
            table_ptr.append(table_ptr[-1] + table.size)
            parts.append(self._lowered(table.reshape(-1)))
        for i in range(len(self.variables)):
            part = unary[offset[i] : offset[i + 1]]
            part[:] = self._lowered(part)
        touches = [pair for pairs in touching for pair in pairs]
        every = [*parts, unary]
        self.arrays = CostArrays(
            n_states, offset, np.array(scope_ptr, np.int64), np.array(scopes, np.int64),
            np.array(strides, np.int64), np.array(table_ptr, np.int64),
            np.concatenate([np.zeros(0, np.int64), *parts]), pointers(map(len, touching)),
            np.array([t for t, _ in touches], np.int64),
            np.array([a for _, a in touches], np.int64), unary,
            np.array([bool((p <= FLOOR).any()) for p in parts], np.bool_),
            np.array([any(bool(((p < 0) & (p > FLOOR)).any()) for p in every)]),
        )  # fmt: skip

    def _lowered(self, values: Ints) -> Ints:
        top = int(values.max())
        if top == 0 or top <= FLOOR:
            return np.array(values)
        self.constant += top
        return np.where(values > FLOOR, values - top, values)

    def dual(self) -> DualState:
        """Return the state before any cost has moved."""
        net = self.arrays
        n = len(net.n_states)
        degree = int(np.diff(net.touch_ptr).max()) if n else 0
        alive = np.arange(len(net.unary)) - np.repeat(net.offset[:-1], net.n_states)
        most = int(net.n_states.max())
        return DualState(
            net.tables.copy(), net.unary.copy(), alive, net.n_states.copy(), np.zeros(n, np.bool_),
            np.zeros(1, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64),
            np.zeros((max(degree, 1), most), np.int64), np.zeros(most, np.int64), np.zeros(64, np.int64),
            np.zeros(1, np.int64),
        )  # fmt: skip

    def decoded(self, dual: DualState) -> dict[int, int]:
        """Return each variable's best state when it was last visited, or its only one."""
        states = np.where(dual.is_done, dual.alive[self.arrays.offset[:-1]], dual.best)
        return dict(zip(self.variables, states.tolist(), strict=True))

    def stack(self, n_levels: int) -> kernels.SearchStack:
        """Return an empty stack for branches of at most `n_levels` decisions."""
        net = self.arrays
        n = len(net.n_states)
        return kernels.SearchStack(
            np.empty((n_levels, len(net.tables)), np.int64), np.empty((n_levels, len(net.unary)), np.int64),
            np.empty((n_levels, len(net.unary)), np.int64), np.empty((n_levels, n), np.int64),
            np.empty((n_levels, n), np.bool_), np.empty(n_levels, np.int64), np.zeros(n_levels, np.int64),
            np.zeros(n_levels, np.int64), np.zeros(n_levels, np.bool_), np.ones(n),
            np.array([0, 0, 0, -1, 0], np.int64),
        )  # fmt: skip

    @property
    def bytes_per_level(self) -> int:
        """The memory that one level of a stack takes."""
        net = self.arrays
        return 8 * (len(net.tables) + 2 * len(net.unary) + 2 * len(net.n_states) + 4)

    def softened(self) -> CostArrays:
        """Return the costs with a penalty in place of zeros, for searches through the impossible."""
        net = self.arrays
        finite = [x[x > FLOOR] for x in (net.tables, net.unary)]
        penalty = 2 * min((int(x.min()) for x in finite if x.size), default=0) - round(1.0 / self.problem.unit)
        tables, unary = (np.where(x > FLOOR, x, penalty) for x in (net.tables, net.unary))
        return net._replace(tables=tables, unary=unary)

    def reduced(self, dual: DualState) -> tuple[Problem, dict[int, Ints]]:
        """Return the problem that is left, costs where they are now, and the states kept of each variable."""
        net = self.arrays
        keep = [np.array(dual.alive[at : at + n]) for at, n in zip(net.offset[:-1], dual.n_alive, strict=True)]
        kept = dict(zip(self.variables, keep, strict=True))
        scopes: list[tuple[int, ...]] = [(v,) for v in self.variables]
        members: list[int] = net.scope.tolist()
        for first, last in itertools.pairwise(net.scope_ptr):
            scopes.append(tuple(self.variables[i] for i in members[first:last]))
        parts = [*np.split(dual.unary, net.offset[1:-1]), *np.split(dual.tables, net.table_ptr[1:-1])]
        pairs = zip(scopes, parts, strict=False)  # without tables, `split` returns one empty part
        tables = tuple(Table(scope, part.reshape(self.problem.shape(scope))) for scope, part in pairs)
        sizes = {v: self.problem.sizes[v] for v in self.variables}
        constant = self.constant + int(dual.bound[0])
        whole = Problem(sizes, frozenset(sizes), tables, constant, 0.0, self.problem.unit)
        return restrict(whole, kept), kept


STALLED = 1e-3  # sweeps end when one gains less than this share of all that came before
TENURE, STEPS_PER_VARIABLE = 10, 20
TABU_WORK = 20_000_000  # scores looked at in one piece of local search, but at least a few steps
KICK_WORK = 10_000_000
PERTURBED = 0.05


def sweep(costs: Costs, dual: DualState, incumbent: Ints, n_sweeps: int, threshold: int | None = None) -> bool:
    """Shift costs until progress stalls; return False if no relevant assignment is left.

    Relevant assignments are better than the incumbent (value and states), or above `threshold` (units, less the
    constant) if it is given. The states of the incumbent are kept.
    """
    level = HARD if threshold is None else max(HARD, threshold)
    rule = SweepRule(n_sweeps, STALLED, level, -1, threshold is None, incumbent)
    return bool(ascend(costs.arrays, dual, rule) < 0)


def climb(
    costs: Costs, dual: DualState, incumbent: Ints, key: np.uint64, should_stop: Callable[[], bool] = lambda: False
) -> int:
    """Improve the incumbent: tabu search from it, from perturbed copies and from decoded costs, then kicks.

    `key` seeds it. Each search begins with a look at `should_stop`. Returns the work, in table entries.
    """
    net = costs.arrays
    n = len(net.n_states)
    soft = costs.softened()
    work = 0
    rng = np.random.default_rng(int(key))
    starts = [np.where(dual.is_done, dual.alive[net.offset[:-1]], dual.best)]
    if incumbent[0] > FLOOR:
        moved = incumbent[1:].copy()
        changed = rng.random(n) < PERTURBED
        moved[changed] = (rng.random(n) * net.n_states).astype(np.int64)[changed]
        starts = [incumbent[1:].copy(), moved, *starts]
    n_steps = min(STEPS_PER_VARIABLE * n, max(n, TABU_WORK // max(1, len(net.unary))))
    tenure = min(TENURE, n // 3)
    for number, states in enumerate(starts):
        if should_stop():
            return work
        key = np.uint64((int(key) + number) % 2**64)
        work += int(kernels.tabu_search(net, soft, states, n_steps, tenure, key, incumbent))
    if incumbent[0] > FLOOR and not should_stop():
        work += int(kernels.kick_search(net, soft, dual, incumbent[1:].copy(), KICK_WORK, key, incumbent))
    return work


# the decisions before, variable, state, whether it is ruled out
Decisions = tuple["Decisions", int, int, bool] | None

FIRST_LIMIT, LARGEST_LIMIT, GROWTH = 20, 5_000, 1.2
DIVES_BEFORE_GROWTH = 10
NODE_SWEEPS, NODE_SHARE = 3, 0.05
REPLAY_SWEEPS, REPLAY_SHARE = 10, 0.01
LEAD_CAP = 50.0  # nats
BYTES_PER_OPEN_NODE = 300
MAX_LEVELS = 4_000


class BestFirstSearch:
    """The open nodes of a search and the current dive.

    `costs`, `dual`: the problem and its state at the root, after sweeps. `max_bytes`: memory of the stack and of
    the list of open nodes; when the list is full, dives run to their end. `lists_all`: report each full assignment
    above the threshold, not only improvements. `open_bound`: the largest bound of a node that is open or being
    searched; `HARD` when none is left. `closed_bound`: the largest threshold at which a branch was cut.
    """

    def __init__(self, costs: Costs, dual: DualState, *, max_bytes: int, lists_all: bool) -> None:
        self.costs, self.dual, self.lists_all = costs, dual, lists_all
        self.root = copy_of(dual)
        n_levels = min(MAX_LEVELS, len(costs.arrays.unary) + 1, max_bytes // 2 // costs.bytes_per_level)
        self.stack = costs.stack(max(4, n_levels))
        self.max_open = max(100, max_bytes // 2 // BYTES_PER_OPEN_NODE)
        self.n_bytes_stack = len(self.stack.bound) * costs.bytes_per_level
        self.limit, self.closed_bound, self.n_dives, self._count = FIRST_LIMIT, HARD, 0, 0
        self._heap: list[tuple[int, int, Decisions]] = [(-int(dual.bound[0]), 0, None)]
        self._dive: tuple[int, Decisions] | None = None
        self._leaf = np.zeros(len(costs.variables) + 1, np.int64)
        self._lead_cap = max(1, round(LEAD_CAP / costs.problem.unit))

    @property
    def open_bound(self) -> int:
        listed = -self._heap[0][0] if self._heap else HARD
        return max(listed, HARD if self._dive is None else self._dive[0])

    @property
    def is_done(self) -> bool:
        return self._dive is None and not self._heap

    @property
    def n_nodes(self) -> int:
        return int(self.stack.counters[kernels.NODES])

    @property
    def n_bytes(self) -> int:
        return self.n_bytes_stack + len(self._heap) * BYTES_PER_OPEN_NODE

    @property
    def work(self) -> int:
        """Table entries visited so far."""
        return int(self.dual.n_touched[0])

    def advance(self, max_work: int, threshold: int, margin: int, incumbent: Ints) -> Ints | None:
        """Search for about `max_work` more table entries; return a leaf (value and states) if one is reported.

        `incumbent` (value and states) is updated; see the kernels for `threshold` and `margin`.
        """
        until = self.work + max_work
        while self.work < until:
            level = max(threshold, int(incumbent[0]) + margin)
            if self._dive is None and not self._begin(level, threshold, margin, incumbent):
                if self.is_done:
                    return None
                continue
            self.closed_bound = max(self.closed_bound, level)
            rule = SweepRule(NODE_SWEEPS, NODE_SHARE, threshold, margin, not self.lists_all, incumbent)
            left = max(1, until - self.work)
            status = kernels.search(
                self.costs.arrays, self.dual, self.stack, self.limit, left, self._lead_cap, rule, self._leaf
            )
            self.closed_bound = max(self.closed_bound, int(incumbent[0]) + margin)
            if status == kernels.FOUND:
                return self._leaf.copy()
            if status != kernels.PAUSED:
                self._end(status)
        return None

    def _begin(self, level: int, threshold: int, margin: int, incumbent: Ints) -> bool:
        """Start a dive at the best open node; return False if it is closed, or none is left."""
        if not self._heap:
            return False
        bound, _, decisions = heapq.heappop(self._heap)
        self.closed_bound = max(self.closed_bound, level)
        if -bound <= level:
            self._heap.clear()  # the others have smaller bounds
            return False
        for name in ("tables", "unary", "alive", "n_alive", "is_done", "bound"):
            getattr(self.dual, name)[...] = getattr(self.root, name)
        rule = SweepRule(REPLAY_SWEEPS, REPLAY_SHARE, threshold, margin, not self.lists_all, incumbent)
        steps, link = list[tuple[int, int, bool]](), decisions
        while link is not None:
            link, v, s, is_right = link
            steps.append((v, s, is_right))
        variables, states, rights = np.array(steps[::-1], np.int64).reshape(-1, 3).T.copy()
        alive = kernels.replay(self.costs.arrays, self.dual, variables, states, rights.astype(np.bool_), rule)
        self.closed_bound = max(self.closed_bound, int(incumbent[0]) + margin)
        if not alive:
            return False
        # The smaller of two bounds bounds the node, but only its own bound goes with the costs of its states.
        self._dive = (min(int(self.dual.bound[0]), -bound), decisions)
        counters = self.stack.counters
        counters[kernels.DEPTH] = counters[kernels.BACKTRACKS] = counters[kernels.FAILED] = 0
        counters[kernels.LAST] = -1
        return True

    def _end(self, status: int) -> None:
        """Put the nodes that a dive leaves open into the list."""
        assert self._dive is not None
        bound, decisions = self._dive
        self._dive = None
        self.n_dives += 1
        if status == kernels.FINISHED:
            return
        stack = self.stack
        for k in range(int(stack.counters[kernels.DEPTH])):
            v, s, is_right = int(stack.variable[k]), int(stack.state[k]), bool(stack.is_right[k])
            if not is_right:
                self._push(min(bound, int(stack.bound[k])), (decisions, v, s, True))
            decisions = (decisions, v, s, is_right)
        if status == kernels.TOO_DEEP:
            self._push(min(bound, int(self.dual.bound[0])), decisions)
        if len(self._heap) >= self.max_open:
            self.limit = 2**62
        elif self.n_dives > DIVES_BEFORE_GROWTH:
            self.limit = min(LARGEST_LIMIT, int(self.limit * GROWTH) + 1)

    def _push(self, bound: int, decisions: Decisions) -> None:
        self._count += 1
        heapq.heappush(self._heap, (-bound, self._count, decisions))


def copy_of(dual: DualState) -> DualState:
    return DualState._make(x.copy() for x in dual)
