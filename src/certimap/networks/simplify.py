"""Exact reductions of a problem: fewer variables, states and tables, the same maximum."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from certimap.core.arrays import Array, Ints, spread
from certimap.core.control import Control
from certimap.core.logs import add_to, log_sum
from certimap.errors import ImpossibleEvidence
from certimap.networks.problem import (
    FLOOR,
    HARD,
    ROUNDING,
    Problem,
    Table,
    added,
    is_hard,
    largest,
    product,
    restrict,
)
from certimap.networks.reduction import Bearing, consistent

MANY_TABLES = 3000  # fewer are searched quickly as they are
SMALL_TABLE = 64  # a new table up to this size may be larger than the tables that it replaces
SMALL_SCOPE = 4
DOING = "reducing a network exactly"


class Chosen(NamedTuple):
    """A variable and its best, or only, state given the states of its scope."""

    variable: int
    scope: tuple[int, ...]
    states: Ints


class KeptStates(NamedTuple):
    """A variable that lost states: state i of the smaller problem was `states[i]`; a single one fixes it."""

    variable: int
    states: Ints


@dataclass(frozen=True)
class Simplified:
    """A smaller problem with the same maximum, and the steps that lead back."""

    problem: Problem
    steps: tuple[Chosen | KeptStates, ...] = ()

    def decode(self, assignment: Mapping[int, int]) -> dict[int, int]:
        """Convert an assignment of the smaller problem to one of the original problem's query."""
        states = dict(assignment)
        for step in reversed(self.steps):
            if isinstance(step, Chosen):
                states[step.variable] = int(step.states[tuple(states[v] for v in step.scope)])
            else:
                states[step.variable] = int(step.states[states.get(step.variable, 0)])
        return states

    def encode(self, assignment: Mapping[int, int]) -> dict[int, int] | None:
        """Return the states of an assignment in the smaller problem; None where one was dropped."""
        states = dict(assignment)
        for step in self.steps:
            state = states.pop(step.variable)
            if isinstance(step, KeptStates):
                at = np.flatnonzero(step.states == state)
                if not len(at):
                    return None
                if len(step.states) > 1:
                    states[step.variable] = int(at[0])
        return states


def simplify(problem: Problem, *, keep_all: bool = False, control: Control | None = None) -> Simplified:
    """Apply every exact reduction until none applies.

    Impossible states go; nuisance variables are summed out, and query variables without nuisance in their tables
    maximised away, where that doesn't grow the tables; a variable that is a function of others is replaced by
    it; tables are absorbed into larger ones and their maxima moved to the constant.

    `keep_all`: skip reductions that preserve only one best assignment; needed for the k best. Raises TimeUp when
    `control` says so, and ImpossibleEvidence when every assignment turns out to have probability 0.
    """
    problem, steps = drop_impossible(problem, control)
    work = _Work(problem, control)
    work.reduce(keep_all=keep_all)
    steps.extend(work.steps)
    return Simplified(work.result(), tuple(steps))


def drop_impossible(problem: Problem, control: Control | None = None) -> tuple[Problem, list[Chosen | KeptStates]]:
    """Drop states that some table makes impossible, until nothing changes (generalised arc consistency)."""
    control = control or Control()
    states = {v: np.arange(n) for v, n in problem.sizes.items()}
    zero = FLOOR if problem.is_integral else -np.inf
    bearing = [Bearing(*t, zero) for t in problem.tables if bool(is_hard(t.log_values).any())]
    if not consistent(bearing, states, lambda: control.check(DOING)):
        raise impossible()
    keep = {v: s for v, s in states.items() if len(s) < problem.sizes[v] or len(s) == 1}
    return restrict(problem, keep), [KeptStates(v, s) for v, s in keep.items()]


def impossible() -> ImpossibleEvidence:
    """Return the error for a problem in which everything has probability 0."""
    return ImpossibleEvidence(
        "every assignment of the query has probability zero given the evidence; evidence that some joint state "
        "allows is expected"
    )


def sum_out(problem: Problem, max_entries: int, control: Control | None = None) -> Problem:
    """Sum nuisance variables out, smallest tables first, while the product has at most `max_entries` entries.

    Tables inside another table's scope are multiplied into it: dual ascent of what is left then closes some large
    problems several times as fast. Small problems without nuisance variables are returned unchanged. Cost: the
    number of entries of the products times the number of tables in them. Raises TimeUp when `control` says so.
    """
    if not problem.nuisance and len(problem.tables) < MANY_TABLES:
        return problem
    work = _Work(problem, control)
    waiting = [(work.bucket_size(v), v) for v in sorted(work.sizes) if v not in work.query]
    heapq.heapify(waiting)
    while waiting:
        size, v = heapq.heappop(waiting)
        if v not in work.sizes:
            continue
        now = work.bucket_size(v)
        if now > max_entries:
            continue
        if now > size:
            heapq.heappush(waiting, (now, v))
            continue
        for u in work.eliminate(v):
            if u not in work.query:
                heapq.heappush(waiting, (work.bucket_size(u), u))
    work.absorb()
    return work.result()


