"""Marginals, evidence, samples and likelihoods against enumeration."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest

import certimap as cm
from certimap.errors import ImpossibleEvidence, QueryError
from certimap.testing import random_circuit, random_domain


def joint(model):
    """Every assignment (labels) with its probability, the model normalised."""
    domain = model.domain
    points = np.array(list(itertools.product(*(range(int(k)) for k in domain.n_states))), np.int16)
    log_probs = cm.condition(model, solver="exhaustive").log_prob(points)
    return [domain.decode(p) for p in points], np.exp(log_probs)


@pytest.mark.parametrize("seed", range(4))
def test_marginals_and_evidence_of_circuits(seed):
    rng = np.random.default_rng(seed)
    circuit = random_circuit(rng, random_domain(rng, max_variables=5, max_states=3))
    labels, probs = joint(circuit)
    name = circuit.domain.names[0]
    states = circuit.domain[name].states
    for evidence in (None, {name: states[0]}, {name: {"likelihood": [0.5 + i for i in range(len(states))]}}):
        factor = {states[0]: 1.0} if evidence == {name: states[0]} else {s: 0.5 + i for i, s in enumerate(states)}
        weights = probs * [1.0 if evidence is None else factor.get(a[name], 0.0) for a in labels]
        mass = cm.log_evidence(circuit, evidence) - cm.log_evidence(circuit)
        assert mass == pytest.approx(math.log(weights.sum()), abs=1e-10)
        found = cm.marginals(circuit, None if evidence is None else circuit.domain.names, evidence)
        for variable, row in found.items():
            for label, value in row.items():
                expected = (
                    sum(w for a, w in zip(labels, weights, strict=True) if a[variable] == label) / weights.sum()
                )
                assert value == pytest.approx(expected, abs=1e-12)


def test_marginals_of_a_network_follow_bayes(examples):
    asia = cm.read(examples / "asia.bif")
    found = cm.marginals(asia, ["lung", "bronc"], {"xray": "yes", "asia": "no"})
    assert list(found) == ["lung", "bronc"]
    both = cm.log_evidence(asia, {"xray": "yes", "asia": "no", "lung": "yes"})
    alone = cm.log_evidence(asia, {"xray": "yes", "asia": "no"})
    assert found["lung"]["yes"] == pytest.approx(math.exp(both - alone), rel=1e-12)
    assert cm.marginals(asia, "asia", {"asia": "no"}) == {"asia": {"yes": 0.0, "no": 1.0}}


def test_samples_replay_and_fit_their_marginals(examples):
    asia = cm.read(examples / "asia.bif")
    drawn = cm.sample(asia, 20_000, {"xray": "yes"}, rng=3)
    assert set(drawn) == set(asia.domain.names) - {"xray"}
    again = cm.sample(asia, 20_000, {"xray": "yes"}, rng=3, workers=1)
    assert all(np.array_equal(drawn[name], again[name]) for name in drawn)
    share = np.mean(drawn["lung"] == "yes")
    expected = cm.marginals(asia, "lung", {"xray": "yes"})["lung"]["yes"]
    assert abs(share - expected) < 5 * math.sqrt(expected * (1 - expected) / 20_000)
    frame = cm.sample(asia, 3, rng=0, as_frame=True)
    assert frame.shape == (3, 8)


def test_likelihoods_sum_missing_cells_out(examples):
    asia = cm.read(examples / "asia.bif")
    rows = {name: values.astype(object) for name, values in cm.sample(asia, 4, rng=1).items()}
    rows["lung"][2] = None
    found = cm.log_likelihood(asia, rows)
    for i in range(4):
        known = {name: values[i] for name, values in rows.items() if values[i] is not None}
        assert found[i] == pytest.approx(cm.log_evidence(asia, known), abs=1e-10)


def test_what_cannot_be_asked_is_refused(examples):
    asia = cm.read(examples / "asia.bif")
    with pytest.raises(QueryError, match="no model"):
        cm.marginals(3)
    with pytest.raises(QueryError, match="did you mean 'lung'"):
        cm.marginals(asia, "lunge")
    with pytest.raises(QueryError, match="n is -1"):
        cm.sample(asia, -1)
    with pytest.raises(ImpossibleEvidence):
        cm.log_evidence(asia, {"either": "no", "lung": "yes"})
    real = cm.CircuitBuilder(cm.Domain([cm.Real("x"), cm.Categorical("c", ("a", "b"))]))
    real.product([real.gaussian(0, 0.0, 1.0), real.categorical(1, [math.log(0.3), math.log(0.7)])])
    circuit = real.build()
    assert cm.marginals(circuit, None, {"x": 0.5}) == {"c": pytest.approx({"a": 0.3, "b": 0.7})}
    with pytest.raises(QueryError, match="'x' is real"):
        cm.marginals(circuit, "x")


def test_virtual_evidence_is_a_likelihood():
    states = {"rain": ["no", "yes"], "wet": ["no", "yes"]}
    network = cm.BayesianNetwork.from_cpts(
        states, {"wet": ["rain"]}, {"rain": [0.8, 0.2], "wet": [[0.9, 0.1], [0.3, 0.7]]}
    )
    soft = SimpleNamespace(variables=["wet"], values=np.array([[0.2], [0.9]]), state_names={"wet": ["no", "yes"]})
    ours = {"wet": {"likelihood": [0.2, 0.9]}}
    assert cm.marginals(network, virtual_evidence=[soft]) == cm.marginals(network, None, ours)
    assert cm.log_evidence(network, virtual_evidence=soft) == cm.log_evidence(network, ours)
    total = 0.8 * (0.9 * 0.2 + 0.1 * 0.9) + 0.2 * (0.3 * 0.2 + 0.7 * 0.9)
    assert cm.log_evidence(network, virtual_evidence=soft) == pytest.approx(np.log(total))
    with pytest.raises(QueryError, match="virtual evidence and evidence"):
        cm.marginals(network, evidence={"wet": "no"}, virtual_evidence=soft)
