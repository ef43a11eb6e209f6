"""Proofs from the values of a circuit's points: of all points, or of a list and the probability outside it."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from certimap.checker.budget import FLOAT, CheckBudget
from certimap.checker.circuit import PlainCircuit
from certimap.checker.models import Arrays, Rejected
from certimap.checker.numbers import UNIT, Floats, Ints, up

TOGETHER, MAX_NUMBERS = 65536, 2**22  # points, and numbers in them, evaluated at once
POINT_COST = 8  # copies of a file's points held at once


def _rows(points: NDArray[np.int64]) -> NDArray[np.void]:
    """View each row of numbers as one comparable item."""
    return np.ascontiguousarray(points).view(np.dtype((np.void, points.shape[1] * FLOAT)))[:, 0]


def _refuted(
    circuit: PlainCircuit, points: NDArray[np.int64], answers: NDArray[np.int64], threshold: float
) -> str | None:
    """Return a sentence about a point above the threshold that is no answer, or None."""
    values = circuit.values(points)
    rivals = np.where(np.isin(_rows(points), _rows(answers)), -np.inf, values)
    worst = int(np.argmax(rivals))
    if rivals[worst] <= threshold:  # NaN, which argmax finds first, is not
        return None
    return f"the joint state {points[worst].tolist()} has the log value {rivals[worst]:.12g}, above the claim"


def check_every_point(circuit: PlainCircuit, answers: NDArray[np.int64], threshold: float) -> str | None:
    """Evaluate every joint state but the answers; return a sentence about one above the threshold, or None."""
    sizes = tuple(np.diff(circuit.columns).tolist())
    together = max(1, min(TOGETHER, MAX_NUMBERS // len(sizes)))
    for start in range(0, math.prod(sizes), together):
        circuit.budget.look()
        index = np.arange(start, min(start + together, math.prod(sizes)))
        points = np.stack(np.unravel_index(index, sizes), axis=1).astype(np.int64)
        refuted = _refuted(circuit, points, answers, threshold)
        if refuted is not None:
            return refuted
    return None


def read_points(arrays: Arrays, sizes: Ints, budget: CheckBudget) -> NDArray[np.int64]:
    """Return the points listed in a proof, as states of the query variables."""
    given = arrays["points"]
    if given.ndim != 2 or given.shape[1] != len(sizes) or given.dtype.kind not in "iu":
        raise Rejected("the points evaluated do not fit the query")
    budget.need(POINT_COST * FLOAT * given.size, "the points evaluated")
    points = given.astype(np.int64)
    if np.any((points < 0) | (points >= sizes)):
        raise Rejected("the points evaluated do not fit the query")
    if len(points) == 0 or len(np.unique(points, axis=0)) != len(points):
        raise Rejected("no point is listed, or one twice")
    return points


def check_residual(
    circuit: PlainCircuit, points: NDArray[np.int64], lower: Floats, answers: NDArray[np.int64], threshold: float
) -> str | None:
    """Check that the unlisted points have too little probability for a better assignment.

    Returns a sentence if the check fails, else None. `lower` holds the log values of the points, rounded down.
    """
    refuted = _refuted(circuit, points, answers, threshold)
    if refuted is not None:
        return refuted
    total = circuit.log_total
    left = 1.0 - math.fsum(np.exp(up(lower - total, -8.0))) + 16.0 * UNIT
    if not float(up(total + math.log(left if left > UNIT or math.isnan(left) else UNIT), 8.0)) <= threshold:
        return f"the points listed leave a probability of {left:.6g}, which may hold a better assignment"
    return None
