"""An anytime-valid test of whether a sampler and an oracle describe one distribution."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

FALSE_ALARMS = 1e-6  # probability that a correct sampler is ever rejected
OVER_ONE = 1e-6  # slack for a sum of probabilities above 1: far more than rounding


class Agreement:
    """Counts how often a draw hits the best point known before it, and bets against that point's probability.

    The bet is a likelihood ratio: a Beta(1/2, 1/2) mixture over the frequency, against p. With the right sampler
    it is a martingale that starts at 1, so that it ever reaches 1 / `FALSE_ALARMS` with probability at most
    `FALSE_ALARMS` (Ville's inequality), whenever the run stops and whichever points it bets on.
    """

    def __init__(self) -> None:
        self._draws: dict[int, int] = {}  # draws made while a point was the best known
        self._hits: dict[int, int] = {}
        self._best, self._log_best = -1, -math.inf

    def see(self, ids: NDArray[np.int64], log_probs: NDArray[np.float64]) -> None:
        """Take draws in order: positions of points, and their ln p; both shape (n,)."""
        values = np.concatenate([[self._log_best], log_probs])
        points = np.concatenate([[self._best], ids])
        highest = np.maximum.accumulate(values)
        rises = np.concatenate([[True], values[1:] > highest[:-1]])
        best = points[np.maximum.accumulate(np.where(rises, np.arange(len(values)), 0))]
        self._best, self._log_best = int(best[-1]), float(highest[-1])
        for point in np.unique(best[:-1]).tolist():
            if point >= 0:
                rows = best[:-1] == point
                self._draws[point] = self._draws.get(point, 0) + int(np.sum(rows))
                self._hits[point] = self._hits.get(point, 0) + int(np.sum(ids[rows] == point))

    def contradiction(self, log_probs: NDArray[np.float64]) -> tuple[int, int, int] | None:
        """If the bet is won, return (point, hits, draws) of the point with the largest ratio, else None.

        `log_probs` holds ln p by position.
        """
        parts = {i: _log_ratio(n, self._hits[i], float(log_probs[i])) for i, n in self._draws.items()}
        if not parts or math.fsum(parts.values()) < -math.log(FALSE_ALARMS):
            return None
        loudest = max(parts, key=parts.__getitem__)
        return loudest, self._hits[loudest], self._draws[loudest]


def _log_ratio(n: int, hits: int, log_p: float) -> float:
    """Return ln of the likelihood ratio of `hits` in n draws: the mixture against probability p."""
    mixture = math.lgamma(hits + 0.5) + math.lgamma(n - hits + 0.5) - math.lgamma(n + 1.0) - math.log(math.pi)
    log_q = math.log1p(-math.exp(log_p)) if log_p < 0.0 else -math.inf
    expected = (hits * log_p if hits else 0.0) + ((n - hits) * log_q if n > hits else 0.0)
    return mixture - expected
