"""Elimination of buckets: runs of small ones in one pass, and large ones block by block."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from certimap.core.arrays import Floats, Ints
from certimap.kernels.jit import Scalar, jit, jit_part

Places = NDArray[np.uint16]
Numbers = NDArray[Any]
HARD = -(2**60)
FLOOR = -(2**59)
DONE, IMPOSSIBLE, UNSAFE = 0, 1, 2
CONSTANT, ROW, GATHERED = 0, 1, 2


class BucketArrays(NamedTuple):
    """An elimination laid out flat, by places in the order; pieces are the tables, then the buckets' messages."""

    sizes: Ints  # the number of states of each variable
    members: Ints  # the variables of all pieces, by axes; before those of a message the variable that went for it
    first: Ints  # first, last: where the variables of each piece lie among the members
    last: Ints
    start: Ints  # where the entries of each piece lie in the buffer; -1 for messages too large to be there
    input_ptr: Ints
    inputs: Ints  # the pieces that each bucket multiplies


AXIS, DIMS, STEP, DIGIT = 0, 1, 2, 3  # rows of scratch: the axis of a variable; per axis length, stride, counter


@jit_part
def _open(a: BucketArrays, scratch: Ints, i: int) -> Scalar:
    """Set the axes of a bucket's product; return how many entries it has."""
    piece = len(a.start) - len(a.sizes) + i
    size, first = 1, a.first[piece] - 1
    for k in range(first, a.last[piece]):
        v = a.members[k]
        scratch[AXIS, v] = k - first
        scratch[DIMS, k - first] = a.sizes[v]
        size *= a.sizes[v]
    return size


@jit_part
def _set_steps(a: BucketArrays, scratch: Ints, n_axes: Scalar, piece: Scalar) -> None:
    """Set how far a piece's entries lie apart along each axis of the product; 0 where it lacks the variable."""
    for k in range(n_axes):
        scratch[STEP, k] = scratch[DIGIT, k] = 0
    stride = 1
    for k in range(a.last[piece] - 1, a.first[piece] - 1, -1):
        scratch[STEP, scratch[AXIS, a.members[k]]] = stride
        stride *= a.sizes[a.members[k]]


@jit_part
def _next_row(scratch: Ints, n_axes: Scalar, at: Scalar) -> Scalar:
    """Return where the piece's entries of the next row of the product begin."""
    k = n_axes - 2
    while k >= 0:
        scratch[DIGIT, k] += 1
        at += scratch[STEP, k]
        if scratch[DIGIT, k] < scratch[DIMS, k]:
            return at
        at -= scratch[STEP, k] * scratch[DIMS, k]
        scratch[DIGIT, k] = 0
        k -= 1
    return at


@jit()
def max_buckets(
    first: int, last: int, a: BucketArrays, scratch: Ints, lowers: bool, lowest: int, acc: Ints, buffer: Ints,
    best: Places, tops: Ints,
) -> bool:  # fmt: skip
    """Maximise variables out, from bucket number `first` to the one before `last`; return whether all is possible.

    `lowers`: take the largest entry off each message, into `tops`, and raise its finite entries to `lowest`.
    Messages are written to `buffer`, beside all pieces, and the first states that attain them to `best`.
    """
    n_tables = len(a.start) - len(a.sizes)
    for i in range(first, last):
        size, n_axes = _open(a, scratch, i), a.last[n_tables + i] - a.first[n_tables + i] + 1
        for k in range(size):
            acc[k] = 0
        length = scratch[DIMS, n_axes - 1]
        for k in range(a.input_ptr[i], a.input_ptr[i + 1]):
            piece = a.inputs[k]
            _set_steps(a, scratch, n_axes, piece)
            at, step = a.start[piece], scratch[STEP, n_axes - 1]
            for row in range(0, size, length):
                for j in range(length):
                    acc[row + j] = max(acc[row + j] + buffer[at + j * step], HARD)
                at = _next_row(scratch, n_axes, at)
        start, n_states = a.start[n_tables + i], a.sizes[i]
        n_low = size // n_states
        top = HARD
        for low in range(n_low):
            value, state = acc[low], 0
            for s in range(1, n_states):
                if acc[s * n_low + low] > value:
                    value, state = acc[s * n_low + low], s
            buffer[start + low] = value
            best[start + low] = state
            top = max(top, value)
        if lowers or n_axes == 1:
            tops[i] = top
            if top <= FLOOR:
                return False
        if lowers:
            for low in range(start, start + n_low):
                buffer[low] = max(buffer[low] - top, lowest) if buffer[low] > FLOOR else HARD
    return True


@jit()
def decode_buckets(first: int, last: int, a: BucketArrays, best: Places, states: Ints) -> None:
    """Set the states of variables from number `last` - 1 down to `first`, those after them being set."""
    n_tables = len(a.start) - len(a.sizes)
    for i in range(last - 1, first - 1, -1):
        at = 0
        for k in range(a.first[n_tables + i], a.last[n_tables + i]):
            u = a.members[k]
            at = at * a.sizes[u] + states[u]
        states[i] = best[a.start[n_tables + i] + at]


