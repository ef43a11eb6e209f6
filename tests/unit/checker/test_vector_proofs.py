"""Proofs by kept vectors: accepted as written, and never for a falsehood, whatever is altered or left out."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import certimap as cm
from certimap.checker import Proof, vectors
from certimap.checker.buckets import ProofBuckets
from certimap.checker.elimination import _by_entry, _by_matrix
from certimap.checker.models import CheckBudget, Rejected
from certimap.checker.vectors import Step, Vectors, VectorScript, is_exceeded
from certimap.core.query import make_query
from certimap.proofs import reduced_network
from certimap.proofs import vectors as vector_proofs
from certimap.solvers.elimination.kernels.dominance import DROPPED, KEPT
from certimap.testing.models import all_points
from certimap_lab.bench.random_chains import random_chain
from certimap_lab.proofs import Case, random_case, solved

FORGED = 0.5  # nats by which forgers understate what they claim to exclude


def chain_case(seed, steps=6, n_states=4, n_symbols=3):
    model, symbols = random_chain(steps, n_states, n_symbols, seed, 0.4)
    listed = cm.condition(model, symbols, {}, workers=1, solver="pac")
    return Case(model, symbols, {}, listed.log_prob(all_points(listed.domain)))


def case_of(seed):
    return chain_case(seed) if seed % 2 == 0 else random_case(seed, hard=True)


def reduced(case):
    return reduced_network(case.model, make_query(case.model.domain, case.variables, case.evidence))


def with_arrays(proof, arrays):
    return Proof({**proof.meta, "method": "vectors"}, {"log_weights": proof.arrays["log_weights"], **arrays})


def written(case, result):
    """Return the proof of a result by kept vectors, or None."""
    answers = [result.assignment] if result.top is None else [answer for answer, _ in result.top]
    query = make_query(case.model.domain, case.variables, case.evidence).query_domain
    points = [query.encode(dict(answer)).tolist() for answer in answers]
    arrays = vector_proofs.recorded(ProofBuckets.of(reduced(case)), points, 0.0, 1e-9, 10**8)
    return None if arrays is None else with_arrays(result.proof, arrays)


@pytest.fixture(params=[(64, 2048), (2, 6, 64), (2,)], ids=["whole", "merged", "split"])
def limits(request, monkeypatch):
    monkeypatch.setattr(vector_proofs.VectorRecorder, "LIMITS", request.param)
    monkeypatch.setattr(vectors.PlainVectors, "LIMITS", request.param)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_kept_vectors_prove_an_answer_and_nothing_false(limits, seed):
    case = case_of(seed)
    proof = written(case, solved(case, "auto", seed=seed))
    verdict = cm.check(case.model, proof)
    assert verdict.accepted, verdict.message
    rng = np.random.default_rng(seed)
    for name, values in proof.arrays.items():
        if name == "log_weights" or not values.size:
            continue
        cut = Proof(proof.meta, {**proof.arrays, name: values[:-1]})
        assert not cm.check(case.model, cut).accepted
        for _ in range(6):
            other = values.copy()
            at = tuple(int(rng.integers(k)) for k in values.shape)
            other[at] = rng.integers(0, int(values.max()) + 2)
            changed = Proof(proof.meta, {**proof.arrays, name: other})
            assert not cm.check(case.model, changed).accepted or case.is_true(changed)
    for label in case.model.domain[case.variables[0]].states:
        meta = {**proof.meta, "answer": {**proof.meta["answer"], case.variables[0]: label}}
        meta["claim"] = {**meta["claim"], "log_joint": None}
        changed = Proof(meta, proof.arrays)
        assert not cm.check(case.model, changed).accepted or case.is_true(changed)


@pytest.mark.parametrize("seed", range(4))
def test_several_answers_are_proved_beside_each_other(limits, seed):
    case = case_of(seed)
    result = solved(case, "auto", seed=seed, top_k=3)
    proof = written(case, result)
    verdict = cm.check(case.model, proof)
    assert verdict.accepted, verdict.message
    swapped = {**proof.meta, "others": [proof.meta["others"][0]]}
    assert not cm.check(case.model, Proof(swapped, proof.arrays)).accepted


def test_boxes_are_split_where_sets_stay_too_small(monkeypatch):
    monkeypatch.setattr(vector_proofs.VectorRecorder, "LIMITS", (1,))
    n_split = 0
    for seed in range(8):
        case = case_of(seed)
        proof = written(case, solved(case, "auto", seed=seed))
        assert cm.check(case.model, proof).accepted
        splits = np.flatnonzero(proof.arrays.get("plan", np.zeros(0)) > 1)
        n_split += len(splits)
        for at in splits[:3]:
            for other in (0, 1, 1000):
                plan = proof.arrays["plan"].astype(np.int32)
                plan[at] = other
                assert not cm.check(case.model, Proof(proof.meta, {**proof.arrays, "plan": plan})).accepted
    assert n_split > 5


@pytest.mark.parametrize("seed", range(6))
def test_what_a_file_says_nothing_of_is_looked_for(limits, seed):
    case = case_of(seed)
    result = solved(case, "auto", seed=seed)
    proof = with_arrays(result.proof, {})
    assert cm.check(case.model, proof).accepted
    names = list(result.assignment)
    worse = {
        **result.assignment,
        names[0]: next(x for x in case.model.domain[names[0]].states if x != result.assignment[names[0]]),
    }
    meta = {**proof.meta, "answer": worse, "claim": {**proof.meta["claim"], "log_joint": None}}
    assert not cm.check(case.model, Proof(meta, proof.arrays)).accepted


@pytest.mark.parametrize("seed", range(5))
def test_single_vectors_go_for_others_that_stay(seed):
    rng = np.random.default_rng(seed)
    values = np.where(rng.random((200, 3)) < 0.2, -np.inf, rng.integers(0, 5, (200, 3)).astype(float))
    values[::7] += rng.uniform(-5e-13, 5e-13, values[::7].shape)
    found = Vectors(rng.integers(0, 3, 200), values, 0.0)
    left, lost = vectors.undominated(found, CheckBudget.starting_now(None))
    assert 0.0 <= lost <= vectors.TIE
    assert len(left.context) < 150
    for context, row in zip(found.context, values, strict=True):
        assert np.any(np.all(left.values[left.context == context] >= row - lost, axis=1))
    for context, row in zip(left.context, left.values, strict=True):
        others = left.values[left.context == context]
        assert np.sum(np.all(others >= row, axis=1)) == 1


def test_counts_that_wrap_around_and_circles_are_refused():
    found = Vectors(np.zeros(3, np.int64), np.array([[0.0, 0.0], [-1.0, 1.0], [1.0, -1.0]]), 0.0)
    two = np.array([2])
    wrapping = np.array([2**62] * 5)
    assert not is_exceeded(found, np.zeros(1, np.int64), np.array([5]), np.ones(5, np.int64), wrapping).any()
    with pytest.raises(Rejected, match="damaged"):
        VectorScript(
            {name: np.zeros(0, np.uint64) for name in ("plan", "sizes", *VectorScript.NAMES)}, 0.0, CheckBudget()
        )
    ties = Vectors(np.zeros(2, np.int64), np.zeros((2, 2)), 0.0)
    nothing = np.zeros(0, np.int64)
    circle = Step(nothing, np.arange(2), np.ones(2, np.int64), np.array([1, 0]), np.ones(2, np.int64), nothing)
    with pytest.raises(Rejected, match="dropped itself"):
        circle.loss(ties, CheckBudget())
    mixed = Step(nothing, np.zeros(1, np.int64), two, np.array([1, 2]), np.ones(2, np.int64), nothing)
    assert mixed.loss(found, CheckBudget()) == 0.0


def _thresholds(monkeypatch):
    """Vectors that can still exceed the threshold are not listed."""
    before = vector_proofs.VectorRecorder.listed
    monkeypatch.setattr(vector_proofs.VectorRecorder, "listed", lambda self, scores: before(self, scores - FORGED))


def _dominance(monkeypatch):
    """A vector goes for any other one of its context."""

    def first_of_each(values, ptr, k, by):
        by[:] = np.repeat(ptr[:-1], np.diff(ptr))
        by[ptr[:-1][np.diff(ptr) > 0]] = -1

    monkeypatch.setattr(vector_proofs, "skyband", first_of_each)
    monkeypatch.setattr(vector_proofs, "room_below", lambda found, rows, others: np.ones(len(rows)))


def _combinations(monkeypatch):
    """A vector goes for any mixture of two others."""

    def unmixed(values, ptr, rounds, budget, state, order, at, picked):
        at[0] = len(ptr) - 1
        state[:], picked[:] = DROPPED, -1
        for start, stop in itertools.pairwise(ptr.tolist()):
            state[start : min(start + 2, stop)] = KEPT
            picked[start:stop, 0], picked[start:stop, 1] = start, start + 1

    monkeypatch.setattr(vector_proofs, "unmixed", unmixed)
    monkeypatch.setattr(vector_proofs, "FEW", 0)
    monkeypatch.setattr(vector_proofs, "is_exceeded", lambda found, rows, *rest: np.ones(len(rows), np.bool_))


@pytest.mark.parametrize("broken", [_thresholds, _dominance, _combinations])
def test_what_forgers_leave_out_is_missed(monkeypatch, broken):
    """A writer with one broken rule, and no second look, claims an answer that is not the best."""
    honest = [(case, solved(case, "auto", seed=seed)) for seed in range(0, 24, 2) for case in [chain_case(seed)]]
    broken(monkeypatch)
    forged = []
    for case, result in honest:
        domain = make_query(case.model.domain, case.variables, case.evidence).query_domain
        worse = all_points(domain)[np.argsort(-case.log_values)[3]]
        meta = {**result.proof.meta, "answer": dict(domain.decode(worse))}
        meta["claim"] = {**meta["claim"], "log_joint": None}
        try:
            arrays = vector_proofs.recorded(ProofBuckets.of(reduced(case)), [worse.tolist()], 0.0, 1e-9, 10**8)
        except (Rejected, ValueError):
            continue
        if arrays is not None:
            forged.append((case, with_arrays(Proof(meta, result.proof.arrays), arrays)))
    monkeypatch.undo()
    for case, proof in forged:
        assert not case.is_true(proof)
        assert not cm.check(case.model, proof).accepted
    assert forged


@pytest.mark.parametrize("seed", range(6))
def test_products_of_matrices_round_up_and_hardly(seed):
    rng = np.random.default_rng(seed)
    values = rng.normal(0.0, rng.choice([1.0, 100.0]), (7, 5, 2))
    table = rng.normal(0.0, rng.choice([1.0, 200.0]), (5, 2, 3))
    values[rng.random(values.shape) < 0.2] = -np.inf
    table[rng.random(table.shape) < 0.2] = -np.inf
    found, steps = _by_matrix(values, table)
    exact = np.array(
        [
            [
                [
                    math.log(total) + top if (total := math.fsum(np.exp(terms - top))) else -math.inf
                    for c in range(3)
                    for terms in [values[r, :, b] + table[:, b, c]]
                    for top in [max(float(terms.max()), -1e6)]
                ]
                for b in range(2)
            ]
            for r in range(7)
        ]
    )
    assert np.all(found >= exact)
    finite = np.isfinite(exact)
    assert np.array_equal(np.isfinite(found), finite)
    assert (
        np.max(found[finite] - exact[finite]) <= (2 * steps + 4.0 * np.abs(exact[finite]).max() + 16.0) * 2.0**-52
    )
    np.testing.assert_allclose(found, _by_entry(values, table[None])[0], atol=1e-9)


@pytest.mark.slow
def test_long_chains_of_many_states_are_checked_by_their_vectors():
    model, symbols = random_chain(24, 30, 12, 0, 0.2)
    result = cm.map_query(model, symbols, epsilon=0, delta=0, rng=0, workers=1, proof=True, time_limit=300)
    checked = ProofBuckets.of(reduced_network(model, make_query(model.domain, symbols, {})))
    point = make_query(model.domain, symbols, {}).query_domain.encode(dict(result.assignment))
    arrays = vector_proofs.recorded(checked, [point.tolist()], 0.0, 1e-9, 10**8)
    assert cm.check(model, with_arrays(result.proof, arrays)).accepted
    assert np.sum(arrays["lengths"] > 1) > 100
    assert vector_proofs.recorded(checked, [point.tolist()], 0.0, 1e-9, 1000) is None


def test_inner_variables_are_those_of_children():
    tree = ProofBuckets.of(reduced(chain_case(0)))
    for bucket in tree.buckets:
        assert set(bucket.inner) <= set(bucket.hidden)
        for c in bucket.children:
            assert set(tree.buckets[c].separator_hidden) <= set(bucket.inner)
