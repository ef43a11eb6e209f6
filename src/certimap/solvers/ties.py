"""Assignments as good as the answer, and the intervals that hold all modes."""

from __future__ import annotations

import math

import numpy as np

from certimap.certify.ledger import Ledger
from certimap.core.box import Points
from certimap.core.domain import Label, Real
from certimap.core.posterior import Posterior
from certimap.solvers.base import Solver

MAX_PEAKS = 64  # points of the answer's height that are compared
N_BETWEEN = 15  # places between two points where a dip is tested
DIP = 100.0  # tolerances by which the density must dip between two peaks


def ties_of(ledger: Ledger, solver: Solver) -> list[dict[str, Label]] | None:
    """Return the other assignments as probable as the answer; None unless all are known.

    For a density: the other peaks found with the same height, or None if there are none.
    """
    best = ledger.best_log_prob
    margin = math.log1p(ledger.tolerance)
    if best == -math.inf or ledger.atoms.two_sided:
        return None
    is_density = ledger.posterior.facts.is_density
    if not is_density and ledger.log_unseen_bound >= best - margin:
        return None
    ids = np.flatnonzero(ledger.atoms.log_probs >= best - margin)
    ids = ids[ids != ledger.best[0][1]]
    if not len(ids):
        return None if is_density else []
    points = ledger.atoms.points(ids)
    if is_density:
        answer = ledger.best_point
        assert answer is not None
        points = _other_peaks(ledger.posterior, answer, points[:MAX_PEAKS], best - DIP * margin)
    ties = [solver.decode(ledger.posterior, point) for point in points]
    return None if is_density and not ties else ties


def _other_peaks(posterior: Posterior, answer: Points, points: Points, log_low: float) -> Points:
    """Return the points on separate peaks: the density dips between each two of them."""
    kept = [answer]
    for point in points:
        if all(_is_apart(posterior, point, other, log_low) for other in kept):
            kept.append(point)
    return np.array(kept[1:]).reshape(-1, len(answer))


def _is_apart(posterior: Posterior, a: Points, b: Points, log_low: float) -> bool:
    discrete = posterior.domain.n_states > 0
    if np.any(a[discrete] != b[discrete]):
        return True
    shares = np.arange(1, N_BETWEEN + 1)[:, None] / (N_BETWEEN + 1)
    return bool(np.min(posterior.log_prob(a + shares * (b - a))) < log_low)


def located_by(ledger: Ledger) -> dict[str, tuple[float, float]] | None:
    """Return the intervals, by variable name, that hold all modes."""
    if ledger.located is None:
        return None
    low, high = ledger.located
    return {
        variable.name: (float(low[i]), float(high[i]))
        for i, variable in enumerate(ledger.domain)
        if isinstance(variable, Real)
    }
