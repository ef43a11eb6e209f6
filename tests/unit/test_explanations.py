"""Explanations beside brute force: leads, swings, and ranges of table entries."""

from __future__ import annotations

import itertools
import json
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import certimap as cm
from certimap.errors import QueryError
from certimap.explanations import questions
from certimap.explanations.questions import TableEntry


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
        p = math.exp(float(network.log_prob(np.array([point], np.int16))[0]))
        for name, value in evidence.items():
            p *= value["likelihood"][full[name]] if isinstance(value, dict) else float(full[name] in {value})
        key = tuple(full[n] for n in asked)
        total[key] = total.get(key, 0.0) + p
    return sorted(total.items(), key=lambda item: -item[1])


def soft_evidence(network, seed: int) -> dict[str, object]:
    """Hard evidence on d, and likelihoods, some above 1 or 0, on queried and hidden variables."""
    rng = np.random.default_rng([seed, 1])
    found: dict[str, object] = {"d": 0}
    for name in "abc":
        weights = rng.gamma(1.0, 10.0 ** rng.integers(-1, 3), int(network.domain.n_states[ord(name) - ord("a")]))
        if rng.random() < 0.3:
            weights[1:] = weights[0]  # the same of all states but one, or of all
        if rng.random() < 0.2:
            weights[0] = 0.0
        if rng.random() < 0.7 and np.count_nonzero(weights) > 1:
            found[name] = {"likelihood": weights.tolist()}
    return found


@given(st.integers(0, 2**20))
@settings(max_examples=12)
def test_leads_and_swings_are_those_of_enumeration(seed):
    network = random_network(seed)
    evidence = soft_evidence(network, seed)
    found = cm.explain(network, ["a", "c"], evidence, n_entries=0)
    order = ranked(network, ("a", "c"), evidence)
    assert tuple(found.answer.assignment.values()) == order[0][0]
    assert found.lead.nats == pytest.approx(math.log(order[0][1] / order[1][1]), abs=1e-8)
    assert found.log_odds_free == found.lead.nats
    best = ranked(network, ("a", "c"), {k: v for k, v in evidence.items() if k != "d"})[0][0]
    expected = {n: s for n, s, old in zip("ac", best, order[0][0], strict=True) if s != old}
    assert found.removed[0].changes == expected
    changing = {s.state: tuple(s.changes.items()) for s in found.changed}
    for state in range(1, int(network.domain.n_states[3])):
        other = ranked(network, ("a", "c"), evidence | {"d": state})[0][0]
        assert (state in changing) == (other != order[0][0])


@given(st.integers(0, 2**20))
@settings(max_examples=12)
def test_ranges_of_entries_are_exact(seed):
    network = random_network(seed)
    evidence = soft_evidence(network, seed)
    found = cm.explain(network, ["a", "c"], evidence, n_entries=2)
    answer = tuple(found.answer.assignment.values())
    for t in found.tolerances:
        assert t.kind == "exact"
        v = network.domain.index(t.variable)
        names = [network.domain.names[p] for p in network.parents[v]]
        row = tuple(int(t.given[n]) for n in names)
        assert t.value == pytest.approx(float(network.factors[v].table[(*row, t.state)]))
        assert t.low <= t.value <= t.high
        entry = TableEntry(v, row, int(t.state))
        for theta in np.linspace(0.002, 0.998, 40):
            moved = entry.moved(network, float(theta))
            best, *others = ranked(moved, ("a", "c"), evidence)
            if abs(theta - t.low) > 1e-6 and abs(theta - t.high) > 1e-6 and best[1] > others[0][1] * (1 + 1e-9):
                assert (best[0] == answer) == (t.low < theta < t.high), (t, theta)


def test_a_runner_up_that_is_impossible_is_no_rival():
    network = cm.BayesianNetwork.from_cpts(
        {"a": (0, 1), "b": (0, 1)}, {"b": ["a"]}, {"a": [0.7, 0.3], "b": [[0.9, 0.1], [1.0, 0.0]]}
    )
    found = cm.explain(network, ["a"], {"b": 1})
    assert found.lead.nats == math.inf
    assert found.tolerances
    assert {(t.low, t.high) for t in found.tolerances} == {(0.0, 1.0)}


