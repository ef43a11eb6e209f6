"""Networks with a feasible sum over all variables, for queries of any width: masses and draws."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np

from certimap.core.arrays import Flags, Floats, Ints
from certimap.core.box import Answers, Boxes, Points, SearchBoxes, rounded_up
from certimap.core.cached import cached_property
from certimap.core.control import Control, WorkClock
from certimap.core.logs import log_of
from certimap.core.posterior import Facts
from certimap.core.query import Query
from certimap.core.rounding import SAFE_LOG2
from certimap.errors import ImpossibleEvidence, SolverError
from certimap.kernels.parallel import default_workers
from certimap.networks.conditional import relative_to
from certimap.networks.elimination_plan import (
    SMALL_PRODUCT,
    Buckets,
    EliminationPlan,
    eliminated,
    plan,
    stretches,
    summed,
)
from certimap.networks.posterior import NetworkPosterior, NetworkProber
from certimap.networks.problem import Prepared, Problem, Table, restrict
from certimap.networks.sum_elimination import sum_all

PASSES = 5  # over all tables, that weighing a box and its columns takes
Masks = dict[int, Flags]


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

    def _log_mass(self, mask: Flags) -> float:
        masks, is_open, _ = self._masks(mask)
        if not is_open or not all(m.any() for m in masks.values()):
            return -math.inf
        part = restrict(self._everything, {v: np.flatnonzero(m) for v, m in masks.items()})
        try:
            total = sum_all(part, plan(part, self._plan), self.control, self.workers)
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

    def _masks(self, mask: Flags) -> tuple[Masks, bool, list[int]]:
        """Return a box's masks of open variables, whether all others keep a state, and the ones without."""
        masks, closed = Masks(), list[int]()
        for v, own in zip(self.states.variables, self.states.columns, strict=True):
            inside = mask[own]
            if v not in self.problem.sizes:
                closed += [] if inside.any() else [v]
            elif not inside.all():
                masks[v] = inside
        return masks, not closed, closed

    def sample(self, n: int, rng: np.random.Generator, boxes: Boxes | None = None) -> Points:
        """Draw n independent points, shape (n, n_variables), at two eliminations for each box drawn from."""
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
        place = {v: i for i, v in enumerate(self.states.variables)}
        inner = np.zeros((n, len(self.domain)), np.int64)
        for k, v in enumerate(self._plan.order):
            if v in place:
                inner[:, place[v]] = found[:, k]
        return self.states.to_domain(inner)


T = TypeVar("T")
SECONDS_PER_ENTRY = 6e-9  # of a product, and one way
LOWEST = -1e308  # subtracted from logs instead of -inf
ENTRIES_PER_BUCKET = 10_000  # fixed cost of a bucket
DOING = "summing a network"


class _Unsafe(Exception):
    """A product would leave the range of doubles."""


class _Part(NamedTuple):
    """A nonnegative function: numbers, or their logs, times e^scale, and log2 of its least positive number."""

    scope: tuple[int, ...]
    values: Floats
    scale: float = 0.0
    log2_least: float = 0.0


