"""Interventions against the product of the tables that stay, against networks cut by hand, and bad input."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import logsumexp
from tests.reference.enumeration_networks import positive_network

import certimap as cm


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_what_is_left_is_the_product_of_the_other_tables(seed):
    rng = np.random.default_rng(seed)
    network = positive_network(rng)
    chosen = rng.choice(network.domain.names, size=int(rng.integers(1, 4)), replace=False).tolist()
    done = {name: int(rng.integers(network.domain[name].n_states)) for name in chosen}
    cut = network.do(done)
    points = np.array(list(itertools.product(*(range(k) for k in network.domain.n_states.tolist()))))
    kept = [f for f in network.factors if network.domain.names[f.scope[-1]] not in done]
    expected = sum(f.log_value(points) for f in kept) + np.zeros(len(points))
    for name, state in done.items():
        expected[points[:, network.domain.index(name)] != state] = -np.inf
    assert cut.log_prob(points) == pytest.approx(expected, abs=1e-12)
    assert np.exp(expected).sum() == pytest.approx(1.0)
    best = cm.map_query(cut, None, epsilon=0.0, delta=0.0)
    assert best.log_prob == pytest.approx(expected.max(), abs=1e-9)
    one_by_one = network
    for name, state in done.items():
        one_by_one = one_by_one.do({name: state})
    assert one_by_one.domain.interventions == cut.domain.interventions == done
    assert one_by_one.log_prob(points) == pytest.approx(expected, abs=1e-12)


def test_a_confounded_effect_differs_from_conditioning():
    network = cm.BayesianNetwork.from_cpts(
        {"u": [0, 1], "drug": ["no", "yes"], "well": [0, 1]},
        {"drug": ["u"], "well": ["u", "drug"]},
        {
            "u": [0.5, 0.5],
            "drug": [[0.9, 0.1], [0.2, 0.8]],
            "well": [[[0.2, 0.8], [0.1, 0.9]], [[0.9, 0.1], [0.7, 0.3]]],
        },
    )
    cut = network.do(drug="yes")
    assert cm.marginals(cut, "well")["well"][1] == pytest.approx(0.5 * 0.9 + 0.5 * 0.3)
    assert cm.marginals(network, "well", {"drug": "yes"})["well"][1] == pytest.approx(0.9 / 9 + 0.3 * 8 / 9)
    by_hand = cm.BayesianNetwork(
        network.domain, [network.factors[0], cm.Factor((1,), [0.0, 1.0]), network.factors[2]]
    )
    assert cm.log_evidence(cut, {"well": 1}) == pytest.approx(cm.log_evidence(by_hand, {"well": 1}), abs=1e-12)
    assert cm.log_evidence(cut, {"well": 1, "drug": "yes"}) == cm.log_evidence(cut, {"well": 1})


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_numbers_go_into_the_equations_of_children(seed):
    rng = np.random.default_rng(seed)
    of_a, sd = rng.dirichlet(np.ones(2)), rng.uniform(0.5, 1.5, 2)
    start, slope = rng.normal(size=2), rng.normal(size=(2, 2))
    discrete = cm.BayesianNetwork.from_cpts({"a": ["p", "q"]}, {}, {"a": of_a})
    nodes = [
        cm.LinearGaussian("x", ["a"], rng.normal(size=2)),
        cm.LinearGaussian("w", ["x"], 0.2, [0.5], 2.0),
        cm.LinearGaussian("y", ["x", "a", "w"], start, slope, sd),
    ]
    network = cm.LinearGaussianNetwork(nodes, discrete)
    x, w, y = rng.normal(0, 2, 3)
    of_w = stats.norm.logpdf(w, 0.2 + 0.5 * x, 2.0)
    of_y = stats.norm.logpdf(y, start + slope[:, 0] * x + slope[:, 1] * w, sd)
    cut = network.do(x=x)
    assert cut.domain.names == ("a", "w", "y")
    assert cut.mixture(["w", "y"]).log_density([[w, y]])[0] == pytest.approx(logsumexp(np.log(of_a) + of_w + of_y))
    both = network.do({"x": x, "a": "q"})
    assert both.mixture(["w", "y"]).log_density([[w, y]])[0] == pytest.approx(of_w + of_y[1])
    assert both.domain.interventions == {"x": x, "a": "q"}


def test_the_new_model_prints_writes_and_explains_what_was_done(tmp_path):
    asia = cm.read("examples/asia.bif").do({"smoke": "no"}, tub="yes")
    assert repr(asia) == "BayesianNetwork(8 variables, 8 factors, do(smoke='no', tub='yes'))"
    assert "do(smoke='no', tub='yes')" in str(cm.map_query(asia, ["lung"], {"dysp": "yes"}))
    asia.write(tmp_path / "cut.npz")
    again = cm.read(tmp_path / "cut.npz")
    assert repr(again) == repr(asia)
    with pytest.raises(cm.ImpossibleEvidence, match="contradicts do"):
        cm.map_query(again, ["lung"], {"tub": "no"})
    asia.write(tmp_path / "cut.bif")  # which has no place for the record, but for the tables
    assert cm.log_evidence(cm.read(tmp_path / "cut.bif"), {"tub": "no", "dysp": "yes"} | {"tub": "yes"}) == (
        pytest.approx(cm.log_evidence(asia, {"dysp": "yes"}))
    )
    found = cm.explain(asia, ["lung"], {"dysp": "yes", "smoke": "no"}, n_entries=2)
    assert all(t.variable not in ("smoke", "tub") for t in found.tolerances)
    real = cm.LinearGaussianNetwork([cm.LinearGaussian("x"), cm.LinearGaussian("y", ["x"], 1.0, [2.0])]).do(x=3)
    real.write(tmp_path / "real.npz")
    assert repr(cm.read(tmp_path / "real.npz")) == repr(real)
    assert real.mixture().means[0, 0] == 7.0


@pytest.mark.parametrize("ask", [cm.map_query, cm.marginals, cm.condition, cm.explain])
@pytest.mark.parametrize("value", ["yes", {"yes"}, [0.5, 0.0], {"probability": [0.5, 0.5]}])
def test_evidence_of_another_state_is_refused(ask, value):
    cut = cm.read("examples/asia.bif").do(smoke="no")
    with pytest.raises(cm.ImpossibleEvidence, match=r"smoke"):
        ask(cut, ["lung"], {"xray": "yes", "smoke": value})


def test_bad_interventions_are_refused():
    asia = cm.read("examples/asia.bif")
    real = cm.LinearGaussianNetwork([cm.LinearGaussian("x"), cm.LinearGaussian("y", ["x"], 1.0, [2.0])])
    for wrong, model, said in (
        ({"smok": "no"}, asia, "did you mean 'smoke'"),
        ({"smoke": "maybe"}, asia, "'maybe' is no state of variable 'smoke'"),
        ({"smoke": ["no"]}, asia, "is no state of variable 'smoke'"),
        ({"x": float("inf")}, real, "inf is no value of variable 'x'"),
        ({"x": 1.0, "y": 2.0}, real, r"do\(\) sets every real variable \(x, y\)"),
    ):
        with pytest.raises(cm.errors.QueryError, match=said):
            model.do(wrong)
    with pytest.raises(cm.errors.QueryError, match="sets variable 'smoke' twice"):
        asia.do({"smoke": "no"}, smoke="no")
    with pytest.raises(cm.errors.QueryError, match=r"'x' is no variable any more: do\(x=1.0\) set it"):
        cm.map_query(real.do(x=1), ["y"], {"x": 1.0})
    mixture = cm.GaussianMixture([1.0], [[0.0]], [[[1.0]]], ["x"])
    for model in (asia.compile(), cm.MarkovNetwork(asia.domain, asia.factors), mixture):
        with pytest.raises(
            cm.errors.QueryError, match=f"a {type(model).__name__} does not tell causes from effects"
        ):
            model.do({model.domain.names[0]: 0})
