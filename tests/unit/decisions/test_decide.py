"""`decide` against every policy in exact arithmetic, and what a policy tells."""

from __future__ import annotations

import math
from contextlib import nullcontext

import numpy as np
import pytest

import certimap as cm
from certimap.certify.bounds import certificate_between
from certimap.core.result import CertificateKind, Status
from certimap.decisions import search
from certimap.errors import ModelError, QueryError
from certimap_lab.volume.decisions import judge_decisions, random_decisions, searched_in_steps

STATES = {"W": ["dry", "rain"], "F": ["good", "bad"], "T": ["leave", "carry"]}
TABLES = {"W": [0.7, 0.3], "F": [[0.8, 0.2], [0.25, 0.75]]}


def umbrella(utilities=None):
    joy = {"joy": (["W", "T"], [[100, 60], [0, 70]])}
    return cm.DecisionNetwork.from_cpts(STATES, {"F": ["W"]}, TABLES, {"T": ["F"]}, utilities or joy)


@pytest.mark.parametrize("way", [nullcontext(), searched_in_steps(), searched_in_steps(1.0)])
def test_no_policy_is_better_and_none_is_worse_than_claimed(way):
    with way:
        for k in range(15):
            case = random_decisions(np.random.default_rng([11, k]))
            assert list(judge_decisions(case, tolerance=0.0)) == []


def test_the_umbrella():
    policy = cm.decide(umbrella())
    assert policy.expected_utility == pytest.approx(80.15, rel=1e-12)
    assert policy.certificate.kind is CertificateKind.EXACT
    assert policy.status is Status.CERTIFIED
    assert [policy.choose("T", {"F": label}) for label in ("good", "bad")] == ["leave", "carry"]
    np.testing.assert_allclose(policy.tables["T"].at({"F": "bad"}), [14 / 0.365, 24.15 / 0.365])
    assert "given F='bad': T='carry', 27.8082 ahead of 'leave'" in policy.explain("T", {"F": "bad"})
    assert "F=bad   -> carry" in repr(policy)
    assert "exact" in repr(policy)
    frame = policy.to_frame()
    assert frame["choice"].tolist() == ["leave", "carry"]
    assert frame["lead"].min() == pytest.approx(27.007874)


def test_shifts_are_undone():
    shifted = {"joy": (["W", "T"], [[-900, -940], [-1000, -930]]), "rent": ([], -7.0)}
    policy = cm.decide(umbrella(shifted))
    assert policy.expected_utility == pytest.approx(80.15 - 1007.0, rel=1e-12)
    assert policy.tables["T"].at({"F": "bad"})[1] == pytest.approx(24.15 / 0.365 - 1000.0)


def test_evidence_and_made_decisions():
    assert cm.decide(umbrella(), {"F": "bad"}).expected_utility == pytest.approx(24.15 / 0.365)
    made = cm.decide(umbrella(), {"T": "leave"})
    assert made.expected_utility == pytest.approx(70.0)
    assert made.tables == {}
    assert cm.decide(umbrella(), {"T": {"states": ["leave"]}}).choose("T", {"F": "bad"}) == "leave"
    with pytest.raises(QueryError, match="likelihood"):
        cm.decide(umbrella(), {"T": {"likelihood": [0.5, 1.0]}})
    caused = cm.DecisionNetwork.from_cpts(STATES, {"F": ["T"]}, {**TABLES, "F": np.eye(2)}, {"T": []}, {})
    with pytest.raises(QueryError, match="'F' is observed, and an open decision"):
        cm.decide(caused, {"F": "bad"})
    assert cm.decide(caused, {"F": "bad", "T": "carry"}).expected_utility == pytest.approx(0.0, abs=1e-300)
    with pytest.raises(cm.ImpossibleEvidence):
        cm.decide(caused, {"F": "bad", "T": "leave"})


def test_values_count_the_utilities_that_a_decision_bears_on():
    states, costs = {"a": [0, 1], "b": [0, 1]}, {"x": (["a"], [-5.0, -3.0]), "y": (["b"], [-100.0, -90.0])}
    policy = cm.decide(cm.DecisionNetwork.from_cpts(states, {}, {}, {"a": [], "b": []}, costs))
    assert policy.tables["a"].values.tolist() == [-5.0, -3.0]
    assert policy.tables["b"].values.tolist() == [-100.0, -90.0]
    free = cm.DecisionNetwork.from_cpts(states, {}, {}, {"a": [], "b": []}, {})
    assert cm.decide(free, {"b": {"states": [1]}}).choose("b") == 1


def test_no_time_still_gives_true_sides():
    policy = cm.decide(umbrella(), time_limit=0.0)
    assert policy.status is Status.TIME_LIMIT
    assert policy.certificate.kind is CertificateKind.NONE
    assert 0.0 >= policy.expected_utility > -1e-9
    assert 100.0 <= policy.upper_bound < 100.0 + 1e-9
    assert "NOT CERTIFIED" in repr(policy)


def test_a_plan_beyond_memory_gives_way_to_smaller_ones():
    hidden = [f"x{i}" for i in range(9)]
    states = {"seen": [0, 1], **dict.fromkeys(hidden, range(4)), "a": [0, 1]}
    tables = {"seen": np.full([4] * 9 + [2], 0.5), **{key: [0.1, 0.2, 0.3, 0.4] for key in hidden}}
    pay = {"u": (["x0", "a"], [[1.0, -1.0], [-1.0, 1.0], [2.0, 0.0], [0.0, 3.0]])}
    network = cm.DecisionNetwork.from_cpts(states, {"seen": hidden}, tables, {"a": ["seen"]}, pay)
    found, tight = cm.decide(network), cm.decide(network, max_memory=2**20)
    assert tight.status is Status.MEMORY_LIMIT
    assert tight.expected_utility <= found.expected_utility <= found.upper_bound <= tight.upper_bound < 2.5


def test_the_search_ends_where_it_may(monkeypatch):
    monkeypatch.setattr(search, "DIRECT", 0.0)
    told = []
    policy = cm.decide(umbrella(), tolerance=100.0, progress=told.append)
    assert policy.certificate.kind is CertificateKind.EPSILON
    assert told == policy.history
    assert policy.certificate.epsilon == pytest.approx((policy.upper_bound - policy.expected_utility) / 100.0)


def test_the_gap_is_judged_in_units():
    assert certificate_between(-1e-12, 1e-12, 0.0, 0.0, 0.0).kind is CertificateKind.NONE
    assert certificate_between(-1e-12, 1e-12, 0.01, 0.0, 0.0).kind is CertificateKind.EXACT
    assert certificate_between(-100.0, -99.0, 0.0, 0.01, 0.0).kind is CertificateKind.EPSILON
    assert certificate_between(-100.0, -98.0, 0.0, 0.01, 0.0).kind is CertificateKind.NONE
    assert certificate_between(0.0, 2.0, 1.0, 0.0, 2.0).epsilon == 1.0


def test_what_is_refused():
    with pytest.raises(ModelError, match="no decisions"):
        cm.decide(umbrella().chance_part({"T": "leave"}))
    for settings in ({"epsilon": -1.0}, {"tolerance": math.nan}):
        with pytest.raises(QueryError, match="not negative"):
            cm.decide(umbrella(), **settings)
    with pytest.raises(QueryError, match="no open decision"):
        cm.decide(umbrella()).choose("W")
    with pytest.raises(QueryError, match="'F' is not given"):
        cm.decide(umbrella()).choose("T")
