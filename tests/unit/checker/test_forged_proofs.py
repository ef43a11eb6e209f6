"""Proofs forged for wrong answers: each of these was accepted once, or looks as if it might be."""

from __future__ import annotations

import math

import numpy as np
import pytest

import certimap as cm
from certimap.checker import Proof
from certimap.checker.verdict import shown
from certimap.io.native import encoded_label
from certimap_lab.proofs import random_case, solved, states_of


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


@pytest.mark.slow
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
    leaves = [build.categorical(v, log_weights=[1.7e308, 0.0]) for v in range(2)]
    build.product(leaves)
    model = build.build(normalised=False)
    meta = {
        "model": cm.io.native.fingerprint(model),
        "answer": dict.fromkeys(model.domain.names, model.domain.variables[0].states[0]),
        "claim": {"kind": "exact", "epsilon": 0.0, "delta": 0.0, "tolerance": 1e-9, "log_joint": None},
        "method": "enumeration",
    }
    verdict = cm.check(model, Proof(meta, {"log_weights": np.zeros(4)}))
    assert verdict.message == "rejected: the circuit has a log that is no number of at most 1e+100 in size"


def lacking():
    """Return a circuit in which one of two answers does not mention the variable "v": it is 1 for all of it."""
    build = cm.CircuitBuilder(cm.Domain([cm.Categorical(name, "ab") for name in "qv"]))
    first = build.product([build.indicator(0, 0), build.categorical(1, log_weights=[math.log(0.5)] * 2)])
    build.sum([first, build.indicator(0, 1)], log_weights=[math.log(0.9), math.log(0.1)])
    return build.build(normalised=False)


@pytest.mark.parametrize("log_weight", [0.0, -7.0, 7.0])
def test_a_weight_of_the_only_state_left_counts_where_a_part_lacks_the_variable(log_weight):
    model = lacking()
    evidence = {"v": {"log_likelihood": [log_weight, -math.inf]}}
    result = cm.map_query(model, ["q"], evidence, epsilon=0, delta=0, proof=True)
    assert result.assignment == {"q": "a"}
    assert cm.check(model, result.proof, exact=True).message.endswith("enumeration in exact numbers agrees")
    meta = {**result.proof.meta, "answer": {"q": "b"}, "method": "enumeration"}
    meta["claim"] = {**meta["claim"], "log_joint": None}
    assert not cm.check(model, Proof(meta, {"log_weights": result.proof.arrays["log_weights"]})).accepted


def test_what_is_accepted_is_named(examples):
    model = cm.read(examples / "asia.bif")
    evidence = {"xray": "yes", "asia": {"likelihood": [1, 0.5]}, "smoke": {"states": ["yes", "no"]}}
    result = cm.map_query(model, ["lung", "bronc"], evidence, epsilon=0, delta=0, proof=True, top_k=2)
    lines = cm.check(model, result.proof).asked.splitlines()
    assert lines[0].startswith("answer: lung=no, bronc=no; lung=")
    assert lines[1] == "evidence: asia has the log likelihoods [0.0, -0.6931471805599453], xray = yes"
    assert lines[2] == "summed out: 5 of 8 variables"
    real = cm.CircuitBuilder(cm.Domain([cm.Real("x"), cm.Real("y"), cm.Categorical("c", ["a\x1b[2J", "b"])]))
    real.product(
        [real.gaussian(0, 0.0, 1.0), real.gaussian(1, 0.0, 1.0), real.categorical(2, log_weights=[0.0, -1.0])]
    )
    model = real.build(normalised=False)
    result = cm.map_query(model, ["c"], {"x": 0.5, "y": (0.0, 1.0)}, epsilon=0, delta=0, proof=True)
    asked = cm.check(model, result.proof).asked
    assert asked == 'answer: c="a\\u001b[2J"\nevidence: x = 0.5, y in [0.0, 1.0]\nsummed out: 1 of 3 variables'


