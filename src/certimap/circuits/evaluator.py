"""Answering questions about points and boxes from a plan: blocks of rows, threads, and the choice of domain."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from certimap.box import Boxes, Points
from certimap.circuits.plan import Plan
from certimap.kernels.parallel import for_blocks

if TYPE_CHECKING:
    from certimap.circuits.kernels.arrays import LogRows, PlanArrays

POINT, MASS, BOUND = 0, 1, 2
ACCURATE = 1e-280  # a linear value at least this large has lost nothing that matters to underflow
_LANES = 8
_BLOCK_NUMBERS = 1 << 18  # numbers that a block of rows keeps at hand: 2 MB
_TASK_EDGES = 1 << 26  # edge evaluations that one task does, so that a task lasts some 10 ms
_EPS = float(np.finfo(np.float64).eps)


class Evaluator:
    """Evaluates a plan on batches of points and boxes.

    Rows are evaluated in the linear domain, where every value is at most 1; rows that come out below
    `ACCURATE` are evaluated again in logs, unless the plan cannot take such a value other than zero.
    Plans with real variables are always evaluated in logs.

    Attributes
    ----------
    relative_error
        No computed probability is off by more than this factor of itself (rounding alone).
    """

    def __init__(self, plan: Plan, workers: int) -> None:
        self.plan = plan
        self.workers = workers
        domain = plan.domain
        self.is_discrete = domain.is_discrete
        self._summarise()

    def _summarise(self) -> None:
        from certimap.circuits.kernels.statistics import summarise

        n_nodes = self.plan.n_nodes
        log_smallest, n_roundings, is_top = np.empty(n_nodes), np.empty(n_nodes), np.empty(n_nodes, np.bool_)
        summarise(self.arrays, log_smallest, n_roundings, is_top)
        self.can_underflow = not float(log_smallest[-1]) > np.log(ACCURATE)
        self.relative_error = float(n_roundings[-1]) * _EPS
        self._is_top = is_top
        self._not_top = np.zeros_like(is_top)

    @cached_property
    def arrays(self) -> PlanArrays:
        """The plan as the kernels take it, with the leaves of binary variables first in each product."""
        from certimap.circuits.kernels.arrays import PlanArrays

        plan = self.plan
        binary = plan.domain.n_states[plan.leaf_var] == 2
        order = np.arange(plan.n_leaves) if binary.all() else np.lexsort((~binary, plan.parent_of_leaf))
        counts = np.concatenate([[0], np.cumsum(binary)]).astype(np.int64)
        ends = plan.leaf_ptr[:-1] + counts[plan.leaf_ptr[1:]] - counts[plan.leaf_ptr[:-1]]
        start = plan.leaf_start[order]
        return PlanArrays(
            is_sum=plan.is_sum,
            child_ptr=plan.child_ptr,
            children=plan.children,
            weights=plan.weights,
            log_weights=plan.log_weights,
            leaf_ptr=plan.leaf_ptr,
            binary_end=ends,
            leaf_var=plan.leaf_var[order],
            leaf_start=start,
            first=plan.tables[start],
            second=plan.tables[np.minimum(start + 1, len(plan.tables) - 1)],
            tables=plan.tables,
            log_tables=plan.log_tables,
            decides=plan.decides,
            offsets=plan.domain.offsets,
        )

    @cached_property
    def _slots(self) -> tuple[NDArray[np.int32], int]:
        from certimap.circuits.kernels.evaluate import assign_slots

        plan = self.plan
        n_parents = np.bincount(plan.children, minlength=plan.n_nodes).astype(np.int32)
        slot, free = np.empty(plan.n_nodes, np.int32), np.empty(plan.n_nodes, np.int32)
        return slot, int(assign_slots(plan.child_ptr, plan.children, n_parents, free, slot))

    @cached_property
    def _own_slots(self) -> NDArray[np.int32]:
        return np.arange(self.plan.n_nodes, dtype=np.int32)

    @cached_property
    def _max_members(self) -> int:
        plan = self.plan
        return int(np.max(np.diff(plan.leaf_ptr) + np.diff(plan.child_ptr)))

    def _task_rows(self, n_rows: int, cost: int = 1) -> int:
        """Return how many rows one task takes: about `_TASK_EDGES` evaluations, and 16 tasks where that pays.

        `cost` is the work of an edge, in evaluations. The number of workers plays no part.
        """
        edges = cost * max(self.plan.n_edges, 1)
        few = max(n_rows * edges // (_TASK_EDGES >> 5), 1)
        rows = min(_TASK_EDGES // edges, -(-n_rows // min(few, 16)), 1 << 16)
        return max(-(-rows // _LANES) * _LANES, _LANES)

    @staticmethod
    def _width(n_rows: int, numbers_a_lane: int, largest: int = 256) -> int:
        """Return how many lanes a block has: as many as keep its numbers at hand, 8 at least."""
        fitting = max(_BLOCK_NUMBERS // max(numbers_a_lane, 1), 4 * _LANES)
        if numbers_a_lane > _BLOCK_NUMBERS * 32:
            fitting = _LANES
        n_blocks = -(-n_rows // min(largest, fitting))
        return max(-(-n_rows // (max(n_blocks, 1) * _LANES)) * _LANES, _LANES)

    def box_width(self, n_boxes: int) -> int:
        """Return how many boxes to evaluate at once when the values of all nodes are kept."""
        return self._width(n_boxes, self.plan.n_nodes + self.plan.domain.total_states, 64)

    def log_values(self, mode: int, points: Points | None, boxes: Boxes | None) -> NDArray[np.float64]:
        """Return the root's log value for each row, shape (batch,), rounded to nearest."""
        rows = Rows(points, boxes)
        if not self.is_discrete:
            return self._log_domain(mode, rows, np.arange(rows.n))
        values = self._linear(mode, rows)
        with np.errstate(divide="ignore"):
            out = np.log(values)
        if self.can_underflow:
            low = np.flatnonzero(values < ACCURATE)
            if len(low):
                out[low] = self._log_domain(mode, rows, low)
        return out

    def _linear(self, mode: int, rows: Rows) -> NDArray[np.float64]:
        from certimap.circuits.kernels.evaluate import evaluate

        out = np.empty(rows.n)
        slot, n_slots = self._slots
        n_inputs = len(self.plan.domain) if mode == POINT else self.plan.domain.total_states
        task_rows = self._task_rows(rows.n)
        width = self._width(min(task_rows, rows.n), n_slots + n_inputs)

        def task(start: int, stop: int) -> None:
            inputs, scratch = np.empty((n_inputs, width)), np.empty((1, width))
            values = np.empty((n_slots, width))
            points, mask = rows.points[start:stop], rows.mask[start:stop]
            evaluate(self.arrays, mode, points, mask, slot, inputs, scratch, values, out[start:stop])

        for_blocks(task, rows.n, task_rows, self.workers)
        return out

    def _log_domain(self, mode: int, rows: Rows, chosen: NDArray[np.int64]) -> NDArray[np.float64]:
        from certimap.circuits.kernels.logdomain import log_evaluate

        out = np.empty(len(chosen))
        slot, n_slots = self._slots
        task_rows = self._task_rows(len(chosen), 16)
        width = self._width(min(task_rows, len(chosen)), n_slots, 64)

        def task(start: int, stop: int) -> None:
            scratch, values = np.empty(width), np.empty((n_slots, width))
            some = rows.take(chosen[start:stop])
            log_evaluate(self.arrays, some, mode, slot, scratch, values, out[start:stop])

        for_blocks(task, len(chosen), task_rows, self.workers)
        return out

    def log_each(self, mode: int, boxes: Boxes) -> NDArray[np.float64]:
        """Return the root's log value with variable i set to state a, shape (batch, total_states).

        Bounds are rounded up, and a state that a box holds gets no larger bound than the box.
        """
        rows = Rows(None, boxes)
        if not self.is_discrete:
            return self._log_each_domain(mode, rows, np.arange(rows.n))
        out = self._linear_each(mode, rows)
        if self.can_underflow:
            low = np.flatnonzero(np.any(out < np.log(ACCURATE), axis=1))
            if len(low):
                out[low] = self._log_each_domain(mode, rows, low)
        return out

    def upward_values(
        self, mode: int, rows: Rows, first: int, inputs: NDArray[np.float64], values: NDArray[np.float64]
    ) -> int:
        """Evaluate all nodes on rows from `first` on; return how many lanes hold a row.

        `inputs` (total_states, width) and `values` (n_nodes, width) are filled in.
        """
        from certimap.circuits.kernels.evaluate import load_block, upward

        width = values.shape[1]
        lanes = int(load_block(mode, first, width, rows.points, rows.mask, inputs))
        upward(self.arrays, mode, self._own_slots, inputs, np.empty((1, width)), values)
        return lanes

    def log_upward_values(
        self, mode: int, rows: Rows, chosen: NDArray[np.int64]
    ) -> tuple[LogRows, NDArray[np.float64]]:
        """Evaluate all nodes on chosen rows in logs; return the rows' inputs and the node values."""
        from certimap.circuits.kernels.logdomain import log_upward

        n = len(chosen)
        inputs = rows.take(chosen)
        values, scratch = np.empty((self.plan.n_nodes, n)), np.empty(n)
        log_upward(self.arrays, inputs, mode, 0, n, self._own_slots, scratch, values)
        return inputs, values

    def _linear_each(self, mode: int, rows: Rows) -> NDArray[np.float64]:
        from certimap.circuits.kernels.each import downward

        n_nodes, n_states = self.plan.n_nodes, self.plan.domain.total_states
        n_members = self._max_members
        out = np.empty((rows.n, n_states))
        task_rows = self._task_rows(rows.n, 8)
        width = self._width(min(task_rows, rows.n), 2 * n_nodes + 3 * n_states + 2 * n_members, 64)
        is_top = self._is_top if mode == BOUND else self._not_top

        def task(start: int, stop: int) -> None:
            inputs, values = np.empty((n_states, width)), np.empty((n_nodes, width))
            context = np.empty((n_nodes, width))
            members, prefix = np.empty((n_members, width)), np.empty((n_members + 1, width))
            total, largest = np.empty((n_states, width)), np.empty((n_states, width))
            for first in range(start, stop, width):
                lanes = min(self.upward_values(mode, rows, first, inputs, values), stop - first)
                scratch = (context, members, prefix, total, largest)
                downward(self.arrays, mode, is_top, inputs, values, *scratch)
                block = out[first : first + lanes]
                np.maximum(total[:, :lanes].T, largest[:, :lanes].T, out=block)
                with np.errstate(divide="ignore"):
                    np.log(block, out=block)
                    root = np.log(values[-1, :lanes])
                self._finish_each(mode, block, root, rows.mask[first : first + lanes])

        for_blocks(task, rows.n, task_rows, self.workers)
        return out

    def _finish_each(
        self, mode: int, block: NDArray[np.float64], root: NDArray[np.float64], mask: NDArray[np.bool_]
    ) -> None:
        """Round bounds up, and cap them by the box's own where the box holds the state; in place."""
        if mode == BOUND:
            block[:] = self.outward(block)
            np.minimum(block, self.outward(root)[:, None], out=block, where=mask)

    def _log_each_domain(self, mode: int, rows: Rows, chosen: NDArray[np.int64]) -> NDArray[np.float64]:
        from certimap.circuits.kernels.logdomain import log_downward

        plan = self.plan
        out = np.empty((len(chosen), plan.domain.total_states))
        is_top = self._is_top if mode == BOUND else self._not_top

        def task(start: int, stop: int) -> None:
            context = np.empty(plan.n_nodes)
            members, prefix = np.empty((self._max_members, 1)), np.empty(self._max_members + 1)
            for k in range(start, stop):
                inputs, values = self.log_upward_values(mode, rows, chosen[k : k + 1])
                scratch = (context, members, prefix)
                log_downward(self.arrays, inputs, mode, 0, is_top, values, *scratch, out[k])
                self._finish_each(mode, out[k : k + 1], values[-1], inputs.mask)

        for_blocks(task, len(chosen), self._task_rows(len(chosen), 32), self.workers)
        return out

    def outward(self, log_bounds: NDArray[np.float64]) -> NDArray[np.float64]:
        """Round upper bounds up: by the error of the bound and that of a probability held against it.

        Sums and products of nonnegative numbers keep a relative error of one rounding an operation, so
        that a bound and a probability under it together may be off by `relative_error`. In logs each
        operation errs relative to the size of the log.
        """
        in_logs = np.array(not self.is_discrete) | (log_bounds < np.log(ACCURATE) if self.can_underflow else False)
        growth = np.where(in_logs, self.relative_error, 8 * _EPS)
        with np.errstate(invalid="ignore"):
            raised = log_bounds + (self.relative_error + growth * np.abs(log_bounds))
        raised = np.where(log_bounds == -np.inf, -np.inf, raised)
        return np.minimum(raised, 0.0) if self.is_discrete else raised


class Rows:
    """A batch of points or boxes as the kernels take it: whichever is not asked about is empty."""

    def __init__(self, points: Points | None, boxes: Boxes | None) -> None:
        self.points: NDArray[Any] = np.zeros((0, 0), np.int16) if points is None else points
        self.mask: NDArray[np.bool_] = np.zeros((0, 0), np.bool_)
        self.low_high: NDArray[np.float64] = np.zeros((2, 0, 0))
        self.n = len(self.points)
        if boxes is not None:
            self.mask = np.ascontiguousarray(boxes.mask)
            self.n = len(self.mask)
            if boxes.low is not None and boxes.high is not None:
                self.low_high = np.stack([boxes.low, boxes.high])

    def take(self, rows: NDArray[np.int64]) -> LogRows:
        """Return some rows as the kernels in logs take them."""
        from certimap.circuits.kernels.arrays import LogRows

        if len(self.points):
            return LogRows(np.ascontiguousarray(self.points[rows], np.float64), self.mask, self.low_high)
        low_high = self.low_high[:, rows] if self.low_high.size else self.low_high
        return LogRows(np.zeros((0, 0)), self.mask[rows], np.ascontiguousarray(low_high))
