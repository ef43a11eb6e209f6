"""The answers of a result that a proof covers."""

from __future__ import annotations

import math

from certimap.core.domain import Label
from certimap.core.result import MapResult


def answers_of(result: MapResult) -> list[dict[str, Label]]:
    """Return all answers of a result, the best one first."""
    return [result.assignment] if result.top is None else [answer for answer, _ in result.top]


def least_log(result: MapResult) -> float:
    """Return ln of the density or probability of the worst answer."""
    log_value = result.log_prob if result.top is None else result.top[-1][1]
    return -math.inf if log_value is None else log_value
