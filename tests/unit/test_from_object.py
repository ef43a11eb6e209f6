"""What is no model, and what does not apply; graphs of networkx."""

import subprocess
import sys

import numpy as np
import pytest

import certimap as cm


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
