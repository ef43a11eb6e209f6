"""Proofs by relaxation: true bounds, accepted as written, and never accepted for a falsehood once altered."""

from __future__ import annotations

import math

import numpy as np
import pytest

import certimap as cm
from certimap.checker import Proof
from certimap.checker.models import Rejected
from certimap.checker.relaxed import Relaxation
from certimap.control import Control
from certimap.networks import Factor, MarkovNetwork
from certimap.proofs import reduced_network
from certimap.proofs.relaxations import Relaxed, covered, nuisance_first, problem_of
from certimap.query import make_query
from certimap.testing.proofs import random_case, solved


def reduced(case):
    return reduced_network(case.model, make_query(case.model.domain, case.variables, case.evidence))


def proof_of(case, result, arrays, **claim):
    """Return the proof of an answer by other arrays."""
    meta = {**result.proof.meta, "method": "relaxation"}
    meta["claim"] = {**meta["claim"], **claim}
    return Proof(meta, {"log_weights": result.proof.arrays["log_weights"], **arrays})


@pytest.mark.parametrize("bits", [0.0, 2.0, 22.0])
@pytest.mark.parametrize("seed", [1, 3, 5, 7, 9])
def test_the_bounds_of_relaxations_are_true(seed, bits):
    case = random_case(seed, hard=seed % 4 == 1)
    checked = reduced(case)
    problem = problem_of(checked)
    rng = np.random.default_rng(seed)
    found = Relaxed.of(problem, checked.queried, nuisance_first(problem, bits), bits)
    arrays = {**found.arrays, "shifts": found.arrays["shifts"] + rng.normal(0.0, 0.5, len(found.arrays["shifts"]))}
    relaxation = Relaxation.read(arrays, checked)
    log_evidence = cm.map_query(case.model, case.variables, case.evidence, rng=0).log_evidence
    sizes = [checked.sizes[v] for v in checked.queried]
    values = case.log_values.reshape(sizes) + log_evidence
    for _ in range(20):
        boxes = [rng.random(k) < 0.7 for k in sizes]
        if all(b.any() for b in boxes):
            inside = values[np.ix_(*boxes)]
            assert relaxation.bounds([b[None] for b in boxes])[0] >= inside.max() - 1e-12
    everything = [np.ones((1, k), np.bool_) for k in sizes]
    plain = Relaxation.read(found.arrays, checked).bounds(everything)[0]
    assert plain == pytest.approx(found.tree.bound(), abs=1e-9)


@pytest.mark.parametrize("seed", [1, 3, 5, 7, 9, 11])
def test_a_relaxation_and_its_boxes_prove_an_answer(monkeypatch, seed):
    monkeypatch.setattr("certimap.proofs.relaxations.UNSPLIT_BITS", 1.0)
    monkeypatch.setattr("certimap.proofs.relaxations.TABLE_BITS", (3.0,))
    monkeypatch.setattr("certimap.proofs.relaxations.STEPS", 2)
    case = random_case(seed, hard=True)
    result = solved(case, "auto", seed=seed)
    threshold = result.log_joint + math.log1p(1e-9)
    arrays, closed_at = covered(reduced(case), threshold, Control.starting_now(1e6), 10**8)
    assert closed_at == threshold
    proof = proof_of(case, result, arrays)
    verdict = cm.check(case.model, proof)
    assert verdict.accepted, verdict.message
    rng = np.random.default_rng(seed)
    for name, values in arrays.items():
        if not len(values):
            continue
        for _ in range(4):
            other = values.copy()
            at = int(rng.integers(len(values)))
            if values.dtype.kind == "f":
                other[at] += rng.normal()
            elif values.dtype == np.uint8:
                other[at] = rng.integers(256, size=other[at].shape)
            else:
                other[at] = rng.integers(-1, max(2, int(values.max()) + 1))
            for label in case.model.domain[case.variables[0]].states:
                meta = {**proof.meta, "answer": {**proof.meta["answer"], case.variables[0]: label}}
                meta["claim"] = {**meta["claim"], "log_joint": None}
                changed = Proof(meta, {**proof.arrays, name: other})
                assert not cm.check(case.model, changed).accepted or case.is_true(changed)
        cut = Proof(proof.meta, {**proof.arrays, name: values[:-1]})
        assert not cm.check(case.model, cut).accepted


def test_copies_whose_messages_go_astray_are_no_relaxation():
    case = random_case(1, hard=True)
    checked = reduced(case)
    problem = problem_of(checked)
    arrays = Relaxed.of(problem, checked.queried, nuisance_first(problem, 2.0), 2.0).arrays
    inner = int(np.flatnonzero(arrays["parent"] >= 0)[0])
    for name, values, words in (
        ("parent", np.where(np.arange(len(arrays["parent"])) == inner, -1, arrays["parent"]), "wrong variable"),
        ("own", arrays["own"][::-1], "out of turn|wrong variable"),
        ("weights", np.full_like(arrays["weights"], np.nan), "has the weight"),
        ("shifts", np.full_like(arrays["shifts"], np.nan), "shifts"),
        ("shifts", np.full_like(arrays["shifts"], np.inf), "shifts"),
        ("shifts", np.full_like(arrays["shifts"], -1e308), "shifts"),
        ("region", arrays["region"][:-1], "do not fit"),
    ):
        with pytest.raises(Rejected, match=words):
            Relaxation.read({**arrays, name: values}, checked)


