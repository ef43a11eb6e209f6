"""Exact maximisation of an integer problem by eliminating its variables one by one, with decoding and k best."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from certimap.axes import spread
from certimap.control import Control
from certimap.kernels.parallel import for_blocks
from certimap.networks.elimination import min_fill
from certimap.networks.kernels.max_elimination import MAX_TABLES, max_out
from certimap.networks.problem import FLOOR, HARD, Problem, Table, Values, product
from certimap.networks.simplify import impossible

SMALL_PRODUCT = 2**13  # entries of a product that numpy forms as a whole
SMALL_TABLE = 2**12  # tables are multiplied beforehand while the result has at most so many entries
LEAST_ROW, LARGEST_ROW = 16, 2048
ROWS_PER_TASK = 2**20  # entries of a product between two looks at the clock

Order = Sequence[tuple[int, tuple[int, ...]]]
_NO_TABLE = np.zeros(1, np.int64)


@dataclass(frozen=True)
class EliminationPlan:
    """An elimination order and what it takes.

    Attributes
    ----------
    order
        Variables, the first eliminated first.
    separators
        For each of them the variables that its message is over, in elimination order.
    n_entries
        Table entries over all products: the work.
    n_bytes
        The most memory held at once, best states included.
    n_bytes_kept
        The memory of all messages together, which decoding the k best needs.
    """

    order: tuple[int, ...]
    separators: tuple[tuple[int, ...], ...]
    n_entries: float
    n_bytes: float
    n_bytes_kept: float


def plan(problem: Problem, order: Order | None = None) -> EliminationPlan:
    """Return the cost of eliminating in an order of (variable, neighbours); None takes min-fill."""
    if order is None:
        order = min_fill([t.scope for t in problem.tables], problem.sizes)
    place = {v: i for i, (v, _) in enumerate(order)}
    separators = [tuple(sorted(near, key=place.__getitem__)) for _, near in order]
    entries, held, most, kept = 0.0, 0.0, 0.0, 0.0
    arriving = [0.0] * len(order)
    for i, (v, _) in enumerate(order):
        log2_message = sum(math.log2(problem.sizes[u]) for u in separators[i])
        message = 2.0 ** min(log2_message, 500.0)
        entries += message * problem.sizes[v]
        held += message * (8.0 + _best_type(problem.sizes[v])(0).itemsize)
        most = max(most, held)
        held -= arriving[i]
        kept += 8.0 * message
        if separators[i]:
            arriving[place[separators[i][0]]] += 8.0 * message
        else:
            held -= 8.0 * message
    return EliminationPlan(tuple(place), tuple(separators), entries, most, kept)


def most_added(problem: Problem, plan: EliminationPlan) -> int:
    """Return how many tables, messages included, meet in one bucket at most."""
    place = {v: i for i, v in enumerate(plan.order)}
    counts = [0] * len(plan.order)
    for first in (min(place[v] for v in t.scope) for t in problem.tables):
        counts[first] += 1
    for separator in plan.separators:
        if separator:
            counts[place[separator[0]]] += 1
    return max(counts, default=0)


def _best_type(n_states: int) -> type[np.uint8] | type[np.uint16] | type[np.int64]:
    return np.uint8 if n_states <= 256 else np.uint16 if n_states <= 65536 else np.int64


class MaxElimination:
    """The maximum of an integer problem and an assignment that attains it.

    Parameters
    ----------
    problem
        Integers (`to_integers`), without nuisance variables.
    workers
        Threads for large products; the result does not depend on it.
    control
        Looked at between blocks of a product; TimeUp is raised when work should stop.
    keep_tables
        Keep every table, for `ranked`.
    lowest
        For problems of `to_fine_integers`: the lowest finite entry of a message, whose largest is 0. None leaves
        messages as they are.

    Raises
    ------
    ImpossibleEvidence
        When every assignment has probability 0.
    TimeUp
        When `control` asks to stop.

    Notes
    -----
    Cost: `plan.n_entries` additions per table; products are never held, only their maxima. Sums and maxima of
    integers are exact, so that the maximum is too.
    """

    def __init__(
        self,
        problem: Problem,
        plan: EliminationPlan,
        *,
        workers: int = 1,
        control: Control | None = None,
        keep_tables: bool = False,
        lowest: int | None = None,
    ) -> None:
        assert problem.is_integral
        self.problem = problem
        self.plan = plan
        self._workers = workers
        self._control = control or Control()
        self._lowest = lowest
        self._best: list[Values] = []
        self._buckets: list[list[Table]] = []
        self.value = self._eliminate(keep_tables)

    def _eliminate(self, keep_tables: bool) -> int:
        place = {v: i for i, v in enumerate(self.plan.order)}
        waiting: list[list[Table]] = [[] for _ in self.plan.order]
        value = int(self.problem.constant)
        for scope, values in self.problem.tables:
            ordered = tuple(sorted(scope, key=place.__getitem__))
            aligned = np.ascontiguousarray(values if ordered == scope else spread(values, scope, ordered))
            waiting[place[ordered[0]]].append(Table(ordered, aligned))
        for i, (v, separator) in enumerate(zip(self.plan.order, self.plan.separators, strict=True)):
            tables, waiting[i] = waiting[i], []
            if keep_tables:
                self._buckets.append(tables)
            message, best = self._message(v, separator, tables)
            if not keep_tables:
                self._best.append(best)
            top = 0 if separator and self._lowest is None else int(message.max())
            if top <= FLOOR:
                raise impossible()
            value += top
            if separator:
                waiting[place[separator[0]]].append(Table(separator, self._lowered(message, top)))
        if self._lowest is None and value <= FLOOR:
            raise impossible()
        return value

    def _lowered(self, message: Values, top: int) -> Values:
        """Take the largest entry off a message, and raise finite ones to the lowest that is allowed."""
        if self._lowest is None:
            return message
        is_possible = message > FLOOR
        return np.where(is_possible, np.maximum(message - top, self._lowest), HARD)

    def _message(self, v: int, separator: tuple[int, ...], tables: list[Table]) -> tuple[Values, Values]:
        """Return the maximum over v of a product of tables, and the best states."""
        shape = self.problem.shape(separator)
        n_states = self.problem.sizes[v]
        if n_states * math.prod(shape) <= SMALL_PRODUCT or not tables:
            total = (
                product(tables, (v, *separator), (n_states, *shape)) if tables else np.zeros(n_states, np.int64)
            )
            return total.max(axis=0), total.argmax(axis=0).astype(_best_type(n_states))
        return self._streamed(v, separator, _merged(tables, self.problem, self.plan.order))

    def _streamed(self, v: int, separator: tuple[int, ...], tables: list[Table]) -> tuple[Values, Values]:
        sizes = self.problem.sizes
        n_inner = _row_variables(separator, tables, sizes)
        outer, inner = separator[: len(separator) - n_inner], separator[len(separator) - n_inner :]
        n_low = math.prod(sizes[u] for u in inner)
        n_blocks = math.prod(sizes[u] for u in outer)
        rows = np.zeros((len(tables), n_blocks), np.int64)
        strides = np.zeros(len(tables), np.int64)
        is_row = np.zeros(len(tables), np.bool_)
        flat: list[Values] = []
        for k, (scope, values) in enumerate(tables):
            is_row[k] = not set(inner).isdisjoint(scope)
            if is_row[k] and not set(inner).issubset(scope):
                scope, values = _expanded(scope, values, inner, sizes)
            step = dict(zip(scope, (s // values.itemsize for s in values.strides), strict=True))
            strides[k] = step.get(v, 0)
            starts = np.zeros(1, np.int64)
            for u in outer:
                starts = (starts[:, None] + step.get(u, 0) * np.arange(sizes[u])).ravel()
            rows[k] = starts
            flat.append(values.reshape(-1))
        flat += [_NO_TABLE] * (MAX_TABLES - len(flat))
        out = np.empty((n_blocks, n_low), np.int64)
        best = np.empty((n_blocks, n_low), _best_type(sizes[v]))
        t0, t1, t2, t3, t4, t5 = flat

        def task(start: int, stop: int) -> None:
            self._control.check("eliminating variables")
            max_out(
                start, stop, sizes[v], len(tables), t0, t1, t2, t3, t4, t5, rows, strides, is_row, out, best
            )  # fmt: skip

        for_blocks(task, n_blocks, max(1, ROWS_PER_TASK // (n_low * sizes[v])), self._workers)
        shape = self.problem.shape(separator)
        return out.reshape(shape), best.reshape(shape)

    def assignment(self) -> dict[int, int]:
        """Return a best assignment of the problem's variables."""
        states: dict[int, int] = {}
        if self._buckets:
            return next(self.ranked())[1]
        for v, separator, best in zip(
            reversed(self.plan.order), reversed(self.plan.separators), reversed(self._best), strict=True
        ):
            states[v] = int(best[tuple(states[u] for u in separator)])
        return states

    def ranked(self) -> Iterator[tuple[int, dict[int, int]]]:
        """Yield values and assignments, the best first, every possible one once; needs `keep_tables`.

        The tables tell exactly how much the best completion of a partial assignment loses by a state, so a
        best-first search expands nothing that it does not yield. Cost of each: the variables times their states.
        """
        n = len(self.plan.order)
        heap: list[tuple[int, int, int, _Link]] = [(0, 0, 0, None)]
        count = 0
        while heap:
            loss, _, depth, link = heapq.heappop(heap)
            states = _unlinked(link)
            while depth < n:
                i = n - 1 - depth
                v = self.plan.order[i]
                scores = self._scores(i, states)
                top = int(scores.argmax())
                for s in range(len(scores)):
                    if s != top and scores[s] > FLOOR:
                        count += 1
                        further = loss + int(scores[top] - scores[s])
                        heapq.heappush(heap, (further, count, depth + 1, (v, s, link)))
                link = (v, top, link)
                states[v] = top
                depth += 1
            yield self.value - loss, states

    def _scores(self, i: int, states: Mapping[int, int]) -> Values:
        """Return the best total of everything eliminated up to variable number i, for each of its states."""
        v = self.plan.order[i]
        total = np.zeros(self.problem.sizes[v], np.int64)
        for scope, values in self._buckets[i]:
            total += values[tuple(slice(None) if u == v else states[u] for u in scope)]
            np.maximum(total, HARD, out=total)
        return total


