"""Explanations beside brute force: leads, swings, and ranges of table entries."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import certimap as cm
from certimap.errors import QueryError
from certimap.explanations.sensitivity import Entry


def random_network(seed: int) -> cm.BayesianNetwork:
    rng = np.random.default_rng(seed)
    names = ["a", "b", "c", "d"]
    sizes = rng.integers(2, 4, 4)
    parents = {n: [p for p in names[:i] if rng.random() < 0.6] for i, n in enumerate(names)}
    tables = {}
    for i, n in enumerate(names):
        shape = [int(sizes[names.index(p)]) for p in parents[n]]
        tables[n] = rng.dirichlet(np.ones(sizes[i]), shape) if shape else rng.dirichlet(np.ones(sizes[i]))
    return cm.BayesianNetwork.from_cpts(
        {n: tuple(range(k)) for n, k in zip(names, sizes.tolist(), strict=True)}, parents, tables
    )


def ranked(network, asked, evidence):
    """Every assignment of the query variables with its p(q, e), the most probable first."""
    total: dict[tuple[int, ...], float] = {}
    sizes = network.domain.n_states.tolist()
    for point in itertools.product(*map(range, sizes)):
        full = dict(zip(network.domain.names, point, strict=True))
        if all(full[k] == v for k, v in evidence.items()):
            p = math.exp(float(network.log_prob(np.array([point], np.int16))[0]))
            key = tuple(full[n] for n in asked)
            total[key] = total.get(key, 0.0) + p
    return sorted(total.items(), key=lambda item: -item[1])


@given(st.integers(0, 2**20))
@settings(max_examples=12)
def test_leads_and_swings_are_those_of_enumeration(seed):
    network = random_network(seed)
    found = cm.explain(network, ["a", "c"], {"d": 0}, n_entries=0)
    order = ranked(network, ("a", "c"), {"d": 0})
    assert tuple(found.answer.assignment.values()) == order[0][0]
    assert found.lead.nats == pytest.approx(math.log(order[0][1] / order[1][1]), abs=1e-8)
    assert found.log_odds_free == found.lead.nats
    best = ranked(network, ("a", "c"), {})[0][0]
    expected = {n: s for n, s, old in zip("ac", best, order[0][0], strict=True) if s != old}
    assert found.removed[0].changes == expected
    changing = {s.state: tuple(s.changes.items()) for s in found.changed}
    for state in range(1, int(network.domain.n_states[3])):
        other = ranked(network, ("a", "c"), {"d": state})[0][0]
        assert (state in changing) == (other != order[0][0])


@given(st.integers(0, 2**20))
@settings(max_examples=8)
def test_ranges_of_entries_are_exact(seed):
    network = random_network(seed)
    found = cm.explain(network, ["a", "c"], {"d": 0}, n_entries=2)
    answer = tuple(found.answer.assignment.values())
    for t in found.tolerances:
        assert t.kind == "exact"
        v = network.domain.index(t.variable)
        names = [network.domain.names[p] for p in network.parents[v]]
        row = tuple(int(t.given[n]) for n in names)
        assert t.value == pytest.approx(float(network.factors[v].table[(*row, t.state)]))
        assert t.low <= t.value <= t.high
        entry = Entry(v, row, int(t.state))
        for theta in np.linspace(0.002, 0.998, 40):
            moved = entry.moved(network, float(theta))
            best, *others = ranked(moved, ("a", "c"), {"d": 0})
            if abs(theta - t.low) > 1e-6 and abs(theta - t.high) > 1e-6 and best[1] > others[0][1] * (1 + 1e-9):
                assert (best[0] == answer) == (t.low < theta < t.high), (t, theta)


def test_any_entry_may_move_by_the_lead_in_log_odds():
    network = random_network(5)
    found = cm.explain(network, ["a"], {"d": 0}, n_entries=100)
    for t in found.tolerances:
        odds = math.log(t.value / (1 - t.value))
        for end in (t.low, t.high):
            if 0.0 < end < 1.0:
                assert abs(math.log(end / (1 - end)) - odds) >= found.log_odds_free - 1e-6


def test_impossible_changes_and_single_answers():
    network = cm.BayesianNetwork.from_cpts(
        {"a": ("x", "y"), "b": (0, 1)}, {"b": ["a"]}, {"a": [0.7, 0.3], "b": [[1.0, 0.0], [1.0, 0.0]]}
    )
    found = cm.explain(network, ["a"], {"b": 0})
    assert found.changed == []
    assert "none: without any one of them it stays" in str(found)
    assert json.loads(json.dumps(found.to_dict()))["lead"]["runner_up"] == {"a": "y"}
    with pytest.raises(QueryError, match="expected 0 or more"):
        cm.explain(network, ["a"], {}, n_entries=-1)


def test_circuits_are_explained_without_tables():
    builder = cm.CircuitBuilder(cm.Domain([cm.Categorical("x", (0, 1)), cm.Categorical("y", (0, 1))]))
    leaf = builder.categorical
    parts = [builder.product([leaf(0, np.log([p, 1 - p])), leaf(1, np.log([1 - p, p]))]) for p in (0.9, 0.2)]
    builder.sum(parts, np.log([0.5, 0.5]))
    found = cm.explain(builder.build(), ["x"], {"y": 1})
    assert found.tolerances == []
    assert found.answer.assignment == {"x": 0}
    assert [s.state for s in found.changed] == [0]
