"""Variables, domains, leaves and seeds made of what they cannot be made of: one sentence of a typed error."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

import certimap as cm
from certimap import learn
from certimap.errors import DataError, ModelError

NO_NUMBERS = ["x", b"x", None, [], object()]


@pytest.mark.parametrize("states", [b"yes", 3, math.nan, np.array([0.1, 0.2]), {"a": 1}, None])
def test_states_are_a_tuple_of_labels(states):
    with pytest.raises(ModelError, match=r"variable 'a' has the states .*; expected a tuple of labels"):
        cm.Categorical("a", states)


@pytest.mark.parametrize("kind", [lambda name: cm.Categorical(name, (0, 1)), cm.Real])
@pytest.mark.parametrize("name", [1, None, b"a", ("a",)])
def test_names_are_text(kind, name):
    with pytest.raises(ModelError, match=r"a variable is named .*; expected a str"):
        kind(name)


@pytest.mark.parametrize("end", [*NO_NUMBERS, np.array([0.1, 0.2])])
def test_ends_are_numbers(end):
    for ends in ((end, 1.0), (0.0, end)):
        with pytest.raises(ModelError, match=r"variable 'x' has the ends .*; expected two numbers"):
            cm.Real("x", *ends)


@pytest.mark.parametrize("variables", ["ab", [("a", (0, 1))], [None]])
def test_a_domain_is_of_variables(variables):
    with pytest.raises(ModelError, match=r"is no variable; expected a Categorical or a Real"):
        cm.Domain(variables)


@pytest.mark.parametrize("wrong", NO_NUMBERS)
def test_parameters_of_leaves_are_numbers(wrong):
    build = cm.CircuitBuilder(cm.Domain([cm.Categorical("a", (0, 1)), cm.Real("x")]))
    for add in (
        lambda: build.categorical(0, probs=[wrong, 0.5]),
        lambda: build.categorical(0, log_weights=[wrong, 0.0]),
        lambda: build.gaussian(1, wrong, 1.0),
        lambda: build.gaussian(1, 0.0, wrong),
        lambda: build.sum([0], weights=[wrong]),
    ):
        with pytest.raises(ModelError, match=r"was given .*; expected numbers"):
            add()


@pytest.mark.parametrize("rng", ["0", 1.5, -1, True, np.array([0.1, 0.2]), {}])
def test_seeds_of_learners(rng):
    rows = pd.DataFrame({"a": [0, 1] * 20, "b": [0, 1, 1, 0] * 10})
    for learner in (learn.chow_liu, learn.hclt):
        with pytest.raises(DataError, match=r"rng is .*; expected a seed"):
            learner(rows, rng=rng)
    with pytest.raises(DataError, match=r"rng is .*; expected a seed"):
        learn.ChowLiuTree().fit(rows).sample(3, rng=rng)


@pytest.mark.parametrize("proof", ["p.npz", 1, math.nan, [], None])
def test_a_proof_is_asked_for_by_a_flag(proof):
    build = cm.CircuitBuilder(cm.Domain([cm.Categorical("a", (0, 1))]))
    build.categorical(0, probs=[0.4, 0.6])
    with pytest.raises(cm.SolverError, match=r"proof is .*; expected True or False"):
        cm.map_query(build.build(), ["a"], proof=proof)
