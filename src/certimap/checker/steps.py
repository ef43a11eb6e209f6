"""Proofs by steps: tables reparametrised by shifts, states dropped, variables eliminated or replaced, and splits.

A shift of a table adds a function of one of its variables to it and subtracts the same from the variable's own
table: the sum over all tables stays what it is at every point, and the sum of their maxima, a bound, may fall. Any
numbers do. The file says which steps to make; each is exact, or verified, so that none has to be believed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.checker.clock import Clock
from certimap.checker.models import Arrays, Reduced, Rejected, Table, spread
from certimap.checker.numbers import UNIT, Floats, Ints, ranges, run_starts, up
from certimap.checker.products import maximised, summed

CLOSE, SHIFT, DROP, ELIMINATE, REPLACE, ABSORB, SPLIT, DIVIDE = range(8)
MAX_ENTRIES = 2**24  # of one table
FLAT = 1e-13  # nats; a table that varies by less counts as its maximum
LARGEST_SHIFT = 1e100  # so that no sum of them overflows
Flags = NDArray[np.bool_]
Scope = tuple[int, ...]


@dataclass(eq=False)
class Network:
    """A product of tables of at least two variables each, by scope, one table per variable, and a constant.

    `sizes` counts the states left of each open variable; those in `hidden` are summed out, the others maximised.
    `near` has the scopes that mention each variable. Steps change it in place.
    """

    sizes: dict[int, int]
    hidden: frozenset[int]
    own: dict[int, Floats]
    tables: dict[Scope, Floats]
    near: dict[int, set[Scope]]
    constants: list[float]

    @classmethod
    def of(cls, problem: Reduced) -> Network:
        """Return a problem as it is, tables of the same variables joined."""
        mentioned = sorted({v for t in problem.tables for v in t.scope} | set(problem.queried))
        sizes = {v: problem.sizes[v] for v in mentioned}
        hidden = frozenset(mentioned) - frozenset(problem.queried)
        constant = float(up(problem.log_constant + problem.log_slack, 8.0))
        return cls._joined(sizes, hidden, problem.tables, [constant])

    @classmethod
    def _joined(
        cls, sizes: dict[int, int], hidden: frozenset[int], tables: Sequence[Table], constants: list[float]
    ) -> Network:
        own = {v: np.zeros(n) for v, n in sizes.items()}
        found = cls(sizes, hidden, own, {}, {v: set() for v in sizes}, list(constants))
        for table in tables:
            found.add(table)
        return found

    def add(self, table: Table) -> None:
        """Multiply by a table of open variables."""
        scope = tuple(sorted(table.scope))
        logs = spread(table, scope)
        if not scope:
            self.constants.append(float(logs))
        elif len(scope) == 1:
            self.own[scope[0]] = up(self.own[scope[0]] + logs)
        elif scope in self.tables:
            self.tables[scope] = up(self.tables[scope] + logs)
        else:
            self.tables[scope] = logs
            for v in scope:
                self.near[v].add(scope)

    def pop(self, scope: Scope) -> Table:
        for v in scope:
            self.near[v].remove(scope)
        return Table(scope, self.tables.pop(scope))

    @property
    def shapes(self) -> list[tuple[Scope, list[int]]]:
        """The scopes in order, each with the sizes of its variables: what the numbers of a shift are of."""
        return [(scope, [self.sizes[v] for v in scope]) for scope in sorted(self.tables)]

    def shift(self, shifts: Floats) -> None:
        """Move costs between tables and the variables' own ones: a number per table, variable of it, and state."""
        starts, end = dict[Scope, int](), 0
        for scope, shape in self.shapes:
            starts[scope], end = end, end + sum(shape)
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
        """The variables in order, and where each one's states begin among all."""
        variables = sorted(self.sizes)
        return variables, dict(
            zip(variables, run_starts(np.array([self.sizes[v] for v in variables])).tolist(), strict=True)
        )

    @property
    def stacks(self) -> list[tuple[list[Scope], Floats]]:
        """Tables of the same shape, in order: what is done to thousands of small ones is done to all at once."""
        shapes: dict[Scope, list[Scope]] = {}
        for scope in sorted(self.tables):
            shapes.setdefault(self.tables[scope].shape, []).append(scope)
        return [(scopes, np.array([self.tables[scope] for scope in scopes])) for scopes in shapes.values()]

    def bound(self) -> float:
        """Return the sum of all maxima, which no point exceeds."""
        if self.hidden:
            raise Rejected("a step bounds what still has hidden variables")
        tops = [float(logs.max()) for logs in (*self.own.values(), *self.tables.values())]
        return float(up(math.fsum([*self.constants, *tops])))

    def bounds(self) -> tuple[float, dict[int, Floats]]:
        """Return the bound, and one for each state: the sum of all maxima where it is the only one left."""
        total = self.bound()
        if total == -math.inf:
            return total, {v: np.full(n, -np.inf) for v, n in self.sizes.items()}
        variables, ptr = self.laid_out
        below = np.concatenate([self.own[v] - self.own[v].max() for v in variables] or [np.zeros(0)])
        for scopes, stack in self.stacks:
            tops = stack.max(axis=tuple(range(1, stack.ndim)))
            for axis, n in enumerate(stack.shape[1:]):
                found = stack.max(axis=tuple(k for k in range(1, stack.ndim) if k != axis + 1)) - tops[:, None]
                first = np.array([ptr[scope[axis]] for scope in scopes], np.int64)
                places = ranges(first, np.full(len(first), n))
                below = below + np.bincount(places, found.reshape(-1), len(below))
        unit = (4.0 + max(map(len, self.near.values()), default=0)) * UNIT  # the terms are at most 0
        below = up(total + below * (1.0 - unit))
        return total, {v: below[ptr[v] : ptr[v] + self.sizes[v]] for v in variables}

    def keep(self, states: Mapping[int, Flags]) -> Network:
        """Return what is left where some states alone are; a variable with one is no longer open."""
        left = {v: np.flatnonzero(states[v]) if v in states else np.arange(n) for v, n in self.sizes.items()}
        sizes = {v: len(s) for v, s in left.items() if len(s) > 1}
        tables = [Table(s, logs[np.ix_(*(left[v] for v in s))]) for s, logs in self.tables.items()]
        tables += [Table((v,), logs[left[v]]) for v, logs in self.own.items()]
        scopes = [tuple(v for v in t.scope if v in sizes) for t in tables]
        smaller = [
            Table(scope, t.logs.reshape([sizes[v] for v in scope]))
            for scope, t in zip(scopes, tables, strict=True)
        ]
        return self._joined(sizes, self.hidden & frozenset(sizes), smaller, self.constants)

    def scope_around(self, v: int) -> Scope:
        """Return the variable and all others that share a table with it."""
        return tuple(sorted({v}.union(*self.near[v])))

    def eliminate(self, v: int) -> None:
        """Maximise or sum a variable out."""
        scope = self._fitting(v, self.scope_around(v))
        tables = [Table((v,), self.own[v]), *map(self.pop, sorted(self.near[v]))]
        is_hidden, sizes = v in self.hidden, dict(self.sizes)
        self._forget(v)
        found, constants = (summed if is_hidden else maximised)(v, scope, tables, sizes)
        self.constants += constants  # small numbers round less
        self.add(found)

    def replace(self, v: int, by: Scope) -> None:
        """Put a function of others in place of a variable: a table allows one of its states for each of theirs."""
        if v not in by or v in self.hidden:
            raise Rejected(f"variable {v} is replaced by a table that it is not in, or is summed out")
        axis, rest = by.index(v), tuple(u for u in by if u != v)
        for scope in self.near[v]:
            self._fitting(v, tuple({*scope, *rest}))
        logs = up(self.pop(by).logs + spread(Table((v,), self.own[v]), by))
        if np.any((logs > -np.inf).sum(axis=axis) > 1):
            raise Rejected(f"variable {v} is replaced by a table that allows it several states")
        states: NDArray[Any] = logs.argmax(axis=axis)
        others = [self.pop(scope) for scope in sorted(self.near[v])]
        self._forget(v)
        self.add(Table(rest, logs.max(axis=axis)))
        for table in others:
            union = tuple(sorted({*rest, *table.scope} - {v}))
            grids = np.ix_(*(np.arange(self.sizes[u]) for u in union))
            chosen = spread(Table(rest, states), union)
            index: tuple[Any, ...] = tuple(chosen if u == v else grids[union.index(u)] for u in table.scope)
            shape = [self.sizes[u] for u in union]
            self.add(Table(union, np.broadcast_to(table.logs[index], shape)))

    def absorb(self) -> None:
        """Multiply each table into the smallest one with all its variables; of flat ones the maximum is left."""
        for scope in sorted(self.tables, key=lambda s: (len(s), s)):
            top = float(self.tables[scope].max())
            if top - float(self.tables[scope].min()) <= FLAT:
                self.constants.append(top)
                self.pop(scope)
                continue
            hosts = {s for s in self.near[scope[0]] if len(s) > len(scope) and set(scope) <= set(s)}
            if hosts:
                host = min(hosts, key=lambda s: (self.tables[s].size, s))
                self.tables[host] = up(self.tables[host] + spread(self.pop(scope), host))

    def components(self) -> list[Network]:
        """Return what no table joins, without constants; the one with the first variable first."""
        left, found = set(self.sizes), list[Network]()
        while left:
            members, reached = set[int](), [min(left)]
            while reached:
                v = reached.pop()
                if v not in members:
                    members.add(v)
                    reached += {u for scope in self.near[v] for u in scope} - members
            left -= members
            scopes = {scope for v in members for scope in self.near[v]}
            tables = [Table(scope, self.tables[scope]) for scope in sorted(scopes)]
            tables += [Table((v,), self.own[v]) for v in sorted(members)]
            sizes = {v: self.sizes[v] for v in sorted(members)}
            found.append(self._joined(sizes, self.hidden & members, tables, []))
        return found

    def _fitting(self, v: int, scope: Scope) -> Scope:
        """Return a scope that a table may have, and a variable be maximised out of."""
        if math.prod(self.sizes[u] for u in scope) > MAX_ENTRIES:
            raise Rejected(f"eliminating variable {v} would take a table of more than {MAX_ENTRIES} entries")
        if v not in self.hidden and not self.hidden.isdisjoint(scope):
            raise Rejected(f"variable {v} is maximised before what is hidden beside it is summed out")
        return scope

    def _forget(self, v: int) -> None:
        del self.sizes[v], self.own[v], self.near[v]
        self.hidden -= {v}


