"""Subproblems of an integer problem, each with its bound and its best assignment, advanced piece by piece.

A component goes through phases: dual ascent, then a reduced problem, search, or elimination.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from certimap.core.arrays import Ints
from certimap.core.control import Control, TimeUp
from certimap.networks.costs import STALLED, BestFirstSearch, Costs, DualState, climb, copy_of, sweep
from certimap.networks.cuts import cut
from certimap.networks.elimination import Elimination
from certimap.networks.elimination_plan import EliminationPlan, plan
from certimap.networks.max_elimination import MaxElimination, Neighbourhoods
from certimap.networks.orders import HOPELESS, best_order, min_fill
from certimap.networks.problem import FLOOR, HARD, FineIntegers, Problem, components, value_at
from certimap.networks.simplify import Simplified, impossible, simplify
from certimap.solvers.networks import root_bound
from certimap.solvers.networks.root_bound import RootBound

ENTRIES_PER_SECOND = 2.0**27  # that elimination gets through on one core, at least
AFFORDABLE = 20.0  # seconds of an elimination that begins soon
TIME_SHARE = 0.65  # of the time left, that it may take
ENTRIES_PER_VISIT = 4.0  # entries that elimination gets through while a search visits one
SHARE_SEARCHED = 0.1  # of its work, that a search gets before it


@dataclass
class Context:
    """Settings and limits that all parts share, and what they have used."""

    control: Control
    workers: int
    quick_entries: float  # eliminate straight away what takes at most so many table entries
    max_entries: float  # never eliminate what takes more
    max_bytes: int  # memory for a search or an elimination
    top_k: int  # how many best assignments are wanted; above 1 every assignment above `threshold` is reported
    seed: int  # of the local search
    margin: int = 0  # units within which the value of a component is good enough
    threshold: int = HARD  # with `top_k` above 1: units at or below which nothing is of interest
    # n_nodes, work: search nodes and table entries visited so far
    n_nodes: int = 0
    work: int = 0
    _n_keys: int = 0

    @property
    def lists_all(self) -> bool:
        """Whether every good assignment is wanted, not only a best one."""
        return self.top_k > 1

    def stops(self) -> bool:
        """Whether long work should return soon."""
        return self.control.should_stop

    def next_key(self) -> np.uint64:
        """Return the key of the next stream of random numbers."""
        self._n_keys += 1
        return np.uint64((self.seed + 0x9E3779B97F4A7C15 * self._n_keys) % 2**64)

    def searched_before(self, elimination: EliminationPlan) -> float:
        """Return the entries a search may visit before an elimination: a share, if that would end soon anyhow."""
        seconds = elimination.n_entries / (ENTRIES_PER_SECOND * self.workers)
        is_affordable = seconds <= min(AFFORDABLE, TIME_SHARE * self.control.seconds_left)
        share = SHARE_SEARCHED if is_affordable and self.quick_entries else 1.0
        return share * elimination.n_entries / ENTRIES_PER_VISIT

    def maximum(
        self, problem: Problem, plan: EliminationPlan, work: float, fine: FineIntegers | None = None
    ) -> MaxElimination | None:
        """Eliminate a problem for so much work; None where the time does not suffice."""
        lists, control = self.lists_all, self.control
        try:
            found = MaxElimination(
                problem, plan, workers=self.workers, control=control, keep_tables=lists, fine=fine
            )
        except TimeUp:
            return None
        self.work += int(work)
        return found

    def fits(self, elimination: EliminationPlan) -> bool:
        """Whether an elimination keeps to the limits."""
        n_bytes = max(elimination.n_bytes, elimination.n_bytes_kept) if self.lists_all else elimination.n_bytes
        return elimination.n_entries <= self.max_entries and n_bytes <= self.max_bytes


def level_of(component: Component, context: Context) -> int:
    """Return the units at or below which nothing matters."""
    return context.threshold if context.lists_all else max(HARD, component.value + context.margin)


def incumbent_of(component: Component, costs: Costs, context: Context) -> Ints:
    """Return the best assignment for kernels: value less constant, states; none where all good ones are wanted."""
    incumbent = np.zeros(len(costs.variables) + 1, np.int64)
    incumbent[0] = HARD
    if component.value > FLOOR and not context.lists_all:
        incumbent[0] = component.value - costs.constant
        incumbent[1:] = [component.states[v] for v in costs.variables]
    return incumbent


def take_incumbent(component: Component, costs: Costs, incumbent: Ints) -> None:
    """Hand what the kernels have found to the component."""
    if incumbent[0] > FLOOR and incumbent[0] + costs.constant > component.value:
        component.offer({v: int(s) for v, s in zip(costs.variables, incumbent[1:], strict=True)})


def ascended(costs: Costs, dual: DualState, incumbent: Ints, context: Context, n_sweeps: int) -> bool:
    """Sweep, and count the work; return False where nothing can matter."""
    threshold = context.threshold - costs.constant if context.lists_all else None
    before = int(dual.n_touched[0])
    matters = sweep(costs, dual, incumbent, n_sweeps, threshold)
    context.work += int(dual.n_touched[0]) - before
    return matters


States = dict[int, int]


PIECE = 20_000_000  # table entries visited in one piece of work
LEAST_PIECE = 1_000_000
SWEEPS, MAX_ASCENTS = 20, 15
KEPT_SHARE = 0.9  # a problem is reduced anew when it has kept at most this share of its states
KEPT_SHARE_AGAIN = 0.75  # and in the middle of a search, when it would keep at most this one
PIECES_PER_CLIMB = 8
MOVES_SHARE = 0.15  # of a search's work, for moves of many variables


class Phase:
    """What is done for a component: `advance` does a piece of it. `open_bound`: units of what is open."""

    open_bound = HARD
    is_done = False
    n_parts = 1
    n_bytes = 0

    def advance(self, component: Component, context: Context) -> Phase:
        """Do a piece of work; return the phase that goes on."""
        raise NotImplementedError


class Settled(Phase):
    """Nothing is open."""

    is_done = True

    def advance(self, component: Component, context: Context) -> Phase:
        return self


class Eliminating(Phase):
    """Exact maximisation in one piece; where the time is up meanwhile, what came before stands."""

    def __init__(self, before: Phase) -> None:
        self.open_bound, self.n_bytes = before.open_bound, before.n_bytes

    def advance(self, component: Component, context: Context) -> Phase:
        plan = component.plan
        found = context.maximum(component.problem, plan, plan.n_entries / ENTRIES_PER_VISIT)
        if found is None:
            return self
        if context.lists_all:
            self._report(found, component, context)
        else:
            component.closed = max(component.closed, found.value)
            component.offer(found.assignment())
        return Settled()

    def _report(self, found: MaxElimination, component: Component, context: Context) -> None:
        for n, (value, states) in enumerate(found.ranked()):
            if n >= context.top_k:
                component.closed = max(component.closed, value)
                return
            component.offer(states)
            component.report(states)


class Delegating(Phase):
    """What dual ascent has left is a problem of its own."""

    def __init__(self, child: Reduction, kept: dict[int, Ints], component: Component) -> None:
        self._child = child
        self._kept = kept
        self._take(component)

    @property
    def open_bound(self) -> int:
        return self._child.bound

    @property
    def is_done(self) -> bool:
        return self._child.is_done

    @property
    def n_parts(self) -> int:
        return max(1, self._child.n_parts)

    @property
    def n_bytes(self) -> int:
        return self._child.n_bytes

    def advance(self, component: Component, context: Context) -> Phase:
        self._child.advance(context)
        self._take(component)
        return self

    def _take(self, component: Component) -> None:
        if self._child.value > component.value:
            component.offer(self._decoded(self._child.states))
        component.suggested = self._decoded(self._child.suggested)
        for states in self._child.drain():
            component.report(self._decoded(states))

    def _decoded(self, states: dict[int, int]) -> dict[int, int]:
        return {v: int(kept[states.get(v, 0)]) for v, kept in self._kept.items()}


class Ascending(Phase):
    """Dual ascent at the root, with local search; costs are laid out when they are first needed."""

    def __init__(self, component: Component) -> None:
        self._component = component
        self._costs: Costs | None = None
        self._n_ascents = 0

    @property
    def open_bound(self) -> int:
        if self._costs is None:
            return int(self._component.problem.constant) + sum(
                int(t.log_values.max()) for t in self._component.problem.tables
            )
        return self._costs.constant + int(self._dual.bound[0])

    @property
    def n_bytes(self) -> int:
        return 0 if self._costs is None else 2 * self._costs.bytes_per_level

    def _lay_out(self) -> Costs:
        if self._costs is None:
            self._costs = Costs(self._component.problem, tuple(reversed(self._component.plan.order)))
            self._dual = self._costs.dual()
        return self._costs

    def advance(self, component: Component, context: Context) -> Phase:
        costs = self._lay_out()
        incumbent = incumbent_of(component, costs, context)
        before = int(self._dual.bound[0])
        n_visits = max(1, 4 * len(costs.arrays.tables))
        swept_out = not ascended(costs, self._dual, incumbent, context, max(1, min(SWEEPS, PIECE // n_visits)))
        self._n_ascents += 1
        if not context.lists_all and not swept_out:
            context.work += climb(costs, self._dual, incumbent, context.next_key(), context.stops)
        take_incumbent(component, costs, incumbent)
        component.suggested = costs.decoded(self._dual)
        if swept_out or self.open_bound <= level_of(component, context):
            component.closed = max(component.closed, level_of(component, context))
            return Settled()
        gap = self.open_bound - max(component.value, context.threshold)
        stalled = before - int(self._dual.bound[0]) <= STALLED * max(gap, 1) and self._n_ascents > 1
        if not stalled and self._n_ascents < MAX_ASCENTS:
            return self
        component.closed = max(component.closed, level_of(component, context))
        given = component, costs, self._dual, context
        return reduced_phase(*given, KEPT_SHARE) or Searching(*given)


class Searching(Phase):
    """Hybrid best-first search; elimination instead, once it has cost as much as that would."""

    def __init__(self, component: Component, costs: Costs, dual: DualState, context: Context) -> None:
        self._costs = costs
        self._search = BestFirstSearch(costs, dual, max_bytes=context.max_bytes // 2, lists_all=context.lists_all)
        self._value_at_root = component.value
        self._n_pieces = 0
        self._relaxed: RootBound | None = None
        self._kept: dict[int, Ints] = {}
        self._moves: Neighbourhoods | None = None

    @property
    def open_bound(self) -> int:
        found = self._search.open_bound
        if found <= FLOOR:
            return found
        found += self._costs.constant
        return found if self._relaxed is None else min(found, self._relaxed.bound)

    @property
    def is_done(self) -> bool:
        return self._search.is_done

    @property
    def n_bytes(self) -> int:
        return self._search.n_bytes + (0 if self._relaxed is None else self._relaxed.n_bytes)

    def advance(self, component: Component, context: Context) -> Phase:
        search, costs = self._search, self._costs
        budget, fits = context.searched_before(component.plan), context.fits(component.plan)
        if search.work > budget and fits:
            return Eliminating(self).advance(component, context)
        piece = min(PIECE, max(int(budget) - search.work, LEAST_PIECE)) if fits else PIECE
        incumbent = incumbent_of(component, costs, context)
        threshold = context.threshold - costs.constant if context.lists_all else HARD
        work, n_nodes = search.work, search.n_nodes
        leaf = search.advance(piece, threshold, context.margin, incumbent)
        context.work += search.work - work
        context.n_nodes += search.n_nodes - n_nodes
        if leaf is not None:
            states = {v: int(s) for v, s in zip(costs.variables, leaf[1:], strict=True)}
            component.offer(states)
            component.report(states)
        self._n_pieces += 1
        if not context.lists_all and self._n_pieces % PIECES_PER_CLIMB == 0:
            context.work += climb(costs, search.root, incumbent, context.next_key(), context.stops)
        take_incumbent(component, costs, incumbent)
        self._move(component, context)
        if search.closed_bound > FLOOR:
            component.closed = max(component.closed, search.closed_bound + costs.constant)
        after = None if self.is_done else self._relax(component, context)
        if after is not None:
            return after
        if component.value > self._value_at_root and not context.lists_all and not self.is_done:
            self._value_at_root = component.value
            root = copy_of(search.root)
            if not ascended(costs, root, incumbent, context, 2):
                return self
            return reduced_phase(component, costs, root, context, KEPT_SHARE_AGAIN) or self
        return self

    def _move(self, component: Component, context: Context) -> None:
        """Better the answer by moves of many variables, for a share of the search's work."""
        if context.lists_all or component.value <= FLOOR or self.is_done:
            return
        if self._moves is None:
            self._moves = Neighbourhoods(component.problem, context.seed, context.control)
        before, states = self._moves.work, component.states
        component.offer(self._moves.better(states, MOVES_SHARE * self._search.work))
        context.work += int(self._moves.work - before)

    def _relax(self, component: Component, context: Context) -> Phase | None:
        """Bound what is open by mini-buckets once the search is long; return `Settled` where that is all."""
        if context.lists_all or self._search.work < root_bound.FROM_WORK:
            return None
        if self._relaxed is None:
            problem, self._kept = self._costs.reduced(self._search.root)
            self._relaxed = RootBound(problem, context.control)
        relaxed, before = self._relaxed, self._relaxed.work
        level = level_of(component, context)
        leads = relaxed.bound < self._search.open_bound + self._costs.constant and not context.fits(component.plan)
        fell = relaxed.follow(self._search.work, level, leads=leads)
        context.work += int(relaxed.work - before)
        if not fell:
            return None
        states = relaxed.decoded()
        component.suggested = {v: int(own[states.get(v, 0)]) for v, own in self._kept.items()}
        component.offer(component.suggested)
        level = level_of(component, context)
        if relaxed.bound > level and not relaxed.is_solved:
            return None
        component.closed = max(component.closed, level, relaxed.bound)
        return Settled()


