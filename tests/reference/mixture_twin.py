"""Which vectors a convex combination of others is at least, by linear programs."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog


def best_share(row, others):
    """Return the largest t such that some convex combination of the others is at least t times the row."""
    if not len(others):
        return 0.0
    positive = row > 0
    n = len(others)
    if not positive.any():
        return np.inf
    # max t  subject to  t row - sum_i weight_i others_i <= 0,  sum_i weight_i = 1
    upper = np.hstack([-(others[:, positive] / row[positive]).T, np.ones((int(positive.sum()), 1))])
    found = linprog(
        np.append(np.zeros(n), -1.0),
        A_ub=upper,
        b_ub=np.zeros(len(upper)),
        A_eq=np.append(np.ones(n), 0.0)[None],
        b_eq=[1.0],
        bounds=[(0, None)] * n + [(0, None)],
        method="highs",
    )
    assert found.status == 0
    return float(-found.fun)
