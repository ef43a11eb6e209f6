"""Random hidden Markov models and latent class models, by seed."""

from __future__ import annotations

import numpy as np

from certimap.core.domain import Label
from certimap.networks.bayesian import BayesianNetwork, naive_bayes
from certimap.networks.chains import hidden_markov_model


def random_chain(
    steps: int, n_states: int, n_symbols: int, seed: int, concentration: float = 1.0
) -> tuple[BayesianNetwork, list[str]]:
    """Return a hidden Markov model with distributions drawn from a Dirichlet, and the names of its symbols."""
    rng = np.random.default_rng(seed)
    start = rng.dirichlet(np.full(n_states, concentration))
    transition = rng.dirichlet(np.full(n_states, concentration), n_states)
    emission = rng.dirichlet(np.full(n_symbols, concentration), n_states)
    model = hidden_markov_model(start, transition, emission, steps)
    assert isinstance(model, BayesianNetwork)  # not one of log-likelihoods
    return model, [f"symbol{t}" for t in range(steps)]


def random_classes(n_classes: int, n_features: int, n_states: int, seed: int) -> tuple[BayesianNetwork, list[str]]:
    """Return a latent class model with distributions drawn uniformly, and the names of its features."""
    rng = np.random.default_rng(seed)
    prior: list[float] = rng.dirichlet(np.ones(n_classes)).tolist()
    features: dict[str, dict[Label, dict[Label, float]]] = {}
    for v in range(n_features):
        rows: list[list[float]] = rng.dirichlet(np.ones(n_states), n_classes).tolist()
        features[f"x{v}"] = {c: dict(enumerate(row)) for c, row in enumerate(rows)}
    return naive_bayes("class", dict(enumerate(prior)), features), list(features)
