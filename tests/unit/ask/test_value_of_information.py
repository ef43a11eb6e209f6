"""The worth of seeing more, and how far probabilities may move, against sums over all states."""

from __future__ import annotations

import math
import signal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import certimap as cm
from certimap.ask import decide


def random_network(seed, n=5):
    """Draw chance variables v0 ... and one decision d, which sees some of the first ones."""
    rng = np.random.default_rng(seed)
    names = [f"v{k}" for k in range(n)]
    names.insert(int(rng.integers(1, n)), "d")
    sizes = {name: int(rng.integers(2, 4)) for name in names}
    at = names.index("d")
    parents = {v: [u for u in names[:k] if rng.random() < 0.5] for k, v in enumerate(names) if v != "d"}
    tables = {}
    for v, own in parents.items():
        table = rng.random([sizes[u] for u in (*own, v)]) * (rng.random([sizes[u] for u in (*own, v)]) < 0.9)
        table = table + 1e-3
        tables[v] = table / table.sum(axis=-1, keepdims=True)
    seen = [v for v in names[:at] if rng.random() < 0.3]
    utilities = {}
    for k in range(2):
        scope = ["d", *[v for v in names if v != "d" and rng.random() < 0.4]]
        utilities[f"u{k}"] = (scope, rng.normal(size=[sizes[v] for v in scope]).round(2))
    labels = {v: list(range(k)) for v, k in sizes.items()}
    return cm.DecisionNetwork.from_cpts(labels, parents, tables, {"d": seen}, utilities)


def spread(table, scope, n):
    """Return a table with an axis for each of n variables."""
    order = np.argsort(scope)
    shape = [1] * n
    for axis in order:
        shape[scope[axis]] = table.shape[axis]
    return np.transpose(table, order).reshape(shape)


def best(network, seen, evidence=None):
    """Return the best expected utility of one decision that sees some variables, by summing everything."""
    n, index = len(network.domain), network.domain.index
    joint = math.prod(spread(f.table, f.scope, n) for f in network.cpts)
    for name, label in (evidence or {}).items():
        joint = joint * spread(np.eye(int(network.domain.n_states[index(name)]))[label], (index(name),), n)
    total = joint * sum(spread(u.values, u.scope, n) for u in network.utilities)
    total = np.broadcast_to(total, network.domain.n_states)
    kept = [index(v) for v in seen]
    total = total.sum(axis=tuple(v for v in range(n) if v not in (*kept, index("d"))), keepdims=True)
    mass = joint.sum() / joint.shape[index("d")]
    return float(total.max(axis=index("d")).sum() / mass)


@settings(max_examples=15)
@given(st.integers(0, 10**6), st.booleans())
def test_the_worth_is_the_difference_of_two_best_values(seed, with_evidence):
    network = random_network(seed)
    seen = network.decisions["d"]
    evidence = {"v0": 0} if with_evidence and "v0" not in seen else None
    found = cm.value_of_information(network, "d", evidence=evidence)
    now = best(network, seen, evidence)
    for name, worth in found.items():
        expected = best(network, (*seen, name), evidence) - now
        assert worth.low - 1e-9 <= expected <= worth.high + 1e-9
        assert 0.0 <= worth.low <= worth.high <= worth.low + 1e-9
    worths = [worth.high for worth in found.values()]
    assert worths == sorted(worths, reverse=True)
    assert not {"d", *seen, *(evidence or ())} & found.keys()


def test_what_cannot_be_seen_is_named():
    network = cm.DecisionNetwork.from_cpts(
        {"a": [0, 1], "d": [0, 1], "b": [0, 1]},
        {"b": "d"},
        {"a": [0.5, 0.5], "b": np.eye(2)},
        {"d": []},
        {"u": (["a", "d", "b"], np.arange(8.0).reshape(2, 2, 2))},
    )
    assert list(cm.value_of_information(network, "d")) == ["a"]
    for name, evidence, message in (
        ("b", None, "'b' depends on decision 'd'"),
        ("d", None, "'d' is a decision, observed, or known"),
        ("a", {"a": 1}, "'a' is a decision, observed, or known"),
        ("c", None, "'c'"),
    ):
        with pytest.raises(cm.QueryError, match=message):
            cm.value_of_information(network, "d", [name], evidence)


