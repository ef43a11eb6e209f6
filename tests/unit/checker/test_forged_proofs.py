"""Proofs forged for wrong answers: each of these was accepted once, or looks as if it might be."""

from __future__ import annotations

import math

import numpy as np
import pytest

import certimap as cm
from certimap.checker import Proof
from certimap.io.labels import encoded_label
from certimap.testing.proofs import random_case, solved, states_of


def wrong(case):
    """Return the claim that a case's least probable joint state is its most probable one, and its evidence."""
    logs = np.where(np.isfinite(case.log_values), case.log_values, np.inf)
    assert logs.min() < case.log_values.max() - 1e-3
    labels = [states_of(case.model.domain, name) for name in case.variables]
    point = np.unravel_index(int(np.argmin(logs)), [len(states) for states in labels])
    answer = {
        name: encoded_label(states[int(s)], name)
        for name, states, s in zip(case.variables, labels, point, strict=True)
    }
    proof = solved(case, "auto").proof
    claim = {**proof.meta["claim"], "kind": "exact", "epsilon": 0.0, "delta": 0.0, "log_joint": None}
    return {**proof.meta, "answer": answer, "others": [], "claim": claim}, proof.arrays["log_weights"]


SEEDS = [0, 1, 2, 3, 4, 6, 7]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["exact", "epsilon"])
def test_draws_prove_nothing_that_is_certain(seed, kind):
    """Draws are not seen; where nothing is open any more, as the file says, they would prove anything."""
    case = random_case(seed)
    meta, log_weights = wrong(case)
    meta = {**meta, "method": "draws", "rule": "sharp", "claim": {**meta["claim"], "kind": kind}}
    draws = {"log_open": np.array([-1e9]), "log_closed": np.array([-np.inf]), "counts": np.array([1])}
    verdict = cm.check(case.model, Proof(meta, {"log_weights": log_weights, **draws}))
    assert not verdict.accepted
    assert "needs the method 'draws'" in verdict.message


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("method", ["enumeration", "residual", "sets", "boxes"])
@pytest.mark.parametrize("weight", [1.7e308, 9e307, -1.7e308, math.inf, math.nan])
def test_evidence_that_overflows_is_refused(seed, method, weight):
    """An infinite sum makes a threshold that is no number, and nothing is above such a one."""
    case = random_case(seed)
    meta, log_weights = wrong(case)
    arrays = {
        "log_weights": np.full_like(log_weights, weight),
        "points": np.zeros((1, len(case.variables)), np.int64),
        "splits": np.array([-1], np.int32),
        "kept": np.zeros((0, 1), np.uint8),
    }
    verdict = cm.check(case.model, Proof({**meta, "method": method}, arrays))
    assert verdict.message == (
        "rejected: the proof's evidence has a log that is no number of at most 1e+100 in size"
    )


def test_a_model_that_overflows_is_refused():
    build = cm.CircuitBuilder(cm.Domain.of_sizes([2, 2]))
    leaves = [build.categorical(v, [1.7e308, 0.0]) for v in range(2)]
    build.product(leaves)
    model = build.build()
    meta = {
        "model": cm.io.native.fingerprint(model),
        "answer": dict.fromkeys(model.domain.names, model.domain.variables[0].states[0]),
        "claim": {"kind": "exact", "epsilon": 0.0, "delta": 0.0, "tolerance": 1e-9, "log_joint": None},
        "method": "enumeration",
    }
    verdict = cm.check(model, Proof(meta, {"log_weights": np.zeros(4)}))
    assert verdict.message == "rejected: the circuit has a log that is no number of at most 1e+100 in size"
