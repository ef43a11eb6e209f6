"""Values of a problem at points of its query: other variables are summed out for many points at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from certimap.core.arrays import Floats, Ints, pointers
from certimap.core.control import Control
from certimap.core.logs import add_to
from certimap.core.rounding import SMALLEST_NORMAL
from certimap.kernels.parallel import for_blocks
from certimap.networks.elimination import Elimination
from certimap.networks.elimination_plan import EliminationPlan, plan
from certimap.networks.kernels import conditional as kernels
from certimap.networks.kernels.conditional import SumArrays
from certimap.networks.orders import EFFORT, best_order
from certimap.networks.problem import (
    ROUNDING,
    Joined,
    Problem,
    Table,
    entries_at,
    joined_groups,
    largest,
    restrict,
    strides_in,
    strides_of,
)
from certimap.networks.sum_pass import Total, passed


class _Room:
    """A first-fit allocator of blocks in a buffer."""

    def __init__(self) -> None:
        self.size = 0
        self.gaps: list[tuple[int, int]] = []  # (start, size), in order, none adjacent

    def take(self, size: int) -> int:
        for k, (start, room) in enumerate(self.gaps):
            if room >= size:
                self.gaps[k : k + 1] = [(start + size, room - size)] if room > size else []
                return start
        start = self.size
        if self.gaps and sum(self.gaps[-1]) == self.size:
            start = self.gaps.pop()[0]
        self.size = start + size
        return start

    def free(self, start: int, size: int) -> None:
        merged: list[tuple[int, int]] = []
        for gap in sorted([*self.gaps, (start, size)]):
            if merged and sum(merged[-1]) == gap[0]:
                merged[-1] = (merged[-1][0], merged[-1][1] + gap[1])
            else:
                merged.append(gap)
        self.gaps = merged


RAGGED = {  # pointers of `SumArrays`, and the rows that they point to
    "axis_ptr": "axis_sizes",
    "input_ptr": "input_start",
    "stride_ptr": "strides",
    "local_axis_ptr": "local_sizes",
    "table_stride_ptr": "table_strides",
    "query_ptr": "query_columns",
}


class _SumLayout:
    """Collects the regions of a conditional elimination, in order.

    `scales`: nats taken out of each table. `reach`: the sum over tables of the largest logs that stand for them,
    in nats: their rounding is relative to it.
    """

    def __init__(
        self, part: Problem, place: dict[int, int], query_column: dict[int, int], column: dict[int, int]
    ) -> None:
        self.part, self.place, self.query_column, self.column = part, place, query_column, column
        self.waiting: list[list[Table]] = [[] for _ in place]
        for table in part.tables:
            self.waiting[min(place[v] for v in table.scope if v in place)].append(table)
        self.below: list[list[int]] = [[] for _ in place]
        self.separators: list[tuple[int, ...]] = []
        self.room = _Room()
        self.scales, self.flat = list[float](), list[Floats]()
        self.reach, self.n_flat = 0.0, 0
        self.rows: dict[str, list[list[int]]] = {name: [] for name in SumArrays._fields[:-2]}
        self.starts: list[int] = []

    def add(self, v: int, separator: tuple[int, ...]) -> None:
        """Add the region that eliminates a variable."""
        sizes, r = self.part.sizes, len(self.separators)
        put = self.rows
        put["own"].append([sizes[v]])
        put["axis_sizes"].append([sizes[u] for u in separator])
        tables = self.waiting[r]
        local = tuple(u for u in (*separator, v) if any(u in t.scope for t in tables))
        put["local_sizes"].append([sizes[u] for u in local])
        put["local_ptr"].append([math.prod(sizes[u] for u in local)])
        put["input_start"].append([0, *(self.starts[c] for c in self.below[r])])
        put["children"].append([-1, *self.below[r]])
        axes = [local, *(self.separators[c] for c in self.below[r])]
        put["strides"].append(strides_in((*separator, v), axes, sizes).ravel().tolist())
        self._add_tables(tables, local)
        size = math.prod(sizes[u] for u in separator)
        self.starts.append(self.room.take(size))
        put["message_start"].append([self.starts[-1]])
        put["message_size"].append([size])
        for c in self.below[r]:
            self.room.free(self.starts[c], self.rows["message_size"][c][0])
        self.separators.append(separator)
        if separator:
            self.below[self.place[separator[0]]].append(r)

    def _add_tables(self, tables: Sequence[Table], local: tuple[int, ...]) -> None:
        self.rows["table_ptr"].append([len(tables)])
        strides = np.zeros((len(local), len(tables)), np.int64)
        for j, table in enumerate(tables):
            self.rows["table_start"].append([self.n_flat])
            steps = strides_of(table.scope, self.part.sizes)
            queried = [u for u in steps if u not in self.place]
            for u in steps.keys() & self.place.keys():
                strides[local.index(u), j] = steps[u]
            self.rows["query_columns"].append([self.query_column[self.column[u]] for u in queried])
            self.rows["query_strides"].append([steps[u] for u in queried])
            top = float(table.log_values.max())
            scale = top if math.isfinite(top) else 0.0
            self.scales.append(scale)
            self.flat.append(np.asarray(table.log_values, np.float64).ravel() - scale)
            self.reach += abs(scale) + largest(self.flat[-1])
            self.n_flat += table.log_values.size
        self.rows["table_strides"].append(strides.ravel().tolist())

    def arrays(self) -> SumArrays:
        found = {name: np.array([x for row in rows for x in row], np.int64) for name, rows in self.rows.items()}
        for name in ("local_ptr", "table_ptr"):
            found[name] = pointers(found[name])
        for name, ragged in RAGGED.items():
            found[name] = pointers([len(row) for row in self.rows[ragged]])
        log_tables = np.concatenate([np.empty(0), *self.flat])
        tables = np.where(log_tables > -np.inf, np.maximum(np.exp(log_tables), SMALLEST_NORMAL), 0.0)
        return SumArrays(**found, tables=tables, log_tables=log_tables)


BLOCK_BYTES = 256 * 2**20  # messages of one block of points
MAX_ROWS = 32
DEAR = 1e5  # entries per point above which a point's neighbours are evaluated together
WORK_PER_LOOK = 32.0  # of entries of a sum: what a look at some entries of a table takes
STREAMED = 2.0**20  # entries per point above which each point has a pass of its own, without the tables' strides
VERY_DEAR = 1e7  # entries per point above which values are cached
MANY_NEIGHBOURS = 256
COMPILED = 2**18  # entries of a batch of points, from which compiled code adds them up
MANY_TABLES = 4096  # per point: above it they are looked at all at once
WORK_BETWEEN_LOOKS = 2e8  # entries for changes of a point between two checks of the clock


@dataclass(frozen=True, eq=False)
class ConditionalSum:
    """Sums out the nuisance variables of one component, given states of its query variables."""

    query: Ints  # the query variables in its scope, as columns of the evaluator's points
    arrays: SumArrays  # see `kernels.SumArrays`
    log_scale: float  # nats taken out of the tables
    reach: float  # see `_SumLayout`
    n_entries: float  # joint states of all cliques: the work per point
    buffer_size: int  # entries of the messages held at once
    variables: Ints  # of `query`, by their numbers in the problem
    problem: Problem  # what is summed
    order: EliminationPlan | None  # where each point has a pass of its own

    @property
    def n_roundings(self) -> int:
        """The number of operations in the sum, each off by at most a unit of the last place."""
        a = self.arrays
        return int(len(a.table_start) + len(a.input_start) + a.own.sum() + 8 * len(a.own))

    @property
    def terms(self) -> float:
        """The number and the size of all that is rounded, in units of which `log_slack` takes four each."""
        return (self.n_roundings + self.reach) * (1.0 if self.order is None else 2.0)

    def log_values(self, points: Ints, workers: int = 1) -> Floats:
        """Return the log (nats) of the sum at each point, shape (batch,)."""
        if self.order is None:
            return self._together(points, workers)
        return np.array([self._streamed(self.order, point, workers) for point in points])

    def _streamed(self, order: EliminationPlan, point: Ints, workers: int) -> float:
        """Return the log of the sum at one point, by a pass of its own where it rounds as little as stated."""
        fixed = {int(v): np.array([s]) for v, s in zip(self.variables, point, strict=True)}
        within = restrict(self.problem, fixed)
        if within.constant == -math.inf:
            return -math.inf
        found = passed(within, order, workers=workers)
        if found is None or found.log_slack > 2.0 * ROUNDING * self.terms:
            return float(self._together(point[None], workers)[0])
        return found.log_value

    def _together(self, points: Ints, workers: int) -> Floats:
        out = np.empty(len(points))
        a = self.arrays
        n_local = int(np.max(np.diff(a.local_ptr), initial=1))
        rows = max(1, min(MAX_ROWS, BLOCK_BYTES // (8 * (self.buffer_size + n_local)), -(-len(points) // workers)))

        def task(start: int, stop: int) -> None:
            part, values = points[start:stop], out[start:stop]
            message, local = np.empty((self.buffer_size, len(part))), np.empty((n_local, len(part)))
            flags = np.zeros(len(part), np.uint8)
            kernels.sum_rows(a, part, message, local, flags, values)
            for b in np.flatnonzero(flags):
                values[b] = kernels.sum_in_logs(a, part[b], np.empty(len(message)), np.empty(len(local)))

        for_blocks(task, len(points), rows, workers)
        return out + self.log_scale


class NuisancePart(NamedTuple):
    """A group of connected nuisance variables, their neighbours and tables, and an elimination order."""

    problem: Problem
    order: Elimination

    @property
    def n_entries(self) -> float:
        """Joint states of all cliques: the work of summing at one point."""
        return 2.0 ** min(self.order.log2_size, 1000.0)


class PointEvaluator:
    """Values of full assignments of the query, ln of (product of tables, nuisance summed out), in nats.

    `problem`: any problem of floats. `variables`: the columns of the points: every query variable of the problem,
    and possibly others. `workers`: threads; values do not depend on it. `parts`: the result of `ordered_parts` for
    the problem, if already known. `work`: table entries visited by climbs so far. `has_answer`: whether a point of
    nonzero probability has been valued, where points are very dear.
    """

    def __init__(
        self, problem: Problem, variables: Sequence[int], workers: int = 1,
        parts: Sequence[NuisancePart] | None = None,
    ) -> None:  # fmt: skip
        self.problem, self.workers = problem, workers
        self.work, self.has_answer = 0.0, False
        self._known: dict[bytes, float] = {}  # values of points, where they are very dear
        self.column = {v: i for i, v in enumerate(variables)}
        self.plain = [t for t in problem.tables if all(v in problem.query for v in t.scope)]
        self.joined = Joined(self.plain)
        known = ordered_parts(problem) if parts is None else parts
        self.sums = [_conditional_sum(part, self.column) for part in known]
        terms = len(problem.tables) + sum(s.terms for s in self.sums) + 4
        reach = abs(problem.constant) + sum(self.joined.largest.tolist())
        # Sums of positive products keep a relative error per operation; logs, each off by its own last place, add
        # up to `reach`, and rounding errors of the addition are compensated.
        self.log_slack = problem.log_slack + 4.0 * ROUNDING * (terms + reach)

    @property
    def n_entries(self) -> float:
        """The work of one point, in table entries."""
        return sum(s.n_entries for s in self.sums) + len(self.plain)

    def log_values(self, points: NDArray[np.integer]) -> Floats:
        """Return the value of each point, states among the surviving ones, shape (batch,)."""
        points = np.asarray(points, np.int64)
        if self.n_entries <= VERY_DEAR:
            return self._values(points)
        keys = [row.tobytes() for row in points]
        new = [b for b, key in enumerate(keys) if key not in self._known]
        if new:
            found = self._values(points[new]).tolist()
            self.has_answer |= max(found) > -math.inf
            self._known |= {keys[b]: value for b, value in zip(new, found, strict=True)}
        return np.array([self._known[key] for key in keys])

    def _values(self, points: Ints) -> Floats:
        total = np.full(len(points), float(self.problem.constant))
        lost = np.zeros(len(points))  # thousands of logs of any size add up: what each addition rounds away
        if len(self.plain) > MANY_TABLES * len(points):
            states, places = np.zeros(max(self.column, default=-1) + 1, np.int64), list(self.column.values())
            for b, point in enumerate(points):  # rounded once
                states[list(self.column)] = point[places]
                total[b] = math.fsum([float(self.problem.constant), *self.joined.entries_at(states).tolist()])
        elif len(self.plain) * len(points) >= COMPILED:
            self._sum_plain(points, total, lost)
        else:
            for table in self.plain:
                total = add_to(total, entries_at(table, points, self.column), lost)
        possible = np.flatnonzero(total > -np.inf)
        for part in self.sums if len(possible) else ():
            rounded = lost[possible]
            total[possible] = add_to(total[possible], self._distinct(part, points[possible]), rounded)
            lost[possible] = rounded
        return total + lost

    def _sum_plain(self, points: Ints, total: Floats, lost: Floats) -> None:
        """Set what the tables without nuisance variables add up to, with the numbers of `add_to`."""
        from certimap.networks.kernels.plain_values import sum_entries

        axis_ptr, variables = self.joined.scopes
        columns = np.array([self.column[int(v)] for v in variables], np.int64)
        tables = axis_ptr, columns, self.joined.shapes, self.joined.starts, self.joined.values

        def task(start: int, stop: int) -> None:
            sum_entries(
                points[start:stop], *tables, float(self.problem.constant), total[start:stop], lost[start:stop]
            )

        for_blocks(task, len(points), max(1, -(-len(points) // self.workers)), self.workers)

    def _distinct(self, part: ConditionalSum, points: Ints) -> Floats:
        """Evaluate a sum once per distinct state of the variables in its scope."""
        own = points[:, part.query]
        if not own.shape[1]:
            return np.full(len(points), part.log_values(np.zeros((1, 0), np.int64))[0])
        found, where = np.unique(own, axis=0, return_inverse=True)
        return part.log_values(np.ascontiguousarray(found), self.workers)[where.reshape(-1)]

    def climb(
        self, point: NDArray[np.integer], n_states: Ints, max_work: float = math.inf,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Ints:  # fmt: skip
        """Improve a point one variable at a time until no change helps, or `max_work` entries are visited."""
        now = np.array(point, np.int64)
        if self.n_entries > DEAR and int(n_states.sum()) <= MANY_NEIGHBOURS:
            return self._climb_together(now, n_states, max_work, should_stop)
        touching: list[list[ConditionalSum]] = [[] for _ in n_states]
        for part in self.sums:
            for i in part.query:
                touching[int(i)].append(part)
        tables: list[list[Table]] = [[] for _ in n_states]
        for table in self.plain:
            for v in table.scope:
                tables[self.column[v]].append(table)
        moved = True
        while moved:
            moved = False
            for i in np.flatnonzero(n_states > 1):
                work = float(n_states[i]) * sum(part.n_entries for part in touching[i])
                work += WORK_PER_LOOK * len(tables[i])
                max_work -= work
                if max_work < 0.0 or should_stop():
                    return now
                self.work += work
                rows = np.repeat(now[None, :], n_states[i], axis=0)
                rows[:, i] = np.arange(n_states[i])
                values = np.zeros(len(rows))
                for table in tables[i]:
                    values += entries_at(table, rows, self.column)
                possible = np.flatnonzero(values > -np.inf)
                for part in touching[i] if len(possible) else ():
                    own = np.ascontiguousarray(rows[possible][:, part.query])
                    values[possible] += part.log_values(own, self.workers)
                best = int(np.argmax(values))
                if values[best] > values[now[i]] + 1e-12:
                    now[i], moved = best, True
        return now

    def _climb_together(self, now: Ints, n_states: Ints, max_work: float, should_stop: Callable[[], bool]) -> Ints:
        """Climb by the best single change, evaluating all changes in batches, which cost little more per row."""
        variables = np.repeat(np.arange(len(n_states)), n_states)
        states = np.arange(len(variables)) - np.repeat(np.cumsum(n_states) - n_states, n_states)
        n_together = max(1, int(WORK_BETWEEN_LOOKS / self.n_entries))
        known = self._changed(now, variables[:1], now[:1])[0]
        improved = True
        while improved:
            improved, best = False, now
            for first in range(0, len(variables), n_together):
                if max_work <= 0.0 or should_stop():
                    break
                piece = slice(first, first + n_together)
                values = self._changed(now, variables[piece], states[piece])
                max_work -= len(values) * self.n_entries
                self.work += len(values) * self.n_entries
                k = int(np.argmax(values))
                if values[k] > known + 1e-12:
                    improved, known, best = True, float(values[k]), now.copy()
                    best[variables[first + k]] = states[first + k]
            now = best
        return now

    def _changed(self, now: Ints, variables: Ints, states: Ints) -> Floats:
        """Return the value of a point after changing one variable, for each given variable and state."""
        rows = np.repeat(now[None, :], len(variables), axis=0)
        rows[np.arange(len(rows)), variables] = states
        return self.log_values(rows)


def relative_to(problem: Problem, total: Total) -> Problem:
    """Return a problem with the log of a total taken out of its constant."""
    constant = float(problem.constant) - total.log_value
    slack = problem.log_slack + total.log_slack + 2.0 * ROUNDING * abs(constant)
    return replace(problem, constant=constant, log_slack=slack)


def work_of(problem: Problem, parts: Sequence[NuisancePart]) -> float:
    """Return the joint states of all cliques of a conditional elimination, without building tables."""
    return len(problem.tables) + sum(part.n_entries for part in parts)


def ordered_parts(problem: Problem, control: Control | None = None, effort: float = EFFORT) -> list[NuisancePart]:
    """Find a good order of each part's nuisance variables given the query; `effort` as in `best_order`."""
    parts: list[NuisancePart] = []
    for own, tables in joined_groups(problem, sorted(problem.nuisance)):
        held = {*own, *(v for t in tables for v in t.scope)}
        part = Problem({v: problem.sizes[v] for v in held}, problem.query, tuple(tables))
        sizes = {v: n for v, n in part.sizes.items() if v not in part.query}
        scopes = [tuple(v for v in t.scope if v in sizes) for t in tables]
        parts.append(NuisancePart(part, best_order(scopes, sizes, effort=effort, control=control)))
    return parts


