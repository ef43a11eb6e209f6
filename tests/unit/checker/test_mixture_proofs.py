"""Proofs of mixtures over real variables: answers are proved, and what is not so is refused."""

from __future__ import annotations

import numpy as np
import pytest

import certimap as cm
import certimap.checker.mixtures as mixtures
from certimap.checker import Proof
from certimap_lab.proofs import failures, solved
from certimap_lab.real_proofs import random_real_case


def proved(model, variables=None, evidence=None, epsilon=0.0):
    result = cm.map_query(model, variables, evidence, epsilon=epsilon, delta=0, rng=0, proof=True, workers=1)
    assert result.no_proof is None
    verdict = cm.check(model, result.proof)
    assert verdict.accepted, verdict.message
    assert verdict.log_joint == pytest.approx(result.log_joint, abs=1e-9)
    return result


@pytest.mark.parametrize("seed", range(3))
def test_proofs_hold_and_altered_ones_do_not(seed):
    case = random_real_case(seed)
    result = solved(case, "auto", epsilon=0.0, seed=seed)
    assert result.proof is not None, result.no_proof
    assert failures(case, result.proof, np.random.default_rng(seed)) == []


def spread_mixture(n, n_parts, seed=0):
    rng = np.random.default_rng(seed)
    build = cm.CircuitBuilder(cm.Domain([cm.Real(f"x{i}") for i in range(n)]))
    parts = []
    for _ in range(n_parts):
        leaves = [build.gaussian(i, rng.uniform(-2, 2), rng.uniform(0.5, 1.5)) for i in range(n)]
        parts.append(build.product(leaves) if n > 1 else leaves[0])
    build.sum(parts, np.log(rng.dirichlet(np.ones(n_parts))))
    return build.build()


@pytest.mark.parametrize("n", range(1, 7))
def test_modes_of_mixtures_of_products_are_proved(n):
    result = proved(spread_mixture(n, 6))
    assert result.proof.meta["method"] == "mixture"
    assert result.proof.n_bytes < 1000


@pytest.mark.parametrize("n", range(1, 7))
def test_modes_of_mixtures_with_covariances_are_proved(n):
    rng = np.random.default_rng(n)
    roots = rng.normal(size=(4, n, n))
    covariances = roots @ roots.swapaxes(1, 2) / n + 0.1 * np.eye(n)
    model = cm.GaussianMixture(rng.dirichlet(np.ones(4)), rng.normal(size=(4, n)), covariances)
    proved(model)
    if n > 1:
        proved(model, ["0"], {"1": 0.3}, epsilon=0.01)
        proved(model, ["1"], {"1": (0.2, 0.9)})


def test_learned_models_are_proved():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 3)) @ rng.normal(size=(3, 3))
    proved(cm.learn.mixture(rows, rng=0))
    proved(cm.learn.gaussian_mixture(rows, rng=0))


def network():
    machine = cm.BayesianNetwork.from_cpts({"state": ["worn", "fine"]}, {}, {"state": [0.2, 0.8]})
    nodes = [
        cm.LinearGaussian("heat", ["state"], [70.0, 50.0], sd=[8.0, 3.0]),
        cm.LinearGaussian("noise", ["heat", "state"], [20.0, 10.0], [[0.5], [0.4]], [4.0, 2.0]),
    ]
    return cm.LinearGaussianNetwork(nodes, discrete=machine)


@pytest.mark.parametrize(
    ("variables", "evidence"),
    [
        (["state"], {"noise": 33.0}),
        (["state", "heat"], {"noise": 33.0}),
        (["heat", "noise"], {}),
        (["noise", "state"], {"noise": (30.0, 36.0)}),
        (["noise"], {"state": "worn"}),
        (["noise"], {"state": {"likelihood": [0.3, 0.9]}}),
    ],
)
def test_linear_gaussian_networks_are_proved(variables, evidence):
    proved(network(), variables, evidence)


def test_what_has_no_closed_form_is_refused_in_a_sentence():
    result = cm.map_query(network(), ["heat"], {"noise": (33.0, 40.0)}, epsilon=1e-3, delta=0, rng=0, proof=True)
    assert result.proof is None
    assert "masses of intervals" in result.no_proof


def moved(proof, name, step):
    meta = proof.meta
    answer = {**meta["answer"], name: meta["answer"][name] + step}
    return Proof({**meta, "answer": answer, "claim": {**meta["claim"], "log_joint": None}}, proof.arrays)


@pytest.mark.parametrize("model", [spread_mixture(3, 5), network()])
def test_a_worse_answer_is_refuted_at_once(model):
    name = model.domain.names[-1]
    result = proved(model, [name, model.domain.names[-2]], {})
    for step in (1e-3, 0.1, 1.0, 50.0):
        verdict = cm.check(model, moved(result.proof, name, step), time_limit=600)
        assert not verdict.accepted
        assert "above the claim" in verdict.message


def test_a_covariance_that_floating_point_cannot_invert_is_refused():
    model = cm.GaussianMixture([1.0], [[0.0, 0.0]], [[[1.0, 1.0 - 1e-14], [1.0 - 1e-14, 1.0]]])
    result = cm.map_query(model, epsilon=0.1, delta=0, rng=0, proof=True)
    assert result.proof is None or cm.check(model, result.proof).accepted


@pytest.mark.parametrize("broken", ["largest_quadratic", "_rises"])
def test_a_bound_that_is_too_low_is_caught(broken, monkeypatch):
    """Break each part of the bound, and a worse answer is accepted; so it is the bound that refuses it."""
    model = spread_mixture(2, 6, seed=3)
    worse = moved(proved(model).proof, "x0", 0.02)
    assert not cm.check(model, worse).accepted
    whole = getattr(mixtures, broken)
    less = {
        "largest_quadratic": lambda slope, matrix: (whole(slope, matrix)[0] - 5.0, 0.0 * slope),
        "_rises": lambda more, size, is_full: whole(more, size, is_full) - 5.0,
    }[broken]
    monkeypatch.setattr(mixtures, broken, less)
    monkeypatch.setattr(mixtures, "_refute", lambda *_: None)
    assert cm.check(model, worse, time_limit=600).accepted


def test_joint_states_that_parts_lack_leave_bounds_numbers():
    """A part without any state of a box had no number for a bound once a second variable's states were added."""
    labels = cm.BayesianNetwork.from_cpts(
        {"shift": ["day", "night"], "state": ["worn", "fine"]},
        {"state": ["shift"]},
        {"shift": [0.5, 0.5], "state": [[0.4, 0.6], [0.6, 0.4]]},
    )
    heat = cm.LinearGaussian("heat", ["shift", "state"], [[0.0, 0.5], [1.0, 0.2]], sd=[[1.0, 1.0], [1.1, 0.66]])
    proved(cm.LinearGaussianNetwork([heat], discrete=labels))
