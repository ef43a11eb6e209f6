"""Checks of the arguments of a ledger."""

from __future__ import annotations

import numpy as np

from certimap.core.arguments import check_number, check_whole
from certimap.core.arrays import Floats
from certimap.core.box import Boxes, Points
from certimap.core.domain import Domain
from certimap.errors import SolverError


def check_settings(epsilon: float, delta: float, top_k: int, rule: str, tolerance: float = 0.0) -> None:
    """Refuse settings that request no valid certificate."""
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        if not 0.0 <= check_number(name, value, "a number in [0, 1)") < 1.0:
            raise SolverError(f"{name} is {value}; expected a number in [0, 1)")
    if not 0.0 <= check_number("tolerance", tolerance, "a number not below 0") < np.inf:
        raise SolverError(f"tolerance is {tolerance}; expected a number not below 0")
    check_whole("top_k", top_k, "a positive number of answers", low=1)
    if rule not in ("sharp", "published"):
        raise SolverError(f"rule is {rule!r}; expected 'sharp' or 'published'")


def check_box(boxes: Boxes | None, domain: Domain) -> None:
    """Refuse anything but a single non-empty box, or None."""
    if boxes is None:
        return
    if len(boxes) != 1:
        raise SolverError(
            f"{len(boxes)} boxes were given to search; one, or None for the whole space, is expected"
        )
    if not np.all(boxes.counts()[:, domain.n_states > 0]):
        raise SolverError("the box to search leaves a variable no state; at least one of each is expected")


def check_log_probs(log_probs: Floats, n: int, has_masses: bool) -> None:
    """Refuse oracle values that are not natural logs of probabilities."""
    if log_probs.shape != (n,):
        raise SolverError(f"log_prob returned shape {log_probs.shape} for {n} points; expected ({n},)")
    right = log_probs <= 1e-9 if has_masses else log_probs < np.inf  # false for NaN
    if not right.all():
        raise SolverError(
            f"log_prob returned {log_probs[~right][0]}; expected natural logs of probabilities, at most 0"
        )


def check_uppers(lower: Floats, upper: Floats) -> None:
    """Refuse upper bounds that lie below the lower ones."""
    if upper.shape != lower.shape:
        raise SolverError(
            f"log_prob_interval returned sides of shapes {lower.shape} and {upper.shape}; like ones are expected"
        )
    wrong = ~(upper >= lower)
    if np.any(wrong):
        raise SolverError(
            f"log_prob_interval returned the sides {lower[wrong][0]} and {upper[wrong][0]}; a lower one and an "
            "upper one, in this order, are expected"
        )


def as_rows(points: Points, domain: Domain) -> Points:
    """Return points in the domain's dtype; refuse any other shape than (batch, n)."""
    points = np.asarray(points, domain.point_dtype)
    if points.ndim != 2 or points.shape[1] != len(domain):
        raise SolverError(
            f"points have shape {points.shape}; expected (batch, {len(domain)}), one column per variable"
        )
    return points