def climbed(
    problem: Problem, states: Mapping[int, int], max_work: float, should_stop: Callable[[], bool]
) -> dict[int, int]:
    """Return states of all variables, summed ones too, after a climb from given ones (0 where none is given)."""
    variables = sorted(problem.sizes)
    n_states = np.array([problem.sizes[v] for v in variables], np.int64)
    start = np.array([states.get(v, 0) for v in variables], np.int64)
    evaluator = PointEvaluator(replace(problem, query=frozenset(variables)), variables)
    return dict(zip(variables, evaluator.climb(start, n_states, max_work, should_stop).tolist(), strict=True))


def _conditional_sum(ordered: NuisancePart, column: dict[int, int]) -> ConditionalSum:
    """Convert the elimination of one group of nuisance variables to arrays."""
    part, found = ordered
    place = {v: i for i, v in enumerate(found.order)}
    query = sorted({column[v] for t in part.tables for v in t.scope if v in part.query})
    layout = _SumLayout(part, place, {c: i for i, c in enumerate(query)}, column)
    for v, separator in found.cliques:
        layout.add(v, separator)
    arrays = layout.arrays()
    work = float(np.sum(arrays.message_size * arrays.own, dtype=np.float64))
    log_scale = math.fsum(layout.scales)
    at = {c: v for v, c in column.items()}
    variables = np.array([at[c] for c in query], np.int64)
    is_open = all(part.sizes[v] > 1 for v in found.order)
    order = plan(part, found) if work > STREAMED and is_open else None
    return ConditionalSum(
        np.array(query, np.int64), arrays, log_scale, layout.reach, work, layout.room.size, variables, part, order
    )
