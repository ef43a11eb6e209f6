"""Points that a box search reports beside its bounds: first answers, draws, and fillers of a list."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from certimap.core.box import Points
from certimap.core.posterior import Draws

if TYPE_CHECKING:
    from certimap.certify.ledger import Ledger
    from certimap.solvers.box_search.frontier import FrontierState

N_STARTS = 4
SECONDS_PER_DRAWN_EDGE = 3e-9  # to draw and to score a point, per edge of a circuit


def sample_open(state: FrontierState, n: int, *, unpack: bool) -> Points:
    """Draw n independent points from the union of the open boxes, in proportion to mass.

    If the list is too long to `unpack`, each draw first picks a box, by its known mass, then a point inside.
    """
    if unpack:
        boxes = state.layout.public(state.open.boxes(slice(None)))
        return state.posterior.sample(n, state.rng, boxes=boxes)
    shares = np.exp(state.open.log_masses - state.open.log_mass)
    picks = state.rng.choice(len(shares), size=n, p=shares / shares.sum())
    points: Points = np.empty((n, len(state.layout.domain)), state.layout.domain.point_dtype)
    for pick in np.unique(picks):
        rows = np.flatnonzero(picks == pick)
        box = state.layout.public(state.open.boxes(np.array([pick])))
        points[rows] = state.posterior.sample(len(rows), state.rng, boxes=box)
    return points


def first_answers(state: FrontierState, ledger: Ledger, n_draws: int) -> None:
    """Report the prober's starts, then draws; without starts, climb from the best draws."""
    posterior, starts = state.posterior, state.prober.starts()
    if len(starts):
        ledger.candidates(starts)
    if not isinstance(posterior, Draws):
        return
    left = ledger.remaining_draws
    n = n_draws if left is None else min(left, n_draws)
    edges = max(state.prober.work // 4, 1)
    if not n or state.control.should_stop or n * edges * SECONDS_PER_DRAWN_EDGE > state.control.seconds_left:
        return
    points: Points = posterior.sample(n, state.rng)
    state.work += 2 * n * edges
    log_probs = ledger.candidates(points)
    if not len(points) or len(starts):
        return
    order = np.argsort(-log_probs, kind="stable")[:N_STARTS]
    ledger.candidates(state.prober.climb(points[order]))


def fill_up(state: FrontierState, ledger: Ledger) -> None:
    """Add impossible points to the list if fewer than `top_k` points have positive probability."""
    domain = state.posterior.domain
    if not domain.is_discrete:
        return
    for _ in range(64):
        if len(ledger.best) >= ledger.top_k:
            return
        points: Points = state.rng.integers(domain.n_states, size=(4 * ledger.top_k, len(domain)))
        ledger.candidates(points)
