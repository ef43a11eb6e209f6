"""Proofs by kept vectors: accepted as written, and never for a falsehood, whatever is altered or left out."""

from __future__ import annotations

import math

import numpy as np
import pytest

import certimap as cm
from certimap.bench.random_chains import random_chain
from certimap.checker import Proof
from certimap.checker.buckets import Buckets
from certimap.checker.lifting import _by_entry, _by_matrix
from certimap.checker.models import Rejected
from certimap.checker.vectors import grouped
from certimap.proofs import reduced_network
from certimap.proofs import vectors as vector_proofs
from certimap.query import make_query
from certimap.testing.enumeration import all_points
from certimap.testing.proofs import Case, random_case, solved

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


def written(case, result, checked=None, **claim):
    """Return the proof of a result by kept vectors, or None."""
    answers = [result.assignment] if result.top is None else [answer for answer, _ in result.top]
    query = make_query(case.model.domain, case.variables, case.evidence).query_domain
    points = [query.encode(dict(answer)).tolist() for answer in answers]
    arrays = vector_proofs.recorded(checked or reduced(case), points, 0.0, 1e-9, 600.0, 10**8)
    return None if arrays is None else with_arrays(result.proof, arrays)


@pytest.fixture(params=[(64, 2048), (2, 6, 64)], ids=["whole", "merged"])
def limits(request, monkeypatch):
    monkeypatch.setattr(vector_proofs, "LIMITS", request.param)


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


def _thresholds(monkeypatch):
    """Vectors that can still exceed the threshold are not listed."""
    before = vector_proofs.scores_of
    monkeypatch.setattr(vector_proofs, "scores_of", lambda *given: before(*given) - FORGED)


def _dominance(monkeypatch):
    """A vector goes for any other one of its context."""

    def first_of_each(values, ptr, k, alive):
        alive[:] = False
        alive[ptr[:-1][np.diff(ptr) > 0]] = True

    def by_first(values, ptr, alive, by):
        by[:] = np.where(alive, -1, np.repeat(ptr[:-1], np.diff(ptr)))

    monkeypatch.setattr(vector_proofs, "skyband", first_of_each)
    monkeypatch.setattr(vector_proofs, "dominators", by_first)
    monkeypatch.setattr(vector_proofs, "room_below", lambda found, rows, others: np.ones(len(rows)))


def _combinations(monkeypatch):
    """A vector goes for any mixture of two others."""
    kernels = vector_proofs.mixtures

    def unmixed(values, ptr, rounds, budget, state, order, at):
        at[0] = len(ptr) - 1
        state[:] = kernels.DROPPED
        for c in range(len(ptr) - 1):
            state[ptr[c] : min(ptr[c] + 2, ptr[c + 1])] = kernels.KEPT

    def combinations(values, ptr, state, rows, picked):
        picked[:] = -1
        firsts = ptr[np.searchsorted(ptr, rows, side="right") - 1]
        picked[:, 0], picked[:, 1] = firsts, firsts + 1

    monkeypatch.setattr(kernels, "unmixed", unmixed)
    monkeypatch.setattr(kernels, "combinations", combinations)
    monkeypatch.setattr(vector_proofs, "is_exceeded", lambda found, rows, *rest: np.ones(len(rows), np.bool_))


@pytest.mark.parametrize("broken", [_thresholds, _dominance, _combinations])
def test_what_forgers_leave_out_is_missed(monkeypatch, broken):
    """A writer with one broken rule, and no second look, claims an answer that is not the best."""
    honest = [(case, solved(case, "auto", seed=seed)) for seed in range(0, 24, 2) for case in [chain_case(seed)]]
    broken(monkeypatch)
    monkeypatch.setattr("certimap.checker.kept.Step.applied", _unchecked)
    forged = []
    for case, result in honest:
        domain = make_query(case.model.domain, case.variables, case.evidence).query_domain
        worse = all_points(domain)[np.argsort(-case.log_values)[3]]
        meta = {**result.proof.meta, "answer": dict(domain.decode(worse))}
        meta["claim"] = {**meta["claim"], "log_joint": None}
        try:
            arrays = vector_proofs.recorded(reduced(case), [worse.tolist()], 0.0, 1e-9, 600.0, 10**8)
        except (Rejected, ValueError):
            continue
        if arrays is not None:
            forged.append((case, with_arrays(Proof(meta, result.proof.arrays), arrays)))
    monkeypatch.undo()
    for case, proof in forged:
        assert not case.is_true(proof)
        assert not cm.check(case.model, proof).accepted
    assert forged


def _unchecked(self, found):
    """Apply a step without asking whether it may be."""
    gone = np.zeros(len(found.context), np.bool_)
    gone[self.dominated] = gone[self.mixed] = True
    kept = found.take(~gone)
    return (grouped(kept, self.groups) if len(self.groups) else kept), 0.0


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


def test_long_chains_of_many_states_are_checked_by_their_vectors():
    model, symbols = random_chain(24, 30, 12, 0, 0.2)
    result = cm.map_query(model, symbols, epsilon=0, delta=0, rng=0, workers=1, proof=True, time_limit=300)
    checked = reduced_network(model, make_query(model.domain, symbols, {}))
    point = make_query(model.domain, symbols, {}).query_domain.encode(dict(result.assignment))
    arrays = vector_proofs.recorded(checked, [point.tolist()], 0.0, 1e-9, 600.0, 10**8)
    assert cm.check(model, with_arrays(result.proof, arrays)).accepted
    assert len(arrays["mixed"]) > 100
    assert vector_proofs.recorded(checked, [point.tolist()], 0.0, 1e-9, 600.0, 1000) is None


def test_inner_variables_are_those_of_children():
    tree = Buckets.of(reduced(chain_case(0)))
    for bucket in tree.buckets:
        assert set(bucket.inner) <= set(bucket.hidden)
        for c in bucket.children:
            assert set(tree.buckets[c].separator_hidden) <= set(bucket.inner)