def value(network, policy, evidence):
    """Return the expected utility of a policy of one decision in a network, by summing everything."""
    table = policy.tables["d"]
    index, n = network.domain.index, len(network.domain)
    rule = np.eye(len(table.options))[table.values.argmax(axis=-1)]
    joint = math.prod(spread(f.table, f.scope, n) for f in network.cpts)
    joint = joint * spread(rule, (*(index(v.name) for v in table.known), index("d")), n)
    for name, label in (evidence or {}).items():
        joint = joint * spread(np.eye(int(network.domain.n_states[index(name)]))[label], (index(name),), n)
    joint = np.broadcast_to(joint, network.domain.n_states)
    return float((joint * sum(spread(u.values, u.scope, n) for u in network.utilities)).sum() / joint.sum())


@settings(max_examples=8)
@given(st.integers(0, 10**6), st.booleans())
def test_the_policy_is_best_between_the_ends_and_not_beyond(seed, with_evidence):
    network = random_network(seed, 3)
    seen = network.decisions["d"]
    evidence = {"v0": 1} if with_evidence and "v0" not in seen else None
    policy = cm.decide(network, evidence)
    for s in cm.strength_of_assumptions(policy):
        place = next(k for k, f in enumerate(network.cpts) if network.domain.names[f.scope[-1]] == s.variable)
        factor = network.cpts[place]
        names = [network.domain.names[v] for v in factor.scope]
        entry = tuple({**s.given, s.variable: s.state}[name] for name in names)
        assert factor.table[entry] == s.value
        assert s.kind == "exact"
        below, above = (1e-3 if rival is not None else math.inf for rival in s.rivals)
        for p, is_best in (
            (s.low + 1e-6, True),
            (s.high - 1e-6, True),
            (s.low - below, False),
            (s.high + above, False),
        ):
            if not 1e-6 <= p <= 1.0 - 1e-6:
                continue
            table = factor.table.copy()
            table[entry[:-1]] *= (1.0 - p) / (1.0 - table[entry])
            table[entry] = p
            cpts = [*network.cpts[:place], cm.Factor(factor.scope, table), *network.cpts[place + 1 :]]
            moved = cm.DecisionNetwork(network.domain, cpts, network.decisions, network.utilities)
            lead = best(moved, seen, evidence) - value(moved, policy, evidence)
            assert lead <= 1e-8 if is_best else lead > 0.0


def test_the_oil_wildcatter(monkeypatch):
    policy = cm.decide(cm.read("examples/oil.xdsl"))
    assert policy.expected_utility == pytest.approx(22.5)
    first = cm.strength_of_assumptions(policy, "Oil")[0]
    assert (first.state, first.given) == ("dry", {})
    assert str(first) == "P(Oil=dry) = 0.5 in [0.4576, 0.6769] (proved: exact)"


def limited_chain(n):
    """Return a chain of states that decisions of limited memory move."""
    rng = np.random.default_rng(0)
    v, d = [f"v{k}" for k in range(n)], [f"d{k}" for k in range(n)]
    parents = {v[0]: []} | {v[k]: [v[k - 1], d[k - 1]] for k in range(1, n)}
    tables = {name: rng.dirichlet(np.ones(2), [2] * len(own)) for name, own in parents.items()}
    utilities = {f"u{k}": ([v[k], d[k], d[k - 1]], rng.normal(size=(2, 2, 2))) for k in range(1, n)}
    seen = {name: [v[k]] for k, name in enumerate(d)}
    return cm.DecisionNetwork.from_cpts({key: [0, 1] for key in [*v, *d]}, parents, tables, seen, utilities, True)


def test_ctrl_c_ends_one_search_with_its_bounds_and_many_searches_at_once(monkeypatch):
    network = limited_chain(8)
    whole, moments = cm.decide(network), []

    def interrupt(moment):
        moments.append(moment)
        signal.raise_signal(signal.SIGINT)

    found = cm.decide(network, progress=interrupt)
    assert len(moments) == 1
    assert found.status == "interrupted"
    assert found.expected_utility <= whole.upper_bound
    assert found.upper_bound > whole.upper_bound
    monkeypatch.setattr(decide, "decide", lambda *_, **__: found)
    with pytest.raises(KeyboardInterrupt):
        cm.value_of_information(network, "d3")


def test_the_worth_has_two_sides_where_a_search_is_cut_short():
    network = limited_chain(6)
    (worth,) = cm.value_of_information(network, "d5", "v2").values()
    (rough,) = cm.value_of_information(network, "d5", "v2", time_limit=0.0).values()
    assert rough.low <= worth.low <= worth.high <= rough.high
    assert rough.low < rough.high
