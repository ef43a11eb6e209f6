"""The costs of an integer problem as kernels keep them, with sweeps and climbs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from certimap.core.axes import spread
from certimap.networks.kernels.depth_first import SearchStack
from certimap.networks.kernels.dual_ascent import CostArrays, DualState, ascend
from certimap.networks.kernels.local_search import kick_search, tabu_search
from certimap.networks.problem import FLOOR, HARD, Problem, Table

Ints = NDArray[np.int64]


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
        offset = np.concatenate([[0], np.cumsum(n_states)]).astype(np.int64)
        unary = np.zeros(int(offset[-1]), np.int64)
        scopes: list[int] = []
        strides: list[int] = []
        scope_ptr, table_ptr = [0], [0]
        parts: list[Ints] = []
        touching: list[list[tuple[int, int]]] = [[] for _ in self.variables]
        self.constant = int(problem.constant)
        for scope, values in problem.tables:
            if len(scope) == 1:
                part = unary[offset[place[scope[0]]] : offset[place[scope[0]] + 1]]
                part += values
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
            n_states,
            offset,
            np.array(scope_ptr, np.int64),
            np.array(scopes, np.int64),
            np.array(strides, np.int64),
            np.array(table_ptr, np.int64),
            np.concatenate(parts) if parts else np.zeros(0, np.int64),
            np.cumsum([0, *(len(pairs) for pairs in touching)]).astype(np.int64),
            np.array([t for t, _ in touches], np.int64),
            np.array([a for _, a in touches], np.int64),
            unary,
            np.array([bool((p <= FLOOR).any()) for p in parts], np.bool_),
            np.array([any(bool(((p < 0) & (p > FLOOR)).any()) for p in every)]),
        )

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
        return DualState(
            net.tables.copy(),
            net.unary.copy(),
            alive,
            net.n_states.copy(),
            np.zeros(n, np.bool_),
            np.zeros(1, np.int64),
            np.zeros(n, np.int64),
            np.zeros(n, np.int64),
            np.zeros((max(degree, 1), int(net.n_states.max())), np.int64),
            np.zeros(int(net.n_states.max()), np.int64),
            np.zeros(64, np.int64),
            np.zeros(1, np.int64),
        )

    def stack(self, n_levels: int) -> SearchStack:
        """Return an empty stack for branches of at most `n_levels` decisions."""
        net = self.arrays
        n = len(net.n_states)
        return SearchStack(
            np.empty((n_levels, len(net.tables)), np.int64),
            np.empty((n_levels, len(net.unary)), np.int64),
            np.empty((n_levels, len(net.unary)), np.int64),
            np.empty((n_levels, n), np.int64),
            np.empty((n_levels, n), np.bool_),
            np.empty(n_levels, np.int64),
            np.zeros(n_levels, np.int64),
            np.zeros(n_levels, np.int64),
            np.zeros(n_levels, np.bool_),
            np.ones(n),
            np.array([0, 0, 0, -1, 0], np.int64),
        )

    @property
    def bytes_per_level(self) -> int:
        """The memory that one level of a stack takes."""
        net = self.arrays
        return 8 * (len(net.tables) + 2 * len(net.unary) + 2 * len(net.n_states) + 4)

    def softened(self) -> tuple[Ints, Ints]:
        """Return tables and unary costs with a penalty in place of zeros, for searches through the impossible."""
        net = self.arrays
        finite = [x[x > FLOOR] for x in (net.tables, net.unary)]
        worst = min((int(x.min()) for x in finite if x.size), default=0)
        penalty = 2 * worst - round(1.0 / self.problem.unit)
        return np.where(net.tables > FLOOR, net.tables, penalty), np.where(net.unary > FLOOR, net.unary, penalty)

    def reduced(self, dual: DualState) -> tuple[Problem, dict[int, Ints]]:
        """Return the problem that is left, costs where they are now, and the states kept of each variable."""
        net = self.arrays
        keep = [
            np.array(dual.alive[net.offset[i] : net.offset[i] + dual.n_alive[i]]) for i in range(len(net.n_states))
        ]
        tables: list[Table] = []
        constant = self.constant + int(dual.bound[0])

        def add(members: Sequence[int], values: Ints) -> None:
            nonlocal constant
            open_members = [i for i in members if len(keep[i]) > 1]
            values = values.reshape([len(keep[i]) for i in open_members])
            if open_members:
                tables.append(Table(tuple(self.variables[i] for i in open_members), values))
            else:
                constant += int(values)

        for i, states in enumerate(keep):
            add([i], dual.unary[net.offset[i] + states])
        for t in range(len(net.table_ptr) - 1):
            members = [int(i) for i in net.scope[net.scope_ptr[t] : net.scope_ptr[t + 1]]]
            values = dual.tables[net.table_ptr[t] : net.table_ptr[t + 1]]
            values = values.reshape([int(net.n_states[i]) for i in members])
            add(members, values[np.ix_(*(keep[i] for i in members))])
        kept = {v: keep[i] for i, v in enumerate(self.variables)}
        sizes = {v: len(k) for v, k in kept.items() if len(k) > 1}
        problem = Problem(sizes, frozenset(sizes), tuple(tables), constant, 0.0, self.problem.unit)
        return problem, kept


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
    return bool(ascend(costs.arrays, dual, n_sweeps, STALLED, level, threshold is None, -1, incumbent) < 0)


def climb(
    costs: Costs, dual: DualState, incumbent: Ints, key: np.uint64, should_stop: Callable[[], bool] = lambda: False
) -> int:
    """Improve the incumbent: tabu search from it, from perturbed copies and from decoded costs, then kicks.

    `key` seeds it. Each search begins with a look at `should_stop`. Returns the work, in table entries.
    """
    net = costs.arrays
    n = len(net.n_states)
    soft_tables, soft_unary = costs.softened()
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
        work += int(tabu_search(net, soft_tables, soft_unary, states, n_steps, tenure, key, incumbent))
    if incumbent[0] > FLOOR and not should_stop():
        states = incumbent[1:].copy()
        work += int(
            kick_search(
                net, soft_tables, soft_unary, dual.alive, dual.n_alive, states, KICK_WORK, key, incumbent
            )
        )  # fmt: skip
    return work