def test_a_likelihood_of_a_queried_variable_counts():
    network = cm.BayesianNetwork.from_cpts(
        {"a": (0,), "b": (0, 1, 2)}, {"b": ["a"]}, {"a": [1.0], "b": [[0.25, 0.5, 0.25]]}
    )
    found = cm.explain(network, ["a", "b"], {"b": {"likelihood": [0.24, 0.37, 0.61]}})
    ends = {t.state: (t.low, t.high) for t in found.tolerances}
    of_one = 0.37 * 0.5 / 0.75
    assert ends[2] == pytest.approx((0.0, of_one / (of_one + 0.61)))
    above = cm.explain(network, ["a", "b"], {"b": {"likelihood": [3.0, 1.0, 2.0]}})
    assert {t.state: round(t.high, 6) for t in above.tolerances} == {0: 1.0, 1: 0.6}


def test_an_answer_that_is_still_a_best_one_has_not_changed():
    """Ties, and peaks of densities that two searches find at places next to each other."""
    network = cm.BayesianNetwork.from_cpts(
        {"a": (0, 1), "d": (0, 1)}, {"d": ["a"]}, {"a": [0.5, 0.5], "d": [[0.4, 0.6], [0.6, 0.4]]}
    )
    found = cm.explain(network, ["a"], {"d": 1})
    assert found.answer.assignment == {"a": 0}
    assert found.removed[0].changes == {}
    assert found.changed[0].changes == {"a": 1}
    assert cm.explain(network, ["a"], {"d": 0}).removed[0].changes == {}
    build = cm.CircuitBuilder(cm.Domain([cm.Real("x"), cm.Categorical("s", (0, 1)), cm.Real("n")]))
    parts = [
        build.product([build.gaussian(0, 0.3, 1.0), build.categorical(1, logs), build.real("poisson", 2, 3.0)])
        for logs in ([math.log(0.2), math.log(0.8)], [math.log(0.6), math.log(0.4)])
    ]
    build.sum(parts, [math.log(0.5)] * 2)
    found = cm.explain(build.build(), ["x", "n"], {"s": 1}, time_limit=600)
    assert [swing.changes for swing in (*found.removed, *found.changed)] == [{}]


def test_any_entry_may_move_by_the_lead_in_log_odds():
    network = random_network(5)
    found = cm.explain(network, ["a"], {"d": 0}, n_entries=100)
    for t in found.tolerances:
        odds = math.log(t.value / (1 - t.value))
        for end in (t.low, t.high):
            if 0.0 < end < 1.0:
                assert abs(math.log(end / (1 - end)) - odds) >= found.log_odds_free - 1e-6


def test_runners_up_and_swings_keep_to_the_constraints():
    states = {name: ["no", "yes"] for name in ("a", "b", "c", "bell")}
    tables = {
        "a": [0.4, 0.6],
        "b": [0.3, 0.7],
        "c": [0.2, 0.8],
        "bell": [[[[0.1, 0.9]] * 2] * 2, [[[0.9, 0.1]] * 2] * 2],
    }
    model = cm.BayesianNetwork.from_cpts(states, {"bell": ["a", "b", "c"]}, tables)
    rule = cm.AtMost(1, ["a", "b", "c"], "yes")
    found = cm.explain(model, ["a", "b", "c"], {"bell": "yes"}, n_entries=0, constraints=[rule])
    assert found.answer.assignment == {"a": "no", "b": "no", "c": "yes"}
    assert found.lead is not None
    assert found.lead.runner_up == {"a": "no", "b": "yes", "c": "no"}
    assert found.lead.nats == pytest.approx(np.log(0.8 * 0.3 / (0.7 * 0.2)))
    assert all(
        sum(label == "yes" for label in ({**found.answer.assignment, **s.changes}).values()) <= 1
        for s in found.removed
    )
    assert f"Under {rule!r}" in str(found)


def test_impossible_changes_and_single_answers():
    network = cm.BayesianNetwork.from_cpts(
        {"a": ("x", "y"), "b": (0, 1)}, {"b": ["a"]}, {"a": [0.7, 0.3], "b": [[1.0, 0.0], [1.0, 0.0]]}
    )
    found = cm.explain(network, ["a"], {"b": 0})
    assert found.changed == []
    assert "none: without any one of them it stays" in str(found)
    assert json.loads(json.dumps(found.to_dict()))["lead"]["runner_up"] == {"a": "y"}
    with pytest.raises(QueryError, match="expected a whole number from 0"):
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


