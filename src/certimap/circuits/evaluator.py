"""Evaluation of a plan, and draws from it: its layout for kernels, blocks of rows, and threads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from certimap.circuits.kernels.arrays import PlanArrays, ProbeArrays
from certimap.circuits.kernels.evaluate import Places, assign_slots, downward, evaluate, load_block, upward
from certimap.circuits.kernels.real import SCALE, answers
from certimap.circuits.kernels.sample import cumulate, sample, sample_in_boxes
from certimap.circuits.kernels.statistics import find_floors, most_roundings, rank_leaves
from certimap.circuits.leaves.kind import function_table
from certimap.circuits.plan import REAL_SIZE, Plan
from certimap.core.arrays import Array, Flags, Floats, Ints, Ints16, Ints32, Words
from certimap.core.box import Boxes, Points
from certimap.core.cached import cached_property
from certimap.core.rounding import LEAST_WEIGHT, NARROW_BITS, SMALLEST_FACTOR, UNIT_BITS
from certimap.errors import QueryError
from certimap.kernels.parallel import PerThread, for_blocks

LN_2 = math.log(2.0)
# 64 rows of states of this many variables outgrow a core's cache. Only access in memory order lets the processor
# prefetch them.
MANY_VARIABLES = 4096
LN_UNIT = UNIT_BITS * LN_2
NUMBERS_TOGETHER = 2**16  # numbers split together: temporary arrays stay small and in cache
# Not stored in plans: their copies go to other processes, where addresses of functions differ.
_laid_out: WeakKeyDictionary[Plan, ProbeArrays] = WeakKeyDictionary()


def split_logs(logs: Floats) -> tuple[Floats, Floats]:
    """Return natural logs, at most 0, as values and counts: `value * 2^(-256 count)`.

    Values with a count are in (2^-384, 2^-128], so that a sum of fewer than 2^128 of them is at most 1. Values
    without are in (2^-384, 1], and -inf becomes 0. Unused parts of the counts take no memory.
    """
    values, counts = np.empty_like(logs), np.zeros(len(logs))
    for start in range(0, len(logs), NUMBERS_TOGETHER):
        part = slice(start, start + NUMBERS_TOGETHER)
        finite = np.isfinite(logs[part])
        safe = np.where(finite, logs[part], 0.0)
        some = np.maximum(np.floor((-safe / LN_2 - NARROW_BITS) / UNIT_BITS), 0.0)
        # For logs below -1e17 the remainder is off by more than 1: clip it to its range.
        rest = np.clip(safe + some * LN_UNIT, -(NARROW_BITS + UNIT_BITS) * LN_2, 0.0)
        values[part] = np.where(finite, np.exp(rest), 0.0)
        if some.any():
            counts[part] = some
    return values, counts


def arrays_of(plan: Plan) -> PlanArrays:
    """Lay a plan out for the evaluation kernels; linear in its edges."""
    mantissas, table_counts = split_logs(plan.log_tables)
    if not plan.domain.is_discrete:
        is_real = plan.domain.n_states[plan.leaf_var] == 0
        entries = np.unique(plan.leaf_start[is_real])[:, None] + np.arange(REAL_SIZE)
        mantissas[entries], table_counts[entries] = 1.0, 0.0
    leaves = _leaf_order(plan, mantissas)
    weights, weight_counts = split_logs(plan.log_weights)
    floors, settles = np.empty(plan.n_nodes), np.empty(plan.n_nodes, np.bool_)
    weight_floors = np.log2(np.maximum(weights, LEAST_WEIGHT))
    find_floors(
        plan.is_sum, plan.child_ptr, plan.children, weight_floors, plan.leaf_ptr, leaves[-1], floors, settles
    )
    edges = (plan.is_sum, plan.child_ptr, plan.children, weights, weight_counts, plan.log_weights)
    tables = (mantissas, table_counts, plan.tables, plan.log_tables, plan.domain.offsets, functions_of(plan))
    return PlanArrays(*edges, *leaves[:-1], *tables, leaves[-1], floors, settles)


def _leaf_order(
    plan: Plan, mantissas: Floats
) -> tuple[Ints, Ints, Ints, Ints, Ints32, Ints, Floats, Floats, Floats]:
    """Return the arrays of `PlanArrays` on leaves, in the order of products: by rank, with many variables by
    variable; and running sums of their floors, one more than leaves."""
    n, variables, starts = plan.n_leaves, plan.leaf_var, plan.leaf_start
    ranks, floors, ends = np.empty(n, np.int8), np.empty(n), np.empty((3, plan.n_nodes), np.int64)
    by_variable = len(plan.domain) > MANY_VARIABLES
    numbers = (plan.domain.n_states, by_variable, mantissas, ranks, floors, ends)
    in_order = rank_leaves(plan.leaf_ptr, variables, starts, *numbers)
    floors = np.where(ranks == 4, -UNIT_BITS, np.log2(floors))
    if not in_order:
        keys = np.repeat(5 * np.arange(plan.n_nodes), np.diff(plan.leaf_ptr)) + ranks
        if by_variable:
            np.add(np.multiply(keys, len(plan.domain), out=keys), variables, out=keys)
        order = np.argsort(keys, kind="stable")
        variables, starts, floors = variables[order], starts[order], floors[order]
        variables.flags.writeable = starts.flags.writeable = False  # as the plan's own: one signature of kernels
        del keys, order
    floors = np.cumsum(np.append(0.0, floors))
    second = np.take(mantissas, starts + 1, mode="clip")
    return plan.leaf_ptr, ends[0], ends[1], ends[2], variables, starts, mantissas[starts], second, floors


def functions_of(plan: Plan) -> Ints:
    """Return the addresses of the plan's real leaves' functions; none in a discrete domain."""
    if plan.domain.is_discrete:
        return np.zeros((0, 8), np.int64)
    return function_table(np.unique(plan.log_tables[plan.leaf_start[plan.domain.n_states[plan.leaf_var] == 0]]))


def probe_arrays(plan: Plan) -> ProbeArrays:
    """Return a plan laid out for the box search and the walks; linear in its edges, and made once."""
    if plan not in _laid_out:
        domain, sizes = plan.domain, plan.domain.n_states[plan.leaf_var]
        # leaves whose products might underflow: real ones, and ones with a tiny entry
        tiny = np.isfinite(plan.log_tables) & (plan.log_tables < math.log(SMALLEST_FACTOR))
        before = np.append(0, np.cumsum(tiny))
        in_logs = (sizes == 0) | (before[plan.leaf_start + sizes] > before[plan.leaf_start])
        widths = np.where(domain.n_states == 0, 2, domain.n_states)
        offsets = np.concatenate([[0], np.cumsum(widths)]).astype(np.int64)
        edges = (plan.is_sum, plan.child_ptr, plan.children, plan.log_weights)
        leaves = (plan.leaf_ptr, plan.leaf_var, plan.leaf_start, in_logs, plan.tables, plan.log_tables)
        columns = (plan.decides, offsets, domain.n_states, _scales(plan), plan.is_whole)
        _laid_out[plan] = ProbeArrays(*edges, *leaves, functions_of(plan), *columns, domain.is_discrete)
    return _laid_out[plan]


def _scales(plan: Plan) -> Floats:
    """Return the smallest scale among each real variable's leaves; 1 for categorical variables."""
    scales = np.full(len(plan.domain), np.inf)
    if plan.domain.is_discrete:
        return np.ones_like(scales)
    real = plan.domain.n_states[plan.leaf_var] == 0
    lengths = answers(functions_of(plan), SCALE, plan.tables, plan.leaf_start[real], 0.0, 0.0)
    np.minimum.at(scales, plan.leaf_var[real], lengths)
    return np.where(np.isfinite(scales), scales, 1.0)