@jit()
def sum_buckets(
    first: int, last: int, a: BucketArrays, scratch: Ints, safe_log2: float, acc: Floats, buffer: Floats,
    log2_least: Floats, log_roots: Floats, totals: Floats,
) -> int:  # fmt: skip
    """Sum variables out, from bucket number `first` to the one before `last`; powers of two scale messages.

    Returns `DONE`; `IMPOSSIBLE` when a sum is 0 everywhere; `UNSAFE` where a product might have a positive entry
    of log base 2 below `safe_log2`, given a bound `log2_least` for each piece. `totals`: the sum of all exponents,
    and how many roundings entries may have gone through, are added. `log_roots`: of sums without a separator.
    """
    n_tables = len(a.start) - len(a.sizes)
    for i in range(first, last):
        size, n_axes = _open(a, scratch, i), a.last[n_tables + i] - a.first[n_tables + i] + 1
        for k in range(size):
            acc[k] = 1.0
        least, length = 0.0, scratch[DIMS, n_axes - 1]
        for k in range(a.input_ptr[i], a.input_ptr[i + 1]):
            piece = a.inputs[k]
            least += log2_least[piece]
            _set_steps(a, scratch, n_axes, piece)
            at, step = a.start[piece], scratch[STEP, n_axes - 1]
            for row in range(0, size, length):
                for j in range(length):
                    acc[row + j] *= buffer[at + j * step]
                at = _next_row(scratch, n_axes, at)
        if least < safe_log2:
            return UNSAFE
        start, n_states = a.start[n_tables + i], a.sizes[i]
        n_low = size // n_states
        totals[1] += a.input_ptr[i + 1] - a.input_ptr[i] + n_states + 1.0
        largest = 0.0
        for low in range(n_low):
            value = 0.0
            for s in range(n_states):
                value += acc[s * n_low + low]
            buffer[start + low] = value
            largest = max(largest, value)
        if largest <= 0.0:
            return IMPOSSIBLE
        shift = math.frexp(largest)[1]
        totals[0] += shift
        smallest, factor = 1.0, math.ldexp(1.0, -shift)
        for low in range(start, start + n_low):
            buffer[low] *= factor
            if 0.0 < buffer[low] < smallest:
                smallest = buffer[low]
        if n_axes == 1:
            log_roots[i] = math.log(buffer[start])
        log2_least[n_tables + i] = math.log2(smallest)
    return DONE


@jit_part
def _join(
    acc: Numbers, table: Numbers, at: Scalar, kind: Scalar, places: Ints, n_low: Scalar, is_sum: Scalar
) -> None:
    """Multiply, or in logs add, a row of a table to `acc`."""
    entry, row = table[at], table[at : at + n_low]  # slices, unlike entries beyond a start, are read as vectors
    if kind == CONSTANT and is_sum:
        for low in range(n_low):
            acc[low] *= entry
    elif kind == CONSTANT:
        for low in range(n_low):
            acc[low] += entry
    elif kind == ROW and is_sum:
        for low in range(n_low):
            acc[low] *= row[low]
    elif kind == ROW:
        for low in range(n_low):
            acc[low] += row[low]
    elif is_sum:
        for low in range(n_low):
            acc[low] *= table[at + places[low]]
    else:
        for low in range(n_low):
            acc[low] += table[at + places[low]]


@jit()
def reduce_out(
    start: int, stop: int, n_states: int, n_tables: int, tables: tuple[Numbers, ...], rows: Ints, strides: Ints,
    kinds: Ints, places: Ints, factor: float, is_sum: bool, targets: Ints, out: Numbers, best: NDArray[np.integer],
    extremes: Numbers,
) -> None:  # fmt: skip
    """Write the sum over states s of a product of tables, or the maximum of a sum and the state that attains it.

    `start`, `stop`: groups of blocks, of numbers `targets` (groups, blocks): a group is read before it is written,
    so that `out` (blocks, n_low) may be a table whose entries for each group lie in the group's place.
    `rows` (tables, blocks): where a table's entries for a block begin, at state 0; `strides`: to the next state.
    `kinds`: whether a table has one entry for a block, a row, or entries at `places` (tables, n_low) from there.
    `factor`: what a product begins with. `is_sum`: else logs are integers, in units.
    `best`: shaped like `out`, or (0, 0) when not wanted; of several states that attain a maximum the first.
    `extremes` (groups, 2): at `start`, the largest and the least positive entry are written.
    """
    n_low, n_together = out.shape[1], targets.shape[1]
    acc, tops = np.empty(n_low, out.dtype), np.empty((n_together, n_low), out.dtype)
    arg = np.zeros(n_low, best.dtype)
    high, least = np.full(n_low, extremes[start, 0]), np.full(n_low, extremes[start, 1])
    for group in range(start, stop):
        for j in range(n_together):
            block, top = group * n_together + j, tops[j]
            for s in range(n_states):
                for low in range(n_low):
                    acc[low] = factor
                for k in range(n_tables):
                    _join(acc, tables[k], rows[k, block] + s * strides[k], kinds[k], places[k], n_low, is_sum)
                if s == 0:
                    for low in range(n_low):
                        top[low] = acc[low] if is_sum or acc[low] > HARD else HARD
                        arg[low] = 0
                elif is_sum:
                    for low in range(n_low):
                        top[low] += acc[low]
                else:
                    for low in range(n_low):
                        better = acc[low] > top[low]
                        top[low] = acc[low] if better else top[low]
                        arg[low] = s if better else arg[low]
            if best.shape[0]:
                best[targets[group, j]] = arg
        for j in range(n_together):
            top, written = tops[j], out[targets[group, j]]
            for low in range(n_low):
                value = top[low]
                written[low] = value
                high[low] = value if value > high[low] else high[low]
                least[low] = value if 0 < value < least[low] else least[low]
    extremes[start, 0], extremes[start, 1] = high.max(), least.min()


@jit()
def lower(values: Ints, top: int, lowest: int) -> None:
    """Subtract the largest entry from logs in place, and raise finite ones to the lowest allowed value."""
    for k in range(len(values)):
        values[k] = max(values[k] - top, lowest) if values[k] > FLOOR else HARD
