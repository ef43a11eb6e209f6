"""The problem of a query: maximise over some variables a product of tables, the others summed out.

Its integers have logs rounded up to a unit, so that sums and maxima are exact.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from certimap.core.arrays import Array, Flags, Floats, Ints, flattened, spread
from certimap.core.box import Points
from certimap.core.cached import cached_property
from certimap.core.domain import Domain
from certimap.core.logs import add_to
from certimap.networks.factor import take_logs
from certimap.networks.reduction import Reduced, reduce_network

if TYPE_CHECKING:
    from certimap.core.control import Control
    from certimap.core.query import Query
    from certimap.networks.network import Network


class Joined:
    """Concatenated tables: their entries, the last axis varying fastest, where each begins, and its size."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self.tables = tables
        self.sizes: Ints = np.array([t.log_values.size for t in tables], np.int64)
        self.starts: Ints = np.cumsum(self.sizes) - self.sizes
        self.values: Array = np.empty(0)
        if len(tables):
            self.values = np.concatenate([t.log_values.reshape(-1) for t in tables])

    @cached_property
    def tops(self) -> Array:
        """The largest entry of each table."""
        return np.maximum.reduceat(self.values, self.starts) if len(self.sizes) else self.values

    @cached_property
    def scopes(self) -> tuple[Ints, Ints]:
        """Where the variables of each table begin, and the variables of all tables."""
        return flattened([t.scope for t in self.tables])

    @cached_property
    def shapes(self) -> Ints:
        """The number of states of each of these variables."""
        return flattened([t.log_values.shape for t in self.tables])[1]

    def each(self, of_table: Array) -> Array:
        """Repeat a number per table for each of its entries."""
        return np.repeat(of_table, self.sizes)

    def lowest(self) -> Floats:
        """Return the least finite entry of each table of floats; inf where none is finite."""
        finite = np.where(self.values > -np.inf, self.values, np.inf)
        return np.minimum.reduceat(finite, self.starts) if len(self.sizes) else finite

    @cached_property
    def largest(self) -> Floats:
        """The largest magnitude among the finite entries of each table of floats."""
        finite = np.abs(np.where(self.values > -np.inf, self.values, 0.0))
        return np.maximum.reduceat(finite, self.starts) if len(self.sizes) else finite

    def reach(self) -> float:
        """Return the sum over tables of floats of the largest magnitude among finite entries."""
        return float(self.largest.sum())

    def entries_at(self, states: Ints) -> Array:
        """Return the entry of each table at one point, given the state of each variable by its position."""
        pointers, variables = self.scopes
        n_axes, at = np.diff(pointers), np.zeros(len(self.sizes), np.int64)
        for axis in range(int(n_axes.max(initial=0))):
            has = np.flatnonzero(n_axes > axis)
            here = pointers[has] + axis
            at[has] = at[has] * self.shapes[here] + states[variables[here]]
        return self.values[self.starts + at]


ROUNDING = 2.0**-53
HARD = -(2**60)  # represents ln 0
FLOOR = -(2**59)  # integers at or below it represent ln 0 too: no finite product comes near
KEPT_ENTRIES = 2**22  # largest cached joined tables, so that no large model is in memory twice


class Table(NamedTuple):
    """Logs of a nonnegative function: one axis per variable of `scope`; -inf (`HARD` for integers) for zero."""

    scope: tuple[int, ...]
    log_values: Array  # float64 in nats, or int64 in units of `Problem.unit` nats


@dataclass(frozen=True)
class Problem:
    """max over the `query` of the sum over all other open variables of the product of tables and a constant."""

    sizes: Mapping[int, int]  # the number of states of each open variable, by its position in the model
    query: frozenset[int]  # the open variables that are maximised
    tables: tuple[Table, ...]  # functions of open variables
    constant: float | int = 0.0  # added to the sum of the tables: float in nats, or an integer in units
    # bound (nats) on the error of constant plus tables at any assignment; 0 for integers, which are exact
    log_slack: float = 0.0
    unit: float = 1.0  # nats per unit of constant and tables: 1.0 for floats, a power of two for integers
    known: list[Joined] = field(default_factory=list[Joined], compare=False, repr=False)  # the cache of `joined`

    @property
    def joined(self) -> Joined:
        """The tables one after another; kept for problems of the same tables that are made of this one."""
        found = next((k for k in self.known if k.tables is self.tables), None)
        if found is None:
            found = Joined(self.tables)
            if found.values.size <= KEPT_ENTRIES:
                self.known[:] = [found]
        return found

    @property
    def is_integral(self) -> bool:
        """Whether tables and constant are integers, so that all sums and maxima are exact."""
        return isinstance(self.constant, int)

    @property
    def nuisance(self) -> frozenset[int]:
        """The open variables that are summed out."""
        return frozenset(self.sizes) - self.query

    @property
    def n_entries(self) -> int:
        """The number of table entries."""
        return sum([t.log_values.size for t in self.tables])

    def shape(self, scope: Iterable[int]) -> tuple[int, ...]:
        """Return the number of states of each variable of a scope."""
        return tuple(self.sizes[v] for v in scope)