POINT, MASS = 0, 1
_LANES = 8
_LINE = 64  # lanes that fill whole cache lines of inputs, one byte a lane
_BLOCK_NUMBERS = 1 << 18  # numbers per block of rows: 2 MB
_TASK_EDGES = 1 << 26  # edge evaluations per task, so that a task lasts about 10 ms
_TASK_ROWS = 4096  # rows per task of draws
_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class Block:
    """Rows of numbers with exponents (see `kernels/scaled.py`)."""

    # values, counts: (rows, lanes)
    values: Floats
    counts: Floats
    has: Flags  # (rows,): whether a row's counts are in use

    @classmethod
    def empty(cls, n_rows: int, width: int) -> Block:
        """Return an uninitialised block; memory of unused counts is never touched."""
        return cls(np.empty((n_rows, width)), np.empty((n_rows, width)), np.zeros(n_rows, np.bool_))

    def logs(self, rows: slice, lanes: int) -> Floats:
        """Return natural logs of some rows in the first lanes, shape (rows, lanes)."""
        with np.errstate(divide="ignore"):
            out = np.log(self.values[rows, :lanes])
        has = np.flatnonzero(self.has[rows])
        out[has] -= LN_UNIT * self.counts[rows, :lanes][has]
        return out


class Evaluator:
    """Evaluates a plan on batches of points and boxes, and draws points.

    Numbers have their own exponents, so that no row is too improbable and no possible value becomes 0.
    `relative_error` bounds the relative rounding error of any computed probability, conditioning included. A drawn
    row's random numbers depend only on the key and the row, not on threads.
    """

    def __init__(self, plan: Plan, workers: int) -> None:
        self.plan, self.workers = plan, workers
        parts = (plan.is_sum, plan.child_ptr, plan.children, plan.leaf_ptr, plan.leaf_var, plan.domain.offsets)
        self.relative_error = float(most_roundings(*parts)) * _EPS + plan.log_error

    @cached_property
    def arrays(self) -> PlanArrays:
        """The plan's arrays for the kernels."""
        return arrays_of(self.plan)

    @cached_property
    def _slots(self) -> tuple[Ints32, int]:
        plan = self.plan
        n_parents = np.bincount(plan.children, minlength=plan.n_nodes).astype(np.int32)
        slot, free = np.empty(plan.n_nodes, np.int32), np.empty(plan.n_nodes, np.int32)
        return slot, int(assign_slots(plan.child_ptr, plan.children, n_parents, free, slot))

    @cached_property
    def _max_members(self) -> int:
        plan = self.plan
        return int(np.max(np.diff(plan.leaf_ptr) + np.diff(plan.child_ptr)))

    def _task_rows(self, n_rows: int, cost: int = 1) -> int:
        """Return the rows per task: about `_TASK_EDGES` evaluations of `cost` each, and 16 tasks if worthwhile."""
        edges = cost * max(self.plan.n_edges, 1)
        few = max(n_rows * edges // (_TASK_EDGES >> 5), 1)
        rows = min(_TASK_EDGES // edges, -(-n_rows // min(few, 16)), 1 << 16)
        return max(-(-rows // _LANES) * _LANES, _LINE if cost == 1 else _LANES)

    @staticmethod
    def _width(n_rows: int, numbers_a_lane: int, largest: int = 256) -> int:
        """Return the number of lanes of a block: as many as keep its numbers in cache, at least 8."""
        fitting = max(_BLOCK_NUMBERS // max(numbers_a_lane, 1), 4 * _LANES)
        if numbers_a_lane > _BLOCK_NUMBERS * 32:
            fitting = _LANES
        n_blocks = -(-n_rows // min(largest, fitting))
        return max(-(-n_rows // (max(n_blocks, 1) * _LANES)) * _LANES, _LANES)

    def log_values(self, mode: int, points: Points | None, boxes: Boxes | None) -> Floats:
        """Return the root's log value for each row, shape (batch,), rounded to nearest."""
        rows = Rows(points, boxes)
        out = np.empty((2, rows.n))
        slot, n_slots = self._slots
        n_inputs = len(self.plan.domain) if mode == POINT else self.plan.domain.total_states
        task_rows = self._task_rows(rows.n)
        width = self._width(min(task_rows, rows.n), n_slots + n_inputs // 64)
        memory = PerThread(lambda: (self.empty_inputs(n_inputs, width), Block.empty(n_slots + 1, width)))

        def task(start: int, stop: int) -> None:
            inputs, block = memory.value
            part = rows.part(start, stop)
            scratch = (inputs, block.values, block.counts, block.has)
            evaluate(self.arrays, mode, part.points, part.mask, part.low_high, slot, *scratch, out[:, start:stop])

        for_blocks(task, rows.n, task_rows, self.workers)
        with np.errstate(divide="ignore"):
            return np.log(out[0]) - LN_UNIT * out[1]

    def log_each(self, boxes: Boxes) -> Floats:
        """Return ln of the boxes' masses with variable i set to state a, shape (batch, total_states)."""
        rows = Rows(None, boxes)
        n_states, places = self.plan.domain.total_states, self._places
        out = np.empty((rows.n, n_states))
        task_rows = self._task_rows(rows.n, 8)
        width = self._width(min(task_rows, rows.n), places.n_rows + n_states, 64)
        memory = PerThread(lambda: (self.empty_inputs(n_states, width), Block.empty(places.n_rows, width)))

        def task(start: int, stop: int) -> None:
            inputs, block = memory.value
            floors = np.empty(self._max_members + 1)
            for first in range(start, stop, width):
                part = rows.part(first, min(first + width, stop))
                lanes = self.upward_values(part, inputs, block)
                scratch = (floors, block.values, block.counts, block.has)
                downward(self.arrays, places, inputs, part.low_high, *scratch)
                out[first : first + lanes] = block.logs(slice(places.total, places.n_rows), lanes).T

        for_blocks(task, rows.n, task_rows, self.workers)
        return out

    def empty_inputs(self, n_inputs: int, width: int) -> Array:
        """Return memory for a block's inputs: one byte each if states and masks fit."""
        domain = self.plan.domain
        fits = domain.is_discrete and int(domain.n_states.max(initial=0)) <= 256
        return np.empty((n_inputs, width), np.uint8 if fits else np.float64)

    def upward_values(self, rows: Rows, inputs: Array, block: Block) -> int:
        """Weigh all nodes in the first boxes, node i in row i of `block`; return the number of lanes in use.

        `inputs` (total_states, width) is filled in; `block` has at least one more row than nodes.
        """
        scratch = (inputs, rows.low_high, block.values, block.counts, block.has)
        lanes = int(load_block(MASS, 0, rows.points, rows.mask, inputs))
        upward(self.arrays, MASS, 0, np.arange(self.plan.n_nodes, dtype=np.int32), self.plan.n_nodes, *scratch)
        return lanes

    @cached_property
    def _places(self) -> Places:
        n_nodes, n_states, n_members = self.plan.n_nodes, self.plan.domain.total_states, self._max_members
        context = n_nodes + 1
        members = context + n_nodes
        prefix = members + n_members
        total = prefix + n_members + 1
        return Places(context, members, prefix, total, total + n_states)

    @cached_property
    def _cumulated(self) -> Floats:
        out = np.empty_like(self.plan.weights)
        cumulate(self.plan.child_ptr, self.plan.weights, out)
        return out

    def _outputs(self, n: int) -> tuple[Ints16, Floats]:
        domain = self.plan.domain
        return np.zeros((n, len(domain)), np.int16), np.empty((0 if domain.is_discrete else n, len(domain)))

    def _finish(self, states: Ints16, reals: Floats) -> Points:
        domain = self.plan.domain
        if domain.is_discrete:
            return states
        discrete = domain.n_states > 0
        reals[:, discrete] = states[:, discrete]
        return reals

    def sample(self, n: int, rng: np.random.Generator) -> Points:
        """Draw n points from the whole space, shape (n, n_vars)."""
        key = _key(rng)
        states, reals = self._outputs(n)
        arrays, cumulated = self.arrays, self._cumulated

        def task(start: int, stop: int) -> None:
            stack, words = self._walk()
            with np.errstate(over="ignore"):
                sample(arrays, key, start, cumulated, stack, words, states[start:stop], reals[start:stop])

        for_blocks(task, n, _TASK_ROWS, self.workers)
        return self._finish(states, reals)

    def _walk(self) -> tuple[Ints32, Words]:
        return np.empty(len(self.plan.domain) + 2, np.int32), np.empty(4, np.uint64)

    def sample_in(self, n: int, rng: np.random.Generator, boxes: Boxes) -> Points:
        """Draw n points from disjoint boxes, each in proportion to its mass; QueryError if they have none."""
        log_mass = self.log_values(MASS, None, boxes)
        largest = float(log_mass.max(initial=-np.inf))
        if largest == -np.inf:
            raise QueryError(f"the {len(boxes)} boxes to draw from have mass zero; at least one must have some")
        running: Floats = np.cumsum(np.exp(log_mass - largest))
        last = int(np.flatnonzero(log_mass > -np.inf)[-1])
        targets: Floats = rng.random(n) * running[-1]
        places: Ints = np.searchsorted(running, targets, side="right")
        chosen = np.minimum(places, last)
        states, reals = self._outputs(n)
        rows = np.argsort(chosen, kind="stable")
        distinct, counts = np.unique(chosen, return_counts=True)
        ends = np.cumsum(counts)
        key, source = _key(rng), Rows(None, boxes[distinct])
        n_states, n_rows = self.plan.domain.total_states, self.plan.n_nodes + 1

        def task(start: int, stop: int) -> None:
            """Draw the rows inside the boxes `start:stop` of `source`."""
            part, mine = source.part(start, stop), rows[int(ends[start] - counts[start]) : int(ends[stop - 1])]
            lanes = np.repeat(np.arange(stop - start), counts[start:stop])
            width = -(-part.n // _LANES) * _LANES
            inputs, block = self.empty_inputs(n_states, width), Block.empty(n_rows, width)
            self.upward_values(part, inputs, block)
            given = (part.mask, part.low_high, mine, lanes, block.values, block.counts, block.has)
            with np.errstate(over="ignore"):
                sample_in_boxes(self.arrays, key, *given, *self._walk(), states, reals)

        for_blocks(task, len(distinct), self._width(len(distinct), n_rows - 1 + n_states, 64), self.workers)
        return self._finish(states, reals)


class Rows:
    """A batch of points or boxes for the kernels; the other kind is empty."""

    def __init__(self, points: Points | None, boxes: Boxes | None) -> None:
        self.points: Array = np.zeros((0, 0), np.int16) if points is None else points
        self.mask: Flags = np.zeros((0, 0), np.bool_)
        self.low_high: Floats = np.zeros((2, 0, 0))
        self.n = len(self.points)
        if boxes is not None:
            self.mask = np.ascontiguousarray(boxes.mask)
            self.n = len(self.mask)
            if boxes.low is not None and boxes.high is not None:
                self.low_high = np.stack([boxes.low, boxes.high])

    def part(self, start: int, stop: int) -> Rows:
        """Return consecutive rows; their points are read-only, so that kernels are compiled once."""
        out = Rows(None, None)
        out.points, out.mask = self.points[start:stop], self.mask[start:stop]
        out.points.flags.writeable = False
        out.low_high = np.ascontiguousarray(self.low_high[:, start:stop])
        out.n = stop - start
        return out


def _key(rng: np.random.Generator) -> np.uint64:
    return np.uint64(rng.integers(0, 2**64, dtype=np.uint64))
