"""Queries under constraints, after interventions, with stated probabilities, and for sets of assignments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from certimap.core.constraints import constraints_of
from certimap.core.domain import Categorical
from certimap.networks import BayesianNetwork
from certimap.testing.models import all_points
from certimap_lab.constraints import all_hold, random_constraints
from certimap_lab.volume import models
from certimap_lab.volume.case import Truth, VolumeCase

SUMMED = (models.bayesian, models.circuit, models.hidden_tree)  # families of models with a known p(e)
OTHERS = (models.markov, models.function, models.table)


def constrained(
    rng: np.random.Generator, makes: Sequence[Callable[[np.random.Generator], VolumeCase]] = (*SUMMED, *OTHERS)
) -> VolumeCase:
    """A query of another family under one to three constraints, on observed variables too; some hold nowhere."""
    case = makes[int(rng.integers(len(makes)))](rng)
    given = case.evidence or {}
    observed = {name: label for name, label in given.items() if isinstance(label, int)}
    domain = case.truth.domain
    states = {v.name: v.states for v in domain if isinstance(v, Categorical)}
    model_domain = None if case.query is None else case.model.domain
    states |= {name: model_domain[name].states for name in observed if model_domain is not None}
    said = random_constraints(rng, states, int(rng.integers(1, 4)))
    logs = np.full(domain.n_states, -np.inf)
    for point in all_points(domain):
        if all_hold(said, observed | domain.decode(point)):
            logs[tuple(point)] = case.truth.log_prob(point)
    ranked = np.sort(logs[logs > -np.inf])[::-1]
    truth = Truth(domain, lambda point: float(logs[tuple(int(x) for x in point)]), ranked, len(ranked))
    settings = case.settings | {"constraints": constraints_of(said)}
    return replace(case, family="constraints", truth=truth, settings=settings, everything=None)


def intervened(rng: np.random.Generator) -> VolumeCase:
    """A query of a Bayesian network after interventions; the truth leaves out the tables of what is set."""
    domain, factors = models.random_factors(rng)
    done = {
        i: int(rng.integers(domain.n_states[i])) for i in rng.permutation(len(domain))[: int(rng.integers(1, 3))]
    }
    model = BayesianNetwork(domain, factors).do({domain.names[i]: state for i, state in done.items()})
    joint = np.ones([1] * len(domain))
    for factor in factors:
        i = int(factor.scope[-1])
        own = ([i], np.eye(int(domain.n_states[i]))[done[i]]) if i in done else (factor.scope, factor.table)
        joint = joint * models.spread(own[1], own[0], len(domain))
    return models.model_case("interventions", rng, model, joint, unobserved=done)


def stated(rng: np.random.Generator) -> VolumeCase:
    """A query of a Bayesian network in which one variable has stated probabilities."""
    domain, factors = models.random_factors(rng)
    n = len(domain)
    order: list[int] = rng.permutation(n).tolist()
    joint = np.ones([1] * n)
    for factor in factors:
        joint = joint * models.spread(factor.table, factor.scope, n)
    told, others = order[0], order[1:]
    evidence: dict[str, Any] = {}
    for i in others[: int(rng.integers(2))]:
        state = int(rng.integers(int(domain.n_states[i])))
        evidence[domain.names[i]] = state
        joint = joint * models.spread(np.eye(int(domain.n_states[i]))[state], [i], n)
    own = np.asarray(joint.sum(axis=tuple(i for i in range(n) if i != told)))
    wanted = rng.dirichlet(np.ones(len(own))) * (own > 0.0)
    wanted = wanted / wanted.sum() if wanted.any() else np.ones(len(own)) / len(own)
    evidence[domain.names[told]] = {"probability": wanted.tolist()}
    joint = joint * models.spread(np.divide(wanted, own, where=own > 0.0, out=np.zeros(len(own))), [told], n)
    free = [i for i in order if domain.names[i] not in evidence or i == told]
    queried = free[: int(rng.integers(1, len(free) + 1))]
    summed = np.asarray(joint.sum(axis=tuple(i for i in range(n) if i not in queried)))
    table = summed.transpose(np.argsort(np.argsort(queried)))
    truth = Truth.of_table(domain.subset(queried), table if own.any() else np.ones(table.shape))
    solver, others_named = models.solver_order(rng)
    query, model = [domain.names[i] for i in queried], BayesianNetwork(domain, factors)
    settings = models.settings_of(rng)
    return VolumeCase("stated probabilities", truth, solver, settings, model, query, evidence, others=others_named)


def covered(rng: np.random.Generator) -> VolumeCase:
    """A query of another family, half of them constrained, for the smallest set that holds a probability."""
    case = constrained(rng, SUMMED) if rng.random() < 0.5 else SUMMED[int(rng.integers(len(SUMMED)))](rng)
    settings = case.settings | {"top_mass": float(rng.choice([0.3, 0.5, 0.9, 0.95]))}
    if rng.random() < 0.5:
        settings.pop("top_k", None)
    return replace(case, family="sets that hold a probability", settings=settings, everything=None)
