"""Optimistic searches: their bounds at every step against the mode, their assumptions, what is refused."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest

import certimap as cm
from certimap.certify.ledger import Ledger
from certimap.errors import SolverError
from certimap.solvers.registry import make

LN2 = math.log(2.0)


def mixture(seed: int, n: int, k: int = 5) -> cm.Circuit:
    rng = np.random.default_rng(seed)
    builder = cm.CircuitBuilder(cm.Domain([cm.Real(f"x{d}") for d in range(n)]))
    parts = [
        builder.product(
            [builder.gaussian(d, float(rng.uniform(-2, 2)), float(rng.uniform(0.4, 1.5))) for d in range(n)]
        )
        for _ in range(k)
    ]
    builder.sum(parts, np.log(rng.dirichlet(np.ones(k))).tolist())
    return builder.build()


def cone(peak: np.ndarray, bits: float) -> cm.FunctionPosterior:
    """A density (but for its total) whose log2 falls by `bits` per unit of distance from its only peak."""
    domain = cm.Domain([cm.Real(f"x{d}", -1.0, 2.0) for d in range(len(peak))])
    n = len(peak)
    return cm.FunctionPosterior(
        domain,
        lambda size, rng: rng.uniform(-1.0, 2.0, (size, n)),
        lambda points: -bits * LN2 * np.linalg.norm(points - peak, axis=1),
        normalised=False,
    )


@pytest.mark.parametrize("solver", ["doo", "soo", "hoo"])
@pytest.mark.parametrize(("seed", "n"), [(0, 1), (1, 1), (2, 2), (3, 2), (4, 3)])
def test_bounds_of_boxes_certify_and_no_step_is_below_the_mode(solver: str, seed: int, n: int) -> None:
    posterior = cm.condition(mixture(seed, n))
    mode = cm.map_query(posterior, epsilon=1e-6, rng=0)
    moments: list = []
    result = cm.map_query(posterior, solver=solver, epsilon=0.02, rng=seed, progress=moments.append)
    assert all(moment.log_upper_bound >= mode.log_prob - 1e-9 for moment in moments)
    assert result.log_prob <= mode.log_upper_bound + 1e-9
    if solver != "hoo":
        assert result.certificate.kind == "epsilon"
        assert not result.certificate.assumptions


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_lipschitz_constant_certifies_under_its_name(n: int) -> None:
    rng = np.random.default_rng(n)
    for _ in range(5):
        peak = rng.uniform(-0.9, 1.9, n)
        moments: list = []
        result = cm.map_query(
            cone(peak, 1.5), solver="doo", lipschitz=1.5, epsilon=0.05, rng=0, progress=moments.append
        )
        assert result.certificate.kind == "epsilon"
        assert "at most 1.5 bits per unit" in result.certificate.assumptions[0]
        assert math.log(0.95) <= result.log_joint <= 0.0
        assert all(moment.log_upper_bound >= -1e-9 for moment in moments)


def test_a_constant_that_is_too_small_is_named_in_what_it_led_to() -> None:
    result = cm.map_query(cone(np.array([1.63]), 40.0), solver="doo", lipschitz=0.01, epsilon=0.05, rng=0)
    assert result.certificate.assumptions


def test_soo_needs_no_constant_and_claims_nothing() -> None:
    peak = np.array([0.37, 1.2])
    result = cm.map_query(cone(peak, 2.0), solver="soo", max_cuts=2000, rng=0)
    assert list(result.assignment.values()) == pytest.approx(peak.tolist(), abs=1e-3)
    assert result.certificate.kind == "none"
    assert result.log_joint_upper_bound in (None, math.inf)


def test_the_regret_of_doo_falls_as_its_statement_says() -> None:
    """Near-optimality dimension 0: an exponential fall, by a factor of 3 per some cuts along each side."""
    posterior, solver = cone(np.array([0.123, 0.456]), 3.0), make("doo", lipschitz=3.0)
    ledger = Ledger(posterior, epsilon=1e-9, delta=0.0)
    state = solver.init(posterior, ledger.control, np.random.default_rng(0))
    regrets = []
    for _ in range(40):
        state = solver.step(state, ledger)
        regrets.append(ledger.log_upper_bound - ledger.best_log_prob)
    assert -ledger.best_log_prob <= regrets[-1]
    assert regrets[-1] < 1e-3 * regrets[5]


@pytest.mark.parametrize("solver", ["doo", "soo", "hoo"])
def test_seeds_replay_and_states_pickle(solver: str) -> None:
    posterior, made = cm.condition(mixture(7, 2)), make(solver)
    found = []
    for pickled in (False, True):
        ledger = Ledger(posterior, epsilon=0.0, delta=0.0)
        state = made.init(posterior, ledger.control, np.random.default_rng(3))
        for _ in range(6):
            state = made.step(pickle.loads(pickle.dumps(state)) if pickled else state, ledger)
        found.append((ledger.best, ledger.log_upper_bound))
    assert found[0] == found[1]


def test_a_far_component_is_found_beyond_the_window() -> None:
    builder = cm.CircuitBuilder(cm.Domain([cm.Real("x")]))
    builder.sum(
        [builder.gaussian(0, 0.0, 1.0), builder.real("uniform", 0, 1e5, 1e5 + 1e-3)],
        [math.log(0.9), math.log(0.1)],
    )
    for solver in ("doo", "soo"):
        result = cm.map_query(builder.build(), solver=solver, rng=0)
        assert result.certified
        assert 1e5 <= result.assignment["x"] <= 1e5 + 1e-3


def test_what_optimism_cannot_search_is_refused_in_a_sentence() -> None:
    posterior = cone(np.array([0.5]), 1.0)
    with pytest.raises(SolverError, match="use solver='soo'"):
        cm.map_query(posterior, solver="doo")
    free = cm.FunctionPosterior(
        cm.Domain([cm.Real("x")]), lambda n, rng: rng.normal(size=(n, 1)), lambda p: -(p[:, 0] ** 2)
    )
    for solver in ("doo", "soo", "hoo"):
        options = {"lipschitz": 1.0} if solver == "doo" else {}
        with pytest.raises(SolverError, match="two ends"):
            cm.map_query(free, solver=solver, **options)
        with pytest.raises(SolverError, match="categorical; use solver='frontier'"):
            cm.map_query(
                cm.FunctionPosterior([2], lambda n, rng: np.zeros((n, 1)), lambda p: p[:, 0] * 0),
                solver=solver,
                **options,
            )
    builder = cm.CircuitBuilder(cm.Domain([cm.Real("n")]))
    builder.real("poisson", 0, 3.0)
    with pytest.raises(SolverError, match="is a count"):
        cm.map_query(builder.build(), solver="soo")
    with pytest.raises(SolverError, match="lipschitz is"):
        make("doo", lipschitz=0.0)
    with pytest.raises(SolverError, match="falloff"):
        make("hoo", falloff=1.0)
    with pytest.raises(SolverError, match="max_cuts"):
        make("soo", max_cuts=0)


NARROW = [(-0.7037352358069926, -0.7027352358069926), (0.3, 0.3 + 1e-12), (1.0, 1.0 + 1e-5), (-3.0, 40.0)]


@pytest.mark.parametrize("solver", ["doo", "soo", "hoo"])
@pytest.mark.parametrize("ends", NARROW)
@pytest.mark.parametrize("full", [True, False])
def test_answers_lie_inside_the_evidence_interval(solver: str, ends: tuple[float, float], full: bool) -> None:
    """The largest density inside is that of a Gaussian at the place nearest to its mean."""
    covariance = np.array([[1.0, 0.2], [0.2, 1.0]]) if full else np.eye(2)
    model = cm.GaussianMixture([1.0], [[0.0, 0.0]], [covariance], ["a", "b"]) if full else mixture(3, 1, 1)
    names = model.domain.names
    first = min(max(0.0, ends[0]), ends[1])
    result = cm.map_query(
        model, None, {names[0]: ends}, solver=solver, epsilon=0.05, delta=0.0, rng=2, max_nodes=3000
    )
    assert ends[0] <= result.assignment[names[0]] <= ends[1]
    assert result.log_joint > -math.inf
    if full:
        log_best = -0.5 * first**2 - 0.5 * math.log(0.96) - math.log(2.0 * math.pi)
        assert result.log_joint <= log_best + 1e-9 <= result.log_joint_upper_bound + 2e-9
        if result.certificate.kind != "none":
            assert result.log_joint >= log_best + math.log1p(-result.certificate.epsilon) - 1e-9


@pytest.mark.parametrize("solver", ["doo", "soo", "hoo", "frontier"])
@pytest.mark.parametrize("sd", [1e-160, 1e-140, 1e155])
def test_answers_and_bounds_are_numbers_at_the_ends_of_the_float_range(solver: str, sd: float) -> None:
    builder = cm.CircuitBuilder(cm.Domain([cm.Real("x"), cm.Real("y")]))
    leaves = [(0.0, sd, 1.0), (sd, 3.0 * sd, 1e-160), (-1e300, 1e155, 2.0)]
    parts = [builder.product([builder.gaussian(0, a, b), builder.gaussian(1, 0.5, c)]) for a, b, c in leaves]
    builder.sum(parts, np.log([0.5, 0.3, 0.2]).tolist())
    result = cm.map_query(builder.build(), solver=solver, epsilon=0.1, delta=0.0, rng=0, max_nodes=300)
    numbers = [*result.assignment.values(), result.log_prob, result.log_upper_bound]
    assert not any(math.isnan(number) for number in numbers)
    assert result.log_prob <= result.log_upper_bound
    assert all(math.isfinite(value) for value in result.assignment.values())


def test_variances_that_no_double_holds_the_inverse_of_are_refused() -> None:
    with pytest.raises(cm.errors.ModelError, match="another unit"):
        cm.GaussianMixture([1.0], [[0.0]], [[[1e-320]]])
