"""Compiled circuits agree with the networks that they come from, point by point."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference.enumeration_networks import (
    SUM,
    all_points,
    circuit_value,
    marginal,
    network_value,
    networks,
    queries,
)

from certimap.conversions import condition
from certimap.core.query import make_query
from certimap.errors import ImpossibleEvidence


@settings(max_examples=150)
@given(networks())
def test_a_circuit_is_its_network_at_every_point(network):
    points = all_points(network.domain.n_states)
    expected = [network_value(network, p) for p in points]
    with np.errstate(divide="ignore"):
        assert np.exp(network.log_joint(points)) == pytest.approx(expected, rel=1e-12)
    if sum(expected) == 0.0:
        with pytest.raises(ImpossibleEvidence):
            network.compile()
        return
    circuit = network.compile()
    assert circuit.domain == network.domain
    assert [circuit_value(circuit, p) for p in points] == pytest.approx(expected, rel=1e-11, abs=0)


@settings(max_examples=200)
@given(st.data())
def test_a_query_compiles_to_the_marginal_with_the_evidence(data):
    network = data.draw(networks())
    variables, evidence = data.draw(queries(network.domain))
    query = make_query(network.domain, variables, evidence)
    expected = marginal(network, query)
    if sum(expected.values()) == 0.0:
        with pytest.raises(ImpossibleEvidence):
            network.compile_query(query)
        return
    circuit = network.compile_query(query)
    assert circuit.domain == query.query_domain
    found = {key: circuit_value(circuit, key) for key in expected}
    assert found == pytest.approx(expected, rel=1e-11, abs=0)


@settings(max_examples=60)
@given(st.data())
def test_a_posterior_has_the_evidence_and_the_probabilities(data):
    network = data.draw(networks(max_variables=4))
    variables, evidence = data.draw(queries(network.domain))
    query = make_query(network.domain, variables, evidence)
    expected = marginal(network, query)
    total = sum(expected.values())
    if total == 0.0:
        with pytest.raises(ImpossibleEvidence):
            condition(network, query, wants=())
        return
    posterior = condition(network, query, wants=())
    assert posterior.log_evidence == pytest.approx(math.log(total), rel=1e-11, abs=1e-11)
    points = np.array(list(expected), np.int16)
    found = np.exp(posterior.log_prob(points)) * total
    assert found == pytest.approx(list(expected.values()), rel=1e-10, abs=0)


def _supports(circuit):
    """For each node and variable the states on which the node can be positive, with what it depends on."""
    below = []
    for node in range(circuit.n_nodes):
        children = [below[c] for c in circuit.children_of(node)]
        support = {}
        if not children:
            variable = int(circuit.leaf_var[node])
            support[variable] = {s for s, w in enumerate(circuit.params_of(node)) if w > -math.inf}
        for child in children:
            for variable, states in child.items():
                support[variable] = support.get(variable, set()) | states
        below.append(support)
    return below


@settings(max_examples=100)
@given(networks())
def test_every_sum_of_a_full_compilation_decides_a_variable(network):
    try:
        circuit = network.compile()
    except ImpossibleEvidence:
        return
    supports = _supports(circuit)
    for node in np.flatnonzero(circuit.kind == SUM):
        children = [supports[c] for c in circuit.children_of(node)]
        if len(children) < 2:
            continue
        assert any(
            sum(len(c[v]) for c in children) == len(set().union(*(c[v] for c in children)))
            for v in set.intersection(*(set(c) for c in children))
        )


@settings(max_examples=60)
@given(networks())
def test_the_estimate_is_an_upper_bound_and_nodes_are_distinct(network):
    try:
        circuit = network.compile()
    except ImpossibleEvidence:
        return
    roots = 2 + len(network.domain) * 2  # what joins components and carries the constant is not estimated
    assert circuit.n_edges <= network.size_report().n_edges + roots
    nodes = set()
    for node in range(circuit.n_nodes):
        low, high = circuit.child_ptr[node : node + 2]
        key = (
            int(circuit.kind[node]),
            int(circuit.leaf_var[node]),
            tuple(circuit.children_of(node).tolist()),
            tuple(circuit.log_weights[low:high].tolist()),
            tuple(circuit.params_of(node).tolist()),
        )
        assert key not in nodes
        nodes.add(key)
