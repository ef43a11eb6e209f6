"""The account of a search: closed boxes and open boxes must make up the whole space."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from certimap.core.box import Boxes
from certimap.core.posterior import Masses, Posterior, TwoSided
from certimap.errors import UnbalancedBooks

Measure = Literal["mass", "share", "none"]
BALANCE = 1e-4  # of the whole; more than rounding moves the sum of very many boxes by


def measure_of(posterior: Posterior) -> Measure:
    """Return what the boxes of a search are measured by.

    Their probability where the posterior knows it; else their share of all joint states; nothing where a
    variable is real, for there the whole has no size.
    """
    if not posterior.domain.is_discrete:
        return "none"
    known = posterior.facts.has_masses and isinstance(posterior, Masses) and not isinstance(posterior, TwoSided)
    return "mass" if known else "share"


def log_whole(posterior: Posterior, measure: Measure, boxes: Boxes | None) -> float:
    """Return ln of the measure of what is to be covered: 0 for the whole space, or that of one box."""
    if boxes is None or measure == "none":
        return 0.0
    if measure == "mass" and isinstance(posterior, Masses):
        return float(posterior.log_mass(boxes)[0])
    return float(np.sum(np.log(boxes.counts()[0] / posterior.domain.n_states)))


class Books:
    """Adds up what a search has closed, and judges what it says to be open.

    Parameters
    ----------
    measure
        See `measure_of`; "none" accepts everything.
    log_total
        ln of what closed and open boxes must add to.
    """

    def __init__(self, measure: Measure, log_total: float = 0.0) -> None:
        self.measure: Measure = measure
        self.log_total = log_total
        self.log_closed = -math.inf

    def close(self, log_measure: float | NDArray[np.float64] | None) -> None:
        """Enter closed boxes by ln of their measure.

        Raises UnbalancedBooks where it is missing and could be known.
        """
        if self.measure == "none":
            return
        if log_measure is None or np.any(np.isnan(log_measure)):
            raise UnbalancedBooks(
                f"a box was closed without its {self.measure}; ln of the {_WORDS[self.measure]} is expected"
            )
        if np.size(log_measure):
            total = float(np.logaddexp.reduce(np.atleast_1d(log_measure)))
            self.log_closed = float(np.logaddexp(self.log_closed, total))

    def check_open(self, log_open: float | None) -> None:
        """Refuse an open measure that does not make up the whole with what is closed.

        Raises
        ------
        UnbalancedBooks
            When the sum is off by more than one part in ten thousand.
        """
        if self.measure == "none":
            return
        covered = self._covered(log_open)
        if not abs(covered - 1.0) <= BALANCE:
            raise self._refused(covered, "the boxes reported closed or open")

    @property
    def log_drawn(self) -> float:
        """ln of the mass that draws come from where nothing is closed; raises UnbalancedBooks where unknown."""
        if self.measure == "share" and self.log_total != 0.0:
            raise UnbalancedBooks("draws inside a box need a posterior that knows masses of boxes")
        return self.log_total

    def check_drawn(self, log_r: float) -> None:
        """Refuse draws from less than what has not been closed; raises UnbalancedBooks."""
        if log_r < self.log_total:
            if self.measure != "mass":
                raise UnbalancedBooks("draws from a part of the space need a posterior that knows masses of boxes")
            covered = self._covered(log_r)
            if not covered >= 1.0 - BALANCE:
                raise self._refused(covered, "the boxes drawn from and those reported closed")

    def check_room(self, log_unseen: float, left: float, n_seen: int, log_size: float) -> None:
        """Refuse a bound on what is not evaluated that is below the average there.

        Parameters
        ----------
        log_unseen
            What is said to bound ln p of every point that is not evaluated.
        left
            The probability that is not evaluated.
        n_seen, log_size
            How many points are, and ln of how many there are.

        Raises
        ------
        UnbalancedBooks
            When so much probability cannot lie at points as improbable as that.
        """
        left -= 1e-9
        if self.measure != "mass" or self.log_total != 0.0 or left <= 0.0:
            return
        share_seen = math.exp(math.log(n_seen) - log_size) if n_seen else 0.0
        log_average = math.log(left) - log_size - math.log1p(-min(share_seen, 1.0 - 1e-15))
        if log_unseen < log_average - BALANCE:
            raise UnbalancedBooks(
                f"nothing that was not evaluated is said to exceed ln p = {log_unseen:.6g}, but the points there "
                f"have ln p = {log_average:.6g} on average; true upper bounds are expected"
            )

    def _covered(self, log_open: float | None) -> float:
        """Return the share of the whole that closed boxes and the open ones given hold."""
        if log_open is None:
            raise UnbalancedBooks(f"open boxes were reported without their {self.measure}")
        log_held = float(np.logaddexp(self.log_closed, log_open))
        if log_held == self.log_total:  # an impossible box is covered by nothing
            return 1.0
        return math.exp(min(log_held - self.log_total, 700.0))

    def _refused(self, covered: float, which: str) -> UnbalancedBooks:
        return UnbalancedBooks(
            f"{which} hold {covered:.6g} of the space by {self.measure}; boxes that cover it once, 1 in all, are "
            "expected"
        )


_WORDS: dict[str, str] = {"mass": "probability of the box", "share": "box's share of all joint states"}
