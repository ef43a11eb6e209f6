"""Points that differ from a point in one variable, and their values."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from certimap.core.box import Boxes, Points
from certimap.core.posterior import Draws, Masses, Posterior


def log_probs_of_neighbours(posterior: Posterior, points: Points) -> NDArray[np.float64]:
    """Return ln p of each point with variable i set to state a, shape (batch, total_states).

    Two passes per point if the posterior knows masses, else one evaluation per state.
    """
    domain = posterior.domain
    if isinstance(posterior, Masses):
        return posterior.log_mass_each(Boxes.of_points(domain, points))
    variables = np.repeat(np.arange(len(domain)), domain.n_states)
    states = np.arange(domain.total_states) - domain.offsets[variables]
    rows = np.repeat(points, domain.total_states, axis=0)
    rows[np.arange(len(rows)), np.tile(variables, len(points))] = np.tile(states, len(points))
    return posterior.log_prob(rows).reshape(len(points), -1)


def first_points(posterior: Posterior, n: int, rng: np.random.Generator) -> Points:
    """Return starting points, shape (n, n_variables): draws if there is a sampler, else uniform points."""
    if isinstance(posterior, Draws):
        return posterior.sample(n, rng)
    domain = posterior.domain
    return rng.integers(0, domain.n_states, (n, len(domain))).astype(domain.point_dtype)
