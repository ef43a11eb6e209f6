"""Local search whose moves are eliminations: connected variables take their best states while the others stay."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from certimap.core.control import Control
from certimap.networks.elimination_plan import cheap_plan
from certimap.networks.max_elimination import MaxElimination
from certimap.networks.problem import Problem, restrict, value_at

LEAST_BITS, MOST_BITS = 16.0, 22.0  # log base 2 of the table entries that a move may form
MOVE_WORK = 200_000  # visits of a search that take as long as a move's order and plan
FAILURES = 3.0  # times that moves may cover all variables without gain before they grow
GROWTH = 1.2  # of the number of variables in a move, while orders stay cheap


class Neighbourhoods:
    """Betters an assignment of an integer problem by moves of many variables at once.

    `problem`: without nuisance variables. `seed`: of the variables from which moves spread, breadth first.

    `work`: the cost so far, in table entries. `is_finished`: whether the largest moves gain nothing either.
    """

    def __init__(self, problem: Problem, seed: int, control: Control) -> None:
        self._problem, self._control, self._rng = problem, control, np.random.default_rng(seed % 2**32)
        self._names = list(problem.sizes)
        self._tables: dict[int, list[int]] = {v: [] for v in self._names}
        for k, table in enumerate(problem.tables):
            for v in table.scope:
                self._tables[v].append(k)
        self._size, self._bits, self._n_failed = 0.25 * len(self._names), LEAST_BITS, 0.0
        self.work = 0.0
        self.is_finished = len(self._names) < 2

    def better(self, states: Mapping[int, int], until: float) -> dict[int, int]:
        """Move until `work` has reached `until`, or nothing gains; return the states, which are no worse.

        `states`: of an assignment whose value is not ln 0.
        """
        found = dict(states)
        while self.work < until and not self.is_finished and not self._control.should_stop:
            gained = self._move(found)
            self._n_failed = 0.0 if gained else self._n_failed + self._size / len(self._names)
            if self._n_failed > FAILURES:
                self._bits, self._n_failed = self._bits + 3.0, 0.0
                self.is_finished = self._bits > MOST_BITS
        return found

    def _move(self, states: dict[int, int]) -> bool:
        """Change states in place; return whether that gains."""
        problem = self._problem
        free = self._group(max(2, int(self._size)))
        tables = tuple(problem.tables[k] for k in sorted({k for v in free for k in self._tables[v]}))
        names = sorted(free.union(*(t.scope for t in tables)))
        sizes = {v: problem.sizes[v] for v in names}
        around = Problem(sizes, frozenset(names), tables, 0, 0.0, problem.unit)
        inside = restrict(around, {v: np.array([states[v]]) for v in names if v not in free})
        plan = cheap_plan(inside, 2.0**self._bits)
        self.work += MOVE_WORK
        if plan is None:
            self._size /= GROWTH
            self.is_finished = self._size < 2.0
            return False
        self.work += plan.n_entries
        if len(free) < len(self._names):
            self._size *= GROWTH ** (1.0 if plan.n_entries < 2.0 ** (self._bits - 2.0) else 0.0)
        found = MaxElimination(inside, plan)
        before = int(value_at(around, np.array([[states[v] for v in names]]), names)[0])
        states.update(found.assignment())
        return found.value > before

    def _group(self, size: int) -> set[int]:
        """Return a connected group of variables around a random one."""
        start = self._names[int(self._rng.integers(len(self._names)))]
        order, seen = [start], {start}
        for v in order:
            near = sorted({u for k in self._tables[v] for u in self._problem.tables[k].scope} - seen)
            self._rng.shuffle(near)
            order += near
            seen.update(near)
            if len(order) >= size:
                break
        return set(order[:size])