def reduced_phase(
    component: Component, costs: Costs, dual: DualState, context: Context, kept_share: float
) -> Phase | None:
    """Return the phase that solves what is left, where enough states have gone; else None."""
    if dual.n_alive.sum() > kept_share * len(costs.arrays.unary):
        return None
    problem, kept = costs.reduced(dual)
    known: dict[int, int] | None = {}
    for v, states in kept.items():
        at = np.flatnonzero(states == component.states.get(v, -1))
        if len(states) > 1:
            if not len(at):
                known = None
                break
            known[v] = int(at[0])
    return Delegating(Reduction(problem, context, known), kept, component)


class Reduction:
    """A problem simplified and split into components whose values add up.

    `known`: an assignment to start from. Raises ImpossibleEvidence when every assignment has probability 0.
    """

    def __init__(self, problem: Problem, context: Context, known: Mapping[int, int] | None = None) -> None:
        shorter = Simplified(problem) if context.lists_all else cut(problem, context.control)
        rest = simplify(shorter.problem, keep_all=context.lists_all, control=context.control)
        self.simplified, small = Simplified(rest.problem, shorter.steps + rest.steps), rest.problem
        # Where all good assignments are wanted, the problem stays whole: else those of parts would be combined.
        self._is_whole = context.lists_all
        self.constant = 0 if self._is_whole else int(small.constant)
        split = ([small] if small.sizes else []) if self._is_whole else components(small)
        start = None if known is None else self.simplified.encode(known)
        self.parts = [Component(part, context, start) for part in split]

    @property
    def bound(self) -> int:
        """Units that no assignment exceeds (none but those reported, where all good ones are)."""
        if self._is_whole:
            return self.parts[0].bound if self.parts else HARD
        return self.constant + sum(p.bound for p in self.parts)

    @property
    def value(self) -> int:
        """Units of the best assignment known; `HARD` while there is none."""
        values = [p.value for p in self.parts]
        return HARD if any(v <= FLOOR for v in values) else self.constant + sum(values)

    @property
    def states(self) -> States:
        """The best assignment known."""
        return self._merged(part.states for part in self.parts)

    @property
    def suggested(self) -> States:
        """The assignment that bounds suggest at present, good or not."""
        return self._merged(part.suggested or part.states for part in self.parts)

    def _merged(self, found: Iterable[States]) -> States:
        merged: States = {}
        for states in found:
            merged |= states
        return self.simplified.decode(merged)

    @property
    def n_parts(self) -> int:
        """How many components, at any depth, may each be off by the margin."""
        return sum(p.phase.n_parts for p in self.parts)

    @property
    def is_done(self) -> bool:
        return all(p.is_done for p in self.parts)

    @property
    def n_bytes(self) -> int:
        return sum(p.phase.n_bytes for p in self.parts)

    def advance(self, context: Context) -> None:
        """Do a piece of work on the part with the largest gap, those without an assignment first."""
        waiting = [p for p in self.parts if not p.is_done]
        if waiting:
            max(waiting, key=lambda p: (p.value <= FLOOR, p.bound - p.value)).advance(context)

    @property
    def n_entries_left(self) -> float:
        """Table entries over all products if what is open were eliminated."""
        return sum(p.plan.n_entries for p in self.parts if not p.is_done)

    def offer(self, states: Mapping[int, int]) -> None:
        """Take an assignment of the problem's variables, part by part, where it is better than what is known."""
        known = self.simplified.encode(states)
        if known is not None:
            for part in self.parts:
                part.offer({v: known[v] for v in part.problem.sizes})

    def drain(self) -> list[States]:
        """Return, once, the assignments to report where all are wanted."""
        if not self.parts:
            return [self.simplified.decode({})]
        return [self.simplified.decode(states) for part in self.parts for states in part.drain()]


