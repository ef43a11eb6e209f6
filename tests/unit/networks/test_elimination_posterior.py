"""Plain MPE through `auto` where trees are dear: dense elimination and one sum, against enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from problem_twin import all_values, random_problem, value_array

import certimap as cm
from certimap.conversions import from_networks
from certimap.core.box import Boxes
from certimap.core.probing import answers_in
from certimap.core.result import CertificateKind
from certimap.errors import ImpossibleEvidence
from certimap.networks import elimination_plan, sum_pass
from certimap.networks.elimination_plan import most_added, plan
from certimap.networks.factor import Factor
from certimap.networks.max_elimination import MaxElimination
from certimap.networks.mpe_posterior import EliminationPosterior
from certimap.networks.network import MarkovNetwork
from certimap.networks.problem import Problem, Table, above_nats, prepared_of, to_fine_integers
from certimap.networks.reduction import reduce_network
from certimap.networks.sum_elimination import sum_all


@pytest.fixture
def dear_trees(monkeypatch):
    monkeypatch.setattr(from_networks, "SMALL_TREE", -1.0)


def network_of(problem: Problem) -> MarkovNetwork:
    place = {v: i for i, v in enumerate(sorted(problem.sizes))}
    domain = cm.Domain.of_sizes(problem.sizes[v] for v in place)
    factors = [Factor.from_log([place[v] for v in t.scope], t.log_values) for t in problem.tables]
    return MarkovNetwork(domain, [*factors, Factor.from_log((), np.array(float(problem.constant)))])


@pytest.mark.parametrize("seed", range(40))
def test_sum_is_that_of_enumeration(seed, monkeypatch):
    problem = random_problem(np.random.default_rng(seed))
    values = np.array(list(all_values(problem).values()))
    expected = float(np.logaddexp.reduce(values))
    for safe, small in ((sum_pass.SAFE_LOG2, 2**13), (sum_pass.SAFE_LOG2, 6), (0.5, 2**13)):
        monkeypatch.setattr(sum_pass, "SAFE_LOG2", safe)  # the last one sends everything to logs
        monkeypatch.setattr(elimination_plan, "SMALL_PRODUCT", small)
        found = sum_all(problem, plan(problem))
        assert found.log_value == pytest.approx(expected, abs=1e-12 * (1.0 + abs(expected)))
        assert 0.0 < found.log_slack < 1e-11


@pytest.mark.slow
def test_sum_of_what_doubles_do_not_hold():
    rng = np.random.default_rng(5)
    logs = [rng.normal(size=(3, 3)) * 400.0 - 2000.0 for _ in range(6)]
    problem = Problem(
        dict.fromkeys(range(7), 3), frozenset(range(7)), tuple(Table((i, i + 1), x) for i, x in enumerate(logs))
    )
    message = np.zeros(3)
    for table in reversed(logs):
        message = np.logaddexp.reduce(table + message, axis=1)
    assert sum_all(problem, plan(problem)).log_value == pytest.approx(float(np.logaddexp.reduce(message)))


@pytest.mark.parametrize("seed", range(40))
def test_fine_integers_bound_every_assignment_and_attain_the_best(seed):
    problem = random_problem(np.random.default_rng(100 + seed), max_variables=6)
    order = plan(problem)
    fine = to_fine_integers(problem, most_added(problem, order))
    found = MaxElimination(problem, order, fine=fine, keep_tables=True)
    values = sorted(all_values(problem).values(), reverse=True)
    bound = above_nats(found.value, fine.unit)
    assert values[0] <= bound <= values[0] + 1e-11
    ranked = list(itertools.islice(found.ranked(), 4))
    for (value, _), true in zip(ranked, values, strict=False):
        assert true <= above_nats(value, fine.unit) <= true + 1e-11


def test_entries_below_the_limit_are_raised_and_stay_possible():
    rng = np.random.default_rng(0)
    tables = tuple(Table((0, i), -rng.random((2, 2)) * 1e9) for i in range(1, 40))
    problem = Problem(dict.fromkeys(range(40), 2), frozenset(range(40)), tables)
    order = plan(problem)
    fine = to_fine_integers(problem, most_added(problem, order))
    true = max(sum(t.log_values[s].max() for t in tables) for s in range(2))
    assert above_nats(MaxElimination(problem, order, fine=fine).value, fine.unit) >= true


@pytest.mark.parametrize("seed", range(30))
def test_auto_takes_it_and_answers_as_enumeration_does(seed, dear_trees):
    rng = np.random.default_rng(300 + seed)
    problem = random_problem(rng, max_variables=7, max_states=4, nuisance=float(rng.choice([0.0, 0.4])))
    network = network_of(problem)
    variables, values = value_array(problem)
    place = {v: i for i, v in enumerate(sorted(problem.sizes))}
    names = [network.domain.names[place[v]] for v in variables]
    evidence = {}
    if rng.random() < 0.5:
        evidence[names[0]] = {"likelihood": rng.random(problem.sizes[variables[0]]).tolist()}
        with np.errstate(divide="ignore"):
            weights = np.log(np.array(evidence[names[0]]["likelihood"]))
        values = values + weights.reshape([-1] + [1] * (values.ndim - 1))
    ranked = np.sort(values.ravel())[::-1]
    posterior = cm.condition(network, names, evidence)
    assert isinstance(posterior, EliminationPosterior)
    total = float(np.logaddexp.reduce(ranked))
    for top_k in (None, 3):
        result = cm.map_query(network, names, evidence, epsilon=0, delta=0, top_k=top_k, rng=0, progress=False)
        assert result.certificate.kind is CertificateKind.EXACT
        assert result.log_joint == pytest.approx(ranked[0], abs=1e-9)
        assert result.log_prob == pytest.approx(ranked[0] - total, abs=1e-9)
        assert result.log_evidence == pytest.approx(total, abs=1e-9)
        if result.top is not None:
            n_possible = int(np.sum(ranked > -math.inf))
            assert [v for _, v in result.top][:n_possible] == pytest.approx(ranked[: min(3, n_possible)] - total)


@pytest.mark.slow
def test_boxes_and_draws_come_from_the_tree(dear_trees):
    problem = random_problem(np.random.default_rng(9), max_variables=6, zeros=0.2)
    posterior = cm.condition(network_of(problem))
    points = posterior.sample(50, np.random.default_rng(0))
    boxes = Boxes.of_points(posterior.domain, points)
    np.testing.assert_allclose(posterior.log_mass(boxes), posterior.log_prob(points), atol=1e-10)
    answers = answers_in(posterior, boxes)
    assert np.all(answers.log_bound >= posterior.log_prob(points) - 1e-12)
    assert posterior.log_mass_each(boxes).shape == answers.each_bound.shape == boxes.mask.shape


def test_a_long_chain_is_proved_to_the_last_digit():
    rng = np.random.default_rng(1)
    n, k, m = 3000, 12, 5
    tables = [
        np.array(rng.dirichlet(np.ones(k))),
        rng.dirichlet(np.ones(k) * 0.3, k),
        rng.dirichlet(np.ones(m), k),
    ]
    factors = [cm.Factor([0], tables[0])]
    factors += [cm.Factor([i - 1, i], tables[1]) for i in range(1, n)]
    factors += [cm.Factor([i, n + i], tables[2]) for i in range(n)]
    network = cm.BayesianNetwork(cm.Domain.of_sizes([k] * n + [m] * n), factors)
    seen = rng.integers(0, m, n)
    evidence = {network.domain.names[n + i]: int(seen[i]) for i in range(n)}
    result = cm.map_query(network, None, evidence, epsilon=0, delta=0, rng=0, progress=False)
    forward = np.log(tables[0]) + np.log(tables[2])[:, seen[0]]
    best = forward
    with np.errstate(divide="ignore"):
        step = np.log(tables[1])
    for s in seen[1:]:
        emit = np.log(tables[2])[:, s]
        best = (best[:, None] + step).max(axis=0) + emit
        forward = np.logaddexp.reduce(forward[:, None] + step, axis=0) + emit
    assert result.solver == "hbfs"
    assert result.certificate.kind is CertificateKind.EXACT
    assert result.log_joint == pytest.approx(best.max(), rel=1e-12)
    assert result.log_evidence == pytest.approx(np.logaddexp.reduce(forward), rel=1e-12)


def test_impossible_evidence_is_refused(dear_trees):
    domain = cm.Domain.of_sizes([2, 2, 2])
    odd = np.array([[0.0, 1.0], [1.0, 0.0]])
    network = MarkovNetwork(domain, [Factor((0, 1), odd), Factor((1, 2), odd), Factor((0, 2), odd)])
    with pytest.raises(ImpossibleEvidence):
        cm.map_query(network, None, rng=0, progress=False)


def test_the_clock_is_looked_at_before_every_large_sum():
    from certimap.core.control import Control, TimeUp

    class Counting(Control):
        n_looks, last = 0, 10**9

        def check(self, doing):
            self.n_looks += 1
            if self.n_looks >= self.last:
                raise TimeUp(doing)

    rng = np.random.default_rng(1)
    n = 24
    factors = [cm.Factor((a, b), rng.random((2, 2)) + 0.1) for a in range(n) for b in range(a + 1, min(a + 16, n))]
    network = cm.MarkovNetwork(cm.Domain.of_sizes([2] * n), factors)
    problem = prepared_of(reduce_network(network, cm.make_query(network.domain))).problem
    control = Counting()
    sum_all(problem, plan(problem), control)
    assert control.n_looks >= 8  # tables of 2^16 entries, a dozen products each
    late = Counting()
    late.last = 4
    with pytest.raises(TimeUp, match="summing"):
        sum_all(problem, plan(problem), late)


def test_bounds_of_long_chains_stay_within_the_tolerance():
    """100,000 variables are proved exact only if each loses less than 1e-14 nats."""
    n = 3000
    rng = np.random.default_rng(0)
    rows = rng.dirichlet(np.ones(3), (n, 3))
    factors = [Factor((0,), rows[0, 0]), *(Factor((i - 1, i), rows[i]) for i in range(1, n))]
    result = cm.map_query(cm.BayesianNetwork(cm.Domain.of_sizes([3] * n), factors), epsilon=0.0, solver="hbfs")
    assert result.certificate.kind == "exact"
    assert 0.0 <= result.log_joint_upper_bound - result.log_joint < 1e-14 * n


def test_messages_that_spread_further_than_tables_are_kept_apart_in_the_end():
    """Twenty leaves of x prefer 0 by 5 nats each, twenty of y, which equals x, prefer 1 by 6."""
    n = 42
    logs = [((0, 1), [[0.0, -np.inf], [-np.inf, 0.0]])]
    logs += [((0, v), [[0.0, 0.0], [-5.0, -5.0]]) for v in range(2, 22)]
    logs += [((1, v), [[-6.0, -6.0], [0.0, 0.0]]) for v in range(22, 42)]
    network = cm.MarkovNetwork(cm.Domain.of_sizes([2] * n), [Factor.from_log(s, np.array(t)) for s, t in logs])
    result = cm.map_query(network, epsilon=0.0, solver="hbfs")
    assert result.certificate.kind == "exact"
    assert result.log_joint == pytest.approx(-100.0, abs=1e-9)
    assert result.log_joint_upper_bound == pytest.approx(-100.0, abs=1e-9)
