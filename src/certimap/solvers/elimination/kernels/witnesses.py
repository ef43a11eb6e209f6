"""Finds a kept vector that dominates each dropped one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from certimap.core.rounding import NEARLY
from certimap.kernels.jit import jit
from certimap.solvers.elimination.kernels.dominance import Floats, Ints

RECENT = 16  # recently dominating rows often dominate again


@jit(inline="never")
def _is_below(values: Floats, row: int, other: int, lead: int) -> bool:
    if values[other, lead] * NEARLY < values[row, lead]:
        return False
    d, width = 0, values.shape[1]
    while d < width and values[other, d] * NEARLY >= values[row, d]:
        d += 1
    return d == width


@jit()
def dominators(values: Floats, ptr: Ints, alive: NDArray[np.bool_], by: Ints) -> None:
    """Write, for each dropped row, a live row of its context that dominates it up to a factor of `NEARLY`.

    Live rows, and dropped rows without such a row, get -1.
    """
    recent = np.empty(RECENT, np.int64)
    for c in range(len(ptr) - 1):
        rows = ptr[c] + np.flatnonzero(alive[ptr[c] : ptr[c + 1]])
        n_found = 0
        for row in range(ptr[c], ptr[c + 1]):
            by[row] = -1
            if alive[row]:
                continue
            lead = int(np.argmax(values[row]))
            for j in range(min(n_found, RECENT)):
                if _is_below(values, row, recent[j], lead):
                    by[row] = recent[j]
                    break
            if by[row] >= 0:
                continue
            for other in rows:
                if _is_below(values, row, other, lead):
                    by[row] = other
                    recent[n_found % RECENT] = other
                    n_found += 1
                    break
