"""Bounds of second order on mixtures: never below a value in the box, close to the largest in small ones."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from scipy import optimize

import certimap as cm
from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.circuits.posterior import CircuitPosterior
from certimap.circuits.prober import MixtureProber, flattened
from certimap.core.box import SearchBoxes
from certimap.core.domain import Categorical, Domain, Real
from certimap.core.query import make_query

KINDS = (
    "gaussian",
    "truncated_gaussian",
    "uniform",
    "exponential",
    "laplace",
    "student_t",
    "beta",
    "gamma",
    "lognormal",
)


def leaf(builder: CircuitBuilder, kind: str, variable: int, rng: np.random.Generator) -> int:
    middle, width = float(rng.normal()), float(rng.uniform(0.3, 1.5))
    parameters = {
        "gaussian": (middle, width),
        "truncated_gaussian": (middle, width, middle - width * rng.uniform(0.1, 2.0), math.inf),
        "uniform": (middle - 2.0 * width, middle + 2.0 * width),
        "exponential": (width,),
        "laplace": (middle, width),
        "student_t": (middle, width, float(rng.uniform(0.5, 9.0))),
        "beta": (1.0 + width, 1.0 + abs(middle)),
        "gamma": (1.0 + abs(middle), 1.0 / width),
        "lognormal": (middle, width),
    }
    return builder.real(kind, variable, *parameters[kind])


def mixture(rng: np.random.Generator, n: int, k: int, kinds: tuple[str, ...], states: int = 0) -> Circuit:
    names: list[cm.Categorical | cm.Real] = [Real(f"x{d}") for d in range(n)]
    builder = CircuitBuilder(Domain([*names, *([Categorical("c", tuple(range(states)))] if states else [])]))
    parts = []
    for _ in range(k):
        leaves = [leaf(builder, str(rng.choice(kinds)), d, rng) for d in range(n)]
        if states:
            leaves.append(builder.categorical(n, np.log(rng.dirichlet(np.ones(states))).tolist()))
        parts.append(builder.product(leaves))
    builder.sum(parts, np.log(rng.dirichlet(np.ones(k))).tolist())
    return builder.build()


def prober_of(circuit: Circuit, intervals=None) -> tuple[CircuitPosterior, MixtureProber]:
    query = make_query(circuit.domain, None, intervals or {})
    posterior = CircuitPosterior.from_circuit(circuit, query)
    prober = posterior.prober()
    assert isinstance(prober, MixtureProber)
    return posterior, prober


@pytest.mark.parametrize("seed", range(60))
def test_no_point_of_a_box_is_above_its_bound(seed: int) -> None:
    """1,200 boxes of all widths, each against 400 points: corners and middles, and draws inside."""
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(1, 4)), int(rng.integers(1, 9))
    kinds = ("gaussian",) if seed % 3 == 0 else KINDS
    states = 3 if seed % 5 == 0 else 0
    posterior, prober = prober_of(mixture(rng, n, k, kinds, states))
    middles = rng.normal(0.0, 1.0, (20, n))
    widths = 10.0 ** rng.uniform(-9.0, 1.0, (20, n)) * rng.choice([0.0, 1.0], (20, n), p=[0.1, 0.9])
    low, high = np.zeros((20, n + bool(states))), np.zeros((20, n + bool(states)))
    low[:, :n], high[:, :n] = middles - widths, middles + widths
    columns = 2 * n + states
    answers = prober.probe(SearchBoxes(np.ones((20, columns), np.uint8), low, high))
    for row in range(20):
        shares = rng.random((400, n))
        shares[:200] = rng.choice([0.0, 0.5, 1.0], (200, n))
        points = low[row, :n] + shares * (high[row, :n] - low[row, :n])
        if states:
            points = np.concatenate([np.column_stack([points, np.full(400, s)]) for s in range(states)])
        values = posterior.log_prob(np.minimum(points, np.append(high[row, :n], [states] if states else [])))
        assert answers.log_bound[row] >= values.max()
        gap = answers.log_bound[row] - max(values.max(), -1e300)
        if not states and kinds == ("gaussian",) and np.all(widths[row] <= 1e-5) and values.max() > -50.0:
            assert gap < 1e-9


def test_bounds_of_spikes_and_far_boxes_hold() -> None:
    builder = CircuitBuilder(Domain([Real("x")]))
    builder.sum([builder.gaussian(0, 1e8, 1e-8), builder.gaussian(0, 5.0, 1.0)], [math.log(0.5)] * 2)
    posterior, prober = prober_of(builder.build())
    for low, high in (
        (1e8 - 1e-7, 1e8),
        (1e8, 1e8 + 1e-6),
        (-1e300, 1e300),
        (4.9, 5.2),
        (1e9, 1e12),
        (-math.inf, math.inf),
    ):
        answer = prober.probe(SearchBoxes(np.ones((1, 2), np.uint8), np.array([[low]]), np.array([[high]])))
        points = np.clip(np.array([low, high, 5.0, 1e8, np.nextafter(1e8, 0)]), max(low, -1e300), min(high, 1e300))
        assert answer.log_bound[0] >= posterior.log_prob(points[:, None]).max()
    assert answer.log_bound[0] < math.log(0.5 / (1e-8 * math.sqrt(2.0 * math.pi))) + 1e-7


def log_density(circuit: Circuit):
    posterior, _ = prober_of(circuit)
    return lambda x: float(posterior.log_prob(np.asarray(x, np.float64)[None])[0])


@pytest.mark.parametrize("seed", range(16))
def test_modes_are_those_of_many_local_searches(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    n, k = int(rng.integers(2, 7)), int(rng.integers(2, 21))
    circuit = mixture(rng, n, k, ("gaussian",))
    value = log_density(circuit)
    starts = rng.normal(0.0, 1.0, (12, n))
    best = max(-float(optimize.minimize(lambda x: -value(x), x, method="BFGS").fun) for x in starts)
    result = cm.map_query(circuit, epsilon=0.01, rng=seed, time_limit=600)
    assert result.certified
    assert result.log_prob is not None
    assert result.log_upper_bound is not None
    assert result.log_prob >= best - 1e-9
    assert result.log_upper_bound >= result.log_prob
    assert result.log_prob == pytest.approx(value([result.assignment[v] for v in circuit.domain.names]), rel=1e-12)


@pytest.mark.slow
def test_an_interval_without_any_mean_has_its_maximum_on_the_border() -> None:
    rng = np.random.default_rng(7)
    circuit = mixture(rng, 3, 6, ("gaussian",))
    result = cm.map_query(circuit, evidence={"x0": (4.0, 9.0), "x2": (-9.0, -3.0)}, epsilon=0.01, rng=0)
    assert result.certified
    assert result.assignment["x0"] == 4.0
    assert result.assignment["x2"] == -3.0
    xs = np.linspace(-4.0, 4.0, 4001)
    posterior, _ = prober_of(circuit, {"x0": (4.0, 9.0), "x2": (-9.0, -3.0)})
    grid = posterior.log_prob(np.column_stack([np.full(4001, 4.0), xs, np.full(4001, -3.0)]))
    assert result.log_prob is not None
    assert result.log_prob >= grid.max() - 1e-9


def gaussians(*parts: tuple[float, tuple[float, ...], float]) -> Circuit:
    """Round components: weight, means, sd."""
    builder = CircuitBuilder(Domain([Real(f"x{d}") for d in range(len(parts[0][1]))]))
    products = [
        builder.product([builder.gaussian(d, m, sd) for d, m in enumerate(means)]) for _, means, sd in parts
    ]
    builder.sum(products, [math.log(w) for w, _, _ in parts])
    return builder.build()


def test_the_mode_between_two_means() -> None:
    result = cm.map_query(gaussians((0.5, (-0.9,), 1.0), (0.5, (0.9,), 1.0)), epsilon=1e-6, rng=0)
    assert result.certified
    assert result.assignment["x0"] == pytest.approx(0.0, abs=1e-3)
    assert math.exp(result.log_prob or 0.0) == pytest.approx(0.26608524989875482, rel=1e-9)


def test_a_spike_is_found_and_is_no_probability() -> None:
    result = cm.map_query(gaussians((0.5, (0.0,), 1e-8), (0.5, (5.0,), 1.0)), epsilon=0.01, rng=0)
    assert result.certified
    assert result.assignment["x0"] == 0.0
    assert result.log_prob == pytest.approx(math.log(0.5 / (1e-8 * math.sqrt(2.0 * math.pi))), rel=1e-12)
    assert result.log_prob == pytest.approx(16.81, abs=0.01)
    assert "probability" not in str(result)
    assert "probable" not in str(result)
    assert "density" in str(result)
    assert result.to_dict()["is_density"] is True


def test_more_modes_than_components() -> None:
    """Three round components on a triangle of the right width have a fourth mode at its middle, the highest."""
    corners = [(math.cos(a), math.sin(a)) for a in (math.pi / 2, math.pi * 7 / 6, math.pi * 11 / 6)]
    circuit = gaussians(*((1 / 3, c, 0.737) for c in corners))
    result = cm.map_query(circuit, epsilon=1e-4, rng=0)
    assert result.certified
    assert math.hypot(float(result.assignment["x0"]), float(result.assignment["x1"])) < 0.1
    corner = cm.map_query(
        circuit, evidence={"x1": (0.4, 0.6)}, epsilon=1e-6, rng=0
    )  # one of the other three modes
    assert 0.4 < corner.assignment["x1"] < 0.6


def test_a_state_under_gaussian_evidence_is_bayes_rule() -> None:
    builder = CircuitBuilder(Domain([Categorical("c", ("a", "b")), Real("x")]))
    parts = [
        builder.product([builder.indicator(0, s), builder.gaussian(1, m, sd)])
        for s, m, sd in ((0, 0.0, 1.0), (1, 2.0, 0.5))
    ]
    builder.sum(parts, np.log([0.7, 0.3]).tolist())
    circuit = builder.build()
    weights = np.array([0.7 * math.exp(-0.5), 0.3 / 0.5 * math.exp(-0.5 * 4.0)])
    result = cm.map_query(circuit, ["c"], {"x": 1.0})
    assert result.assignment == {"c": "a"}
    assert result.log_prob == pytest.approx(math.log(weights[0] / weights.sum()), rel=1e-12)
    both = cm.map_query(circuit, epsilon=1e-3, rng=0)  # the peak of "b" is lower: .3/.5 < .7
    assert both.certified
    assert both.assignment["c"] == "a"


def test_the_densest_state_wins_over_the_most_probable() -> None:
    builder = CircuitBuilder(Domain([Categorical("c", ("wide", "narrow")), Real("x")]))
    parts = [
        builder.product([builder.indicator(0, s), builder.gaussian(1, 0.0, sd)]) for s, sd in ((0, 1.0), (1, 0.01))
    ]
    builder.sum(parts, np.log([0.9, 0.1]).tolist())
    circuit = builder.build()
    joint = cm.map_query(circuit, epsilon=1e-3, rng=0)
    assert joint.certified
    assert joint.assignment["c"] == "narrow"
    assert cm.map_query(circuit, ["c"]).assignment == {"c": "wide"}


def test_products_of_sums_are_multiplied_out() -> None:
    builder = CircuitBuilder(Domain([Real("x"), Real("y")]))
    sums = [
        builder.sum([builder.gaussian(v, m, 1.0) for m in (-0.5, 0.7, 1.5)], np.log([0.2, 0.3, 0.5]).tolist())
        for v in (0, 1)
    ]
    builder.product(sums)
    posterior, _prober = prober_of(builder.build())
    flat = flattened(posterior.plan)
    assert flat is not None
    assert len(flat.log_weights) == 9
    assert np.exp(flat.log_weights).sum() == pytest.approx(1.0)
    result = cm.map_query(builder.build(), epsilon=1e-5, rng=0)
    assert result.certified
    assert result.assignment["x"] == pytest.approx(result.assignment["y"], abs=1e-2)


def test_thousands_of_products_are_multiplied_out_where_all_variables_are_real() -> None:
    rng = np.random.default_rng(4)
    builder = CircuitBuilder(Domain([Real("x"), Real("y"), Categorical("c", (0, 1))]))
    sums = [
        builder.sum([builder.gaussian(v, float(m), 0.7) for m in rng.normal(size=60)], [math.log(1 / 60)] * 60)
        for v in (0, 1)
    ]
    builder.product([*sums, builder.categorical(2, np.log([0.4, 0.6]).tolist())])
    circuit = builder.build()
    both = CircuitPosterior.from_circuit(circuit, make_query(circuit.domain, None, {}))
    assert flattened(both.plan) is None
    reals = CircuitPosterior.from_circuit(circuit, make_query(circuit.domain, ["x", "y"], {}))
    flat = flattened(reals.plan)
    assert flat is not None
    assert len(flat.log_weights) == 3600
    result = cm.map_query(circuit, ["x", "y"], epsilon=0.01, solver="frontier", rng=0, time_limit=600)
    assert result.certified


@pytest.mark.parametrize("seed", range(6))
def test_climbs_end_where_the_density_is_level(seed: int) -> None:
    rng = np.random.default_rng(200 + seed)
    n = int(rng.integers(1, 6))
    posterior, prober = prober_of(mixture(rng, n, int(rng.integers(1, 30)), ("gaussian",)))
    assert prober.is_gaussian
    starts = rng.normal(0.0, 2.0, (20, n))
    reached = prober.climb(starts)
    assert np.all(posterior.log_prob(reached) >= posterior.log_prob(starts) - 1e-12)
    for step in 1e-4 * np.eye(n):
        slopes = (posterior.log_prob(reached + step) - posterior.log_prob(reached - step)) / 2e-4
        assert np.all(np.abs(slopes) < 1e-4)


def test_time_that_is_up_with_the_first_answers_leaves_a_finite_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    circuit = mixture(np.random.default_rng(3), 6, 40, ("gaussian",))
    cm.map_query(circuit, epsilon=0.5, solver="frontier", rng=0)  # kernels are compiled now
    climbing = MixtureProber.starts

    def slow_starts(prober: MixtureProber) -> np.ndarray:
        time.sleep(0.6)
        return climbing(prober)

    monkeypatch.setattr(MixtureProber, "starts", slow_starts)
    result = cm.map_query(circuit, epsilon=1e-9, solver="frontier", rng=0, time_limit=0.5)
    assert result.log_prob is not None
    assert result.log_upper_bound is not None
    assert result.log_prob <= result.log_upper_bound < math.inf
