"""Posteriors of networks of any width: points by conditional elimination, boxes by relaxation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from certimap.core.arrays import Flags, Floats, Ints
from certimap.core.box import Answers, Layout, Points, SearchBoxes
from certimap.core.cached import cached_property
from certimap.core.control import Control, TimeUp, WorkClock
from certimap.core.domain import Domain
from certimap.core.posterior import Facts, LogInterval, Tightening
from certimap.core.query import Query
from certimap.errors import TooLarge
from certimap.networks.bayesian import EXACT, BayesianNetwork
from certimap.networks.conditional import (
    NuisancePart,
    PointEvaluator,
    climbed,
    ordered_parts,
    relative_to,
    work_of,
)
from certimap.networks.network import Network
from certimap.networks.orders import looks_too_wide
from certimap.networks.problem import Prepared, Problem, QueryStates, by_degree, problem_of, restrict
from certimap.networks.relaxation import split_tree as trees
from certimap.networks.relaxation.decoding import PlacedTree
from certimap.networks.relaxation.tighten import TEMPERATURES, Tightener
from certimap.networks.sum_elimination import log_evidence
from certimap.networks.sum_pass import SECONDS_PER_ENTRY, Total
from certimap.networks.support import likely_states, supported_states

KNOWN_WORK = 2.0**26  # table entries up to which p(e) is summed at once: some .3 s
TIME_SHARE = 0.05  # of the time left that this may take
DEAR_POINT = 2.0**24  # table entries per point from which points are valued one by one, with a look at the clock
SECONDS_PER_POINT_ENTRY = 4e-9  # of a point that is valued alone, until one has been timed
Mask = NDArray[np.uint8]
STEP_COST = 6  # passes over all entries that one step of the optimiser costs, about
PERTURBED = 3  # climbs from around the best point at every pause
SHARE_MOVED = 0.12
CLIMB_WORK = 1e8  # table entries that one climb may cost
FIRST_CLIMBS = 1e8  # and those before anything was tightened, together
CLIMB_SHARE = 0.25  # of the work of tightening and probing that climbs may cost from then on
SHRINK_ROUNDS = 4
STALLED = 0.02  # of the gap: a temperature that gained no more is the last one, larger tables come next
MEMORY_SHARE = 0.25  # that tables larger than the first ones may take
PART_SECONDS = 0.3  # that likely states of nuisance variables get, even if the time is up
PART_WORK = 2.0**20  # table entries per point for summing a part of the nuisance variables
UPPER_BITS = 10.0  # log base 2 of the largest table of the relaxation for upper bounds
TEMPERATURE, UPPER_STEPS = 0.1, 8
UPPER_WORK = 6_000_000  # entries of the relaxation times steps: a large one gets fewer, and one at least
PART_CLIMB_WORK = 2.0**22
ROUNDS = 32  # resolution (one part in this many) of the number of nuisance variables to fix


@dataclass(frozen=True, eq=False, repr=False)
class NetworkPosterior:
    """A network and a query whose tables need not fit: p(q, e) of points, and bounds of boxes.

    If p(e) is too expensive, it stays unknown: values are then ln p(q, e) (unnormalised for a Markov network), and
    are not compared with the total mass 1. A point costs one elimination of the nuisance variables with the query
    fixed; a box costs one or two passes over a relaxed tree (see `certimap.networks.relaxation`).
    """

    domain: Domain  # the query variables, in the user's order
    prepared: Prepared  # the network's problem after evidence and zeros; its constant includes -ln p(e) if known
    log_evidence: float | None = None  # natural log of p(e), or None
    workers: int = 1  # threads; the answer does not depend on it
    control: Control = field(default_factory=Control)  # the limits of the run
    plan: trees.RelaxationPlan = field(default_factory=trees.RelaxationPlan)  # how large relaxations may grow
    # upper bound (nats) on all points, independent of relaxations: probabilities are at most 1, and p(q, e) of a
    # Bayesian network is at most the product of the largest likelihoods of its soft evidence
    log_ceiling: float = math.inf

    @classmethod
    def of_network(
        cls, network: Network, query: Query, *, workers: int | None = None, control: Control | None = None,
        prepared: Prepared | None = None,
    ) -> NetworkPosterior:  # fmt: skip
        """Condition a network on a query; p(e) is computed where its tables are small and there is time.

        `prepared`: what conditioning left of the network, if already known. Raises ImpossibleEvidence when the
        evidence is seen to have probability 0.
        """
        prepared, control = prepared or problem_of(network, query), control or Control()
        total, log_evidence, log_ceiling = None, None, log_largest_joint(network, query)
        with suppress(TimeUp):  # then p(e) is not known
            total = _evidence(network, query, prepared.problem, control)
        if total is not None:
            problem = relative_to(prepared.problem, total)
            prepared, log_evidence = replace(prepared, problem=problem), total.log_value
            log_ceiling = problem.log_slack
        return cls(query.query_domain, prepared, log_evidence, workers or 1, control, log_ceiling=log_ceiling)

    def __repr__(self) -> str:
        return f"NetworkPosterior({len(self.domain)} variables, {len(self.problem.tables)} tables)"

    @property
    def problem(self) -> Problem:
        """The problem to maximise, over surviving states; variables by their positions in the model."""
        return self.prepared.problem

    @cached_property
    def states(self) -> QueryStates:
        return QueryStates.of(self.domain, self.prepared)

    @cached_property
    def _parts_in_time(self) -> list[NuisancePart]:
        return ordered_parts(self.problem, self.control)

    @cached_property
    def _parts(self) -> list[NuisancePart]:
        try:
            return self._parts_in_time
        except TimeUp:  # no answer has a value without an order: it is found all the same
            return ordered_parts(self.problem)

    @property
    def point_work(self) -> float:
        """Joint states of all cliques when a point is evaluated, before any table is built."""
        return work_of(self.problem, self._parts_in_time)

    @cached_property
    def evaluator(self) -> PointEvaluator:
        """The values of points."""
        return PointEvaluator(self.problem, self.prepared.query, self.workers, self._parts)

    @cached_property
    def _pace(self) -> WorkClock:
        return WorkClock(self.control, "evaluating assignments", SECONDS_PER_POINT_ENTRY)

    @property
    def facts(self) -> Facts:
        return self._facts

    @cached_property
    def _facts(self) -> Facts:
        return Facts.of(
            self.domain, log_evidence=self.log_evidence, is_normalised=self.log_evidence is not None,
            work=self.evaluator.n_entries, log_slack=self.evaluator.log_slack,
            log_ceiling=min(self.log_ceiling, largest_product(self.problem)),
        )  # fmt: skip

    def log_prob(self, points: Points) -> Floats:
        """Natural log of p(q | e), or of p(q, e) where p(e) is unknown, shape (batch,).

        Raises TimeUp before an expensive point that would end too late, but not before there is an answer.
        """
        inner, possible = self.states.to_problem(np.asarray(points))
        out = np.full(len(inner), -np.inf)
        rows = np.flatnonzero(possible)
        is_dear = self.evaluator.n_entries > DEAR_POINT
        for start in range(0, len(rows), 1 if is_dear else max(len(rows), 1)):
            some = rows[start : start + 1] if is_dear else rows
            may_end = is_dear and (start > 0 or self.evaluator.has_answer)
            with self._pace.piece(self.evaluator.n_entries) if may_end else nullcontext():
                out[some] = self.evaluator.log_values(inner[some])
        return out

    def possible_point(self) -> Points:
        """Return a point that is not impossible if one is found soon, else any; shape (1, n)."""
        return self.point(likely_states(self.problem))

    def point(self, states: Mapping[int, int]) -> Points:
        """Return the point, shape (1, n), of states by query variable, in the problem's numbers."""
        return self.states.point(states)[None]

    def prober(self) -> NetworkProber:
        """Return a fresh prober, whose relaxation tightens at a search's request."""
        return NetworkProber(self)


