"""AND/OR search spaces of networks: a pseudo tree of the query, exact sums below it, and mini-bucket bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from certimap.networks.conditional import ConditionalSum
from certimap.networks.posterior import NetworkPosterior
from certimap.networks.problem import Table
from certimap.networks.relaxation.partition import Region, limit, nuisance_first, split
from certimap.networks.relaxation.split_tree import PassClock, SplitTree
from certimap.networks.relaxation.tighten import Tightener

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
TEMPERATURES = (0.1, 0.01)
MARGIN = 1e-12  # nats by which a subproblem must promise more than is known to be searched
# entries of the largest table, where variables have so many states that the i-bound allows more
TABLE_ENTRIES = 2.0**16


@dataclass(frozen=True, eq=False)
class Lookups:
    """Entries of tables that the states of a path select, for every state of one variable."""

    values: Floats  # the tables, one after another
    # starts, own_strides: where each begins in `values`, and its stride of the variable, 0 where it does not
    # depend on it; shape (tables,)
    starts: Ints
    own_strides: Ints
    # columns, strides: the columns that matter besides, and the stride of each in each table; shapes (columns,),
    # (tables, columns)
    columns: Ints
    strides: Ints

    @classmethod
    def of(cls, values: Floats, tables: Sequence[tuple[int, Ints, Ints]], column: int) -> Lookups:
        """Lay out (start, columns, strides) of tables, for the states of one column."""
        columns = sorted({int(c) for _, own, _ in tables for c in own} - {column})
        place = {c: k for k, c in enumerate(columns)}
        own_strides = np.zeros(len(tables), np.int64)
        strides = np.zeros((len(tables), len(columns)), np.int64)
        for row, (_, own, steps) in enumerate(tables):
            for c, step in zip(own, steps, strict=True):
                if int(c) == column:
                    own_strides[row] = step
                else:
                    strides[row, place[int(c)]] = step
        starts = np.array([start for start, _, _ in tables], np.int64)
        return cls(values, starts, own_strides, np.array(columns, np.int64), strides)

    def total(self, states: Ints, numbers: Ints) -> Floats:
        """Return the sum of the entries at the states of a path and at each number of the variable's states."""
        at = self.starts + self.strides @ states[self.columns]
        return self.values[at[:, None] + self.own_strides[:, None] * numbers].sum(axis=0)


@dataclass(frozen=True)
class Branches:
    """What a variable's states lead to, given its path."""

    value: Floats  # nats that each state adds by itself: tables and exact sums of nuisance, shape (states,)
    bounds: Floats  # upper bounds on each child's subproblem, shape (children, states)

    @property
    def total(self) -> Floats:
        """Upper bounds on the subproblem by state."""
        return self.value + self.bounds.sum(axis=0)


