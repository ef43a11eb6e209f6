"""Sums with each variable fixed, and draws, from an elimination whose messages do not all fit into memory.

The messages towards the roots are computed once, and kept only at a few borders. On the way back they are
recomputed from border to border, so that memory holds the messages of one stretch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from certimap.core.control import Control, WorkClock
from certimap.core.rounding import SAFE_LOG2
from certimap.kernels.parallel import default_workers
from certimap.networks.block_sums import summed
from certimap.networks.elimination_plan import Buckets, EliminationPlan, stretches
from certimap.networks.problem import Problem

T = TypeVar("T")
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
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

    `problem`: of floats. All variables are summed, queried or not.
    `plan`: the order.
    `control`: its memory limit decides how much is computed twice; TimeUp is raised when a pass would end too
    late.
    `masks`: the allowed states of restricted variables.
    `workers`: threads, None for every core; the answer does not depend on it.

    Raises TooLarge when even a single stretch of messages does not fit. In the linear domain, where no product can
    leave the range of doubles; else in logs, at some four times the cost. Zeros stay zeros, and all else keeps its
    relative precision.
    """

    def __init__(
        self,
        problem: Problem,
        plan: EliminationPlan,
        control: Control | None = None,
        masks: Mapping[int, NDArray[np.bool_]] | None = None,
        workers: int | None = None,
    ) -> None:
        control = control or Control()
        self._problem, self._plan, self._masks = problem, plan, masks or {}
        self._buckets, self._borders = Buckets(problem, plan), stretches(problem, plan, control)
        self._pace = WorkClock(control, DOING, SECONDS_PER_ENTRY)
        self._in_logs, self._workers = False, workers or default_workers()
        self._roots: dict[int, float] = {}

    def log_each(self) -> tuple[float, dict[int, Floats]]:
        """Return natural logs of the sum, and of the sum with each variable fixed at each of its states.

        A fixed variable's own mask is ignored. Cost: two passes up, and one down, which multiplies some three
        times as much.
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
            found[self._plan.order[i]] = self._held(parts, scope)
            masked = [*parts, *self._mask(i)]
            for k, piece in enumerate(self._buckets.inputs(i)):
                if piece >= self._buckets.n_tables:
                    child = piece - self._buckets.n_tables
                    rest = [*masked[:k], *masked[k + 1 :]]
                    down[child] = self._settled(self._summed(rest, scope, self._plan.separators[child]))
        return math.fsum([float(self._problem.constant), *self._roots.values()]), found

    def _held(self, parts: Sequence[_Part], scope: tuple[int, ...]) -> Floats:
        """Return the logs of a bucket's product summed over all but its variable."""
        part = self._summed(parts, scope, scope[:1])
        logs = part.values if self._in_logs else _log(part.values)
        return logs + part.scale

    def _draw(self, n: int, uniforms: Floats) -> Ints:
        place = {v: i for i, v in enumerate(self._plan.order)}
        states = np.zeros((n, len(place)), np.int64)
        for i, parts in self._back():
            v = self._plan.order[i]
            weights = np.full((n, self._problem.sizes[v]), 0.0 if self._in_logs else 1.0)
            for part in [*parts, *self._mask(i)]:
                index = tuple(
                    np.arange(self._problem.sizes[v]) if u == v else states[:, place[u], None] for u in part.scope
                )
                entries = part.values[index]
                weights = weights + entries if self._in_logs else weights * entries
            if self._in_logs:
                weights = np.exp(weights - weights.max(axis=1, keepdims=True))
            cumulated = np.cumsum(weights, axis=1)
            above = cumulated > uniforms[i][:, None] * cumulated[:, -1:]
            states[:, i] = np.argmax(above, axis=1)
        return states

    # --- up ----------------------------------------------------------------------------------------------

    def _back(self) -> Iterator[tuple[int, list[_Part]]]:
        """Yield the buckets in reverse order, with the functions that each multiplies."""
        messages: dict[int, _Part] = {}
        kept: list[dict[int, _Part]] = []
        for first, last in itertools.pairwise(self._borders):
            kept.append(dict(messages))
            if last < self._borders[-1] or len(self._borders) == 2:
                self._up(first, last, messages, drops=len(self._borders) > 2)
        if len(self._borders) == 2:
            yield from self._stretch(0, self._borders[1], messages)
            return
        for first, last in reversed(list(itertools.pairwise(self._borders))):
            messages = kept.pop()
            self._up(first, last, messages, drops=False)
            yield from self._stretch(first, last, messages)

    def _stretch(self, first: int, last: int, messages: dict[int, _Part]) -> Iterator[tuple[int, list[_Part]]]:
        for i in range(last - 1, first - 1, -1):
            messages.pop(i, None)
            yield i, self._inputs(i, messages)

    def _up(self, first: int, last: int, messages: dict[int, _Part], *, drops: bool) -> None:
        """Compute the messages of some buckets, and optionally drop used ones."""
        for i in range(first, last):
            scope = self._buckets.scope(i)
            self._pace.ahead(ENTRIES_PER_BUCKET + self._n_entries(scope))
            parts = [*self._inputs(i, messages), *self._mask(i)]
            message = self._settled(self._summed(parts, scope, scope[1:]))
            if len(scope) == 1:
                value = message.values if self._in_logs else _log(message.values)
                self._roots[i] = message.scale + float(value)
            messages[i] = message
            if drops:
                for piece in self._buckets.inputs(i):
                    messages.pop(piece - self._buckets.n_tables, None)

    def _inputs(self, i: int, messages: Mapping[int, _Part]) -> list[_Part]:
        n, found = self._buckets.n_tables, list[_Part]()
        for piece in self._buckets.inputs(i):
            found.append(messages[piece - n] if piece >= n else self._table(piece))
        return found

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

    # --- arithmetic --------------------------------------------------------------------------------------

    def _number(self, values: Floats | float) -> Floats:
        return _log(np.asarray(values)) if self._in_logs else np.asarray(values)

    def _summed(self, parts: Sequence[_Part], scope: tuple[int, ...], onto: tuple[int, ...]) -> _Part:
        """Return a product summed over the variables of a scope that are not in `onto`, small parts first."""
        if not self._in_logs and sum(p.log2_least for p in parts) < SAFE_LOG2:
            raise _Unsafe
        dropped = [v for v in scope if v not in onto]
        pairs = [(p.scope, p.values) for p in parts]
        values = summed(pairs, onto, dropped, self._problem.sizes, self._workers, in_logs=self._in_logs)
        return _Part(onto, values, math.fsum(p.scale for p in parts))

    def _settled(self, part: _Part) -> _Part:
        """Divide a function, in place, by its largest number; its scale absorbs the factor."""
        values = part.values
        top = float(values.max())
        if self._in_logs:
            return part._replace(values=values - top, scale=part.scale + top) if top > -np.inf else part
        if top <= 0.0:
            return part
        values /= top
        least = float(values.min(where=values > 0.0, initial=1.0))
        return part._replace(scale=part.scale + math.log(top), log2_least=math.log2(least))


def _log(values: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.log(values)
