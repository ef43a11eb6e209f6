"""Checks that the closed and open boxes of a search together cover the whole space."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from certimap.core.box import Boxes
from certimap.core.posterior import Masses, Posterior, TwoSided
from certimap.errors import UnbalancedBooks

Measure = Literal["mass", "share", "none"]
BALANCE = 1e-4  # of the whole; more than the rounding error of a sum over very many boxes


def measure_of(posterior: Posterior) -> Measure:
    """Return the measure of boxes in a search.

    It is their probability if the posterior knows it, else their share of all joint states. If a variable is
    real, it is "none", because the whole space has no size.
    """
    if not posterior.domain.is_discrete:
        return "none"
    known = posterior.facts.has_masses and isinstance(posterior, Masses) and not isinstance(posterior, TwoSided)
    return "mass" if known else "share"


def log_whole(posterior: Posterior, measure: Measure, boxes: Boxes | None) -> float:
    """Return ln of the measure to be covered: 0 for the whole space, or the measure of one box."""
    if boxes is None or measure == "none":
        return 0.0
    if measure == "mass" and isinstance(posterior, Masses):
        return float(posterior.log_mass(boxes)[0])
    return float(np.sum(np.log(boxes.counts()[0] / posterior.domain.n_states)))


class Books:
    """Adds up the measure of closed boxes, and checks that open boxes cover the rest.

    `measure` is that of `measure_of`; "none" accepts everything. `log_total` is ln of the measure of closed and
    open boxes together.
    """

    def __init__(self, measure: Measure, log_total: float = 0.0) -> None:
        self.measure: Measure = measure
        self.log_total = log_total
        self.log_closed = -math.inf

    def close(self, log_measure: float | NDArray[np.float64] | None) -> None:
        """Add closed boxes by ln of their measure.

        Raises UnbalancedBooks if the measure is missing where it applies.
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
        """Raise UnbalancedBooks unless open and closed measure make up the whole, within one part in 10^4."""
        if self.measure == "none":
            return
        covered = self._covered(log_open)
        if not abs(covered - 1.0) <= BALANCE:
            raise self._refused(covered, "the boxes reported closed or open")

    @property
    def log_drawn(self) -> float:
        """ln of the mass that draws come from before any box is closed; raises UnbalancedBooks if unknown."""
        if self.measure == "share" and self.log_total != 0.0:
            raise UnbalancedBooks("draws inside a box need a posterior that knows masses of boxes")
        return self.log_total

    def check_drawn(self, log_r: float) -> None:
        """Raise UnbalancedBooks if draws came from less than the unclosed mass; `log_r` is ln of their mass."""
        if log_r < self.log_total:
            if self.measure != "mass":
                raise UnbalancedBooks("draws from a part of the space need a posterior that knows masses of boxes")
            covered = self._covered(log_r)
            if not covered >= 1.0 - BALANCE:
                raise self._refused(covered, "the boxes drawn from and those reported closed")

    def check_room(self, log_unseen: float, left: float, n_seen: int, log_size: float) -> None:
        """Check a bound on unevaluated points against their average probability.

        Parameters
        ----------
        log_unseen
            Claimed bound on ln p of every unevaluated point.
        left
            The total probability of unevaluated points.
        n_seen, log_size
            The number of evaluated points, and ln of the number of all points.

        Raises
        ------
        UnbalancedBooks
            If the bound is below the average, so that it cannot hold.
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
        """Return the share of the whole that closed and open boxes hold; `log_open` is ln of the open measure."""
        if log_open is None:
            raise UnbalancedBooks(f"open boxes were reported without their {self.measure}")
        log_held = float(np.logaddexp(self.log_closed, log_open))
        if log_held == self.log_total:  # an impossible box (both -inf) counts as covered
            return 1.0
        return math.exp(min(log_held - self.log_total, 700.0))

    def _refused(self, covered: float, which: str) -> UnbalancedBooks:
        return UnbalancedBooks(
            f"{which} hold {covered:.6g} of the space by {self.measure}; boxes that cover it once, 1 in all, are "
            "expected"
        )


_WORDS: dict[str, str] = {"mass": "probability of the box", "share": "box's share of all joint states"}
