"""Bounds of second order against their slow twin, and against dense grids, on random mixtures of Gaussians."""

from __future__ import annotations

import math

import numpy as np
import pytest
from density_bounds_twin import highest, local_top, log_bound, log_tops

import certimap as cm
from certimap.circuits.kernels.mixture import LeafProducts, climb_gaussians, slopes_for
from certimap.core.box import SearchBoxes


def random_case(rng: np.random.Generator, n: int, full: bool = False):
    """A mixture's means, covariances and log weights, and its prober."""
    k = int(rng.integers(1, 9))
    means, sds = rng.uniform(-1.0, 1.0, (k, n)), 10.0 ** rng.uniform(-0.7, 0.5, (k, n))
    weights = rng.dirichlet(np.ones(k))
    log_weights, covariances = np.log(weights), np.stack([np.diag(row**2) for row in sds])
    if full:
        rows = rng.normal(size=(k, n + 2, n))
        shapes = np.swapaxes(rows, 1, 2) @ rows / (n + 2)
        covariances = sds[:, :, None] * shapes * sds[:, None, :]
        covariances = 0.5 * (covariances + np.swapaxes(covariances, 1, 2))
        return (
            means,
            covariances,
            log_weights,
            cm.condition(cm.GaussianMixture(weights, means, covariances)).prober(),
        )
    builder = cm.CircuitBuilder(cm.Domain([cm.Real(f"x{d}") for d in range(n)]))
    parts = [
        builder.product([builder.gaussian(d, float(means[j, d]), float(sds[j, d])) for d in range(n)])
        for j in range(k)
    ]
    builder.sum(parts, log_weights.tolist())
    return means, covariances, log_weights, cm.condition(builder.build()).prober()


def inner_boxes(rng: np.random.Generator, means: np.ndarray, batch: int):
    """Boxes inside the hull of the means, where the kernel takes them as they are."""
    low, high = means.min(axis=0), means.max(axis=0)
    ends = low + rng.random((2, batch, means.shape[1])) * (high - low)
    middle, radius = ends.mean(axis=0), 0.5 * np.abs(ends[1] - ends[0]) * 10.0 ** -rng.uniform(0, 3, (batch, 1))
    return middle - radius, middle + radius


@pytest.mark.slow
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_the_kernel_is_its_twin_rounded_up(seed: int, full: bool) -> None:
    rng = np.random.default_rng([seed, 1])
    n = int(rng.integers(1, 4))
    means, covariances, log_weights, prober = random_case(rng, n, full)
    if len(means) < 2:
        return
    low, high = inner_boxes(rng, means, 10)
    found = prober.probe(SearchBoxes(np.ones((10, 2 * n), np.uint8), low, high)).log_bound
    for row in range(10):
        expected = log_bound(means, covariances, log_weights, low[row], high[row])
        assert found[row] >= expected - 1e-10
        assert found[row] <= expected + 1e-6 + 0.02 * abs(
            expected - highest(means, covariances, log_weights, low[row], high[row], 5)
        )


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_no_place_of_a_dense_grid_is_above_a_bound(seed: int, full: bool) -> None:
    """30 models with 20 boxes each, of 1,000 places and more."""
    rng = np.random.default_rng([seed, 2])
    n = int(rng.integers(1, 4))
    means, covariances, log_weights, prober = random_case(rng, n, full)
    middle, radius = rng.normal(size=(20, n)), 10.0 ** rng.uniform(-6.0, 0.7, (20, n))
    low, high = middle - radius, middle + radius
    answers = prober.probe(SearchBoxes(np.ones((20, 2 * n), np.uint8), low, high))
    found = answers.log_bound
    n_points = {1: 4001, 2: 65, 3: 15}[n]
    for row in range(20):
        assert found[row] >= highest(means, covariances, log_weights, low[row], high[row], n_points) - 1e-13 * abs(
            found[row]
        )
        for v in np.flatnonzero(~np.isnan(answers.splits[row])):
            for side, ends in enumerate((high[row].copy(), low[row].copy())):
                ends[v] = answers.splits[row, v]
                box = (low[row], ends) if side == 0 else (ends, high[row])
                top = highest(means, covariances, log_weights, *box, n_points)
                assert answers.each_bound[row, 2 * v + side] >= top - 1e-13 * abs(top)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_bounds_of_halves_are_their_twin_rounded_up(seed: int, full: bool) -> None:
    rng = np.random.default_rng([seed, 3])
    n = int(rng.integers(1, 4))
    means, covariances, log_weights, prober = random_case(rng, n, full)
    if len(means) < 2:
        return
    low, high = inner_boxes(rng, means, 10)
    answers = prober.probe(SearchBoxes(np.ones((10, 2 * n), np.uint8), low, high))
    for row, v in zip(*np.nonzero(~np.isnan(answers.splits)), strict=True):
        whole = log_bound(means, covariances, log_weights, low[row], high[row])
        for side, ends in enumerate(((-1.0, 0.0), (0.0, 1.0))):
            expected = log_bound(means, covariances, log_weights, low[row], high[row], (int(v), *ends))
            found = answers.each_bound[row, 2 * v + side]
            assert found >= expected - 1e-10
            assert found <= answers.log_bound[row]
            assert found <= expected + 1e-6 + 0.1 * (whole - expected) + 0.02 * abs(whole)


def test_the_twin_is_above_grids_too() -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        n = int(rng.integers(1, 3))
        means, covariances, log_weights, _ = random_case(rng, n, rng.random() < 0.5)
        middle, radius = rng.normal(size=n), 10.0 ** rng.uniform(-3.0, 0.5, n)
        bound = log_bound(means, covariances, log_weights, middle - radius, middle + radius)
        assert bound >= highest(means, covariances, log_weights, middle - radius, middle + radius, 33) - 1e-9
        assert math.isfinite(bound)


@pytest.mark.nojit
@pytest.mark.parametrize("seed", range(4))
def test_climbs_reach_tops_of_their_twin_within_limits(seed: int) -> None:
    rng = np.random.default_rng([seed, 2])
    n = int(rng.integers(1, 4))
    means, covariances, log_weights, _ = random_case(rng, n)
    precisions = 1.0 / np.sqrt(np.diagonal(covariances, axis1=1, axis2=2))
    none = np.zeros(means.shape)
    of = LeafProducts(log_weights, np.zeros(means.shape, np.int64), none, means, precisions, none[0], none[0])
    low, high = np.full(n, -0.6), np.full(n, 0.7)
    points = rng.uniform(low, high, (5, n))
    tops = log_tops(covariances, log_weights)
    climb_gaussians(of, tops, low, high, slopes_for(*means.shape), points)
    assert np.all((points >= low) & (points <= high))
    for point in points:
        reached, top = local_top(means, covariances, log_weights, low, high, point)
        assert top <= reached + 1e-8