def test_a_result_explains_itself_and_asks_nothing_twice(monkeypatch):
    network, given = random_network(3), {"d": 0}
    result = cm.map_query(network, ["a", "c"], given, epsilon=0, top_k=2, rng=0)
    given.clear()  # theirs to change
    asked = []

    class Seen(questions.Session):
        def answer(self, ask, *more):
            asked.append((self.request.top_k, dict(ask()[1])))
            return super().answer(ask, *more)

    monkeypatch.setattr(questions, "Session", Seen)
    found = result.explain(n_entries=0)
    assert found.answer is result
    assert found.superseded is None
    assert len(asked) == len(found.removed) + int(network.domain.n_states[3]) - 1  # swings alone
    asked.clear()
    assert cm.explain(network, ["a", "c"], {"d": 0}, n_entries=0).lead == found.lead
    assert asked[:2] == [(2, {"d": 0}), (None, {})]


def test_results_of_rows_explain_themselves():
    pd = pytest.importorskip("pandas")
    network = random_network(4)
    rows = cm.map_query(network, ["a"], pd.DataFrame({"d": [0, 1]}), rng=0)
    for result, state in zip(rows, (0, 1), strict=True):
        one = cm.explain(network, ["a"], {"d": state}, n_entries=0)
        assert result.explain(n_entries=0).beside() == one.beside()


def test_pickles_hold_query_and_evidence_but_no_model():
    network = random_network(3)
    result = cm.map_query(network, ["a"], {"d": 1}, rng=0)
    text = pickle.dumps(result)
    assert b"Network" not in text
    back = pickle.loads(text)
    assert back == result
    assert "origin" not in result.to_dict()
    with pytest.raises(QueryError, match=r"does not hold its model; pass it: result.explain\(model="):
        back.explain()
    assert back.explain(model=network, n_entries=0).beside() == result.explain(n_entries=0).beside()
    other = replace(result, origin=None)
    assert other.explain(model=network, evidence={"d": 1}, n_entries=0).lead == result.explain(n_entries=0).lead


def test_posteriors_have_fixed_evidence():
    posterior = cm.condition(random_network(3), ["a"], {"d": 1}, solver="pac")
    with pytest.raises(QueryError, match=r"whose evidence is fixed; expected a model"):
        cm.map_query(posterior, rng=0).explain()


def test_an_answer_that_is_not_the_best_gives_way():
    network = random_network(7)
    result = cm.map_query(network, ["a", "c"], {"d": 0}, epsilon=0, top_k=3, rng=0)
    worse, log_prob = result.top[-1]
    guess = replace(
        result, assignment=worse, log_prob=log_prob, top=None,
        certificate=replace(result.certificate, kind=cm.CertificateKind.NONE),
    )  # fmt: skip
    found = guess.explain(n_entries=1)
    assert found.superseded == worse
    assert found.answer.assignment == result.assignment
    assert found.lead.nats == pytest.approx(result.log_prob - result.top[1][1])
    assert str(found).startswith("Another assignment is more probable than the one to be explained")
    tied = replace(guess, log_prob=result.log_prob).explain(n_entries=0)
    assert tied.superseded is None
    assert tied.lead.nats == 0.0


def test_an_interrupt_ends_all_questions(monkeypatch):
    network = random_network(3)
    cut = replace(cm.map_query(network, ["a"], {"d": 1}, rng=0), status=cm.Status.INTERRUPTED)
    monkeypatch.setattr(questions.Session, "answer", lambda *_: cut)
    with pytest.raises(KeyboardInterrupt):
        cm.explain(network, ["a"], {"d": 1})


def test_an_answer_without_its_model_is_explained():
    asia = cm.read("examples/asia.bif").do(smoke="no")
    alone = pickle.loads(pickle.dumps(cm.map_query(asia, ["lung"], {"xray": "yes"})))
    assert "The answer\n" in str(cm.explain(asia, ["lung"], {"xray": "yes"}, answer=alone, n_entries=0))
