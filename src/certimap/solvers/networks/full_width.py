"""Search for marginal MAP, bounded by elimination at full width with queried variables delayed."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from certimap.certify.ledger import Ledger
from certimap.core.arrays import Floats, Ints
from certimap.core.control import Control, TimeUp
from certimap.networks.choices import ChoiceBounds
from certimap.networks.delayed_orders import PLACE, RECIPES, DelayedOrder, Recipe, delayed, greedily_delayed
from certimap.networks.max_elimination import connected
from certimap.networks.mixed_tree import Memory, MixedTree, StateBounds
from certimap.networks.orders import best_order
from certimap.networks.posterior import NetworkPosterior
from certimap.networks.problem import Problem, restrict
from certimap.networks.reduction import touching
from certimap.solvers.base import RELAXATION, Effort, WholeSpaceSolver

Mask = NDArray[np.bool_]
PASSES_LOG2 = 1.3  # log base 2 of the passes that bounds of all states take


@dataclass(frozen=True)
class Tuning:
    """How work is spent; no bound depends on it for being true."""

    # steps of log base 2 of the joint states that the cliques of one bound may have, after the least possible
    bits: tuple[float, ...] = (20.0, 22.0, 24.0, 26.0, 28.5, 30.0, 31.0, 32.0, 33.0)
    most_bits: float = 31.0  # the same of the first bound, which no step has asked for
    slack_bits: float = 1.0  # log base 2 of what the first step may take beyond the least that is possible
    kept: float = 0.5  # of the recipes for orders, that go on to the next step
    least_recipes: int = 4  # of a step: bounds by orders that differ at random lie nats apart
    haste: float = 4.0  # steps that a search must foresee to take until it closes its last box
    filled: float = 0.125  # of the box around all that is open, where one box takes the place of all
    memory_share: float = 0.25  # of the memory of the run, for the tables of one bound
    gain: float = 0.1  # of the gap, that a costlier bound of the whole must close to be used in the search
    dive_share: float = 0.25  # of the free variables that a dive fixes at a time
    dive_failures: int = 8  # dead ends after which a dive is given up
    first_stride: int = 4  # boxes expanded between two dives, doubled whenever a dive finds nothing better
    climb_work: float = 1e6  # table entries that a climb from an answer may visit
    move_share: float = 0.25  # of all work, for moves from the best answer, and while they gain
    gaining_share: float = 0.5
    patience: int = 8  # moves per variable without a gain after which the next ones get half as much
    growth: float = 1.2  # of the number of variables in a move
    point_cost: float = 4.0  # products that take as long as a table entry of a point's value


class Box(NamedTuple):
    """Bounds of a box, in nats: of all of it, and of every state of every queried variable."""

    bound: float
    each: Floats


@dataclass(eq=False)
class Dive:
    """A way down to one assignment; `size`: variables that a move frees, `before`: the best answer so far."""

    mask: Mask
    share: float
    before: float
    size: int = 0
    tried: list[tuple[Mask, int]] = field(default_factory=list[tuple[Mask, int]])
    n_failures: int = 0
    is_closed: bool = False  # whether the first bound ruled out a better answer


class BoxBounds:
    """Bounds boxes of a query space, masks over the states of the queried variables, by mixed elimination."""

    def __init__(self, problem: Problem, control: Control, workers: int, tuning: Tuning) -> None:
        self.problem, self.control, self.workers, self.tuning = problem, control, workers, tuning
        self.variables = sorted(problem.query)
        sizes = [problem.sizes[v] for v in self.variables]
        self.starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        scopes = [t.scope for t in problem.tables]
        self.base = list(best_order(scopes, problem.sizes, control=control).order)
        self.tables = touching(scopes)
        self.recipe = Recipe(PLACE)
        self.memory = Memory(0.5 * tuning.memory_share * control.memory_limit)
        most_bytes = tuning.memory_share * control.memory_limit
        self.by_choices = ChoiceBounds(problem, control, workers, self.memory, most_bytes)
        self.ceilings = np.full(self.n_columns, np.inf)  # nats that no open assignment with a state exceeds
        self.gains: dict[int, float] = {}
        self.bits, self.least_bits = 0.0, delayed(problem, self.base, 0.0).log2_work
        self.work = self.seconds = 0.0  # of all eliminations

    @property
    def n_columns(self) -> int:
        """The number of states of all queried variables."""
        return int(self.starts[-1])

    def full(self) -> Mask:
        """Return the mask of the whole space."""
        return np.ones(self.n_columns, np.bool_)

    @property
    def _columns(self) -> Iterator[tuple[int, int, int]]:
        """The queried variables, each with the first column of its states and the one after the last."""
        return zip(self.variables, self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True)

    def counts(self, mask: Mask) -> Ints:
        """Return the number of states left of each variable."""
        return np.add.reduceat(mask, self.starts[:-1], dtype=np.int64) if self.variables else np.zeros(0, np.int64)

    def states(self, worth: Mask | Floats) -> dict[int, int]:
        """Return each variable's state of the largest worth, the first one of equals."""
        return {v: int(np.argmax(worth[a:b])) for v, a, b in self._columns}

    def restricted(self, mask: Mask) -> tuple[Problem, dict[int, Ints]]:
        """Return the problem within a box, and the states that are left of each variable."""
        kept = {v: np.flatnonzero(mask[a:b]) for v, a, b in self._columns}
        cut = {v: own for v, own in kept.items() if len(own) < self.problem.sizes[v]}
        return restrict(self.problem, cut), kept

    def order(self, problem: Problem, bits: float) -> DelayedOrder:
        """Follow the base, delaying most with cliques of at most 2^bits joint states together, if it can."""
        least = delayed(problem, self.base, 0.0, control=self.control)
        allowed = bits - 2.0
        while allowed > least.log2_largest:
            found = delayed(problem, self.base, allowed, self.gains, self.control)
            if found.log2_work <= bits:
                return found
            allowed -= 1.0
        return least

    def bound(self, mask: Mask, bits: float, recipe: Recipe | None = None) -> Box | None:
        """Bound a box and every state in it, in up to three passes; None where no elimination keeps to the limits.

        `recipe`: of the order, which must keep to `bits`; None takes the best one so far, or follows the base.
        """
        problem, kept = self.restricted(mask)
        each = np.full(self.n_columns, -np.inf)
        if problem.constant == -math.inf:
            return Box(-math.inf, each)
        rule = recipe or self.recipe
        while True:
            order = None if rule.cost == PLACE else greedily_delayed(problem, bits, rule, self.control)
            if order is None:
                if rule.cost != PLACE and recipe is not None:
                    return None
                order = self.order(problem, bits)
            tree = MixedTree(problem, order.order, self.control, self.workers, self.memory)
            is_least = order.log2_work > bits
            if is_least and order.log2_work > self.tuning.most_bits:
                return None
            if tree.n_bytes <= self.tuning.memory_share * self.control.memory_limit:
                break
            if is_least or recipe is not None:
                return None
            bits = order.log2_work - 1.0
        started, before = time.perf_counter(), self.by_choices.work
        try:
            found = tree.bounds()
            other = self.by_choices.bound(problem, max(bits, order.log2_work), recipe and recipe.row)
        finally:
            self.work += tree.work + self.by_choices.work - before
            self.seconds += time.perf_counter() - started
        if not self.gains:
            self._learn(tree, found, order.log2_work)
        for i, v in enumerate(self.variables):
            own = found.each[v] if v in found.each else np.full(len(kept[v]), found.log_value)
            each[self.starts[i] + kept[v]] = own
        each = np.minimum(each, self.ceilings)
        return Box(min(found.log_value, self.least_top(mask, each), other), each)

    def least_top(self, mask: Mask, each: Floats) -> float:
        """Return the least over all variables of the largest bound among their states left in a box."""
        if not self.variables:
            return math.inf
        return float(np.maximum.reduceat(np.where(mask, each, -np.inf), self.starts[:-1]).min())

    def _learn(self, tree: MixedTree, found: StateBounds, log2_work: float) -> None:
        """Keep what waiting brings for each variable, and an order that runs to the one which brings most."""
        self.least_bits = log2_work
        tops = {v: float(own.max()) for v, own in found.each.items()}
        self.gains = {v: found.log_total - top for v, top in tops.items()}
        if tops:
            base = tree.order_towards(min(tops, key=lambda v: (tops[v], v)))
            if delayed(self.problem, base, 0.0).log2_work <= log2_work + self.tuning.slack_bits:
                self.base = base


