"""Posteriors of networks of any width: points by conditional elimination, boxes by relaxation."""

from __future__ import annotations

import math
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from certimap.core.box import Points
from certimap.core.control import Control, TimeUp, WorkClock
from certimap.core.domain import Domain
from certimap.core.posterior import Facts, LogInterval
from certimap.core.query import Query
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.conditional import (
    NuisancePart,
    PointEvaluator,
    Total,
    conditional_work,
    ordered_parts,
    relative_to,
    work_of,
)
from certimap.networks.network import Network
from certimap.networks.placed_tree import QueryStates
from certimap.networks.prober import NetworkProber
from certimap.networks.problem import Prepared, Problem, problem_of, restrict
from certimap.networks.relaxation.split_tree import PassClock, RelaxationPlan, split_tree
from certimap.networks.relaxation.tighten import Tightener
from certimap.networks.rows import EXACT
from certimap.networks.sum_elimination import SECONDS_PER_ENTRY, log_evidence
from certimap.networks.support import likely_states, supported_states

Floats = NDArray[np.float64]
KNOWN_WORK = 2.0**26  # table entries up to which p(e) is summed at once: some .3 s
TIME_SHARE = 0.05  # of the time left that this may take
DEAR_POINT = 2.0**24  # table entries per point from which points are valued one by one, with a look at the clock
SECONDS_PER_POINT_ENTRY = 4e-8  # of a point that is valued alone, until one has been timed


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
    # the limits of the run, which climbs and optimisation steps obey
    control: Control = field(default_factory=Control)
    plan: RelaxationPlan = field(default_factory=RelaxationPlan)  # how large relaxations may grow
    # upper bound (nats) on all points, independent of relaxations: probabilities are at most 1, and p(q, e) of a
    # Bayesian network is at most the product of the largest likelihoods of its soft evidence
    log_ceiling: float = math.inf

    @classmethod
    def of_network(
        cls, network: Network, query: Query, *, workers: int | None = None, control: Control | None = None
    ) -> NetworkPosterior:
        """Condition a network on a query; p(e) is computed where its tables are small and there is time.

        Raises
        ------
        ImpossibleEvidence
            When the evidence is seen to have probability 0.
        """
        prepared = problem_of(network, query)
        problem = prepared.problem
        total = None
        with suppress(TimeUp):  # then p(e) is not known
            total = _evidence(network, query, problem, control or Control())
        log_ceiling = log_largest_joint(network, query)
        log_evidence = None if total is None else total.log_value
        if total is not None:
            problem = relative_to(problem, total)
            prepared, log_ceiling = replace(prepared, problem=problem), problem.log_slack
        return cls(
            query.query_domain, prepared, log_evidence, workers or 1, control or Control(), log_ceiling=log_ceiling
        )

    def __repr__(self) -> str:
        return f"NetworkPosterior({len(self.domain)} variables, {len(self.problem.tables)} tables)"

    @property
    def problem(self) -> Problem:
        """The problem to maximise, over surviving states; variables by their positions in the model."""
        return self.prepared.problem

    @cached_property
    def states(self) -> QueryStates:
        """The map from the problem's states to the states of the query's domain."""
        return QueryStates.of(self.domain, self.prepared)

    @cached_property
    def _parts(self) -> list[NuisancePart]:
        try:
            return ordered_parts(self.problem, self.control)
        except TimeUp:  # no answer has a value without an order: it is found all the same
            return ordered_parts(self.problem)

    @property
    def point_work(self) -> float:
        """Joint states of all cliques when a point is evaluated, before any table is built."""
        return work_of(self.problem, self._parts)

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
            self.domain,
            log_evidence=self.log_evidence,
            is_normalised=self.log_evidence is not None,
            work=self.evaluator.n_entries,
            log_slack=self.evaluator.log_slack,
            log_ceiling=min(self.log_ceiling, largest_product(self.problem)),
        )

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
        states = likely_states(self.problem)
        inner = np.array([[states.get(v, 0) for v in self.states.variables]], np.int64)
        return self.states.to_domain(inner)

    def prober(self) -> NetworkProber:
        """Return a fresh prober, whose relaxation tightens at a search's request."""
        problem, states, evaluator = self.prepared.problem, self.states, self.evaluator
        return NetworkProber(problem, states, evaluator, self.control, self.workers, self.plan, self.log_ceiling)


