"""Networks from noisy nodes, functions, hidden Markov models and naive Bayes, against tables written out."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import certimap as cm
from certimap.errors import ModelError
from certimap.networks import noisy


def all_points(sizes):
    return np.array(list(itertools.product(*(range(k) for k in sizes))), np.int16)


def noisy_network(rng, n_parents, n_states, sizes):
    names = [f"p{i}" for i in range(n_parents)]
    contributions = {
        name: {s: rng.dirichlet(np.ones(n_states)) for s in range(1, k)}
        for name, k in zip(names, sizes, strict=True)
    }
    leak = rng.dirichlet(np.ones(n_states)) if rng.random() < 0.5 else None
    variables = {name: range(k) for name, k in zip(names, sizes, strict=True)} | {"x": range(n_states)}
    tables = {name: rng.dirichlet(np.ones(k)) for name, k in zip(names, sizes, strict=True)}
    return variables, {"x": names}, tables | {"x": cm.NoisyMax(contributions, leak)}


def slow_noisy_max(node, n_states, point):
    """P(x <= k) is the product of the contributions' own."""
    rows = [node.leak if node.leak is not None else np.eye(n_states)[0]]
    for name, state in point.items():
        rows.append(node.contributions[name].get(state, np.eye(n_states)[0]))
    below = np.prod([np.cumsum(row) for row in rows], axis=0)
    return np.diff(below, prepend=0.0)


@given(st.integers(0, 2**32), st.booleans())
@settings(max_examples=30, deadline=None)
def test_noisy_max_is_the_maximum_of_contributions(seed, chained):
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(1, 4)), int(rng.integers(2, 4))
    sizes = rng.integers(2, 4, n).tolist()
    variables, parents, tables = noisy_network(rng, n, k, sizes)
    child = cm.Categorical("x", tuple(range(k)))
    above = [cm.Categorical(name, tuple(range(s))) for name, s in zip(parents["x"], sizes, strict=True)]
    limit = noisy.MAX_TABLE
    try:
        noisy.MAX_TABLE = 0 if chained else limit
        pieces = noisy.expand(tables["x"], child, above)
        network = cm.BayesianNetwork.from_cpts(variables, parents, tables)
    finally:
        noisy.MAX_TABLE = limit
    assert (len(pieces) > 1) == chained
    assert network.hidden == (frozenset(p.name for p in pieces[:-1]))
    for point in all_points(sizes):
        evidence = dict(zip(parents["x"], point.tolist(), strict=True))
        found = list(cm.marginals(network, "x", evidence)["x"].values())
        np.testing.assert_allclose(found, slow_noisy_max(tables["x"], k, evidence), atol=1e-12)


def test_many_parents_need_no_table_over_all_of_them(tmp_path):
    causes = {f"cause{i}": 0.1 + 0.03 * i for i in range(25)}
    network = cm.BayesianNetwork.from_cpts(
        {name: ["no", "yes"] for name in (*causes, "alarm")},
        {"alarm": list(causes)},
        {name: [0.9, 0.1] for name in causes} | {"alarm": cm.NoisyOr(causes, leak=0.01)},
    )
    assert max(math.prod(f.shape) for f in network.factors) <= 8
    given = {name: "yes" if i < 3 else "no" for i, name in enumerate(causes)}
    silent = 0.99 * (1 - 0.1) * (1 - 0.13) * (1 - 0.16)
    assert cm.marginals(network, "alarm", given)["alarm"]["no"] == pytest.approx(silent, rel=1e-12)
    result = cm.map_query(network, None, {"alarm": "yes"}, epsilon=0, delta=0, progress=False)
    assert set(result.assignment) == set(causes)
    assert result.certificate.kind == "exact"
    assert result.assignment == {name: "yes" if name == "cause24" else "no" for name in causes}
    network.write(tmp_path / "alarm.npz")
    assert cm.read(tmp_path / "alarm.npz").hidden == network.hidden


def test_a_function_of_the_parents():
    network = cm.BayesianNetwork.from_cpts(
        {"a": [0, 1], "b": [0, 1, 2], "sum": [0, 1, 2, 3]},
        {"sum": ["a", "b"]},
        {"a": [0.5, 0.5], "b": [0.2, 0.3, 0.5], "sum": lambda a, b: a + b},
    )
    assert cm.marginals(network, "sum")["sum"] == pytest.approx({0: 0.1, 1: 0.25, 2: 0.4, 3: 0.25})
    with pytest.raises(ModelError, match=r"returned 3 for \[1, 2\]"):
        cm.BayesianNetwork.from_cpts(
            {"a": [0, 1], "b": [0, 1, 2], "sum": [0, 1, 2]},
            {"sum": ["a", "b"]},
            {"a": [0.5, 0.5], "b": [0.2, 0.3, 0.5], "sum": lambda a, b: a + b},
        )


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (cm.NoisyOr({"b": 0.5}), "'b', which is no parent"),
        (cm.NoisyMax({"a": {"maybe": [0.5, 0.5]}}), "'maybe' is no state"),
        (cm.NoisyMax({"a": {1: [0.5, 0.6]}}), "add to 1"),
        (cm.NoisyMax({}), "contributes nothing"),
        (cm.NoisyMax({"a": {1: [0.5, 0.5]}}, leak=[1.0]), "its leak"),
    ],
)
def test_what_is_no_noisy_node_is_refused(node, message):
    with pytest.raises(ModelError, match=message):
        cm.BayesianNetwork.from_cpts({"a": [0, 1], "x": [0, 1]}, {"x": ["a"]}, {"a": [0.5, 0.5], "x": node})


def test_a_hidden_markov_model_has_viterbis_path():
    rng = np.random.default_rng(4)
    start, move, emit = rng.dirichlet(np.ones(3)), rng.dirichlet(np.ones(3), 3), rng.dirichlet(np.ones(4), 3)
    model = cm.hidden_markov_model(start, move, emit, 6, states="abc")
    symbols = rng.integers(0, 4, 6).tolist()
    result = cm.map_query(model, None, {f"symbol{t}": s for t, s in enumerate(symbols)}, epsilon=0, progress=False)
    score = np.log(start) + np.log(emit[:, symbols[0]])
    for s in symbols[1:]:
        score = (score[:, None] + np.log(move)).max(axis=0) + np.log(emit[:, s])
    assert result.log_joint == pytest.approx(score.max(), abs=1e-12)
    with pytest.raises(ModelError, match="expected"):
        cm.hidden_markov_model(start, move[:2], emit, 6)
    with pytest.raises(ModelError, match="2 states are named"):
        cm.hidden_markov_model(start, move, emit, 6, states="ab")


def test_naive_bayes():
    model = cm.naive_bayes(
        "class", {"spam": 0.4, "ham": 0.6}, {"word": {"spam": {"win": 0.9, "hello": 0.1}, "ham": {"hello": 1.0}}}
    )
    assert cm.marginals(model, "class", {"word": "hello"})["class"]["spam"] == pytest.approx(0.04 / 0.64)
    with pytest.raises(ModelError, match="no row for class='ham'"):
        cm.naive_bayes("class", {"spam": 0.4, "ham": 0.6}, {"word": {"spam": {"win": 1.0}}})
