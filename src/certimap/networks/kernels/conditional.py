"""Sums over nuisance variables by elimination, for many points of the query at once: rows are the inner axis.

Values are linear: tables and messages are scaled to a largest entry near 1. A row in which a product of the
smallest positive entries might underflow is flagged, and computed once more in logarithms.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from certimap.core.arrays import Bytes, Floats, Ints
from certimap.core.rounding import MESSAGE_LOW, PRODUCT_LOG, SMALLEST_NORMAL
from certimap.kernels.jit import Scalar, jit, jit_part


class SumArrays(NamedTuple):
    """One region per eliminated variable, children before parents; the last region's separator is empty."""

    own: Ints  # the number of states of each region's own variable
    axis_ptr: Ints
    axis_sizes: Ints  # the numbers of states of each separator's variables
    message_start: Ints  # where each message lies in a buffer: one that was received makes room for others
    message_size: Ints
    # the inputs of each region: its local table (starts at 0; child -1), then its children's messages
    input_ptr: Ints
    input_start: Ints
    children: Ints
    stride_ptr: Ints
    strides: Ints  # for each axis (the own variable last) and input, inputs fastest
    local_ptr: Ints  # the extent of each local table
    local_axis_ptr: Ints
    local_sizes: Ints  # the numbers of states of its axes
    table_ptr: Ints  # the tables multiplied into each local table
    table_start: Ints  # where they start among `log_tables`
    table_stride_ptr: Ints
    table_strides: Ints  # their strides along its axes
    query_ptr: Ints
    query_columns: Ints  # the columns of a point that select from each table
    query_strides: Ints
    tables: Floats  # the entries, scaled to a largest entry of 1 per table
    log_tables: Floats


@jit_part
def step(sizes: Ints, first: int, n_axes: int, position: Ints, strides: Ints, p: int, n: int, at: Ints) -> bool:
    """Go on to the next configuration, last axis fastest; False after the last one."""
    a = n_axes - 1
    while a >= 0:
        q = p + a * n
        if position[a] + 1 < sizes[first + a]:
            position[a] += 1
            for i in range(n):
                at[i] += strides[q + i]
            return True
        for i in range(n):
            at[i] -= position[a] * strides[q + i]
        position[a] = 0
        a -= 1
    return False


@jit_part
def first_entries(a: SumArrays, r: int, position: Ints, at: Ints) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    """Go to the first entry of each input; return their number, the axes, and where the own strides are."""
    first, f = a.input_ptr[r], a.axis_ptr[r]
    n, n_axes = a.input_ptr[r + 1] - first, a.axis_ptr[r + 1] - f
    for i in range(n):
        at[i] = a.input_start[first + i]
    position[:n_axes] = 0
    return n, f, n_axes, a.stride_ptr[r] + n_axes * n


@jit_part
def error_of(a: Scalar, b: Scalar, total: Scalar) -> float:
    """Return what rounding took away from a sum of two finite numbers (Knuth); 0 where the sum is not finite."""
    there = total - a
    lost = (a - (total - there)) + (b - there)
    return lost if np.isfinite(lost) else 0.0


@jit_part
def table_bases(a: SumArrays, r: int, points: Ints, bases: Ints) -> None:
    """Write where each of a region's tables starts for every row."""
    first = a.table_ptr[r]
    for j in range(a.table_ptr[r + 1] - first):
        for b in range(len(points)):
            base = a.table_start[first + j]
            for q in range(a.query_ptr[first + j], a.query_ptr[first + j + 1]):
                base += points[b, a.query_columns[q]] * a.query_strides[q]
            bases[j, b] = base


@jit_part
def fill_local(a: SumArrays, r: int, bases: Ints, is_log: bool, position: Ints, at: Ints, local: Floats) -> None:
    """Write the product of a region's tables at every row's point (the sum, for logs)."""
    first = a.table_ptr[r]
    n = a.table_ptr[r + 1] - first
    f = a.local_axis_ptr[r]
    n_axes = a.local_axis_ptr[r + 1] - f
    n_rows = local.shape[1]
    at[:n] = 0
    position[:n_axes] = 0
    for e in range(a.local_ptr[r + 1] - a.local_ptr[r]):
        for b in range(n_rows):
            if is_log:
                value, lost = 0.0, 0.0
                for j in range(n):
                    entry = a.log_tables[bases[j, b] + at[j]]
                    total = value + entry
                    lost += error_of(value, entry, total)
                    value = total
                value += lost
            else:
                value = 1.0
                for j in range(n):
                    entry = a.tables[bases[j, b] + at[j]]
                    value = max(value * entry, SMALLEST_NORMAL) if value > 0.0 and entry > 0.0 else 0.0
            local[e, b] = value
        step(a.local_sizes, f, n_axes, position, a.table_strides, a.table_stride_ptr[r], n, at)


@jit_part
def scale(
    a: SumArrays, r: int, message: Floats, top: Floats, low: Floats, high: Floats, logs: Floats, lost: Floats
) -> None:
    """Scale the rows of a message whose largest entry strayed far from 1: what is taken out is added to `logs`."""
    n_rows = message.shape[1]
    strays = r == len(a.own) - 1
    for b in range(n_rows):
        high[r, b] = np.log(max(top[b], 1.0))
        if not MESSAGE_LOW < top[b] < 1.0 / MESSAGE_LOW:
            strays = True
    if not strays:
        return
    for b in range(n_rows):
        taken = np.log(top[b])
        total = logs[b] + taken
        lost[b] += error_of(logs[b], taken, total)
        logs[b] = total
        high[r, b] = 0.0
        if top[b] > 0.0:
            low[r, b] -= taken
            top[b] = 1.0 / top[b]
    for j in range(a.message_start[r], a.message_start[r] + a.message_size[r]):
        for b in range(n_rows):
            message[j, b] *= top[b]