class StreamedSum:
    """The sum of a problem over all variables, also with each variable fixed at each state, and draws.

    `problem`: of floats. All variables are summed, queried or not, in the order of `plan`.
    `control`: its memory limit decides how much is computed twice; TimeUp is raised when a pass would end late.
    `masks`: the allowed states of restricted variables.
    `workers`: threads, None for every core; the answer does not depend on it.

    Raises TooLarge when even a single stretch of messages does not fit. In the linear domain, where no product can
    leave the range of doubles; else in logs, at some four times the cost. Zeros stay zeros, and all else keeps its
    relative precision.
    """

    def __init__(
        self, problem: Problem, plan: EliminationPlan, control: Control | None = None,
        masks: Mapping[int, Flags] | None = None, workers: int | None = None,
    ) -> None:  # fmt: skip
        control = control or Control()
        self._problem, self._plan, self._masks, self._control = problem, plan, masks or {}, control
        self._buckets, self._borders = Buckets(problem, plan), stretches(problem, plan, control)
        self._pace = WorkClock(control, DOING, SECONDS_PER_ENTRY)
        self._in_logs, self._workers = False, workers or default_workers()
        self._roots: dict[int, float] = {}

    def log_each(self) -> tuple[float, dict[int, Floats]]:
        """Return natural logs of the sum, and of the sum with each variable fixed at each of its states.

        A fixed variable's own mask is ignored. Cost: two passes up, and one down of some three times the work.
        """
        return self._in_range(self._log_each)

    def draw(self, n: int, rng: np.random.Generator) -> Ints:
        """Draw n independent assignments in proportion to the product, shape (n, variables) by `plan.order`.

        Cost: two passes up, and a look into the tables for each variable and draw. The sum must not be 0.
        """
        uniforms = rng.random((len(self._plan.order), n))
        return self._in_range(lambda: self._draw(n, uniforms))

    def _in_range(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except _Unsafe:
            self._in_logs = True
            return work()

    def _log_each(self) -> tuple[float, dict[int, Floats]]:
        found: dict[int, Floats] = {}
        down: dict[int, _Part] = {}
        for i, parts in self._back():
            scope = self._buckets.scope(i)
            self._pace.ahead(3 * (ENTRIES_PER_BUCKET + self._n_entries(scope)))
            if len(scope) > 1:
                parts = [*parts, down.pop(i)]
            else:
                others = [s for j, s in self._roots.items() if j != i]
                parts = [*parts, _Part((), self._number(1.0), float(self._problem.constant) + sum(others))]
            part = self._summed(parts, scope, scope[:1])
            found[self._plan.order[i]] = (part.values if self._in_logs else log_of(part.values)) + part.scale
            masked = [*parts, *self._mask(i)]
            for k, piece in enumerate(self._buckets.inputs(i)):
                if piece >= self._buckets.n_tables:
                    child = piece - self._buckets.n_tables
                    rest = [*masked[:k], *masked[k + 1 :]]
                    down[child] = self._summed(rest, scope, self._plan.separators[child])
        return math.fsum([float(self._problem.constant), *self._roots.values()]), found

    def _draw(self, n: int, uniforms: Floats) -> Ints:
        place = {v: i for i, v in enumerate(self._plan.order)}
        states = np.zeros((n, len(place)), np.int64)
        for i, parts in self._back():
            v = self._plan.order[i]
            weights = np.full((n, self._problem.sizes[v]), 0.0 if self._in_logs else 1.0)
            own = np.arange(self._problem.sizes[v])
            for part in [*parts, *self._mask(i)]:
                entries = part.values[tuple(own if u == v else states[:, place[u], None] for u in part.scope)]
                weights = weights + entries if self._in_logs else weights * entries
            if self._in_logs:
                weights = np.exp(weights - weights.max(axis=1, keepdims=True))
            cumulated = np.cumsum(weights, axis=1)
            states[:, i] = np.argmax(cumulated > uniforms[i][:, None] * cumulated[:, -1:], axis=1)
        return states

    def _back(self) -> Iterator[tuple[int, list[_Part]]]:
        """Yield the buckets in reverse order, with the functions that each multiplies."""
        messages: dict[int, _Part] = {}
        kept: list[dict[int, _Part]] = []
        parts = list(itertools.pairwise(self._borders))
        for first, last in parts:
            kept.append(dict(messages))
            if last < self._borders[-1]:
                self._up(first, last, messages, drops=True)
        for first, last in reversed(parts):
            messages = kept.pop()
            self._up(first, last, messages, drops=False)
            for i in range(last - 1, first - 1, -1):
                messages.pop(i, None)
                yield i, self._inputs(i, messages)

    def _up(self, first: int, last: int, messages: dict[int, _Part], *, drops: bool) -> None:
        """Compute the messages of some buckets, and optionally drop used ones."""
        for i in range(first, last):
            scope = self._buckets.scope(i)
            self._pace.ahead(ENTRIES_PER_BUCKET + self._n_entries(scope))
            parts = [*self._inputs(i, messages), *self._mask(i)]
            message = self._summed(parts, scope, scope[1:])
            if len(scope) == 1:
                value = message.values if self._in_logs else log_of(message.values)
                self._roots[i] = message.scale + float(value)
            messages[i] = message
            if drops:
                for piece in self._buckets.inputs(i):
                    messages.pop(piece - self._buckets.n_tables, None)

    def _inputs(self, i: int, messages: Mapping[int, _Part]) -> list[_Part]:
        n = self._buckets.n_tables
        return [messages[k - n] if k >= n else self._table(k) for k in self._buckets.inputs(i)]

    def _table(self, piece: int) -> _Part:
        scope, values = self._problem.tables[piece]
        top = max(float(values.max()), LOWEST)
        if self._in_logs:
            return _Part(scope, values - top, top)
        least = float(values.min(where=values > -np.inf, initial=top)) - top
        return _Part(scope, np.exp(values - top), top, least / math.log(2.0) - 1.0)

    def _mask(self, i: int) -> list[_Part]:
        v = self._plan.order[i]
        return [_Part((v,), self._number(self._masks[v].astype(np.float64)))] if v in self._masks else []

    def _n_entries(self, scope: Sequence[int]) -> float:
        return math.prod(float(self._problem.sizes[v]) for v in scope)

    def _number(self, values: Floats | float) -> Floats:
        return log_of(np.asarray(values)) if self._in_logs else np.asarray(values)

    def _summed(self, parts: Sequence[_Part], scope: tuple[int, ...], onto: tuple[int, ...]) -> _Part:
        """Sum a product over the variables of a scope outside `onto`; its scale absorbs the largest number."""
        if not self._in_logs and sum(p.log2_least for p in parts) < SAFE_LOG2:
            raise _Unsafe
        sizes, scale = self._problem.sizes, math.fsum(p.scale for p in parts)
        dropped = [v for v in scope if v not in onto]
        is_large = parts and not self._in_logs and len(dropped) == 1 and self._n_entries(scope) > SMALL_PRODUCT
        if is_large and dropped[0] in max(parts, key=lambda p: p.values.size).scope:
            tables, check = [Table(p.scope, p.values) for p in parts], partial(self._control.check, DOING)
            found = eliminated(dropped[0], onto, tables, sizes, self._workers, check, factor=1.0)
            (onto, values), top, least = found.table, float(found.top), float(found.least)
        else:
            pairs = [(p.scope, p.values) for p in parts]
            values = summed(pairs, onto, dropped, sizes, self._workers, in_logs=self._in_logs)
            top, least = float(values.max()), math.inf
        if self._in_logs:
            return _Part(onto, values - top, scale + top) if top > -np.inf else _Part(onto, values, scale)
        if top <= 0.0:
            return _Part(onto, values, scale)
        if math.isinf(least):
            least = float(values.min(where=values > 0.0, initial=top))
        values /= top
        return _Part(onto, values, scale + math.log(top), math.log2(least / top))