class NetworkProber:
    """Probes the split tree of a problem, and tightens it by shifting costs, dropping states and enlarging tables.

    A state whose bound is at most the search's threshold is dropped from the relaxation. Its bound is kept as a
    floor of the answers for boxes that contain the state. `log_bound`: the lowest upper bound so far (nats) on all
    points in the box last given to `tighten`. `credit`: table entries that climbs may visit until more is done.
    """

    def __init__(self, posterior: NetworkPosterior) -> None:
        self.layout, domain = Layout.of(posterior.domain), posterior.domain
        self.original, self.states, self.evaluator = posterior.problem, posterior.states, posterior.evaluator
        self.control, self.workers, self.plan = posterior.control, posterior.workers, posterior.plan
        self.log_ceiling = posterior.log_ceiling
        self.clock = trees.PassClock(self.control)
        self.rng = np.random.default_rng(0)
        self.bits, self.stage, self.steps_left = self.plan.first_bits, 0, self.plan.steps
        self.credit, self.log_bound, self.bound_before = FIRST_CLIMBS, self.log_ceiling, math.inf
        self.best: Ints | None = None
        self.best_value = -math.inf
        self.kept = np.zeros(domain.total_states, np.uint8)
        for own in self.states.columns:
            self.kept[own] = 1
        self.dropped = np.full(domain.total_states, -np.inf)
        self.tried_with = int(self.kept.sum())
        whole = trees.exact_tree(self.original, self.plan.exact_entries, self.control)
        self.now = self._placed(whole or trees.split_tree(self.original, self.bits))
        self.next: PlacedTree | None = None  # with larger tables, until it bounds better
        self.tightener: Tightener | None = None

    def _placed(self, tree: trees.SplitTree) -> PlacedTree:
        return PlacedTree.of(tree, self.states, self.kept)

    def _over_kept(self) -> Problem:
        return restrict(self.original, self.states.kept(self.kept, self.original.sizes))

    def bounds(self, mask: Mask) -> tuple[Floats, Floats]:
        """Bound boxes and every column in them, rounded up; -inf outside: shapes (batch,) and (batch, columns)."""
        left = mask & self.kept
        bound, each = self.now.bounds(left, self.workers, self.clock)
        floor = np.where(mask > left, self.dropped, -np.inf)
        highest = floor.max(axis=1)
        bound = np.minimum(np.maximum(bound, highest), self.log_ceiling)
        each = np.where(mask > left, floor, np.maximum(each, highest[:, None]))
        each[mask == 0] = -np.inf
        return bound, np.minimum(each, bound[:, None])

    @property
    def work(self) -> int:
        """Cost of one box, in table entries, including points, which many boxes become."""
        return int(max(4 * self.now.tree.n_entries, self.evaluator.n_entries)) + 100

    @property
    def n_bytes(self) -> int:
        """The memory of the relaxation."""
        return self.now.tree.n_bytes + (0 if self.next is None else self.next.tree.n_bytes)

    def probe(self, boxes: SearchBoxes) -> Answers:
        """Bound boxes and columns."""
        bound, each = self.bounds(boxes.mask)
        self.credit += CLIMB_SHARE * len(boxes) * self.work
        splits = np.full((len(boxes), len(self.layout.domain)), np.nan)
        return Answers(self.layout.log_share(boxes), bound, self.layout.log_share_each(boxes), each, splits)

    def starts(self) -> Points:
        """Return points read off the relaxation, climbs from them, and climbs from around the best so far."""
        found, moved = list[Ints](), list[Ints]()
        for placed in (self.now, self.next):
            if placed is not None and not (found and self.control.should_stop):
                found.append(placed.decode(self.kept, self.clock))
                if self.evaluator.log_values(found[-1][None])[0] == -np.inf:
                    possible = placed.decode_possible(self.kept, self.clock, lambda: self.control.should_stop)
                    found.extend([] if possible is None else [possible])
                found.append(self._climb(found[-1]))
        if self.stage > 0 and not self.now.tree.is_exact:
            for _ in range(PERTURBED if self.best is not None and not self.control.should_stop else 0):
                point = np.array(self.best)
                for i in np.flatnonzero(self.rng.random(len(point)) < SHARE_MOVED):
                    alive = self.states.columns[i][self.kept[self.states.columns[i]] > 0]
                    if len(alive):
                        point[i] = self.states.position[self.rng.choice(alive)]
                moved.append(point)
            found.extend(self._climb(p) for p in moved if not self.control.should_stop)
        return self.states.to_domain(np.stack(found))

    def _climb(self, inner: Ints) -> Ints:
        n_states = np.array([len(c) for c in self.states.columns], np.int64)
        before, point = self.evaluator.work, np.array(inner, np.int64)
        if self.evaluator.log_values(point[None])[0] > -np.inf:  # single changes lead away from nowhere else
            most = min(CLIMB_WORK, self.credit)
            point = self.evaluator.climb(point, n_states, most, lambda: self.control.should_stop)
        self.credit -= self.evaluator.work - before
        value = float(self.evaluator.log_values(point[None])[0])
        if value > self.best_value or self.best is None:
            self.best, self.best_value = point, value
        return point

    def climb(self, points: Points) -> Points:
        """Return points reached by moving one variable at a time, shape (batch, n)."""
        inner, possible = self.states.to_problem(points)
        out = np.array(points)
        for b in np.flatnonzero(possible):
            out[b] = self.states.to_domain(self._climb(inner[b])[None])[0]
        return out

    def tighten(self, work: int, log_factor: float, within: SearchBoxes, log_threshold: float) -> Tightening:
        """Drop states, shift costs for about `work` entries' worth of steps, or build a better tree."""
        came_to = self._tighten(work, within, log_threshold)
        self.credit += CLIMB_SHARE * came_to.work
        return came_to._replace(log_bound=self.log_bound)

    def _tighten(self, work: int, within: SearchBoxes, log_threshold: float) -> Tightening:
        if not self._shrink(within.mask[0], log_threshold) or not self.now.tree.is_split:
            return Tightening(self.now.tree.n_entries, is_paused=True, is_complete=True)
        at_work = self.now if self.next is None else self.next
        if self.tightener is None:
            self.tightener = Tightener(at_work.tree, self.clock)
        self.tightener.narrow(at_work.masks(self.kept[None])[0])
        cost = STEP_COST * at_work.tree.n_entries
        steps = max(2, min(self.steps_left, work // cost))
        goes_on = self.tightener.run(TEMPERATURES[self.stage], steps)
        if self.tightener.is_cut and self.next is not None and not self.control.should_stop:
            self.next, self.tightener = None, None  # too large for the time that is left, which a search may use
            return Tightening(cost, is_paused=True, is_complete=True)
        self._note(self._bound_of(at_work))
        self.steps_left -= steps
        if goes_on and self.steps_left > 0:
            return Tightening(steps * cost, is_paused=False, is_complete=False)
        return self._next_stage(steps * cost)

    def _shrink(self, within: Mask, log_threshold: float) -> bool:
        """Drop states that are closed or whose bound is at most the threshold; return False if none is left."""
        self.kept &= within
        for _ in range(SHRINK_ROUNDS):
            bound, each = self.now.bounds(self.kept[None], 1, self.clock)
            self._note(float(bound[0]))
            if bound[0] <= log_threshold:
                self._drop(self.kept > 0, np.full(len(self.kept), bound[0]))
                return False
            gone = (self.kept > 0) & (each[0] <= log_threshold)
            if not np.any(gone):
                return True
            self._drop(gone, each[0])
            if np.any(np.add.reduceat(self.kept, self.layout.offsets[:-1], dtype=np.int64) == 0):
                return False
        return True

    def _note(self, bound: float) -> None:
        """Turn a bound on the kept states into one on the whole box, dropped states included; keep the lowest."""
        self.log_bound = min(self.log_bound, max(bound, float(np.max(self.dropped, initial=-np.inf))))

    def _drop(self, gone: Flags, bounds: Floats) -> None:
        self.dropped[gone] = np.maximum(self.dropped[gone], bounds[gone])
        self.kept[gone] = 0

    def _next_stage(self, work: int) -> Tightening:
        """Go on to a finer temperature, an exact tree where much was dropped, or larger tables."""
        self.steps_left = self.plan.steps if self.bits == self.plan.first_bits else self.plan.steps // 2
        if int(self.kept.sum()) < 0.9 * self.tried_with:
            self.tried_with = int(self.kept.sum())
            if self._simplify_tree():
                return Tightening(work, is_paused=True, is_complete=True, has_starts=True)
        if self.next is not None and self._bound_of(self.next) < self._bound_of(self.now):
            self.now, self.next = self.next, None
        is_first = self.bits == self.plan.first_bits
        gained, self.bound_before = self.bound_before - self.log_bound, self.log_bound
        has_stalled = gained <= STALLED * (self.log_bound - self.best_value) < math.inf
        is_through = self.stage > 1 and self.next is None and has_stalled
        self.stage += 1 if is_first else 2
        if self.stage < len(TEMPERATURES) and not is_through:
            return Tightening(work, is_paused=False, is_complete=False, has_starts=True)
        self.stage, self.bits, self.steps_left = 1, self.bits + self.plan.raise_bits, self.plan.steps // 2
        self.next, self.tightener = None, None
        is_last = self.bits > self.plan.last_bits
        if not is_last:
            room = MEMORY_SHARE * self.control.memory_limit
            try:
                self.next = self._placed(trees.split_tree(self._over_kept(), self.bits, room))
            except TooLarge:
                is_last = True
        return Tightening(work, is_paused=is_first or is_last, is_complete=is_last, has_starts=True)

    def _simplify_tree(self) -> bool:
        """Switch to a tree without copies over the kept states if it fits and bounds better."""
        problem, most = self._over_kept(), self.plan.exact_entries
        tree = trees.exact_tree(problem, most) or trees.mixed_tree(problem, most / 4.0)
        if tree is None:
            return False
        placed = self._placed(tree)
        if not tree.is_exact and self._bound_of(placed) >= self._bound_of(self.now):
            return False
        self.now, self.next, self.tightener = placed, None, None
        return True

    def _bound_of(self, placed: PlacedTree) -> float:
        return placed.tree.bound(placed.masks(self.kept[None])[0], clock=self.clock)


def _evidence(network: Network, query: Query, problem: Problem, control: Control) -> Total | None:
    """Return ln p(e) if it is known beforehand or cheap to sum."""
    if isinstance(network, BayesianNetwork) and not query.log_weights.any() and network.log_total_slack < EXACT:
        return Total(0.0, network.log_total_slack)
    if looks_too_wide([t.scope for t in problem.tables], problem.sizes):
        return None
    most = min(KNOWN_WORK, TIME_SHARE * control.seconds_left / SECONDS_PER_ENTRY)
    return log_evidence(problem, most_entries=most, control=control)


def largest_product(problem: Problem) -> float:
    """Return an upper bound (nats) on a problem's values: largest table entries, times nuisance states."""
    tops: list[float] = [float(problem.constant), *problem.joined.tops.tolist()]
    tops += [math.log(problem.sizes[v]) for v in problem.nuisance]
    if -math.inf in tops:
        return -math.inf
    return math.fsum(tops) + problem.log_slack + 1e-15 * sum(abs(t) for t in tops)


def log_largest_joint(network: Network, query: Query) -> float:
    """Return an upper bound (nats) on ln p(q, e) of a Bayesian network; inf for other networks.

    The rows of its tables add up to 1 (within `rows.EXACT`) or 0, so that the product of the tables adds up to at
    most 1 over all assignments. Each likelihood multiplies it by at most its largest entry. Counters multiply it
    by at most 1.
    """
    network = network.without_counters
    if not isinstance(network, BayesianNetwork):
        return math.inf
    weights = np.maximum.reduceat(query.log_weights[: network.domain.total_states], network.domain.offsets[:-1])
    reach = len(network.domain) + float(np.abs(weights).sum()) + sum(f.shape[-1] for f in network.factors)
    return math.fsum(weights) + 1.01 * EXACT * len(network.factors) + 1e-15 * reach


@dataclass(frozen=True, eq=False)
class TwoSidedNetworkPosterior(NetworkPosterior):
    """A network and a query whose nuisance variables cannot be summed out even at a single point.

    Lower bound: some nuisance variables are fixed at likely states (found once) and others summed; a partial sum
    of nonnegative numbers is at most the sum. Upper bound: a relaxed tree within the point. Both are made on first
    use, cheaper ones when the time is up, and kept, so that values of points never change.
    """

    @cached_property
    def evaluator(self) -> PointEvaluator:
        """The evaluator of lower bounds of points."""
        part = part_of(self.problem, self._likely if self.problem.nuisance else {}, self.control)
        return PointEvaluator(part, self.prepared.query, self.workers)

    @cached_property
    def _likely(self) -> dict[int, int]:
        return supported_states(self.problem, _late(self.control)) or dict.fromkeys(self.problem.sizes, 0)

    def possible_point(self) -> Points:
        """Return the states at which the part was fixed, of queried variables; shape (1, n)."""
        return self.point(self._likely)

    def log_prob(self, points: Points) -> Floats:
        """Natural log of a part of p(q, e), rounded down, shape (batch,): `log_prob_interval`'s lower bound."""
        return super().log_prob(points) - self.evaluator.log_slack

    def log_prob_interval(self, points: Points) -> LogInterval:
        """Return lower and upper bounds on ln p(q, e) of each row, shape (batch,) each.

        Cost: one sum of a part and one upward pass of the relaxation per row.
        """
        points = np.asarray(points)
        inner, possible = self.states.to_problem(points)
        lower, upper = self.log_prob(points), np.full(len(inner), -np.inf)
        tree = self._tree
        for b in np.flatnonzero(possible):
            upper[b] = math.inf if tree is None else max(self._upper(tree, inner[b]), lower[b])
        return LogInterval(lower, np.minimum(upper, np.maximum(self.log_ceiling, lower)))

    @cached_property
    def _tree(self) -> Tightener | None:
        """A relaxation of the whole, tightened for the maximum; None where the time was up before it was made."""
        if self.control.should_stop:
            return None
        tree = trees.split_tree(self.problem, UPPER_BITS)
        tightener = Tightener(tree, trees.PassClock())
        tightener.run(TEMPERATURE, max(1, min(UPPER_STEPS, UPPER_WORK // tree.n_entries)))
        return tightener

    def _upper(self, tightened: Tightener, row: Ints) -> float:
        tree = tightened.tree
        mask, state = tree.full_mask(), dict(zip(self.states.variables, row.tolist(), strict=True))
        for v, start, stop in zip(tree.variables, tree.arrays.state_ptr, tree.arrays.state_ptr[1:], strict=False):
            if v in state:
                mask[start:stop] = 0
                mask[start + state[v]] = 1
        return tree.bound(mask, tightened.scratch)


def _late(control: Control | None) -> Callable[[], bool]:
    """Return whether the control asks to stop, which does not count before `PART_SECONDS` from now."""
    least = Control.starting_now(PART_SECONDS)
    return lambda: least.is_late and control is not None and control.should_stop


def part_of(problem: Problem, likely: Mapping[int, int], control: Control | None = None) -> Problem:
    """Fix nuisance variables at likely states, those in most tables first, until summing the others is cheap.

    No value of the part exceeds the problem's. `likely`: states of all variables, where a climb begins, of at most
    2^22 entries. When the time is up, the climb ends and more variables are fixed than needed.
    """
    if not problem.nuisance:
        return problem
    late = _late(control)
    state = climbed(problem, likely, PART_CLIMB_WORK, late)
    waiting = by_degree(problem, problem.nuisance)

    def fixed(n: int) -> Problem:
        return restrict(problem, {v: np.array([state[v]]) for v in waiting[:n]})

    few, enough = 0, len(waiting)
    while enough - few > max(1, len(waiting) // ROUNDS) and not late():
        middle = (few + enough) // 2
        part = fixed(middle)
        if work_of(part, ordered_parts(part, effort=0.0)) <= PART_WORK:
            enough = middle
        else:
            few = middle
    return fixed(enough)
