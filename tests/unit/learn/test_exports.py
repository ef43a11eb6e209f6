"""A model of every learner is written in a format of another tool, and reads back with the same likelihoods."""

from __future__ import annotations

import json

import numpy as np
import pytest

import certimap as cm
from certimap.learn.estimator import DensityEstimator

N = 120
RNG = np.random.default_rng(0)
GROUP = RNG.integers(2, size=N)
COLUMNS = {
    "a": (GROUP + (RNG.random(N) < 0.2)) % 2,
    "b": (GROUP + RNG.integers(3, size=N) * (RNG.random(N) < 0.3)) % 3,
    "c": (GROUP + (RNG.random(N) < 0.1)) % 2,
    "d": RNG.integers(2, size=N),
    "e": 2.0 * GROUP + RNG.normal(size=N),
    "f": RNG.normal(size=N) - GROUP,
}
STATES, NUMBERS = ["a", "b", "c", "d"], ["e", "f"]
PARENTS = {"b": ["a"], "c": ["a", "b"], "d": []}
learn = cm.learn
CASES = {  # by learner: settings, columns, and suffixes of other tools' files (or "sklearn")
    learn.ChowLiuTree: [({}, STATES, "bif net xdsl uai"), ({}, STATES + NUMBERS, "json")],
    learn.ChowLiuMixture: [({}, STATES, "jpc json"), ({}, STATES + NUMBERS, "json")],
    learn.HiddenChowLiuTree: [
        ({"n_states": 3}, STATES, "bif xdsl jpc json"),
        ({"n_states": 3}, NUMBERS, "json"),
    ],
    learn.GivenStructure: [({"structure": PARENTS}, STATES, "bif dsc uai")],
    learn.LearnSPN: [({}, STATES + NUMBERS, "jpc json")],
    learn.ProductMixture: [({"leaves": {"e": "gaussian", "f": "gaussian"}}, STATES + NUMBERS, "jpc json")],
    learn.RegionGraphCircuit: [({"shape": (2, 2), "n_nodes": 3}, STATES, "jpc json")],
    learn.FullMixture: [({}, NUMBERS, "sklearn")],
}
LISTED = [(who, *case[:2], suffix) for who, cases in CASES.items() for case in cases for suffix in case[2].split()]


def public_learners():
    found = (getattr(learn, name) for name in learn.__all__)
    return {x for x in found if isinstance(x, type) and issubclass(x, DensityEstimator)}


def test_no_learner_is_left_out():
    assert set(CASES) == public_learners()


@pytest.mark.parametrize(
    ("learner", "settings", "columns", "suffix"),
    LISTED,
    ids=[f"{c[0].__name__}-{len(c[2])}-{c[3]}" for c in LISTED],
)
def test_a_model_reads_back(tmp_path, learner, settings, columns, suffix):
    table = {name: COLUMNS[name] for name in columns}
    model = learner(random_state=0, **settings).fit(table).model_
    if suffix == "sklearn":
        pytest.importorskip("sklearn")
        again = cm.from_object(cm.to_sklearn(model))
    else:
        again = read_back(model, tmp_path / f"m.{suffix}")
    rows = {}
    for variable in again.domain:
        name = variable.name
        if name.isdecimal():  # .jpc counts from 1
            name = model.domain.names[int(name) - (suffix == "jpc")]
        if name not in columns:
            rows[variable.name] = [None] * N  # hidden
        else:
            column = table[name].tolist()
            rows[variable.name] = [variable.states[k] for k in column] if name in STATES else column
    assert cm.log_likelihood(again, rows) == pytest.approx(cm.log_likelihood(model, table), abs=1e-9)


def read_back(model, path):
    model.write(path)
    return cm.read(path)


def test_hidden_variables_become_variables_of_the_file(tmp_path):
    model = learn.hclt({name: COLUMNS[name] for name in STATES}, n_states=2, rng=0)
    again = read_back(model, tmp_path / "m.bif")
    assert again.domain.names == (*STATES, *model.latent_names)
    expected = cm.map_query(model, epsilon=0).log_prob
    assert cm.map_query(again, STATES, epsilon=0).log_prob == pytest.approx(expected)


def test_what_deeprob_kit_cannot_hold_is_said(tmp_path):
    builder = cm.CircuitBuilder(cm.Domain([cm.Real("x")]))
    builder.real("poisson", 0, 2.0)
    with pytest.raises(cm.ModelError, match="node 0 is a poisson leaf, which deeprob-kit does not have"):
        builder.build(normalised=False).write(tmp_path / "m.json")
    builder = cm.CircuitBuilder(cm.Domain([cm.Categorical("x", (0, 1))]))
    builder.sum([builder.indicator(0, s) for s in (0, 1)], log_weights=[-800.0, 0.0])
    with pytest.raises(cm.ModelError, match="beyond floats"):
        builder.build(normalised=False).write(tmp_path / "m.json")


def test_two_edges_to_one_child_are_joined_and_ends_of_bars_are_inside(tmp_path):
    low, high = -0.33, 1.86  # the sum of low and high - low is below high
    builder = cm.CircuitBuilder(cm.Domain([cm.Real("7")]))
    bar, other = builder.real("uniform", 0, low, high), builder.gaussian(0, 0.0, 1.0)
    builder.sum([bar, other, bar], log_weights=np.log([0.2, 0.5, 0.3]).tolist())
    again = read_back(builder.build(normalised=False), tmp_path / "m.json")
    assert again.domain.names == ("7",)
    weights = json.loads((tmp_path / "m.json").read_text())["nodes"][-1]["weights"]
    assert weights == pytest.approx([0.5, 0.5])
    found = np.exp(cm.log_likelihood(again, {"7": [low, high, 2.0]}))
    normal = 0.5 * np.exp(-0.5 * np.array([low, high, 2.0]) ** 2) / np.sqrt(2.0 * np.pi)
    assert found == pytest.approx(normal + np.array([0.5, 0.5, 0.0]) / 2.19)