@dataclass(eq=False)
class FullWidthState:
    """Where a search stands: open boxes as (- bound, number, mask), and the largest bound of what was closed."""

    posterior: NetworkPosterior
    control: Control
    bounds: BoxBounds | None = None
    open: list[tuple[float, int, bytes]] = field(default_factory=list[tuple[float, int, bytes]])
    closed: float = -math.inf
    rng: np.random.Generator = field(default_factory=np.random.default_rng)
    steps: list[float] = field(default_factory=list[float])
    recipes: list[Recipe] = field(default_factory=lambda: list(RECIPES))  # of orders, for the next step
    pending: list[Recipe] = field(default_factory=list[Recipe])  # during a step
    tried: list[tuple[float, Recipe]] = field(default_factory=list[tuple[float, Recipe]])
    known: float = math.inf  # the bound before the present step
    # work_before, n_most: work at the end of the last step, and the most boxes open at a time since
    work_before: float = -math.inf
    n_most: int = 0
    # work_at, work_each: work at the start of the present step, and that of a bound of all by the present bits
    work_at: float = 0.0
    work_each: float = 0.0
    dive: Dive | None = None  # under way, one bound a step
    decoded: bytes = b""  # the last point that was read off a bound
    has_dived: bool = False
    has_gained: bool = False  # by the last move
    n_rows: int = len(RECIPES)  # of random numbers, that recipes have used
    move_size: float = 0.0  # variables in a move, and what moves have cost
    move_work: float = 0.0
    n_idle: int = 0  # moves since the last one that gained
    until_dive: int = 0
    stride: int = 1
    n_nodes: int = 0
    n_pushed: int = 0
    work: float = 0.0
    done: bool = False


