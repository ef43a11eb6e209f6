"""Networks of any width whose nuisance variables can be summed out: what remains is a maximisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from certimap.core.arrays import Floats, Ints
from certimap.core.box import Boxes, Points
from certimap.core.cached import cached_property
from certimap.core.domain import Domain
from certimap.core.posterior import OFFERS, BoxPosterior, Facts, Prober
from certimap.core.query import Query
from certimap.errors import TooLarge
from certimap.kernels.parallel import default_workers
from certimap.networks.conditional import relative_to
from certimap.networks.elimination_plan import EliminationPlan
from certimap.networks.problem import Prepared, Problem, QueryStates, is_hard, rounding_at, value_at
from certimap.networks.reduction import touching
from certimap.networks.simplify import Chosen, impossible
from certimap.networks.sum_pass import Total
from certimap.networks.support import likely_states


def functions_of(problem: Problem) -> list[Chosen]:
    """Return the nuisance variables that the query determines, each after the ones in its scope.

    A table determines the one variable of it that is not yet known where it leaves one of its states, at most, to
    any states of the others. Cost: one pass over tables with zeros.
    """
    known = set(problem.query)
    found: list[Chosen] = []
    bearing = [t for t in problem.tables if not known.issuperset(t.scope) and bool(is_hard(t.log_values).any())]
    n_unknown = [len(set(t.scope) - known) for t in bearing]
    near = touching(t.scope for t in bearing)
    waiting = [k for k, n in enumerate(n_unknown) if n == 1][::-1]
    while waiting:
        scope, values = bearing[waiting.pop()]
        unknown = [v for v in scope if v not in known]
        if not unknown:
            continue
        v, axis = unknown[0], scope.index(unknown[0])
        if (~is_hard(values)).sum(axis=axis).max() > 1:
            continue
        found.append(Chosen(v, tuple(u for u in scope if u != v), values.argmax(axis=axis)))
        known.add(v)
        for k in near[v]:
            n_unknown[k] -= 1
            if n_unknown[k] == 1:
                waiting.append(k)
    return found


def maximised(problem: Problem, functions: Sequence[Chosen]) -> Problem:
    """Return a problem that also maximises over determined variables: their sums have one term."""
    return replace(problem, query=problem.query | {f.variable for f in functions})


def with_functions(functions: Sequence[Chosen], points: Ints, variables: Sequence[int]) -> tuple[Ints, list[int]]:
    """Append determined variables' states to points of open query variables (batch, n); return all variables."""
    column = {v: points[:, k] for k, v in enumerate(variables)}
    for v, scope, states in functions:
        column[v] = states[tuple(column[u] for u in scope)] if scope else np.full(len(points), int(states))
    return np.stack(list(column.values()), axis=1) if column else points, list(column)


MAX_SUMMED = 2**20  # entries of the largest table that summing nuisance variables out may make
WORK_PER_TABLE = 50.0  # of scoring one row


class MpePosterior:
    """A product of tables over the query variables, known up to its total: ratios and `log_joint`, no p(e).

    `prepared`: the network's problem for the query, nuisance variables summed out.
    `log_evidence`: ln p(e) where it is known.
    `workers`: threads that maximising it may take, None for every core; the answer does not depend on it.
    `functions`: the variables that the problem maximises beyond the query, which determines them.
    `facts`: not normalised: in general p(e) would take the sum over all assignments.

    Raises TooLarge when nuisance variables are left.
    """

    def __init__(
        self, query: Query, prepared: Prepared, log_evidence: float | None = None, workers: int | None = None,
        functions: Sequence[Chosen] = (),
    ) -> None:  # fmt: skip
        problem, self.workers = prepared.problem, workers or default_workers()
        if problem.nuisance:
            raise TooLarge(
                f"{len(problem.nuisance)} nuisance variables are left that don't sum out into small tables; a "
                "solver that bounds their sum is needed"
            )
        self.domain: Domain = query.query_domain
        self.problem: Problem = problem
        self.states = QueryStates.of(self.domain, prepared)
        self.order: EliminationPlan | None = None  # a cheap order of all variables, where it is known
        self.facts = Facts.of(
            self.domain,
            log_evidence=log_evidence,
            is_normalised=False,
            work=WORK_PER_TABLE * len(problem.tables),
            log_slack=problem.log_slack + rounding_at(problem),
        )
        self._functions = functions
        self._open = [(i, v) for i, v in enumerate(prepared.query) if v in problem.sizes]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.domain)} variables, {len(self.problem.tables)} tables)"

    def log_prob(self, points: Points) -> Floats:
        """Return ln p(q, e) (of a Markov network: of the product) of each row; cost: batch times the tables."""
        positions, possible = self.states.to_problem(np.atleast_2d(points))
        total = np.full(len(positions), -np.inf)
        if possible.any():
            columns = positions[possible][:, [i for i, _ in self._open]]
            rows, variables = with_functions(self._functions, columns, [v for _, v in self._open])
            total[possible] = value_at(self.problem, rows, variables)
        return total

    def possible_point(self) -> Points:
        """Return a point that is not impossible if one is found soon, else any; shape (1, n)."""
        return self.states.point(likely_states(self.problem))[None]

    def kept(self, boxes: Boxes) -> dict[int, Ints]:
        """Return the states of the problem's variables that one box leaves, where it leaves out any.

        Raises ImpossibleEvidence when it leaves none that the evidence allows.
        """
        mask = boxes.mask[0]
        if not all(mask[own].any() for own in self.states.columns):
            raise impossible()
        return self.states.kept(mask, self.problem.sizes)


OFFERS[MpePosterior] = "problem, workers, point() and kept()"


class EliminationPosterior(MpePosterior):
    """A normalised product of tables over the query variables.

    Points are scored by the tables. Questions about boxes, and draws, use a tree of conditional tables. It takes
    many times as long to make as the maximum, so that it is made on first use.

    `order`: of an elimination of all its variables, which is cheap. `total`: ln p(e), and how far it may be off.
    `make_tree`: returns the same posterior with masses, bounds and draws. Else as for `MpePosterior`.
    """

    def __init__(
        self, query: Query, prepared: Prepared, order: EliminationPlan, total: Total,
        make_tree: Callable[[], BoxPosterior], workers: int | None = None, functions: Sequence[Chosen] = (),
    ) -> None:  # fmt: skip
        problem, log_evidence = relative_to(prepared.problem, total), total.log_value
        super().__init__(query, replace(prepared, problem=problem), log_evidence, workers, functions)
        self.order = order
        self.facts = Facts.of(
            self.domain, log_evidence=log_evidence, work=self.facts.work, log_slack=self.facts.log_slack
        )
        self._make_tree = make_tree

    @cached_property
    def tree(self) -> BoxPosterior:
        """The same posterior as a tree of conditional tables."""
        return self._make_tree()

    def sample(self, n: int, rng: np.random.Generator, boxes: Boxes | None = None) -> Points:
        """Draw n independent points, shape (n, n_variables); see `Draws`."""
        return self.tree.sample(n, rng, boxes)

    def log_mass(self, boxes: Boxes) -> Floats:
        """Natural log of P(box | e), shape (batch,)."""
        return self.tree.log_mass(boxes)

    def log_mass_each(self, boxes: Boxes) -> Floats:
        """The same with variable i restricted to state a alone, shape (batch, total_states)."""
        return self.tree.log_mass_each(boxes)

    def prober(self) -> Prober:
        """Return a prober of the tree."""
        return self.tree.prober()