@pytest.mark.parametrize("weight", [1e-310, 1e-13])
def test_a_weight_in_which_a_power_sum_would_lose_every_entry_is_rejected(weight):
    case = random_case(1, hard=True)
    checked = reduced(case)
    problem = problem_of(checked)
    arrays = Relaxed.of(problem, checked.queried, nuisance_first(problem, 2.0), 2.0).arrays
    own = arrays["own"].tolist()
    v = next(v for v in own if v not in checked.queried and own.count(v) > 1)
    copies = np.flatnonzero(arrays["own"] == v)
    weights, shifts = arrays["weights"].copy(), arrays["shifts"].copy()
    weights[copies] = 1.0
    weights[copies[0]] = weight
    starts = np.cumsum([0, *(checked.sizes[u] for u in own)])
    for copy, amount in zip(copies[:2], (-50.0, 50.0), strict=True):  # the first copy's logs are far below 0
        shifts[starts[copy] : starts[copy + 1]] += amount
    with pytest.raises(Rejected, match="has the weight"):
        Relaxation.read({**arrays, "weights": weights, "shifts": shifts}, checked)


@pytest.fixture
def no_steps(monkeypatch):
    """Leave wide networks to relaxations."""
    monkeypatch.setattr("certimap.proofs.steps.steps_of", lambda *given, **more: None)


def grid(n, strength):
    rng = np.random.default_rng(3)
    factors = [Factor((i,), np.exp(rng.normal(0.0, 1.0, 2))) for i in range(n * n)]
    for i in range(n * n):
        for j in [i + 1] * (i % n < n - 1) + [i + n] * (i < n * (n - 1)):
            factors.append(Factor((i, j), np.exp(rng.normal(0.0, strength, (2, 2)))))
    return MarkovNetwork(cm.Domain.of_sizes([2] * (n * n)), factors)


def test_a_grid_too_wide_to_be_eliminated_is_proved(monkeypatch, no_steps):
    monkeypatch.setattr("certimap.proofs.finish.LEAST_SECONDS", 600.0)  # however busy the machine is
    monkeypatch.setattr("certimap.proofs.relaxations.TABLE_BITS", (10.0,))
    model = grid(24, 0.4)
    result = cm.map_query(model, epsilon=0, delta=0, rng=0, proof=True)
    assert result.proof.meta["method"] == "relaxation"
    verdict = cm.check(model, result.proof)
    assert verdict.message.startswith("accepted: no assignment is more probable than the answer")


def test_what_is_not_certified_gets_a_bound(monkeypatch):
    monkeypatch.setattr("certimap.proofs.finish.LEAST_SECONDS", 1.0)
    model = grid(24, 1.5)
    names = model.domain.names[::5]
    result = cm.map_query(model, names, epsilon=0, delta=0, rng=0, max_nodes=1, proof=True, solver="wmb")
    assert not result.certified
    claim = result.proof.meta["claim"]
    assert claim["log_upper"] >= result.log_joint
    verdict = cm.check(model, result.proof)
    assert verdict.message.startswith("accepted: no assignment is worth more than ln p(q, e) = ")
    lower = {**result.proof.meta, "claim": {**claim, "log_upper": claim["log_upper"] - 1e-6}}
    assert not cm.check(model, Proof(lower, result.proof.arrays)).accepted


def test_what_no_relaxation_closes_is_proved_to_a_bound_and_no_further(monkeypatch, no_steps):
    monkeypatch.setattr("certimap.proofs.finish.LEAST_SECONDS", 600.0)
    monkeypatch.setattr("certimap.proofs.relaxations.TABLE_BITS", (3.0,))
    monkeypatch.setattr("certimap.proofs.relaxations.STEPS", 1)
    monkeypatch.setattr("certimap.proofs.relaxations._closed", lambda *given: None)
    model = grid(24, 0.4)
    result = cm.map_query(model, epsilon=0, delta=0, rng=0, proof=True)
    assert result.certificate.kind == "exact"
    assert result.proof.meta["claim"]["kind"] == "bound"
    assert "of a bound alone" in result.no_proof
    assert "Proof: it is of a bound alone" in str(result)
    verdict = cm.check(model, result.proof)
    assert verdict.message.startswith("accepted: no assignment is worth more than")
    assert verdict.unchecked == ("the solver's certificate (exact, epsilon 0): the file proves a bound alone",)
    claim = {**result.proof.meta["claim"], "log_upper": result.log_joint - 1e-6}
    assert not cm.check(model, Proof({**result.proof.meta, "claim": claim}, result.proof.arrays))
