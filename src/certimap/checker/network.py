"""The product of tables that the steps of a proof transform: its open variables, its steps, and its bounds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.checker.elimination import around
from certimap.checker.models import FLOAT, CheckBudget, PlainTable, ReducedModel, Rejected, spread
from certimap.checker.numbers import UNIT, Flags, Floats, Ints, log_sum, ranges, run_starts, up

Scope = tuple[int, ...]
Tables = Sequence[PlainTable]
Sizes = Mapping[int, int]
Made = tuple[PlainTable, list[float]]  # a table and constants, factors of one function
BLOCK = 2**16  # entries of a product computed at a time


def summed(
    v: int, scope: Scope, tables: Tables, sizes: Sizes, budget: CheckBudget, weight: float = 1.0, side: int = 1
) -> Made:
    """Return (Σ f^(1/weight))^weight over a variable of a product f, block by block, as a table and constants."""
    first, *others = sorted(tables, key=lambda t: t.logs.size)
    for table in others[:-1]:
        budget.look()
        union = tuple(u for u in scope if u in first.scope or u in table.scope)
        first = PlainTable(union, up(spread(first, union) + spread(table, union), side))
    rest = tuple(u for u in scope if u != v)
    shape = [sizes[u] for u in rest]
    views = [np.broadcast_to(spread(t, (v, *rest)), [sizes[v], *shape]) for t in (first, *others[-1:])]
    found = np.empty(shape)
    n_outer = next((k for k in range(len(shape)) if sizes[v] * math.prod(shape[k:]) <= BLOCK), len(shape))
    for at in np.ndindex(*shape[:n_outer]):
        budget.look()
        parts = [view[(slice(None), *at)] for view in views]
        found[at] = _power_sum(up(parts[0] + parts[1], side) if others else parts[0], weight, side)
    top = float(found.max())
    return (PlainTable(rest, up(found - top, side)), [top]) if top > -math.inf else (PlainTable(rest, found), [])


def _power_sum(logs: Floats, weight: float, side: int) -> Floats:
    """Return ln (Σ f^(1/weight))^weight along the first axis; factors out the largest entry against underflow."""
    if weight == 1.0:
        return log_sum(logs, 0, side)
    top = logs.max(axis=0)
    base = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(over="ignore"):  # an entry of -inf is negligible beside the largest
        raised = log_sum(up(up(logs - base) / weight), 0)
    return up(base + up(weight * raised), 2.0)


def _paired(tables: Tables, sizes: Sizes, budget: CheckBudget) -> list[PlainTable]:
    """Multiply the two tables with the smallest product, repeatedly, until at most two are left."""
    left = list(tables)
    while len(left) > 2:
        budget.look()
        pairs = itertools.combinations(range(len(left)), 2)
        unions = [(math.prod(sizes[u] for u in {*left[i].scope, *left[j].scope}), j, i) for i, j in pairs]
        _, j, i = min(unions)
        b, a = left.pop(j), left.pop(i)
        union = tuple(sorted({*a.scope, *b.scope}))
        left.append(PlainTable(union, spread(a, union) + spread(b, union)))
    return left


def _in_blocks(v: int, scope: Scope, tables: Tables, sizes: Sizes, budget: CheckBudget) -> tuple[Scope, Floats]:
    """Return the axes and entries of the maximum over v of two tables' sum; the order of axes gives long runs."""
    *_, b, a = [PlainTable((), np.zeros(())), *sorted(tables, key=lambda t: t.logs.size)]
    strides = dict(zip(a.scope, a.logs.strides, strict=True))
    shared, alone = {*a.scope} & {*b.scope} - {v}, {*a.scope} - {*b.scope, v}
    inner = max(shared, alone, key=lambda us: math.prod(sizes[u] for u in us))
    rest = sorted({*scope} - {v}, key=lambda u: (u in strides, u in inner, -strides.get(u, 0), u))
    shape = [sizes[u] for u in (v, *rest)]
    first = np.broadcast_to(spread(a, (v, *rest)), shape)
    second = np.broadcast_to(np.ascontiguousarray(spread(b, (v, *rest))), shape)
    found = np.full(shape[1:], -np.inf)
    n_outer = next(k for k in range(len(shape)) if math.prod(shape[1 + k :]) <= BLOCK)
    for at in np.ndindex(*shape[1 : 1 + n_outer]):
        budget.look()
        part = found[(*at, ...)]
        for state in range(shape[0]):
            np.maximum(part, first[(state, *at, ...)] + second[(state, *at, ...)], out=part)
    return tuple(rest), found


