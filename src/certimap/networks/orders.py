"""Elimination orders: min-fill first, better ones if that is expensive, constrained ones, and a test of width."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from certimap.core.arrays import Ints, Words, pointers, spans
from certimap.core.control import Control, TimeUp
from certimap.kernels.random import seed_row
from certimap.networks.elimination import Elimination, measure
from certimap.networks.kernels import orders as kernels
from certimap.networks.kernels.orders import NeighbourLists, OrderRule
from certimap.networks.reduction import touching

FEW_VARIABLES = 1000  # an order of this many is found instantly
PART = 4000  # variables in a part
BITS = 50.0  # log2 of the entries of a table; other orders may take half of that, and even this fits nowhere
# Of two orders of like cost, the one that sums more nuisance variables out beforehand is preferred:
# its circuit decides more query variables, so that searches close earlier.
CONSTRAINT_BONUS = 8.0
FREE_EDGES = 100_000.0
COST_OF_ENTRY = 0.05  # of a table entry, in edges of the compiled circuit
CLIQUE_LIMITS = (math.inf, 22.0, 16.0, 10.0)  # log2 of the largest clique that nuisance goes first in

# A search visits entries of lists of neighbours, at some 1e8 a second, and an elimination entries of tables.
EFFORT = 2.0**27
SHARE = 0.25  # visits per entry of the best order so far: a search never costs more than it can save
HOPELESS = 64.0  # log2 of entries that nothing will ever visit
DEAR, LITTLE = 44.0, 2.0**23  # log2 of entries that take hours, as do some bits less, and the visits for restarts
TIME_SHARE, VISITS_PER_SECOND = 0.05, 2.0**26
SLOW_SHARE = 0.1  # of the time that is left, where visits take longer, as while kernels run as Python
SLICE = 4_000_000  # visits between two checks of the clock
PATIENCE = 200  # tries without a better order, and two for each one before the last better one, until they end
WORK_PER_TRY = 10_000  # fixed cost of a try, in visits
KEPT_TRIES = 4  # of this many tries, all but one keep a random beginning of the best order
_UNLIMITED = 2**58
_FEW = 64  # log2 of states in units of 1 / _FEW are the weights of weighted fill
_NEAR = 1e-4  # log2 by which a clique may exceed a limit: sizes are rounded to grains
_ORDERING = "looking for an elimination order"
_COSTS = (kernels.FILL, kernels.WEIGHTED_FILL, kernels.SIZE)
_NOISE = ((0.0, 0.0), (0.5, 0.05), (0.5, 0.15))  # of tries, in turn: see `OrderRule`


def min_fill(
    scopes: Iterable[Collection[int]],
    sizes: Mapping[int, int],
    first: Collection[int] = (),
    log2_limit: float = math.inf,
    *,
    query: Collection[int] = (),
    most_entries: float = math.inf,
    control: Control | None = None,
) -> Elimination | None:
    """Order variables by fewest fill-in edges, ties by the smaller clique and then by position.

    `scopes`: sets of variables that occur together.
    `sizes`: the number of states of every variable to eliminate.
    `first`: variables to take before others while their clique has at most `2 ** log2_limit` entries.
    `query`: the variables that are not summed out, for the order's `n_edges`.
    `most_entries`: give up, and return None, once the cliques together have more entries.
    `control`: polled; TimeUp is raised when the time is up.

    Fill-in counts are kept up to date edge by edge, so that a hub with thousands of neighbours is not counted
    again each time that one of them goes: 1,000 variables take some 3 ms.
    """
    later = sizes.keys() - set(first) if first else ()
    search = _Search(scopes, sizes, dict.fromkeys(later, kernels.QUERIED), control)
    rule = OrderRule(kernels.FILL, _grains(log2_limit), -1.0, 0.0)
    found = search.greedy(rule, log2_most=math.log2(most_entries) if most_entries > 0.0 else 0.0)
    return None if found is None else search.measured(found, query)


def looks_too_wide(scopes: Sequence[Collection[int]], sizes: Mapping[int, int]) -> bool:
    """Return whether an order by fewest fill-in edges leads to tables of more than 2^`BITS` entries.

    It orders the part around a variable in most scopes: if a part is too wide, so is the whole. Cost: some 0.1 s,
    whatever the size of the network, after one pass over its scopes.
    """
    if len(sizes) <= FEW_VARIABLES:
        return False
    near = touching(scopes)
    part = [max(sizes, key=lambda v: len(near[v]))]
    seen = set(part)
    for v in part:
        fresh = {u for k in near[v] for u in scopes[k] if u in sizes} - seen
        part += fresh
        seen |= fresh
        if len(part) >= PART:
            break
    inside = [[u for u in scopes[k] if u in seen] for k in {k for v in part for k in near[v]}]
    return min_fill(inside, {v: sizes[v] for v in part}, most_entries=PART * 2.0**BITS) is None


def best_order(
    scopes: Iterable[Collection[int]],
    sizes: Mapping[int, int],
    *,
    effort: float = EFFORT,
    seed: int = 0,
    control: Control | None = None,
) -> Elimination:
    """Return the cheapest order found: greedy by several rules, along a band, and by randomised restarts.

    `scopes`, `sizes`: as for `min_fill`.
    `effort`: the most entries of lists of neighbours to visit, some 1e8 a second. Fewer where the order is cheap:
    a search never costs more than a share of what eliminating in the best order does.
    `seed`: of the restarts. The same arguments return the same order, unless the time runs out.
    `control`: about a twentieth of its time is spent, and a tenth where the machine is slow; the best so far is
    returned when the time is up. TimeUp is raised where there is none yet.

    Randomised restarts as in Kask, Gelfand, Otten and Dechter, "Pushing the power of stochastic greedy ordering
    schemes for inference in graphical models" (2011); most of them keep a beginning of the best order. The band
    order is reverse Cuthill and McKee's (1969), which is best on grids.
    """
    search = _Search(scopes, sizes, {}, control, seed)
    end = time.perf_counter() + SLOW_SHARE * search.control.seconds_left
    best = search.greedy(OrderRule(kernels.FILL, _UNLIMITED, -1.0, 0.0))
    assert best is not None  # no total is too large
    for tries, most in ((search.exact_tries(), math.inf), (search.random_tries(), LITTLE)):
        n_tries = n_useful = 0
        while time.perf_counter() < end and not search.control.should_stop and n_tries <= PATIENCE + 2 * n_useful:
            if search.work >= search.effort_for(best.log2_size, effort, most):
                break
            try_ = next(tries, None)
            if try_ is None:
                break
            n_tries += 1
            found = search.made(try_, best)
            if found is not None and found.log2_size < best.log2_size:
                best, n_useful = found, n_tries
    return search.measured(best, ())


def hidden_first(
    scopes: Iterable[Collection[int]],
    sizes: Mapping[int, int],
    query: Collection[int],
    log2_limits: Iterable[float],
    log2_most: float,
    *,
    cost: int = kernels.FILL,
    row: int = 0,
    control: Control | None = None,
) -> tuple[list[int], float] | None:
    """Return a greedy order and log2 of the joint states of its cliques together: at most `log2_most`, or None.

    Hidden variables go first while their cliques have at most 2^limit joint states. The first limit that keeps
    the whole within `log2_most` decides.

    `cost`: `FILL`, `WEIGHTED_FILL` or `SIZE`.
    `row`: of random numbers that raise the costs a little; 0 raises none.
    """
    search = _Search(scopes, sizes, dict.fromkeys(query, kernels.QUERIED), control)
    noise, spread = _NOISE[1] if row else (-1.0, 0.0)
    for limit in log2_limits:
        found = search.greedy(OrderRule(cost, _grains(limit), noise, spread), None, row, log2_most)
        if found is not None:
            return [search.variables[i] for i in found.order.tolist()], found.log2_size
    return None


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
    found = best_order(scopes, sizes, control=control)
    free = measure(found.order, found.separators, sizes, queried)
    # An order whose cliques alone cost more is not taken; following it to its end may be far more work than that.
    most_entries = max(CONSTRAINT_BONUS * _cost(free), FREE_EDGES) / COST_OF_ENTRY
    tried: list[Elimination] = []
    for limit in limits:
        order = min_fill(scopes, sizes, nuisance, limit, query=queried, most_entries=most_entries, control=control)
        if order is not None:
            tried.append(order)
    tried.append(free)
    cheapest = min(_cost(e) for e in tried)
    return next(e for e in tried if _cost(e) <= max(CONSTRAINT_BONUS * cheapest, FREE_EDGES))


def _cost(elimination: Elimination) -> float:
    return elimination.n_edges + COST_OF_ENTRY * 2.0**elimination.log2_size


def _grains(log2: float) -> int:
    """Return a limit in the units of the kernels."""
    return min(round((log2 + _NEAR) * kernels.GRAIN), _UNLIMITED) if math.isfinite(log2) else _UNLIMITED


class _Found(NamedTuple):
    """A graph whose variables are gone, and log2 of the joint states of its cliques."""

    graph: NeighbourLists
    log2_size: float

    @property
    def order(self) -> Ints:
        """The variables by their places, the first eliminated first."""
        return self.graph.order


# A recipe for an order: a rule, its random stream, and the share of the best order to keep.
_Try = tuple[OrderRule, int, float]


class _Search:
    """Tries orders on one graph; `work` counts the visited entries of lists of neighbours."""

    def __init__(
        self,
        scopes: Iterable[Collection[int]],
        sizes: Mapping[int, int],
        stage: Mapping[int, int],
        control: Control | None,
        seed: int = 0,
    ) -> None:
        self.sizes, self.control, self.seed, self.work = sizes, control or Control(), seed, 1
        self.variables = sorted(sizes)
        self.pointers, self.near = _neighbours(scopes, self.variables)
        self.log2 = np.log2([float(sizes[v]) for v in self.variables])
        self.stage = np.array([stage.get(v, kernels.HIDDEN) for v in self.variables], np.int64)
        self.place = np.zeros(len(self.variables), np.int64)

    def effort_for(self, log2_size: float, effort: float, dear: float) -> float:
        """Return the work to spend, given log2 of the entries of the best order; `dear` beyond `DEAR`."""
        worth = dear if log2_size > DEAR else SHARE * 2.0 ** min(log2_size, HOPELESS)
        seconds = self.control.seconds_left
        if math.isfinite(seconds):  # in powers of two, so that it does not depend on the last millisecond
            effort = min(effort, 2.0 ** math.floor(math.log2(max(seconds, 1e-6) * TIME_SHARE * VISITS_PER_SECOND)))
        return min(effort, worth)

    def exact_tries(self) -> Iterator[_Try]:
        """Yield the deterministic tries."""
        band = _band(self.pointers, self.near)
        for order in (band, band[::-1]):
            self.place[order] = np.arange(len(order))
            yield OrderRule(kernels.PLACE, _UNLIMITED, -1.0, 0.0), 0, 0.0
        for cost in (kernels.WEIGHTED_FILL, kernels.SIZE):
            yield OrderRule(cost, _UNLIMITED, -1.0, 0.0), 0, 0.0

    def random_tries(self) -> Iterator[_Try]:
        """Yield tries without end."""
        rng = np.random.default_rng(self.seed)
        for k in itertools.count():
            noise, spread = _NOISE[k // len(_COSTS) % len(_NOISE)]
            kept = rng.random() if k % KEPT_TRIES else 0.0
            yield OrderRule(_COSTS[k % len(_COSTS)], _UNLIMITED, noise, spread), k, kept

    def made(self, try_: _Try, best: _Found) -> _Found | None:
        """Return the order of a try; None where it is dearer than the best, or the time was up."""
        rule, row, kept = try_
        try:
            return self.greedy(rule, best.order[: int(kept * len(best.order))], row, best.log2_size)
        except TimeUp:
            return None

    def greedy(
        self, rule: OrderRule, given: Ints | None = None, row: int = 0, log2_most: float = math.inf
    ) -> _Found | None:
        """Return the order of a rule after a beginning; None where its cliques have more entries together."""
        stream = np.zeros(4, np.uint64)
        seed_row(np.uint64(self.seed), row, stream)
        graph = self._open(rule, stream)
        given = np.empty(0, np.int64) if given is None else given
        while True:
            self.control.check(_ORDERING)
            outcome = kernels.eliminate(graph, rule, stream, given, log2_most, SLICE)
            if outcome == kernels.FULL:
                graph = graph._replace(pool=np.concatenate([graph.pool, np.empty_like(graph.pool)]))
            elif outcome != kernels.RUNNING:
                break
        self.work += int(graph.counters[kernels.WORK]) + len(self.near) + WORK_PER_TRY
        if outcome == kernels.BEYOND:
            return None
        entries = float(graph.totals[0])
        return _Found(graph, math.log2(entries) if entries else 0.0)

    def _open(self, rule: OrderRule, stream: Words) -> NeighbourLists:
        """Return the graph with all variables still in it."""
        n, degrees = len(self.variables), np.diff(self.pointers)
        zeros = np.zeros((9, n), np.int64)
        is_weighted = rule.cost == kernels.WEIGHTED_FILL
        pool = np.empty(4 * len(self.near) + 64, np.int64)
        pool[: len(self.near)] = self.near
        counters = np.zeros(5, np.int64)
        counters[kernels.POOL_USED] = len(self.near)
        pull = np.maximum(np.rint(self.log2 * _FEW), 1.0).astype(np.int64) if is_weighted else np.ones(n, np.int64)
        own = np.rint(self.log2 * kernels.GRAIN).astype(np.int64)
        weight, missing, around, heap, where, key, tie, mark, order = zeros
        graph = NeighbourLists(
            self.pointers[:-1].copy(), degrees, degrees.copy(), pool, own, pull, self.stage, self.place, weight,
            missing, around, heap, where, key, tie, mark, np.zeros(2 * n, np.int64), order, counters, np.zeros(2),
        )  # fmt: skip
        kernels.open_graph(graph, rule, stream)
        return graph

    def measured(self, found: _Found, query: Collection[int]) -> Elimination:
        """Return an order with its cliques, the neighbours that variables had when they went, and its costs."""
        graph, n = found.graph, len(self.variables)
        lengths, place = graph.length[graph.order], np.empty(n, np.int64)
        place[graph.order] = np.arange(n)
        members = graph.pool[spans(graph.start[graph.order], lengths)]
        members = np.sort(np.repeat(np.arange(n), lengths) * n + place[members]) % max(n, 1)
        variables: list[int] = np.array(self.variables, np.int64)[graph.order].tolist()
        named: list[int] = np.array(variables, np.int64)[members].tolist()
        starts: list[int] = pointers(lengths).tolist()
        separators = [tuple(named[a:b]) for a, b in itertools.pairwise(starts)]
        return measure(variables, separators, self.sizes, query)


def band_orders(scopes: Iterable[Collection[int]], sizes: Mapping[int, int]) -> list[list[int]]:
    """Return the variables along a band of the graph, in both directions: see `best_order`."""
    variables = sorted(sizes)
    positions: list[int] = _band(*_neighbours(scopes, variables)).tolist()
    band = [variables[i] for i in positions]
    return [band, band[::-1]]


def _band(pointers: Ints, near: Ints) -> Ints:
    """Return positions in reverse Cuthill and McKee's order."""
    sparse: Any = import_module("scipy.sparse")
    sweeps: Any = import_module("scipy.sparse.csgraph")
    n = len(pointers) - 1
    matrix: Any = sparse.csr_matrix((np.ones(len(near)), near, pointers), (n, n))
    return np.array(sweeps.reverse_cuthill_mckee(matrix, True), np.int64)


def _neighbours(scopes: Iterable[Collection[int]], variables: Sequence[int]) -> tuple[Ints, Ints]:
    """Return where the neighbours of each variable begin, and all neighbours, by the variables' places."""
    place = {v: i for i, v in enumerate(variables)}
    n = max(len(variables), 1)
    by_length: dict[int, list[int]] = {}
    for scope in scopes:
        by_length.setdefault(len(scope), []).extend(place[v] for v in scope)
    pairs = [np.empty(0, np.int64)]
    for length, flat in by_length.items():
        members = np.array(flat, np.int64).reshape(-1, length) if length > 1 else np.empty((0, 1), np.int64)
        pairs += [members[:, i] * n + members[:, j] for i in range(length) for j in range(length) if i != j]
    found = np.sort(np.concatenate(pairs))  # np.unique of numpy 2.3 hashes, which takes some ten times as long
    rows, near = np.divmod(found[np.diff(found, prepend=-1) > 0], n)
    pointers = np.zeros(len(variables) + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=len(variables)), out=pointers[1:])
    return pointers, near