@jit_part
def flag_rows(a: SumArrays, r: int, n_local: int, local: Floats, low: Floats, high: Floats, flags: Bytes) -> None:
    """Flag the rows in which a product of some inputs, in any order, might leave the range of doubles."""
    for b in range(local.shape[1]):
        least, largest = np.inf, 0.0
        for e in range(n_local):
            value = local[e, b]
            least = min(least, value if value > 0.0 else np.inf)
        least = np.log(least)
        for i in range(a.input_ptr[r] + 1, a.input_ptr[r + 1]):
            least += min(low[a.children[i], b], 0.0)
            largest += high[a.children[i], b]
        if least < PRODUCT_LOG or largest > -PRODUCT_LOG:
            flags[b] = 1


@jit()
def sum_rows(a: SumArrays, points: Ints, message: Floats, local: Floats, flags: Bytes, out: Floats) -> None:
    """Write the log of the sum at each point (shape (rows, columns)); flag rows to be computed again in logs."""
    n_rows = len(points)
    n_tables = int(np.max(np.diff(a.table_ptr)))
    bases = np.empty((n_tables, n_rows), np.int64)
    at = np.empty(max(int(np.max(np.diff(a.input_ptr))), n_tables), np.int64)
    position = np.zeros(64, np.int64)
    product, total, top, least = np.empty(n_rows), np.empty(n_rows), np.empty(n_rows), np.empty(n_rows)
    low, high, lost = np.empty((len(a.own), n_rows)), np.empty((len(a.own), n_rows)), np.zeros(n_rows)
    out[:] = 0.0
    for r in range(len(a.own)):
        table_bases(a, r, points, bases)
        fill_local(a, r, bases, False, position, at, local)
        flag_rows(a, r, a.local_ptr[r + 1] - a.local_ptr[r], local, low, high, flags)
        n, f, n_axes, q = first_entries(a, r, position, at)
        top[:] = 0.0
        least[:] = np.inf
        for j in range(a.message_start[r], a.message_start[r] + a.message_size[r]):
            total[:] = 0.0
            for k in range(a.own[r]):
                e = at[0] + k * a.strides[q]
                if n == 1:
                    for b in range(n_rows):
                        total[b] += local[e, b]
                elif n == 2:
                    m = at[1] + k * a.strides[q + 1]
                    for b in range(n_rows):
                        total[b] += local[e, b] * message[m, b]
                else:
                    for b in range(n_rows):
                        product[b] = local[e, b]
                    for i in range(1, n):
                        m = at[i] + k * a.strides[q + i]
                        for b in range(n_rows):
                            product[b] *= message[m, b]
                    for b in range(n_rows):
                        total[b] += product[b]
            for b in range(n_rows):
                message[j, b] = total[b]
                top[b] = max(top[b], total[b])
                least[b] = min(least[b], total[b] if total[b] > 0.0 else np.inf)
            step(a.axis_sizes, f, n_axes, position, a.strides, a.stride_ptr[r], n, at)
        for b in range(n_rows):
            low[r, b] = np.log(least[b])
        scale(a, r, message, top, low, high, out, lost)
    for b in range(n_rows):
        out[b] += lost[b]


@jit()
def sum_in_logs(a: SumArrays, point: Ints, message: Floats, local: Floats) -> float:
    """Return the log of the sum at one point, in logarithms; what rounding takes away is carried beside each."""
    n_tables = int(np.max(np.diff(a.table_ptr)))
    bases = np.empty((n_tables, 1), np.int64)
    at = np.empty(max(int(np.max(np.diff(a.input_ptr))), n_tables), np.int64)
    position = np.zeros(64, np.int64)
    values, rests = np.empty(int(np.max(a.own))), np.empty(int(np.max(a.own)))
    rest = np.zeros(len(message))
    total, lost = 0.0, 0.0
    for r in range(len(a.own)):
        table_bases(a, r, point.reshape((1, len(point))), bases)
        fill_local(a, r, bases, True, position, at, local.reshape((len(local), 1)))
        n, f, n_axes, q = first_entries(a, r, position, at)
        best = -np.inf
        for j in range(a.message_start[r], a.message_start[r] + a.message_size[r]):
            top = -np.inf
            for k in range(a.own[r]):
                value, below = local[at[0] + k * a.strides[q]], 0.0
                for i in range(1, n):
                    place = at[i] + k * a.strides[q + i]
                    summed = value + message[place]
                    below += error_of(value, message[place], summed) + rest[place]
                    value = summed
                values[k], rests[k] = value, below
                top = max(top, value)
            message[j], rest[j] = top, 0.0
            if top > -np.inf:
                summed = 0.0
                for k in range(a.own[r]):
                    summed += np.exp((values[k] - top) + rests[k])
                message[j] = top + np.log(summed)
                rest[j] = error_of(top, np.log(summed), message[j])
            best = max(best, message[j])
            step(a.axis_sizes, f, n_axes, position, a.strides, a.stride_ptr[r], n, at)
        if best == -np.inf:
            return -np.inf
        for j in range(a.message_start[r], a.message_start[r] + a.message_size[r]):
            moved = message[j] - best
            rest[j] += error_of(message[j], -best, moved)
            message[j] = moved
        summed = total + best
        lost += error_of(total, best, summed)
        total = summed
    return float(total + (lost + rest[a.message_start[len(a.own) - 1]]))