def _evidence(network: Network, query: Query, problem: Problem, control: Control) -> Total | None:
    """Return ln p(e) if it is known beforehand or cheap to sum."""
    if isinstance(network, BayesianNetwork) and not query.log_weights.any() and network.log_total_slack < EXACT:
        return Total(0.0, network.log_total_slack)
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
    most 1 over all assignments. Each likelihood multiplies it by at most its largest entry.
    """
    if not isinstance(network, BayesianNetwork):
        return math.inf
    weights = np.maximum.reduceat(query.log_weights, network.domain.offsets[:-1])
    reach = len(network.domain) + float(np.abs(weights).sum()) + sum(f.shape[-1] for f in network.factors)
    return math.fsum(weights) + 1.01 * EXACT * len(network.factors) + 1e-15 * reach


Ints = NDArray[np.int64]
PART_WORK = 2.0**20  # table entries per point for summing a part of the nuisance variables
UPPER_BITS = 10.0  # log base 2 of the largest table of the relaxation for upper bounds
TEMPERATURE, UPPER_STEPS = 0.1, 8
UPPER_WORK = 6_000_000  # entries of the relaxation times steps: a large one gets fewer, and one at least
CLIMB_WORK = 2.0**22
ROUNDS = 32  # resolution (one part in this many) of the number of nuisance variables to fix


@dataclass(frozen=True, eq=False)
class TwoSidedNetworkPosterior(NetworkPosterior):
    """A network and a query whose nuisance variables cannot be summed out even at a single point.

    Lower bound: some nuisance variables are fixed at likely states (found once, whatever the point) and the others
    summed; a partial sum of nonnegative numbers is at most the sum. Upper bound: a relaxed tree within the point.
    Both are made on first use, cheaper ones when the time is up, and kept, so that values of points never change.
    """

    @cached_property
    def evaluator(self) -> PointEvaluator:
        """The evaluator of lower bounds of points."""
        return PointEvaluator(part_of(self.problem, self.control), self.prepared.query, self.workers)

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
        tree = split_tree(self.problem, UPPER_BITS)
        tightener = Tightener(tree, PassClock())
        tightener.run(TEMPERATURE, max(1, min(UPPER_STEPS, UPPER_WORK // tree.n_entries)))
        return tightener

    def _upper(self, tightened: Tightener, row: Ints) -> float:
        tree = tightened.tree
        mask = tree.full_mask()
        state = dict(zip(self.states.variables, row.tolist(), strict=True))
        for i, v in enumerate(tree.variables):
            if v in state:
                start, stop = tree.arrays.state_ptr[i], tree.arrays.state_ptr[i + 1]
                mask[start:stop] = 0
                mask[start + state[v]] = 1
        return tree.bound(mask, tightened.scratch)


def part_of(problem: Problem, control: Control | None = None) -> Problem:
    """Fix nuisance variables at likely states, those in most tables first, until summing the others is cheap.

    No value of the part exceeds the problem's. Cost: one climb over all variables of at most `CLIMB_WORK` entries.
    When the control's time is up, the climb ends and more variables are fixed than needed.
    """
    late = partial(getattr, control or Control(), "should_stop")
    variables = sorted(problem.sizes)
    n_states = np.array([problem.sizes[v] for v in variables], np.int64)
    states = supported_states(problem, late) or dict.fromkeys(variables, 0)
    start = np.array([states[v] for v in variables], np.int64)
    maximised = replace(problem, query=frozenset(variables))
    found = PointEvaluator(maximised, variables).climb(start, n_states, CLIMB_WORK, late)
    state = dict(zip(variables, found, strict=True))
    degree = dict.fromkeys(variables, 0)
    for table in problem.tables:
        for v in table.scope:
            degree[v] += 1
    waiting = sorted(problem.nuisance, key=lambda v: (-degree[v], v))

    def fixed(n: int) -> Problem:
        return restrict(problem, {v: np.array([state[v]]) for v in waiting[:n]})

    few, enough = 0, len(waiting)
    while enough - few > max(1, len(waiting) // ROUNDS) and not late():
        middle = (few + enough) // 2
        if conditional_work(fixed(middle), effort=0.0) <= PART_WORK:
            enough = middle
        else:
            few = middle
    return fixed(enough)
