"""Hill climbing over points: one variable at a time, or all at once where that helps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from certimap.box import Boxes, Points

if TYPE_CHECKING:
    from certimap.circuits.caps import PlanView

MAX_ROUNDS = 200


def climb_plan(view: PlanView, points: Points) -> Points:
    """Climb from each row of `points` on a plan; return the points reached.

    Categorical variables go to their best state given the others, real ones take mean-shift steps. One
    upward and one downward pass a round.
    """
    from certimap.circuits.caps import empty_table, small_pool
    from certimap.circuits.kernels.climb import climb_rows

    work = np.array(points, np.float64)
    log_probs = np.empty(len(work))
    climb_rows(view.arrays, empty_table(view), view.low, view.high, 0, small_pool(view), work, log_probs)
    return work.astype(view.domain.point_dtype)


def climb_posterior(posterior: Any, points: Points) -> Points:
    """Climb from each row of `points` with a posterior's `log_mass_each` (a discrete domain).

    Each round flips, in every point that still climbs, the one variable whose flip gains most.
    """
    domain = posterior.domain
    offsets = domain.offsets
    points = np.array(points)
    active = np.arange(len(points))
    variable_of = np.repeat(np.arange(len(domain)), domain.n_states)
    for _ in range(MAX_ROUNDS):
        each = posterior.log_mass_each(Boxes.of_points(domain, points[active]))
        own = offsets[:-1] + points[active].astype(np.int64)
        now = np.take_along_axis(each, own, axis=1).min(axis=1)
        column = np.argmax(each, axis=1)
        gain = each[np.arange(len(active)), column]
        better = gain > now + 1e-12 * (1.0 + np.abs(now))
        active, column = active[better], column[better]
        if not len(active):
            break
        points[active, variable_of[column]] = column - offsets[variable_of[column]]
    return points
