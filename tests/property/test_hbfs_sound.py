"""hbfs against enumeration: every route to the answer, zeros, ties, several best, nuisance that sums out."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from problem_twin import all_values, random_problem

from certimap.ask.api import map_query
from certimap.certify.ledger import Ledger
from certimap.core.box import Boxes
from certimap.core.control import Control
from certimap.core.domain import Domain
from certimap.core.posterior import Facts
from certimap.networks import Factor, MarkovNetwork
from certimap.networks.mpe_posterior import MpePosterior
from certimap.networks.problem import Problem, value_at
from certimap.solvers.networks import parts
from certimap.solvers.networks.hbfs import HybridBestFirst


class ProblemPosterior(MpePosterior):
    """A problem as a posterior, without a network around it: its variables' states are numbered as they are."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.workers, self.order, self.states = problem, 1, None, self
        self.variables = sorted(problem.query)
        self.domain = Domain.of_sizes(problem.sizes[v] for v in self.variables)
        self.facts = Facts.of(self.domain, is_normalised=False, log_slack=problem.log_slack)

    def log_prob(self, points):
        return value_at(self.problem, np.atleast_2d(points), self.variables)

    def point(self, assignment):
        return np.array([assignment.get(v, 0) for v in self.variables], self.domain.point_dtype)

    def kept(self, boxes):
        masks = {v: boxes.mask[0, a:b] for v, a, b in zip(self.variables, *self.bounds(), strict=True)}
        return {v: np.flatnonzero(mask) for v, mask in masks.items() if not mask.all()}

    def bounds(self):
        return self.domain.offsets[:-1], self.domain.offsets[1:]


FORCED = {"quick_entries": 0, "max_entries": 0}
ROUTES = {"search": FORCED, "elimination": {}, "late elimination": {"quick_entries": 0}}


def solve(problem, route, **settings):
    settings = {"epsilon": 0.0, "delta": 0.0, "rng": 0, "progress": False} | settings
    return map_query(ProblemPosterior(problem), solver=HybridBestFirst(**ROUTES[route]), **settings)


@pytest.mark.parametrize("seed", range(80))
@pytest.mark.parametrize("route", ROUTES)
def test_exact_answers(seed, route):
    problem = random_problem(np.random.default_rng(seed), max_variables=9)
    best = max(all_values(problem).values())
    result = solve(problem, route)
    assert result.log_prob is None
    assert result.log_joint == pytest.approx(best, abs=1e-9)
    assert result.log_joint_upper_bound >= best - 1e-12
    assert result.certificate.kind.value == "exact"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("route", ROUTES)
def test_several_best(seed, route):
    problem = random_problem(np.random.default_rng(1000 + seed), max_variables=6)
    expected = sorted((v for v in all_values(problem).values() if v > -np.inf), reverse=True)
    k = min(5, len(expected))
    result = solve(problem, route, top_k=k)
    assert [value for _, value in result.top] == pytest.approx(expected[:k], abs=1e-9)
    assert len({tuple(states.values()) for states, _ in result.top}) == k
    assert result.certificate.kind.value == "exact"


@pytest.mark.parametrize("seed", range(30))
def test_inside_a_box(seed):
    rng = np.random.default_rng(2000 + seed)
    problem = random_problem(rng, max_variables=6)
    values = all_values(problem)
    posterior = ProblemPosterior(problem)
    point = max(values, key=values.get)
    mask = Boxes.of_points(posterior.domain, np.array([point])).mask | (
        rng.random(posterior.domain.total_states) < 0.5
    )
    solver = HybridBestFirst(**FORCED)
    ledger = Ledger(posterior, epsilon=0.0, delta=0.0)
    state = solver.init(posterior, Control(), rng, Boxes(posterior.domain, mask))
    while not state.done:
        state = solver.step(state, ledger)
    assert ledger.best_log_prob == pytest.approx(values[point], abs=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_memory_for_almost_nothing(seed, monkeypatch):
    monkeypatch.setattr(parts, "PIECE", 500)
    problem = random_problem(np.random.default_rng(3000 + seed), max_variables=9, max_states=3)
    result = solve(problem, "search", max_memory=100)
    best = max(all_values(problem).values())
    assert result.log_joint_upper_bound >= best - 1e-12
    assert result.log_joint <= best + 1e-9


def test_a_seed_replays():
    problem = random_problem(np.random.default_rng(5), max_variables=9)
    first, second = (solve(problem, "search").to_dict() for _ in range(2))
    del first["seconds"], second["seconds"]
    assert first == second


def test_state_pickles():
    problem = random_problem(np.random.default_rng(7), max_variables=9)
    posterior = ProblemPosterior(problem)
    solver = HybridBestFirst(**FORCED)
    ledger = Ledger(posterior, epsilon=0.0, delta=0.0)
    state = solver.init(posterior, Control(), np.random.default_rng(0))
    while not state.done:
        state = pickle.loads(pickle.dumps(solver.step(state, ledger)))
    assert ledger.best_log_prob == pytest.approx(max(all_values(problem).values()), abs=1e-9)


@pytest.mark.parametrize("seed", [19, 126, 143, 257])
def test_entries_too_far_apart_for_integers_are_searched(seed):
    """The elimination's units raise small entries: its maximum may be any assignment."""
    rng = np.random.default_rng(seed)
    n, scale = int(rng.integers(1, 4)), 10.0 ** rng.uniform(0.0, 3.5)
    factors = [Factor.from_log((int(rng.integers(n)),), rng.normal(size=3) * scale) for _ in range(3 * n)]
    network = MarkovNetwork(Domain.of_sizes([3] * n), factors)
    best = map_query(network, solver="exhaustive", epsilon=0.0, progress=False)
    found = map_query(network, solver="hbfs", epsilon=0.003, progress=False)
    assert found.log_joint == pytest.approx(best.log_joint, abs=1e-6)
    assert found.certified
