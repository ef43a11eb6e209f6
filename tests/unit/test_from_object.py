"""What is no model, and what does not apply; graphs of networkx."""

import math
import subprocess
import sys

import numpy as np
import pytest

import certimap as cm
from certimap.circuits.nodewise import circuit_values
from certimap.interop.pysdd_nodes import convert
from certimap.interop.reading import Wishes


@pytest.mark.parametrize("x", [3, "asia.bif", {"a": 1}, object()])
def test_what_is_no_model(x):
    with pytest.raises(cm.ModelError, match="no model"):
        cm.from_object(x)
    for ask in (cm.map_query, cm.condition, cm.marginals, cm.log_evidence):
        with pytest.raises(cm.QueryError, match="no model"):
            ask(x)


def test_a_model_of_ours_stays_as_it_is():
    model = cm.hidden_markov_model([1.0], [[1.0]], [[0.5, 0.5]], 2)
    assert cm.from_object(model) is model
    with pytest.raises(cm.ModelError, match="do not apply"):
        cm.from_object(model, steps=3)


def test_no_library_is_imported():
    program = (
        "import sys, certimap as cm; m = cm.read('examples/asia.bif'); cm.from_object(m); "
        "print([n for n in ('torch', 'pgmpy', 'pyagrum', 'sklearn', 'pandas', 'networkx') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_diagrams_of_pysdd_are_read_node_by_node():
    """A diagram with PySDD's interface: (a and b) or (not a), over a, b and c, which is free."""

    class SddNode:
        manager = type("Manager", (), {"var_count": lambda self: 3})()

        def __init__(self, number, literal=0, pairs=()):
            self.id, self.literal, self.pairs = number, literal, pairs

        def elements(self):
            return self.pairs

        def is_decision(self):
            return bool(self.pairs)

        def is_literal(self):
            return self.literal != 0

        def is_true(self):
            return self.id == 9

    a, no_a, b, true, false = SddNode(1, 1), SddNode(2, -1), SddNode(3, 2), SddNode(9), SddNode(8)
    root = SddNode(4, 0, [(a, b), (no_a, true), (SddNode(5, 3), false)])
    circuit = convert(root, Wishes(names=["a", "b", "c"])).model
    assert circuit.domain.names == ("a", "b", "c")
    points = np.array([[i >> 2, i >> 1 & 1, i & 1] for i in range(8)], float)
    models = [a * b + (1 - a) == 1 for a, b, _ in points]
    assert circuit_values(circuit, points).tolist() == [0.0 if is_model else -np.inf for is_model in models]
    with pytest.raises(cm.ModelError, match="the SDD is false"):
        convert(false, Wishes())


class TestNetworkx:
    @pytest.fixture(autouse=True)
    def _needs(self):
        pytest.importorskip("networkx")

    def test_a_bayesian_network(self):
        model = cm.read("examples/asia.bif")
        graph = cm.to_networkx(model)
        assert set(graph.nodes) == set(model.domain.names)
        for i, factor in enumerate(model.factors):
            name = model.domain.names[i]
            assert set(graph.predecessors(name)) == set(graph.nodes[name]["parents"])
            assert np.array_equal(graph.nodes[name]["table"], factor.table)

    def test_a_markov_network(self):
        domain = cm.Domain.of_sizes([2, 3, 2])
        model = cm.MarkovNetwork(domain, [cm.Factor((0, 1), np.ones((2, 3))), cm.Factor((2,), [1.0, 2.0])])
        graph = cm.to_networkx(model)
        assert list(graph.edges) == [("0", "1")]
        assert [names for names, _ in graph.graph["factors"]] == [("0", "1"), ("2",)]

    def test_a_circuit_keeps_doubled_children(self):
        builder = cm.CircuitBuilder(cm.Domain.of_sizes([2]))
        leaf = builder.categorical(0, log_weights=[-0.5, -1.0])
        builder.sum([leaf, leaf], log_weights=[-1.0, -2.0])
        graph = cm.to_networkx(builder.build(normalised=False))
        assert graph.graph["root"] == 1
        assert sorted(d["log_weight"] for _, _, d in graph.out_edges(1, data=True)) == [-2.0, -1.0]
        assert graph.nodes[0] == {"kind": "categorical", "variable": "0", "parameters": (-0.5, -1.0)}

    def test_another_object(self):
        with pytest.raises(cm.ModelError, match="neither network nor circuit"):
            cm.to_networkx(3)


def hidden_model(**settings):
    """Something that hmmlearn's classes look like, with two states and counts."""

    class PoissonHMM:
        startprob_, transmat_ = np.array([0.0, 1.0]), np.array([[0.9, 0.1], [0.2, 0.8]])
        rates = np.array([2.0, 9.0])

        def _compute_log_likelihood(self, rows):
            return rows * np.log(self.rates) - self.rates

        def score(self, rows):
            weights = self.startprob_ * np.exp(self._compute_log_likelihood(rows[:1]))[0]
            for row in rows[1:]:
                weights = weights @ self.transmat_ * np.exp(self._compute_log_likelihood(row[None]))[0]
            return np.log(weights.sum())

    PoissonHMM.__module__ = "hmmlearn.hmm"
    for name, value in settings.items():
        setattr(PoissonHMM, name, value)
    return PoissonHMM()


class TestObservations:
    def test_a_sequence_becomes_a_chain_of_its_states(self):
        theirs, rows = hidden_model(), np.array([[1], [8], [11], [2]])
        chain = cm.from_object(theirs, observations=rows)
        assert chain.log_partition == pytest.approx(theirs.score(rows))
        first, second = cm.from_object(theirs, observations=rows, lengths=[3, 1])
        assert (len(first.domain), len(second.domain)) == (3, 1)
        missing = cm.from_object(theirs, observations=[1, np.nan, 11])
        both = [cm.from_object(theirs, observations=[1, count, 11]).log_partition for count in range(40)]
        summed = np.logaddexp.reduce([log_p - math.lgamma(count + 1) for count, log_p in enumerate(both)])
        assert missing.log_partition == pytest.approx(summed)

    def test_another_value_of_the_library_is_refused(self):
        with pytest.raises(cm.ModelError, match="nothing is guessed"):
            cm.from_object(hidden_model(score=lambda self, rows: -3.0), observations=[1, 2])

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ({}, "steps="),
            ({"steps": 3}, "observations="),
            ({"steps": 3, "observations": [1, 2]}, "takes one of them"),
            ({"observations": [1, -1]}, "whole numbers from 0"),
            ({"observations": np.zeros((2, 2, 2))}, "steps, features"),
            ({"observations": [np.nan]}, "no complete observation"),
            ({"observations": [1, 2], "lengths": [1]}, "add to 2"),
            ({"observations": [1, 2], "lengths": []}, "add to 2"),
            ({"lengths": [1]}, "add to 0"),
            ({"observations": [1, 2], "names": ["a", "b"]}, "leave names out"),
        ],
    )
    def test_what_is_refused(self, given, words):
        with pytest.raises(cm.ModelError, match=words):
            cm.from_object(hidden_model(), **given)


def test_a_learner_of_ones_own_is_asked_by_its_model():
    class Own(cm.learn.ChowLiuTree):
        pass

    rows = {"a": [0, 0, 1, 1, 1], "b": [0, 1, 1, 1, 1]}
    with pytest.raises(cm.QueryError, match="this Own has learned no model yet"):
        cm.map_query(Own())
    assert cm.map_query(Own().fit(rows), "b", {"a": 1}).assignment == {"b": 1}


def test_scikit_learn_takes_mixtures_alone():
    with pytest.raises(cm.ModelError, match="a BayesianNetwork is no GaussianMixture"):
        cm.to_sklearn(cm.read("examples/asia.bif"))
