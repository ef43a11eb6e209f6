"""Every solver against enumeration, on random models."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import certimap as cm
from certimap.ask.api import map_query
from certimap.testing import (
    TablePosterior,
    check_posterior,
    check_solver,
    random_circuit,
    random_domain,
    random_table,
)

EXACT = ("exhaustive", "frontier", "auto")
SAMPLING = ["pac", "smooth_pac", "paper", "paper_pac", "budget", "uniform_exploration"]


@pytest.mark.parametrize("name", [*SAMPLING, *EXACT])
def test_solvers_conform_on_tables(name):
    check_solver(name, n_posteriors=30, finds_best=name in EXACT)


def test_tables_conform():
    rng = np.random.default_rng(0)
    for seed in range(15):
        check_posterior(random_table(rng), rng=seed)


@pytest.mark.parametrize(
    "name", ["pac", "smooth_pac", "exhaustive", "independent", "max_product", "argmax_product"]
)
def test_solvers_conform_on_circuits(name):
    pytest.importorskip("certimap.conversions.choose")
    rng = np.random.default_rng(1)
    posteriors = []
    for _ in range(8):
        circuit = random_circuit(rng, random_domain(rng, max_variables=6, max_states=3))
        names = circuit.domain.names
        n_query = int(rng.integers(1, len(names) + 1))
        posteriors.append(cm.condition(circuit, list(names[:n_query]), solver=name))
    check_solver(name, posteriors=posteriors, finds_best=name in EXACT, max_samples=2000)


weights = st.lists(st.sampled_from([0.0, 1.0, 1.0, 2.0, 3.5, 100.0]), min_size=12, max_size=12).filter(any)


@given(
    weights=weights,
    epsilon=st.sampled_from([0.0, 0.01, 0.3]),
    seed=st.integers(0, 2**32),
    n_draws=st.integers(0, 60),
    top_k=st.integers(1, 4),
)
def test_what_is_claimed_for_certain_is_true(weights, epsilon, seed, n_draws, top_k):
    posterior = TablePosterior([3, 4], weights)
    ranked = np.sort(posterior.log_prob(posterior.points))[::-1]
    result = map_query(
        posterior,
        solver="smooth_pac",
        epsilon=epsilon,
        delta=0.0,
        rng=seed,
        max_samples=n_draws,
        top_k=top_k,
        progress=False,
    )
    assert result.log_upper_bound >= ranked[0] - 1e-9
    assert result.top is not None
    if result.certificate.kind != "none":
        assert len(result.top) == top_k
        reached = np.array([value for _, value in result.top])
        wanted = ranked[:top_k] + math.log1p(-result.certificate.epsilon)
        assert np.all((reached >= wanted - 1e-8) | (reached == wanted))
    if result.ties is not None:
        assert len(result.ties) + 1 == int(np.sum(ranked >= ranked[0] - 1e-9))
