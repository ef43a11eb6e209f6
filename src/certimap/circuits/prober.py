"""Probers of circuits: one compiled upward and downward pass per box, with the caps of sum nodes.

A cap is the exact maximum of a subcircuit, found by a search with the caps below. It bounds its node in every box.
Circuits that are small mixtures of products also get second-order bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from certimap.circuits import walks
from certimap.circuits.circuit import NodeKind
from certimap.circuits.evaluator import probe_arrays
from certimap.circuits.kernels.arrays import ProbeArrays
from certimap.circuits.kernels.caps import LEAF, SHRUNK, Trace, scopes, solve_caps
from certimap.circuits.kernels.mixture import LeafProducts, bound_mixture, climb_gaussians, slopes_for
from certimap.circuits.kernels.probe import CapTable, Pool, assemble, climb_rows, probe_rows
from certimap.circuits.kernels.real import DENSITY, FIRST, LOG_NORM, answers, peaks_in
from certimap.circuits.kernels.statistics import count_roundings
from certimap.circuits.plan import Plan
from certimap.core.arrays import Array, Bytes, Floats, Ints, Ints32
from certimap.core.box import Answers, Layout, Points, SearchBoxes
from certimap.core.control import Control
from certimap.core.domain import Domain
from certimap.core.posterior import Tightening
from certimap.kernels.mixture_bounds import room_for
from certimap.kernels.parallel import for_blocks

BLOCK = 8  # boxes a thread takes at a time


class PlanProber:
    """Probes a plan; `tighten` finds the maxima of its subcircuits, which cap all later bounds.

    The answers do not depend on the number of `workers`. `log_caps` (n_nodes,) are known upper bounds on every
    node in any box, natural logs; None for none yet.
    """

    def __init__(self, plan: Plan, workers: int, log_caps: Floats | None = None) -> None:
        self.plan, self.workers = plan, workers
        self.view = PlanView.of(plan)
        arrays, ends = self.view.arrays, (self.view.low, self.view.high)
        self.layout = Layout.of(plan.domain, arrays.scales, arrays.is_whole, within=ends)
        self.work = 4 * plan.n_edges
        self.caps: Caps | None = None
        self._control = Control()  # without limits
        self._max_trace = 0
        self._log_caps = empty_table(self.view).caps if log_caps is None else log_caps

    @property
    def n_bytes(self) -> int:
        return 0 if self.caps is None else self.caps.n_bytes

    def probe(self, boxes: SearchBoxes) -> Answers:
        batch, columns = len(boxes), self.view.n_columns
        log_mass, log_bound = np.empty(batch), np.empty(batch)
        each_mass, each_bound = np.empty((batch, columns)), np.empty((batch, columns))
        splits, low, high = np.empty((batch, len(self.view.domain))), boxes.low, boxes.high
        if self.view.domain.is_discrete:  # never read, but the kernel expects one row per box
            low = high = np.zeros((batch, 1))

        def task(start: int, stop: int) -> None:
            rows = slice(start, stop)
            box = (boxes.mask[rows], low[rows], high[rows])
            out = (log_mass[rows], log_bound[rows], each_mass[rows], each_bound[rows], splits[rows])
            probe_rows(self.view.arrays, self._log_caps, self.view.roundings, *box, *out)

        for_blocks(task, batch, BLOCK, self.workers)
        if not self.view.domain.is_discrete:
            log_mass[:], each_mass[:] = np.nan, np.nan
        return Answers(log_mass, log_bound, each_mass, each_bound, splits)

    def heed(self, control: Control) -> None:
        self._control = control

    def starts(self) -> Points:
        """Return the root's best point from the caps; without caps, max-product's point."""
        if self.caps is None:
            return walks.max_product(self.plan)
        point = self.caps.best_point()
        return np.empty((0, len(self.plan.domain)), self.plan.domain.point_dtype) if point is None else point

    def climb(self, points: Points) -> Points:
        """Return the points reached by hill climbing, shape (batch, n).

        Categorical variables go to their best state given the others, real ones take mean-shift steps. One
        upward and one downward pass per round.
        """
        work, climb = np.array(points, np.float64), self._climber()
        for row in range(len(work)):
            if self._control.should_stop:
                break
            climb(work[row : row + 1])
        return work.astype(self.view.domain.point_dtype)

    def _climber(self) -> Callable[[Floats], None]:
        """Return the function that climbs from the rows of an array, in place."""
        view = self.view
        return partial(climb_rows, view.arrays, empty_table(view), view.low, view.high, make_pool(view))

    def tighten(self, work: int, log_factor: float, within: SearchBoxes, log_threshold: float) -> Tightening:
        """Search sum nodes bottom-up for their maxima; each further round allows a node more boxes."""
        if self.caps is None:
            self.caps = Caps(self.view, log_factor, max_trace=self._max_trace)
            self._log_caps = self.caps.log_caps
        elif self.caps.round_done:
            if self.caps.complete:
                return Tightening(0, True, True)
            self.caps.start_round()
        self.caps.log_factor = log_factor
        before = self.caps.work
        self.caps.advance(work)
        return Tightening(self.caps.work - before, self.caps.round_done, self.caps.complete)

    def keep_trace(self, max_bytes: int) -> None:
        self._max_trace = max_bytes

    def trace(self) -> dict[str, Array] | None:
        if self.caps is None:
            return {}
        if not self.caps.is_traced:
            return None
        nodes, kinds, columns = self.caps.trace()
        numbers = self.plan.sum_numbers[nodes].astype(np.int32)
        return {"cap_nodes": numbers, "cap_splits": kinds, "cap_kept": columns} if len(nodes) else {}


MAX_COMPONENTS = 8000
MAX_MIXED = 2000  # limit with categorical query variables: caps, unused here, help with these
MAX_LEAVES = 64_000  # of all components together
MIXED_BLOCK = 64  # boxes a thread takes at a time, of a small mixture
N_STARTS = 64  # components whose peaks start climbs
N_SLOW_STARTS = 8  # number of starts if a step is a pass through the circuit


@dataclass(frozen=True, eq=False)
class FlatMixture:
    """A plan with its products multiplied out."""

    log_weights: Floats  # natural logs, shape (K,)
    starts: Ints  # start of the vector of each variable's leaf in the plan's tables, (K, n)


def flattened(plan: Plan) -> FlatMixture | None:
    """Multiply a plan out; None if that has no use, or gives too many components.

    It is useful if a variable has a density with known curvature. Whole numbers have none, and the bars of a
    histogram are better kept apart.
    """
    domain = plan.domain
    real = domain.n_states == 0
    if not np.any(real) or np.any(plan.is_whole) or np.any(real[plan.decides[plan.decides >= 0]]):
        return None
    most, counts = MAX_COMPONENTS if np.all(real) else MAX_MIXED, np.ones(plan.n_nodes)
    for i in range(plan.n_nodes):
        terms = counts[plan.children[plan.child_ptr[i] : plan.child_ptr[i + 1]]]
        counts[i] = terms.sum() if plan.is_sum[i] else terms.prod()
    if counts[-1] > min(most, MAX_LEAVES // len(domain)):
        return None
    parts: list[tuple[Floats, Ints]] = []
    for i in range(plan.n_nodes):
        below: list[int] = plan.children[plan.child_ptr[i] : plan.child_ptr[i + 1]].tolist()
        if plan.is_sum[i]:
            weights: list[float] = plan.log_weights[plan.child_ptr[i] : plan.child_ptr[i + 1]].tolist()
            sums: list[Floats] = [parts[c][0] + w for c, w in zip(below, weights, strict=True)]
            parts.append((np.concatenate(sums), np.concatenate([parts[c][1] for c in below])))
            continue
        leaves = slice(plan.leaf_ptr[i], plan.leaf_ptr[i + 1])
        logs: Floats = np.zeros(1)
        starts: Ints = np.full((1, len(domain)), -1)
        starts[0, plan.leaf_var[leaves]] = plan.leaf_start[leaves]
        for c in below:
            logs = (logs[:, None] + parts[c][0]).ravel()
            starts = np.maximum(starts[:, None], parts[c][1]).reshape(len(logs), -1)
        parts.append((logs, starts))
    possible = parts[-1][0] > -np.inf
    return FlatMixture(parts[-1][0][possible], np.ascontiguousarray(parts[-1][1][possible]))


def _components(arrays: ProbeArrays, flat: FlatMixture) -> LeafProducts:
    """Return the products with the peaks of their real leaves."""
    tables, low, high = (
        arrays.tables,
        np.full(len(arrays.n_states), np.inf),
        np.full(len(arrays.n_states), -np.inf),
    )
    shape = flat.starts.shape
    tops, means, precisions = np.zeros(shape), np.zeros(shape), np.full(shape, np.nan)
    for v in np.flatnonzero(arrays.n_states == 0).tolist():
        starts = flat.starts[:, v]
        at = peaks_in(arrays.functions, tables, starts, -np.inf, np.inf)
        tops[:, v] = answers(arrays.functions, DENSITY, tables, starts, at, at) - tables[starts + LOG_NORM]
        low[v], high[v], mean = at.min(), at.max(), tables[starts + FIRST]
        whole = (tables[starts] == NodeKind.GAUSSIAN) & (tables[starts + LOG_NORM] == 0.0) & (at == mean)
        means[whole, v], precisions[whole, v] = mean[whole], 1.0 / tables[starts + FIRST + 1][whole]
    return LeafProducts(flat.log_weights, flat.starts, tops, means, precisions, low, high)


class MixtureProber(PlanProber):
    """Probes a plan by the bounds of `kernels/mixture_bounds.py`, for the plan multiplied out, and of
    `PlanProber`.
    """

    def __init__(self, plan: Plan, workers: int, flat: FlatMixture) -> None:
        super().__init__(plan, workers)
        self.flat = flat
        n = len(plan.domain)
        self._components = _components(self.view.arrays, flat)
        self.is_real = not np.any(plan.domain.n_states)
        self.is_gaussian = self.is_real and not np.any(np.isnan(self._components.precisions))
        self._log_tops = flat.log_weights + self._components.tops.sum(axis=1)
        self.work = len(flat.log_weights) * n * (2 + n // 4) + (0 if self.is_real else 4 * plan.n_edges)

    def probe(self, boxes: SearchBoxes) -> Answers:
        batch, n = len(boxes), len(self.plan.domain)
        log_bound, halves = np.empty(batch), np.empty((batch, 2))
        splits, middles = np.empty((batch, n)), np.zeros((batch, n))

        def task(start: int, stop: int) -> None:
            rows = slice(start, stop)
            box = (boxes.mask[rows], boxes.low[rows], boxes.high[rows])
            out = (log_bound[rows], halves[rows], splits[rows], middles[rows])
            room = room_for(len(self.flat.log_weights), n, False)
            bound_mixture(self.view.arrays, self._components, *box, room, *out)

        for_blocks(task, batch, MIXED_BLOCK, self.workers)
        columns = boxes.mask.shape[1]
        if self.is_real:
            each = np.repeat(log_bound[:, None], columns, axis=1)
            rows, chosen = np.nonzero(~np.isnan(splits))
            each[rows, 2 * chosen], each[rows, 2 * chosen + 1] = halves[rows].T
            unknown = np.full(batch, np.nan)
            return Answers(unknown, log_bound, np.full((batch, columns), np.nan), each, splits, middles)
        answers = super().probe(boxes)
        log_bound = np.minimum(log_bound, answers.log_bound)
        of_reals = self.layout.is_real[self.layout.variable_of]  # those answers are for halves at other splits
        each = np.where(of_reals, log_bound[:, None], np.minimum(answers.each_bound, log_bound[:, None]))
        return replace(answers, log_bound=log_bound, each_bound=each, splits=splits, middles=middles)

    def starts(self) -> Points:
        """Return max-product's point, and the points reached by climbing from the components' peaks."""
        first = super().starts()
        n_starts = N_STARTS if self.is_gaussian else N_SLOW_STARTS
        order = np.argsort(-self._log_tops, kind="stable")[:n_starts]
        arrays, view, points = self.view.arrays, self.view, np.empty((len(order), len(self.plan.domain)))
        for v, size in enumerate(self.plan.domain.n_states):
            starts = self.flat.starts[order, v]
            if size:
                points[:, v] = np.argmax(arrays.log_tables[starts[:, None] + np.arange(size)], axis=1)
            else:
                points[:, v] = peaks_in(arrays.functions, arrays.tables, starts, view.low[v], view.high[v])
        return np.concatenate([first, self.climb(points)])

    def _climber(self) -> Callable[[Floats], None]:
        """Return the function that climbs from the rows of an array; with Gaussian leaves by Newton steps."""
        if not self.is_gaussian:
            return super()._climber()
        given = (self._components, self._log_tops, self.view.low, self.view.high)
        return partial(climb_gaussians, *given, slopes_for(*self.flat.starts.shape))

    def tighten(self, work: int, log_factor: float, within: SearchBoxes, log_threshold: float) -> Tightening:
        """There is nothing to tighten: second-order bounds are better than caps."""
        return Tightening(0, True, True)


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
            self._pool = make_pool(self.view, self.max_boxes)
        left = work_limit
        limits = (self.max_boxes, self.log_factor, self.view.roundings, self.view.low, self.view.high)
        while True:
            given = (self.table, self._row, left, *limits, self._pool, self._trace)
            self._row, work = solve_caps(self.view.arrays, *given)
            self.work, left = self.work + int(work), left - int(work)
            if not (self.is_traced and self._trace.used[2]):
                break
            self._pool.stamp[:] = -1  # the last search is repeated, with a larger trace or none
            n = 4 * len(self._trace.kinds)
            self.is_traced = 8 * n <= self.max_trace
            larger = _make_trace(len(self.table.targets), n if self.is_traced else 0)
            for old, new in zip(self._trace, larger, strict=True) if self.is_traced else ():
                new[: len(old)] = old
            larger.used[2] = 0
            self._trace = larger

    def trace(self) -> tuple[Ints, Ints32, Bytes]:
        """Return the record of how searches covered their boxes: nodes, and per node kinds of entries and columns.

        Entries are in preorder: the splitting variable of a box, -1 for none, -2 for dropped columns. Each -2 has
        the remaining columns of the node's scope, as bits, highest bit first, padded to whole bytes.
        """
        trace, widths, nodes = self._trace, np.diff(self.view.arrays.offsets), list[int]()
        kinds, kept = list[int](), [np.empty(0, np.uint8)]
        for row, root in enumerate(trace.roots.tolist()):
            if root < 0 or trace.kinds[root] == LEAF:
                continue
            nodes.append(int(self.table.targets[row]))
            scope = self.table.scope_vars[self.table.scope_ptr[row] : self.table.scope_ptr[row + 1]]
            size, stack = int(widths[scope].sum()), [root]
            while stack:
                entry = stack.pop()
                kinds.append(kind := int(trace.kinds[entry]))
                if kind == SHRUNK:
                    kept.append(np.packbits(trace.kept[trace.kept_at[entry] : trace.kept_at[entry] + size]))
                if kind != LEAF:
                    first = int(trace.below[entry])
                    stack += reversed(range(first, first + int(trace.n_below[entry])))
        return np.array(nodes, np.int64), np.array(kinds, np.int32), np.concatenate(kept)

    def best_point(self) -> Points | None:
        """Return the root's best point, assembled from best points below it, shape (1, n); or None."""
        arrays, table, root = self.view.arrays, self.table, self.view.n_nodes - 1
        tops = (
            [root]
            if table.slot[root] >= 0
            else arrays.children[arrays.child_ptr[root] : arrays.child_ptr[root + 1]]
        )
        rows = table.slot[tops]
        if np.any(table.values[rows[rows >= 0]] == -math.inf):
            return None
        pool = make_pool(self.view)
        assemble(arrays, root, table, self.view.low, self.view.high, pool)
        return pool.trial[None].astype(self.view.domain.point_dtype)

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
    kinds, counts = np.zeros(n_entries, np.int32), np.zeros((3, n_entries), np.int64)
    kept, roots = np.zeros(TRACE_COLUMNS * n_entries, np.uint8), np.full(n_targets, -1, np.int64)
    return Trace(kinds, counts[0], counts[1], counts[2], kept, roots, np.zeros(3, np.int64))


def make_pool(view: PlanView, max_boxes: int = 8) -> Pool:
    """Allocate the room of one node's search; by default for climbing only."""
    n, n_nodes, columns = len(view.domain), view.n_nodes, view.n_columns
    real = 0 if view.domain.is_discrete else n
    rows = int(min(8 * max_boxes, max(POOL_BYTES // (columns + 16 * real + 8), 64))) + 1
    boxes = (np.zeros((rows, columns), np.uint8), np.zeros((rows, real)), np.zeros((rows, real)), np.zeros(rows))
    points = (np.zeros(columns), np.zeros(n), np.zeros(n), np.zeros(columns, np.uint8))
    walk = (np.zeros(n_nodes, np.int64), np.zeros(n_nodes + 1, np.int64), np.zeros(n_nodes + 1, np.int64))
    return Pool(*boxes, np.zeros(rows, np.int64), *points, *walk, np.full(n_nodes, -1, np.int64))
