"""The bridge to toulbar2: costs, answers, and what happens without it or when it fails."""

import numpy as np
import pytest
from problem_twin import random_problem, value_array

import certimap as cm
from certimap.networks.factor import Factor
from certimap.networks.markov import MarkovNetwork
from certimap.networks.posterior import NetworkPosterior
from certimap.query import make_query
from certimap.result import Rule
from certimap.solvers.driver import run
from certimap.solvers.networks import toulbar2

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
        result = run(posterior, "toulbar2", epsilon=0.0, delta=0.0, rng=0, progress=False)
        assert result.log_prob == pytest.approx(best, abs=1e-8)
        assert result.log_upper_bound >= best - 1e-9
        if result.certificate.rule is Rule.EXTERNAL:
            assert "toulbar2" in result.certificate.assumptions[0]


@needs_toulbar2
def test_nuisance_is_refused():
    posterior, _ = random_case(np.random.default_rng(5), nuisance=0.8)
    if posterior.problem.nuisance:
        with pytest.raises(cm.SolverError, match="solver='frontier'"):
            run(posterior, "toulbar2", progress=False)


def test_without_it_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setattr(toulbar2, "is_installed", lambda: False)
    posterior, _ = random_case(np.random.default_rng(2))
    with pytest.raises(cm.SolverError, match=r"certimap\[toulbar2\].*solver='auto'"):
        run(posterior, "toulbar2", progress=False)


def test_a_crash_costs_only_its_own_share(monkeypatch, tmp_path):
    crash = tmp_path / "toulbar2_process.py"
    crash.write_text("import sys; sys.exit(3)")
    monkeypatch.setattr(toulbar2, "__file__", str(tmp_path / "toulbar2.py"))
    monkeypatch.setattr(toulbar2, "is_installed", lambda: True)
    rng = np.random.default_rng(3)
    posterior = next(p for p, _ in (random_case(rng) for _ in range(20)) if p.problem.sizes)
    with pytest.warns(UserWarning, match="ended with code 3; the run goes on"):
        result = run(posterior, "toulbar2", epsilon=0.0, delta=0.0, rng=0, progress=False)
    assert result.log_prob is not None
