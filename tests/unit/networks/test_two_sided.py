"""Points whose sums do not fit: a value between two sides, and certificates that hold."""

import itertools

import numpy as np
import pytest

import certimap as cm
from certimap.ask.api import map_query
from certimap.conversions import from_wide_networks
from certimap.conversions.choose import Case
from certimap.core.control import Limits
from certimap.core.query import make_query
from certimap.networks import orders, posterior
from certimap.networks.factor import Factor
from certimap.networks.posterior import TwoSidedNetworkPosterior
from certimap.proofs import finish
from certimap.testing import check_posterior


def random_network(rng, n=9, zeros=0.2):
    domain = cm.Domain.of_sizes(rng.integers(2, 4, n))
    factors = [Factor((i,), rng.random(int(domain.n_states[i])) + 0.1) for i in range(n)]
    for _ in range(2 * n):
        scope = tuple(int(v) for v in rng.choice(n, 2, replace=False))
        table = np.exp(1.5 * rng.normal(size=[int(domain.n_states[v]) for v in scope]))
        table[rng.random(table.shape) < zeros] = 0.0
        factors.append(Factor(scope, table))
    return cm.MarkovNetwork(domain, factors)


def exact_values(network, names, points):
    """Return ln of the sum over all else, by listing every assignment."""
    domain = network.domain
    everything = np.array(list(itertools.product(*(range(int(k)) for k in domain.n_states))))
    logs = np.zeros(len(everything))
    for factor in network.factors:
        logs = logs + factor.log_table[tuple(everything[:, v] for v in factor.scope)]
    columns = [domain.names.index(name) for name in names]
    matches = [np.all(everything[:, columns] == point, axis=1) for point in points]
    return np.array([np.logaddexp.reduce(logs[m], initial=-np.inf) for m in matches])


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setattr(posterior, "PART_WORK", 20.0)
    monkeypatch.setattr(posterior, "UPPER_BITS", 3.0)
    monkeypatch.setattr(posterior, "ROUNDS", 9)
    monkeypatch.setattr("certimap.networks.posterior.KNOWN_WORK", 0.0)


@pytest.mark.parametrize("seed", range(12))
def test_the_truth_lies_between_the_sides(seed):
    network = random_network(np.random.default_rng(seed))
    names = list(network.domain.names[:3])
    query = make_query(network.domain, names)
    try:
        posterior = TwoSidedNetworkPosterior.of_network(network, query)
    except cm.ImpossibleEvidence:
        pytest.skip("every assignment has a zero")
    points = np.array(list(itertools.product(*(range(int(k)) for k in posterior.domain.n_states))))
    truth = exact_values(network, names, points)
    lower, upper = posterior.log_prob_interval(points)
    assert np.all(lower <= truth + 1e-12)
    assert np.all(truth <= upper + 1e-12)
    assert np.any(lower < truth - 1e-6)  # something is left out
    again = TwoSidedNetworkPosterior.of_network(network, query).log_prob_interval(points[::-1])
    assert np.array_equal(again.lower[::-1], lower)
    assert np.array_equal(again.upper[::-1], upper)
    assert float(truth.max()) <= posterior.facts.log_ceiling + 1e-12
    result = map_query(posterior, epsilon=0.0, delta=0.0, rng=0, progress=False, max_nodes=300)
    assert result.log_joint <= truth.max() + 1e-9 <= result.log_joint_upper_bound + 2e-9


def test_the_conformance_cases_hold():
    network = random_network(np.random.default_rng(20), zeros=0.0)
    check_posterior(TwoSidedNetworkPosterior.of_network(network, make_query(network.domain, ["0", "1", "2"])))


