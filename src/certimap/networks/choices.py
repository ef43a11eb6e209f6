"""Queried variables of which each state of some hidden ones needs at most one: the policy of a decision."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from certimap.core.arrays import Array
from certimap.core.control import Control
from certimap.networks.delayed_orders import DelayedOrder, EliminationGraph
from certimap.networks.mixed_tree import Memory, MixedTree
from certimap.networks.problem import ROUNDING, Problem, Table
from certimap.networks.reduction import touching

NOISE = 3.0  # log base 2 by which random orders misjudge cliques
LIMITS = (2.0, 4.0, 6.0, 10.0)  # log base 2 of how much smaller hidden cliques stay than all cliques together


class PolicyGroup(NamedTuple):
    """Queried variables that one variable replaces, where it is maximised before all that it may depend on.

    Each has one table, with the same other variables, and matters in one state of `seen`, each in a different one.
    For any states of these variables, the one variable may take the state of the one that matters, as long as all
    of `seen` is still there: so its maximum is an upper bound, and a sum over `seen` comes after.
    """

    members: tuple[int, ...]
    seen: frozenset[int]


def choices_of(problem: Problem) -> list[PolicyGroup]:
    """Return groups of queried variables that one variable each may replace, as far as one context tells them."""
    alike: dict[tuple[frozenset[int], int], list[tuple[int, dict[int, int]]]] = {}
    for v, table in _own_tables(problem, problem.query).items():
        others = frozenset(table.scope) - {v}
        if others & problem.query:
            continue
        rest, values = _last(table, v)
        live = np.argwhere(np.any(values != values[..., :1], axis=-1))
        context = {u: int(own[0]) for u, own in zip(rest, live.T, strict=True) if len(own) and np.ptp(own) == 0}
        alike.setdefault((others, problem.sizes[v]), []).append((v, context))
    found = list[PolicyGroup]()
    for some in alike.values():
        seen = frozenset(some[0][1]).intersection(*(context for _, context in some))
        states = {tuple(context[u] for u in sorted(seen)) for _, context in some}
        if len(states) == len(some) > 1:
            found.append(PolicyGroup(tuple(v for v, _ in some), seen))
    return found


def joined(problem: Problem, choices: Sequence[PolicyGroup]) -> Problem:
    """Return a problem, or a restriction of it, with one variable for those of each choice that are alike."""
    tables = _own_tables(problem, {v for c in choices for v in c.members} & problem.query)
    new, gone, slack = list[Table](), set[int](), problem.log_slack
    for choice in choices:
        alike: dict[tuple[frozenset[int], int], list[int]] = {}
        for v in choice.members:
            if v in tables and not (others := frozenset(tables[v].scope) - {v}) & problem.query:
                alike.setdefault((others, problem.sizes[v]), []).append(v)
        for first, *more in alike.values():
            if more:
                rest, values = _last(tables[first], first)
                for v in more:
                    values = values + _last(tables[v], v)[1]
                    slack += ROUNDING * float(np.abs(values[values > -np.inf]).max(initial=0.0))
                new.append(Table((*rest, first), values))
                gone.update(more, [-1 - first])
    kept = [t for t in problem.tables if not any(v in gone or -1 - v in gone for v in t.scope)]
    sizes = {v: n for v, n in problem.sizes.items() if v not in gone}
    query = problem.query - gone
    return replace(problem, sizes=sizes, query=query, tables=(*kept, *new), log_slack=slack, known=[])


def order_of_choices(
    problem: Problem, choices: Sequence[PolicyGroup], limit: float, row: int = 0, control: Control | None = None
) -> DelayedOrder:
    """Return a greedy order of a joined problem, in which a choice goes before all that it may depend on.

    Hidden variables go first while their cliques have at most 2^`limit` joint states. `row`: of random numbers
    that cliques are misjudged by; 0 misjudges none.
    """
    graph = EliminationGraph(problem, {}, control or Control())
    seen = {v: choice.seen for choice in choices for v in choice.members if v in problem.query}
    variables = sorted(problem.sizes)
    noise = NOISE * np.random.default_rng(row).random(len(variables)) if row else np.zeros(len(variables))
    off = dict(zip(variables, noise.tolist(), strict=True))
    while near := graph.near:
        barred = frozenset[int]().union(*(own for v, own in seen.items() if v in near))
        weight = {v: graph.weight(around, v) for v, around in near.items() if v not in barred}
        ranked = sorted(weight, key=lambda v: (weight[v] + off[v], v))
        small = (v for v in ranked if v not in problem.query and weight[v] <= limit)
        graph.eliminate(next(small, ranked[0]))
    return DelayedOrder(graph.order, math.log2(max(graph.work, 1.0)), graph.largest)


class ChoiceBounds:
    """Bounds boxes of a query space by elimination at full width, with one variable for those of each choice.

    `choices`: of the whole problem; without any, all bounds are inf.
    `work`: products so far.
    """

    def __init__(
        self, problem: Problem, control: Control, workers: int, memory: Memory, most_bytes: float
    ) -> None:
        self.choices = choices_of(problem)
        self.work = 0.0
        self._control, self._workers, self._memory, self._most = control, workers, memory, most_bytes
        self._whole = joined(problem, self.choices)
        self._choice_of = {v: choice for choice in self.choices for v in choice.members}
        self._best, self._order = math.inf, DelayedOrder([], math.inf)

    def bound(self, problem: Problem, bits: float, row: int | None = None) -> float:
        """Return an upper bound (nats) on the value of the whole problem's restriction to a box.

        `bits`: log base 2 of the joint states that all cliques may have together; inf is returned above it.
        `row`: of random numbers, for new orders, the best of which is kept; None takes the best so far.
        """
        if not self.choices or problem.constant == -math.inf:
            return problem.constant if self.choices else math.inf
        reduced = joined(problem, self.choices)
        if row is None:
            return self._by(reduced, self._order) if self._order.log2_work <= bits else math.inf
        tried = dict[tuple[int, ...], DelayedOrder]()
        for less in LIMITS:
            order = order_of_choices(self._whole, self.choices, bits - less, row, self._control)
            if order.log2_work <= bits:
                tried[tuple(order.order)] = order
        least = math.inf
        for order in tried.values():
            found = self._by(reduced, order)
            least = min(least, found)
            if found <= self._best:
                self._best, self._order = found, order
        return least

    def _by(self, problem: Problem, order: DelayedOrder) -> float:
        """Bound a joined restriction by an order of the joined whole."""
        mine = list[int]()
        for v in order.order:
            own = self._choice_of[v].members if v in self._choice_of else (v,)
            mine += [u for u in own if u in problem.sizes]
        tree = MixedTree(problem, mine, self._control, self._workers, self._memory)
        if tree.n_bytes > self._most:
            return math.inf
        try:
            return tree.total()
        finally:
            self.work += tree.work


def _own_tables(problem: Problem, variables: Collection[int]) -> dict[int, Table]:
    """Return the table of each of some variables that has a single one."""
    near = touching(t.scope for t in problem.tables)
    return {v: problem.tables[near[v][0]] for v in sorted(variables) if len(near[v]) == 1}


def _last(table: Table, v: int) -> tuple[list[int], Array]:
    """Return the other variables of a table, sorted, and its values with these as axes and one's states last."""
    rest = sorted(u for u in table.scope if u != v)
    return rest, np.transpose(table.log_values, [table.scope.index(u) for u in (*rest, v)])
