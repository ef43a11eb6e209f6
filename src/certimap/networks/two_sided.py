"""Networks in which even the sum at a point is too wide: its value is bounded from both sides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from certimap.core.box import Points
from certimap.core.posterior import LogInterval
from certimap.networks.conditional import PointEvaluator, conditional_work
from certimap.networks.posterior import NetworkPosterior
from certimap.networks.problem import Problem, restrict
from certimap.networks.relaxation.choose_tree import split_tree
from certimap.networks.relaxation.pass_clock import PassClock
from certimap.networks.relaxation.tighten import Tightener
from certimap.networks.support import supported_states

Floats = NDArray[np.float64]
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
    Both are made on first use, independently of the clock, so that values of points never change.
    """

    @cached_property
    def evaluator(self) -> PointEvaluator:
        """The evaluator of lower bounds of points."""
        return PointEvaluator(part_of(self.problem), self.prepared.query, self.workers)

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
        for b in np.flatnonzero(possible):
            upper[b] = max(self._upper(inner[b]), lower[b])
        return LogInterval(lower, np.minimum(upper, np.maximum(self.log_ceiling, lower)))

    @cached_property
    def _tree(self) -> Tightener:
        """A relaxation of the whole, tightened for the maximum: fixed beforehand, so that values never change."""
        tree = split_tree(self.problem, UPPER_BITS)
        tightener = Tightener(tree, PassClock())
        tightener.run(TEMPERATURE, max(1, min(UPPER_STEPS, UPPER_WORK // tree.n_entries)))
        return tightener

    def _upper(self, row: Ints) -> float:
        tree = self._tree.tree
        mask = tree.full_mask()
        state = dict(zip(self.states.variables, row.tolist(), strict=True))
        for i, v in enumerate(tree.variables):
            if v in state:
                start, stop = tree.arrays.state_ptr[i], tree.arrays.state_ptr[i + 1]
                mask[start:stop] = 0
                mask[start + state[v]] = 1
        return tree.bound(mask, self._tree.scratch)


def part_of(problem: Problem) -> Problem:
    """Fix nuisance variables at likely states, those in most tables first, until summing the others is cheap.

    No value of the part exceeds the problem's. Cost: one climb over all variables of at most `CLIMB_WORK` entries.
    """
    variables = sorted(problem.sizes)
    n_states = np.array([problem.sizes[v] for v in variables], np.int64)
    states = supported_states(problem) or dict.fromkeys(variables, 0)
    start = np.array([states[v] for v in variables], np.int64)
    maximised = replace(problem, query=frozenset(variables))
    found = PointEvaluator(maximised, variables).climb(start, n_states, CLIMB_WORK)
    state = dict(zip(variables, found, strict=True))
    degree = dict.fromkeys(variables, 0)
    for table in problem.tables:
        for v in table.scope:
            degree[v] += 1
    waiting = sorted(problem.nuisance, key=lambda v: (-degree[v], v))

    def fixed(n: int) -> Problem:
        return restrict(problem, {v: np.array([state[v]]) for v in waiting[:n]})

    few, enough = 0, len(waiting)
    while enough - few > max(1, len(waiting) // ROUNDS):
        middle = (few + enough) // 2
        if conditional_work(fixed(middle), effort=0.0) <= PART_WORK:
            enough = middle
        else:
            few = middle
    return fixed(enough)
