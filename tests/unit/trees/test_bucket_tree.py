"""Bucket trees: every question about boxes against brute force, extremes, refusals."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from bucket_twin import build, inside, random_case, random_latent_tree, random_network, tree_of_network
from scipy.stats import chisquare

from certimap.core.box import Boxes
from certimap.core.domain import Domain, Real
from certimap.core.probing import answers_in
from certimap.core.query import make_query
from certimap.errors import ImpossibleEvidence, ModelError, QueryError, SolverError
from certimap.networks import Factor, MarkovNetwork
from certimap.trees.bucket_tree import BucketTreePosterior


def possible_cases(seed, n, maker=random_case):
    for t in range(n):
        rng = np.random.default_rng([seed, t])
        case = maker(rng)
        log_evidence, probs = case.brute_force()
        if log_evidence > -np.inf:
            yield rng, case, float(log_evidence), probs


@pytest.mark.nojit
@pytest.mark.parametrize("maker", [random_case, random_network])
def test_points_masses_and_evidence_match_brute_force(maker):
    for rng, case, log_evidence, probs in possible_cases(1, 60, maker):
        posterior = build(case, rng)
        points = case.points()
        assert posterior.log_evidence == pytest.approx(log_evidence, abs=1e-9)
        with np.errstate(divide="ignore"):
            np.testing.assert_allclose(posterior.log_prob(points), np.log(probs), atol=1e-9)
        mask = rng.random((9, posterior.domain.total_states)) < 0.7
        held = inside(posterior.domain, mask, points)
        boxes = Boxes(posterior.domain, mask)
        np.testing.assert_allclose(np.exp(posterior.log_mass(boxes)), held @ probs, atol=1e-12)
        largest = np.where(held, probs, 0.0).max(axis=1)
        bound = np.exp(posterior.log_bound(boxes))
        assert np.all(bound >= largest)
        assert np.all(bound <= held @ probs + 1e-12)


def dense_trees():
    """Yield trees whose regions mix queried and hidden variables in separators, also of four states and more."""
    for t in range(60):
        rng = np.random.default_rng([9, t])
        sizes = [int(k) for k in rng.integers(2, 6, 9)]
        scopes = [(v,) for v in range(9)] + [tuple(rng.choice(9, 3, replace=False).tolist()) for _ in range(7)]
        network = markov(sizes, [(scope, rng.random([sizes[v] for v in scope])) for scope in scopes])
        query = make_query(network.domain, [str(v) for v in rng.permutation(9)[:4]])
        yield tree_of_network(network, query, order=rng.permutation(9).tolist())


def test_points_have_the_bits_of_boxes_that_hold_them_alone():
    n_mixed = 0
    for posterior in (*(build(case, rng) for rng, case, _, _ in possible_cases(9, 60)), *dense_trees()):
        domain, a = posterior.domain, posterior.region_tree.arrays
        n_mixed += bool(np.any((a.shared_hidden > 1) & (a.rest_query > 1)))
        points = np.random.default_rng(0).integers(domain.n_states, size=(50, len(domain))).astype(np.int16)
        mask = np.zeros((len(points), domain.total_states), np.bool_)
        np.put_along_axis(mask, domain.offsets[:-1] + points, True, axis=1)
        np.testing.assert_array_equal(posterior.log_prob(points), posterior.log_mass(Boxes(domain, mask)))
    assert n_mixed >= 10


@pytest.mark.nojit
def test_the_decoded_maximum_is_the_most_probable_point_where_nothing_is_hidden():
    n_visible = 0
    for rng, case, _, probs in possible_cases(8, 80):
        posterior = build(case, rng)
        point = posterior.max_product()
        found = float(np.exp(posterior.log_prob(point))[0])
        assert found <= probs.max() * (1 + 1e-12)
        if posterior.region_tree.is_visible:
            n_visible += 1
            assert found == pytest.approx(probs.max(), rel=1e-12)
            assert posterior.log_bound(Boxes.full(posterior.domain))[0] == pytest.approx(np.log(found), abs=1e-9)
    assert n_visible >= 5


@pytest.mark.nojit
def test_each_matches_brute_force_also_for_states_outside_the_box():
    for rng, case, _, probs in possible_cases(2, 40):
        posterior = build(case, rng)
        domain, points = posterior.domain, case.points()
        mask = rng.random((7, domain.total_states)) < 0.6
        boxes = Boxes(domain, mask)
        masses, bounds = np.exp(posterior.log_mass_each(boxes)), np.exp(answers_in(posterior, boxes).each_bound)
        for i in range(len(domain)):
            for state in range(int(domain.n_states[i])):
                changed = mask.copy()
                changed[:, domain.offsets[i] : domain.offsets[i + 1]] = False
                column = int(domain.offsets[i]) + state
                changed[:, column] = True
                held = inside(domain, changed, points)
                np.testing.assert_allclose(masses[:, column], held @ probs, atol=1e-12)
                assert np.all(bounds[:, column] >= mask[:, column] * np.where(held, probs, 0.0).max(axis=1))


def test_bounds_of_single_points_are_their_probabilities():
    for rng, case, _, _ in possible_cases(3, 10):
        posterior = build(case, rng)
        points = case.points()
        boxes = Boxes.of_points(posterior.domain, points)
        np.testing.assert_allclose(posterior.log_bound(boxes), posterior.log_prob(points), atol=1e-9)


def test_bounds_are_exact_where_every_variable_is_queried():
    for _, case, _, _ in possible_cases(4, 20, random_network):
        everything = make_query(case.query.domain, None, None)
        case.query = everything
        log_evidence, probs = case.brute_force()
        if log_evidence == -np.inf:
            continue
        posterior = build(case)
        bound = posterior.log_bound(Boxes.full(posterior.domain))
        assert bound[0] == pytest.approx(math.log(probs.max()), abs=1e-9)


def test_draws_follow_the_posterior_and_stay_in_their_boxes():
    rng, case, _, probs = next(c for c in possible_cases(5, 40) if len(c[3]) > 12)
    posterior = build(case)
    domain, points = posterior.domain, case.points()
    sizes = [int(k) for k in domain.n_states]
    free = next(i for i, k in enumerate(sizes) if k > 1)
    mask = np.ones((2, domain.total_states), bool)
    mask[:, domain.offsets[free] : domain.offsets[free + 1]] = False
    mask[0, domain.offsets[free]] = mask[1, domain.offsets[free] + 1] = True
    boxes = Boxes(domain, mask)
    keep = np.isfinite(posterior.log_mass(boxes))
    for region, held in (
        (None, np.ones(len(points), bool)),
        (boxes[keep], inside(domain, mask[keep], points).any(0)),
    ):
        drawn = posterior.sample(20000, rng, region)
        counts = np.bincount(np.ravel_multi_index(tuple(drawn.T.astype(int)), sizes), minlength=len(points))
        assert counts[~held].sum() == 0
        expected = np.where(held, probs, 0.0)
        expected = expected / expected.sum() * 20000
        common = expected > 5
        observed = np.append(counts[common], counts[~common].sum())
        wanted = np.append(expected[common], expected[~common].sum())
        if wanted[-1] == 0.0:
            observed, wanted = observed[:-1], wanted[:-1]
        assert chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue > 1e-4


def test_draws_do_not_depend_on_workers_and_repeat_with_the_seed():
    _, case, _, _ = next(possible_cases(6, 10))
    one, two = build(case), build(case, workers=2)
    a = one.sample(9000, np.random.default_rng(3))
    np.testing.assert_array_equal(a, two.sample(9000, np.random.default_rng(3)))
    np.testing.assert_array_equal(a, one.sample(9000, np.random.default_rng(3)))
    np.testing.assert_array_equal(one.log_prob(a[:500]), two.log_prob(a[:500]))


def chain_query(n, weights):
    """A two-state hidden chain of n observables with a slow drift and given emissions."""
    transition = np.array([[0.9, 0.1], [0.2, 0.8]])
    tree = {
        "parent": np.arange(n) - 1,
        "transitions": [transition] * n,
        "priors": {0: np.array([0.5, 0.5])},
        "latent_of": np.arange(n),
        "emissions": [weights] * n,
    }
    return tree, Domain.of_sizes([2] * n)


def test_probabilities_near_the_smallest_floats_do_not_underflow():
    n = 400
    tree, domain = chain_query(n, np.array([[1 - 1e-9, 1e-9], [1 - 1e-7, 1e-7]]))
    posterior = BucketTreePosterior.from_tree(query=make_query(domain), **tree)
    point = np.ones((1, n), np.int16)
    emission = tree["emissions"][0][:, 1]
    log_state, log_scale = np.array([0.5, 0.5]), 0.0
    for i in range(n):
        log_state = (log_state if i == 0 else log_state @ tree["transitions"][0]) * emission
        log_scale += math.log(log_state.sum())
        log_state = log_state / log_state.sum()
    value = posterior.log_prob(point)[0]
    assert value < -4000
    assert value == pytest.approx(log_scale, rel=1e-12)
    each = posterior.log_mass_each(Boxes.of_points(domain, point))
    assert each[0, 1] == pytest.approx(log_scale, rel=1e-12)


def test_separator_states_that_no_float_can_hold_together_are_computed_in_logs():
    # Two halves, each sure of a different state of one hidden variable by a factor of e^-900: scaled linear
    # messages lose both, so that rows like this one must be done again in logarithms.
    n = 60
    tiny = 1e-15
    emissions = [np.array([[1 - tiny, tiny], [tiny, 1 - tiny]])] * (2 * n)
    tree = {
        "parent": np.array([-1]),
        "transitions": [np.zeros((1, 1))],
        "priors": {0: np.array([0.5, 0.5])},
        "latent_of": np.zeros(2 * n, np.int64),
        "emissions": emissions,
    }
    domain = Domain.of_sizes([2] * (2 * n))
    posterior = BucketTreePosterior.from_tree(query=make_query(domain), **tree)
    point = np.repeat(np.array([[0, 1]], np.int16), n, axis=1)
    expected = n * (math.log(tiny) + math.log1p(-tiny))
    assert posterior.log_prob(point)[0] == pytest.approx(expected, rel=1e-12)
    boxes = Boxes.of_points(domain, point)
    assert posterior.log_bound(boxes)[0] == pytest.approx(expected, rel=1e-12)
    each = posterior.log_mass_each(boxes)
    assert each[0, 0] == pytest.approx(expected, rel=1e-12)
    assert each[0, 1] == pytest.approx(expected - math.log(tiny) + math.log1p(-tiny) - math.log(2), rel=1e-9)


def markov(sizes, factors):
    return MarkovNetwork(Domain.of_sizes(sizes), [Factor(scope, table) for scope, table in factors])


def test_impossible_evidence_is_refused():
    network = markov([2, 2], [((0,), [1.0, 0.0]), ((0, 1), [[1.0, 0.0], [0.2, 0.8]])])
    with pytest.raises(ImpossibleEvidence):
        tree_of_network(network, make_query(network.domain, ["0"], {"1": 1}))


def test_tables_that_would_be_too_large_are_refused_before_they_are_built():
    n = 30
    network = markov([2] * n, [((i, j), np.ones((2, 2))) for i in range(n) for j in range(i)])
    with pytest.raises(ModelError, match="induced width 29"):
        tree_of_network(network, make_query(network.domain, ["0"]))


def test_misfits_are_refused():
    network = markov([2, 3], [((0, 1), [[1.0, 1, 1], [0, 0, 0]])])
    query = make_query(network.domain, ["0"])
    real = make_query(Domain([Real("x")]), ["x"])
    with pytest.raises(ModelError, match="categorical"):
        BucketTreePosterior.from_tree(np.array([-1]), [np.ones((1, 1))], {0: np.ones(1)}, np.array([0]), [], real)
    posterior = tree_of_network(network, query)
    box = Boxes(posterior.domain, np.array([[False, True]]))
    with pytest.raises(SolverError, match="probability zero"):
        posterior.sample(3, np.random.default_rng(0), box)
    for state in (-1, 2):
        with pytest.raises(QueryError, match="out of range"):
            posterior.log_prob(np.array([[0], [state]], np.int16))


def test_roots_and_contraction_change_nothing():
    for rng, case, _, probs in possible_cases(7, 25, random_latent_tree):
        for root in range(len(case.tree["parent"])):
            case.tree["root"] = root
            posterior = build(case)
            np.testing.assert_allclose(np.exp(posterior.log_prob(case.points())), probs, atol=1e-12)
            case_as_factors = BucketTreePosterior.from_tree(query=case.query, **case.tree)
            assert case_as_factors.region_tree.n_regions <= len(case.sizes) + len(case.tree["parent"]) + 1
        assert rng is not None


def test_a_narrow_variable_is_kept_where_summing_it_out_would_enlarge_the_tables():
    # Two latent variables of 8 states that emit two variables of 3 states each, and a hidden one between them.
    rng = np.random.default_rng(0)
    for n_states, n_between in ((2, 8 * 2 + 2 * 8), (8, 8 * 8)):
        posterior = BucketTreePosterior.from_tree(
            np.array([-1, 0, 1]),
            [
                np.zeros((1, 1)),
                rng.dirichlet(np.ones(n_states), size=8),
                rng.dirichlet(np.ones(8), size=n_states),
            ],
            {0: rng.dirichlet(np.ones(8))},
            np.array([0, 0, 2, 2]),
            [rng.dirichlet(np.ones(3), size=8) for _ in range(4)],
            make_query(Domain.of_sizes([3] * 4)),
            root=0,
        )
        assert posterior.region_tree.n_entries == 8 + 4 * 8 * 3 + n_between


@pytest.mark.parametrize("workers", [1, 3])
def test_rows_of_later_blocks_equal_rows_alone(workers, monkeypatch):
    monkeypatch.setattr("certimap.trees.bucket_tree.BLOCK_NUMBERS", 1)  # the least block: 64 rows
    for rng, case, _, _ in possible_cases(11, 6):
        posterior = replace(build(case, rng), workers=workers)
        points = np.stack([rng.integers(0, k, 300) for k in posterior.domain.n_states], 1).astype(np.int16)
        alone = np.concatenate([posterior.log_prob(points[i : i + 1]) for i in range(300)])
        np.testing.assert_array_equal(posterior.log_prob(points), alone)
        mask = rng.random((150, posterior.domain.total_states)) < 0.7
        together = posterior.log_bound(Boxes(posterior.domain, mask))
        each = [posterior.log_bound(Boxes(posterior.domain, mask[i : i + 1]))[0] for i in range(150)]
        np.testing.assert_array_equal(together, each)
