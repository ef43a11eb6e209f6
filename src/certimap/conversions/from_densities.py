"""The representations of mixtures of Gaussians and of linear-Gaussian networks: conditionals in closed form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from certimap.circuits.circuit import CircuitBuilder
from certimap.circuits.posterior import CircuitPosterior
from certimap.conversions.choose import OF_CIRCUIT, Case, Estimate, Row, once
from certimap.core.logs import log_sum
from certimap.core.posterior import Offer, Posterior, Probes, TwoSided
from certimap.core.query import make_query
from certimap.densities.conditioned import conditioned, within_limits
from certimap.densities.gaussian_mixture import GaussianMixture
from certimap.densities.linear_gaussian import MAX_CONFIGURATIONS, Components, LinearGaussianNetwork
from certimap.densities.posterior import MixedNormals, NormalsPosterior, SampledMixed, SampledNormals
from certimap.densities.switching import SwitchingPosterior
from certimap.errors import QueryError
from certimap.networks.network import Network

_Network = Case[LinearGaussianNetwork]


def _size(case: Case[GaussianMixture]) -> Estimate:
    k, n = case.model.means.shape
    return Estimate(f"{k} components of {n} variables", k * n * n, fits=True)


def _conditioned(case: Case[GaussianMixture]) -> Posterior:
    return conditioned(case.model, case.query, case.limits.workers)


@once
def _components(case: _Network) -> Components:
    return case.model.components(case.query)


def _table_of_states(case: _Network) -> Posterior:
    """Return p(states | evidence) by Bayes' rule: a circuit of indicators weighted by the evidence."""
    found = _components(case)
    domain = case.query.query_domain
    if not len(domain):
        raise QueryError("evidence on every variable leaves nothing to ask; expected one variable without")
    states, which = np.unique(found.states, axis=0, return_inverse=True)
    builder = CircuitBuilder(domain)
    products: list[int] = []
    for state in states.tolist():
        leaves = [builder.indicator(i, s) for i, s in enumerate(state)]
        products.append(builder.product(leaves) if len(leaves) > 1 else leaves[0])
    logs = [float(log_sum(found.log_weights[which.ravel() == k])) for k in range(len(states))]
    builder.sum(products, log_weights=[log + found.log_evidence for log in logs])
    circuit, limits = builder.build(normalised=False), case.limits
    made = CircuitPosterior.from_circuit(
        circuit, make_query(domain), max_edges=limits.edges_allowed, workers=limits.workers, control=limits.control
    )
    plan = replace(made.plan, log_error=made.plan.log_error + found.log_slack)  # of the weights
    return CircuitPosterior(plan, made.log_evidence, made.workers, made.origin)


def _one_mixture(case: _Network) -> Posterior:
    found = _components(case)
    assert found.mixture is not None
    return within_limits(
        found.mixture, found.log_evidence, case.query, case.limits.workers, found.hidden, found.log_slack
    )


def _mixture_per_state(case: _Network) -> Posterior:
    found = _components(case)
    assert found.mixture is not None
    states, which = np.unique(found.states, axis=0, return_inverse=True)
    hidden, parts = found.hidden, list[NormalsPosterior]()
    for k in range(len(states)):
        chosen = np.flatnonzero(which.ravel() == k)
        own = None if hidden is None else hidden._replace(windows=hidden.windows.part(chosen))
        mixture, workers = found.mixture.part(chosen), case.limits.workers
        parts.append(within_limits(mixture, found.log_evidence, case.query, workers, own, found.log_slack))
    made = SampledMixed if isinstance(parts[0], SampledNormals) else MixedNormals
    log_mass = 0.0 if hidden is None or hidden.log_mass is None else hidden.log_mass
    return made(case.query.query_domain, states, parts, found.log_evidence + log_mass)


def _row(
    name: str, offers: frozenset[Offer], build: Callable[[_Network], Posterior], *kinds: tuple[bool, bool]
) -> Row[LinearGaussianNetwork]:
    """Return a row for some kinds of queries: (with discrete, with real query variables)."""

    def suits(case: _Network) -> bool:
        n_states = case.query.query_domain.n_states
        return (bool(np.any(n_states > 0)), bool(np.any(n_states == 0))) in kinds

    def estimate(case: _Network) -> Estimate:
        n, exists = case.model.n_configurations(case.query), suits(case)
        fits = n <= MAX_CONFIGURATIONS
        most = f", of at most {MAX_CONFIGURATIONS} unless all of them are queried alone"
        text = f"{n} configurations of discrete variables{'' if fits else most}"
        return Estimate(text, n * max(len(case.query.variables), 1) ** 2, exists and fits, exists)

    return Row(name, LinearGaussianNetwork, offers, estimate, build, suits)


def _has_paths(case: _Network) -> bool:
    is_discrete, of_tables = case.query.query_domain.is_discrete, isinstance(case.model.discrete, Network)
    return is_discrete and of_tables and not case.query.intervals


def _paths(case: _Network) -> Estimate:
    queried, exists = case.query.variables.tolist(), _has_paths(case)
    summed = [case.query.domain.names[i] for i in case.model.discrete_parts(case.query)[1] if i not in queried]
    text = f"every variable like {summed[0]!r} has to be queried or observed" if summed else "path by path"
    return Estimate(text, 1e4, exists and not summed, exists)


_OF_PATHS: frozenset[Offer] = frozenset({TwoSided, SwitchingPosterior})
ROWS: tuple[Row[Any], ...] = (
    Row("mixture of Gaussians", GaussianMixture, frozenset({Probes, NormalsPosterior}), _size, _conditioned),
    _row("probabilities of states", OF_CIRCUIT, _table_of_states, (True, False), (False, False)),
    _row("one mixture of Gaussians", frozenset({Probes, NormalsPosterior}), _one_mixture, (False, True)),
    Row(
        "paths of states",
        LinearGaussianNetwork,
        _OF_PATHS,
        _paths,
        lambda c: SwitchingPosterior(c.model, c.query),
        _has_paths,
    ),
    _row("a mixture per state", frozenset({Probes, MixedNormals}), _mixture_per_state, (True, True)),
)
