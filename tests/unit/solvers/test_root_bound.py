"""Mini-buckets beside a best-first search: bounds never below the optimum, answers and proofs unchanged."""

import itertools

import numpy as np
import pytest
from problem_twin import random_problem

import certimap as cm
from certimap.core.control import Control
from certimap.core.result import CertificateKind
from certimap.networks.factor import Factor
from certimap.networks.problem import to_integers, value_at
from certimap.solvers.networks import hbfs, parts, root_bound


def test_the_bound_falls_and_holds(monkeypatch):
    monkeypatch.setattr(root_bound, "TABLE_BITS", (2.0, 3.0))
    rng = np.random.default_rng(1)
    n_fell = n_second = 0
    for _ in range(25):
        problem = to_integers(random_problem(rng, max_variables=7, max_states=3, nuisance=0.0, zeros=0.2))
        names = list(problem.sizes)
        points = np.array(list(itertools.product(*(range(problem.sizes[v]) for v in names))))
        values = value_at(problem, points, names)
        best = int(values.max())
        relaxed = root_bound.RootBound(problem, Control())
        last = relaxed.bound
        for k in range(60):
            if relaxed.follow(10**12, best - 10**9, leads=False):
                n_fell += 1
                states = relaxed.decoded()
                found = int(value_at(problem, np.array([[states[v] for v in names]]), names)[0])
                assert found <= best
            assert best <= relaxed.bound <= last
            last = relaxed.bound
            n_second += k > 5 and not relaxed.is_finished
        assert relaxed.is_finished
    assert n_fell > 20
    assert n_second > 0


def test_a_bound_that_fits_no_memory_or_time_ends_quietly(monkeypatch):
    problem = to_integers(random_problem(np.random.default_rng(4), max_variables=7, nuisance=0.0))
    small = root_bound.RootBound(problem, Control(max_memory=8))
    assert not small.follow(10**12, 0, leads=False)
    assert small.is_finished


def test_a_bound_that_leads_gets_more_of_the_work_at_once(monkeypatch):
    monkeypatch.setattr(root_bound, "TABLE_BITS", (2.0, 3.0))
    rng, work = np.random.default_rng(2), {False: 0.0, True: 0.0}
    for _ in range(10):
        problem = to_integers(random_problem(rng, max_variables=7, nuisance=0.0))
        for leads in work:
            relaxed = root_bound.RootBound(problem, Control())
            relaxed.follow(10**6, 0, leads=leads)
            assert relaxed.work <= root_bound.LEADING_SHARE * 10**6
            work[leads] += relaxed.work
    assert 0.0 < work[False] < work[True]


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
    monkeypatch.setattr(root_bound, "TABLE_BITS", (4.0, 6.0))
    monkeypatch.setattr(root_bound, "SHARE", 100.0)
    both = cm.map_query(model, **settings)
    assert best.log_joint - 1e-9 <= both.log_joint_upper_bound <= plain.log_joint_upper_bound + 1e-9
    again = cm.map_query(model, solver=settings["solver"], progress=False)
    assert again.log_joint == pytest.approx(best.log_joint, abs=1e-8)


def test_what_relaxations_close_is_closed_rightly(monkeypatch):
    """Every search is bounded from its first piece on, by small tables, and must end at the best."""
    monkeypatch.setattr(root_bound, "FROM_WORK", 0)
    monkeypatch.setattr(root_bound, "SHARE", 100.0)
    monkeypatch.setattr(root_bound, "TABLE_BITS", (2.0, 4.0))
    monkeypatch.setattr(parts, "PIECE", 2000)
    for seed in range(6):
        model = grid(np.random.default_rng(100 + seed), 6)
        best = cm.map_query(model, solver="bucket_elimination", progress=False)
        found = cm.map_query(model, solver=hbfs.HybridBestFirst(quick_entries=0, max_entries=0), progress=False)
        assert found.certificate.kind is CertificateKind.EXACT
        assert found.log_joint == pytest.approx(best.log_joint, abs=1e-8)


@pytest.mark.parametrize("lead", [2**47, 0])
def test_a_search_that_a_tree_bounds_ends_at_the_best(monkeypatch, lead):
    """Trees that prove nothing: a search under one of them ends, once nothing is left."""
    monkeypatch.setattr(root_bound, "TABLE_BITS", (1.0, 2.0))
    monkeypatch.setattr(root_bound, "STEPS", ((0.1, 1),))
    monkeypatch.setattr(root_bound, "TOUR_NODES", 2)
    rng = np.random.default_rng(5)
    for _ in range(15):
        problem = to_integers(random_problem(rng, max_variables=7, max_states=3, nuisance=0.0, zeros=0.2))
        names = list(problem.sizes)
        points = np.array(list(itertools.product(*(range(problem.sizes[v]) for v in names))))
        best = int(value_at(problem, points, names).max())
        relaxed = root_bound.RootBound(problem, Control())
        while not relaxed.is_finished:
            relaxed.follow(10**12, best - lead, leads=True)
        assert relaxed.is_solved
        assert best <= relaxed.bound <= best + 4 + 1e-9 / problem.unit
        if lead > 0:
            states = relaxed.decoded()
            assert int(value_at(problem, np.array([[states[v] for v in names]]), names)[0]) == best
