"""Mini-buckets beside a best-first search: bounds never below the optimum, answers and proofs unchanged."""

import itertools

import numpy as np
import pytest
from problem_twin import random_problem

import certimap as cm
from certimap.control import Control
from certimap.networks.factor import Factor
from certimap.networks.problem import value_at
from certimap.solvers.networks import hbfs, root_bound


def test_the_bound_falls_and_holds(monkeypatch):
    monkeypatch.setattr(root_bound, "TABLE_ENTRIES", 2.0**2)
    rng = np.random.default_rng(1)
    n_fell = 0
    for _ in range(25):
        problem = random_problem(rng, max_variables=7, max_states=3, nuisance=0.0, zeros=0.2)
        names = list(problem.sizes)
        points = np.array(list(itertools.product(*(range(problem.sizes[v]) for v in names))))
        best = float(value_at(problem, points, names).max())
        relaxed = root_bound.RootBound(problem, Control())
        assert not relaxed.follow(0)
        last = relaxed.log_bound
        for _ in range(60):
            n_fell += relaxed.follow(10**12)
            assert best <= relaxed.log_bound <= last
            last = relaxed.log_bound
    assert n_fell > 20


def grid(rng, side):
    """Return a network of couplings of both signs on a square grid."""
    at = np.arange(side * side).reshape(side, side)
    ends = ((at[:, 1:], at[:, :-1]), (at[1:], at[:-1]))
    edges = [pair for u, v in ends for pair in zip(u.ravel(), v.ravel(), strict=True)]
    factors = []
    for u, v in edges:
        j = 3.0 * rng.normal()
        factors.append(Factor.from_log((int(v), int(u)), np.array([[j, -j], [-j, j]])))
    return cm.MarkovNetwork(cm.Domain.of_sizes([2] * side**2), factors)


@pytest.mark.parametrize("seed", range(2))
def test_a_search_reports_the_closer_bound(monkeypatch, seed):
    model = grid(np.random.default_rng(seed), 9)
    best = cm.map_query(model, solver=hbfs.HybridBestFirst(), progress=False)
    settings = {"solver": hbfs.HybridBestFirst(quick_entries=0, max_entries=0), "max_nodes": 1, "progress": False}
    plain = cm.map_query(model, **settings)
    monkeypatch.setattr(root_bound, "FROM_WORK", 0)
    monkeypatch.setattr(root_bound, "SHARE", 100.0)
    both = cm.map_query(model, **settings)
    assert best.log_joint - 1e-9 <= both.log_joint_upper_bound <= plain.log_joint_upper_bound + 1e-9
    again = cm.map_query(model, solver=settings["solver"], progress=False)
    assert again.log_joint == pytest.approx(best.log_joint, abs=1e-8)