@pytest.mark.parametrize("max_nodes", [0, 200])
def test_what_was_refused_is_answered(max_nodes, monkeypatch):
    monkeypatch.setattr(from_wide_networks, "MAX_POINT_WORK", 10.0)
    monkeypatch.setattr(from_wide_networks, "MAX_SUMMED", 1)
    network = random_network(np.random.default_rng(5), zeros=0.0)
    limits = {"max_edges": 20, "epsilon": 0.0, "delta": 0.0, "rng": 0, "max_nodes": max_nodes}
    result = cm.map_query(network, ["0", "1", "2"], **limits)
    points = np.array(list(itertools.product(*(range(int(k)) for k in network.domain.n_states[:3]))))
    truth = exact_values(network, ["0", "1", "2"], points)
    assert result.solver == "portfolio"
    assert result.log_joint <= truth.max() + 1e-9 <= result.log_joint_upper_bound + 2e-9
    states = [network.domain[name].states.index(label) for name, label in result.assignment.items()]
    value = exact_values(network, ["0", "1", "2"], np.array([states]))[0]
    assert result.is_lower_side == (result.log_joint < value - 1e-8)
    assert result.is_lower_side == ("joint value  at least " in str(result))
    with pytest.raises(cm.SolverError, match="too wide for that; use solver='auto'"):
        cm.map_query(network, ["0", "1", "2"], solver="aobb", **limits)


@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("seed", [1, 3])
def test_an_answer_between_two_sides_is_proved(seed, is_wide, monkeypatch):
    """The proof claims the value that the checker finds, which lies above the answer's lower side."""
    monkeypatch.setattr(from_wide_networks, "MAX_POINT_WORK", 10.0)
    monkeypatch.setattr(from_wide_networks, "MAX_SUMMED", 1)
    monkeypatch.setattr(finish, "LEAST_SECONDS", 600.0)  # however busy the machine is
    monkeypatch.setattr(orders, "looks_too_wide", lambda scopes, sizes: is_wide)
    network = random_network(np.random.default_rng(seed), zeros=0.0)
    limits = {"max_edges": 20, "epsilon": 0.3, "delta": 0.0, "rng": 0, "max_nodes": 200}
    result = cm.map_query(network, ["0", "1", "2"], proof=True, **limits)
    assert result.certified
    proof = result.proof
    assert proof.meta["method"] == ("steps" if is_wide else "vectors")
    assert proof.meta["claim"]["log_joint"] > result.log_joint + 0.1
    assert cm.check(network, proof).accepted
    point = [list(result.assignment.values())]
    assert proof.meta["claim"]["log_joint"] == pytest.approx(exact_values(network, ["0", "1", "2"], point)[0])
    for label in set(range(int(network.domain.n_states[0]))) - {result.assignment["0"]}:
        forged = cm.Proof({**proof.meta, "answer": {**result.assignment, "0": label}}, proof.arrays)
        assert not cm.check(network, forged).accepted
    claim = {**proof.meta["claim"], "log_joint": result.log_joint}
    assert not cm.check(network, cm.Proof({**proof.meta, "claim": claim}, proof.arrays)).accepted


@pytest.mark.parametrize("evidence", [{}, {"xray": "yes"}])
def test_a_side_of_a_value_is_not_divided_by_the_evidence(examples, evidence, monkeypatch):
    """Half of a value over p(e) would be read as the answer's probability."""
    monkeypatch.setattr("certimap.networks.posterior.KNOWN_WORK", 1e6)
    network = cm.read(examples / "asia.bif")
    case = Case(network, make_query(network.domain, ["lung"], evidence), Limits())
    assert from_wide_networks.relaxed(case).log_evidence is not None
    posterior = from_wide_networks.two_sided(case)
    assert (posterior.facts.log_evidence is None) == bool(evidence)
    exact = cm.condition(network, ["lung"], evidence)
    points = np.array([[0], [1]])
    truth = exact.log_prob(points) + exact.facts.log_evidence
    assert np.all(posterior.log_prob(points) <= truth + 1e-12)
    assert np.max(posterior.log_prob(points) - truth) > -1.0