class AndOrSpace:
    """The search space of one problem.

    Query variables form a pseudo tree along the constrained elimination order: given the states on its path, a
    variable's subproblem depends on its *context* only, and the subproblems of its children are independent.
    Groups of nuisance variables hang below the lowest query variable that they meet, and are summed exactly there.

    `posterior`: whose problem is searched. `i_bound`, `iterations`: of the mini-bucket relaxation whose messages
    bound the subproblems. Raises TimeUp when the relaxation would not be ready in time.
    """

    def __init__(self, posterior: NetworkPosterior, i_bound: int, iterations: int) -> None:
        problem = posterior.problem
        order = nuisance_first(problem, control=posterior.control)
        self.problem, self.posterior = problem, posterior
        self.query = [v for v in reversed(order) if v in problem.query]  # ancestors first
        self.column = {v: i for i, v in enumerate(self.query)}
        self.n_states = np.array([problem.sizes[v] for v in self.query], np.int64)
        regions = split(problem, order, lambda scope: True)
        self._hang(regions, order)
        fits, memory = limit(problem.sizes, TABLE_ENTRIES, i_bound), posterior.control.memory_limit
        self.tree = SplitTree.of(problem, order, fits, memory)
        self.clock = PassClock(posterior.control)
        self._tighten(iterations)
        self._place_values()
        self._place_messages()

    # --- construction ------------------------------------------------------------------------------------

    def _hang(self, regions: Sequence[Region], order: Sequence[int]) -> None:
        """Find each query variable's parent and context, and where each nuisance variable hangs."""
        place = {v: i for i, v in enumerate(order)}
        n = len(self.query)
        self.parent = np.full(n, -1, np.int64)
        self.context: list[Ints] = [np.empty(0, np.int64) for _ in range(n)]
        self.below: dict[int, int] = {}  # by nuisance variable; -1 where no query variable is met
        for region in reversed(regions):
            if region.own in self.column:
                i = self.column[region.own]
                self.context[i] = np.array(sorted(self.column[u] for u in region.separator), np.int64)
                if region.separator:
                    self.parent[i] = self.column[min(region.separator, key=place.__getitem__)]
            elif region.separator:
                next_one = min(region.separator, key=place.__getitem__)
                self.below[region.own] = self.column.get(next_one, self.below.get(next_one, -1))
            else:
                self.below[region.own] = -1
        self.children: list[list[int]] = [[] for _ in range(n)]
        for i, p in enumerate(self.parent):
            if p >= 0:
                self.children[p].append(i)
        self.roots = [i for i in range(n) if self.parent[i] < 0]

    def _tighten(self, iterations: int) -> None:
        if self.tree.is_split:
            tightener = Tightener(self.tree, self.clock)
            n_steps = -(-iterations // len(TEMPERATURES))
            for temperature in TEMPERATURES:
                tightener.run(temperature, n_steps)

    def _place_values(self) -> None:
        """Give each table and each nuisance sum to the lowest query variable that it depends on."""
        problem = self.problem
        placed: list[list[Table]] = [[] for _ in self.query]
        self.sums: list[list[tuple[ConditionalSum, Ints]]] = [[] for _ in self.query]
        constants = [float(problem.constant)]
        for table in problem.tables:
            if all(v in self.column for v in table.scope):
                if table.scope:
                    placed[max(self.column[v] for v in table.scope)].append(table)
                else:
                    constants.append(float(table.log_values))
        variables = self.posterior.states.variables
        for part in self.posterior.evaluator.sums:
            columns = np.array([self.column[variables[c]] for c in part.query], np.int64)
            if len(columns):
                self.sums[int(columns.max())].append((part, columns))
            else:
                constants.append(float(part.log_values(np.zeros((1, 0), np.int64))[0]))
        self.constant = math.fsum(constants)
        self.numbers: list[Ints] = [np.arange(int(n), dtype=np.int64) for n in self.n_states]
        self.tables = [self._lookups_of(tables, i) for i, tables in enumerate(placed)]

    def _lookups_of(self, tables: Sequence[Table], column: int) -> Lookups:
        ends = np.cumsum([0, *(t.log_values.size for t in tables)])
        columns = [np.array([self.column[v] for v in t.scope], np.int64) for t in tables]
        laid = [
            (int(start), own, _strides(t.log_values.shape))
            for start, own, t in zip(ends[:-1], columns, tables, strict=True)
        ]
        flat = [np.ravel(t.log_values) for t in tables]
        return Lookups.of(np.concatenate(flat) if flat else np.empty(0), laid, column)

    def _place_messages(self) -> None:
        """Collect, for each query variable, the messages that leave its subtree, and the scales within it."""
        tree, a = self.tree, self.tree.arrays
        s = tree.scratch()
        self.is_possible = tree.bound(scratch=s, clock=self.clock) > -np.inf  # fills the messages in
        at = np.array([self.column.get(v, self.below.get(v, -1)) for v in tree.variables], np.int64)
        messages: list[list[tuple[int, Ints, Ints]]] = [[] for _ in self.query]
        self.scale = np.full(len(self.query), 0.0)
        for r in range(len(a.own)):
            place = int(at[a.own[r]])
            if place < 0:
                continue
            leaves_to = int(at[a.own[a.parent[r]]]) if a.parent[r] >= 0 else -1
            message = self._message(r)
            i = place
            while i >= 0 and i != leaves_to:
                self.scale[i] += float(s.offset[r] + tree.scales[r])
                if message is not None:
                    messages[i].append(message)
                i = int(self.parent[i])
            while i >= 0:
                self.scale[i] += float(s.offset[r] + tree.scales[r])
                i = int(self.parent[i])

        values = s.message.copy()
        self.messages = [Lookups.of(values, row, int(p)) for row, p in zip(messages, self.parent, strict=True)]

    def _message(self, region: int) -> tuple[int, Ints, Ints] | None:
        """Return where a region's message lies if queried variables select its entries; one over hidden ones never
        leaves.
        """
        a = self.tree.arrays
        first, last = int(a.axis_ptr[region]), int(a.axis_ptr[region + 1]) - 1
        if first == last or a.n_query_axes[region] < last - first:
            return None
        variables = [self.tree.variables[int(a.axes[i])] for i in range(first, last)]
        strides = _strides([self.problem.sizes[v] for v in variables])
        return int(a.message_ptr[region]), np.array([self.column[v] for v in variables], np.int64), strides

    # --- questions ---------------------------------------------------------------------------------------

    def branches(self, variable: int, states: Ints) -> Branches:
        """Return values and bounds of a variable's states; `states` holds the path's (others are ignored)."""
        numbers = self.numbers[variable]
        n = len(numbers)
        value = self.tables[variable].total(states, numbers)
        for part, columns in self.sums[variable]:
            rows = np.repeat(states[columns][None, :], n, axis=0)
            rows[:, columns == variable] = numbers[:, None]
            value += part.log_values(np.ascontiguousarray(rows))
        children = self.children[variable]
        bounds = np.empty((len(children), n))
        for k, child in enumerate(children):
            bounds[k] = self.messages[child].total(states, numbers) + self.scale[child]
        return Branches(value, bounds)

    def root_bound(self, root: int) -> float:
        """Return an upper bound on the whole subproblem of a root."""
        return float(self.scale[root])

    def key(self, variable: int, states: Ints) -> tuple[int, bytes]:
        """Return what a variable's subproblem depends on."""
        return variable, states[self.context[variable]].tobytes()

    @property
    def log_slack(self) -> float:
        """How far (nats) bounds and values may be off by rounding."""
        return self.tree.log_slack + self.posterior.evaluator.log_slack + 1e-13 * len(self.tree.arrays.own)

    def assignment(self, states: Ints) -> Mapping[int, int]:
        """Return states by query variable."""
        return {v: int(states[i]) for i, v in enumerate(self.query)}


def _strides(sizes: Sequence[int]) -> Ints:
    """Return the strides of a table in row-major order, in entries."""
    strides = np.ones(len(sizes), np.int64)
    strides[:-1] = np.cumprod(sizes[:0:-1])[::-1]
    return strides