def order_of(problem: Problem, context: Context) -> Elimination:
    """Return an order for a search, and for an elimination: a better one where that may ever be affordable."""
    scopes = [t.scope for t in problem.tables]
    quick = min_fill(scopes, problem.sizes, control=context.control)
    assert quick is not None  # no total is too large
    is_hopeless = quick.log2_size > HOPELESS
    return quick if is_hopeless else best_order(scopes, problem.sizes, control=context.control)


class Component:
    """A connected problem: its phase, best assignment, largest bound cut (`closed`), and last decoding."""

    def __init__(self, problem: Problem, context: Context, known: Mapping[int, int] | None) -> None:
        self.problem = problem
        self.plan = plan(problem, order_of(problem, context))
        self.value = HARD
        self.states: States = {}
        self.suggested: States = {}
        self.closed = HARD
        self._lists_all = context.lists_all
        self._found: list[States] = []
        if known is not None:
            self.offer({v: known[v] for v in problem.sizes})
        is_quick = self.plan.n_entries <= context.quick_entries and context.fits(self.plan)
        self.phase: Phase = Eliminating(Ascending(self)) if is_quick else Ascending(self)

    @property
    def bound(self) -> int:
        """Units that no assignment exceeds (none but those reported, where all good ones are)."""
        unseen = max(self.closed, self.phase.open_bound)
        return unseen if self._lists_all else max(unseen, self.value)

    @property
    def is_done(self) -> bool:
        return self.phase.is_done

    def advance(self, context: Context) -> None:
        """Do a piece of work."""
        self.phase = self.phase.advance(self, context)
        if self.is_done and self.value <= FLOOR and not context.lists_all:
            raise impossible()

    def offer(self, states: Mapping[int, int]) -> None:
        """Take an assignment of the problem's variables as the best one if it is."""
        variables = list(self.problem.sizes)
        value = int(value_at(self.problem, np.array([[states[v] for v in variables]]), variables)[0])
        if value > max(self.value, FLOOR):
            self.value, self.states = value, dict(states)

    def report(self, states: Mapping[int, int]) -> None:
        """Note an assignment that is to be reported whether it is the best or not."""
        self._found.append(dict(states))

    def drain(self) -> list[States]:
        found, self._found = self._found, []
        return found
