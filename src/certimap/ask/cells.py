"""What a model says of the missing cells of rows: probabilities of states, means of numbers, and draws."""

from __future__ import annotations

from typing import cast

import numpy as np

from certimap.conversions import condition
from certimap.core.arrays import Floats
from certimap.core.box import Boxes, Points
from certimap.core.domain import Domain
from certimap.core.model import Model
from certimap.core.posterior import BoxPosterior, Draws, Masses, Posterior
from certimap.core.query import make_query
from certimap.densities.posterior import NormalsPosterior
from certimap.errors import ImpossibleEvidence, QueryError
from certimap.learn.table import missing_in

ROWS_AT_ONCE = 128
DRAWS = 400  # per mean without a closed form: their noise adds .1 % to an error of one standard deviation


def expected_cells(model: Model, domain: Domain, points: Points, seed: int) -> list[Floats]:
    """Return what is expected in each missing cell of some rows, given the row's other cells.

    `domain`: some of the model's variables; others are summed out. `points`: rows, shape (n, n_variables), -1 or
    NaN where a cell is missing. Returns an array per variable: probabilities of states, shape (n, n_states), or
    means of a real one, shape (n, 1); they say nothing of known cells. Exact up to rounding, but the means of
    circuits are those of 400 draws. Raises ImpossibleEvidence for a row of probability 0, TooLarge for a network
    too wide to sum, and QueryError for a model without draws. Cost: two passes over the model per row.
    """
    if domain.is_discrete:
        wants = (BoxPosterior,)
        joint = cast("BoxPosterior", condition(model, make_query(model.domain, domain.names), wants=wants))
        starts = range(0, len(points), ROWS_AT_ONCE)
        logs = [_log_masses(joint, points[start : start + ROWS_AT_ONCE]) for start in starts]
        return [_shares(own) for own in np.split(np.concatenate(logs), domain.offsets[1:-1], axis=1)]
    out = [np.zeros((len(points), max(int(n), 1))) for n in domain.n_states]
    for row, rng in enumerate(np.random.default_rng(seed).spawn(len(points))):
        missing = np.flatnonzero(missing_in(points[row]))
        if not len(missing):
            continue
        posterior = _given(model, domain, points[row])
        if isinstance(posterior, NormalsPosterior):
            means = _shares(posterior.mixture.log_weights[None])[0] @ posterior.mixture.means
        else:
            means = _drawn(posterior, DRAWS, rng).mean(axis=0)
        for i, mean in zip(missing.tolist(), means.tolist(), strict=True):
            out[i][row] = mean
        if isinstance(posterior, Masses) and posterior.domain.total_states:
            each = posterior.log_mass_each(Boxes.full(posterior.domain))[0]
            for i, own in zip(missing, np.split(each, posterior.domain.offsets[1:-1]), strict=True):
                if len(own):
                    out[i][row] = _shares(own[None])[0]
    return out


def drawn_row(model: Model, domain: Domain, point: Points, n: int, rng: np.random.Generator) -> Points:
    """Return `n` draws of a row's missing cells, shape (n, n_missing); see `expected_cells`."""
    return _drawn(_given(model, domain, point), n, rng)


def _given(model: Model, domain: Domain, point: Points) -> Posterior:
    """Return the distribution of the missing cells of a row."""
    known = np.flatnonzero(~missing_in(point)).tolist()
    asked = [name for i, name in enumerate(domain.names) if i not in known]
    query = make_query(model.domain, asked, domain.subset(known).decode(point[known]))
    return condition(model, query, wants=(Draws,))


def _drawn(posterior: Posterior, n: int, rng: np.random.Generator) -> Points:
    if not isinstance(posterior, Draws):
        raise QueryError("missing cells cannot be drawn from this model; expected one that can be summed exactly")
    return posterior.sample(n, rng)


def _log_masses(joint: BoxPosterior, points: Points) -> Floats:
    """Return ln of the probabilities of all states together with the known cells of each row."""
    missing = missing_in(points)
    mask = Boxes.of_points(joint.domain, np.where(missing, 0, points)).mask
    boxes = Boxes(joint.domain, mask | np.repeat(missing, joint.domain.n_states, axis=1))
    if np.any(joint.log_mass(boxes) == -np.inf):
        raise ImpossibleEvidence("a row of the table has probability 0 under the model")
    return joint.log_mass_each(boxes)


def _shares(logs: Floats) -> Floats:
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)
