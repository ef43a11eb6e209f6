"""Set elimination against brute force on random models, with limits so small that sets merge and boxes split."""

from __future__ import annotations

import numpy as np
import pytest
from bucket_twin import build, random_case, random_network

from certimap.ask.api import map_query
from certimap.core.result import CertificateKind, Status
from certimap.solvers.elimination import one_pass as set_elimination_pass
from certimap.solvers.elimination import set_elimination
from certimap.solvers.elimination.set_elimination import SetElimination
from certimap.trees.bucket_tree import BucketTreePosterior

LIMITS = [(1,), (2,), (1, 3), (8,), (256,)]


def check(seed, t, monkeypatch, maker=random_case, epsilons=(0.0, 0.0, 0.01, 0.3), top_ks=(1, 1, 1, 2, 5)):
    """Run one random case; return (result, peak boxes) or None where the evidence is impossible."""
    rng = np.random.default_rng([seed, t])
    case = maker(rng)
    log_evidence, probs = case.brute_force()
    if log_evidence == -np.inf:
        return None
    posterior = build(case, rng)
    epsilon = float(rng.choice(epsilons))
    top_k = int(rng.choice(top_ks))
    solver = SetElimination(
        limits=LIMITS[int(rng.integers(len(LIMITS)))],
        split_limit=int(rng.choice([1, 2, 64])),
        n_starts=1,
        n_first_draws=1,
    )
    # Without work for the start the incumbent is one draw, and the search itself must find the best.
    monkeypatch.setattr(set_elimination, "START_WORK", 0 if rng.random() < 0.6 else START_WORK)
    max_nodes = None if rng.random() < 0.7 else int(rng.integers(1, 6))
    result = map_query(
        posterior,
        solver=solver,
        epsilon=epsilon,
        delta=0.0,
        rng=t,
        top_k=top_k,
        max_nodes=max_nodes,
        progress=False,
    )
    ranked = np.sort(probs)[::-1]
    assert np.exp(result.log_upper_bound) >= ranked[0] * (1 - 1e-12)
    assert np.exp(result.log_prob) <= ranked[0] * (1 + 1e-9)
    if result.certified:
        k = min(top_k, int(np.count_nonzero(probs)))  # impossible assignments need not be listed
        achieved = result.certificate.epsilon
        assert achieved <= epsilon
        assert len(result.top) >= k
        values = np.exp([v for _, v in result.top])[:k]
        assert values[-1] >= (1 - achieved) * ranked[k - 1] * (1 - 2e-9)
        if result.certificate.kind is CertificateKind.EXACT:
            np.testing.assert_allclose(values, ranked[:k], rtol=1e-8, atol=1e-300)
    else:
        assert result.status is Status.NODE_LIMIT
    return result


START_WORK = set_elimination.START_WORK


def test_random_models(monkeypatch):
    results = [check(11, t, monkeypatch) for t in range(900)]
    done = [r for r in results if r is not None]
    assert len(done) > 700
    assert sum(not r.certified for r in done) > 5  # runs that a node limit stopped are checked, too


def test_networks_with_many_ties_and_zeros(monkeypatch):
    results = [check(12, t, monkeypatch, random_network, (0.0,)) for t in range(400)]
    assert sum(r is not None for r in results) > 200


@pytest.mark.nojit
def test_a_few_models_without_compilation(monkeypatch):
    for t in range(12):
        check(13, t, monkeypatch)


def test_merging_and_splitting_happen_in_these_tests(monkeypatch):
    counts = {"merged": 0, "boxes": 0}
    step = SetElimination.step

    def spy(self, state, ledger):
        state = step(self, state, ledger)
        counts["merged"] += state.n_merged > 0
        counts["boxes"] = max(counts["boxes"], state.n_nodes)
        return state

    monkeypatch.setattr(SetElimination, "step", spy)
    for t in range(120):
        check(11, t, monkeypatch)
    assert counts["merged"] > 10
    assert counts["boxes"] > 3


def test_the_answer_repeats_with_the_seed():
    rng = np.random.default_rng(5)
    posterior = build(random_case(rng), rng)
    assert isinstance(posterior, BucketTreePosterior)
    first, second = (map_query(posterior, solver="set_elimination", delta=0.0, rng=4) for _ in range(2))
    assert first.assignment == second.assignment
    assert first.n_evaluations == second.n_evaluations
    assert first.log_upper_bound == second.log_upper_bound


def test_thresholds_that_lie_too_deep_leave_boxes_open(monkeypatch):
    monkeypatch.setattr(set_elimination_pass, "SET_FLOOR", -2)
    for few in (1, 8):
        monkeypatch.setattr(set_elimination, "FEW_POINTS", few)
        for t in range(150):
            check(14, t, monkeypatch)
