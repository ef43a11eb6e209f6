"""Finds an assignment of nonzero probability, by search with propagation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np

from certimap.core.arrays import Flags, Ints
from certimap.core.control import Control
from certimap.core.posterior import FIND_SECONDS
from certimap.networks.problem import FLOOR, Problem, is_hard
from certimap.networks.reduction import Bearing, consistent, left_of, touching

FAILURES_PER_VARIABLE = 4
GUIDED_FAILURES_PER_VARIABLE = 0.5
SEEN_TOGETHER = 4096  # entries of a small table

States = dict[int, Ints]  # of every variable the states left; arrays are replaced, never modified
Choice = Callable[[int, States], int]


def supported_states(
    problem: Problem,
    should_stop: Callable[[], bool] = lambda: False,
    choose: Choice | None = None,
    within: Mapping[int, Flags] | None = None,
) -> dict[int, int] | None:
    """Return states of all variables, queried or not, at which no table is 0; None if none are found.

    Depth first: the variable with the fewest states left takes the state that its tables weigh most, and states
    without support in some table are dropped (generalised arc consistency). It gives up after
    `FAILURES_PER_VARIABLE` failures per variable, so that None does not mean that there is no such assignment.

    `problem`: whose zeros count. `should_stop`: ends the search. `choose`: queried variables are decided first, to
    states that it picks of the states left, and fewer failures are forgiven. `within`: the states to begin with.
    Cost: per assigned variable about one pass over the tables whose variables lose states. Without zeros there is
    nothing to search, and variables that no time is left for take their first state.
    """
    search = _Search(problem)
    left = {v: np.arange(n) for v, n in problem.sizes.items()}
    left |= {v: np.flatnonzero(mask) for v, mask in (within or {}).items()}
    if not all(map(len, left.values())) or not consistent(search.bearing, left):
        return None
    if not search.bearing:
        return search.likely_states(left, choose, problem.query, should_stop)
    decisions: list[tuple[States, int, int]] = []  # remaining states before, the variable and its state
    n_failures = 0
    most = (FAILURES_PER_VARIABLE if choose is None else GUIDED_FAILURES_PER_VARIABLE) * len(problem.sizes)
    while not should_stop():
        v = None if choose is None else search.next_variable(left, problem.query)
        if v is not None and choose is not None:
            state = choose(v, left)
        else:
            v = search.next_variable(left, problem.sizes)
            if v is None:
                return {u: int(own[0]) for u, own in left.items()}
            state = search.likely_state(v, left)
        decisions.append((dict(left), v, state))
        left[v] = np.array([state])
        while not len(left[v]) or not consistent(search.bearing, left, changed=search.near[v], near=search.near):
            n_failures += 1
            if not decisions or n_failures > most or should_stop():
                return None
            left, v, state = decisions.pop()
            left[v] = left[v][left[v] != state]
    return None


def likely_states(problem: Problem) -> dict[int, int]:
    """Return states without zeros if `supported_states` finds any in a moment, else every variable's first."""
    control = Control.starting_now(FIND_SECONDS)
    found = supported_states(problem, lambda: control.should_stop)
    return dict.fromkeys(problem.sizes, 0) if found is None else found


class _Search:
    """The tables of a problem, all and those with zeros, and which of them have each variable."""

    def __init__(self, problem: Problem) -> None:
        self.tables, zero = problem.tables, FLOOR if problem.is_integral else -np.inf
        small = [k for k, (_, own) in enumerate(self.tables) if own.size <= SEEN_TOGETHER]
        bearing = [k for k, (_, own) in enumerate(self.tables) if own.size > SEEN_TOGETHER and is_hard(own).any()]
        if small:  # seen together
            values = [self.tables[k].log_values.reshape(-1) for k in small]
            starts = np.cumsum([0, *map(len, values[:-1])])
            has_zero = np.logical_or.reduceat(is_hard(np.concatenate(values)), starts)
            bearing += [small[i] for i in np.flatnonzero(has_zero).tolist()]
        self.bearing = [Bearing(*self.tables[k], zero) for k in sorted(bearing)]
        self.near = touching(t.scope for t in self.bearing)
        self.touching = touching(t.scope for t in problem.tables)

    def likely_states(
        self, left: States, choose: Choice | None, query: Collection[int], should_stop: Callable[[], bool]
    ) -> dict[int, int]:
        """Return the assignment of a search that cannot fail, since no table has a zero."""
        chosen = frozenset(query) if choose else frozenset[int]()
        waiting = (v for v, own in left.items() if len(own) > 1)
        for v in sorted(waiting, key=lambda v: (v not in chosen, len(left[v]), -len(self.touching[v]), v)):
            if should_stop():
                break
            left[v] = np.array([(choose if choose and v in chosen else self.likely_state)(v, left)])
        return {v: int(own[0]) for v, own in left.items()}

    def next_variable(self, left: States, among: Collection[int]) -> int | None:
        """Return the open variable with the fewest states left, of these one in most tables."""
        counts = {v: n for v, own in left.items() if (n := len(own)) > 1 and v in among}
        fewest = min(counts.values(), default=0)
        is_next = (v for v, n in counts.items() if n == fewest)
        return min(is_next, key=lambda v: (-len(self.touching[v]), v), default=None)

    def likely_state(self, v: int, left: States) -> int:
        """Return the state for which the variable's tables have the largest product of largest open entries."""
        total = np.zeros(len(left[v]))
        for k in self.touching[v]:
            scope, values = self.tables[k]
            axes = tuple(a for a, u in enumerate(scope) if u != v)
            total = total + left_of(scope, values, left).max(axis=axes)
        return int(left[v][np.argmax(total)])
