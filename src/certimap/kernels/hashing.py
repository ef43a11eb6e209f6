"""Compiled set of fixed-length rows: open addressing with linear probing and exact comparison."""

from __future__ import annotations

import numpy as np

from certimap.core.arrays import Floats, Ints, Ints32, Words
from certimap.kernels.jit import jit


@jit(inline="always")
def _hash(words: Words, row: int) -> np.uint64:
    """Mix the words of a row (multiply, xor-shift)."""
    h = np.uint64(0x9E3779B97F4A7C15)
    for j in range(words.shape[1]):
        h = (h ^ words[row, j]) * np.uint64(0xBF58476D1CE4E5B9)
        h ^= h >> np.uint64(29)
    h *= np.uint64(0x94D049BB133111EB)
    return h ^ (h >> np.uint64(32))


@jit()
def insert_rows(rows: Words, n_rows: int, n_kept: int, kept: Words, table: Ints32, ids: Ints) -> int:
    """Find or add rows, in order; return the number of rows kept afterwards.

    `kept` holds the distinct rows so far (`n_kept` of them, room for `n_rows` more), `table` their positions
    by hash (-1 is free; its size is a power of two above twice the rows), `ids` receives the position of each row.
    """
    mask = np.uint64(table.shape[0] - 1)
    n_words = rows.shape[1]
    for i in range(n_rows):
        slot = np.int64(_hash(rows, i) & mask)
        while True:
            k = table[slot]
            if k < 0:
                for j in range(n_words):
                    kept[n_kept, j] = rows[i, j]
                table[slot] = n_kept
                ids[i] = n_kept
                n_kept += 1
                break
            same = True
            for j in range(n_words):
                if kept[k, j] != rows[i, j]:
                    same = False
                    break
            if same:
                ids[i] = k
                break
            slot = np.int64(np.uint64(slot + 1) & mask)
    return n_kept


@jit()
def rebuild_table(kept: Words, n_kept: int, table: Ints32) -> None:
    """Insert the first `n_kept` rows, all distinct, into an empty table."""
    mask = np.uint64(table.shape[0] - 1)
    for i in range(n_kept):
        slot = np.int64(_hash(kept, i) & mask)
        while table[slot] >= 0:
            slot = np.int64(np.uint64(slot + 1) & mask)
        table[slot] = i


@jit()
def running_sums(log_probs: Floats, total: float, compensation: float, sums: Floats, lost: Floats) -> None:
    """Add exp(log_probs) one by one to a compensated sum (Neumaier); write the pair after each."""
    for i in range(log_probs.shape[0]):
        x = np.exp(log_probs[i])
        t = total + x
        if abs(total) >= abs(x):
            compensation += (total - t) + x
        else:
            compensation += (x - t) + total
        total = t
        sums[i] = total
        lost[i] = compensation
