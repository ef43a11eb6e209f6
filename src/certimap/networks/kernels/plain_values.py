"""Values of points under tables without nuisance variables."""

from __future__ import annotations

import numpy as np

from certimap.core.arrays import Floats, Ints
from certimap.kernels.jit import jit


@jit()
def sum_entries(
    points: Ints, axis_ptr: Ints, columns: Ints, shapes: Ints, starts: Ints, values: Floats, constant: float,
    total: Floats, lost: Floats,
) -> None:  # fmt: skip
    """Set the sum of a constant and an entry per table, and what rounding takes away, shape (batch,) each.

    Table k has the axes `axis_ptr[k] : axis_ptr[k + 1]`: columns of points, and numbers of states. It begins
    at `starts[k]` of `values`. The numbers are those of `add_to`, table by table.
    """
    for b in range(len(points)):
        sum_so_far, lost_so_far = constant, 0.0
        for k in range(len(starts)):
            at = 0
            for j in range(axis_ptr[k], axis_ptr[k + 1]):
                at = at * shapes[j] + points[b, columns[j]]
            entry = values[starts[k] + at]
            added = sum_so_far + entry
            there = added - sum_so_far
            error = (sum_so_far - (added - there)) + (entry - there)
            if np.isfinite(error):
                lost_so_far += error
            sum_so_far = added
        total[b], lost[b] = sum_so_far, lost_so_far
