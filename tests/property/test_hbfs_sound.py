"""hbfs against enumeration: every route to the answer, zeros, ties, several best, nuisance that sums out."""

from __future__ import annotations

import numpy as np
import pytest
from problem_twin import all_values, random_problem

from certimap.domain import Domain
from certimap.networks.problem import Problem, value_at
from certimap.solvers.driver import run
from certimap.solvers.networks.hbfs import HybridBestFirst


class ProblemPosterior:
    """A problem as a posterior, without a network around it."""

    log_evidence = None
    normalised = False
    n_edges = 1

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.variables = sorted(problem.query)
        self.domain = Domain.of_sizes(problem.sizes[v] for v in self.variables)
        self.log_slack = problem.log_slack

    def log_prob(self, points):
        return value_at(self.problem, np.atleast_2d(points), self.variables)

    def point(self, assignment):
        return np.array([assignment.get(v, 0) for v in self.variables], self.domain.point_dtype)


FORCED = {"quick_entries": 0, "max_entries": 0}
ROUTES = {"search": FORCED, "elimination": {}, "late elimination": {"quick_entries": 0}}


def solve(problem, route, **settings):
    settings = {"epsilon": 0.0, "delta": 0.0, "rng": 0, "progress": False} | settings
    return run(ProblemPosterior(problem), HybridBestFirst(**ROUTES[route]), **settings)


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
