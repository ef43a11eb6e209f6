"""Caps: the exact maxima of subcircuits, found bottom-up, which tighten the bound of every box.

A small search with the caps below finds every sum node's maximum over its own scope. A cap bounds its node in
every box, so the search of the whole space starts from nearly exact bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from certimap.circuits.evaluator import probe_arrays
from certimap.circuits.kernels.arrays import ProbeArrays
from certimap.circuits.kernels.caps import LEAF, Trace, scopes, solve_caps, write_traces
from certimap.circuits.kernels.climb import CapTable, Pool
from certimap.circuits.kernels.real import fill_peaks
from certimap.circuits.kernels.statistics import count_roundings
from certimap.circuits.plan import Plan
from certimap.core.arrays import Bytes, Floats, Ints, Ints32
from certimap.core.box import Points
from certimap.core.domain import Domain

MAX_SCOPE_ENTRIES = 30_000_000  # limit on the size of all scopes together; larger circuits get no caps
MAX_SCOPE_WORDS = 50_000_000
POOL_BYTES = 64_000_000
TRACE_ENTRIES = 1 << 14  # initial entries of a trace; it grows fourfold
TRACE_COLUMNS = 32  # bytes of columns for each entry


@dataclass(frozen=True, eq=False)
class PlanView:
    """A plan's arrays for the kernels of the box search."""

    domain: Domain  # the query variables
    # input of the kernels. A categorical variable has one column per state; a real one has two, the halves of its
    # interval below and above a probe's proposed split
    arrays: ProbeArrays
    # low, high: (n,): the intervals of the real variables
    low: Floats
    high: Floats
    roundings: Floats  # (5,): numbers of roundings for outward rounding of bounds, see `rounding.py`

    @classmethod
    def of(cls, plan: Plan) -> PlanView:
        """View a plan; cost linear in its edges."""
        arrays = probe_arrays(plan)
        return cls(plan.domain, arrays, *plan.ends, count_roundings(arrays))

    @property
    def n_nodes(self) -> int:
        return len(self.arrays.is_sum)

    @property
    def n_columns(self) -> int:
        return int(self.arrays.offsets[-1])

    @cached_property
    def n_edges(self) -> int:
        """Edges to inner nodes and leaves, all visited by one pass."""
        return len(self.arrays.children) + len(self.arrays.leaf_var)


@dataclass(eq=False)
class Caps:
    """The known caps of a plan's sum nodes; `advance` computes more."""

    view: PlanView  # the plan
    log_factor: float  # a node is solved when its bound is within this (nats) of its best value
    # limit on boxes of one node's search; multiplied by 8 for unsolved nodes in every further round
    max_boxes: int = 400
    work: int = 0
    table: CapTable = field(init=False)
    max_trace: int = 0  # limit in bytes for recording how searches covered their boxes; 0 records nothing
    is_traced: bool = field(init=False)  # whether the record is complete: it was requested, and fits its limit
    _row: int = 0
    _pool: Pool | None = None
    _trace: Trace = field(init=False)

    def __post_init__(self) -> None:
        self.table = _make_table(self.view)
        self.is_traced = self.max_trace > 0
        self._trace = _make_trace(len(self.table.targets), TRACE_ENTRIES if self.is_traced else 0)

    @property
    def log_caps(self) -> Floats:
        """float64, shape (n_nodes,): an upper bound on every node's natural log in any box; inf where unknown."""
        return self.table.caps

    @property
    def round_done(self) -> bool:
        """Whether every node has been tried in the current round."""
        return self._row >= len(self.table.targets)

    @property
    def complete(self) -> bool:
        """Whether every cap is its node's maximum within the factor."""
        return bool(np.all(self.table.solved))

    def start_round(self) -> None:
        """Return to the unsolved nodes with a higher limit on boxes."""
        self.max_boxes *= 8
        self._row, self._pool = 0, None

    def advance(self, work_limit: int) -> None:
        """Search node after node until about `work_limit` edges have been visited."""
        if self._pool is None:
            self._pool = _make_pool(self.view, self.max_boxes)
        left = work_limit
        while True:
            self._row, work = solve_caps(
                self.view.arrays,
                self.table,
                self._row,
                left,
                self.max_boxes,
                self.log_factor,
                self.view.roundings,
                self.view.low,
                self.view.high,
                self._pool,
                self._trace,
            )
            self.work, left = self.work + int(work), left - int(work)
            if not (self.is_traced and self._trace.used[2]):
                break
            self._grow_trace()

    def _grow_trace(self) -> None:
        """Enlarge the trace, or drop it if too large; the last search is repeated."""
        assert self._pool is not None
        self._pool.stamp[:] = -1
        n = 4 * len(self._trace.kinds)
        self.is_traced = 8 * n <= self.max_trace
        larger = _make_trace(len(self.table.targets), n if self.is_traced else 0)
        if self.is_traced:
            for old, new in zip(self._trace, larger, strict=True):
                new[: len(old)] = old
            larger.used[2] = 0
        self._trace = larger

    def trace(self) -> tuple[Ints, Ints32, Bytes]:
        """Return the record of how searches covered their boxes: nodes, and per node kinds of entries and columns.

        Entries are in preorder: the splitting variable of a box, -1 for none, -2 for dropped columns. Each -2 has
        the remaining columns of the node's scope, as bits, highest bit first, padded to whole bytes.
        """
        roots = self._trace.roots
        searched = (roots >= 0) & (self._trace.kinds[np.maximum(roots, 0)] != LEAF) if len(roots) else roots > 0
        kinds, used = np.empty(int(self._trace.used[0]), np.int32), np.zeros(2, np.int64)
        kept = np.zeros(int(self._trace.used[1]), np.uint8)
        write_traces(self.view.arrays, self.table, self._trace, kinds, kept, used)
        return self.table.targets[searched], kinds[: used[0]], kept[: used[1]]

    def best_point(self) -> Points | None:
        """Return the root's best point, assembled from best points below it, shape (1, n); or None."""
        arrays, table = self.view.arrays, self.table
        point = np.full(len(self.view.domain), np.nan)
        stack = [self.view.n_nodes - 1]
        while stack:
            i = stack.pop()
            row = int(table.slot[i])
            if row >= 0:
                if table.values[row] == -math.inf:
                    return None
                places = slice(table.scope_ptr[row], table.scope_ptr[row + 1])
                point[table.scope_vars[places]] = table.best[places]
                continue
            for leaf in range(arrays.leaf_ptr[i], arrays.leaf_ptr[i + 1]):
                v, start = int(arrays.leaf_var[leaf]), int(arrays.leaf_start[leaf])
                k = int(arrays.n_states[v])
                if k:
                    point[v] = float(np.argmax(arrays.log_tables[start : start + k]))
                else:
                    ends = self.view.low[v : v + 1], self.view.high[v : v + 1]
                    fill_peaks(arrays.functions, arrays.tables, np.array([start]), *ends, point[v : v + 1])
            stack.extend(arrays.children[arrays.child_ptr[i] : arrays.child_ptr[i + 1]].tolist())
        if np.any(np.isnan(point)):
            return None
        return point[None].astype(self.view.domain.point_dtype)

    @property
    def n_bytes(self) -> int:
        arrays: list[Any] = [*self.table, *(self._pool or ())]
        return sum(a.nbytes for a in arrays)


