"""Mixtures of Gaussians with full covariances: closed forms, certified modes, bounds against points of boxes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize, stats

import certimap as cm
from certimap.core.box import SearchBoxes
from certimap.core.query import make_query
from certimap.densities.conditioned import conditioned
from certimap.densities.posterior import NormalsPosterior, SampledNormals
from certimap.errors import ModelError, QueryError


def random_mixture(rng: np.random.Generator, k: int, n: int, spread: float = 1.0) -> cm.GaussianMixture:
    roots = rng.normal(0.0, 1.0, (k, n, n))
    covariances = roots @ np.swapaxes(roots, 1, 2) / n + 0.1 * np.eye(n)
    return cm.GaussianMixture(rng.dirichlet(np.ones(k)), rng.uniform(-spread, spread, (k, n)), covariances)


def by_scipy(model: cm.GaussianMixture, points: np.ndarray) -> np.ndarray:
    weights = np.exp(model.log_weights)
    laws = [stats.multivariate_normal(m, c) for m, c in zip(model.means, model.covariances, strict=True)]
    return np.log(np.atleast_1d(sum(w * law.pdf(points) for w, law in zip(weights, laws, strict=True))))


def posterior_of(model: cm.GaussianMixture, evidence=None, variables=None) -> NormalsPosterior:
    return conditioned(model, make_query(model.domain, variables, evidence), 1)


def test_densities_marginals_and_conditionals() -> None:
    rng = np.random.default_rng(0)
    model = random_mixture(rng, 5, 4)
    points = rng.normal(0.0, 1.5, (50, 4))
    assert model.log_density(points) == pytest.approx(by_scipy(model, points), rel=1e-9)
    part = model.marginal(["2", "0"])
    assert part.domain.names == ("2", "0")
    grid = np.linspace(-12.0, 12.0, 241)
    lines = np.zeros((241, 3))
    three = model.marginal(["0", "1", "2"])
    lines[:, 0], lines[:, 1], lines[:, 2] = 0.3, grid, -0.4
    summed = np.trapezoid(np.exp(three.log_density(lines)), grid)
    assert math.exp(part.log_density([[-0.4, 0.3]])[0]) == pytest.approx(summed, rel=1e-8)
    rest, log_evidence = model.given({"1": 0.7, "3": -0.2})
    assert log_evidence == pytest.approx(model.marginal(["1", "3"]).log_density([[0.7, -0.2]])[0], rel=1e-10)
    whole = np.column_stack([points[:, 0], np.full(50, 0.7), points[:, 1], np.full(50, -0.2)])
    assert rest.log_density(points[:, :2]) + log_evidence == pytest.approx(model.log_density(whole), rel=1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_no_point_of_a_box_is_above_its_bound(seed: int) -> None:
    """800 boxes of all widths, some unbounded, against corners, middles and draws inside."""
    rng = np.random.default_rng(seed)
    k, n = int(rng.integers(1, 7)), int(rng.integers(1, 4))
    posterior = posterior_of(random_mixture(rng, k, n))
    widths = 10.0 ** rng.uniform(-9.0, 1.0, (20, n)) * rng.choice([0.0, 1.0], (20, n), p=[0.1, 0.9])
    middles = rng.normal(0.0, 1.0, (20, n))
    low, high = middles - widths, middles + widths
    answers = posterior.prober().probe(SearchBoxes(np.ones((20, 2 * n), np.uint8), low, high))
    half = posterior.prober().probe(SearchBoxes(np.ones((20, 2 * n), np.uint8), np.full((20, n), -np.inf), high))
    for row in range(20):
        shares = rng.random((400, n))
        shares[:200] = rng.choice([0.0, 0.5, 1.0], (200, n))
        points = np.minimum(low[row] + shares * (high[row] - low[row]), high[row])
        values = posterior.log_prob(points)
        assert answers.log_bound[row] >= values.max()
        assert half.log_bound[row] >= values.max()
        if np.all(widths[row] <= 1e-5) and values.max() > -50.0:
            assert answers.log_bound[row] - values.max() < 1e-8


@pytest.mark.parametrize("seed", range(10))
def test_modes_are_those_of_many_local_searches(seed: int) -> None:
    rng = np.random.default_rng(50 + seed)
    n = int(rng.integers(2, 5))
    model = random_mixture(rng, int(rng.integers(2, 11)), n)
    starts = rng.normal(0.0, 1.0, (12, n))
    found = [
        optimize.minimize(lambda x: -float(model.log_density(x[None])[0]), x, method="BFGS").fun for x in starts
    ]
    result = cm.map_query(model, epsilon=0.01, rng=seed, time_limit=600)
    assert result.certified
    assert result.is_density
    assert result.log_prob is not None
    assert result.log_prob >= -min(found) - 1e-9
    answer = np.array([[result.assignment[name] for name in model.domain.names]])
    assert result.log_prob == pytest.approx(by_scipy(model, answer)[0], rel=1e-9)


def test_evidence_conditions_and_the_rest_is_integrated_out() -> None:
    model = random_mixture(np.random.default_rng(3), 4, 4)
    result = cm.map_query(model, ["0", "2"], {"3": 0.5}, epsilon=1e-4, rng=0)
    assert result.certified
    exact, log_evidence = model.marginal(["0", "2", "3"]).given({"3": 0.5})
    assert result.log_evidence == pytest.approx(log_evidence, rel=1e-12)
    axis = np.linspace(-3.0, 3.0, 301)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    best = exact.log_density(grid).max()
    assert result.log_prob is not None
    assert best - 1e-4 <= result.log_prob <= best + 1e-2


def test_an_interval_without_any_mean_has_its_maximum_on_the_border() -> None:
    model = random_mixture(np.random.default_rng(4), 4, 2)
    result = cm.map_query(model, None, {"0": (3.0, 5.0)}, epsilon=1e-3, rng=0)
    assert result.certified
    assert result.assignment["0"] == pytest.approx(3.0, abs=1e-9)
    assert result.log_prob is None  # the mass of the interval has no closed form
    axis = np.linspace(-6.0, 6.0, 4001)
    best = model.log_density(np.column_stack([np.full(4001, 3.0), axis])).max()
    assert result.log_joint == pytest.approx(best, abs=2e-3)


def test_draws_have_the_moments() -> None:
    model = random_mixture(np.random.default_rng(5), 3, 3)
    posterior = posterior_of(model)
    assert isinstance(posterior, SampledNormals)
    draws = posterior.sample(40000, np.random.default_rng(0))
    weights = np.exp(model.log_weights)
    mean = weights @ model.means
    second = np.einsum("k,kde->de", weights, model.covariances + np.einsum("kd,ke->kde", model.means, model.means))
    assert draws.mean(axis=0) == pytest.approx(mean, abs=0.03)
    assert np.cov(draws.T) == pytest.approx(second - np.outer(mean, mean), abs=0.08)


def test_thin_components_across_each_other() -> None:
    """Two needles of correlation .9999, which cross at the highest point."""
    thin = np.array([[1.0, 0.9999], [0.9999, 1.0]])
    model = cm.GaussianMixture(
        [0.5, 0.5], [[-0.5, -0.5], [-0.5, 0.5]], [thin, thin * [[1, -1], [-1, 1]]], ["x", "y"]
    )
    result = cm.map_query(model, epsilon=0.01, rng=0, time_limit=600)
    assert result.certified
    axis = np.linspace(-1.2, 0.8, 2001)
    best = max(model.log_density(np.column_stack([axis, sign * axis])).max() for sign in (1.0, -1.0))
    assert result.log_prob is not None
    assert result.log_prob >= best - 1e-9


def test_what_is_no_mixture_is_refused() -> None:
    for weights, means, covariances, words in (
        ([1.0], [[0.0]], [[[1.0, 0.0]]], "shapes"),
        ([0.0], [[0.0]], [[[1.0]]], "positive weights"),
        ([1.0], [[math.nan]], [[[1.0]]], "finite means"),
        ([1.0], [[0.0, 0.0]], [[[1.0, 0.5], [0.4, 1.0]]], "not symmetric"),
        ([1.0], [[0.0, 0.0]], [[[1.0, 1.0], [1.0, 1.0]]], "not positive definite"),
    ):
        with pytest.raises(ModelError, match=words):
            cm.GaussianMixture(weights, means, covariances)
    with pytest.raises(QueryError, match="no variable"):
        cm.GaussianMixture([1.0], [[0.0]], [[[1.0]]], ["x"]).marginal(["y"])


@pytest.mark.parametrize("kind", ["full", "tied"])
def test_a_fitted_mixture_of_scikit_learn(kind: str) -> None:
    from sklearn.datasets import load_iris
    from sklearn.mixture import GaussianMixture

    rows = load_iris().data
    fitted = GaussianMixture(3, covariance_type=kind, random_state=0).fit(rows)
    model = cm.from_object(fitted)
    assert isinstance(model, cm.GaussianMixture)
    assert model.log_density(rows) == pytest.approx(fitted.score_samples(rows), rel=1e-9)
    result = cm.map_query(model, ["2", "3"], {"0": 5.0, "1": 3.4}, epsilon=0.01, rng=0, time_limit=600)
    assert result.certified
    assert result.assignment["2"] == pytest.approx(1.46, abs=0.2)


def test_files_hold_every_digit_and_damage_is_refused(tmp_path) -> None:
    model = random_mixture(np.random.default_rng(5), 6, 3)
    model.write(tmp_path / "mixture.npz")
    again = cm.read(tmp_path / "mixture.npz")
    assert again.domain == model.domain
    for name, values in model.to_arrays().items():
        assert np.array_equal(again.to_arrays()[name], values)
    points = np.random.default_rng(6).normal(size=(20, 3))
    assert np.array_equal(again.log_density(points), model.log_density(points))
    for name, values in (
        ("log_weights", np.zeros(6)),
        ("log_weights", np.full(6, np.nan)),
        ("covariances", -model.covariances),
        ("means", model.means[:5]),
    ):
        with pytest.raises(ModelError):
            cm.GaussianMixture.from_arrays(model.domain, {**model.to_arrays(), name: values})
    with pytest.raises(ModelError, match="without limits"):
        cm.GaussianMixture.from_arrays(cm.Domain([cm.Real(x, 0.0) for x in "012"]), model.to_arrays())


@pytest.mark.parametrize("kind", ["full", "windows", "mixed"])
def test_climbs_end_where_the_time_is_up(kind, monkeypatch):
    """Every step of a climb looks at the clock; a late one leaves points where they are."""
    from certimap.core.control import Control

    rng = np.random.default_rng(0)
    model = cm.GaussianMixture(np.ones(200), 3.0 * rng.normal(size=(200, 3)), [np.eye(3)] * 200, ["a", "b", "c"])
    query, evidence = (["a", "b"], {"c": (0.0, 1.0)}) if kind == "windows" else (None, None)
    if kind == "mixed":
        table = cm.BayesianNetwork.from_cpts({"d": [0, 1]}, {}, {"d": [0.3, 0.7]})
        model = cm.LinearGaussianNetwork([cm.LinearGaussian("x", ["d"], [0.0, 5.0])], table)
    posterior = cm.condition(model, query, evidence)
    steps, prober = [], posterior.prober()
    parts = getattr(posterior, "parts", [posterior])
    for part in parts:
        monkeypatch.setattr(type(part.mixture), "log_components", lambda *_: steps.append(1))
    prober.heed(Control.starting_now(0.0))
    starts = prober.starts()
    assert not steps
    assert len(starts)
    assert np.all(np.isfinite(starts))


def test_many_points_are_scored_in_parts(monkeypatch):
    from certimap.densities import gaussian_mixture

    rng = np.random.default_rng(1)
    model = cm.GaussianMixture(np.ones(5), rng.normal(size=(5, 2)), [np.eye(2)] * 5)
    points = rng.normal(size=(101, 2))
    at_once = model.log_density(points)
    monkeypatch.setattr(gaussian_mixture, "ENTRIES_AT_ONCE", 70)
    assert model.log_density(points).tolist() == at_once.tolist()
    assert model.log_density(points[:0]).shape == (0,)
