"""The evaluated points of a run: values, ranking and sum."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from certimap.certify.agreement import OVER_ONE
from certimap.certify.atoms import AtomStore
from certimap.certify.checks import check_log_probs, check_uppers
from certimap.certify.ranking import Ranking
from certimap.core.box import Points
from certimap.core.control import Control
from certimap.core.posterior import Posterior, TwoSided
from certimap.errors import ModelError

EVALUATION_ROWS = 65536
Floats = NDArray[np.float64]


class Evaluated:
    """Evaluates each distinct point once, and keeps the values. All logs are natural.

    Attributes
    ----------
    atoms
        The points.
    ranking
        The best points, by the lower bounds on their values.
    log_rival
        The largest upper bound of an unranked point; -inf if values are exact, because then none exceeds the last
        ranked.
    mass, compensation
        The sum of probabilities (lower bounds) as a compensated pair; 0 if masses do not apply.
    """

    def __init__(self, posterior: Posterior, top_k: int, control: Control) -> None:
        self.posterior, self.control = posterior, control
        self.has_masses = posterior.facts.has_masses
        self.atoms = AtomStore(posterior.domain, two_sided=isinstance(posterior, TwoSided))
        self.ranking = Ranking(top_k)
        self.log_rival = -math.inf
        self.mass, self.compensation = 0.0, 0.0
        self._settled = np.zeros(0, np.bool_)

    @property
    def log_upper(self) -> float:
        """The largest upper bound of all points; -inf without points."""
        if not self.atoms.two_sided:
            return self.ranking.best
        return max(self.log_rival, float(np.max(self._ranked_uppers, initial=-math.inf)))

    @property
    def left(self) -> float:
        """The total probability of unevaluated points, if masses apply; rounded to nearest."""
        return 1.0 - self.mass - self.compensation

    @property
    def _ranked_uppers(self) -> Floats:
        return self.atoms.log_uppers[np.array([i for _, i in self.ranking.pairs], np.int64)]

    def evaluate(self, points: Points) -> NDArray[np.int64]:
        """Evaluate the new points, and return the positions of all.

        New points do not count until they are absorbed.
        """
        n_before = self.atoms.n
        ids = self.atoms.insert(points)
        # Stored reals may differ from the given ones in the sign of a zero.
        are_all_new = self.atoms.n - n_before == len(points) <= EVALUATION_ROWS and points.dtype == np.int16
        try:
            for start in range(n_before, self.atoms.n, EVALUATION_ROWS):
                rows = slice(start, min(start + EVALUATION_ROWS, self.atoms.n))
                asked = points if are_all_new else self.atoms.points(rows)
                with self.control.interruptible():  # interrupts may stop the oracle, but not the bookkeeping
                    lower, upper = self._ask(asked)
                check_log_probs(lower, rows.stop - rows.start, self.has_masses)
                if upper is not lower:
                    check_uppers(lower, upper)
                self.atoms.set_log_probs(start, lower, upper)
        except BaseException:
            self.atoms.truncate(n_before)
            raise
        return ids

    def _ask(self, points: Points) -> tuple[Floats, Floats]:
        """Return lower and upper bounds on ln p; the same array twice if values are exact."""
        if isinstance(self.posterior, TwoSided):
            lower, upper = self.posterior.log_prob_interval(points)
            return np.asarray(lower, np.float64), np.asarray(upper, np.float64)
        log_probs = np.asarray(self.posterior.log_prob(points), np.float64)
        return log_probs, log_probs

    def running_sums(self, n_before: int) -> tuple[Floats, Floats]:
        """Return the compensated sum of evaluated probabilities after each new point."""
        log_probs = self.atoms.log_probs[n_before:]
        sums, lost = np.empty(len(log_probs)), np.empty(len(log_probs))
        if self.has_masses and len(log_probs):
            from certimap.kernels.hashing import running_sums

            running_sums(log_probs, self.mass, self.compensation, sums, lost)
            return sums, lost
        return sums[:0], lost[:0]

    def changes(self, n_before: int) -> list[tuple[int, float, float]]:
        """Return the changes from absorbing the new points one by one; see `Ranking.changes`."""
        uppers = self.atoms.log_uppers[n_before:] if self.atoms.two_sided else None
        return self.ranking.changes(self.atoms.log_probs[n_before:], uppers, self._ranked_uppers, self.log_rival)

    def absorb(self, n_before: int, sums: Floats, lost: Floats) -> bool:
        """Add the new points to the ranking and the sum; return whether the best changed."""
        log_probs = self.atoms.log_probs[n_before:]
        if not len(log_probs):
            return False
        if len(sums):
            self.mass, self.compensation = float(sums[len(log_probs) - 1]), float(lost[len(log_probs) - 1])
            if self.mass + self.compensation > 1.0 + OVER_ONE:
                raise ModelError(
                    f"the probabilities that this {type(self.posterior).__name__} gives to {self.atoms.n} "
                    f"distinct assignments add to {self.mass + self.compensation:.6g}; expected at most 1 "
                    "(natural logs of normalised probabilities, or normalised=False)"
                )
        ranked = [i for _, i in self.ranking.pairs]
        is_better = self.ranking.add(log_probs, n_before)
        if self.atoms.two_sided:
            rivals = np.setdiff1d([*ranked, *range(n_before, self.atoms.n)], [i for _, i in self.ranking.pairs])
            highest = float(np.max(self.atoms.log_uppers[rivals.astype(np.int64)], initial=-math.inf))
            self.log_rival = max(self.log_rival, highest)
        return is_better

    def settle(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Mark points as settled; return the newly settled ones."""
        known = np.zeros(self.atoms.n, np.bool_)
        known[: len(self._settled)] = self._settled
        new = np.unique(ids[~known[ids]])
        known[new] = True
        self._settled = known
        return new

    def adopt(self, other: Evaluated) -> None:
        """Copy the points of another run, with their values and marks, without new evaluations."""
        for start in range(0, other.atoms.n, EVALUATION_ROWS):
            rows = slice(start, min(start + EVALUATION_ROWS, other.atoms.n))
            n_before = self.atoms.n
            ids = self.atoms.insert(other.atoms.points(rows))
            new = ids >= n_before  # distinct among themselves, so in order
            self.atoms.set_log_probs(n_before, other.atoms.log_probs[rows][new], other.atoms.log_uppers[rows][new])
            self.absorb(n_before, *self.running_sums(n_before))
            self.settle(ids[: max(len(other._settled) - start, 0)][other._settled[rows]])