_Link = tuple[int, int, "_Link"] | None


def _unlinked(link: _Link) -> dict[int, int]:
    states: dict[int, int] = {}
    while link is not None:
        v, s, link = link
        states[v] = s
    return states


def _expanded(
    scope: tuple[int, ...], values: Values, inner: Sequence[int], sizes: Mapping[int, int]
) -> tuple[tuple[int, ...], Values]:
    """Repeat a table along the inner variables that it lacks."""
    full = (*(u for u in scope if u not in inner), *inner)
    shape = [sizes[u] for u in full]
    return full, np.ascontiguousarray(np.broadcast_to(spread(values, scope, full), shape))


def _row_variables(separator: Sequence[int], tables: Sequence[Table], sizes: Mapping[int, int]) -> int:
    """Return how many of the last variables make up a row: rows neither tiny nor in need of much repetition."""
    n_entries = math.prod(sizes[u] for u in separator)
    best, chosen, n_low = math.inf, 1, 1
    inner: set[int] = set()
    for n_inner, u in enumerate(reversed(separator), start=1):
        inner.add(u)
        n_low *= sizes[u]
        if n_inner > 1 and n_low > LARGEST_ROW:
            break
        cost = n_entries * LEAST_ROW / n_low
        for scope, values in tables:
            if not inner.isdisjoint(scope):
                cost += values.size * math.prod(sizes[w] for w in inner if w not in scope)
        if cost <= best:
            best, chosen = cost, n_inner
    return chosen


