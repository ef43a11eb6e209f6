"""Sums and products of numbers kept as natural logs, rounded to one side.

An operation changes a log by a few units of 2^-52 and by one unit in its last place; `up` raises it by more than
that, so a number computed through `up` alone is at least the true one. -inf is an exact 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
UNIT = 2.0**-52


def up(values: Any, steps: float = 1.0) -> Floats:
    """Round logs up by `steps` units, and by 1.5 of the last place of each; down where `steps` is negative.

    The steps cover relative errors of the value, the places rounding errors of its log.
    """
    values = np.asarray(values, np.float64)
    outward = np.maximum if steps > 0.0 else np.minimum
    return outward(values * (1.0 - 2.0 * UNIT), values * (1.0 + 2.0 * UNIT)) + steps * UNIT


def log_sum(values: Floats, axis: int = -1, side: int = 1) -> Floats:
    """Return the log of the sum of exponentials along an axis, rounded up (down with side -1); no terms: -inf."""
    if values.shape[axis] == 0:
        return np.full(np.delete(np.array(values.shape), axis), -np.inf)
    top = np.max(values, axis=axis, keepdims=True)
    base = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        sums = np.log(np.sum(np.exp(values - base), axis=axis))
    return up(np.squeeze(base, axis) + sums, side * (values.shape[axis] + 8.0))


def log_sum_runs(values: Floats, starts: Ints, counts: Ints, side: int = 1) -> Floats:
    """Return the log sums of runs of rows as `log_sum` does, no run empty, shape (runs, columns)."""
    top = np.maximum.reduceat(values, starts, axis=0)
    base = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        sums = np.log(np.add.reduceat(np.exp(values - np.repeat(base, counts, axis=0)), starts, axis=0))
    return up(base + sums, side * (8.0 + float(counts.max(initial=1))))


def run_starts(counts: Ints) -> Ints:
    """Return the starts of consecutive runs, given their lengths."""
    return np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64) if len(counts) else np.empty(0, np.int64)


def ranges(starts: Ints, counts: Ints) -> Ints:
    """Return starts[0], starts[0] + 1, ... for each run in turn."""
    total = int(counts.sum())
    return np.arange(total) - np.repeat(run_starts(counts), counts) + np.repeat(starts, counts)
