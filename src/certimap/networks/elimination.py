"""Elimination orders, and what an elimination will cost before any memory is taken."""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from certimap.core.control import Control

# Of two orders of like cost, the one that sums more nuisance variables out beforehand is preferred:
# its circuit decides more query variables, so that searches close earlier.
CONSTRAINT_BONUS = 8.0
_GRAIN = 2**20
FREE_EDGES = 100_000.0
COST_OF_ENTRY = 0.05  # of a table entry, in edges of the compiled circuit
POLL_EVERY = 64  # variables eliminated, or rows of fill-in edges added, between two looks at the clock
_ORDERING = "looking for an elimination order"
CLIQUE_LIMITS = (math.inf, 22.0, 16.0, 10.0)  # log2 of the largest clique that nuisance goes first in


@dataclass(frozen=True)
class Elimination:
    """An elimination order with its cliques and its cost.

    Attributes
    ----------
    order
        Variables, the first eliminated first.
    separators
        For each of them the other variables of its clique, in elimination order.
    induced_width
        The most variables in a separator.
    log2_size
        Log base 2 of the number of table entries over all cliques.
    log2_largest
        The same of the largest clique.
    n_edges
        An estimate of the compiled circuit's edges from above: zeros and sharing only remove some.
        Cliques that are plain arithmetic (nothing queried below them) have none.
    """

    order: tuple[int, ...]
    separators: tuple[tuple[int, ...], ...]
    induced_width: int
    log2_size: float
    log2_largest: float
    n_edges: float

    def describe(self) -> str:
        """Say the size in words, for messages."""
        return (
            f"induced width {self.induced_width}, 2^{self.log2_size:.1f} table entries "
            f"and about {self.n_edges:.3g} circuit edges"
        )


def min_fill(
    scopes: Iterable[Collection[int]],
    sizes: Mapping[int, int],
    first: Collection[int] = (),
    log2_limit: float = math.inf,
    *,
    most_entries: float = math.inf,
    control: Control | None = None,
) -> list[tuple[int, tuple[int, ...]]]:
    """Order variables by fewest fill-in edges, ties by the smaller clique and then by position.

    Parameters
    ----------
    scopes
        Sets of variables that occur together.
    sizes
        The number of states of every variable to eliminate.
    first
        Variables to take before others while their clique has at most `2 ** log2_limit` entries.
    most_entries
        The ordering ends early, with what it has, once its cliques together have more entries.
    control
        Polled; TimeUp is raised when the time is up.

    Returns
    -------
    Pairs of a variable and its neighbours when it goes, in order.

    Notes
    -----
    Fill-in counts are kept up to date edge by edge, so that a hub with thousands of neighbours is not
    counted again each time that one of them goes: 1,000 variables take some tens of milliseconds.
    """
    return _Graph(scopes, sizes, set(first), log2_limit, control or Control()).eliminate(most_entries)


