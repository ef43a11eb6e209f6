"""Hill climbing on any discrete posterior; each round changes one variable."""

from __future__ import annotations

import numpy as np

from certimap.core.arrays import Floats
from certimap.core.box import Boxes, Points
from certimap.core.domain import Domain
from certimap.core.posterior import Masses, Posterior

MAX_ROUNDS = 200


def climb(posterior: Posterior, points: Points) -> Points:
    """Climb from each row of `points` in a discrete domain; return the points reached, shape (batch, n).

    Each round changes, in every point that still improves, the variable that gains most. Per point, a round costs
    one `log_mass_each`, or one `log_prob` per neighbour if the posterior has no masses.
    """
    domain = posterior.domain
    offsets = domain.offsets
    points = np.array(points)
    active = np.arange(len(points))
    variable_of = np.repeat(np.arange(len(domain)), domain.n_states)
    for _ in range(MAX_ROUNDS):
        each = _neighbours(posterior, points[active])
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


def _neighbours(posterior: Posterior, points: Points) -> Floats:
    """Return ln p of each point with each variable set to each state, shape (batch, total_states)."""
    domain = posterior.domain
    if isinstance(posterior, Masses):
        return posterior.log_mass_each(Boxes.of_points(domain, points))
    return posterior.log_prob(_flipped(domain, points)).reshape(len(points), domain.total_states)


def _flipped(domain: Domain, points: Points) -> Points:
    """Return each point with each variable set to each state in turn, shape (batch * total_states, n)."""
    variables = np.repeat(np.arange(len(domain)), domain.n_states)
    states = np.arange(domain.total_states) - domain.offsets[variables]
    rows = np.repeat(points, domain.total_states, axis=0)
    rows[np.arange(len(rows)), np.tile(variables, len(points))] = np.tile(states, len(points))
    return rows
