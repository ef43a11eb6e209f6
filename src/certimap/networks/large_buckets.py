"""Elimination of one variable from large tables, row by row: only sums or maxima of products are held."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from certimap.core.arrays import Ints, spread
from certimap.kernels.parallel import for_blocks
from certimap.networks.kernels.buckets import CONSTANT, GATHERED, HARD, ROW, reduce_out
from certimap.networks.problem import Table, Values, product, strides_of

SMALL_TABLE = 2**12  # largest product, in entries, for multiplying tables beforehand
LEAST_ROW, LARGEST_ROW = 128, 2048  # a row that stays one may be shorter
ROWS_PER_TASK = 2**20  # entries of a product between two checks of the clock
MAX_TABLES = 6


class Eliminated(NamedTuple):
    """A message: its values and the states that attain them, if they are maxima, by its own order of variables."""

    table: Table
    best: Values  # empty if it is a sum
    top: float | int  # the largest value
    least: float | int  # the least positive value, inf where there is none


def eliminated(
    v: int,
    separator: Sequence[int],
    tables: Sequence[Table],
    sizes: Mapping[int, int],
    workers: int,
    check: Callable[[], object] = float,
    *,
    factor: float | None = None,
    overwrites: bool = False,
) -> Eliminated:
    """Maximise a variable out of a sum of integer tables, or with a factor sum it out of a product of floats.

    `tables`: at least one. `overwrites`: the largest is written over if it has as many entries as the message.
    `check`: called between blocks. The result does not depend on `workers`.

    New variables take the axes of the one that goes, so that most rows of the largest table stay rows.
    """
    is_sum = factor is not None
    largest = max(tables, key=lambda t: t.log_values.size)
    large = largest.scope
    at = large.index(v)
    scope = (*large[:at], *(u for u in separator if u not in large), *large[at + 1 :])
    n_inner, n_low, n_beyond = 0, 1, len(large) - 1 - at
    while n_inner < len(scope) and (not n_inner or n_low * sizes[scope[-1 - n_inner]] <= LARGEST_ROW):
        if n_inner == n_beyond and n_low >= LEAST_ROW:
            break
        n_low *= sizes[scope[-1 - n_inner]]
        n_inner += 1
    kept, inner = scope[: len(scope) - n_inner], scope[len(scope) - n_inner :]
    outer, together = [u for u in kept if u in large], [u for u in kept if u not in large]
    parts = [_in_rows(t, inner, sizes) for t in _merged(tables, sizes, is_sum)]
    steps = [strides_of(t.scope, sizes) for t in parts]
    rows, places = (np.array([_offsets(s, order, sizes) for s in steps]) for order in ((*outer, *together), inner))
    is_row = (places == np.arange(n_low)).all(axis=1)
    kinds = np.where(places.any(axis=1), np.where(is_row, ROW, GATHERED), CONSTANT)
    strides = np.array([s.get(v, 0) for s in steps])
    targets = _offsets(strides_of(kept, sizes), (*outer, *together), sizes)
    targets = targets.reshape(-1, math.prod(sizes[u] for u in together))
    flat = [t.log_values.reshape(-1) for t in parts]
    flat += [np.zeros(1, flat[0].dtype)] * (MAX_TABLES - len(flat))
    shape, n_groups = [sizes[u] for u in scope], len(targets)
    overwrites &= largest.log_values.size == math.prod(shape)
    out = (largest.log_values if overwrites else np.empty(shape, flat[0].dtype)).reshape(-1, n_low)
    best = np.empty((0, 0) if is_sum else out.shape, best_type(sizes[v]))
    extremes = np.full((n_groups, 2), (0.0, np.inf) if is_sum else (HARD, 0), out.dtype)

    def task(start: int, stop: int) -> None:
        check()
        reduce_out(
            start, stop, sizes[v], len(parts), tuple(flat), rows, strides, kinds, places,
            factor or 0.0, is_sum, targets, out, best, extremes,
        )  # fmt: skip

    for_blocks(task, n_groups, max(1, ROWS_PER_TASK // (n_low * sizes[v] * targets.shape[1])), workers)
    top, least = extremes[:, 0].max().item(), extremes[:, 1].min().item()
    return Eliminated(Table(scope, out.reshape(shape)), best if is_sum else best.reshape(shape), top, least)


def best_type(n_states: int) -> type[np.uint8] | type[np.uint16] | type[np.int64]:
    """Return the smallest type that holds a state."""
    return np.uint8 if n_states <= 256 else np.uint16 if n_states <= 65536 else np.int64


def _offsets(steps: Mapping[int, int], order: Sequence[int], sizes: Mapping[int, int]) -> Ints:
    """Return where the entries lie for all states of some variables."""
    found = np.zeros(1, np.int64)
    for u in order:
        found = (found[:, None] + steps.get(u, 0) * np.arange(sizes[u])).ravel()
    return found


def _in_rows(table: Table, inner: Sequence[int], sizes: Mapping[int, int]) -> Table:
    """Repeat a small table along the variables of a row that it lacks, unless it lacks all."""
    if table.log_values.size > SMALL_TABLE or set(inner).isdisjoint(table.scope):
        return table._replace(log_values=np.ascontiguousarray(table.log_values))
    full = (*(u for u in table.scope if u not in inner), *inner)
    shape = [sizes[u] for u in full]
    return Table(full, np.array(np.broadcast_to(spread(table.log_values, table.scope, full), shape), order="C"))


def _merged(tables: Sequence[Table], sizes: Mapping[int, int], is_sum: bool) -> list[Table]:
    """Multiply small tables, and more until at most `MAX_TABLES` are left."""

    def joined(a: Table, b: Table) -> Table:
        scope = (*a.scope, *(u for u in b.scope if u not in a.scope))
        if is_sum:
            return Table(scope, spread(a.log_values, a.scope, scope) * spread(b.log_values, b.scope, scope))
        return Table(scope, product((a, b), scope, [sizes[u] for u in scope]))

    def size(a: Table, b: Table) -> int:
        return math.prod(sizes[u] for u in {*a.scope, *b.scope})

    out: list[Table] = []
    for table in sorted(tables, key=lambda t: (t.log_values.size, t.scope)):
        k = next((k for k, other in enumerate(out) if size(other, table) <= SMALL_TABLE), None)
        if k is None:
            out.append(table)
        else:
            out[k] = joined(out[k], table)
    while len(out) > MAX_TABLES:
        _, i, j = min((size(a, b), i, j) for i, a in enumerate(out) for j, b in enumerate(out[:i]))
        a, b = out.pop(i), out.pop(j)
        out.append(joined(a, b))
    return out
