"""Elimination orders of max-sum problems in which queried variables wait as long as cliques stay small."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from certimap.core.control import Control
from certimap.networks.kernels.orders import FILL, PLACE, SIZE, WEIGHTED_FILL
from certimap.networks.orders import hidden_first
from certimap.networks.problem import Problem

# log base 2 of how much smaller than all cliques together the largest clique of a hidden variable may be
LIMITS = (2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
MANY = 64
HOPELESS = 40.0  # log base 2 of joint states of a clique that no run forms


class Recipe(NamedTuple):
    """A way of making queried variables wait."""

    cost: int  # what is least next: `FILL`, `WEIGHTED_FILL` or `SIZE`; `PLACE` follows an order with small cliques
    row: int = 0  # of the random numbers that costs are raised by; 0 raises none

    @classmethod
    def at_random(cls, row: int) -> Recipe:
        """Return a greedy recipe whose costs a row of random numbers raises."""
        return cls((WEIGHTED_FILL, FILL, SIZE)[row % 3], row)


# Greedy orders bound most networks better, some far better; on grids they need cliques that a band does not.
RECIPES = (
    Recipe(PLACE), Recipe(WEIGHTED_FILL), Recipe(FILL), Recipe(SIZE), Recipe(WEIGHTED_FILL, 1), Recipe(FILL, 2),
)  # fmt: skip


class DelayedOrder(NamedTuple):
    """An elimination order of all variables, and its cost."""

    order: list[int]  # the first eliminated first
    log2_work: float  # log base 2 of the joint states of all its cliques
    log2_largest: float = math.inf  # the same of its largest clique, where that is known


def delayed(
    problem: Problem,
    base: Sequence[int],
    bits: float,
    gains: Mapping[int, float] | None = None,
    control: Control | None = None,
) -> DelayedOrder:
    """Follow an order, but delay query variables while cliques have at most 2^`bits` joint states.

    A queried variable whose turn has come waits, until a hidden variable goes whose clique, or whose going would
    make the waiting one's own clique, larger than that. Variables that waited to the end go by smallest clique.

    `problem`: whose variables are ordered.
    `base`: an order that keeps cliques small; variables that the problem does not have are skipped.
    `bits`: what may be formed. Where the base order needs more, it is followed.
    `gains`: how much the bound falls (nats, about) where a queried variable waits: the smallest gain goes first.
    `control`: polled; TimeUp is raised when the time is up.

    Cost: some set operations per variable and neighbour.
    """
    graph = EliminationGraph(problem, gains or {}, control or Control())
    for v in base:
        if v not in problem.sizes:
            continue
        if v in problem.query:
            graph.waiting.add(v)
        else:
            graph.make_room(v, bits)
            graph.eliminate(v)
    graph.eliminate_rest()
    return DelayedOrder(graph.order, math.log2(max(graph.work, 1.0)), graph.largest)


def greedily_delayed(
    problem: Problem, bits: float, recipe: Recipe, control: Control | None = None
) -> DelayedOrder | None:
    """Return a greedy order that takes hidden variables first while their cliques are small.

    `bits`: log base 2 of the joint states that its cliques may have together; what a hidden one may have is as
    large as that allows. None where no limit on hidden cliques keeps to it.
    """
    scopes = [table.scope for table in problem.tables]
    limits = [bits - less for less in LIMITS]
    found = hidden_first(
        scopes, problem.sizes, problem.query, limits, bits, cost=recipe.cost, row=recipe.row, control=control
    )
    return None if found is None else DelayedOrder(*found)


class EliminationGraph:
    """The interaction graph while variables leave it."""

    def __init__(self, problem: Problem, gains: Mapping[int, float], control: Control) -> None:
        self.gains, self.control = gains, control
        self.query = problem.query
        self.log2: Mapping[int, float] = {v: math.log2(n) for v, n in problem.sizes.items()}
        self.near: dict[int, set[int]] = {v: set() for v in problem.sizes}
        for table in problem.tables:
            for v in table.scope:
                self.near[v].update(table.scope)
        for v, near in self.near.items():
            near.discard(v)
        self.order: list[int] = []
        self.largest = self.work = 0.0
        self.waiting: set[int] = set()

    def weight(self, near: Iterable[int], v: int) -> float:
        """Return log base 2 of the joint states of a variable with others."""
        log2 = self.log2
        return log2[v] + sum([log2[u] for u in near])

    def make_room(self, v: int, bits: float) -> None:
        """Eliminate waiting neighbours of a hidden variable until no clique becomes larger than allowed."""
        while due := sorted(self.waiting & self.near[v]):
            if self.weight(self.near[v], v) <= bits:
                due = [u for u in due if self.weight(self.near[u] | self.near[v], v) > bits]
                if not due:
                    return
            n_due = max(1, len(due) // MANY)  # some at once: to look at all of them again takes long
            next_ones = heapq.nsmallest(
                n_due, due, key=lambda u: (self.gains.get(u, 0.0), self.weight(self.near[u], u), u)
            )
            for first in next_ones:
                if self.weight(self.near[first], first) > HOPELESS:
                    self.clear(first)
                self.eliminate(first)

    def clear(self, hub: int) -> None:
        """Eliminate waiting neighbours of a hub while their own cliques are smaller than its clique."""
        for u in sorted(self.waiting & self.near[hub], key=lambda u: (self.weight(self.near[u], u), u)):
            if self.weight(self.near[u], u) >= self.weight(self.near[hub], hub):
                return
            self.eliminate(u)

    def eliminate(self, v: int) -> None:
        """Let a variable go; its neighbours become one clique."""
        self.control.check("looking for an elimination order")
        weight = self.weight(self.near[v], v)
        self.largest = max(self.largest, weight)
        self.work += 2.0 ** min(weight, 1000.0)
        self.order.append(v)
        self.waiting.discard(v)
        around = self.near.pop(v)
        for u in around:
            near = self.near[u]
            near |= around
            near.discard(u)
            near.discard(v)

    def eliminate_rest(self) -> None:
        """Eliminate the variables left, the one with the smallest clique first."""
        smallest = [(self.weight(near, u), u) for u, near in self.near.items()]
        now = {u: weight for weight, u in smallest}
        heapq.heapify(smallest)
        while smallest:
            weight, v = heapq.heappop(smallest)
            if v not in self.near or weight != now[v]:
                continue
            around = self.near[v]
            self.eliminate(v)
            for u in around:
                now[u] = self.weight(self.near[u], u)
                heapq.heappush(smallest, (now[u], u))
