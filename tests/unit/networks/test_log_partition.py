"""Two sides of ln p(e) against enumeration, and where nothing sums."""

from __future__ import annotations

import numpy as np
import pytest
from problem_twin import all_values, random_problem

import certimap as cm
from certimap.errors import QueryError
from certimap.networks import sum_elimination as module
from certimap.networks.sum_elimination import log_partition


@pytest.mark.parametrize("i_bound", [1, 2, 4])
def test_bounds_hold_the_sum_of_all_assignments(i_bound, monkeypatch):
    n_apart = 0
    for seed in range(8):
        problem = random_problem(np.random.default_rng(seed), max_variables=7, max_states=3)
        true = float(np.logaddexp.reduce(list(all_values(problem).values())))
        for exact in (2.0**24, 0.0, 20.0):
            for limit in ("EXACT_WORK", "PART_WORK"):
                monkeypatch.setattr(module, limit, exact)
            lower, upper = log_partition(problem, i_bound=i_bound, iterations=5)
            assert lower <= true <= upper
            if exact == 2.0**24:
                assert upper - lower < 1e-9
            n_apart += upper - lower > 1e-6
    assert n_apart


def test_a_grid_too_wide_to_sum_gets_two_sides():
    rng = np.random.default_rng(3)
    side = 25
    at = np.arange(side * side).reshape(side, side)
    pairs = [*zip(at[:, :-1].flat, at[:, 1:].flat, strict=True), *zip(at[:-1].flat, at[1:].flat, strict=True)]
    factors = [cm.Factor([int(a), int(b)], np.exp(rng.normal(size=(2, 2)) * 0.3)) for a, b in pairs]
    network = cm.MarkovNetwork(cm.Domain.of_sizes([2] * at.size), factors)
    first = cm.log_evidence_bounds(network, i_bound=5, iterations=0)
    found = cm.log_evidence_bounds(network, i_bound=5, iterations=10)
    assert found.lower < found.upper < first.upper
    assert at.size * np.log(2.0) * 0.5 < found.lower


def test_other_models_and_settings_are_refused():
    network = cm.BayesianNetwork(cm.Domain.of_sizes([2]), [cm.Factor([0], np.array([0.5, 0.5]))])
    assert cm.log_evidence_bounds(network) == pytest.approx((0.0, 0.0), abs=1e-12)
    with pytest.raises(QueryError, match="i_bound is 0"):
        cm.log_evidence_bounds(network, i_bound=0)
    with pytest.raises(QueryError, match="of networks, and a Circuit is none"):
        cm.log_evidence_bounds(network.compile())