class _Work:
    """A problem while it is being reduced: its tables by number, and the tables of each open variable."""

    def __init__(self, problem: Problem, control: Control | None = None) -> None:
        self.problem, self.control = problem, control or Control()
        self.sizes, self.query, self.slack = dict(problem.sizes), problem.query, problem.log_slack
        self.constants: list[float | int | Array] = [problem.constant]
        self.integral = problem.is_integral
        self.steps: list[Chosen | KeptStates] = []
        self.tables: dict[int, Table] = {}
        self.touching: dict[int, set[int]] = {v: set() for v in self.sizes}
        self._next = 0
        for table in problem.tables:
            self.add(table)

    def add(self, table: Table) -> None:
        if not table.scope:
            self.constants.append(table.log_values)
            return
        self.tables[self._next] = table
        for v in table.scope:
            self.touching[v].add(self._next)
        self._next += 1

    def pop(self, number: int) -> Table:
        table = self.tables.pop(number)
        for v in table.scope:
            self.touching[v].discard(number)
        return table

    def result(self) -> Problem:
        tables = tuple(self.tables[k] for k in sorted(self.tables))
        constant = added(self.constants)
        slack = self.slack if self.integral else self.slack + 2.0 * ROUNDING * abs(constant)
        query = self.query & frozenset(self.sizes)
        return replace(
            self.problem, sizes=self.sizes, query=query, tables=tables, constant=constant, log_slack=slack
        )

    def bucket(self, v: int) -> tuple[int, ...]:
        """Return all variables that share a table with v, and v."""
        return tuple(sorted({v, *(u for k in self.touching[v] for u in self.tables[k].scope)}))

    def bucket_size(self, v: int) -> int:
        return math.prod(self.sizes[u] for u in self.bucket(v))

    def reduce(self, *, keep_all: bool) -> None:
        """Eliminate variables while this does not grow the tables; then absorb tables."""
        for _ in range(len(self.sizes) + 1):
            n_before = len(self.sizes)
            self.eliminate_cheap(keep_all=keep_all)
            self.absorb()
            if keep_all or not self.substitute_functions() or len(self.sizes) == n_before:
                break
        if not keep_all:
            self.free_variables()

    def eliminate_cheap(self, *, keep_all: bool) -> None:
        waiting = [(0, v) for v in sorted(self.sizes)]
        heapq.heapify(waiting)
        while waiting:
            _, v = heapq.heappop(waiting)
            if v not in self.sizes or not self.touching[v] or not self.is_cheap(v, keep_all=keep_all):
                continue
            for u in self.eliminate(v):
                heapq.heappush(waiting, (len(self.touching[u]), u))

    def is_cheap(self, v: int, *, keep_all: bool) -> bool:
        bucket = self.bucket(v)
        if v in self.query and (keep_all or not self.query.issuperset(bucket)):
            return False
        if self.integral and v not in self.query:
            return False
        before = sum(self.tables[k].log_values.size for k in self.touching[v])
        after = math.prod(self.sizes[u] for u in bucket if u != v)
        return after <= before or (len(bucket) <= SMALL_SCOPE and after <= SMALL_TABLE)

    def eliminate(self, v: int) -> tuple[int, ...]:
        """Sum or maximise a variable out; return its neighbours."""
        self.control.check(DOING)
        bucket = self.bucket(v)
        tables = [self.pop(k) for k in sorted(self.touching[v])]
        total = product(tables, bucket, [self.sizes[u] for u in bucket])
        axis = bucket.index(v)
        rest = tuple(u for u in bucket if u != v)
        reach = sum(largest(t.log_values) for t in tables) if not self.integral else 0.0
        if v in self.query:
            self.steps.append(Chosen(v, rest, total.argmax(axis=axis)))
            message = total.max(axis=axis)
        else:
            message = log_sum(total, axis)
            self.slack += (self.sizes[v] + 4) * ROUNDING
        self.slack += 4.0 * ROUNDING * reach  # however many tables: see `product`
        del self.sizes[v], self.touching[v]
        self.add_normalised(Table(rest, np.asarray(message)))
        return rest

    def add_normalised(self, table: Table) -> None:
        """Add a table with its largest entry moved to the constant."""
        top = table.log_values.max()
        if is_hard(np.asarray(top)).any():
            raise impossible()
        if top != 0:
            values = table.log_values - top
            if self.integral:
                values = np.where(is_hard(table.log_values), HARD, values)
            else:
                self.slack += ROUNDING * largest(values)
            self.constants.append(np.asarray(top))
            table = Table(table.scope, values)
        self.add(table)

    def absorb(self) -> None:
        """Add every table to the smallest one whose scope holds its own; drop tables without effect."""
        lost: dict[int, Array] = {}  # what rounding has taken away from tables that others were added to
        for k in sorted(self.tables, key=lambda k: (len(self.tables[k].scope), k)):
            self.control.check(DOING)
            scope = self.tables[k].scope
            hosts = self.touching[scope[0]].intersection(*(self.touching[v] for v in scope[1:])) - {k}
            self.complete(k, lost)
            table = self.pop(k)
            if hosts:
                self.merge(min(hosts, key=lambda h: (self.tables[h].log_values.size, h)), table, lost)
            else:
                self.add_normalised(table)
        for k in list(lost):
            self.complete(k, lost)
        for k in [k for k, t in self.tables.items() if not t.log_values.any()]:
            self.pop(k)

    def merge(self, host: int, table: Table, lost: dict[int, Array]) -> None:
        scope, values = self.tables[host]
        terms = spread(table.log_values, table.scope, scope)
        if self.integral:
            total = np.maximum(values + terms, HARD)
        else:
            total = add_to(values, terms, lost.setdefault(host, np.zeros(values.shape)))
        self.tables[host] = Table(scope, total)

    def complete(self, number: int, lost: dict[int, Array]) -> None:
        """Add the lost rounding errors to a table, which is then off by only one rounding."""
        if number in lost:
            scope, values = self.tables[number]
            total = values + lost.pop(number)
            self.slack += 2.0 * ROUNDING * largest(total)
            self.tables[number] = Table(scope, total)

    def free_variables(self) -> None:
        """Fix query variables that no table mentions; count the states of nuisance ones."""
        for v in [v for v in self.sizes if not self.touching[v]]:
            if v in self.query:
                self.steps.append(Chosen(v, (), np.zeros((), np.int64)))
            else:
                self.constants.append(math.log(self.sizes[v]))
                self.slack += 2.0 * ROUNDING * math.log(self.sizes[v])
            del self.sizes[v], self.touching[v]

    def substitute_functions(self) -> bool:
        """Replace query variables that a table makes a function of others, where that doesn't grow the tables.

        Where a table allows one state of v for each state of its other variables, v's other tables become tables
        of these, each by itself: no product over all of them is needed. Returns whether anything changed.
        """
        changed = False
        for v in sorted(self.query & frozenset(self.sizes)):
            self.control.check(DOING)
            found = ((self.growth_by_function(v, k), k) for k in sorted(self.touching[v]))
            best = min(((growth, k) for growth, k in found if growth is not None), default=None)
            if best is not None:
                self.substitute(v, best[1])
                changed = True
        return changed

    def growth_by_function(self, v: int, k: int) -> int | None:
        """Return by how many entries, at most 0, tables grow when table k replaces v; None where it must not."""
        scope, values = self.tables[k]
        if len(scope) < 2:
            return None
        after, before = values.size // self.sizes[v], values.size
        if np.count_nonzero(values > FLOOR if self.integral else values > -np.inf) > after:
            return None
        for other in self.touching[v] - {k}:
            union = {*scope, *self.tables[other].scope} - {v}
            if len(union) > len(scope) + SMALL_SCOPE or not self.query.issuperset(union):
                return None
            after += math.prod(self.sizes[u] for u in union)
            before += self.tables[other].log_values.size
        if after > before or np.any((~is_hard(values)).sum(axis=scope.index(v)) > 1):
            return None
        return after - before

    def substitute(self, v: int, k: int) -> None:
        scope, values = self.pop(k)
        axis = scope.index(v)
        rest = tuple(u for u in scope if u != v)
        states = values.argmax(axis=axis)
        self.steps.append(Chosen(v, rest, states))
        others = [self.pop(other) for other in sorted(self.touching[v])]
        del self.sizes[v], self.touching[v]
        self.add_normalised(Table(rest, values.max(axis=axis)))
        for table in others:
            self.add_normalised(self.composed(table, v, rest, states))

    def composed(self, table: Table, v: int, rest: Sequence[int], states: Ints) -> Table:
        """Return a table with v replaced by a function of `rest`."""
        union = tuple(sorted({*rest, *table.scope} - {v}))
        index: dict[int, Ints] = dict(zip(union, np.ix_(*(np.arange(self.sizes[u]) for u in union)), strict=True))
        index[v] = spread(states, rest, union)
        values = table.log_values[tuple(index[u] for u in table.scope)]
        return Table(union, np.ascontiguousarray(np.broadcast_to(values, [self.sizes[u] for u in union])))