class _Reader:
    """Numbers of a proof in the order in which its steps use them."""

    def __init__(self, arrays: Arrays) -> None:
        self.steps = np.asarray(arrays["steps"]).astype(np.int64)
        self.shifts = np.asarray(arrays["shifts"]).astype(np.float64)
        self.kept = np.unpackbits(np.asarray(arrays["kept"], np.uint8)).astype(np.bool_)
        if not np.all(np.abs(self.shifts) <= LARGEST_SHIFT):
            raise Rejected(f"a shift is no number of at most {LARGEST_SHIFT:g}")
        self._at = [0, 0, 0]

    def step(self) -> int:
        return int(self._next(0, self.steps, 1)[0])

    def shift(self, n: int) -> Floats:
        return self._next(1, self.shifts, n)

    def flags(self, n: int) -> Flags:
        return self._next(2, self.kept, n)

    def _next(self, k: int, values: NDArray[Any], n: int) -> NDArray[Any]:
        start = self._at[k]
        self._at[k] = start + n
        if self._at[k] > len(values):
            raise Rejected("the proof ends before all parts are closed")
        return values[start : start + n]

    def end(self) -> None:
        """Refuse what is left over."""
        if self._at[:2] != [len(self.steps), len(self.shifts)] or not 0 <= len(self.kept) - self._at[2] < 8:
            raise Rejected("the proof has steps beyond the last part")


