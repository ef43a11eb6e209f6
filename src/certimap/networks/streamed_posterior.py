"""Networks with a feasible sum over all variables, for queries of any width: masses and draws."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from certimap.core.box import Boxes, Points
from certimap.core.control import Control
from certimap.core.posterior import Facts
from certimap.core.query import Query
from certimap.core.search_boxes import Answers, SearchBoxes, rounded_up
from certimap.errors import ImpossibleEvidence, SolverError
from certimap.networks.conditional import relative_to
from certimap.networks.elimination_plan import EliminationPlan, plan
from certimap.networks.posterior import NetworkPosterior, NetworkProber
from certimap.networks.problem import Prepared, Problem, restrict
from certimap.networks.streamed import StreamedSum
from certimap.networks.sum_elimination import sum_all

Floats = NDArray[np.float64]
PASSES = 5  # over all tables, that weighing a box and its columns takes
Masks = dict[int, NDArray[np.bool_]]


class MassProber(NetworkProber):
    """The prober of a network whose boxes can be weighed."""

    def __init__(self, posterior: StreamedPosterior) -> None:
        super().__init__(posterior)
        self.posterior = posterior

    @property
    def work(self) -> int:
        """Cost of one box, in table entries."""
        return super().work + int(PASSES * self.posterior.n_summed)

    def probe(self, boxes: SearchBoxes) -> Answers:
        """Bound and weigh boxes and columns."""
        found, public = super().probe(boxes), self.layout.public(boxes)
        whole, each = self.posterior.log_masses(public)
        slack = self.posterior.facts.log_slack
        mass = rounded_up(whole, slack)
        each_mass = rounded_up(np.where(public.mask, each, -np.inf), slack)
        bound, each_bound = np.minimum(found.log_bound, mass), np.minimum(found.each_bound, each_mass)
        return Answers(mass, bound, each_mass, np.minimum(each_bound, bound[:, None]), found.splits)


@dataclass(frozen=True, eq=False, repr=False)
class StreamedPosterior(NetworkPosterior):
    """A network and a query in which p(e) is one elimination, in an order that sums everything.

    A box is weighed by one such elimination, exactly but for rounding, and any number of draws takes two. Points
    are valued, and boxes bounded, as in the base class.
    """

    known: EliminationPlan | None = None  # the elimination order of the sum

    @classmethod
    def of_sum(
        cls, prepared: Prepared, order: EliminationPlan, query: Query, workers: int, control: Control
    ) -> StreamedPosterior:
        """Condition a network on a query, given its problem and an order for the sum.

        Raises ImpossibleEvidence when p(e) = 0. Raises TimeUp when the sum for p(e) would end too late.
        """
        total = sum_all(replace(prepared.problem, query=frozenset()), order, control, workers)
        problem = relative_to(prepared.problem, total)
        return cls(
            query.query_domain, replace(prepared, problem=problem), total.log_value, workers, control,
            log_ceiling=problem.log_slack, known=order,
        )  # fmt: skip

    @cached_property
    def _everything(self) -> Problem:
        return replace(self.problem, query=frozenset())

    @cached_property
    def _plan(self) -> EliminationPlan:
        return plan(self._everything) if self.known is None else self.known

    @property
    def n_summed(self) -> float:
        """Table entries of one sum over all variables."""
        return self._plan.n_entries

    @property
    def facts(self) -> Facts:
        return replace(super().facts, log_slack=self.evaluator.log_slack + self.problem.log_slack)

    def log_mass(self, boxes: Boxes) -> Floats:
        """Natural log of P(box | e), shape (batch,); one elimination for each box."""
        return np.array([self._log_mass(row) for row in boxes.mask])

    def _log_mass(self, mask: NDArray[np.bool_]) -> float:
        masks, is_open, _ = self._masks(mask)
        if not is_open or not all(m.any() for m in masks.values()):
            return -math.inf
        part = restrict(self._everything, {v: np.flatnonzero(m) for v, m in masks.items()})
        try:
            total = sum_all(part, self._plan.within(part), self.control, self.workers)
        except ImpossibleEvidence:
            return -math.inf
        return min(total.log_value, 0.0)

    def log_mass_each(self, boxes: Boxes) -> Floats:
        """`log_mass` with variable i restricted to state a, shape (batch, total_states).

        Cost per box: two eliminations, and a backward pass of about three times as much.
        """
        return self.log_masses(boxes)[1]

    def log_masses(self, boxes: Boxes) -> tuple[Floats, Floats]:
        """Return `log_mass` and `log_mass_each`, at the cost of the latter."""
        whole, out = np.full(len(boxes.mask), -np.inf), np.full(boxes.mask.shape, -np.inf)
        for b, mask in enumerate(boxes.mask):
            masks, is_open, closed = self._masks(mask)
            total, each = StreamedSum(self._everything, self._plan, self.control, masks, self.workers).log_each()
            if is_open:
                whole[b] = total
            for v, own in zip(self.states.variables, self.states.columns, strict=True):
                if is_open or closed == [v]:
                    out[b, own] = each.get(v, total)
        return np.minimum(whole, 0.0), np.minimum(out, 0.0)

    def prober(self) -> MassProber:
        """Return a fresh prober with both masses of boxes and bounds from a relaxation."""
        return MassProber(self)

    def _masks(self, mask: NDArray[np.bool_]) -> tuple[Masks, bool, list[int]]:
        """Return a box's masks of the problem's variables, and which other variables keep no state.

        The second value tells whether all other variables keep a state.
        """
        masks: Masks = {}
        closed: list[int] = []
        for v, own in zip(self.states.variables, self.states.columns, strict=True):
            inside = mask[own]
            if v not in self.problem.sizes:
                closed += [] if inside.any() else [v]
            elif not inside.all():
                masks[v] = inside
        return masks, not closed, closed

    def sample(self, n: int, rng: np.random.Generator, boxes: Boxes | None = None) -> Points:
        """Draw n independent points, shape (n, n_variables); see `Draws`.

        Cost: two eliminations for each box that is drawn from.
        """
        if boxes is None:
            return self._drawn(n, rng, {})
        masses = self.log_mass(boxes)
        if not np.any(masses > -np.inf):
            raise SolverError("boxes to draw from have probability zero; expected boxes of positive mass")
        weights = np.exp(masses - masses.max())
        counts = rng.multinomial(n, weights / weights.sum())
        drawn = [self._drawn(int(k), rng, self._masks(boxes.mask[b])[0]) for b, k in enumerate(counts) if k]
        points = np.concatenate(drawn) if drawn else np.zeros((0, len(self.domain)), self.domain.point_dtype)
        return points[rng.permutation(n)]

    def _drawn(self, n: int, rng: np.random.Generator, masks: Masks) -> Points:
        found = StreamedSum(self._everything, self._plan, self.control, masks, self.workers).draw(n, rng)
        column = {v: i for i, v in enumerate(self._plan.order)}
        inner = np.zeros((n, len(self.domain)), np.int64)
        for i, v in enumerate(self.states.variables):
            if v in column:
                inner[:, i] = found[:, column[v]]
        return self.states.to_domain(inner)
