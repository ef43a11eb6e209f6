"""A track against one query to the whole sequence, step by step."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest
from tests.reference.slices import random_slices

import certimap as cm
from certimap.ask import track as module
from certimap.errors import ImpossibleEvidence, ModelError, QueryError, TooLarge


def observed(rng, network, point, step):
    """Return evidence of a step that a point allows: labels, sets and likelihoods, some missing."""
    row = {}
    for name in {name.partition("[")[0] for name in network.domain.names if "[" in name}:
        key = f"{name}[{step}]"
        if key not in point or rng.random() < 0.5:
            continue
        states = network.domain[f"{name}[0]"].states
        row[name] = [
            point[key],
            {"states": [point[key], states[0]]},
            {"likelihood": (rng.random(len(states)) + 0.05).tolist()},
        ][int(rng.choice(3, p=[0.7, 0.15, 0.15]))]
    return row


@pytest.mark.parametrize("seed", range(30))
def test_answers_are_those_of_the_whole_sequence(seed):
    rng = np.random.default_rng(seed)
    network = random_slices(rng, order=1 + seed % 2, whole=seed % 3 > 0)
    steps, lag = 6, 1 + seed % 3
    full = cm.unroll(network, steps)
    point = full.domain.decode(full.sample(1, rng)[0])
    bases = sorted({name.partition("[")[0] for name in full.domain.names if "[" in name})
    wanted = None if seed % 2 else [*bases[:2], *(["all"] if "all" in full.domain else [])]
    track, evidence = cm.Track(network, lag, wanted, epsilon=0), {}
    for t in range(steps):
        row = observed(rng, network, point, t)
        evidence |= {f"{name}[{t}]": value for name, value in row.items()}
        if t == 0 and "first" in full.domain:
            evidence["first"] = row["first"] = point["first"]
        if t == 2 and "all" in full.domain and wanted is None:
            evidence["all"] = row["all"] = point["all"]
        result = track.observe(row)
        batch = cm.unroll(network, t + 1)
        names = [
            f"{base}[{s}]" for s in range(max(0, t + 1 - lag), t + 1) for base in wanted or bases if base != "all"
        ]
        names += [name for name in wanted or () if name == "all"]
        names = [name for name in names if isinstance(evidence.get(name), dict | None)]
        if not names:
            assert result.log_prob == 0.0
            assert len(result.assignment) == 1
            continue
        expected = cm.map_query(batch, names, evidence, epsilon=0)
        assert set(result.assignment) == set(names)
        assert result.log_prob == pytest.approx(expected.log_prob, abs=1e-10)
        assert result.certificate.kind == expected.certificate.kind == "exact"
        again = cm.map_query(batch, None, {**evidence, **result.assignment}).log_evidence
        if not any(isinstance(evidence.get(name), dict) for name in names):  # the answer is as probable as theirs
            assert again == pytest.approx(expected.log_joint, abs=1e-9)
        assert track.log_evidence + result.log_evidence == pytest.approx(expected.log_evidence, abs=1e-9)
        track = pickle.loads(pickle.dumps(track))
    assert track.n_steps == steps


def chain():
    return cm.hidden_markov_model(
        [1.0, 0.0], [[0.5, 0.5], [0.0, 1.0]], [[1.0, 0.0], [0.5, 0.5]], 2, names=("x[{}]", "y[{}]")
    )  # fmt: skip


def test_a_refused_observation_leaves_the_track_as_it_was():
    track = cm.Track(chain(), 2, "x")
    for symbol in (0, 0, 1):
        track.observe({"y": symbol})
    before = pickle.dumps(track)
    with pytest.raises(ImpossibleEvidence, match="step 3, after the steps before"):
        track.observe({"x": 0})  # the second state is never left
    for wrong in ({"z": 1}, {"y": 7}, {"y": {"probability": [0.5, 0.5]}}):
        with pytest.raises(QueryError):
            track.observe(wrong)
    assert pickle.dumps(track) == before
    assert track.n_steps == 3
    assert track.observe({"y": 0}).assignment == {"x[2]": 1, "x[3]": 1}


def test_probabilities_beyond_floats_are_kept_in_logs():
    k = 3
    names = ("x[{}]", "y[{}]")
    model = cm.hidden_markov_model(
        [1 / k] * k, np.eye(k), [[1 - 1e-9, 1e-9], [0.5, 0.5], [0.4, 0.6]], 2, names=names
    )
    track = cm.Track(model, 1, "x")
    for _ in range(50):
        result = track.observe({"y": 1})
    assert result.assignment == {"x[49]": 2}
    for _ in range(1500):  # the first state explains these, and by now has the probability exp(-1000)
        seen = track._seen
        later = seen._replace(n_steps=seen.n_steps + 1, window=(*seen.window, {f"y[{seen.n_steps}]": 0}))
        track._seen = track._forward(later)
    assert track.observe({"y": 0}).assignment == {"x[1550]": 0}


def test_variables_of_the_first_steps_are_gone_later():
    network = random_slices(np.random.default_rng(1), order=1, whole=True)
    track = cm.Track(network, 1)
    state = network.domain["first"].states[0]
    track.observe({"first": state})
    track.observe()
    with pytest.raises(QueryError, match="'first'"):
        track.observe({"first": state})


def test_what_is_refused(monkeypatch):
    with pytest.raises(QueryError, match="lag is 0"):
        cm.Track(chain(), 0)
    with pytest.raises(QueryError, match=re.escape("'q' is no variable")):
        cm.Track(chain(), 1, "q")
    states = {"x[0]": [0, 1], "x[1]": [0, 1], "c[1]": [0, 1], "end": [0, 1]}
    tables = {key: [0.5, 0.5] for key in states} | {"end": np.full((2, 2), 0.5)}
    with pytest.raises(ModelError, match="which a track has not"):
        cm.Track(cm.BayesianNetwork.from_cpts(states, {"end": "x[1]"}, tables))
    del states["end"], tables["end"]
    network = cm.BayesianNetwork.from_cpts(states, {}, tables)
    with pytest.raises(QueryError, match="'c' is no variable of all slices"):
        cm.Track(network, 1, "c")
    with pytest.raises(QueryError, match=r"c\[0\]"):
        cm.Track(network).observe({"c": 1})
    monkeypatch.setattr(module, "_MOST", 1)
    track = cm.Track(chain())
    track.observe()
    with pytest.raises(TooLarge, match="joint states"):
        track.observe()
