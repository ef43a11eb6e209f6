"""Maximising a variable out of a product of integer tables, without ever holding the product."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from certimap.kernels.jit import jit, jit_part

Ints = NDArray[np.int64]
MAX_TABLES = 6
HARD = -(2**60)


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
    n_tables: int,
    t0: Ints,
    t1: Ints,
    t2: Ints,
    t3: Ints,
    t4: Ints,
    t5: Ints,
    rows: Ints,
    strides: Ints,
    is_row: NDArray[np.bool_],
    out: Ints,
    best: NDArray[np.integer],
) -> None:
    """Write max over states s of the sum of tables, and the first state that attains it.

    `start`, `stop`: blocks of the output to write.
    `n_states`: of the variable that is maximised out.
    `rows`: shape (n_tables, n_blocks): where a table's entries for a block begin, at state 0.
    `strides`: shape (n_tables,): how far a table's entries for the next state are; 0 where it lacks the variable.
    `is_row`: whether a table has one entry per element of a block, or one per block.
    `out`: shape (n_blocks, n_low), in units; best: unsigned integers of the same shape, or (0, 0) when not wanted.
    """
    n_low = out.shape[1]
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
