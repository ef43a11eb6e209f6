"""The bridge to toulbar2: costs, answers, and what happens without it or when it fails."""

import numpy as np
import pytest
from problem_twin import random_problem, value_array

import certimap as cm
from certimap.ask.api import map_query
from certimap.core.query import make_query
from certimap.core.result import Rule
from certimap.networks.factor import Factor
from certimap.networks.network import MarkovNetwork
from certimap.networks.posterior import NetworkPosterior
from certimap.networks.problem import value_at
from certimap.solvers import registry
from certimap.solvers.networks import hbfs, toulbar2

needs_toulbar2 = pytest.mark.skipif(not toulbar2.is_installed(), reason="pytoulbar2 is not installed")


def random_case(rng, nuisance=0.0):
    """Return a random network's posterior, and the log probability of its best assignment."""
    problem = random_problem(rng, max_variables=7, max_states=3, nuisance=nuisance)
    place = {v: i for i, v in enumerate(sorted(problem.sizes))}
    domain = cm.Domain.of_sizes(problem.sizes[v] for v in place)
    factors = [Factor.from_log([place[v] for v in t.scope], t.log_values) for t in problem.tables]
    query, values = value_array(problem)
    names = [domain.names[place[v]] for v in query]
    posterior = NetworkPosterior.of_network(MarkovNetwork(domain, factors), make_query(domain, names))
    return posterior, float(values.max() - np.logaddexp.reduce(values.ravel()))


def test_costs_add_up_to_the_logs():
    rng = np.random.default_rng(0)
    for _ in range(20):
        posterior, _ = random_case(rng)
        problem = posterior.problem
        if not problem.sizes:
            continue
        job, log_zero, slack = toulbar2.costs_of(problem)
        sizes = job["sizes"]
        point = rng.integers(sizes)
        total = 0.0
        for scope, costs in zip(job["scopes"], job["costs"], strict=True):
            total += costs[int(np.ravel_multi_index(point[scope], [sizes[i] for i in scope]))]
        states = dict(zip(sorted(problem.sizes), point, strict=True))
        value = problem.constant
        value += sum(float(t.log_values[tuple(states[v] for v in t.scope)]) for t in problem.tables)
        if value > -np.inf:
            assert log_zero - total == pytest.approx(value, abs=1e-9)
        else:
            assert total >= job["impossible"]
        assert slack < 1e-9


@needs_toulbar2
def test_answers_are_proved_from_outside():
    rng = np.random.default_rng(1)
    for _ in range(4):
        posterior, best = random_case(rng)
        result = map_query(posterior, solver="toulbar2", epsilon=0.0, delta=0.0, rng=0)
        assert result.log_prob == pytest.approx(best, abs=1e-8)
        assert result.log_upper_bound >= best - 1e-9
        if result.certificate.rule is Rule.EXTERNAL:
            assert "toulbar2" in result.certificate.assumptions[0]


@needs_toulbar2
def test_nuisance_is_refused():
    posterior, _ = random_case(np.random.default_rng(5), nuisance=0.8)
    if posterior.problem.nuisance:
        with pytest.raises(cm.SolverError, match="solver='frontier'"):
            map_query(posterior, solver="toulbar2")


def test_without_it_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setattr(toulbar2, "is_installed", lambda: False)
    posterior, _ = random_case(np.random.default_rng(2))
    with pytest.raises(cm.SolverError, match=r"certimap\[toulbar2\].*solver='auto'"):
        map_query(posterior, solver="toulbar2")


def test_a_crash_costs_only_its_own_share(monkeypatch, tmp_path):
    crash = tmp_path / "toulbar2_process.py"
    crash.write_text("import sys; sys.exit(3)")
    monkeypatch.setattr(toulbar2, "__file__", str(tmp_path / "toulbar2.py"))
    monkeypatch.setattr(toulbar2, "is_installed", lambda: True)
    rng = np.random.default_rng(3)
    posterior = next(p for p, _ in (random_case(rng) for _ in range(20)) if p.problem.sizes)
    with pytest.warns(UserWarning, match="ended with code 3; the run goes on"):
        result = map_query(posterior, solver="toulbar2", epsilon=0.0, delta=0.0, rng=0)
    assert result.log_prob is not None


def strong_grid(rng, side):
    """Return couplings of both signs on a square grid."""
    at = np.arange(side * side).reshape(side, side)
    ends = ((at[:, 1:], at[:, :-1]), (at[1:], at[:-1]))
    pairs = [pair for u, v in ends for pair in zip(v.ravel(), u.ravel(), strict=True)]
    spin = np.array([[1.0, -1.0], [-1.0, 1.0]])
    factors = [Factor.from_log((int(u), int(v)), 3.0 * rng.normal() * spin) for u, v in pairs]
    return MarkovNetwork(cm.Domain.of_sizes([2] * side**2), factors)


def test_a_long_search_asks_outside_once(monkeypatch):
    """Whatever the other program says: its point is scored here, and its bound is a named assumption."""
    model = strong_grid(np.random.default_rng(2), 14)
    best = cm.map_query(model, progress=False, epsilon=0.0, delta=0.0)
    point = model.domain.encode(best.assignment)
    asked = []

    def answers(problem, seconds, memory, control):
        asked.append(seconds)
        variables = sorted(problem.sizes)
        value = float(value_at(problem, point[None, variables], variables)[0])
        return {"solution": [int(point[v]) for v in variables], "log_upper": value + 1e-12}

    monkeypatch.setattr(toulbar2, "run_process", answers)
    monkeypatch.setattr(hbfs, "OUTSIDE_FROM", 0)
    searching = {"quick_entries": 0.0, "max_entries": 0.0, "outside_share": 0.25}
    settings = {"epsilon": 0.0, "delta": 0.0, "rng": 0, "progress": False}
    found = cm.map_query(model, solver=hbfs.HybridBestFirst(**searching), time_limit=600, **settings)
    assert len(asked) == 1
    assert 0.0 < asked[0] <= 150.0  # a quarter of the limit
    assert found.certified
    assert found.log_joint == pytest.approx(best.log_joint, abs=1e-9)
    assert any("toulbar2" in assumption for assumption in found.certificate.assumptions)
    cm.map_query(model, solver=hbfs.HybridBestFirst(**searching), max_nodes=100, **settings)
    assert len(asked) == 1  # without a time limit there is nothing to share


def test_auto_asks_outside_only_where_it_can(monkeypatch):
    mpe = cm.condition(strong_grid(np.random.default_rng(0), 5), None, solver="hbfs")
    for is_there in (True, False):
        monkeypatch.setattr(toulbar2, "is_installed", lambda is_there=is_there: is_there)
        solver = registry.choose(mpe)
        assert solver.name == "hbfs"
        assert (solver.outside_share > 0.0) == is_there
    with pytest.raises(cm.SolverError, match="outside_share is 1"):
        hbfs.HybridBestFirst(outside_share=1.0)
