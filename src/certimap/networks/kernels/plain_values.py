"""Values of points under tables without nuisance variables."""

from __future__ import annotations

import numpy as np

from certimap.core.arrays import Floats, Ints
from certimap.kernels.jit import jit

BLOCK = 32  # points that are valued together, so that no addition waits for another


@jit()
def sum_entries(
    points: Ints, axis_ptr: Ints, columns: Ints, shapes: Ints, starts: Ints, values: Floats, constant: float,
    total: Floats, lost: Floats,
) -> None:  # fmt: skip
    """Set the sum of a constant and an entry per table, and what rounding takes away, shape (batch,) each.

    Table k has the axes `axis_ptr[k] : axis_ptr[k + 1]`: columns of points, and numbers of states. It begins
    at `starts[k]` of `values`. The numbers are those of `add_to`, table by table.
    """
    at = np.empty(BLOCK, np.int64)
    total[:], lost[:] = constant, 0.0
    for first in range(0, len(points), BLOCK):
        n = min(BLOCK, len(points) - first)
        for k in range(len(starts)):
            at[:] = 0
            for j in range(axis_ptr[k], axis_ptr[k + 1]):
                size, column = shapes[j], columns[j]
                for b in range(n):
                    at[b] = at[b] * size + points[first + b, column]
            for b in range(n):
                entry, sum_so_far = values[starts[k] + at[b]], total[first + b]
                added = sum_so_far + entry
                there = added - sum_so_far
                error = (sum_so_far - (added - there)) + (entry - there)
                if np.isfinite(error):
                    lost[first + b] += error
                total[first + b] = added
