"""The checker's view of real variables: cells between the values at which a proof cuts them.

A leaf's value in a cell is its largest density there, so that bounds on cells hold for every value in them; if the
variable is summed out, it is the leaf's mass. An observed value is a cell of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.checker.budget import CheckBudget
from certimap.checker.leaves import KINDS, log_largest, log_share
from certimap.checker.models import Arrays, Question, Rejected
from certimap.checker.normal import log_mass, log_peaks
from certimap.checker.numbers import Floats, Ints

Edges = Mapping[int, Floats]
CELLS = 256  # cells of a leaf evaluated between two readings of the clock
GAUSSIAN = 1
REAL_KINDS = (GAUSSIAN, *KINDS)


def edges_of(
    variables: Sequence[Mapping[str, Any]], arrays: Arrays, queried: Ints, point: Floats | None = None
) -> Edges:
    """Return the ends of every real variable's cells, ascending, by its position in the model.

    Queried variables are cut as the proof says. Given `point`, a value for each queried variable, such a variable
    has one cell, which holds that value alone.
    """
    found: dict[int, Floats] = {}
    real = [v for v, variable in enumerate(variables) if "states" not in variable]
    if not real:
        return found
    intervals, cuts, ptr = arrays["intervals"], arrays["cuts"], arrays["cut_ptr"]
    if (
        intervals.shape != (len(variables), 2)
        or np.any(np.isnan(intervals))
        or cuts.ndim != 1
        or ptr.dtype.kind != "i"
        or ptr.shape != (len(queried) + 1,)
        or not 0 <= ptr[0] <= ptr[-1] == len(cuts)
        or np.any(ptr[1:] < ptr[:-1])
    ):
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
        if not low <= high or low == np.inf or high == -np.inf:
            raise Rejected("the proof's interval of a real variable holds no number")
        # the first cell may hold the end of the interval alone, which belongs to it
        begins = not len(inner) or inner[0] > low or inner[0] == low > -np.inf
        if len(inner) and not (begins and np.all(ends[2:] > ends[1:-1])):
            raise Rejected("the proof's cuts of a real variable do not ascend inside its interval")
        found[v] = ends
    return found


def in_cells(question: Question, edges: Edges) -> Question:
    """Return the question with the cells of each real variable as its states."""
    sizes, logs = question.sizes.copy(), list(np.split(question.log_weights, question.offsets[1:-1]))
    for v, ends in edges.items():
        sizes[v], logs[v] = len(ends) - 1, np.zeros(len(ends) - 1)
    return Question(sizes, question.queried, np.concatenate(logs))


def leaf_logs(
    kind: int, params: NDArray[np.float64], ends: Floats, is_queried: bool, side: int, budget: CheckBudget
) -> Floats:
    """Return the log values of leaves of a kind (one row of parameters each), shape (leaves, cells).

    A value at which two cells meet belongs to the lower one.
    """
    low, high = ends[:-1].copy(), ends[1:]
    low[1:] = np.nextafter(low[1:], np.inf)
    if kind == GAUSSIAN and is_queried:
        return log_peaks(params[:, :1], params[:, 1:2], low, high, side)
    of_leaf = log_largest if is_queried else log_share
    rows = params.tolist()
    if kind == GAUSSIAN:
        return np.array([[log_mass(p[0], p[1], float(low[0]), float(high[-1]), side)] for p in rows])
    out = np.empty((len(rows), len(low)))
    for k, p in enumerate(rows):
        for at in range(0, len(low), CELLS):
            budget.look()
            cells = zip(low[at : at + CELLS].tolist(), high[at : at + CELLS].tolist(), strict=True)
            out[k, at : at + CELLS] = [of_leaf(kind, p, a, b, side) for a, b in cells]
    return out
