"""What is to be expected of a query, beside the truth by enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import certimap as cm
from certimap.errors import QueryError
from certimap_lab.bench.random_circuits import random_learnspn


def values_of(posterior):
    points = np.array(list(itertools.product(*(range(k) for k in posterior.domain.n_states))), np.int16)
    return points, posterior.log_prob(points)


@given(st.integers(0, 2**20))
@settings(max_examples=25)
def test_it_holds_the_truth_between_its_sides(seed):
    posterior = cm.condition(random_learnspn(7, 120, seed=seed), None, {"0": 0})
    look = cm.forecast(posterior)
    _, values = values_of(posterior)
    best = float(values.max())
    assert look.log_found <= best + 1e-9 <= look.log_upper + 2e-9
    low, high = look.min_entropy_bits
    assert low - 1e-9 <= -best / math.log(2) <= high + 1e-9
    assert look.log_found == pytest.approx(
        float(posterior.log_prob(posterior.domain.encode(look.assignment)[None, :])[0])
    )
    fewest, likely = look.draws
    assert 1.0 <= fewest <= likely
    assert look.log_space == pytest.approx(math.log(len(values)))


def test_the_number_of_draws_is_what_pac_takes():
    posterior = cm.condition(random_learnspn(12, 400, seed=3))
    fewest, likely = cm.forecast(posterior).draws
    domain = posterior.domain
    blind = cm.FunctionPosterior(domain, lambda n, rng: posterior.sample(n, rng), posterior.log_prob)
    taken = cm.map_query(blind, solver="pac", rng=0).n_draws
    assert 0.9 * fewest <= taken <= 1.1 * likely + 1


def test_densities_have_no_entropy_and_no_draws():
    builder = cm.CircuitBuilder(cm.Domain([cm.Real("x")]))
    builder.gaussian(0, 1.0, 0.1)
    look = cm.forecast(cm.condition(builder.build()))
    assert look.min_entropy_bits is None
    assert look.draws is None
    assert look.assignment["x"] == pytest.approx(1.0)
    assert look.log_found == pytest.approx(-math.log(0.1 * math.sqrt(2 * math.pi)))


def test_a_fall_is_measured_per_changed_variable():
    weights = {"a": [0.8, 0.2], "b": [0.5, 0.25, 0.25]}
    model = cm.BayesianNetwork.from_cpts({"a": (0, 1), "b": (0, 1, 2)}, {}, weights)
    posterior = cm.condition(model)
    found = cm.estimate_lipschitz(posterior, {"a": 0, "b": 0})
    assert found.bits == pytest.approx(2.0)
    assert (found.n_neighbours, found.n_impossible, found.n_better) == (3, 0, 0)
    assert "proves no L" in found.sentence
    assert "not the mode" in cm.estimate_lipschitz(posterior, {"a": 1, "b": 0}).sentence


def test_impossible_neighbours_leave_no_constant():
    model = cm.BayesianNetwork.from_cpts({"a": (0, 1)}, {}, {"a": [1.0, 0.0]})
    found = cm.estimate_lipschitz(cm.condition(model), {"a": 0})
    assert found.n_impossible == 1
    assert "no Lipschitz constant" in found.sentence


def test_settings_out_of_range_are_refused():
    posterior = cm.condition(random_learnspn(4, 40, seed=1))
    with pytest.raises(QueryError, match="expected"):
        cm.forecast(posterior, epsilon=1.0)
    builder = cm.CircuitBuilder(cm.Domain([cm.Real("x")]))
    builder.gaussian(0, 1.0, 0.1)
    with pytest.raises(QueryError, match="real"):
        cm.estimate_lipschitz(cm.condition(builder.build()), {"x": 1.0})
