"""Log-likelihoods of rows, with missing values summed out, and samples from any model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from certimap.circuits.leaves.kind import LEAST_LOG
from certimap.core.arrays import Flags, Floats
from certimap.core.box import Boxes, Points
from certimap.core.query import make_query
from certimap.errors import DataError
from certimap.learn.table import encode, missing_in

if TYPE_CHECKING:
    from certimap.core.posterior import BoxPosterior

BATCH = 4096


def score_samples(model: Any, data: Any) -> Floats:
    """Return the natural-log likelihood of each row of a table under any model, missing values summed out.

    `model`: a circuit, a network, or a learned model. `data`: a table (see `certimap.learn.table`); frames are
    matched by column name. Returns float64, shape (n_rows,), in nats; their mean is the usual measure of a model's
    quality. Raises DataError for an absent column, a value that is not a state of its variable, or a row so far
    out that the log of its density is beyond floats.
    """
    table = encode(data, model.domain)
    missing = missing_in(table.points)
    if not model.domain.is_discrete and missing.any():
        out = log_likelihoods_by_pattern(model, table.points, missing)
    else:
        out = log_likelihoods(posterior_over_all(model), table.points, missing)
    beyond = np.flatnonzero((out <= 0.5 * LEAST_LOG) & np.isfinite(out))
    if len(beyond):
        raise DataError(
            f"row {beyond[0]} lies so far from the model that the log of its density is beyond floats; look for a "
            "number in another unit"
        )
    return out


def posterior_over_all(model: Any) -> BoxPosterior:
    """Return the model's distribution over all its variables, without evidence."""
    from certimap.conversions import condition

    return cast("BoxPosterior", condition(model, make_query(model.domain), wants=()))


def log_likelihoods(posterior: BoxPosterior, points: Points, missing: Flags) -> Floats:
    """Return ln p of the known cells of each row.

    `posterior`: a distribution over all variables. `points`, `missing`: shape (n_rows, n_variables); values of
    `points` where `missing` is set are ignored.
    """
    out = np.empty(len(points))
    partial = missing.any(axis=1)
    whole = np.flatnonzero(~partial)
    if len(whole):
        out[whole] = posterior.log_prob(np.ascontiguousarray(points[whole]))
    rows = np.flatnonzero(partial)
    for start in range(0, len(rows), BATCH):
        chunk = rows[start : start + BATCH]
        out[chunk] = _marginals(posterior, points[chunk], missing[chunk])
    return out


def _marginals(posterior: BoxPosterior, points: Points, missing: Flags) -> Floats:
    """Return ln of the mass of the box given by each row's known values (discrete domains)."""
    domain = posterior.domain
    filled = np.where(missing, 0, points)
    mask = Boxes.of_points(domain, filled).mask
    mask |= np.repeat(missing, domain.n_states, axis=1)
    return posterior.log_mass(Boxes(domain, mask))


def log_likelihoods_by_pattern(model: Any, points: Points, missing: Flags) -> Floats:
    """Return ln of the density of each row's known cells, with one posterior per pattern of missing values.

    For domains with real variables, where a point has no mass. A row without known values scores 0.
    """
    from certimap.conversions import condition

    out = np.zeros(len(points))
    patterns, which = np.unique(missing, axis=0, return_inverse=True)
    for k, pattern in enumerate(patterns):
        rows = np.flatnonzero(which.ravel() == k)
        known = np.flatnonzero(~pattern)
        if len(known):
            query = make_query(model.domain, [model.domain.names[i] for i in known])
            subset = np.ascontiguousarray(points[np.ix_(rows, known)])
            out[rows] = condition(model, query, wants=()).log_prob(subset.astype(query.query_domain.point_dtype))
    return out