def check_steps(problem: Reduced, arrays: Arrays, threshold: float, clock: Clock) -> str | None:
    """Make the steps of a proof; return the sentence about one that does not hold, or None if all parts close."""
    given = _Reader(arrays)
    waiting, n_closed = [(Network.of(problem), threshold)], 0
    while waiting:
        parts, said = _closed(*waiting.pop(), given, clock)
        if said is not None:
            return f"part {n_closed} does not hold: {said}"
        n_closed += not parts
        waiting += parts[::-1]
    given.end()
    return None


Parts = list[tuple[Network, float]]  # each with the level that it has to be closed at


def _closed(network: Network, threshold: float, given: _Reader, clock: Clock) -> tuple[Parts, str | None]:
    """Make steps until a part is closed, or is split into several, which are returned."""
    while True:
        clock.look()
        step = given.step()
        if step == CLOSE:
            bound = network.bound()
            return [], None if bound <= threshold else f"its bound is {bound:.12g}, above {threshold:.12g}"
        if step == DIVIDE:
            return _divided(network, threshold, given)
        if step == SHIFT:
            network.shift(given.shift(sum(sum(shape) for _, shape in network.shapes)))
        elif step == DROP:
            left, said = _left(network, threshold, given)
            if left is None:
                return [], said
            network = left
        elif step == ABSORB:
            network.absorb()
        elif step in (ELIMINATE, REPLACE, SPLIT):
            v = given.step()
            if v not in network.sizes:
                return [], f"a step is about variable {v}, which is not open"
            if step == SPLIT:
                return _parts(network, threshold, v)
            if step == ELIMINATE:
                network.eliminate(v)
            else:
                network.replace(v, sorted(network.near[v])[given.step()])
        else:
            return [], f"there is no step of the kind {step}"


def _left(network: Network, threshold: float, given: _Reader) -> tuple[Network | None, str | None]:
    """Drop states; None where nothing is left, or a state is above the threshold."""
    _, each = network.bounds()
    kept = {v: given.flags(network.sizes[v]) for v in sorted(network.sizes)}
    for v, flags in kept.items():
        if not np.all(flags | (each[v] <= threshold)):
            worst = float(each[v][~flags].max())
            return None, f"a state of variable {v} is dropped at {worst:.12g}, above {threshold:.12g}"
    return (network.keep(kept) if all(flags.any() for flags in kept.values()) else None), None


def _divided(network: Network, threshold: float, given: _Reader) -> tuple[Parts, str | None]:
    """Give each component a level of its own: what none exceeds adds up to what their product does not."""
    found = network.components()
    levels = given.shift(len(found)).tolist()
    total = float(up(math.fsum([*network.constants, *levels])))
    if not total <= threshold:
        return [], f"the levels of its components add up to {total:.12g}, above {threshold:.12g}"
    return list(zip(found, levels, strict=True)), None


def _parts(network: Network, threshold: float, v: int) -> tuple[Parts, str | None]:
    """Split a part by the states of a variable."""
    if v in network.hidden:
        return [], f"it is split on variable {v}, which is summed out"
    states = np.eye(network.sizes[v], dtype=np.bool_)
    return [(network.keep({v: flags}), threshold) for flags in states], None