def maximised(v: int, scope: Scope, tables: Tables, sizes: Sizes, budget: CheckBudget) -> Made:
    """Return the maximum over a variable of a product of tables, as a table and constants, block by block.

    Each table is first shifted to a largest entry of 0: a sum s of k terms then errs by at most (k + 1) 2^-53 |s|,
    up to smaller terms. s plus this bound grows with s, so it suffices to add the bound to the maximum.
    """
    tops = [float(t.logs.max()) for t in tables]
    constants = [top for top in tops if -math.inf < top != 0.0]
    shifted = zip(tables, tops, strict=True)
    tables = [PlainTable(t.scope, t.logs - top) if -math.inf < top != 0.0 else t for t, top in shifted]
    if math.prod(sizes[u] for u in scope) <= BLOCK:
        rest, joint = tuple(u for u in scope if u != v), np.zeros(())
        for table in tables:
            joint = joint + spread(table, scope)
        found: Floats = np.asarray(joint.max(axis=scope.index(v)))
    else:
        rest, found = _in_blocks(v, scope, _paired(tables, sizes, budget), sizes, budget)
    top = float(found.max())
    if top > -math.inf:
        unit = (len(tables) + 4.0) * UNIT
        constants += [top, unit * abs(top)]
        found -= top
        found *= 1.0 - unit
    return PlainTable(rest, found), constants


MAX_ENTRIES = 2**24  # of one table
WORKING, ENTRY_COST = 5, 256  # copies of tables that a step holds; bytes per table beside its entries
FLAT = 1e-13  # nats; a table that varies by less counts as its maximum


