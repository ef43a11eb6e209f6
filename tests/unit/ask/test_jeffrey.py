"""Stated probabilities (Jeffrey's rule) against iterated scaling of the whole table."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference.enumeration_networks import positive_network

import certimap as cm
from certimap.ask import jeffrey
from certimap.ask.replay import asked, replay
from certimap.core.control import Control, TimeUp
from certimap.errors import TooLarge


def scaled(network, targets, rest):
    """Return the joint table with the stated marginals, by scaling each in turn."""
    points = np.array(list(itertools.product(*(range(k) for k in network.domain.n_states.tolist()))))
    table = np.exp(network.log_joint(points)).reshape(network.domain.n_states)
    for name, state in rest.items():
        i = network.domain.index(name)
        table = table * np.eye(table.shape[i])[state].reshape([-1 if a == i else 1 for a in range(table.ndim)])
    for _ in range(2000):
        for name, target in targets.items():
            i = network.domain.index(name)
            own = table.sum(axis=tuple(a for a in range(table.ndim) if a != i), keepdims=True)
            table = table * np.reshape(target, own.shape) / own
    return table


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from([1, 2**16]))
def test_all_questions_see_the_stated_probabilities(seed, as_circuit, most_cells):
    rng = np.random.default_rng(seed)
    network = positive_network(rng)
    names = rng.permutation(network.domain.names).tolist()
    soft, rest = names[: int(rng.integers(1, 3))], {names[3]: 0}
    targets = {name: rng.dirichlet(np.full(network.domain[name].n_states, 2.0)) for name in soft}
    table = scaled(network, targets, rest)
    evidence = rest | {name: {"probability": target.tolist()} for name, target in targets.items()}
    model = network.compile() if as_circuit else network
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jeffrey, "MOST_CELLS", most_cells)
        found = cm.marginals(model, None, evidence)
        best = cm.map_query(model, names[2:3] + names[4:], evidence, epsilon=0.0, delta=0.0)
    for name, row in found.items():
        i = network.domain.index(name)
        own = table.sum(axis=tuple(a for a in range(table.ndim) if a != i))
        assert list(row.values()) == pytest.approx((own / own.sum()).tolist(), abs=1e-7)
    for name, target in targets.items():
        assert np.abs(np.array(list(found[name].values())) - target).max() <= 1.1e-9
    kept = sorted(network.domain.index(n) for n in names[2:3] + names[4:])
    own = table.sum(axis=tuple(a for a in range(table.ndim) if a not in kept)) / table.sum()
    assert np.exp(best.log_prob) == pytest.approx(own.max(), abs=1e-7)


ASIA = {"bronc": {"probability": {"yes": 0.3, "no": 0.7}}, "lung": {"probability": [0.2, 0.8]}, "xray": "yes"}


def test_likelihood_and_probability_differ():
    asia = cm.read("examples/asia.bif")
    weights = cm.marginals(asia, "bronc", {"bronc": {"likelihood": [0.3, 0.7]}, "smoke": "yes"})["bronc"]
    assert weights["yes"] == pytest.approx(0.6 * 0.3 / (0.6 * 0.3 + 0.4 * 0.7))
    stated = cm.marginals(asia, "bronc", {"bronc": {"probability": [0.3, 0.7]}, "smoke": "yes"})["bronc"]
    assert stated["yes"] == pytest.approx(0.3, abs=1e-9)


def test_rows_replays_and_explanations_take_them():
    asia = cm.read("examples/asia.bif")
    alone = cm.map_query(asia, ["smoke"], ASIA, rng=1)
    rows = cm.map_query(asia, ["smoke"], pd.DataFrame([ASIA, {"xray": "no"}]))
    assert rows[0].log_prob == alone.log_prob
    assert rows[0].log_prob != rows[1].log_prob
    record = json.loads(alone.to_json()) | {"asked": asked(asia, ["smoke"], ASIA, {})}
    assert replay(asia, record).same
    assert alone.explain().answer.assignment == alone.assignment
    low, high = cm.log_evidence_bounds(asia, ASIA)
    assert low - 1e-9 <= cm.log_evidence(asia, ASIA) <= high + 1e-9


def test_what_cannot_be_met_is_refused():
    asia = cm.read("examples/asia.bif")
    for evidence, error, said in (
        (
            {"either": {"probability": [0.8, 0.2]}, "lung": "yes"},
            cm.ImpossibleEvidence,
            "probability of either='no'",
        ),
        ({"either": {"probability": [0.0, 1.0]}, "lung": "yes"}, cm.ImpossibleEvidence, "contradict each other"),
        (
            {"bronc": {"probability": [0.5, 0.5]}, "either": "no", "lung": "yes"},
            cm.ImpossibleEvidence,
            "contradict",
        ),
        (
            {"either": {"probability": [0.2, 0.8]}, "lung": {"probability": [0.3, 0.7]}},
            cm.errors.QueryError,
            "either, lung the stated probabilities together",
        ),
        ({"bronc": {"probability": [0.5, 0.4]}}, cm.errors.QueryError, "'bronc' add up to 0.9; expected 1"),
        ({"bronc": {"probability": [0.5, 0.4, 0.1]}}, cm.errors.QueryError, "has 3 numbers"),
        ({"bronc": {"probability": [1.5, -0.5]}}, cm.errors.QueryError, "has the entry -0.5"),
        ({"bronc": {"probability": {"maybe": 1.0}}}, cm.errors.QueryError, "'maybe' is no state"),
    ):
        with pytest.raises(error, match=said):
            cm.map_query(asia, ["smoke"], evidence)
    with pytest.raises(cm.errors.QueryError, match="probability of 'bronc' takes a model"):
        cm.make_query(asia.domain, None, {"bronc": {"probability": [0.5, 0.5]}})


def test_networks_without_sums_refuse_them():
    rng = np.random.default_rng(0)
    n = 40
    domain = cm.Domain.of_sizes([2] * n)
    wide = cm.MarkovNetwork(
        domain, [cm.Factor(p, rng.random((2, 2))) for p in itertools.combinations(range(n), 2)]
    )
    with pytest.raises(cm.errors.TooLarge, match="stated probabilities take exact sums"):
        cm.map_query(wide, ["0"], {"1": {"probability": [0.5, 0.5]}}, max_memory=10**7)


def test_draws_and_next_tests_take_them():
    asia = cm.read("examples/asia.bif")
    rows = cm.sample(asia, 2000, ASIA, ["bronc"], rng=0)["bronc"]
    assert np.mean(rows == "yes") == pytest.approx(0.3, abs=0.05)
    soft = {"lung": {"probability": [0.5, 0.5]}}  # half a bit of xray is left to learn, by fixed likelihoods
    found = cm.next_test(asia, ["lung"], ["xray"], soft)["xray"].information
    joint = [0.5 * 0.98, 0.5 * 0.02, 0.5 * 0.05 + 0.5 * 0.0104 * 0.93, 0.5 * 0.95 - 0.5 * 0.0104 * 0.93]
    table = np.array(joint).reshape(2, 2)
    expected = np.sum(table * np.log(table / (table.sum(0) * table.sum(1)[:, None])))
    assert found == pytest.approx(expected, abs=1e-9)


def test_time_that_is_up_while_probabilities_are_fitted_is_one_sentence(monkeypatch):
    def check(control, doing):
        if doing == "fitting the stated probabilities":
            raise TimeUp(doing)

    monkeypatch.setattr(Control, "check", check)
    told = {"smoke": {"probability": [0.1, 0.9]}, "bronc": {"probability": [0.9, 0.1]}}
    with pytest.raises(TooLarge, match="the time was up while fitting the stated probabilities; raise time_limit"):
        cm.map_query(cm.read("examples/asia.bif"), ["lung"], told)
