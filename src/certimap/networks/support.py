"""An assignment to which no table gives probability 0, by search with propagation."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from certimap.networks.problem import Problem, is_hard

Bools = NDArray[np.bool_]
FAILURES_PER_VARIABLE = 4


def supported_states(problem: Problem, should_stop: Callable[[], bool] = lambda: False) -> dict[int, int] | None:
    """Return states of all variables, queried or not, at which no table is 0; None where none is found.

    Depth first: the variable with the fewest states left takes the state that its tables weigh most, and states
    without support in some table are dropped (generalised arc consistency). It gives up after
    `FAILURES_PER_VARIABLE` failures per variable, so that None does not mean that there is no such assignment.

    Cost: per assigned variable about one pass over the tables whose variables lose states.
    """
    search = _Search(problem)
    left = {v: np.ones(n, np.bool_) for v, n in problem.sizes.items()}
    if not search.propagate(left, range(len(problem.tables))):
        return None
    decisions: list[tuple[dict[int, Bools], int, int]] = []  # what was left before, the variable and its state
    n_failures, most = 0, FAILURES_PER_VARIABLE * len(problem.sizes)
    while not should_stop():
        v = search.next_variable(left)
        if v is None:
            return {u: int(np.argmax(alive)) for u, alive in left.items()}
        state = search.likely_state(v, left)
        decisions.append((dict(left), v, state))
        left[v] = np.arange(problem.sizes[v]) == state
        while not search.propagate(left, search.touching[v]):
            n_failures += 1
            if not decisions or n_failures > most:
                return None
            left, v, state = decisions.pop()
            left[v] = left[v] & (np.arange(problem.sizes[v]) != state)
    return None


class _Search:
    """The tables of a problem, and which of their entries are positive."""

    def __init__(self, problem: Problem) -> None:
        self.tables = problem.tables
        self.positive = [~is_hard(t.log_values) for t in problem.tables]
        self.touching: dict[int, list[int]] = {v: [] for v in problem.sizes}
        for k, table in enumerate(problem.tables):
            for v in table.scope:
                self.touching[v].append(k)

    def propagate(self, left: dict[int, Bools], changed: Iterable[int]) -> bool:
        """Drop states without support, starting at some tables; False where a variable has none left.

        Masks are replaced, never written to: a copy of the dictionary keeps what was left before.
        """
        waiting = deque(changed)
        queued = set(waiting)
        while waiting:
            k = waiting.popleft()
            queued.discard(k)
            scope = self.tables[k].scope
            supported = self.positive[k] & _open(scope, left)
            for axis, v in enumerate(scope):
                alive = np.asarray(supported.any(axis=tuple(a for a in range(len(scope)) if a != axis)))
                if not alive.any():
                    return False
                if alive.sum() < left[v].sum():
                    left[v] = alive
                    fresh = [j for j in self.touching[v] if j != k and j not in queued]
                    waiting.extend(fresh)
                    queued.update(fresh)
        return all(alive.any() for alive in left.values())

    def next_variable(self, left: dict[int, Bools]) -> int | None:
        """Return the open variable with the fewest states left, of these one in most tables."""
        n_left = {v: int(alive.sum()) for v, alive in left.items()}
        is_open = [v for v, n in n_left.items() if n > 1]
        return min(is_open, key=lambda v: (n_left[v], -len(self.touching[v]), v), default=None)

    def likely_state(self, v: int, left: dict[int, Bools]) -> int:
        """Return the state for which the variable's tables have the largest product of largest open entries."""
        total = np.where(left[v], 0.0, -np.inf)
        for k in self.touching[v]:
            scope, values = self.tables[k]
            axis = scope.index(v)
            largest = np.where(_open(scope, left), values, -np.inf)
            total = total + largest.max(axis=tuple(a for a in range(len(scope)) if a != axis))
        return int(np.argmax(total))


def _open(scope: tuple[int, ...], left: dict[int, Bools]) -> Bools:
    """Return which entries of a table over a scope have all their states left."""
    found = np.ones((1,) * len(scope), np.bool_)
    for axis, v in enumerate(scope):
        found = found & left[v].reshape([-1 if a == axis else 1 for a in range(len(scope))])
    return found