@dataclass(eq=False)
class PlainNetwork:
    """A product of a constant, one table per variable, and tables of two or more; steps change it in place."""

    sizes: dict[int, int]  # remaining states of each open variable
    hidden: frozenset[int]  # summed out; the others are maximised
    own: dict[int, Floats]
    tables: dict[Scope, Floats]  # of two or more variables
    near: dict[int, set[Scope]]  # for each variable, the scopes that contain it
    constants: list[float]
    states: dict[int, Ints]  # the remaining states of all variables, open or not
    side: int = 1  # to which values are rounded
    budget: CheckBudget = field(default_factory=CheckBudget)
    n_entries: int = 0  # of `tables`

    @classmethod
    def of(cls, problem: ReducedModel, side: int = 1, budget: CheckBudget | None = None) -> PlainNetwork:
        """Return the network of a problem; tables of the same scope are multiplied together."""
        mentioned = sorted({v for t in problem.tables for v in t.scope} | set(problem.queried))
        sizes = {v: problem.sizes[v] for v in mentioned}
        hidden = frozenset(mentioned) - frozenset(problem.queried)
        constant = problem.log_constant + (problem.log_slack if side > 0 else 0.0)
        states = {v: np.arange(n) for v, n in sizes.items()}
        empty = cls({}, hidden, {}, {}, {}, [], {}, side, budget or CheckBudget())
        return empty._over(sizes, problem.tables, [float(up(constant, 8.0 * side))], states)

    def _over(
        self, sizes: dict[int, int], tables: list[PlainTable], constants: list[float], states: dict[int, Ints]
    ) -> PlainNetwork:
        """Return a network of some of the variables, and of tables over them."""
        own, near = {v: np.zeros(n) for v, n in sizes.items()}, {v: set[Scope]() for v in sizes}
        hidden = self.hidden & frozenset(sizes)
        found = PlainNetwork(sizes, hidden, own, {}, near, list(constants), states, self.side, self.budget)
        for table in tables:
            found.add(table)
        return found

    def copy(self) -> PlainNetwork:
        """Return an independent copy."""
        self.budget.need(self.n_bytes, "a copy of the network")
        near = {v: set(scopes) for v, scopes in self.near.items()}
        given = dict(self.sizes), self.hidden, dict(self.own), dict(self.tables), near, list(self.constants)
        return PlainNetwork(*given, self.states, self.side, self.budget, self.n_entries)

    @property
    def n_bytes(self) -> int:
        """Bytes of the tables, with an allowance for each table and variable."""
        return FLOAT * self.n_entries + ENTRY_COST * (len(self.tables) + len(self.states))

    def _need(self, n_entries: int) -> None:
        """Reject a step whose work on `n_entries` table entries does not fit the budget."""
        self.budget.need(self.n_bytes + WORKING * FLOAT * n_entries, "a step of the proof")

    def add(self, table: PlainTable) -> None:
        """Multiply by a table of open variables."""
        scope = tuple(sorted(table.scope))
        logs = spread(table, scope)
        if not scope:
            self.constants.append(float(logs))
        elif len(scope) == 1:
            self.own[scope[0]] = up(self.own[scope[0]] + logs, self.side)
        elif scope in self.tables:
            self.tables[scope] = up(self.tables[scope] + logs, self.side)
        else:
            self.tables[scope] = logs
            self.n_entries += logs.size
            for v in scope:
                self.near[v].add(scope)

    def pop(self, scope: Scope) -> PlainTable:
        for v in scope:
            self.near[v].remove(scope)
        self.n_entries -= self.tables[scope].size
        return PlainTable(scope, self.tables.pop(scope))

    @property
    def factors(self) -> list[PlainTable]:
        """All tables, and then the variables' own tables."""
        pairs = (*self.tables.items(), *(((v,), own) for v, own in self.own.items()))
        return [PlainTable(scope, logs) for scope, logs in pairs]

    @property
    def shift_layout(self) -> tuple[dict[Scope, int], int]:
        """The place of each table's numbers in a shift, one per variable and state; the count of all."""
        starts, end = dict[Scope, int](), 0
        for scope in sorted(self.tables):
            starts[scope], end = end, end + sum(self.tables[scope].shape)
        return starts, end

    def shift(self, shifts: Floats) -> None:
        """Move costs between tables and the variables' own tables."""
        self._need(self.n_entries)
        starts, _ = self.shift_layout
        variables, ptr = self.laid_out
        own = np.concatenate([self.own[v] for v in variables] or [np.zeros(0)])
        for scopes, stack in self.stacks:
            at: Ints = np.array([starts[scope] for scope in scopes])
            for axis, n in enumerate(stack.shape[1:]):
                part = shifts[at[:, None] + np.arange(n)]
                at += n
                stack = up(stack + np.expand_dims(part, [k + 1 for k in range(stack.ndim - 1) if k != axis]))
                first = np.array([ptr[scope[axis]] for scope in scopes], np.int64)
                for row, k in zip(part, first.tolist(), strict=True):
                    own[k : k + n] = up(own[k : k + n] - row)
            self.tables.update(zip(scopes, stack, strict=True))
        self.own = {v: own[ptr[v] : ptr[v] + self.sizes[v]] for v in variables}

    @property
    def laid_out(self) -> tuple[list[int], dict[int, int]]:
        """The variables in order, and the offset of each variable's states among all states."""
        variables = sorted(self.sizes)
        starts: list[int] = run_starts(np.array([self.sizes[v] for v in variables])).tolist()
        return variables, dict(zip(variables, starts, strict=True))

    @property
    def stacks(self) -> Iterator[tuple[list[Scope], Floats]]:
        """The tables stacked by shape, in order, so that thousands of small ones are processed at once."""
        shapes: dict[Scope, list[Scope]] = {}
        for scope in sorted(self.tables):
            shapes.setdefault(self.tables[scope].shape, []).append(scope)
        for scopes in shapes.values():
            self.budget.look()
            yield scopes, np.array([self.tables[scope] for scope in scopes])

    def bound(self) -> float:
        """Return the total of all maxima, which no point exceeds; a hidden variable's own table is summed."""
        tops = [float(log_sum(t) if v in self.hidden else t.max()) for v, t in self.own.items()]
        tops += [float(logs.max()) for logs in self.tables.values()]
        return float(up(math.fsum([*self.constants, *tops]), self.side))

    def bounds(self) -> tuple[float, dict[int, Floats]]:
        """Return the bound, and one per queried state: the total of all maxima with the state held fixed."""
        total, queried = self.bound(), [v for v in sorted(self.sizes) if v not in self.hidden]
        if total == -math.inf:
            return total, {v: np.full(self.sizes[v], -np.inf) for v in queried}
        variables, ptr = self.laid_out
        below = np.concatenate([self.own[v] - self.own[v].max() for v in variables] or [np.zeros(0)])
        self._need(self.n_entries)
        for scopes, stack in self.stacks:
            tops = stack.max(axis=tuple(range(1, stack.ndim)))
            for axis, n in enumerate(stack.shape[1:]):
                found = stack.max(axis=tuple(k for k in range(1, stack.ndim) if k != axis + 1)) - tops[:, None]
                first = np.array([ptr[scope[axis]] for scope in scopes], np.int64)
                places = ranges(first, np.full(len(first), n))
                below = below + np.bincount(places, found.reshape(-1), len(below))
        unit = (4.0 + max(map(len, self.near.values()), default=0)) * UNIT  # the terms are at most 0
        below = up(total + below * (1.0 - unit))
        return total, {v: below[ptr[v] : ptr[v] + self.sizes[v]] for v in queried}

    def keep(self, states: Mapping[int, Flags]) -> PlainNetwork:
        """Return the network restricted to some states; a variable with one state is no longer open."""
        self._need(self.n_entries)
        left = {v: np.flatnonzero(states[v]) if v in states else np.arange(n) for v, n in self.sizes.items()}
        sizes = {v: len(s) for v, s in left.items() if len(s) > 1}
        kept = self.states | {v: self.states[v][s] for v, s in left.items()}
        smaller: list[PlainTable] = []
        for table in self.factors:
            scope = tuple(v for v in table.scope if v in sizes)
            logs = table.logs[np.ix_(*(left[v] for v in table.scope))]
            smaller.append(PlainTable(scope, logs.reshape([sizes[v] for v in scope])))
        return self._over(sizes, smaller, self.constants, kept)

    def split(self, v: int) -> Iterator[PlainNetwork]:
        """Yield one network per state of a variable."""
        for state in range(self.sizes[v]):
            yield self.keep({v: np.arange(self.sizes[v]) == state})

    def without_lost(self, tried: PlainNetwork) -> PlainNetwork:
        """Return the network without the queried states dropped in a copy, whose steps only raise values."""
        open_ones = [v for v in self.sizes if v not in self.hidden]
        return self.keep({v: np.isin(self.states[v], tried.states[v]) for v in open_ones})

    def scope_around(self, v: int) -> Scope:
        """Return the variable and all others that share a table with it."""
        return tuple(sorted({v}.union(*self.near[v])))

    def size_around(self, v: int) -> int:
        return math.prod(self.sizes[u] for u in self.scope_around(v))

    def smallest_hidden(self) -> int:
        return min(self.hidden, key=lambda u: (self.size_around(u), u))

    def sum_out(self, order: Sequence[int]) -> list[int]:
        """Sum out the hidden variables, those in `order` first; return the entries of each sum's table."""
        listed, entries = [v for v in dict.fromkeys(order) if v in self.hidden][::-1], list[int]()
        while self.hidden:
            v = listed.pop() if listed else self.smallest_hidden()
            entries.append(self.size_around(v))
            self.eliminate(v)
        return entries

    def eliminate(
        self, v: int, groups: Sequence[int] = (), shifts: Sequence[Floats] = (), weights: Sequence[float] = (1.0,)
    ) -> None:
        """Eliminate a variable, or a copy per group of its tables; `shifts`: own tables of the later copies."""
        tables, own = [self.pop(scope) for scope in sorted(self.near[v])], self.own[v]
        is_hidden, sizes = v in self.hidden, dict(self.sizes)
        self._forget(v)
        for shift in shifts:
            own = up(own - shift, self.side)
        for k, start in enumerate([own, *shifts]):
            held = [t for t, group in zip(tables, groups or [0] * len(tables), strict=True) if group == k]
            scope = tuple(sorted({v}.union(*(t.scope for t in held))))
            self._need(_entries_of(v, scope, sizes) + sum(t.logs.size for t in tables))
            held.insert(0, PlainTable((v,), start))
            if is_hidden:
                found, constants = summed(v, scope, held, sizes, self.budget, weights[k], self.side)
            else:
                found, constants = maximised(v, scope, held, sizes, self.budget)
            self.constants += constants  # small numbers round less
            self.add(found)

    def replace(self, v: int, by: Scope) -> None:
        """Replace a variable by a function of others: table `by` allows at most one state for each of theirs."""
        if v not in by or v in self.hidden:
            raise Rejected(f"variable {v} is replaced by a table that it is not in, or is summed out")
        axis, rest = by.index(v), tuple(u for u in by if u != v)
        self._need(sum(_entries_of(v, {*scope, *rest}, self.sizes) for scope in self.near[v]))
        logs = up(self.pop(by).logs + spread(PlainTable((v,), self.own[v]), by))
        if np.any((logs > -np.inf).sum(axis=axis) > 1):
            raise Rejected(f"variable {v} is replaced by a table that allows it several states")
        states: NDArray[Any] = logs.argmax(axis=axis)
        others = [self.pop(scope) for scope in sorted(self.near[v])]
        self._forget(v)
        self.add(PlainTable(rest, logs.max(axis=axis)))
        for table in others:
            union = tuple(sorted({*rest, *table.scope} - {v}))
            grids = np.ix_(*(np.arange(self.sizes[u]) for u in union))
            chosen = spread(PlainTable(rest, states), union)
            index: tuple[Any, ...] = tuple(chosen if u == v else grids[union.index(u)] for u in table.scope)
            shape = [self.sizes[u] for u in union]
            self.add(PlainTable(union, np.broadcast_to(table.logs[index], shape)))

    def maximise(self, v: int, by: Scope) -> None:
        """Maximise a hidden variable that table `by` makes a function of queried ones: its sum has one term."""
        if v not in self.hidden or v not in by or not self.hidden.isdisjoint({*by} - {v}):
            raise Rejected(f"variable {v} is maximised for a table that it is not in, or that more is hidden of")
        logs = self.tables[by] + spread(PlainTable((v,), self.own[v]), by)
        if np.any((logs > -np.inf).sum(axis=by.index(v)) > 1):
            raise Rejected(f"variable {v} is maximised for a table that allows it several states")
        self.hidden -= {v}

    def absorb(self) -> None:
        """Multiply each table into the smallest table with all its variables; replace flat ones by constants."""
        for scope in sorted(self.tables, key=lambda s: (len(s), s)):
            top = float(self.tables[scope].max())
            if top - float(self.tables[scope].min()) <= FLAT:
                self.constants.append(top)
                self.pop(scope)
                continue
            hosts = {s for s in self.near[scope[0]] if len(s) > len(scope) and set(scope) <= set(s)}
            if hosts:
                host = min(hosts, key=lambda s: (self.tables[s].size, s))
                self._need(self.tables[host].size)
                self.tables[host] = up(self.tables[host] + spread(self.pop(scope), host))

    def components(self) -> list[PlainNetwork]:
        """Return the connected components, without constants, ordered by their first variables."""
        left, found = set(self.sizes), list[PlainNetwork]()
        while left:
            members, reached = set[int](), [min(left)]
            while reached:
                v = reached.pop()
                if v not in members:
                    members.add(v)
                    reached += {u for scope in self.near[v] for u in scope} - members
            left -= members
            scopes = sorted({scope for v in members for scope in self.near[v]})
            tables = [PlainTable(scope, self.tables[scope]) for scope in scopes]
            tables += [PlainTable((v,), self.own[v]) for v in sorted(members)]
            sizes = {v: self.sizes[v] for v in sorted(members)}
            found.append(self._over(sizes, tables, [], self.states))
        return found

    def _forget(self, v: int) -> None:
        del self.sizes[v], self.own[v], self.near[v]
        self.hidden -= {v}


