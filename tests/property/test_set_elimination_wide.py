"""Set elimination on models whose numbers differ by more than doubles can, against 60 digits."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from wide_twin import build_wide, log_of, wide_case

import certimap as cm
from certimap.ask.api import map_query
from certimap.certify.ledger import Ledger
from certimap.core.control import Control
from certimap.core.domain import Domain
from certimap.core.query import make_query
from certimap.core.result import CertificateKind
from certimap.networks import Factor, MarkovNetwork
from certimap.solvers.elimination import set_elimination
from certimap.solvers.elimination.set_elimination import SetElimination
from certimap.trees.bucket_tree import BucketTreePosterior

START_WORK = set_elimination.START_WORK


def check(seed, t, monkeypatch):
    """Run one case; the certificate, the bound and every listed value must be right."""
    rng = np.random.default_rng([seed, t])
    case = wide_case(rng)
    total, joint = case.exact()
    if not total:
        return None
    posterior = build_wide(case)
    exact = np.array([log_of(p / total) for p in joint])
    ranked = np.sort(exact)[::-1]
    top_k = int(rng.choice([1, 1, 2, 3, 8, len(exact), len(exact) + 5]))
    epsilon = float(rng.choice([0.0, 0.0, 0.1]))
    solver = SetElimination(
        limits=[(1,), (2, 8), (256,)][int(rng.integers(3))],
        split_limit=int(rng.choice([1, 64])),
        n_starts=1,
        n_first_draws=1,
    )
    monkeypatch.setattr(set_elimination, "START_WORK", 0 if rng.random() < 0.6 else START_WORK)
    max_nodes = None if rng.random() < 0.8 else int(rng.integers(1, 4))
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
    close = 1e-10 + 1e-12 * abs(ranked[0])
    assert result.log_upper_bound >= ranked[0] - 1e-15 * max(1.0, abs(ranked[0]))
    assert result.log_prob <= ranked[0] + close
    for assignment, value in result.top:
        point = posterior.domain.encode(assignment)
        place = int(np.ravel_multi_index(tuple(point.astype(int)), tuple(posterior.domain.n_states)))
        assert value == pytest.approx(exact[place], abs=1e-10, rel=1e-12)
    if result.certificate.kind is CertificateKind.EXACT:
        k = min(top_k, int(np.count_nonzero(exact > -np.inf)))
        assert len(result.top) >= k
        np.testing.assert_allclose([v for _, v in result.top][:k], ranked[:k], atol=2e-9)
    elif result.certified:
        assert result.log_prob >= ranked[0] + math.log1p(-epsilon) - 1e-9
    return result


def test_random_models(monkeypatch):
    results = [check(21, t, monkeypatch) for t in range(200)]
    done = [r for r in results if r is not None]
    assert len(done) > 120
    assert sum(r.certificate.kind is CertificateKind.EXACT for r in done) > 100


def test_floors_in_the_middle_of_a_set(monkeypatch):
    monkeypatch.setattr("certimap.solvers.elimination.one_pass.SET_FLOOR", -40)
    for t in range(80):
        check(22, t, monkeypatch)


def naive_bayes(n_observed, n_queried):
    n = n_observed + n_queried
    observed, queried = np.array([[1 / 3, 2 / 3], [2 / 3, 1 / 3]]), np.array([[0.5, 0.5], [0.01, 0.99]])
    domain = Domain.of_sizes([2] * (n + 1))
    query = make_query(
        domain,
        ["0", *(str(i) for i in range(1 + n_observed, n + 1))],
        {str(i): 1 for i in range(1, n_observed + 1)},
    )
    emissions = [np.eye(2)] + [observed] * n_observed + [queried] * n_queried
    return BucketTreePosterior.from_tree(
        np.array([-1]), [np.ones((1, 1))], {0: np.array([0.5, 0.5])}, np.zeros(n + 1, np.int64), emissions, query
    )


@pytest.mark.parametrize(("scale", "top_k"), [(1, 1), (1, 3), (3, 1)])
def test_the_class_that_the_evidence_makes_tiny_wins(scale, top_k):
    posterior = naive_bayes(1100 * scale, 1200 * scale)
    result = map_query(
        posterior, solver="set_elimination", epsilon=0.0, delta=0.0, rng=0, top_k=top_k, progress=False
    )
    assert result.assignment["0"] == 1
    expected = scale * (1200 * math.log(0.99) - 1100 * math.log(2))
    assert result.log_prob == pytest.approx(expected, abs=1e-10, rel=1e-12)
    assert result.log_upper_bound >= expected
    if top_k == 1:
        assert result.certificate.kind is CertificateKind.EXACT


def test_the_other_class_hidden():
    """The class is summed out: the same answer, from a mixture of two that differ by e^-762."""
    n_observed, n_queried = 1100, 1200
    n = n_observed + n_queried
    domain = Domain.of_sizes([2] * n)
    observed, queried = np.array([[1 / 3, 2 / 3], [2 / 3, 1 / 3]]), np.array([[0.5, 0.5], [0.01, 0.99]])
    query = make_query(domain, [str(i) for i in range(n_observed, n)], {str(i): 1 for i in range(n_observed)})
    posterior = BucketTreePosterior.from_tree(
        np.array([-1]),
        [np.ones((1, 1))],
        {0: np.array([0.5, 0.5])},
        np.zeros(n, np.int64),
        [observed] * n_observed + [queried] * n_queried,
        query,
    )
    result = map_query(posterior, solver="set_elimination", epsilon=0.0, delta=0.0, rng=0)
    assert result.certificate.kind is CertificateKind.EXACT
    assert set(result.assignment.values()) == {1}
    assert result.log_prob == pytest.approx(1200 * math.log(0.99) - 1100 * math.log(2), abs=1e-10)


@pytest.mark.parametrize("logs", [[0.0, -800.0], [-700.0, 300.0], [800.0, 801.0]])
def test_factors_in_logs_on_one_variable(tmp_path, logs):
    network = MarkovNetwork(Domain.of_sizes([2]), [Factor.from_log((0,), np.array(logs))])
    for suffix in (None, "npz", "uai"):
        if suffix is not None:
            cm.io.write(network, tmp_path / f"m.{suffix}")
            network = cm.read(tmp_path / f"m.{suffix}")
        for solver in ("auto", "set_elimination"):
            result = cm.map_query(network, solver=solver, epsilon=0.0, rng=0)
            assert result.assignment["0"] == int(np.argmax(logs))
            assert result.log_joint == pytest.approx(max(logs), rel=1e-15)


def test_states_pickle_between_steps(monkeypatch):
    monkeypatch.setattr(set_elimination, "STEP_WORK", 1)
    monkeypatch.setattr("certimap.solvers.elimination.one_pass.WORK", 1)
    posterior = naive_bayes(20, 30)
    solver = SetElimination(limits=(2,), split_limit=2, n_first_draws=1)
    plain, pickled = (Ledger(posterior, epsilon=0.0, delta=0.0, top_k=3) for _ in range(2))
    first = solver.init(posterior, Control(), np.random.default_rng(3))
    second = solver.init(posterior, Control(), np.random.default_rng(3))
    steps = 0
    while not first.done and not plain.satisfied:
        first = solver.step(first, plain)
        second = pickle.loads(pickle.dumps(solver.step(second, pickled)))
        steps += 1
    assert steps > 30
    assert pickled.best == plain.best
    assert pickled.log_upper_bound == plain.log_upper_bound
