"""A time limit is kept on circuits whose conditioning, or search for a tree, takes longer."""

from __future__ import annotations

import numpy as np
import pytest

import certimap as cm
from certimap.circuits.circuit import Circuit, NodeKind
from certimap.circuits.posterior import GuessedCircuit
from certimap.conversions.circuit_to_tree import tree_of_circuit
from certimap.core.control import Control, TimeUp
from certimap.core.domain import Domain
from certimap.core.query import make_query
from certimap.errors import TooLarge

OVERSHOOT = 1.0  # seconds


def layered(n, width, seed=0):
    """Return a circuit of `n` binary variables in layers, every sum over every product: n * width^2 edges."""
    rng = np.random.default_rng(seed)
    kinds = np.tile(np.repeat([NodeKind.CATEGORICAL, NodeKind.PRODUCT, NodeKind.SUM], width), n)
    kinds = np.concatenate([kinds[:-width], [NodeKind.SUM]]).astype(np.int8)
    children, sizes, weights = [], [], []
    for t in range(n):
        leaves = 3 * t * width + np.arange(width)
        below = [leaves] if t == 0 else [leaves, leaves - width]
        n_sums = 1 if t == n - 1 else width
        children += [np.stack(below, axis=1).ravel(), np.tile(leaves + width, n_sums)]
        sizes += [np.zeros(width, int), np.full(width, len(below)), np.full(n_sums, width)]
        weights += [np.zeros(width * len(below)), np.log(rng.dirichlet(np.ones(width), n_sums)).ravel()]
    is_leaf = kinds == NodeKind.CATEGORICAL
    leaf_var = np.full(len(kinds), -1, np.int32)
    leaf_var[is_leaf] = np.repeat(np.arange(n), width)
    return Circuit(
        Domain.of_sizes([2] * n),
        kinds,
        np.concatenate([[0], np.cumsum(np.concatenate(sizes))]).astype(np.int64),
        np.concatenate(children).astype(np.int64),
        np.concatenate(weights),
        leaf_var,
        np.concatenate([[0], np.cumsum(2 * is_leaf)]).astype(np.int64),
        np.log(rng.dirichlet(np.ones(2), n * width)).ravel(),
    )


@pytest.fixture(scope="module")
def large():
    """Takes seconds to condition, and more to find the tree of."""
    cm.map_query(layered(6, 8), ["0", "1"], rng=0)  # loads what is compiled
    circuit = layered(60, 400)
    cm.map_query(GuessedCircuit.of(circuit, make_query(circuit.domain, circuit.domain.names[:30])))
    return circuit


def test_what_cannot_be_conditioned_in_time_is_guessed(large):
    result = cm.map_query(large, large.domain.names[:30], evidence={"59": 1}, time_limit=0.2, rng=0)
    assert (result.solver, result.status) == ("guess", "time_limit")
    assert "conditioning a circuit of 9" in result.note or "compiling kernels" in result.note  # on a slow machine
    assert result.log_prob < 0.0
    assert len(result.assignment) == 30


def test_a_tree_is_not_begun_that_would_end_too_late():
    control = Control.starting_now(0.0)
    plan = cm.condition(layered(6, 8), ["0", "1"], solver="frontier").plan
    with pytest.raises(TimeUp, match="tree of a structured circuit"):
        tree_of_circuit(plan, control=control)


@pytest.mark.parametrize("seed", range(6))
def test_guesses_have_their_own_probability(seed):
    circuit = layered(7, 3, seed)
    query = make_query(circuit.domain, ["0", "2", "3", "6"], {"1": 1, "5": 0})
    guessed = GuessedCircuit.of(circuit, query)
    exact = cm.condition(circuit, ["0", "2", "3", "6"], {"1": 1, "5": 0}, solver="frontier")
    points = np.stack(np.unravel_index(np.arange(16), (2,) * 4), axis=1)
    assert guessed.log_prob(points) == pytest.approx(exact.log_prob(points), abs=1e-12)
    assert guessed.facts.log_evidence == pytest.approx(exact.log_evidence, abs=1e-12)
    result = cm.map_query(guessed)
    assert result.solver == "guess"
    assert result.log_prob <= exact.log_prob(points).max() + 1e-12


def test_every_variable_queried_is_guessed_right_where_sums_decide():
    builder = cm.CircuitBuilder(Domain.of_sizes([2, 2]))
    parts = [
        builder.product(
            [
                builder.categorical(0, log_weights=[0.0, -np.inf]),
                builder.categorical(1, log_weights=np.log([0.9, 0.1])),
            ]
        ),
        builder.product(
            [
                builder.categorical(0, log_weights=[-np.inf, 0.0]),
                builder.categorical(1, log_weights=np.log([0.2, 0.8])),
            ]
        ),
    ]
    builder.sum(parts, log_weights=np.log([0.4, 0.6]))
    guessed = GuessedCircuit.of(builder.build(normalised=False), make_query(Domain.of_sizes([2, 2])))
    assert guessed.guess().tolist() == [[1, 1]]
    assert guessed.log_prob(np.array([[0, 0], [1, 1]])) == pytest.approx(np.log([0.36, 0.48]))


def test_far_observations_cost_digits_that_the_slack_counts():
    """ln p(e) is about -2e8: ln p of a point, the difference of two such numbers, is off by some 1e-8."""
    builder = cm.CircuitBuilder(Domain([cm.Categorical("a", (0, 1)), cm.Real("x")]))
    parts = [
        builder.product([builder.categorical(0, log_weights=np.log([0.3, 0.7])), builder.gaussian(1, mean, 1e-3)])
        for mean in (0.0, 1e-3)
    ]
    builder.sum(parts, log_weights=np.log([0.5, 0.5]))
    circuit = builder.build(normalised=False)
    guessed = GuessedCircuit.of(circuit, make_query(circuit.domain, ["a"], {"x": 21.7}))
    error = abs(float(guessed.log_prob(np.array([[1]]))[0]) - np.log(0.7))
    assert 1e-10 < error <= guessed.facts.log_slack < 1e-5
    result = cm.map_query(guessed)
    assert result.log_upper_bound >= np.log(0.7)


def test_real_variables_are_not_guessed():
    builder = cm.CircuitBuilder(Domain([cm.Real("x")]))
    builder.gaussian(0, 0.0, 1.0)
    circuit = builder.build(normalised=False)
    with pytest.raises(TooLarge, match="real variables"):
        GuessedCircuit.of(circuit, make_query(circuit.domain))
