"""Caps of subcircuits in proofs: what a search writes of them, and what the checker makes of any tree at all."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import certimap as cm
from certimap.checker import Proof
from certimap.checker.boxes import caps_of
from certimap.checker.circuit import circuit_of, read_graph
from certimap.checker.models import CheckBudget, Question
from certimap.circuits import prober as traced
from certimap.circuits.prober import PlanProber
from certimap.io.native import exported
from certimap.testing.models import all_points, random_circuit
from certimap_lab.proofs import Case, failures, solved


def questioned(circuit, queried, log_weights=None):
    """Return the checker's view of a circuit, and the sums' maxima over their own variables by enumeration."""
    sizes = circuit.domain.n_states.astype(np.int64)
    weights = np.zeros(int(sizes.sum())) if log_weights is None else log_weights
    question = Question(sizes, np.array(queried, np.int64), weights)
    _, _, arrays, _ = exported(circuit)
    graph = read_graph(arrays, question, {}, CheckBudget())
    return circuit_of(graph, graph.tables(arrays, question, {}, 1), question), maxima(circuit, queried, question)


def maxima(circuit, queried, question):
    """Return ln of each sum's largest value, by recursion on plain numbers."""
    sizes = circuit.domain.n_states
    tables = {}
    for node in range(circuit.n_nodes):
        children = circuit.children_of(node)
        weights = circuit.log_weights[circuit.child_ptr[node] : circuit.child_ptr[node + 1]]
        if circuit.kind[node] == 0:
            v = int(circuit.leaf_var[node])
            values = np.exp(circuit.params_of(node) + question.weights_of(v))
            tables[node] = ((v,), values) if v in queried else ((), values.sum())
        else:
            scope = tuple(sorted(set().union(*(tables[c][0] for c in children))))
            parts = []
            for c in children:
                inner, values = tables[c]
                shape = [sizes[v] if v in inner else 1 for v in scope]
                parts.append(np.broadcast_to(np.reshape(values, shape), [sizes[v] for v in scope]))
            if circuit.kind[node] == 3:
                total = sum(math.exp(w) * p for w, p in zip(weights, parts, strict=True))
            else:
                total = np.prod(parts, axis=0) if parts else np.ones([])
            tables[node] = (scope, total)
    with np.errstate(divide="ignore"):
        return [float(np.log(np.max(tables[n][1]))) for n in range(circuit.n_nodes) if circuit.kind[n] == 3]


def searched(circuit, queried, evidence=None, max_bytes=10**6):
    """Return the trees that a search for caps writes, and the caps as it has them."""
    posterior = cm.condition(circuit, [circuit.domain.names[v] for v in queried], evidence, solver="frontier")
    prober = PlanProber(posterior.plan, 1)
    prober.keep_trace(max_bytes)
    while not prober.tighten(10**7, 1e-10, prober.layout.full(), -np.inf).is_complete:
        pass
    return prober.trace()


@pytest.mark.parametrize("seed", range(6))
def test_trees_of_a_search_give_the_maxima(seed):
    rng = np.random.default_rng(seed)
    domain = cm.Domain.of_sizes(int(k) for k in rng.integers(2, 4, 7))
    circuit = random_circuit(rng, domain, n_components=4, zeros=0.1 * (seed % 2))
    queried = [0, 1, 3, 4, 6] if seed % 3 else list(range(7))
    below, truth = questioned(circuit, queried)
    arrays = searched(circuit, queried)
    caps = caps_of(below, arrays)
    assert len(arrays["cap_nodes"])
    for number in arrays["cap_nodes"].tolist():
        assert truth[number] <= caps[number] <= truth[number] + 1e-9


def test_sums_keep_their_numbers_where_a_circuit_is_made_smooth():
    build = cm.CircuitBuilder(cm.Domain.of_sizes([2, 3, 2, 2]))
    rng = np.random.default_rng(3)

    def leaf(v):
        return build.categorical(v, log_weights=np.log(rng.dirichlet(np.ones((2, 3, 2, 2)[v]))))

    def mixture(scope):
        products = [build.product([leaf(v) for v in scope]) for _ in range(3)]
        return build.sum(products, log_weights=np.log(rng.dirichlet(np.ones(3))))

    parts = [build.product([mixture([0, 1]), mixture([2, 3])]), mixture([0, 1]), mixture([1, 2, 3])]
    build.sum(parts, log_weights=np.log(rng.dirichlet(np.ones(3))))
    circuit = build.build(normalised=False)
    below, truth = questioned(circuit, range(4))
    arrays = searched(circuit, range(4))
    caps = caps_of(below, arrays)
    points = np.array(list(itertools.product(range(2), range(3), range(2), range(2))))
    best = float(below.values(points).max())
    assert best == pytest.approx(truth[-1], abs=1e-12)
    assert truth[-1] <= caps[int(arrays["cap_nodes"].max())] <= best + 1e-9  # the root is the last of the sums


