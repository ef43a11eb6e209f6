"""Expansion moves: better assignments of problems in pairs, found by minimum cuts.

After Boykov, Veksler and Zabih, "Fast approximate energy minimization via graph cuts" (2001).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from certimap.core.arrays import Ints
from certimap.core.control import Control
from certimap.networks.cuts import Binary, roof, settled
from certimap.networks.problem import FLOOR, HARD, Problem

FEWEST_VARIABLES, MOST_ENTRIES = 30, 2**24  # of problems; of tables that are filled up to the most states
MAX_ROUNDS = 10  # over all states
VISITS = 50  # of table entries, that take as long as a variable or a pair in a minimum cut: grids, measured


class Expansions:
    """Moves of any variables of a problem to one state, or none, until no such move betters an assignment.

    A move is a binary problem, solved where states attract each other; elsewhere roof duality tells a part of it,
    and the other variables stay.

    `work`: what all moves have cost so far, in table entries that a sweep visits in as much time. `least`: of one
    round of moves.
    """

    def __init__(self, variables: list[int], unary: Ints, ends: Ints, pairs: Ints) -> None:
        # each filled up with impossible states to the most that any variable has
        self.variables, self.unary, self.ends, self.pairs = variables, unary, ends, pairs
        self.work = 0
        self.least = unary.shape[1] * VISITS * (len(unary) + len(pairs))  # one round

    @classmethod
    def of(cls, problem: Problem) -> Expansions | None:
        """Return the moves of a problem of integers; None for small problems, binary ones and larger tables."""
        most, n = max(problem.sizes.values(), default=0), len(problem.sizes)
        if n < FEWEST_VARIABLES or most < 3 or any(len(t.scope) > 2 for t in problem.tables):
            return None
        variables = sorted(problem.sizes)
        place = {v: i for i, v in enumerate(variables)}
        keys = {frozenset(t.scope) for t in problem.tables if len(t.scope) == 2}
        if len(keys) * most * most > MOST_ENTRIES:
            return None
        number = {key: e for e, key in enumerate(sorted(keys, key=sorted))}
        unary, pairs = np.full((n, most), HARD), np.full((len(number), most, most), HARD)
        for v, size in problem.sizes.items():
            unary[place[v], :size] = 0
        for (a, b), e in ((sorted(key), e) for key, e in number.items()):
            pairs[e, : problem.sizes[a], : problem.sizes[b]] = 0
        for scope, values in problem.tables:
            if len(scope) == 1:
                part = unary[place[scope[0]], : len(values)]
            else:
                values = values if scope[0] < scope[1] else values.T
                part = pairs[number[frozenset(scope)], : values.shape[0], : values.shape[1]]
            part[:] = np.where((part > FLOOR) & (values > FLOOR), part + values, HARD)
        ends = np.array([[place[v] for v in sorted(key)] for key in number], np.int64).reshape(-1, 2)
        return cls(variables, unary, ends, pairs)

    def better(self, start: Mapping[int, int], control: Control | None = None) -> dict[int, int] | None:
        """Return an assignment that no move improves; None where no possible one is found.

        `start`: where moves begin. `control`: looked at between moves and flows; the best so far is returned.
        """
        control = control or Control()
        states = np.array([start[v] for v in self.variables])
        value = self._value(states)
        for _ in range(MAX_ROUNDS):
            before = value
            for label in range(self.unary.shape[1]):
                if control.should_stop:
                    break
                choice = np.stack([states, np.full(len(states), label)], axis=1)  # the state it has, or the label
                left, right = choice[self.ends[:, 0]][:, :, None], choice[self.ends[:, 1]][:, None, :]
                pairs = self.pairs[np.arange(len(self.pairs))[:, None, None], left, right]
                move = Binary(self.unary[np.arange(len(states))[:, None], choice], self.ends, pairs)
                moved = np.where(settled(roof(move, control))[0] == 1, label, states)
                found = self._value(moved)
                self.work += VISITS * (len(self.unary) + len(self.pairs))
                if found > value:
                    states, value = moved, found
            if value == before:
                break
        return dict(zip(self.variables, states.tolist(), strict=True)) if value > FLOOR else None

    def _value(self, states: Ints) -> int:
        """Return the value of an assignment, in units, less the constant."""
        own = self.unary[np.arange(len(states)), states]
        shared = self.pairs[np.arange(len(self.pairs)), states[self.ends[:, 0]], states[self.ends[:, 1]]]
        if (own <= FLOOR).any() or (shared <= FLOOR).any():
            return HARD
        return int(own.sum()) + int(shared.sum())