def _entries_of(v: int, scope: Iterable[int], sizes: Mapping[int, int]) -> int:
    """Return the number of a table's entries; reject a table too large."""
    found = math.prod(sizes[u] for u in scope)
    if found > MAX_ENTRIES:
        raise Rejected(f"a step about variable {v} would take a table of more than {MAX_ENTRIES} entries")
    return found


def value_at(
    problem: ReducedModel,
    point: Sequence[int],
    side: int,
    order: Sequence[int] = (),
    budget: CheckBudget | None = None,
) -> float:
    """Return the log value of a point, rounded to `side`; hidden variables in `order` are summed out first."""
    fixed = zip(problem.queried, point, strict=True)
    network = PlainNetwork.of(problem, side, budget).keep({v: np.arange(problem.sizes[v]) == a for v, a in fixed})
    network.sum_out(order)
    return network.bound()


def work_of_a_point(problem: ReducedModel, order: Sequence[int]) -> tuple[int, int]:
    """Return the entries of the largest table that a point's value takes, and the entries of all."""
    network = PlainNetwork.of(problem).keep({v: np.arange(problem.sizes[v]) == 0 for v in problem.queried})
    entries = network.sum_out(order)
    return max(entries, default=1), len(problem.tables) + sum(entries)


def bounds_at(
    problem: ReducedModel, points: Ints, order: Sequence[int], budget: CheckBudget | None = None
) -> Floats:
    """Bound the log values of points, the states of one more variable, about as closely as `value_at`."""
    row, place = len(problem.sizes), {v: k for k, v in enumerate(problem.queried)}
    columns, total, reach = np.ascontiguousarray(points.T), np.zeros(len(points)), 0.0
    tables: list[PlainTable] = []
    for table in problem.tables:
        seen, hidden = ([v for v in table.scope if (v in place) == is_seen] for is_seen in (True, False))
        if not seen:
            tables.append(table)
            continue
        logs = table.logs.transpose([table.scope.index(v) for v in (*seen, *hidden)])
        at = np.zeros(len(points), np.int64)
        for v in seen:
            at = at * problem.sizes[v] + columns[place[v]]
        chosen = logs.reshape(-1, *logs.shape[len(seen) :])[at]
        if hidden:
            tables.append(PlainTable((row, *hidden), chosen))
        else:
            total += chosen
            reach += float(np.max(np.abs(logs), where=np.isfinite(logs), initial=0.0))
    total += (4.0 + len(problem.tables)) * UNIT * reach  # what additions may have rounded down
    tables.append(PlainTable((row,), total))
    sizes = [*problem.sizes, len(points)]
    network = PlainNetwork.of(
        ReducedModel(tables, sizes, [row], problem.log_constant, problem.log_slack), budget=budget
    )
    network.sum_out(order)
    return network.bounds()[1][row]


def boxes_beside(
    problem: ReducedModel, answers: Sequence[Sequence[int]], budget: CheckBudget | None = None
) -> list[list[Flags]]:
    """Return the boxes of a proof's steps: everything, or the space around several answers."""
    everything = [np.ones(problem.sizes[v], np.bool_) for v in problem.queried]
    points = [[np.arange(len(b)) == a for b, a in zip(everything, row, strict=True)] for row in answers]
    return [everything] if len(points) == 1 else around(everything, points, budget or CheckBudget())


def parts_of(
    problem: ReducedModel, boxes: Sequence[Sequence[Flags]], budget: CheckBudget | None = None
) -> Iterator[PlainNetwork]:
    """Yield the problem's network restricted to each box of the query."""
    whole = PlainNetwork.of(problem, budget=budget)
    for box in boxes:
        yield whole.keep(dict(zip(problem.queried, box, strict=True)))
