"""Decision networks: what they take by names, what is known when, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import certimap as cm
from certimap.errors import ModelError, QueryError

STATES = {"W": ["dry", "rain"], "F": ["good", "bad"], "T": ["leave", "carry"], "S": ["home", "out"]}
TABLES = {"W": [0.7, 0.3], "F": {"dry": [0.8, 0.2], "rain": [0.25, 0.75]}}
JOY = {("dry", "leave"): 100, ("dry", "carry"): 60, ("rain", "leave"): 0, ("rain", "carry"): 70}


def umbrella(decisions=None, utilities=None, states=STATES, **more):
    decisions = {"T": ["F"], "S": ["W"]} if decisions is None else decisions
    utilities = {"joy": (["W", "T"], JOY)} if utilities is None else utilities
    return cm.DecisionNetwork.from_cpts(states, {"F": ["W"]}, TABLES, decisions, utilities, **more)


def test_what_is_known():
    assert umbrella().information("S") == ("F", "T", "W")
    assert umbrella(limited_memory=True).information("S") == ("W",)
    assert umbrella().information("T") == ("F",)


def test_utilities_by_array_mapping_and_function():
    made = [JOY, [[100, 60], [0, 70]], lambda w, t: JOY[w, t]]
    for table in made:
        np.testing.assert_array_equal(umbrella(utilities={"u": (["W", "T"], table)}).utilities[0].values, made[1])
    assert umbrella(utilities={"c": ([], 3.0)}).utilities[0].values.shape == ()


def test_fixed_decisions_leave_a_bayesian_network():
    part = umbrella().chance_part({"T": "leave", "S": "out"})
    assert isinstance(part, cm.BayesianNetwork)
    assert cm.map_query(part, ["W"], {"F": "bad"}).assignment == {"W": "rain"}
    with pytest.raises(QueryError, match="'S' has no label"):
        umbrella().chance_part({"T": "leave"})
    with pytest.raises(QueryError, match="'W' is no decision"):
        umbrella().chance_part({"T": "leave", "S": "out", "W": "dry"})


def test_a_query_for_probabilities_is_refused():
    with pytest.raises(QueryError, match="chance_part"):
        cm.map_query(umbrella(), ["W"])


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"decisions": {"T": ["Q"], "S": []}}, "'Q', of decision 'T'"),
        ({"decisions": {"T": ["F"]}}, "'S' has no conditional table"),
        ({"decisions": {"T": ["S"], "S": ["T"]}}, "cycle"),
        ({"decisions": {"T": ["F", "F"], "S": []}}, "twice"),
        ({"decisions": {"T": ["F"], "S": [], "W": []}}, "decision 'W' has a table"),
        ({"utilities": {"u": (["W", "Q"], [[0, 0], [0, 0]])}}, "'Q', of utility 'u'"),
        ({"utilities": {"u": (["W"], [0, 1, 2])}}, "shape"),
        ({"utilities": {"u": (["W"], [0, np.inf])}}, "inf"),
        ({"utilities": {"u": (["W"], {"dry": 1})}}, "no number for"),
        ({"utilities": {"W": (["W"], [0, 1])}}, "distinct names"),
    ],
)
def test_what_is_refused(how, says):
    with pytest.raises(ModelError, match=says):
        umbrella(**how)


def test_a_row_of_zeros_is_refused():
    tables = {**TABLES, "F": [[0, 0], [1, 0]]}
    with pytest.raises(ModelError, match="row of zeros"):
        cm.DecisionNetwork.from_cpts(STATES, {"F": ["W"]}, tables, {"T": [], "S": []}, {})
