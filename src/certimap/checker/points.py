"""Proofs by what points of a circuit are worth: all of them, or those listed with what probability is left."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from certimap.checker.circuit import Circuit
from certimap.checker.clock import Clock
from certimap.checker.models import Arrays, Rejected
from certimap.checker.numbers import UNIT, Floats, Ints, up

TOGETHER = 65536


def _refuted(
    circuit: Circuit, points: NDArray[np.int64], answers: NDArray[np.int64], threshold: float
) -> str | None:
    """Return a sentence about a point above a threshold that is no answer, or None."""
    values = circuit.values(points)
    rivals = np.where(np.any(np.all(points[:, None] == answers, axis=2), axis=1), -np.inf, values)
    worst = int(np.argmax(rivals))
    if rivals[worst] <= threshold:
        return None
    return f"the joint state {points[worst].tolist()} has the log value {rivals[worst]:.12g}, above the claim"


def check_every_point(circuit: Circuit, answers: NDArray[np.int64], threshold: float, clock: Clock) -> str | None:
    """Evaluate every joint state but the answers; return a sentence about one above the threshold, or None."""
    sizes = tuple(np.diff(circuit.columns).tolist())
    for start in range(0, math.prod(sizes), TOGETHER):
        clock.look()
        index = np.arange(start, min(start + TOGETHER, math.prod(sizes)))
        points = np.stack(np.unravel_index(index, sizes), axis=1).astype(np.int64)
        refuted = _refuted(circuit, points, answers, threshold)
        if refuted is not None:
            return refuted
    return None


def read_points(arrays: Arrays, sizes: Ints) -> NDArray[np.int64]:
    """Return the points that a proof lists, states of the query variables."""
    points = np.asarray(arrays["points"]).astype(np.int64)
    if points.ndim != 2 or points.shape[1] != len(sizes) or np.any((points < 0) | (points >= sizes)):
        raise Rejected("the points evaluated do not fit the query")
    if len(points) == 0 or len(np.unique(points, axis=0)) != len(points):
        raise Rejected("no point is listed, or one twice")
    return points


def check_residual(
    circuit: Circuit, points: NDArray[np.int64], lower: Floats, answers: NDArray[np.int64], threshold: float
) -> str | None:
    """Check that what is not listed cannot hold the probability of a better assignment; else return a sentence.

    `lower` are the logs of the points' values, rounded down.
    """
    refuted = _refuted(circuit, points, answers, threshold)
    if refuted is not None:
        return refuted
    total = circuit.log_total
    left = 1.0 - math.fsum(np.exp(up(lower - total, -8.0))) + 16.0 * UNIT
    if not float(up(total + math.log(max(left, UNIT)), 8.0)) <= threshold:
        return f"the points listed leave a probability of {left:.6g}, which may hold a better assignment"
    return None
