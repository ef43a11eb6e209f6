"""Hybrid belief propagation, beams, climbs, chains and tree search on random circuits."""

from __future__ import annotations

import itertools
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from messages_twin import Propagation as Twin

import certimap as cm
from certimap.circuits.circuit import CircuitBuilder
from certimap.circuits.posterior import CircuitPosterior
from certimap.circuits.walks import Propagation
from certimap.core.query import make_query
from certimap.errors import SolverError

NAMES = ("hybrid_bp", "beam", "hill_climb", "mcmc", "mcts")


def random_posterior(seed: int, n_variables: int = 5, smallest: float = 0.0) -> CircuitPosterior:
    """A circuit whose nodes over the same variables are shared at random."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 4, n_variables)
    builder = CircuitBuilder(cm.Domain([cm.Categorical(f"x{i}", tuple(range(k))) for i, k in enumerate(sizes)]))
    known: dict[tuple[int, ...], list[int]] = {}

    def node(scope: tuple[int, ...]) -> int:
        if scope in known and rng.random() < 0.5:
            return int(rng.choice(known[scope]))
        if len(scope) == 1:
            weights = rng.dirichlet(np.ones(sizes[scope[0]])) * (1.0 - smallest) + smallest / sizes[scope[0]]
            made = builder.categorical(scope[0], log_weights=np.log(weights))
        else:
            products = []
            for _ in range(rng.integers(2, 4)):
                order = [int(i) for i in rng.permutation(scope)]
                cut = int(rng.integers(1, len(order)))
                products.append(builder.product([node(tuple(sorted(p))) for p in (order[:cut], order[cut:])]))
            made = builder.sum(products, log_weights=np.log(rng.dirichlet(np.ones(len(products)))))
        known.setdefault(scope, []).append(made)
        return made

    node(tuple(range(n_variables)))
    circuit = builder.build(normalised=False)
    return CircuitPosterior.from_circuit(circuit, make_query(circuit.domain))


def all_values(posterior) -> np.ndarray:
    points = np.array(list(itertools.product(*(range(k) for k in posterior.domain.n_states))), np.int16)
    return posterior.log_prob(points)


@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.4]))
@settings(max_examples=40)
def test_messages_are_those_of_the_twin(seed, damping):
    posterior = random_posterior(seed, 4, smallest=0.05)
    fast, slow = Propagation(posterior.plan, damping), Twin(posterior.plan, damping)
    for _ in range(3):
        points, _ = fast.advance()
        beliefs = slow.sweep()
        found = np.split(fast._messages.belief, posterior.domain.offsets[1:-1])
        for own, expected in zip(found, beliefs, strict=True):
            np.testing.assert_allclose(own, np.log(expected), atol=1e-6)
        assert [own[x] for own, x in zip(beliefs, points[0].tolist(), strict=True)] == pytest.approx(
            [1.0] * len(beliefs)
        )


@given(st.integers(0, 2**32), st.sampled_from(NAMES))
@settings(max_examples=60)
def test_answers_are_scored_exactly_and_prove_nothing(seed, name):
    posterior = random_posterior(seed)
    result = cm.map_query(posterior, solver=name, rng=seed)
    assert result.log_prob == pytest.approx(
        float(posterior.log_prob(posterior.domain.encode(result.assignment)[None, :])[0]), abs=1e-10
    )
    best = float(np.max(all_values(posterior)))
    assert result.log_prob <= best + 1e-9
    assert result.certificate.kind != "exact" or result.log_prob >= best - 1e-8


@given(st.integers(0, 2**32))
@settings(max_examples=30)
def test_a_beam_as_wide_as_the_space_finds_the_optimum(seed):
    posterior = random_posterior(seed)
    values = all_values(posterior)
    points = posterior.beam(len(values), lambda: False)
    assert float(posterior.log_prob(points[:1])[0]) == pytest.approx(float(values.max()), abs=1e-10)
    np.testing.assert_allclose(np.sort(posterior.log_prob(points)), np.sort(values), atol=1e-9)


@given(st.integers(0, 2**32))
@settings(max_examples=30)
def test_a_beam_of_one_is_no_worse_than_its_own_cheap_end(seed):
    posterior = random_posterior(seed)
    stopped = posterior.beam(3, lambda: True)
    assert stopped.shape[1] == len(posterior.domain)
    assert np.all(np.isfinite(posterior.log_prob(stopped)))


@given(st.integers(0, 2**32))
@settings(max_examples=30)
def test_tree_search_that_ends_by_itself_has_seen_everything(seed):
    posterior = random_posterior(seed, 4)
    result = cm.map_query(posterior, solver="mcts", simulations=10_000, rng=0)
    assert result.log_prob == pytest.approx(float(all_values(posterior).max()), abs=1e-9)
    assert result.n_evaluations <= len(all_values(posterior))


@given(st.integers(0, 2**32))
@settings(max_examples=20)
def test_climbs_end_where_no_single_change_helps(seed):
    posterior = random_posterior(seed)
    result = cm.map_query(posterior, solver="hill_climb", restarts=1, rng=seed)
    point = posterior.domain.encode(result.assignment)
    for i, k in enumerate(posterior.domain.n_states.tolist()):
        for a in range(k):
            other = point.copy()
            other[i] = a
            assert float(posterior.log_prob(other[None, :])[0]) <= result.log_prob + 1e-9


@pytest.mark.parametrize("name", ["hill_climb", "mcmc"])
def test_a_posterior_of_callables_is_enough(name):
    domain = cm.Domain([cm.Categorical(f"x{i}", (0, 1)) for i in range(6)])

    def log_prob(points):
        return np.sum(np.log(np.where(points == 1, 0.7, 0.3)), axis=1)

    posterior = cm.FunctionPosterior(
        domain, lambda n, rng: (rng.random((n, 6)) < 0.7).astype(np.int16), log_prob, log_evidence=0.0
    )
    result = cm.map_query(posterior, solver=name, rng=0)
    assert result.assignment == {f"x{i}": 1 for i in range(6)}
    assert result.log_prob == pytest.approx(6 * math.log(0.7))


@pytest.mark.parametrize("name", NAMES)
def test_real_variables_are_refused_or_searched(name):
    builder = CircuitBuilder(cm.Domain([cm.Real("x")]))
    builder.gaussian(0, 0.0, 1.0)
    circuit = builder.build(normalised=False)
    if name == "beam":
        assert cm.map_query(circuit, solver=name).assignment["x"] == pytest.approx(0.0)
        return
    with pytest.raises(SolverError, match="categorical query variables"):
        cm.map_query(circuit, solver=name)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("hybrid_bp", {"iterations": 0}),
        ("hybrid_bp", {"damping": 1.0}),
        ("hybrid_bp", {"min_change": math.nan}),
        ("beam", {"width": 0}),
        ("hill_climb", {"restarts": 0}),
        ("mcmc", {"cold": 0.0}),
        ("mcmc", {"sweeps": 0}),
        ("mcts", {"simulations": 0}),
        ("mcts", {"exploration": -1.0}),
    ],
)
def test_settings_out_of_range_are_refused(name, options):
    with pytest.raises(SolverError, match="expected"):
        cm.map_query(random_posterior(0), solver=name, **options)


@pytest.mark.parametrize("name", NAMES)
def test_they_warm_a_proof_and_same_seeds_give_same_answers(name):
    posterior = random_posterior(7)
    first, second = (cm.map_query(posterior, solver=name, rng=3) for _ in range(2))
    assert first.assignment == second.assignment
    warmed = cm.map_query(posterior, solver="frontier", warm_start=name, rng=0)
    assert warmed.certificate.kind == "exact"


@pytest.mark.slow
def test_messages_pickle_between_sweeps():
    posterior = random_posterior(11)
    propagation = Propagation(posterior.plan, 0.2)
    propagation.advance()
    copy = pickle.loads(pickle.dumps(propagation))
    np.testing.assert_array_equal(propagation.advance()[0], copy.advance()[0])
    np.testing.assert_array_equal(propagation._messages.belief, copy._messages.belief)
