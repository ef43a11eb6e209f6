"""Mixtures of Gaussians conditioned on values and intervals; variables summed out may have intervals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from certimap.circuits.leaves.kind import LEAST_LOG
from certimap.core.arrays import Floats
from certimap.core.logs import log_sum
from certimap.core.query import Query
from certimap.densities.gaussian_mixture import NEGLIGIBLE, GaussianMixture, largest_error
from certimap.densities.kernels.normals import SLACK
from certimap.densities.posterior import NormalsPosterior, SampledNormals
from certimap.densities.slices import between_mixtures, masses_between
from certimap.densities.windows import Hidden, WindowedNormals, hidden_variables, limits_of, windows_of
from certimap.errors import ModelError, QueryError


def hide(joint: GaussianMixture, query: Query, asked: list[int]) -> tuple[GaussianMixture, Hidden | None]:
    """Sum the variables after `asked`, restricted to intervals, out of p(asked, others | values).

    Returns the density of `asked`, without the intervals of the others, and these intervals, if any. Where two of
    the others depend on each other given `asked`, returns `joint` and None.
    """
    names, others = query.domain.names, hidden_variables(query)
    mixture = joint.marginal([names[i] for i in asked])
    if not others:
        return mixture, None
    limits = limits_of(query, others)
    try:
        windows = windows_of(joint, len(asked), *limits)
    except ModelError:
        return joint, None
    try:
        masses, slack = masses_of(joint.marginal([names[i] for i in others]), query, is_exact=True)
    except ModelError:  # they depend on each other when no variable is queried
        return mixture, Hidden(windows, None)
    log_mass = total_of(joint.log_weights + masses)
    return mixture, Hidden(replace(windows, log_slack=windows.log_slack + slack), log_mass)


def total_of(log_masses: Floats) -> float:
    """Return ln of the sum of the components' interval masses; QueryError where that is beyond floats."""
    total = float(log_sum(log_masses))
    if not total > 0.5 * LEAST_LOG:
        raise QueryError("the intervals observed are too far out: the log of their mass is beyond floats")
    return total


def masses_of(joint: GaussianMixture, query: Query, *, is_exact: bool = False) -> tuple[Floats, float]:
    """Return ln of the mass of the intervals of all variables under each component, and its log slack.

    Where two of the variables depend on each other within a component the mass lies between two sides, and
    `is_exact` raises ModelError.
    """
    limits = limits_of(query, [query.domain.index(name) for name in joint.domain.names])
    try:
        windows = windows_of(joint, 0, *limits)
    except ModelError:
        if is_exact:
            raise
        return masses_between(joint, *limits)
    logs = windows.log_masses(np.zeros((1, len(joint.means), 0)))[0]
    errors = joint.errors(np.sqrt(2.0 * (NEGLIGIBLE + np.abs(logs)))) + SLACK * (1.0 + np.abs(logs))
    return logs, windows.log_slack + largest_error(joint.log_weights + logs, errors)


def log_evidence_of(model: GaussianMixture, query: Query) -> float:
    """Return ln of the density of the observed values times the mass of the intervals, all else summed out.

    Raises ModelError if the intervals' mass has no closed form, and QueryError if the values are too far out.
    """
    names, intervals = query.domain.names, sorted(query.intervals)
    known = {names[i]: value for i, value in query.values.items()}
    rest = [name for name in names if name not in known]
    kept = [names[i] for i in intervals] or rest[:1]
    joint, log_evidence = model.marginal([*kept, *known]).given(known)
    if not intervals:
        return log_evidence
    return log_evidence + total_of(joint.log_weights + masses_of(joint, query, is_exact=True)[0])


def conditioned(model: GaussianMixture, query: Query, workers: int | None) -> NormalsPosterior:
    """Condition a mixture on a query over its domain, with at least one variable.

    Raises QueryError if the evidence lies so far out that its density is beyond floats, and ModelError if many
    variables that are summed out are restricted to intervals and depend on each other.
    """
    names = query.domain.names
    queried: list[int] = query.variables.tolist()
    kept = [*queried, *hidden_variables(query)]
    joint = model.marginal([names[i] for i in [*kept, *query.values]])
    joint, log_evidence = joint.given({names[i]: value for i, value in query.values.items()})
    mixture, hidden = hide(joint.marginal([names[i] for i in kept]), query, queried)
    return within_limits(mixture, log_evidence, query, workers, hidden)


def within_limits(
    mixture: GaussianMixture,
    log_evidence: float,
    query: Query,
    workers: int | None,
    hidden: Hidden | None = None,
    log_slack: float = 0.0,
) -> NormalsPosterior:
    """Return p(real query variables | values) inside intervals; `log_slack` is the error of the log weights.

    `mixture` and `hidden` are those of `hide`.
    """
    real = [i for i in query.variables.tolist() if query.domain.n_states[i] == 0]
    low, high = limits_of(query, real)
    if len(mixture.domain) > len(real):
        posterior = between_mixtures(mixture, log_evidence, query, low, high, workers)
    elif hidden is not None:
        posterior = WindowedNormals(mixture, log_evidence, low, high, workers, hidden)
    else:
        made = NormalsPosterior if any(i in query.intervals for i in real) else SampledNormals
        posterior = made(mixture, log_evidence, low, high, workers)
    posterior.facts = replace(posterior.facts, log_slack=posterior.facts.log_slack + log_slack)
    return posterior
