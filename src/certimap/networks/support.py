"""Finds an assignment of nonzero probability, by search with propagation."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from certimap.core.arrays import Flags
from certimap.core.control import Control
from certimap.core.posterior import FIND_SECONDS
from certimap.networks.problem import Problem, Table, is_hard
from certimap.networks.reduction import touching

FAILURES_PER_VARIABLE = 4
GUIDED_FAILURES_PER_VARIABLE = 0.5
SEEN_TOGETHER = 4096  # entries of a small table

Masks = Mapping[int, Flags]


Choice = Callable[[int, Masks], int]


def supported_states(
    problem: Problem,
    should_stop: Callable[[], bool] = lambda: False,
    choose: Choice | None = None,
    within: Masks | None = None,
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
    left = _Left({v: np.ones(n, np.bool_) for v, n in problem.sizes.items()}, dict(problem.sizes))
    for v, mask in (within or {}).items():
        left.put(v, mask)
    if not all(left.counts.values()) or not search.propagate(left, search.with_zeros):
        return None
    if not search.with_zeros:
        return search.likely_states(left, choose, problem.query, should_stop)
    decisions: list[tuple[_Left, int, int]] = []  # remaining states before, the variable and its state
    n_failures = 0
    most = (FAILURES_PER_VARIABLE if choose is None else GUIDED_FAILURES_PER_VARIABLE) * len(problem.sizes)
    while not should_stop():
        v = None if choose is None else search.next_variable(left, problem.query)
        if v is not None and choose is not None:
            state = choose(v, left.masks)
        else:
            v = search.next_variable(left, problem.sizes)
            if v is None:
                return {u: int(np.argmax(alive)) for u, alive in left.masks.items()}
            state = search.likely_state(v, left.masks)
        decisions.append((_Left(dict(left.masks), dict(left.counts)), v, state))
        left.put(v, np.arange(problem.sizes[v]) == state)
        while not search.propagate(left, search.touching[v]):
            n_failures += 1
            if not decisions or n_failures > most or should_stop():
                return None
            left, v, state = decisions.pop()
            left.put(v, left.masks[v] & (np.arange(problem.sizes[v]) != state))
    return None


class _Left(NamedTuple):
    """The remaining states of every variable, as masks (replaced, never modified), and their numbers."""

    masks: dict[int, Flags]
    counts: dict[int, int]

    def put(self, v: int, mask: Flags) -> None:
        self.masks[v] = mask
        self.counts[v] = int(np.count_nonzero(mask))


def likely_states(problem: Problem) -> dict[int, int]:
    """Return states without zeros if `supported_states` finds any in a moment, else every variable's first."""
    control = Control.starting_now(FIND_SECONDS)
    found = supported_states(problem, lambda: control.should_stop)
    return dict.fromkeys(problem.sizes, 0) if found is None else found


class _Search:
    """The tables of a problem, and which of their entries are positive."""

    def __init__(self, problem: Problem) -> None:
        self.tables = problem.tables
        self.with_zeros = _with_zeros(problem.tables)
        self.positive = {k: ~is_hard(problem.tables[k].log_values) for k in self.with_zeros}
        self.touching = touching(t.scope for t in problem.tables)

    def propagate(self, left: _Left, changed: Iterable[int]) -> bool:
        """Drop states without support, starting at some tables; False where a variable of these has none left."""
        waiting = deque(changed)
        queued = set(waiting)
        while waiting:
            k = waiting.popleft()
            queued.discard(k)
            scope = self.tables[k].scope
            if k not in self.positive:
                if not all(left.counts[v] for v in scope):
                    return False
                continue
            supported = self.positive[k] & _open(scope, left.masks)
            for axis, v in enumerate(scope):
                alive = np.asarray(supported.any(axis=tuple(a for a in range(len(scope)) if a != axis)))
                if not alive.any():
                    return False
                if np.count_nonzero(alive) < left.counts[v]:
                    left.put(v, alive)
                    fresh = [j for j in self.touching[v] if j != k and j not in queued]
                    waiting.extend(fresh)
                    queued.update(fresh)
        return True

    def likely_states(
        self, left: _Left, choose: Choice | None, query: Collection[int], should_stop: Callable[[], bool]
    ) -> dict[int, int]:
        """Return the assignment of a search that cannot fail, since no table has a zero."""
        chosen = frozenset(query) if choose else frozenset[int]()
        waiting = (v for v, n in left.counts.items() if n > 1)
        for v in sorted(waiting, key=lambda v: (v not in chosen, left.counts[v], -len(self.touching[v]), v)):
            if should_stop():
                break
            state = (choose if choose and v in chosen else self.likely_state)(v, left.masks)
            left.put(v, np.arange(len(left.masks[v])) == state)
        return {v: int(np.argmax(alive)) for v, alive in left.masks.items()}

    def next_variable(self, left: _Left, among: Collection[int]) -> int | None:
        """Return the open variable with the fewest states left, of these one in most tables."""
        fewest = min((n for v, n in left.counts.items() if n > 1 and v in among), default=0)
        is_next = [v for v, n in left.counts.items() if n == fewest and v in among]
        return min(is_next, key=lambda v: (-len(self.touching[v]), v)) if fewest else None

    def likely_state(self, v: int, left: Masks) -> int:
        """Return the state for which the variable's tables have the largest product of largest open entries."""
        total = np.where(left[v], 0.0, -np.inf)
        for k in self.touching[v]:
            scope, values = self.tables[k]
            axis = scope.index(v)
            largest = np.where(_open(scope, left), values, -np.inf)
            total = total + largest.max(axis=tuple(a for a in range(len(scope)) if a != axis))
        return int(np.argmax(total))


def _with_zeros(tables: Sequence[Table]) -> list[int]:
    """Return which tables have an entry of probability 0; small ones are seen together."""
    small = [k for k, table in enumerate(tables) if table.log_values.size <= SEEN_TOGETHER]
    found = [k for k, (_, own) in enumerate(tables) if own.size > SEEN_TOGETHER and is_hard(own).any()]
    if small:
        values = [tables[k].log_values.reshape(-1) for k in small]
        ends = np.cumsum([len(own) for own in values])
        has_zero = np.logical_or.reduceat(is_hard(np.concatenate(values)), [0, *ends[:-1].tolist()])
        found += [small[i] for i in np.flatnonzero(has_zero).tolist()]
    return sorted(found)


def _open(scope: tuple[int, ...], left: Masks) -> Flags:
    """Return which entries of a table over a scope have only remaining states."""
    found = np.ones((1,) * len(scope), np.bool_)
    for axis, v in enumerate(scope):
        found = found & left[v].reshape([-1 if a == axis else 1 for a in range(len(scope))])
    return found