def _merged(tables: list[Table], problem: Problem, order: Sequence[int]) -> list[Table]:
    """Multiply small tables until at most `MAX_TABLES` are left."""
    place = {v: i for i, v in enumerate(order)}
    groups = sorted(tables, key=lambda t: (t.log_values.size, t.scope))

    def union(a: Table, b: Table) -> tuple[int, ...]:
        return tuple(sorted({*a.scope, *b.scope}, key=place.__getitem__))

    def joined(scope: tuple[int, ...], *parts: Table) -> Table:
        return Table(scope, product(parts, scope, problem.shape(scope)))

    out: list[Table] = []
    for table in groups:
        for k, other in enumerate(out):
            scope = union(other, table)
            if math.prod(problem.shape(scope)) <= max(SMALL_TABLE, table.log_values.size, other.log_values.size):
                out[k] = joined(scope, other, table)
                break
        else:
            out.append(table)
    size: Callable[[tuple[int, ...]], int] = lambda scope: math.prod(problem.shape(scope))  # noqa: E731
    while len(out) > MAX_TABLES:
        pairs = [(size(union(a, b)), i, j) for i, a in enumerate(out) for j, b in enumerate(out[:i])]
        _, i, j = min(pairs)
        a, b = out.pop(i), out.pop(j)
        out.append(joined(union(a, b), a, b))
    return out