@dataclass(frozen=True)
class FullWidth(WholeSpaceSolver, name="full_width", needs=(NetworkPosterior,), family="search"):
    """Search the query's boxes best first, each bounded by one elimination without splitting a variable.

    Sums and maxima are taken in an order that keeps tables small, with queried variables delayed as far as a given
    amount of work allows. A maximum that is taken before a sum only raises the result. A pass to the roots and
    back bounds every state of every queried variable, each as if it went last: states that cannot beat the best
    answer go, the variable whose states differ most is branched on, and dives fix the variables that are clearest,
    many at a time. With all queried variables fixed the elimination is exact.

    Cost: about three eliminations per box. Networks in which even the sum over everything is too wide are left
    alone.

    `tuning`: how work is spent.
    """

    tuning: Tuning = field(default_factory=Tuning)

    def start(self, posterior: NetworkPosterior, control: Control, rng: np.random.Generator) -> FullWidthState:
        return FullWidthState(posterior, control, rng=rng)

    def effort(self, state: FullWidthState) -> Effort:
        n_bytes = sum(len(mask) + 100 for _, _, mask in state.open[:1]) * len(state.open)
        return Effort(state.n_nodes, n_bytes, int(state.work))

    def foreseen(self, state: FullWidthState) -> float:
        """Return how many products the first bound takes, once its order is known; 0 when it is there."""
        return 0.0 if state.bounds is None or state.n_nodes else 2.0 ** (state.bounds.least_bits + PASSES_LOG2)

    def step(self, state: FullWidthState, ledger: Ledger) -> FullWidthState:
        """Find an order, bound what is open with more work than before, dive, or expand the most promising box."""
        if state.bounds is None:
            posterior = state.posterior
            state.bounds = BoxBounds(posterior.problem, state.control, posterior.workers, self.tuning)
            return state
        if not state.n_nodes:
            self._open_whole(state, state.bounds, ledger)
        elif state.dive is not None:
            self._go_down(state, state.bounds, ledger, state.dive)
        elif self._is_time_for_more(state, state.bounds):
            self._bound_open(state, state.bounds, ledger)
        elif self._may_move(state, state.bounds, ledger):
            self._move(state, state.bounds, ledger)
        elif state.until_dive == 0:
            self._dive(state, state.bounds, ledger)
        else:
            state.until_dive -= 1
            self._expand(state, state.bounds, ledger)
        state.work = state.bounds.work
        self._report(state, ledger)
        return state

    def _open_whole(self, state: FullWidthState, bounds: BoxBounds, ledger: Ledger) -> None:
        """Bound the whole by the cheapest order; where even that is too much, nothing is ever open."""
        found = bounds.bound(bounds.full(), 0.0)
        state.n_nodes += 1
        if found is None:
            state.done = True
            return
        state.work_each = bounds.work
        self._push(state, bounds.full(), found.bound)
        self._read_off(state, bounds, ledger, bounds.full(), found.each)
        first, *more = self.tuning.bits
        least = max(bounds.least_bits + self.tuning.slack_bits, first)
        state.steps = [least, *(bits for bits in more if bits > least)]

    def _is_time_for_more(self, state: FullWidthState, bounds: BoxBounds) -> bool:
        """Whether the search has cost as much as one bound with more work would, and does not end soon."""
        if not state.steps or not state.recipes:
            return False
        state.n_most = max(state.n_most, len(state.open))
        work = 2.0 ** (state.steps[0] + PASSES_LOG2)
        if work * bounds.seconds > state.control.seconds_left * bounds.work:
            return False
        searched, n_closed = bounds.work - state.work_before, state.n_most - len(state.open)
        if state.tried or searched < work:
            return bool(state.tried)
        foreseen = searched * len(state.open) / n_closed if n_closed > 0 else math.inf
        return foreseen > self.tuning.haste * work * len(state.recipes)

    def _bound_open(self, state: FullWidthState, bounds: BoxBounds, ledger: Ledger) -> None:
        """Bound all that is open with more work, by one order after another; go on by the best where that pays."""
        if not state.tried:
            state.pending, state.known, state.work_at = list(state.recipes), -state.open[0][0], bounds.work
            if state.work_before == -math.inf:  # the base order has bounded the whole
                state.tried.append((state.known, state.pending.pop(0)))
        hull = np.zeros(bounds.n_columns, np.bool_)
        for _, _, packed in state.open:
            hull |= self._mask(bounds, packed)
        bits, recipe = state.steps[0], state.pending.pop(0)
        try:
            found = bounds.bound(hull, bits, recipe)
        except TimeUp:  # boxes of a search with less work per box may still end in time
            state.control.check("bounding all that is open")
            found, state.pending, state.steps = None, [], [bits]
        state.n_nodes += 1
        state.tried.append((math.inf if found is None else found.bound, recipe))
        if found is not None:
            self._lower(state, bounds, found)
        if not state.pending:
            state.tried.sort(key=lambda pair: pair[0])
            n_kept = max(1, math.floor(self.tuning.kept * len(state.tried)))
            state.recipes = [recipe for _, recipe in state.tried[:n_kept]]
            for _ in range(n_kept, self.tuning.least_recipes):
                state.n_rows += 1
                state.recipes.append(Recipe.at_random(state.n_rows))
            bounds.recipe = state.recipes[0]
            gap, fall = state.known - ledger.best_log_prob, state.known + state.open[0][0]
            work = (bounds.work - state.work_at) / len(state.tried)
            is_cheap = work <= 2.0 * state.work_each
            if fall >= self.tuning.gain * gap or (fall > 0.0 and (gap == math.inf or is_cheap)):
                bounds.bits, state.work_each = bits, work
                self._join(state, bounds, hull)
            state.tried, state.work_before, state.n_most = [], bounds.work, len(state.open)
            state.steps.pop(0)

    def _lower(self, state: FullWidthState, bounds: BoxBounds, found: Box) -> None:
        """Let bounds of all that is open count in each open box."""
        outside = np.isneginf(found.each)  # what is not open, or impossible
        bounds.ceilings = np.where(outside, bounds.ceilings, found.each)
        for at, (bound, number, packed) in enumerate(state.open):
            top = bounds.least_top(self._mask(bounds, packed), found.each)
            state.open[at] = max(bound, -found.bound, -top), number, packed
        heapq.heapify(state.open)

    def _join(self, state: FullWidthState, bounds: BoxBounds, hull: Mask) -> None:
        """Let one box take the place of all open ones that fill it: better bounds need fewer boxes."""
        logs = [float(np.log(bounds.counts(self._mask(bounds, packed))).sum()) for _, _, packed in state.open]
        whole = float(np.log(bounds.counts(hull)).sum())
        if math.fsum(math.exp(own - whole) for own in logs) >= self.tuning.filled:
            bound = -state.open[0][0]
            state.open.clear()
            self._push(state, hull, bound)

    def _push(self, state: FullWidthState, mask: Mask, bound: float) -> None:
        heapq.heappush(state.open, (-bound, state.n_pushed, np.packbits(mask).tobytes()))
        state.n_pushed += 1

    def _mask(self, bounds: BoxBounds, packed: bytes) -> Mask:
        return np.unpackbits(np.frombuffer(packed, np.uint8), count=bounds.n_columns).astype(np.bool_)

    def _evaluated(self, state: FullWidthState, bounds: BoxBounds, mask: Mask) -> Box | None:
        state.n_nodes += 1
        return bounds.bound(mask, bounds.bits)

    def _expand(self, state: FullWidthState, bounds: BoxBounds, ledger: Ledger) -> None:
        """Bound the most promising box, drop states that cannot win, and branch on a variable."""
        known, threshold = -state.open[0][0], ledger.log_exact_threshold
        if known <= threshold:
            state.closed = max(state.closed, known)
            state.open.clear()
            return
        mask = self._mask(bounds, state.open[0][2])
        found = self._evaluated(state, bounds, mask)
        heapq.heappop(state.open)
        if found is None:
            state.closed = max(state.closed, known)
            return
        bound = min(found.bound, known)
        each = np.minimum(found.each, bound)
        counts = bounds.counts(mask)
        if np.all(counts == 1):
            ledger.candidates(state.posterior.point(bounds.states(mask)))
            state.closed = max(state.closed, bound)
            return
        gone = mask & (each <= threshold)
        if np.any(gone):
            state.closed = max(state.closed, float(each[gone].max()))
            mask = mask & ~gone
            counts = bounds.counts(mask)
            if bound <= threshold or np.any(counts == 0):
                state.closed = max(state.closed, min(bound, threshold))
                return
            if np.all(counts == 1):
                self._push(state, mask, bound)
                return
        has_choices = bool(bounds.by_choices.choices)  # whose bound tells nothing of single states
        top = float(found.each[mask].max()) if has_choices else bound
        i = self._branching(bounds, mask, found.each if has_choices else each, top, counts)
        a, b = bounds.starts[i], bounds.starts[i + 1]
        for column in a + np.flatnonzero(mask[a:b]):
            child = mask.copy()
            child[a:b] = False
            child[column] = True
            self._push(state, child, float(each[column]))

    def _branching(self, bounds: BoxBounds, mask: Mask, each: Floats, bound: float, counts: Ints) -> int:
        """Return which variable's two best states lower the bound most, as a product."""
        best, score = -1, -math.inf
        for i in np.flatnonzero(counts > 1):
            a, b = bounds.starts[i], bounds.starts[i + 1]
            first, second = np.sort(each[a:b][mask[a:b]])[::-1][:2]
            found = math.log(max(bound - first, 1e-6)) + math.log(max(bound - second, 1e-6))
            if found > score:
                best, score = int(i), found
        return best

    def _dive(self, state: FullWidthState, bounds: BoxBounds, ledger: Ledger) -> None:
        """Look for a better answer in the most promising box."""
        state.has_dived = True
        mask = self._mask(bounds, state.open[0][2])
        state.dive = Dive(mask, self.tuning.dive_share, ledger.best_log_prob)
        self._go_down(state, bounds, ledger, state.dive)

    def _go_down(self, state: FullWidthState, bounds: BoxBounds, ledger: Ledger, dive: Dive) -> None:
        """Bound the next box of a dive, and fix the clearest variables, some at a time; or end it."""
        work = bounds.work
        if self._is_down(state, bounds, ledger, dive):
            state.dive = None
        if dive.size:
            state.move_work += bounds.work - work
        if state.dive is not None:
            return
        has_gained = ledger.best_log_prob > dive.before
        if not dive.size:
            state.stride = 1 if has_gained else 2 * state.stride
            state.until_dive = self.tuning.first_stride * state.stride
            return
        state.has_gained = has_gained
        state.n_idle = 0 if has_gained else state.n_idle + 1
        if not has_gained:
            state.move_size *= self.tuning.growth if dive.is_closed else 1.0 / self.tuning.growth

    def _is_down(self, state: FullWidthState, bounds: BoxBounds, ledger: Ledger, dive: Dive) -> bool:
        """Do one bound of a dive; return whether it is over."""
        found = self._evaluated(state, bounds, dive.mask)
        if found is None:
            return True
        left = dive.mask & (found.each > ledger.best_log_prob)
        counts = bounds.counts(left)
        if found.bound <= ledger.best_log_prob or np.any(counts == 0):
            dive.n_failures += 1
            if not dive.tried:
                dive.is_closed = dive.n_failures == 1
                return True
            dive.mask, n_fixed = dive.tried.pop()
            dive.share = max(1, n_fixed // 4) / max(1, len(counts))
            return dive.n_failures > self.tuning.dive_failures
        if np.all(counts == 1):
            self._answer(state, bounds.states(left), ledger)
            return True
        dive.tried.append((left, int(np.sum(counts > 1))))
        dive.mask = self._fixed(bounds, left, found.each, counts, dive.share)
        self._read_off(state, bounds, ledger, left, found.each)
        return False

    def _read_off(
        self, state: FullWidthState, bounds: BoxBounds, ledger: Ledger, mask: Mask, each: Floats
    ) -> None:
        """Report the states with the largest bounds in a box, where a point costs little beside a bound."""
        posterior = state.posterior
        if self.tuning.point_cost * posterior.facts.work > 2.0**bounds.least_bits:
            return
        point = posterior.point(bounds.states(np.where(mask, each, -np.inf)))
        if point.tobytes() != state.decoded:
            state.decoded = point.tobytes()
            ledger.candidates(point)

    def _may_move(self, state: FullWidthState, bounds: BoxBounds, ledger: Ledger) -> bool:
        """Whether moves from the best answer may have their next turn."""
        if len(bounds.variables) < 2 or ledger.best_log_prob == -math.inf or not state.has_dived:
            return False
        tuning = self.tuning
        share = tuning.move_share / (1.0 + state.n_idle / (tuning.patience * len(bounds.variables)))
        return state.move_work <= (tuning.gaining_share if state.has_gained else share) * bounds.work

    def _move(self, state: FullWidthState, bounds: BoxBounds, ledger: Ledger) -> None:
        """Let connected variables leave the best answer while the others stay; more of them where none gains."""
        point = ledger.best_point
        assert point is not None
        states, n = state.posterior.states, len(bounds.variables)
        inner: list[int] = states.to_problem(point[None])[0][0].tolist()
        now = dict(zip(states.variables, inner, strict=True))
        state.move_size = min(state.move_size or 0.25 * n, n - 1.0)
        size = max(2, int(state.move_size))
        free = connected(bounds.problem, bounds.tables, bounds.variables, size, state.rng)
        mask = np.zeros(bounds.n_columns, np.bool_)
        for i, v in enumerate(bounds.variables):
            a, b = bounds.starts[i], bounds.starts[i + 1]
            mask[a:b] = v in free
            mask[a + now[v]] = True
        state.dive = Dive(mask, self.tuning.dive_share, ledger.best_log_prob, len(free))
        self._go_down(state, bounds, ledger, state.dive)

    def _fixed(self, bounds: BoxBounds, mask: Mask, each: Floats, counts: Ints, share: float) -> Mask:
        """Fix a share of the free variables, at least one: those whose best state leads most."""
        free = np.flatnonzero(counts > 1)
        leads = np.empty(len(free))
        for k, i in enumerate(free):
            a, b = bounds.starts[i], bounds.starts[i + 1]
            first, second = np.sort(each[a:b][mask[a:b]])[::-1][:2]
            leads[k] = first - second
        fixed = mask.copy()
        n = max(1, math.ceil(share * len(free)))
        for i in free[np.argsort(-leads, kind="stable")[:n]]:
            a, b = bounds.starts[i], bounds.starts[i + 1]
            column = a + int(np.argmax(np.where(mask[a:b], each[a:b], -np.inf)))
            fixed[a:b] = False
            fixed[column] = True
        return fixed

    def _answer(self, state: FullWidthState, states: dict[int, int], ledger: Ledger) -> None:
        """Report an answer, and one reached from it by single changes where that is cheap."""
        point = state.posterior.point(states)
        ledger.candidates(point)
        evaluator = state.posterior.evaluator
        n_states = np.array([len(c) for c in state.posterior.states.columns], np.int64)
        if evaluator.n_entries * float(n_states.sum()) <= self.tuning.climb_work:
            inner = state.posterior.states.to_problem(point)[0][0]
            better = evaluator.climb(inner, n_states, self.tuning.climb_work, lambda: state.control.should_stop)
            ledger.candidates(state.posterior.states.to_domain(better[None]))

    def _report(self, state: FullWidthState, ledger: Ledger) -> None:
        """State what no assignment exceeds: what is open, and what was closed."""
        if not state.n_pushed:
            return
        bound = max(state.closed, -state.open[0][0] if state.open else -math.inf)
        ledger.upper_bound(max(bound, ledger.best_log_prob), RELAXATION)
        state.done = not state.open or bound <= ledger.best_log_prob
