"""Set elimination on models of useful size: settings, refusals, limits, draws, top-k."""

from __future__ import annotations

import math

import numpy as np
import pytest
from bucket_twin import tree_of_network

import certimap as cm
from certimap.ask.api import map_query
from certimap.core.domain import Domain
from certimap.core.query import make_query
from certimap.core.result import CertificateKind, Rule, Status
from certimap.errors import SolverError
from certimap.solvers.elimination.set_elimination import SetElimination
from certimap.solvers.registry import choose
from certimap.trees.bucket_tree import BucketTreePosterior


def hidden_tree(n, n_hidden, n_query, n_evidence, seed):
    """A hidden tree with n observables and noisy copies, conditioned on random evidence."""
    rng = np.random.default_rng(seed)
    parent = np.array([-1] + [max(0, i - 1 - int(rng.integers(3))) for i in range(1, n)])
    tree = {
        "parent": parent,
        "transitions": [rng.dirichlet(np.full(n_hidden, 0.5), size=n_hidden) for _ in range(n)],
        "priors": {0: rng.dirichlet(np.ones(n_hidden))},
        "latent_of": np.arange(n),
        "emissions": [rng.dirichlet(np.full(2, 0.7), size=n_hidden) for _ in range(n)],
    }
    perm = [str(i) for i in rng.permutation(n)]
    evidence = {name: int(rng.integers(2)) for name in perm[n_query : n_query + n_evidence]}
    return BucketTreePosterior.from_tree(
        query=make_query(Domain.of_sizes([2] * n), perm[:n_query], evidence), **tree
    )


@pytest.fixture(scope="module")
def posterior():
    return hidden_tree(120, 8, 60, 30, 0)


def test_a_query_that_draws_could_not_settle_is_proved(posterior):
    result = map_query(posterior, solver=SetElimination(), epsilon=0.0, delta=0.0, rng=0)
    assert result.certificate.kind is CertificateKind.EXACT
    assert result.certificate.rule is Rule.BOUND
    assert result.log_prob < -20
    assert result.log_upper_bound == pytest.approx(result.log_prob, abs=1e-9)
    point = posterior.domain.encode(result.assignment)
    assert posterior.log_prob(point[None])[0] == pytest.approx(result.log_prob, abs=1e-12)


def test_small_limits_find_the_same_optimum(posterior):
    exact = map_query(posterior, solver=SetElimination(), epsilon=0.0, delta=0.0, rng=0)
    for limits in ((3,), (10, 20)):
        solver = SetElimination(limits=limits, split_limit=64)
        result = map_query(posterior, solver=solver, epsilon=0.0, delta=0.0, rng=1)
        assert result.certificate.kind is CertificateKind.EXACT
        assert result.log_prob == pytest.approx(exact.log_prob, abs=1e-9)


def test_a_run_that_is_cut_short_brackets_the_optimum(posterior):
    exact = map_query(posterior, solver=SetElimination(), epsilon=0.0, delta=0.0, rng=0)
    solver = SetElimination(limits=(2,), split_limit=2)
    result = map_query(posterior, solver=solver, epsilon=0.0, delta=0.0, rng=1, max_nodes=3)
    assert result.status in (Status.NODE_LIMIT, Status.CERTIFIED)
    assert result.log_prob <= exact.log_prob + 1e-9 <= result.log_upper_bound + 2e-9
    bounds = [h.log_upper_bound for h in result.history]
    assert bounds == sorted(bounds, reverse=True)


def test_draws_from_the_open_boxes_settle_what_tiny_sets_leave_open():
    posterior = hidden_tree(40, 12, 14, 10, 3)
    # The smallest sets, hardly any elimination: the draws' share does it.
    solver = SetElimination(limits=(1,), split_limit=1, draw_share=0.99, n_first_draws=4)
    exact = map_query(posterior, solver=SetElimination(), epsilon=0.0, delta=0.0, rng=0)
    result = map_query(posterior, solver=solver, epsilon=0.2, delta=0.05, rng=0)
    assert result.certified
    assert math.exp(result.log_prob) >= 0.8 * math.exp(exact.log_prob)


