"""Elimination of buckets: runs of small ones in one pass, and the maxima of large ones block by block."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from certimap.core.arrays import Flags, Floats, Ints
from certimap.kernels.jit import Scalar, jit, jit_part

Places = NDArray[np.uint16]
HARD = -(2**60)
FLOOR = -(2**59)
DONE, IMPOSSIBLE, UNSAFE = 0, 1, 2


class BucketArrays(NamedTuple):
    """An elimination laid out flat: variables by their places in the order, buckets by those of their variables.

    What is multiplied are pieces, in one buffer: first all tables, then the messages of all buckets.
    """

    sizes: Ints  # the number of states of each variable
    # the variables of all pieces, axes in the order of their entries; before those of a message stands the
    # variable that was eliminated for it
    members: Ints
    # first, last: where the variables of each piece lie among the members
    first: Ints
    last: Ints
    start: Ints  # where the entries of each piece lie in the buffer; -1 for messages too large to be there
    # input_ptr, inputs: the pieces that each bucket multiplies
    input_ptr: Ints
    inputs: Ints


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
    first: int,
    last: int,
    a: BucketArrays,
    scratch: Ints,
    lowers: bool,
    lowest: int,
    acc: Ints,
    buffer: Ints,
    best: Places,
    tops: Ints,
) -> bool:
    """Maximise variables out, from bucket number `first` to the one before `last`; return whether all is possible.

    `lowers`: take the largest entry off each message, and raise its finite entries to `lowest`.
    `acc`: room for one product.
    `buffer`: the entries of all pieces, in units; messages, which are maxima, are written.
    `best`: written where each message lies: the first states that attain its entries.
    `tops`: written: what was taken off each message; of one without a separator, its value.
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
    first: int,
    last: int,
    a: BucketArrays,
    scratch: Ints,
    safe_log2: float,
    acc: Floats,
    buffer: Floats,
    log2_least: Floats,
    log_roots: Floats,
    totals: Floats,
) -> int:
    """Sum variables out, from bucket number `first` to the one before `last`.

    `safe_log2`: give up where a product might have a positive entry of a lower log base 2.
    `acc`: room for one product.
    `buffer`: the entries of all pieces: tables, each scaled to a largest entry of about 1; sums over a power of
    two, so that the largest entry of each lies in [0.5, 1), are written.
    `log2_least`: for each piece at most log base 2 of its least positive entry; those of messages are written.
    `log_roots`: written: natural logs of the sums without a separator, their powers of two apart.
    `totals`: shape (2,): the sum of all exponents, and how many roundings entries may have gone through, are
    added.

    Returns `DONE`; `IMPOSSIBLE` when a sum is 0 everywhere; `UNSAFE` when it gave up.
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


MAX_TABLES = 6


@jit_part
def _add(acc: Ints, table: Ints, row: int, is_row: bool, n_low: int) -> None:
    """Add a row of a table, or one entry of it, to every element of `acc`."""
    if is_row:
        for low in range(n_low):
            acc[low] += table[row + low]
    else:
        shift = table[row]
        for low in range(n_low):
            acc[low] += shift


@jit()
def max_out(
    start: int,
    stop: int,
    n_states: int,
    tables: tuple[Ints, Ints, Ints, Ints, Ints, Ints],
    rows: Ints,
    strides: Ints,
    is_row: Flags,
    out: Ints,
    best: NDArray[np.integer],
) -> None:
    """Write max over states s of the sum of tables, and the first state that attains it.

    `start`, `stop`: blocks of the output to write.
    `n_states`: of the variable that is maximised out.
    `tables`: flat; those beyond the rows of `rows` are not read.
    `rows`: shape (n_tables, n_blocks): where a table's entries for a block begin, at state 0.
    `strides`: shape (n_tables,): how far a table's entries for the next state are; 0 where it lacks the variable.
    `is_row`: whether a table has one entry per element of a block, or one per block.
    `out`: shape (n_blocks, n_low), in units; best: unsigned integers of the same shape, or (0, 0) when not wanted.
    """
    n_tables, n_low = len(rows), out.shape[1]
    t0, t1, t2, t3, t4, t5 = tables
    acc = np.empty(n_low, np.int64)
    top = np.empty(n_low, np.int64)
    arg = np.empty(n_low, np.int64)
    for block in range(start, stop):
        for s in range(n_states):
            for low in range(n_low):
                acc[low] = 0
            _add(acc, t0, rows[0, block] + s * strides[0], is_row[0], n_low)
            if n_tables > 1:
                _add(acc, t1, rows[1, block] + s * strides[1], is_row[1], n_low)
            if n_tables > 2:
                _add(acc, t2, rows[2, block] + s * strides[2], is_row[2], n_low)
            if n_tables > 3:
                _add(acc, t3, rows[3, block] + s * strides[3], is_row[3], n_low)
            if n_tables > 4:
                _add(acc, t4, rows[4, block] + s * strides[4], is_row[4], n_low)
            if n_tables > 5:
                _add(acc, t5, rows[5, block] + s * strides[5], is_row[5], n_low)
            if s == 0:
                for low in range(n_low):
                    top[low] = max(acc[low], HARD)
                    arg[low] = 0
            else:
                for low in range(n_low):
                    better = acc[low] > top[low]
                    top[low] = acc[low] if better else top[low]
                    arg[low] = s if better else arg[low]
        for low in range(n_low):
            out[block, low] = top[low]
        if best.shape[0]:
            for low in range(n_low):
                best[block, low] = arg[low]