@given(st.integers(0, 10**6), st.data())
@settings(max_examples=60, deadline=None)
def test_any_tree_bounds_its_sum(seed, data):
    """A file may say what it likes: what the checker concludes is true."""
    rng = np.random.default_rng(seed)
    circuit = random_circuit(rng, cm.Domain.of_sizes([2, 3, 2, 2]), n_components=2)
    below, truth = questioned(circuit, range(4))
    scopes = below.scopes()
    nodes, kinds, kept = [], [], []
    for node, number in enumerate(below.numbers.tolist()):
        if number < 0 or not data.draw(st.booleans()):
            continue
        scope = [v for v in range(4) if scopes[node] >> v & 1]
        nodes.append(number)
        grow(scope, {v: set(range((2, 3, 2, 2)[v])) for v in scope}, data, kinds, kept)
    arrays = {
        "cap_nodes": np.array(nodes, np.int32),
        "cap_splits": np.array(kinds, np.int32),
        "cap_kept": np.array(kept, np.uint8),
    }
    caps = caps_of(below, arrays)
    for number in nodes:
        assert caps[number] >= truth[number]


def grow(scope, box, data, kinds, kept, depth=0):
    """Append a random tree over a box."""
    kind = data.draw(st.sampled_from(["leaf", "split", "shrink"])) if depth < 4 else "leaf"
    if kind == "leaf":
        kinds.append(-1)
    elif kind == "split":
        v = data.draw(st.sampled_from(scope))
        kinds.append(v)
        for state in sorted(box[v]):
            grow(scope, {**box, v: {state}}, data, kinds, kept, depth + 1)
    else:
        kinds.append(-2)
        left = {v: {a for a in box[v] if data.draw(st.booleans())} for v in scope}
        bits = [a in left[v] for v in scope for a in range((2, 3, 2, 2)[v])]
        kept += np.packbits(np.array(bits, np.uint8)).tolist()
        grow(scope, left, data, kinds, kept, depth + 1)


def test_a_trace_that_outgrows_its_room_is_the_same(monkeypatch):
    circuit = random_circuit(np.random.default_rng(8), cm.Domain.of_sizes([2] * 8), n_components=5)
    whole = searched(circuit, range(8))
    monkeypatch.setattr(traced, "TRACE_ENTRIES", 8)
    monkeypatch.setattr(traced, "TRACE_COLUMNS", 3)
    again = searched(circuit, range(8))
    assert all(np.array_equal(whole[name], again[name]) for name in whole)
    assert searched(circuit, range(8), max_bytes=1000) is None


def test_caps_that_are_needed_are_missed(monkeypatch):
    """Where boxes close by caps alone, a proof without them is rejected, and one with them is not."""
    n_needed = 0
    for seed in range(6):
        circuit = random_circuit(
            np.random.default_rng(seed), cm.Domain.of_sizes([2] * 9), n_components=6, zeros=0.0
        )
        result = cm.map_query(
            circuit, solver="frontier", first_draws=4, epsilon=0, delta=0, rng=0, proof=True, workers=1
        )
        assert cm.check(circuit, result.proof).accepted
        left = {name: a for name, a in result.proof.arrays.items() if not name.startswith("cap_")}
        n_needed += not cm.check(circuit, Proof(result.proof.meta, left)).accepted
    assert n_needed


@pytest.mark.parametrize("seed", range(3))
def test_altered_trees_prove_nothing_false(seed):
    circuit = random_circuit(np.random.default_rng(seed), cm.Domain.of_sizes([2] * 8), n_components=6, zeros=0.0)
    listed = cm.condition(circuit, solver="pac")
    case = Case(circuit, list(circuit.domain.names), {}, listed.log_prob(all_points(listed.domain)))
    proof = solved(case, "frontier", seed=seed).proof
    assert len(proof.arrays["cap_nodes"])
    assert failures(case, proof, np.random.default_rng(seed)) == []