def test_the_most_probable_five_are_found_with_a_proof(posterior):
    result = map_query(posterior, solver=SetElimination(), epsilon=0.0, delta=0.0, rng=0, top_k=5)
    assert result.certificate.kind is CertificateKind.EXACT
    values = [v for _, v in result.top]
    assert values == sorted(values, reverse=True)
    assert len({tuple(a.items()) for a, _ in result.top}) == 5
    single = map_query(posterior, solver=SetElimination(), epsilon=0.0, delta=0.0, rng=0)
    assert values[0] == pytest.approx(single.log_prob, abs=1e-9)


def test_it_is_chosen_for_trees_and_refuses_what_has_none(posterior):
    assert choose(posterior).name == "set_elimination"
    builder = cm.CircuitBuilder(Domain.of_sizes([2] * 3))
    leaves = [builder.categorical(i, [math.log(0.4), math.log(0.6)]) for i in range(3)]
    builder.product(leaves)
    with pytest.raises(SolverError, match="use solver='frontier'"):
        cm.map_query(cm.condition(builder.build(), solver="frontier"), solver="set_elimination")


@pytest.mark.parametrize(
    "settings",
    [{"limits": ()}, {"limits": (0,)}, {"split_limit": 0}, {"draw_share": 1.0}, {"n_starts": 0}],
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(SolverError):
        SetElimination(**settings)


def test_networks_of_the_examples(examples):
    for name in ("asia", "alarm"):
        path = next(iter(sorted(examples.glob(f"{name}*"))), None)
        if path is None:
            pytest.skip("no example networks here")
        network = cm.read(path)
        query = make_query(network.domain)
        tree = tree_of_network(network, query)
        result = map_query(tree, solver=SetElimination(), epsilon=0.0, delta=0.0, rng=0)
        assert result.certificate.kind is CertificateKind.EXACT
        assert network.log_joint(network.domain.encode(result.assignment)[None])[0] == pytest.approx(
            result.log_joint, abs=1e-9
        )


def test_cases_of_public_networks(shared_data):
    import json
    import warnings

    cases = json.loads((shared_data / "networks" / "cases.json").read_text())["cases"]
    networks = {}
    for case in cases:
        name = case["network"]
        if name not in networks:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # rows that add to 1 within 1e-7 only
                networks[name] = cm.read(shared_data / "networks" / f"{name}.bif.gz")
        network = networks[name]
        query = make_query(network.domain, case["query"] or None, case["evidence"])
        result = map_query(
            tree_of_network(network, query), solver=SetElimination(), epsilon=0.0, delta=0.0, rng=0, progress=False
        )
        assert result.certificate.kind is CertificateKind.EXACT, case["id"]
        assert result.log_joint == pytest.approx(case["best_log_prob"], abs=1e-6), case["id"]


def test_a_run_without_draws_still_proves(posterior):
    result = map_query(posterior, solver=SetElimination(), epsilon=0.0, rng=0, max_samples=0)
    assert result.certificate.kind is CertificateKind.EXACT
    assert result.n_draws == 0


@pytest.mark.parametrize("top_k", [2, 40, 1000, 5000])
def test_long_lists_match_enumeration(top_k, monkeypatch):
    posterior = hidden_tree(24, 6, 12, 6, 4)
    monkeypatch.setattr("certimap.solvers.elimination.one_pass.COMPARED", 2000)  # both ways to shrink sets
    found, every = (
        map_query(posterior, solver=solver, epsilon=0.0, delta=0.0, rng=0, top_k=top_k)
        for solver in ("set_elimination", "exhaustive")
    )
    assert found.certificate.kind is CertificateKind.EXACT
    assert len(found.top) == len(every.top) == min(top_k, 2**12)
    np.testing.assert_allclose([v for _, v in found.top], [v for _, v in every.top], atol=1e-9)


def test_a_thousand_best_take_little_more_than_ten():
    posterior = hidden_tree(64, 10, 32, 10, 5)
    few, many = (
        map_query(posterior, solver="set_elimination", epsilon=0.0, delta=0.0, rng=0, top_k=k) for k in (10, 1000)
    )
    assert many.certificate.kind is CertificateKind.EXACT
    np.testing.assert_allclose([v for _, v in many.top[:10]], [v for _, v in few.top], atol=1e-9)
    assert many.n_evaluations < 20_000
