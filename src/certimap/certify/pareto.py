"""The admissible pairs (epsilon, delta) of a run."""

from __future__ import annotations

import math

import numpy as np

from certimap.certify import bounds
from certimap.certify.findings import Findings

N_PAIRS = 33


def pareto_front(ledger: Findings) -> list[tuple[float, float]]:
    """Return admissible pairs by rising epsilon; none needs an assumption.

    Each delta is the smallest that the draws support at its epsilon. For every d0, the probability that any
    pair with delta <= d0 is false is at most d0, whenever the run stopped. The curve is given at the requested
    epsilon and on an even grid. The last pair is the one proved for certain, if any upper bound is known.
    """
    certain = certain_epsilon(ledger)
    if certain == 0.0:
        return [(0.0, 0.0)]
    grid = {float(e) for e in np.linspace(0.0, certain, N_PAIRS, endpoint=False)}
    if ledger.epsilon < certain:
        grid.add(ledger.epsilon)
    front: list[tuple[float, float]] = []
    for epsilon in sorted(grid):
        delta = bounds.delta_of(ledger.log_delta(epsilon))
        if delta < (front[-1][1] if front else 1.0):
            front.append((epsilon, delta))
        if delta == 0.0:
            return front
    if certain < 1.0:
        front.append((certain, 0.0))
    return front


def certain_epsilon(ledger: Findings) -> float:
    """Return the smallest epsilon that holds for certain; 1 when nothing is proved."""
    if ledger.log_rival_bound == math.inf:
        return 1.0
    return bounds.achieved_epsilon(ledger.log_kth_best, ledger.log_rival_bound, ledger.tolerance)