class _Graph:
    """The interaction graph while variables leave it.

    Attributes
    ----------
    near
        The neighbours of each variable.
    missing
        How many edges each variable's neighbours lack to be all joined.
    weight
        Log base 2 of the entries of each variable's clique, in units of `1 / _GRAIN`: integers, so that
        ties do not depend on the order of additions.
    """

    def __init__(
        self,
        scopes: Iterable[Collection[int]],
        sizes: Mapping[int, int],
        first: set[int],
        limit: float,
        control: Control,
    ) -> None:
        self.control = control
        self.n_polls = 0
        self.own = {v: round(math.log2(n) * _GRAIN) for v, n in sorted(sizes.items())}
        self.first = first
        self.limit = limit * _GRAIN
        self.near: dict[int, set[int]] = {v: set() for v in self.own}
        for scope in scopes:
            for v in scope:
                self.near[v].update(scope)
        for v, near in self.near.items():
            near.discard(v)
        self.missing = {v: len(near) * (len(near) - 1) // 2 for v, near in self.near.items()}
        self.weight = {v: self.own[v] + sum(self.own[u] for u in near) for v, near in self.near.items()}
        for v, near in self.near.items():
            self.poll()
            for u in near:
                if u > v:
                    for w in near & self.near[u]:
                        if w > u:
                            for corner in (u, v, w):
                                self.missing[corner] -= 1

    def poll(self) -> None:
        self.n_polls += 1
        if self.n_polls % POLL_EVERY == 0:
            self.control.check(_ORDERING)

    def rank(self, v: int) -> tuple[bool, int, int, int]:
        late = not (v in self.first and self.weight[v] <= self.limit)
        return late, self.missing[v], self.weight[v], v

    def eliminate(self, most_entries: float) -> list[tuple[int, tuple[int, ...]]]:
        current, n_entries = {v: self.rank(v) for v in self.own}, 0.0
        heap = list(current.values())
        heapq.heapify(heap)
        order: list[tuple[int, tuple[int, ...]]] = []
        while heap and n_entries <= most_entries:
            entry = heapq.heappop(heap)
            v = entry[3]
            if current.get(v) != entry:
                continue
            del current[v]
            self.poll()
            n_entries += 2.0 ** min(entry[2] / _GRAIN, 1000.0)
            order.append((v, tuple(sorted(self.near[v]))))
            touched = self.join_neighbours(v) if entry[1] else set[int]()
            touched |= self.remove(v)
            touched.discard(v)
            for u in touched:
                rank = self.rank(u)
                if rank != current[u]:
                    current[u] = rank
                    heapq.heappush(heap, rank)
        return order

    def join_neighbours(self, v: int) -> set[int]:
        """Add an edge between any two neighbours of a variable; return whose rank may have changed."""
        touched: set[int] = set()
        members = sorted(self.near[v])
        for k, a in enumerate(members):
            near_a = self.near[a]
            self.poll()
            for b in members[k + 1 :]:
                if b in near_a:
                    continue
                near_b = self.near[b]
                common = near_a & near_b
                for w in common:
                    self.missing[w] -= 1
                self.missing[a] += len(near_a) - len(common)
                self.missing[b] += len(near_b) - len(common)
                self.weight[a] += self.own[b]
                self.weight[b] += self.own[a]
                near_a.add(b)
                near_b.add(a)
                touched |= common
                touched.update((a, b))
        return touched

    def remove(self, v: int) -> set[int]:
        """Remove a variable whose neighbours are all joined; return them."""
        near = self.near.pop(v)
        for u in near:
            # Of the edges that u's neighbours lack, those of v go: v is joined to u and what it shares with u.
            self.missing[u] -= len(self.near[u]) - len(near)
            self.near[u].discard(v)
            self.weight[u] -= self.own[v]
        return near


def plan_elimination(
    scopes: Sequence[Collection[int]],
    sizes: Mapping[int, int],
    query: Collection[int],
    *,
    control: Control | None = None,
) -> Elimination:
    """Choose an order for a circuit over the `query` variables, the others being summed out.

    Nuisance variables go first where their cliques stay small: then they are plain arithmetic, and the
    circuit has query structure only. Among the orders tried the one with the most such freedom wins
    whose cost is within a small factor of the cheapest. TimeUp is raised when `control` says that the time is up.
    """
    queried = set(query)
    nuisance = [v for v in sizes if v not in queried]
    limits = CLIQUE_LIMITS if nuisance and queried else ()
    free = measure(min_fill(scopes, sizes, control=control), sizes, queried)
    # An order whose cliques alone cost more is not taken; following it to its end may be far more work than that.
    most_entries = max(CONSTRAINT_BONUS * _cost(free), FREE_EDGES) / COST_OF_ENTRY
    tried: list[Elimination] = []
    for limit in limits:
        order = min_fill(scopes, sizes, nuisance, limit, most_entries=most_entries, control=control)
        if len(order) == len(sizes):
            tried.append(measure(order, sizes, queried))
    tried.append(free)
    cheapest = min(_cost(e) for e in tried)
    return next(e for e in tried if _cost(e) <= max(CONSTRAINT_BONUS * cheapest, FREE_EDGES))


def _cost(elimination: Elimination) -> float:
    return elimination.n_edges + COST_OF_ENTRY * 2.0**elimination.log2_size


def measure(
    order: Sequence[tuple[int, tuple[int, ...]]], sizes: Mapping[int, int], query: Collection[int]
) -> Elimination:
    """Return the cost of an order, given as pairs of a variable and its separator."""
    place = {v: i for i, (v, _) in enumerate(order)}
    log2 = {v: math.log2(sizes[v]) for v in sizes}
    n_messages = [0] * len(order)  # messages with nodes that arrive at each clique
    separators: list[tuple[int, ...]] = []
    width, entries, largest, n_edges = 0, 0.0, 0.0, 0.0
    for i, (v, near) in enumerate(order):
        separator = tuple(sorted(near, key=place.__getitem__))
        separators.append(separator)
        width = max(width, len(separator))
        log2_clique = log2[v] + sum(log2[u] for u in separator)
        clique = 2.0 ** min(log2_clique, 1000.0)
        entries += clique
        largest = max(largest, log2_clique)
        leaf = v in query
        if n_messages[i]:
            n_edges += clique * (1 + n_messages[i] + leaf)
        elif leaf:
            n_edges += clique / sizes[v]
        if separator and (n_messages[i] or leaf):
            n_messages[place[separator[0]]] += 1
    return Elimination(
        tuple(v for v, _ in order),
        tuple(separators),
        width,
        math.log2(entries) if entries else 0.0,
        largest,
        n_edges,
    )
