"""What a user's values mean: states and likelihoods can't be mistaken for each other, and nothing is guessed."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import certimap as cm

DOMAIN = cm.Domain(
    [
        cm.Categorical("digit", ("0", "1", "2")),
        cm.Categorical("count", (0, 1, 2, 3)),
        cm.Categorical("word", ("likelihood", "states")),
        cm.Categorical("pair", ((0, 1), (1, 0))),
        cm.Categorical("truth", (False, True)),
        cm.Real("x", 0.0, 10.0),
    ]
)


def weights(name, value):
    """The weight of each state of a variable under one piece of evidence, and whether it is hard."""
    query = cm.make_query(DOMAIN, None, {name: value})
    i = DOMAIN.index(name)
    return np.exp(query.log_weights[DOMAIN.offsets[i] : DOMAIN.offsets[i + 1]]).tolist(), i in query.observed


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("digit", ["0", "1", "2"], [1, 1, 1]),
        ("digit", ("0", "2"), [1, 0, 1]),
        ("digit", np.array(["0", "2"]), [1, 0, 1]),
        ("digit", {"1"}, [0, 1, 0]),
        ("digit", {"states": ["0", "1"]}, [1, 1, 0]),
        ("digit", [0, 1, 2], [0, 1, 2]),
        ("digit", (0.5, 0.25, 0.25), [0.5, 0.25, 0.25]),
        ("digit", np.array([0.5, 0.25, 0.25], np.float32), [0.5, 0.25, 0.25]),
        ("digit", {"likelihood": [0, 1, 2]}, [0, 1, 2]),
        ("digit", {"0": 0.5, "2": 1}, [0.5, 0, 1]),
        ("digit", {"likelihood": {"0": 0.5, "2": 1}}, [0.5, 0, 1]),
        ("digit", {"log_likelihood": [0, -math.inf, math.log(2)]}, [1, 0, 2]),
        ("digit", {"log_likelihood": {"2": -1.0}}, [0, 0, math.exp(-1)]),
        ("count", [1, 2], [0, 1, 1, 0]),
        ("count", [0.5, 0.5, 1, 1], [0.5, 0.5, 1, 1]),
        ("count", {"likelihood": [0, 1, 2, 3]}, [0, 1, 2, 3]),
        ("count", {"states": [0, 3]}, [1, 0, 0, 1]),
        ("count", {0, 3}, [1, 0, 0, 1]),
        ("word", {"likelihood": 0.25, "states": 1}, [0.25, 1]),
        ("word", {"likelihood": 0.5}, [0.5, 0]),
        ("word", {"likelihood": [0.5, 1]}, [0.5, 1]),
        ("pair", [(0, 1)], [1, 0]),
        ("pair", [0.5, 1], [0.5, 1]),
        ("truth", [True, False], [1, 1]),
        ("truth", [0.5, 0.25], [0.5, 0.25]),
    ],
)
def test_soft_evidence(name, value, expected):
    assert weights(name, value) == (pytest.approx(expected), False)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("digit", "1", [0, 1, 0]),
        ("digit", np.array("1"), [0, 1, 0]),
        ("count", np.int64(2), [0, 0, 1, 0]),
        ("count", 2.0, [0, 0, 1, 0]),
        ("pair", (1, 0), [0, 1]),
        ("truth", np.bool_(True), [0, 1]),
    ],
)
def test_hard_evidence(name, value, expected):
    assert weights(name, value) == (expected, True)


@pytest.mark.parametrize(
    ("name", "value", "parts"),
    [
        ("count", [0, 1, 2, 3], ["{'states': [0, 1, 2, 3]}", "{'likelihood': [0, 1, 2, 3]}"]),
        ("count", [1.0, 0.0, 0.0, 1.0], ["'states'", "'likelihood'"]),
        ("digit", ["a", "b", "c"], ["'a'", "'digit'"]),
        ("digit", [0.1, "1", 0.2], ["0.1"]),
        ("digit", [0.1, 0.2], ["neither", "3 states"]),
        ("digit", [], ["neither"]),
        ("digit", set(), ["no state"]),
        ("digit", {"states": []}, ["no state"]),
        ("digit", {"likelihood": [1, 2]}, ["2 numbers", "3 states"]),
        ("digit", [0.5, math.nan, 0.5], ["nan"]),
        ("digit", [0.5, math.inf, 0.5], ["inf"]),
        ("digit", [0.5, -1, 0.5], ["-1"]),
        ("digit", [0.0, 0.0, 1e-400], ["excludes every state", "'log_likelihood'"]),
        ("digit", {"likelihood": ["0", "1", "2"]}, ["entry '0'"]),
        ("digit", {"0": "a lot"}, ["entry 'a lot'"]),
        ("digit", {"0": None}, ["entry None"]),
        ("digit", {"log_likelihood": [-math.inf] * 3}, ["excludes every state"]),
        ("digit", {"log_likelihood": [0, math.inf, 0]}, ["inf"]),
        ("digit", {"log_likelihood": [0, math.nan, 0]}, ["nan"]),
        ("truth", [True, 0.5, 1], ["neither"]),
        ("x", [3, 2], ["low < high"]),
        ("x", ["a", "b"], ["(low, high)"]),
        ("x", 10**400, ["[0.0, 10.0]"]),
    ],
)
def test_what_is_neither_one_nor_the_other_is_refused(name, value, parts):
    with pytest.raises(cm.QueryError) as caught:
        weights(name, value)
    for part in parts:
        assert part in str(caught.value)


def test_the_same_forms_mean_the_same_in_json():
    for value in ({"states": ["0", "2"]}, ["0", "2"], {"likelihood": [1, 2, 3]}, {"log_likelihood": [-1, 0, 1]}):
        assert weights("digit", json.loads(json.dumps(value))) == weights("digit", value)


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("digit", 0, "its states are text: give '0'"),
        ("digit", 1.0, "its states are text: give '1'"),
        ("count", "1", "its states are of type int: give 1"),
        ("truth", "True", "its states are of type bool: give True"),
        ("word", "Likelihood", "did you mean 'likelihood'?"),
        ("word", "state", "did you mean 'states'?"),
        ("word", "zebra", "its states are 'likelihood', 'states'"),
    ],
)
def test_the_state_that_was_meant_is_named_and_nothing_is_guessed(name, value, meant):
    with pytest.raises(cm.QueryError, match="is no state of variable") as caught:
        weights(name, value)
    assert str(caught.value).endswith(meant)


def test_the_variable_that_was_meant_is_named():
    for name, meant in (
        ("counts", "'count'"),
        ("DIGIT", "'digit'"),
        ("zebra", "'x'"),
    ):
        with pytest.raises(cm.QueryError) as caught:
            cm.make_query(DOMAIN, [name])
        assert meant in str(caught.value)[-30:]
    with pytest.raises(cm.QueryError, match="give '3'"):
        cm.make_query(cm.Domain.of_sizes([2] * 5), [3])


def test_at_most_three_names_are_offered():
    domain = cm.Domain(cm.Categorical(f"node{k}", (0, 1)) for k in range(200_000))
    with pytest.raises(cm.QueryError) as caught:
        domain.index("nod7")
    assert str(caught.value).count("'node") == 8 + 3


def test_texts_are_read_by_one_rule():
    """A label that is the text wins; then the one that prints so; 1.0 and 1 are one number."""
    assert DOMAIN["count"].parse("1.0") == 1
    assert DOMAIN["count"].parse("1") == 1
    assert DOMAIN["digit"].parse("1.") == "1"
    assert DOMAIN["truth"].parse("True") is True
    both = cm.Categorical("v", ("1", "1.0", "01", 2.0, -3.0))
    assert [both.parse(t) for t in ("1", "1.0", "01", "2", "-3")] == ["1", "1.0", "01", 2.0, -3.0]
    for text in ("1.00", "1.5", "one"):
        with pytest.raises(cm.QueryError):
            both.parse(text)
    assert DOMAIN["x"].parse("1.5") == 1.5
    for text in ("nan", "1_0", "one"):
        with pytest.raises(cm.QueryError):
            DOMAIN["x"].parse(text)


def test_likelihoods_in_logs_may_be_beyond_floats():
    build = cm.CircuitBuilder(cm.Domain([cm.Categorical("a", ("n", "y")), cm.Categorical("b", ("n", "y"))]))
    one = build.product([build.categorical(0, np.log([0.9, 0.1])), build.categorical(1, np.log([0.6, 0.4]))])
    two = build.product([build.categorical(0, np.log([0.3, 0.7])), build.categorical(1, np.log([0.2, 0.8]))])
    build.sum([one, two], np.log([0.5, 0.5]))
    near = cm.map_query(build.build(), ["b"], {"a": {"log_likelihood": [-1.0, 0.0]}}, epsilon=0)
    far = cm.map_query(build.build(), ["b"], {"a": {"log_likelihood": [-4001.0, -4000.0]}}, epsilon=0)
    assert far.assignment == near.assignment
    assert far.log_prob == pytest.approx(near.log_prob, abs=1e-12)
    assert far.log_evidence == pytest.approx(near.log_evidence - 4000.0, abs=1e-9)