@dataclass(frozen=True)
class Prepared:
    """A query's problem, and how its states are numbered."""

    problem: Problem  # over the states that evidence and zeros leave
    states: Mapping[int, Ints]  # the surviving states, as positions in the model, of every relevant variable
    query: tuple[int, ...]  # the query variables in the user's order, open or not


@dataclass(frozen=True, eq=False)
class QueryStates:
    """The numbering of the query variables' states in a problem."""

    domain: Domain  # the query variables, in the user's order
    variables: tuple[int, ...]  # their positions in the model
    survivors: tuple[Ints, ...]  # by query variable, the states that survive, in the problem's order
    position: Ints  # shape (total_states,): the problem's number of each state, -1 where it is impossible

    @classmethod
    def of(cls, domain: Domain, prepared: Prepared) -> QueryStates:
        """Read the numbering off a prepared problem."""
        survivors = tuple(prepared.states[v] for v in prepared.query)
        lengths = np.array([len(own) for own in survivors], np.int64)
        position = np.full(domain.total_states, -1, np.int64)
        if len(survivors):
            columns = np.concatenate(survivors) + np.repeat(domain.offsets[:-1], lengths)
            position[columns] = np.arange(len(columns)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return cls(domain, tuple(prepared.query), survivors, position)

    @cached_property
    def columns(self) -> tuple[Ints, ...]:
        """For each query variable the columns of its surviving states, in the problem's order."""
        return tuple(start + own for start, own in zip(self.domain.offsets[:-1], self.survivors, strict=True))

    def to_problem(self, points: Points) -> tuple[Ints, Flags]:
        """Return points in the problem's numbers, shape (batch, n), and which of them are possible at all."""
        inner = np.asarray(points, np.int64)
        if self.is_whole:
            return inner, np.ones(len(inner), np.bool_)
        inner = self.position[self.domain.offsets[:-1] + inner]
        return inner, np.all(inner >= 0, axis=1)

    @cached_property
    def is_whole(self) -> bool:
        """Whether all states survive, and keep their numbers."""
        sizes = np.diff(self.domain.offsets)
        return np.array_equal(
            self.position, np.arange(len(self.position)) - np.repeat(self.domain.offsets[:-1], sizes)
        )

    def to_domain(self, inner: Ints) -> Points:
        """Return points of the domain from points in the problem's numbers, shape (batch, n)."""
        points = np.empty(inner.shape, self.domain.point_dtype)
        for i, own in enumerate(self.survivors):
            points[:, i] = own[inner[:, i]]
        return points

    def point(self, assignment: Mapping[int, int]) -> Points:
        """Return the row of states, shape (n,), for numbers of the problem's variables; 0 for any left out."""
        pairs = zip(self.variables, self.survivors, strict=True)
        return np.array([int(own[assignment.get(v, 0)]) for v, own in pairs], self.domain.point_dtype)

    def kept(self, mask: NDArray[Any], sizes: Mapping[int, int]) -> dict[int, Ints]:
        """Return what a mask of the domain's columns leaves of open variables that lose states; see `restrict`."""
        left = {v: np.flatnonzero(mask[own]) for v, own in zip(self.variables, self.columns, strict=True)}
        return {v: states for v, states in left.items() if v in sizes and len(states) < sizes[v]}


def problem_of(model: Network, query: Query | None = None, *, control: Control | None = None) -> Prepared:
    """Absorb a query's evidence; leave barren variables and impossible states out.

    Raises ImpossibleEvidence when the evidence is seen to have probability 0.
    """
    return prepared_of(reduce_network(model, query, control=control))


def prepared_of(reduced: Reduced) -> Prepared:
    """Return the problem that a reduced network leaves; free nuisance variables are counted."""
    take_logs(reduced.factors)
    tables = tuple(Table(f.scope, f.log_table) for f in reduced.factors)
    mentioned, query_set = {v for t in tables for v in t.scope}, frozenset(reduced.query)
    sizes = {v: n for v, n in reduced.sizes.items() if v in mentioned or (v in query_set and n > 1)}
    free = [len(s) for v, s in reduced.states.items() if v not in mentioned and v not in query_set]
    constants = [*reduced.log_constants, *(math.log(n) for n in free if n > 1)]  # of free nuisance variables
    constant, slack = math.fsum(constants), 2.0 * ROUNDING * sum(abs(c) for c in constants)
    problem = Problem(sizes, query_set & frozenset(sizes), tables, constant)
    taken = [not f.in_logs for f in reduced.factors]  # what a network holds as logs is exact
    slack += 2.0 * ROUNDING * float(problem.joined.largest[taken].sum())
    return Prepared(replace(problem, log_slack=slack), reduced.states, reduced.query)


def largest(log_values: Array) -> float:
    """Return the largest magnitude among finite entries, 0 where there is none."""
    finite = np.abs(log_values[log_values > -np.inf])
    return float(finite.max()) if finite.size else 0.0


def product(tables: Sequence[Table], scope: Sequence[int], shape: Sequence[int]) -> Array:
    """Return the sum of log tables over a scope that contains all their scopes, as a new array.

    Of floats, each entry is off by a unit of its last place, however many tables there are. Cost: the size of the
    result times the number of tables.
    """
    dtype = tables[0].log_values.dtype if tables else np.dtype(np.float64)
    total = np.zeros(tuple(shape), dtype)
    if dtype.kind == "f" and len(tables) > 2:
        lost = np.zeros(tuple(shape))
        for table in tables:
            total = add_to(total, spread(table.log_values, table.scope, scope), lost)
        return total + lost
    whole = tuple(scope)
    for table in tables:
        is_whole = table.scope == whole
        total += table.log_values if is_whole else spread(table.log_values, table.scope, whole)
        if dtype.kind == "i":
            np.maximum(total, HARD, out=total)
    return total


def strides_of(scope: Sequence[int], sizes: Mapping[int, int]) -> dict[int, int]:
    """Return how far entries of a table lie apart along each of its variables, the last varying fastest."""
    found, stride = dict[int, int](), 1
    for v in reversed(scope):
        found[v] = stride
        stride *= sizes[v]
    return found


def strides_in(scope: Sequence[int], inputs: Sequence[Sequence[int]], sizes: Mapping[int, int]) -> Ints:
    """Return how far entries of tables, given by their axes, lie apart along a scope: shape (axes, tables)."""
    found = np.zeros((len(scope), len(inputs)), np.int64)
    for i, axes in enumerate(inputs):
        for v, stride in strides_of(axes, sizes).items():
            found[scope.index(v), i] = stride
    return found


def is_hard(log_values: Array) -> Flags:
    """Return which entries represent probability 0."""
    return log_values <= FLOOR if log_values.dtype.kind == "i" else log_values == -np.inf


def restrict(problem: Problem, keep: Mapping[int, Ints]) -> Problem:
    """Keep some states of some variables; a variable with one state left leaves the scopes.

    `keep`: positions among the present states, increasing and not empty, of each variable that loses states.
    """
    if not keep:
        return problem
    sizes = {v: len(keep[v]) if v in keep else n for v, n in problem.sizes.items()}
    tables: list[Table] = []
    constants: list[float | int | Array] = [problem.constant]
    for table in problem.tables:
        if keep.keys().isdisjoint(table.scope) and all(sizes[v] > 1 for v in table.scope):
            tables.append(table)
            continue
        values = table.log_values
        for axis, v in enumerate(table.scope):
            if v in keep:
                values = values.take(keep[v], axis=axis)
        scope = tuple(v for v in table.scope if sizes[v] > 1)
        values = values.reshape([sizes[v] for v in scope])
        if scope:
            tables.append(Table(scope, values))
        else:
            constants.append(values)
    open_sizes = {v: n for v, n in sizes.items() if n > 1}
    constant = added(constants)
    is_rounded = len(constants) > 1 and not problem.is_integral and math.isfinite(constant)
    slack = problem.log_slack + (ROUNDING * abs(constant) if is_rounded else 0.0)
    query = problem.query & frozenset(open_sizes)
    return replace(
        problem, sizes=open_sizes, query=query, tables=tuple(tables), constant=constant, log_slack=slack
    )


def added(constants: Sequence[float | int | Array]) -> float | int:
    """Return the sum of constants and tables without axes: of floats, rounded once."""
    if not isinstance(constants[0], int):
        return math.fsum(float(c) for c in constants)
    total = constants[0]
    for value in constants[1:]:
        total = max(HARD, total + int(value))
    return total


def components(problem: Problem) -> list[Problem]:
    """Split a problem into independent ones, smaller ones first; the constant and the slack stay with the caller.

    Their values add up, because maxima and sums of products over disjoint variables factorise.
    """
    zero = 0 if problem.is_integral else 0.0
    parts: list[Problem] = []
    for own, tables in joined_groups(problem, problem.sizes):
        query, sizes = problem.query & frozenset(own), {v: problem.sizes[v] for v in own}
        parts.append(Problem(sizes, query, tuple(tables), zero, 0.0, problem.unit))
    return sorted(parts, key=lambda p: len(p.sizes))


def joined_groups(problem: Problem, among: Collection[int]) -> list[tuple[list[int], list[Table]]]:
    """Return groups of variables that tables connect directly or by others in `among`, with their tables."""
    if not among:
        return []
    parent = {v: v for v in among}

    def root(v: int) -> int:
        while parent[v] != v:
            parent[v] = parent[parent[v]]
            v = parent[v]
        return v

    held = [[v for v in t.scope if v in parent] for t in problem.tables]
    for own in held:
        for v in own[1:]:
            parent[root(v)] = root(own[0])
    groups: dict[int, tuple[list[int], list[Table]]] = {}
    for v in parent:
        groups.setdefault(root(v), ([], []))[0].append(v)
    for table, own in zip(problem.tables, held, strict=True):
        if own:
            groups[root(own[0])][1].append(table)
    return list(groups.values())


def by_degree(problem: Problem, variables: Iterable[int]) -> list[int]:
    """Return variables in the order of the number of tables that mention them, most first."""
    degree = Counter(v for table in problem.tables for v in table.scope)
    return sorted(variables, key=lambda v: (-degree[v], v))


def value_at(problem: Problem, points: NDArray[np.integer], variables: Sequence[int]) -> Array:
    """Return constant plus tables of a problem without nuisance at rows of surviving states of `variables`."""
    if len(points) == 1:
        states = np.zeros(max(variables, default=-1) + 1, np.int64)
        states[np.array(variables, np.int64)] = points[0]
        if problem.n_entries <= KEPT_ENTRIES:
            found = problem.joined.entries_at(states).tolist()
        else:  # joining the tables would take longer than to look into each
            found = [t.log_values.item(tuple(states[list(t.scope)].tolist())) for t in problem.tables]
        if not problem.is_integral:
            return np.array([math.fsum([problem.constant, *found])])
        is_hard_one = min(found, default=0) <= FLOOR
        return np.array([HARD if is_hard_one else max(HARD, int(problem.constant) + sum(found))])
    column = {v: i for i, v in enumerate(variables)}
    total: Array = np.full(len(points), problem.constant, np.int64 if problem.is_integral else np.float64)
    lost = np.zeros(len(points))  # what rounding took away; thousands of logs may add up here
    for table in problem.tables:
        entries = entries_at(table, points, column)
        total = np.maximum(total + entries, HARD) if problem.is_integral else add_to(total, entries, lost)
    return total if problem.is_integral else total + lost


def entries_at(table: Table, points: NDArray[np.integer], column: Mapping[int, int]) -> Array:
    """Return a table's entry at each point, shape (batch,); `column` says which column has a variable's state."""
    flat = np.zeros(len(points), np.int64)
    for v, size in zip(table.scope, table.log_values.shape, strict=True):
        flat *= size
        flat += points[:, column[v]]
    return table.log_values.reshape(-1)[flat]


def rounding_at(problem: Problem) -> float:
    """Return a bound (nats) on the rounding error of `value_at` at any point."""
    # rounded once, and what adding up the roundings of 10^7 tables loses
    return 1.25 * ROUNDING * (abs(float(problem.constant)) + problem.joined.reach())


RANGE_BITS = 57  # all finite integers, and sums of one entry per table, stay below 2 ** RANGE_BITS
FINEST_UNIT = 2.0**-48
WIDE_REACH = 1000.0  # nats below the largest entry of a table that `to_fine_integers` keeps apart


def to_integers(problem: Problem) -> Problem:
    """Round the logs of a problem without nuisance variables, and its slack, up to multiples of a unit.

    Every upper bound on the integers also bounds the problem. Sums and maxima are exact in any order.
    """
    if problem.is_integral:
        return problem
    joined = problem.joined
    reach = joined.reach() + abs(problem.constant) + 1.0
    unit = max(FINEST_UNIT, 2.0 ** (math.ceil(math.log2(reach)) - RANGE_BITS))
    values, starts = rounded_up(joined.values, unit), joined.starts.tolist()
    tables = tuple(
        Table(t.scope, values[k : k + t.log_values.size].reshape(t.log_values.shape))
        for t, k in zip(problem.tables, starts, strict=True)
    )
    constant = problem.constant + problem.log_slack
    constant = math.ceil((constant + 4.0 * ROUNDING * abs(constant)) / unit)
    return replace(problem, tables=tables, constant=constant, log_slack=0.0, unit=unit)


class FineIntegers(NamedTuple):
    """The tables of a problem in a unit that does not grow with their number: for `MaxElimination` alone."""

    values: Ints  # the concatenated entries of all tables, the largest of each 0; `HARD` for zeros
    constant: int  # in units, an integer of any size
    lowest: int  # no finite entry is lower
    unit: float  # nats per unit


def to_fine_integers(problem: Problem, n_added: int, reach: float = WIDE_REACH) -> FineIntegers:
    """Round like `to_integers`, to a unit that does not grow with the number of tables.

    The largest entry of each table moves to the constant. Finite entries below `lowest` are raised to it, so that
    sums of `n_added` entries, messages included, fit. Array never decrease. `reach`: range, in nats below the
    largest entry of a table or message, in which entries stay distinct. The unit is proportional to it.
    """
    lowest = -(2**58 // max(n_added, 1))
    unit = 2.0 ** math.ceil(math.log2(reach / -lowest))
    constant = problem.constant + problem.log_slack
    units = math.ceil((constant + 4.0 * ROUNDING * abs(constant)) / unit)
    joined = problem.joined
    shift = np.floor(np.where(joined.tops > -np.inf, joined.tops, 0.0) / unit)
    units += sum(map(int, shift.tolist()))
    finite = joined.values > -np.inf
    # Division by a power of two is exact, and so is the difference of integers of less than 53 bits.
    scaled = np.ceil(np.where(finite, joined.values, 0.0) / unit) - joined.each(shift)
    scaled += np.where(np.abs(scaled) < 2.0**53, 0.0, np.spacing(np.abs(scaled)))
    integers = np.where(finite, np.maximum(scaled, lowest), HARD).astype(np.int64)
    return FineIntegers(integers, units, lowest, unit)


def narrow_reach(problem: Problem) -> float:
    """Return a `reach` that suffices unless messages spread over far more nats than the tables do."""
    joined = problem.joined
    if not len(joined.tables):
        return 32.0
    is_possible = joined.tops > -np.inf
    widest = float(np.max(joined.tops[is_possible] - joined.lowest()[is_possible], initial=0.0))
    return min(max(4.0 * widest, 32.0), WIDE_REACH)


def rounded_up(log_values: Array, unit: float) -> Array:
    """Return logs (nats) as integers of `unit`, rounded up; `HARD` for -inf."""
    finite = log_values > -np.inf
    values = np.where(finite, log_values, 0.0)
    scaled = np.ceil((values + 2.0 * ROUNDING * np.abs(values)) / unit)
    return np.where(finite, scaled.astype(np.int64), HARD)


def in_nats(units: int, unit: float) -> float:
    """Return an integer number of units in nats, rounded up; -inf for `HARD`."""
    return -math.inf if units <= FLOOR else above_nats(units, unit)


def above_nats(units: int, unit: float) -> float:
    """Return an integer number of units, of any size, in nats, rounded up."""
    value = float(units)  # rounded to nearest
    return (value if value >= units else math.nextafter(value, math.inf)) * unit


def below_nats(log_value: float, unit: float) -> int:
    """Return a log (nats) as an integer number of units, rounded down; `HARD` for -inf."""
    return HARD if log_value == -math.inf else math.floor(math.nextafter(log_value, -math.inf) / unit) - 1


def above_units(log_value: float, unit: float) -> int:
    """Return a log (nats) as an integer number of units, rounded up; `HARD` for -inf."""
    return HARD if log_value == -math.inf else math.ceil(math.nextafter(log_value, math.inf) / unit) + 1


def to_floats(problem: Problem) -> Problem:
    """Return an integer problem in nats, without its constant; `log_slack` holds the rounding error."""
    tables = tuple(
        Table(t.scope, np.where(t.log_values > FLOOR, t.log_values * problem.unit, -np.inf))
        for t in problem.tables
    )
    slack = ROUNDING * math.fsum(largest(t.log_values) for t in tables)
    return Problem(problem.sizes, problem.query, tables, 0.0, slack)
