"""Proofs of policies: honest ones are accepted, forged and damaged ones are rejected in a sentence."""

from __future__ import annotations

import numpy as np
import pytest

import certimap as cm
from certimap.checker import Proof, policies
from certimap.decisions.policy import Policy
from certimap_lab.volume.decisions import random_decisions

MORE = 0.01


def cases(first, number, is_limited=False):
    """Yield random diagrams with possible evidence, their policies, and the proofs of these."""
    k = first
    while number:
        case = random_decisions(np.random.default_rng([23, k]))
        k += 1
        if case.total and case.network.limited_memory == is_limited:
            number -= 1
            yield case, cm.decide(case.network, case.evidence)


@pytest.fixture
def proved(tmp_path):
    """Return a function that writes and reads the proof of a policy."""

    def written(policy):
        policy.proof(tmp_path / "policy.npz")
        return Proof.read(tmp_path / "policy.npz")

    return written


def forged(proof, claim=None, arrays=None, **meta):
    """Return a proof with other entries."""
    whole = {**proof.meta, **meta, "claim": {**proof.meta["claim"], **(claim or {})}}
    return Proof(whole, {**proof.arrays, **(arrays or {})})


@pytest.mark.parametrize("seed", range(0, 400, 40))
def test_honest_proofs_are_accepted(seed, proved):
    for case, policy in cases(seed, 8):
        verdict = cm.check(case.network, proved(policy))
        assert verdict.accepted, verdict.message
        assert verdict.message.startswith("accepted: the policy brings at least")


@pytest.mark.parametrize("seed", range(0, 400, 40))
def test_limited_memory_is_bounded_by_recall(seed, proved):
    for case, policy in cases(seed, 8, is_limited=True):
        proof = proved(policy)
        verdict = cm.check(case.network, proof)
        assert verdict.accepted or "with recall" in verdict.message
        own = float(case.value_of(policy))
        assert cm.check(case.network, forged(proof, {"upper_bound": 1000.0})).accepted
        wrong = forged(proof, {"upper_bound": 1000.0, "expected_utility": own + 1e-3})
        assert "is claimed" in cm.check(case.network, wrong).message


@pytest.mark.parametrize("seed", range(1000, 1200, 40))
@pytest.mark.parametrize("is_limited", [False, True])
def test_false_claims_are_rejected(seed, is_limited, proved):
    for case, policy in cases(seed, 8, is_limited):
        proof, best = proved(policy), float(case.best)
        more = max(abs(policy.expected_utility), 1.0) * MORE
        for claim in (
            {"expected_utility": policy.expected_utility + more},
            {"upper_bound": best - 1e-5},
            {"upper_bound": policy.expected_utility - more},
            {"upper_bound": float("nan")},
            {"expected_utility": float("nan")},
            {"expected_utility": float("-inf")},
            {"tolerance": 1e-3},
            {"tolerance": 0.0},
        ):
            assert not cm.check(case.network, forged(proof, claim)).accepted, claim


@pytest.mark.parametrize("seed", range(2000, 2200, 40))
def test_other_policies_do_not_have_the_old_value(seed, proved):
    n_worse = 0
    for case, policy in cases(seed, 8):
        proof = proved(policy)
        choices, at = proof.arrays["choices"], 0
        for name, table in policy.tables.items():
            for row in range(len(table.values.reshape(-1, len(table.options)))):
                for option in range(len(table.options)):
                    values = table.values.copy().reshape(-1, len(table.options))
                    values[row] = np.where(np.arange(len(table.options)) == option, np.inf, -np.inf)
                    tables = {**policy.tables, name: table._replace(values=values.reshape(table.values.shape))}
                    other = Policy(**{**policy.__dict__, "tables": tables})
                    changed = choices.copy()
                    changed[at + row] = option
                    verdict = cm.check(case.network, forged(proof, arrays={"choices": changed}))
                    own = float(case.value_of(other))
                    is_worse = own < policy.expected_utility - 1e-5
                    n_worse += is_worse
                    if is_worse:
                        assert not verdict.accepted
            at += len(values)
    assert n_worse > 3


def test_damage_is_rejected(proved):
    for case, policy in cases(3000, 12):
        if not policy.tables:
            continue
        network, proof = case.network, proved(policy)
        choices, weights = proof.arrays["choices"], proof.arrays["log_weights"]
        arrays = [
            {"choices": choices[:-1]},
            {"choices": np.append(choices, choices)},
            {"choices": np.where(choices == choices.max(), 7, choices)},
            {"choices": choices - 1 - choices.max()},
            {"choices": np.full(choices.shape, np.nan)},
            {"log_weights": weights[:-1]},
            {"log_weights": weights * np.nan},
            {"log_weights": np.full(weights.shape, -np.inf)},
            {"log_weights": weights[None]},
        ]
        for wrong in arrays:
            verdict = cm.check(network, forged(proof, arrays=wrong))
            assert not verdict.accepted, wrong
            assert verdict.message.startswith("rejected: ")
        for name in ("claim", "policy", "model"):
            left = {key: value for key, value in proof.meta.items() if key != name}
            assert not cm.check(network, Proof(left, proof.arrays)).accepted
        for name in proof.arrays:
            left = {key: value for key, value in proof.arrays.items() if key != name}
            assert not cm.check(network, Proof(proof.meta, left)).accepted
        first, *_ = policy.tables
        seen = proof.meta["policy"]
        for looks in ({}, {**seen, first: [*seen[first], first]}, {"nobody": []}, {**seen, first: "no list"}):
            assert not cm.check(network, forged(proof, policy=looks)).accepted
        other = next(cases(3100, 1))[0].network
        assert "another model" in cm.check(other, proof).message


def test_evidence_must_be_known_before_decisions(proved):
    states, tables = {"d": [0, 1], "x": [0, 1]}, {"x": [[0.9, 0.1], [0.2, 0.8]]}
    network = cm.DecisionNetwork.from_cpts(states, {"x": ["d"]}, tables, {"d": []}, {"u": (["x"], [0.0, 1.0])})
    proof = proved(cm.decide(network))
    assert cm.check(network, proof).accepted
    weights = np.array([0.0, 0.0, -np.inf, 0.0])
    for wrong in (weights, np.array([0.0, -1.0, 0.0, 0.0])):
        assert "the evidence is on" in cm.check(network, forged(proof, arrays={"log_weights": wrong})).message
    ruled_out = forged(proof, arrays={"log_weights": np.array([0.0, -np.inf, 0.0, 0.0])})
    assert "takes an option of 'd' ruled out" in cm.check(network, ruled_out).message


def test_a_policy_looks_at_no_more_than_is_known(proved):
    states = {"x": [0, 1], "d": [0, 1]}
    utilities = {"u": (["x", "d"], [[1.0, 0.0], [0.0, 1.0]])}
    network = cm.DecisionNetwork.from_cpts(states, {}, {"x": [0.5, 0.5]}, {"d": []}, utilities)
    proof, choices = proved(cm.decide(network)), np.array([0, 1], np.int32)
    claim = {"expected_utility": 1.0, "upper_bound": 1.0}
    verdict = cm.check(network, forged(proof, claim, {"choices": choices}, policy={"d": ["x"]}))
    assert "what is not known" in verdict.message


def test_large_tables_are_refused(proved, monkeypatch):
    case, policy = next(cases(0, 1))
    proof = proved(policy)
    monkeypatch.setattr(policies, "MOST_ENTRIES", 0)
    assert "which holds 0 entries" in cm.check(case.network, proof).message