@pytest.mark.parametrize(
    "change",
    [
        {"seed": "1\x1b[2Kaccepted"},
        {"claim": {"kind": "exact\x1b[2J"}},
        {"certified": {"kind": "exact\naccepted: no assignment", "epsilon": 0.0}},
        {"certified": {"kind": "exact", "epsilon": "nought"}},
        {"certified": []},
    ],
)
def test_what_a_file_says_is_not_printed_as_it_stands(change, examples):
    model = cm.read(examples / "asia.bif")
    solver, delta = ("pac", 0.05) if "seed" in change else ("auto", 0.0)
    proof = cm.map_query(model, solver=solver, epsilon=0.5 * delta, delta=delta, rng=3, proof=True).proof
    verdict = cm.check(model, Proof({**proof.meta, **change}, proof.arrays))
    assert not verdict.accepted
    assert verdict.message.isprintable()


@pytest.mark.parametrize("label", [[[[0]]], {"a": 1}, None, 10**400, "yes\ud800"])
def test_labels_of_any_form_are_rejected_in_a_sentence(label, examples):
    model = cm.read(examples / "asia.bif")
    proof = cm.map_query(model, epsilon=0, delta=0, proof=True).proof
    for wrong_label in (label, nested(100_000)):
        meta = {**proof.meta, "answer": {**proof.meta["answer"], "lung": wrong_label}}
        assert cm.check(model, Proof(meta, proof.arrays)).message.startswith("rejected: ")


def nested(depth):
    found = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize(
    ("x", "digits", "text"),
    [
        (1e-9, 3, "1e-09"),
        (0.0015004, 3, "0.00151"),
        (-1184.8046444, 9, "-1184.80464"),
        (0.3, 3, "0.3"),
        (0.0, 3, "0"),
    ],
)
def test_a_bound_is_printed_no_lower_than_it_is(x, digits, text):
    assert shown(x, digits) == text
    assert float(shown(x, digits)) >= x


def test_enumeration_judges_a_bound_by_the_bound(examples):
    model = cm.read(examples / "asia.bif")
    result = cm.map_query(model, epsilon=0, delta=0, proof=True)
    claim = {**result.proof.meta["claim"], "kind": "bound", "log_joint": None}
    given = {"log_weights": result.proof.arrays["log_weights"], "steps": np.array([0]), "shifts": np.zeros(0)}
    given["kept"] = np.zeros(0, np.uint8)
    given["order"] = np.zeros(0, np.int32)
    worse = {name: ("no" if label == "yes" else "yes") for name, label in result.proof.meta["answer"].items()}
    worse |= {"either": "yes"}
    for log_upper, is_true in ((100.0, True), (result.log_joint + 0.01, False)):
        meta = {
            **result.proof.meta,
            "method": "steps",
            "answer": worse,
            "claim": {**claim, "log_upper": log_upper},
        }
        verdict = cm.check(model, Proof(meta, given), exact=True)
        assert verdict.accepted == is_true, verdict.message


def test_logs_that_cancel_set_no_two_answers_apart():
    """Tables e^690 and e^-690: logs of entries that differ by 4e-14 are equal, and their sums far smaller."""
    rng, tables = np.random.default_rng(0), []
    while len(tables) < 40:
        large = float(np.exp((690.0 if len(tables) % 2 else -690.0) + rng.uniform(-9.0, 9.0)))
        less = large * (1.0 - 4e-14)
        if math.log(large) == math.log(less):
            tables.append([[large, large / 2], [large / 2, less]])
    names = [f"v{k}" for k in range(41)]
    factors = [cm.Factor((0, k + 1), np.array(table)) for k, table in enumerate(tables)]
    model = cm.MarkovNetwork(cm.Domain([cm.Categorical(name, "ab") for name in names]), factors)
    claim = {"kind": "exact", "epsilon": 0.0, "delta": 0.0, "tolerance": 1e-13, "log_joint": None}
    meta = {"model": cm.io.native.fingerprint(model), "method": "steps", "claim": claim}
    nothing = {"shifts": np.zeros(0), "kept": np.zeros(0, np.uint8), "order": np.zeros(0, np.int32)}
    nothing["log_weights"] = np.zeros(82)
    proof = Proof({**meta, "answer": dict.fromkeys(names, "b")}, {"steps": np.array([0]), **nothing})
    assert not cm.check(model, proof).accepted
