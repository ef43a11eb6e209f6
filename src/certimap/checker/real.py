"""Real variables as the checker sees them: cells between the values at which a proof cuts them.

A Gaussian counts in a cell with its largest density there, so that what is proved of cells holds for every value
in them; where a variable is summed out, with its mass. Observed values are cells of one value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.checker.models import Arrays, Rejected
from certimap.checker.numbers import UNIT, Floats, Ints

Edges = Mapping[int, Floats]
HALF_LOG_2PI = 0.9189385332046727
FARTHEST = 1e300  # nats below its peak beyond which a density is told no closer


def edges_of(
    variables: Sequence[Mapping[str, Any]], arrays: Arrays, queried: Ints, point: Floats | None = None
) -> Edges:
    """Return the ends of every real variable's cells, ascending, by its position in the model.

    What is queried is cut as the proof says; with `point`, its value for each queried variable, it is one cell of
    that value.
    """
    found: dict[int, Floats] = {}
    real = [v for v, variable in enumerate(variables) if "states" not in variable]
    if not real:
        return found
    intervals = np.asarray(arrays["intervals"], np.float64)
    cuts, ptr = np.asarray(arrays["cuts"], np.float64), np.asarray(arrays["cut_ptr"]).astype(np.int64)
    if intervals.shape != (len(variables), 2) or len(ptr) != len(queried) + 1 or ptr[-1] != len(cuts):
        raise Rejected("the proof's intervals do not fit the model")
    for v in real:
        least, most = (float(x) for x in variables[v]["interval"])
        low, high = max(least, float(intervals[v, 0])), min(most, float(intervals[v, 1]))
        inner = np.zeros(0)
        if v in queried:
            k = int(np.flatnonzero(queried == v)[0])
            inner = cuts[ptr[k] : ptr[k + 1]]
            if point is not None:
                value = float(point[k])
                if not low <= value <= high:
                    raise Rejected(f"the answer {value!r} lies outside of what its variable is confined to")
                low, high, inner = value, value, inner[:0]
        ends = np.concatenate([[low], inner, [high]])
        if not low <= high or (len(inner) and not np.all(np.diff(ends) > 0.0)):
            raise Rejected("the proof's cuts of a real variable do not ascend inside its interval")
        found[v] = ends
    return found


def log_peaks(mean: Floats, sd: Floats, low: Floats, high: Floats, side: int) -> Floats:
    """Return the logs of the largest densities in intervals, rounded to a side; arrays that broadcast."""
    with np.errstate(over="ignore"):
        scaled = (np.clip(mean, low, high) - mean) / sd
        square = 0.5 * scaled * scaled
    square = np.where(square <= FARTHEST, square, FARTHEST if side > 0 else np.inf)
    slack = 8.0 * np.where(np.isfinite(square), square, 0.0) + 2.0 * np.abs(np.log(sd)) + 4.0
    return -square - np.log(sd) - HALF_LOG_2PI + side * slack * UNIT


def log_mass(mean: float, sd: float, low: float, high: float, side: int) -> float:
    """Return the log of a Gaussian's mass in an interval, rounded to a side; of one value its density's."""
    if low == high:
        return float(log_peaks(np.array(mean), np.array(sd), np.array(low), np.array(high), side))
    a, b = (low - mean) / sd, (high - mean) / sd
    if a + b > 0.0:
        a, b = -b, -a
    reach = sum(x * x for x in (a, b) if math.isfinite(x))
    near, far = 0.5 * math.erfc(-b / math.sqrt(2.0)), 0.5 * math.erfc(-a / math.sqrt(2.0))
    found = [near - far + side * (8.0 + 4.0 * reach) * UNIT * near] if near > 1e-290 else []
    candidates = [math.log(x) for x in found if x > 0.0]
    if math.isfinite(b) and b < -1.0 and a == -math.inf:  # Mills' ratio lies between these
        log_density = -0.5 * b * b - HALF_LOG_2PI
        candidates.append(log_density - math.log(-b) + (0.0 if side > 0 else -math.log1p(1.0 / (b * b))))
    if math.isfinite(a) and math.isfinite(b):
        ends = [-0.5 * x * x for x in (a, b)]
        height = (0.0 if a <= 0.0 <= b else max(ends)) if side > 0 else min(ends)
        candidates.append(height - HALF_LOG_2PI + math.log((high - low) / sd))
    if not candidates:
        return math.log(near) if near > 0.0 and side > 0 else (-745.0 if side > 0 else -math.inf)
    best = min(candidates) if side > 0 else max(candidates)
    return best + side * (16.0 + 8.0 * abs(best) + 8.0 * reach) * UNIT


def leaf_logs(params: NDArray[np.float64], ends: Floats, is_queried: bool, side: int) -> Floats:
    """Return what Gaussian leaves (rows of mean and deviation) count in each cell, shape (leaves, cells)."""
    if is_queried:
        return log_peaks(params[:, :1], params[:, 1:], ends[:-1], ends[1:], side)
    low, high = float(ends[0]), float(ends[-1])
    return np.array([[log_mass(float(m), float(s), low, high, side)] for m, s in params])
