"""The value of a problem at points of its query: everything else summed out by elimination, many points at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from certimap.networks.elimination import min_fill
from certimap.networks.kernels import conditional as kernels
from certimap.networks.kernels.conditional import SumArrays
from certimap.networks.problem import ROUNDING, Problem, components, largest

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
BLOCK_BYTES = 64 * 2**20  # messages of one block of points
MAX_ROWS = 64


@dataclass(frozen=True, eq=False)
class ConditionalSum:
    """Sums the nuisance variables of one component out at given states of its query variables.

    Attributes
    ----------
    query
        The query variables that it depends on, as columns of the points that the evaluator takes.
    arrays
        See `kernels.SumArrays`.
    log_scale
        Nats taken out of the tables.
    n_entries
        Joint states of all cliques: the work of one point.
    """

    query: Ints
    arrays: SumArrays
    log_scale: float
    n_entries: float

    def log_values(self, points: Ints) -> Floats:
        """Return the log (nats) of the sum at each point, shape (batch,)."""
        out = np.empty(len(points))
        a = self.arrays
        size = int(a.message_ptr[-1] + a.local_ptr[-1])
        rows = max(1, min(MAX_ROWS, BLOCK_BYTES // (8 * max(size, 1)), len(points)))
        message = np.empty((int(a.message_ptr[-1]), rows))
        local = np.empty((int(np.max(np.diff(a.local_ptr), initial=1)), rows))
        for start in range(0, len(points), rows):
            part = points[start : start + rows]
            flags = np.zeros(len(part), np.uint8)
            values = out[start : start + len(part)]
            kernels.sum_rows(a, part, message[:, : len(part)], local[:, : len(part)], flags, values)
            for b in np.flatnonzero(flags):
                values[b] = kernels.sum_in_logs(a, part[b], message[:, 0].copy(), local[:, 0].copy())
        return out + self.log_scale


class Evaluator:
    """Values of full assignments of the query, ln of (product of tables, nuisance summed out), in nats.

    Parameters
    ----------
    problem
        Any problem of floats.
    variables
        The columns of the points: every query variable of the problem, and possibly others.
    """

    def __init__(self, problem: Problem, variables: Sequence[int]) -> None:
        self.problem = problem
        self.column = {v: i for i, v in enumerate(variables)}
        self.plain = [t for t in problem.tables if all(v in problem.query for v in t.scope)]
        self.sums = [_conditional_sum(part, self.column) for part in _nuisance_parts(problem)]
        terms = len(problem.tables) + 8 * sum(len(s.arrays.own) for s in self.sums) + 4
        reach = abs(problem.constant) + sum(largest(t.log_values) for t in self.plain)
        reach += sum(abs(s.log_scale) for s in self.sums)
        # Sums of positive products keep a relative error per operation; logs of many parts add up to `reach`.
        self.log_slack = problem.log_slack + 4.0 * ROUNDING * (terms + reach)

    @property
    def n_entries(self) -> float:
        """The work of one point, in table entries."""
        return sum(s.n_entries for s in self.sums) + len(self.plain)

    @property
    def log2_largest(self) -> float:
        """Log base 2 of the entries of the largest clique."""
        sizes = [math.log2(max(float(np.max(np.diff(s.arrays.message_ptr), initial=1)), 1.0)) for s in self.sums]
        return max(sizes, default=0.0)

    def log_values(self, points: NDArray[np.integer]) -> Floats:
        """Return the value of each point, states among the surviving ones, shape (batch,)."""
        points = np.asarray(points, np.int64)
        total = np.full(len(points), float(self.problem.constant))
        for table in self.plain:
            flat = np.zeros(len(points), np.int64)
            for v, size in zip(table.scope, table.log_values.shape, strict=True):
                flat *= size
                flat += points[:, self.column[v]]
            total += table.log_values.reshape(-1)[flat]
        possible = np.flatnonzero(total > -np.inf)
        for part in self.sums:
            if len(possible):
                total[possible] += self._distinct(part, points[possible])
        return total

    def _distinct(self, part: ConditionalSum, points: Ints) -> Floats:
        """Ask a sum once per distinct state of the variables that it depends on."""
        own = points[:, part.query]
        if not own.shape[1]:
            return np.full(len(points), part.log_values(np.zeros((1, 0), np.int64))[0])
        found, where = np.unique(own, axis=0, return_inverse=True)
        return part.log_values(np.ascontiguousarray(found))[where.reshape(-1)]

    def climb(self, point: NDArray[np.integer], n_states: Ints, max_sweeps: int = 10) -> Ints:
        """Improve a point one variable at a time until none helps; returns a new point.

        Cost: one evaluation per state of every variable and sweep, of the sums that depend on it alone.
        """
        now = np.array(point, np.int64)
        touching = [[] for _ in n_states]
        for part in self.sums:
            for i in part.query:
                touching[i].append(part)
        tables = [[] for _ in n_states]
        for table in self.plain:
            for v in table.scope:
                tables[self.column[v]].append(table)
        for _ in range(max_sweeps):
            moved = False
            for i in range(len(now)):
                if n_states[i] < 2:
                    continue
                rows = np.repeat(now[None, :], n_states[i], axis=0)
                rows[:, i] = np.arange(n_states[i])
                values = self._part_values(rows, tables[i], touching[i])
                best = int(np.argmax(values))
                if values[best] > values[now[i]] + 1e-12:
                    now[i], moved = best, True
            if not moved:
                break
        return now

    def _part_values(self, rows: Ints, tables: Sequence, sums: Sequence[ConditionalSum]) -> Floats:
        total = np.zeros(len(rows))
        for table in tables:
            index = tuple(rows[:, self.column[v]] for v in table.scope)
            total += table.log_values[index]
        possible = np.flatnonzero(total > -np.inf)
        for part in sums:
            if len(possible):
                total[possible] += part.log_values(np.ascontiguousarray(rows[possible][:, part.query]))
        return total
