"""Intervals of dependent variables that are summed out: two mixtures, one below the density and one above it.

In a slice of width w about s, a variable y is Gaussian around m with precision a, given all others. With r =
a w^2, the slice's mass is at least w e^(-r / 24) times the density of y = s, and at most w times that density
with the precision a (1 - r / 4) in the exponent: a conditioned mixture in both cases.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from certimap.core.arrays import Floats
from certimap.core.logs import log_sum
from certimap.core.query import Query
from certimap.densities.gaussian_mixture import LOG_2PI, GaussianMixture, largest_error
from certimap.densities.windows import Hidden, WindowedNormals, hidden_variables, limits_of, windows_of
from certimap.errors import ModelError
from certimap.kernels.mixture_bounds import EPS

STEP = 0.08  # of slices, in standard deviations given all other variables: sides some .002 nats apart
REACH = 9.0  # standard deviations that slices cover
MOST_SLICES = 8000


def between_mixtures(
    joint: GaussianMixture, log_evidence: float, query: Query, low: Floats, high: Floats, workers: int | None
) -> WindowedNormals:
    """Return p(real query variables, intervals | values) from below, whose prober bounds it from above.

    `joint` is the density of the real query variables, whose limits are `low` and `high`, then of those in
    intervals. All of the latter but the one that would take most slices are cut. Raises ModelError for more than
    8,000 slices of all components together.
    """
    names, hidden = query.domain.names, hidden_variables(query)
    sizes = {i: _counts(joint, names[i], *query.intervals[i]).sum() for i in hidden}
    *cut, last = sorted(hidden, key=lambda i: float(sizes[i]))
    n = len(low)
    made: list[WindowedNormals] = []
    log_rest = -math.inf
    for is_above in (False, True):
        mixture, shift = joint, log_evidence
        for i in cut:
            counts = _counts(mixture, names[i], *query.intervals[i])
            rest, mixture, more = _sliced(mixture, n, names[i], query.intervals[i], counts, is_above)
            log_rest = float(np.logaddexp(log_rest, rest + shift))
            shift += more
        windows = windows_of(mixture, n, *limits_of(query, [last]))
        own = mixture.marginal(mixture.domain.names[:n])
        made.append(WindowedNormals(own, shift, low, high, workers, Hidden(windows, None)))
    below, above = made
    slack = max(below.facts.log_slack, above.facts.log_slack)
    below.facts, below.above, below.log_rest = replace(below.facts, log_slack=slack), above, log_rest
    return below


def masses_between(joint: GaussianMixture, low: Floats, high: Floats) -> tuple[Floats, float]:
    """Return ln of the mass of an interval of every variable under each component, and its log slack.

    All variables but the last are cut, into up to 8,000 slices of a component together. Raises ModelError if that
    leaves slices of more than a standard deviation.
    """
    order: list[int] = np.argsort(np.isinf(high - low), kind="stable").tolist()
    *cut, last = order
    number = math.floor(MOST_SLICES ** (1.0 / len(cut)))
    ends, slack = np.empty((2, len(joint.means))), 0.0
    for side, k in np.ndindex(ends.shape):
        mixture, shift, log_rest = joint.part(np.array([k])), -float(joint.log_weights[k]), -math.inf
        for i in cut:
            if np.any(_counts(mixture, joint.domain.names[i], float(low[i]), float(high[i])) * STEP > number):
                _refuse(joint.domain.names[i], number)
            counts = np.full(len(mixture.means), float(number))
            limits = (float(low[i]), float(high[i]))
            rest, mixture, more = _sliced(mixture, 0, joint.domain.names[i], limits, counts, side == 1)
            log_rest, shift = float(np.logaddexp(log_rest, rest + shift)), shift + more
        windows = windows_of(mixture, 0, low[[last]], high[[last]])
        logs = mixture.log_weights + windows.log_masses(np.zeros((1, len(mixture.means), 0)))[0]
        ends[side, k] = np.logaddexp(log_sum(logs) + shift, log_rest)
        errors = mixture.errors(np.sqrt(2.0 * (REACH**2 + np.abs(logs - mixture.log_weights))))
        slack = max(slack, windows.log_slack + largest_error(logs, errors))
    return ends.mean(axis=0), slack + 0.5 * float(np.max(ends[1] - ends[0]))


def _refuse(name: str, number: float) -> None:
    raise ModelError(
        f"{name!r} and other variables that depend on each other are restricted to intervals and not queried; "
        f"{number:.0f} slices are too many or too wide; query one too, give a value, or shorten the interval"
    )


def _counts(joint: GaussianMixture, name: str, low: float, high: float) -> Floats:
    """Return the number of slices of each component."""
    at = joint.domain.index(name)
    mean, sd = joint.means[:, at], np.sqrt(joint.covariances[:, at, at])
    centre = np.clip(mean, low, high)
    width = np.minimum(high, centre + REACH * sd) - np.maximum(low, centre - REACH * sd)
    return np.ceil(width * np.linalg.norm(joint.factors[:, :, at], axis=1) / STEP + 1e-9)


def _sliced(
    joint: GaussianMixture, n: int, name: str, interval: tuple[float, float], counts: Floats, is_above: bool
) -> tuple[float, GaussianMixture, float]:
    """Return the mixture without a variable and ln of its mass, after a bound on ln of what no slice covers.

    The bound is on the density of the first n variables, and -inf from below.
    """
    (low, high), at = interval, joint.domain.index(name)
    if counts.sum() > MOST_SLICES:
        _refuse(name, float(counts.sum()))
    mean, sd = joint.means[:, at], np.sqrt(joint.covariances[:, at, at])
    centre = np.clip(mean, low, high)
    first, end = np.maximum(low, centre - REACH * sd), np.minimum(high, centre + REACH * sd)
    rows = np.repeat(np.arange(len(counts)), counts.astype(np.int64))
    number = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts.astype(np.int64))
    width = ((end - first) / counts)[rows]
    middle = first[rows] + (number + 0.5) * width
    precision = np.square(joint.factors[:, :, at]).sum(axis=1)[rows]
    spread = precision * width**2 * (1.0 + 1e-6 + 100.0 * EPS * joint.conditions[rows])
    parts = joint.part(rows)
    means, covariances = parts.means.copy(), parts.covariances.copy()
    means[:, at] -= middle
    logs = parts.log_weights + np.log(width) - (0.0 if is_above else spread / 24.0)
    if is_above:
        covariances[:, at, at] += (0.25 * spread / (1.0 - 0.25 * spread)) / precision
        logs -= 0.5 * np.log1p(-0.25 * spread)
    known = np.zeros_like(means)
    known[:, at] = 4.0 * EPS * (np.abs(mean[rows]) + np.abs(middle))
    made = parts.replaced(logs, means, covariances, known)
    found, log_mass = made.given({name: 0.0})
    if not is_above:
        return -math.inf, found, log_mass
    peaks = np.zeros(len(mean))
    if n:
        asked = joint.marginal([*joint.domain.names[:n], name]).given({name: float(mean[0])})[0]
        peaks = np.log(np.diagonal(asked.factors, axis1=1, axis2=2)).sum(axis=1) - 0.5 * n * LOG_2PI
    outside = -0.5 * np.square(np.abs(centre - mean) / sd * (1.0 - 1e-9) + REACH)
    is_cut = (first > low) | (end < high)
    return (
        float(np.logaddexp.reduce(np.where(is_cut, joint.log_weights + outside + peaks, -np.inf))),
        found,
        log_mass,
    )