def empty_table(view: PlanView) -> CapTable:
    """Return a table without caps."""
    nothing = np.zeros(0, np.int64)
    return _table_of(view.n_nodes, nothing, np.zeros(1, np.int64), nothing)


def _table_of(n_nodes: int, targets: Ints, scope_ptr: Ints, scope_vars: Ints) -> CapTable:
    """Return a table of unsolved nodes, given their scopes."""
    slot = np.full(n_nodes, -1, np.int64)
    slot[targets] = np.arange(len(targets))
    values, caps = np.full(len(targets), -np.inf), np.full(n_nodes, np.inf)
    best, solved = np.zeros(len(scope_vars)), np.zeros(len(targets), np.bool_)
    return CapTable(targets, slot, scope_ptr, scope_vars, best, values, caps, solved)


def _make_table(view: PlanView) -> CapTable:
    """Lay out the caps of all sum nodes, or of none if their scopes are too large."""
    n, n_nodes = len(view.domain), view.n_nodes
    words = n // 64 + 1
    if n_nodes * words > MAX_SCOPE_WORDS:
        return empty_table(view)
    bits = np.zeros((n_nodes, words), np.uint64)
    scopes(view.arrays, bits)
    targets = np.flatnonzero(view.arrays.is_sum).astype(np.int64)
    members: list[Ints] = []
    sizes: list[Ints] = []
    total = 0
    for start in range(0, len(targets), 1024):
        rows = bits[targets[start : start + 1024]]
        held = np.unpackbits(rows.view(np.uint8), axis=1, bitorder="little")[:, :n]
        sizes.append(held.sum(axis=1, dtype=np.int64))
        members.append(np.nonzero(held)[1])
        total += len(members[-1])
        if total > MAX_SCOPE_ENTRIES:
            return empty_table(view)
    scope_vars = np.concatenate([np.zeros(0, np.int64), *members])
    scope_ptr = np.concatenate([[0], np.cumsum(np.concatenate([np.zeros(0, np.int64), *sizes]))]).astype(np.int64)
    return _table_of(n_nodes, targets, scope_ptr, scope_vars)


def _make_trace(n_targets: int, n_entries: int) -> Trace:
    """Allocate a trace; without entries it records nothing."""
    counts = np.zeros((3, n_entries), np.int64)
    return Trace(
        np.zeros(n_entries, np.int32),
        counts[0],
        counts[1],
        counts[2],
        np.zeros(TRACE_COLUMNS * n_entries, np.uint8),
        np.full(n_targets, -1, np.int64),
        np.zeros(3, np.int64),
    )


def _make_pool(view: PlanView, max_boxes: int) -> Pool:
    """Allocate the room of one node's search."""
    n, n_nodes, columns = len(view.domain), view.n_nodes, view.n_columns
    real = 0 if view.domain.is_discrete else n
    rows = int(min(8 * max_boxes, max(POOL_BYTES // (columns + 16 * real + 8), 64))) + 1
    return Pool(
        np.zeros((rows, columns), np.uint8),
        np.zeros((rows, real)),
        np.zeros((rows, real)),
        np.zeros(rows),
        np.zeros(rows, np.int64),
        np.zeros(columns),
        np.zeros(n),
        np.zeros(n),
        np.zeros(columns, np.uint8),
        np.zeros(n_nodes, np.int64),
        np.zeros(n_nodes + 1, np.int64),
        np.zeros(n_nodes + 1, np.int64),
        np.full(n_nodes, -1, np.int64),
    )


def small_pool(view: PlanView) -> Pool:
    """Return scratch for climbing only."""
    return _make_pool(view, 8)
