"""Exact maximisation of an integer problem by variable elimination, with decoding and the k best."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from certimap.core.arrays import Ints
from certimap.core.axes import spread
from certimap.core.control import Control
from certimap.kernels.parallel import for_blocks
from certimap.networks.elimination_plan import Buckets, EliminationPlan, Pieces, best_type, bits_of_state
from certimap.networks.kernels.buckets import MAX_TABLES, decode_buckets, max_buckets, max_out
from certimap.networks.problem import FLOOR, HARD, FineIntegers, Problem, Table, Values, product
from certimap.networks.simplify import impossible

SMALL_TABLE = 2**12  # largest product, in entries, for multiplying tables beforehand
LEAST_ROW, LARGEST_ROW = 16, 2048
ROWS_PER_TASK = 2**20  # entries of a product between two checks of the clock

_NO_TABLE = np.zeros(1, np.int64)


class MaxElimination:
    """The maximum of an integer problem and an assignment that attains it.

    `problem`: without nuisance variables; of integers (`to_integers`), or, with `fine`, of floats.
    `workers`: threads for large products; the result does not depend on it.
    `control`: checked between blocks of a product; TimeUp is raised when work should stop.
    `keep_tables`: keep every table, for `ranked`.
    `fine`: the problem in its own unit (`to_fine_integers`); the largest entry of each message is then subtracted.

    Raises ImpossibleEvidence when every assignment has probability 0. Raises TimeUp when `control` asks to stop.
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
        fine: FineIntegers | None = None,
    ) -> None:
        assert problem.is_integral or fine is not None
        self.problem = problem
        self.plan = plan
        self._workers = workers
        self._control = control or Control()
        self._fine = fine
        self._best: dict[int, PackedStates] = {}
        self._kept: list[list[Table]] = []
        self.value = self._eliminate(keep_tables)

    def _eliminate(self, keep_tables: bool) -> int:
        buckets = Buckets(self.problem, self.plan)
        tables = self.problem.joined.values.astype(np.int64) if self._fine is None else self._fine.values
        pieces, scratch = Pieces(buckets, tables), buckets.scratch()
        acc, tops = np.empty(buckets.largest, np.int64), np.zeros(len(self.plan.order), np.int64)
        best = np.empty(buckets.n_buffered, np.uint16)
        lowers, lowest = self._fine is not None, 0 if self._fine is None else self._fine.lowest
        for run in buckets.runs():
            self._control.check("eliminating variables")
            if run.is_small:
                is_possible = max_buckets(
                    run.first, run.last, buckets.arrays, scratch, lowers, lowest, acc, pieces.buffer, best, tops
                )
                if not is_possible:
                    raise impossible()
                continue
            i = run.first
            message, best_states = self._streamed(i, pieces.inputs(i))
            self._best[i] = PackedStates(best_states, self.problem.sizes[self.plan.order[i]])
            if lowers or not self.plan.separators[i]:
                tops[i] = top = int(message.max())
                if top <= FLOOR:
                    raise impossible()
            pieces.put(i, self._lowered(message, int(tops[i])))
            if not keep_tables:
                pieces.drop_inputs(i)
        constant = int(self.problem.constant) if self._fine is None else self._fine.constant
        value = constant + sum(tops.tolist())
        if not lowers and value <= FLOOR:
            raise impossible()
        if keep_tables:
            self._kept = [list(map(pieces.get, buckets.inputs(i))) for i in range(len(self.plan.order))]
        self._buckets, self._small_best = buckets, best
        return value

    def _lowered(self, message: Values, top: int) -> Values:
        """Subtract the largest entry from a message, and raise finite entries to the lowest allowed value."""
        if self._fine is None:
            return message
        is_possible = message > FLOOR
        return np.where(is_possible, np.maximum(message - top, self._fine.lowest), HARD)

    def _streamed(self, i: int, tables: list[Table]) -> tuple[Values, Values]:
        """Return the maximum over the variable of a large bucket of a product of tables, and the best states."""
        v, separator, sizes = self.plan.order[i], self.plan.separators[i], self.problem.sizes
        if not tables:
            return np.zeros((), np.int64), np.zeros((), np.int64)
        tables = _merged(tables, self.problem, self.plan.cliques.place)
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
        best = np.empty((n_blocks, n_low), best_type(sizes[v]))
        t0, t1, t2, t3, t4, t5 = flat

        def task(start: int, stop: int) -> None:
            self._control.check("eliminating variables")
            max_out(start, stop, sizes[v], (t0, t1, t2, t3, t4, t5), rows, strides, is_row, out, best)

        for_blocks(task, n_blocks, max(1, ROWS_PER_TASK // (n_low * sizes[v])), self._workers)
        shape = self.problem.shape(separator)
        return out.reshape(shape), best.reshape(shape)

    def assignment(self) -> dict[int, int]:
        """Return a best assignment of the problem's variables."""
        if self._kept:
            return next(self.ranked())[1]
        states = np.zeros(len(self.plan.order), np.int64)
        arrays, cliques = self._buckets.arrays, self.plan.cliques
        for run in reversed(list(self._buckets.runs())):
            if run.is_small:
                decode_buckets(run.first, run.last, arrays, self._small_best, states)
            else:
                i = run.first
                separator = cliques.members[cliques.pointers[i] + 1 : cliques.pointers[i + 1]]
                states[i] = self._best[i].at(states[separator])
        return dict(zip(self.plan.order, states.tolist(), strict=True))

    def ranked(self) -> Iterator[tuple[int, dict[int, int]]]:
        """Yield values and assignments, the best first, every possible one once; needs `keep_tables`.

        The tables give the exact loss of each state in the best completion, so that the best-first search expands
        only assignments that it yields. Cost per assignment: the variables times their states.
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
        for scope, values in self._kept[i]:
            total += values[tuple(slice(None) if u == v else states[u] for u in scope)]
            np.maximum(total, HARD, out=total)
        return total


class PackedStates:
    """States of one variable, one for each entry of a table, in as few bits as they need: 1, 2, 4, 8 or more."""

    def __init__(self, states: Values, n_states: int) -> None:
        self._shape, self._bits = states.shape, int(bits_of_state(n_states))
        flat = states.reshape(-1)
        if self._bits < 8:
            flat = np.concatenate([flat, np.zeros(-len(flat) % (8 // self._bits), np.uint8)])
            columns = flat.astype(np.uint8, copy=False).reshape(-1, 8 // self._bits)
            flat = columns[:, 0].copy()
            for k in range(1, columns.shape[1]):
                flat |= columns[:, k] << np.uint8(k * self._bits)
        self._packed = flat

    def at(self, place: Ints) -> int:
        """Return the state at one entry."""
        k = int(np.ravel_multi_index(tuple(place), self._shape)) if self._shape else 0
        if self._bits >= 8:
            return int(self._packed[k])
        k, shift = divmod(k, 8 // self._bits)
        return int(self._packed[k]) >> (shift * self._bits) & (1 << self._bits) - 1


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


def _merged(tables: list[Table], problem: Problem, place: Ints) -> list[Table]:
    """Multiply small tables until at most `MAX_TABLES` are left."""
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
