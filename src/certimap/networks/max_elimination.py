"""Maximisation of integer problems by variable elimination: exact, the k best, and as moves of local search."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from certimap.core.arrays import Array, Ints
from certimap.core.control import Control
from certimap.networks.elimination_plan import (
    Buckets,
    EliminationPlan,
    Pieces,
    bits_of_state,
    cheap_plan,
    eliminated,
)
from certimap.networks.kernels.buckets import decode_buckets, lower, max_buckets
from certimap.networks.problem import FLOOR, HARD, FineIntegers, Problem, Table, restrict, value_at
from certimap.networks.reduction import touching
from certimap.networks.simplify import impossible


class MaxElimination:
    """The maximum of an integer problem and an assignment that attains it.

    `problem`: without nuisance variables; of integers (`to_integers`), or, with `fine`, of floats.
    `workers`: threads for large products; the result does not depend on it.
    `control`: checked between blocks of a product. `keep_tables`: keep every table, for `ranked`.
    `fine`: the problem in its own unit (`to_fine_integers`); the largest entry of each message is then subtracted.

    Raises ImpossibleEvidence when every assignment has probability 0, and TimeUp when `control` asks to stop.
    Cost: `plan.n_entries` additions per table. Sums and maxima of integers are exact, so that the maximum is too.
    """

    def __init__(
        self, problem: Problem, plan: EliminationPlan, *, workers: int = 1, control: Control | None = None,
        keep_tables: bool = False, fine: FineIntegers | None = None,
    ) -> None:  # fmt: skip
        assert problem.is_integral or fine is not None
        self.problem, self.plan, self._fine = problem, plan, fine
        self._workers, self._control = workers, control or Control()
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
        sizes, check = self.problem.sizes, partial(self._control.check, "eliminating variables")
        for run in buckets.runs():
            check()
            if run.is_small:
                is_possible = max_buckets(
                    run.first, run.last, buckets.arrays, scratch, lowers, lowest, acc, pieces.buffer, best, tops
                )
                if not is_possible:
                    raise impossible()
                continue
            i = run.first
            v, separator = self.plan.order[i], self.plan.separators[i]
            inputs = pieces.inputs(i) or [Table((v,), np.zeros(sizes[v], np.int64))]
            found = eliminated(v, separator, inputs, sizes, self._workers, check, overwrites=not keep_tables)
            self._best[i] = PackedStates(found.best, sizes[v], found.table.scope)
            if lowers or not separator:
                tops[i] = found.top
                if found.top <= FLOOR:
                    raise impossible()
            if lowers:
                lower(found.table.log_values.reshape(-1), int(found.top), lowest)
            pieces.put(i, found.table)
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

    def assignment(self) -> dict[int, int]:
        """Return a best assignment of the problem's variables."""
        if self._kept:
            return next(self.ranked())[1]
        states = np.zeros(len(self.plan.order), np.int64)
        arrays, place = self._buckets.arrays, self.plan.cliques.place
        for run in reversed(list(self._buckets.runs())):
            if run.is_small:
                decode_buckets(run.first, run.last, arrays, self._small_best, states)
            else:
                found = self._best[run.first]
                states[run.first] = found.at(states[place[list(found.scope)]])
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
            states, above = dict[int, int](), link
            while above is not None:
                v, s, above = above
                states[v] = s
            for at in range(depth, n):
                i = n - 1 - at
                v = self.plan.order[i]
                scores = np.zeros(self.problem.sizes[v], np.int64)  # the best total of all eliminated up to v
                for scope, values in self._kept[i]:
                    scores += values[tuple(slice(None) if u == v else states[u] for u in scope)]
                    np.maximum(scores, HARD, out=scores)
                top = int(scores.argmax())
                for s in range(len(scores)):
                    if s != top and scores[s] > FLOOR:
                        count += 1
                        further = loss + int(scores[top] - scores[s])
                        heapq.heappush(heap, (further, count, at + 1, (v, s, link)))
                link = (v, top, link)
                states[v] = top
            yield self.value - loss, states


class PackedStates:
    """States of one variable, one for each entry of a table, in as few bits as they need: 1, 2, 4, 8 or more."""

    def __init__(self, states: Array, n_states: int, scope: tuple[int, ...]) -> None:
        self.scope = scope
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


LEAST_BITS, MOST_BITS = 16.0, 22.0  # log base 2 of the table entries that a move may form
MOVE_WORK = 200_000  # visits of a search that take as long as a move's order and plan
FAILURES = 3.0  # times that moves may cover all variables without gain before they grow
GROWTH = 1.2  # of the number of variables in a move, while orders stay cheap


class Neighbourhoods:
    """Betters an assignment of an integer problem by moves of many variables at once.

    `problem`: without nuisance variables. `seed`: of the variables from which moves spread, breadth first. `work`:
    the cost so far, in table entries. `is_finished`: whether the largest moves gain nothing either.
    """

    def __init__(self, problem: Problem, seed: int, control: Control) -> None:
        self._problem, self._control, self._rng = problem, control, np.random.default_rng(seed % 2**32)
        self._names = list(problem.sizes)
        self._tables = touching(t.scope for t in problem.tables)
        self._size, self._bits, self._n_failed = 0.25 * len(self._names), LEAST_BITS, 0.0
        self.work = 0.0
        self.is_finished = len(self._names) < 2

    def better(self, states: Mapping[int, int], until: float) -> dict[int, int]:
        """Move until `work` has reached `until`, or nothing gains, from possible states; return better ones."""
        found = dict(states)
        while self.work < until and not self.is_finished and not self._control.should_stop:
            gained = self._move(found)
            self._n_failed = 0.0 if gained else self._n_failed + self._size / len(self._names)
            if self._n_failed > FAILURES:
                self._bits, self._n_failed = self._bits + 3.0, 0.0
                self.is_finished = self._bits > MOST_BITS
        return found

    def _move(self, states: dict[int, int]) -> bool:
        """Change states in place; return whether that gains."""
        problem = self._problem
        free = connected(problem, self._tables, self._names, max(2, int(self._size)), self._rng)
        tables = tuple(problem.tables[k] for k in sorted({k for v in free for k in self._tables[v]}))
        names = sorted(free.union(*(t.scope for t in tables)))
        sizes = {v: problem.sizes[v] for v in names}
        around = Problem(sizes, frozenset(names), tables, 0, 0.0, problem.unit)
        inside = restrict(around, {v: np.array([states[v]]) for v in names if v not in free})
        plan = cheap_plan(inside, 2.0**self._bits)
        self.work += MOVE_WORK
        if plan is None:
            self._size /= GROWTH
            self.is_finished = self._size < 2.0
            return False
        self.work += plan.n_entries
        if len(free) < len(self._names):
            self._size *= GROWTH ** (1.0 if plan.n_entries < 2.0 ** (self._bits - 2.0) else 0.0)
        found = MaxElimination(inside, plan)
        before = int(value_at(around, np.array([[states[v] for v in names]]), names)[0])
        states.update(found.assignment())
        return found.value > before


def connected(
    problem: Problem, tables: Mapping[int, list[int]], among: Sequence[int], size: int, rng: np.random.Generator
) -> set[int]:
    """Return at most `size` queried variables around a random one of `among`, breadth first over the tables."""
    start = among[int(rng.integers(len(among)))]
    order, seen, found = [start], {start}, {start}
    for v in order:
        near = sorted({u for k in tables[v] for u in problem.tables[k].scope} - seen)
        rng.shuffle(near)
        order += near
        seen.update(near)
        found |= {u for u in near[: size - len(found)] if u in problem.query}
        if len(found) >= size:
            break
    return found
