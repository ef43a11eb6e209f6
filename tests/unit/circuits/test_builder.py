"""Weights and their logs are told apart, and a circuit adds to 1 unless it is said not to."""

from __future__ import annotations

import math

import numpy as np
import pytest

import certimap as cm
from certimap.errors import ModelError


def pair(leaf, weights):
    builder = cm.CircuitBuilder(cm.Domain([cm.Categorical("a", (0, 1)), cm.Real("x")]))
    parts = [builder.product([leaf(builder), builder.gaussian(1, mean, 1.0)]) for mean in (0.0, 3.0)]
    builder.sum(parts, **weights)
    return builder


def test_probabilities_and_their_logs_give_the_same_circuit():
    leaves = [
        lambda b: b.categorical(0, probs=[0.3, 0.7]),
        lambda b: b.categorical(0, log_weights=np.log([0.3, 0.7])),
        lambda b: b.categorical(0, [math.log(0.3), math.log(0.7)]),
    ]
    sums = [{"weights": (0.4, 0.6)}, {"log_weights": np.log([0.4, 0.6])}, {"logs": np.log([0.4, 0.6])}]
    made = [pair(leaf, weights).build() for leaf, weights in zip(leaves, sums, strict=True)]
    for circuit in made:
        assert circuit.params == pytest.approx(made[0].params)
        assert circuit.log_weights == pytest.approx(made[0].log_weights)
        assert circuit.is_normalised
    result = cm.map_query(made[0], ["a"], rng=0)
    assert (result.assignment, result.log_prob) == ({"a": 1}, pytest.approx(math.log(0.7)))
    zero = cm.CircuitBuilder(made[0].domain)
    zero.categorical(0, probs=[0.0, 1.0])
    assert zero.build().params.tolist() == [-math.inf, 0.0]


@pytest.mark.parametrize(
    ("add", "said"),
    [
        (
            lambda b: b.categorical(0, [0.3, 0.7]),
            r"a leaf of variable 'a' was given \[0.3, 0.7\].*probs= or log_weights=",
        ),
        (lambda b: b.sum([0, 0], [0.4, 0.6]), r"sum node 1 was given \[0.4, 0.6\].*weights= or log_weights="),
        (
            lambda b: b.histogram(1, [0, 1, 2], [0.5, 0.5]),
            r"histogram of variable 'x' was given.*masses= or log_masses=",
        ),
        (
            lambda b: b.categorical(0, probs=[-0.3, 0.7]),
            "none below 0 is expected, or natural logs as log_weights=",
        ),
        (lambda b: b.categorical(0, probs=[math.nan, 0.7]), "expected finite numbers"),
        (lambda b: b.categorical(0, probs=[0.3, 0.7], log_weights=[-1.0, -1.0]), "given 2 lists of weights"),
        (lambda b: b.categorical(0), "given 0 lists of weights"),
        (lambda b: b.categorical(0, probs=[0.3, 0.3, 0.4]), "its 2 states need one each"),
    ],
)
def test_what_may_be_meant_in_two_ways_is_refused(add, said):
    builder = cm.CircuitBuilder(cm.Domain([cm.Categorical("a", (0, 1)), cm.Real("x")]))
    builder.categorical(0, probs=[0.5, 0.5])
    with pytest.raises(ModelError, match=said):
        add(builder)


@pytest.mark.parametrize("total", [0.0, 0.5, 0.99, 1.01, 3.36])
def test_a_circuit_that_does_not_add_to_one_is_refused_unless_it_is_said_so(total):
    def made():
        return pair(lambda b: b.categorical(0, probs=[0.3 * total, 0.7 * total]), {"weights": [0.4, 0.6]})

    with pytest.raises(ModelError, match=r"the values of the circuit add to .*; expected 1 within 0.001"):
        made().build()
    circuit = made().build(normalised=False)
    assert not circuit.is_normalised
    if total:
        result = cm.map_query(circuit, ["a"], rng=0)
        assert "total " in str(result)
        assert "p(e)" not in str(result)
        assert result.log_prob == pytest.approx(math.log(0.7))
    assert pair(lambda b: b.categorical(0, probs=[0.3, 0.7001]), {"weights": [0.4, 0.6]}).build().is_normalised


def test_evidence_of_a_circuit_that_adds_to_one_is_called_evidence():
    circuit = pair(lambda b: b.categorical(0, probs=[0.3, 0.7]), {"weights": [0.4, 0.6]}).build()
    assert "evidence " in str(cm.map_query(circuit, ["x"], {"a": 1}, rng=0))
