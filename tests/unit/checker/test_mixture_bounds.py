"""The checker's bounds of second order: nothing in a box is above them, for all kinds of leaves."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

import certimap as cm
from certimap.checker.circuit import read_graph
from certimap.checker.mixtures import kappa, largest_quadratic, products_of, second_order
from certimap.checker.models import CheckBudget, Question
from certimap.checker.normals import NormalMoments, Normals
from certimap.io.native import exported

LAWS = {
    "gaussian": lambda m, s: ((m, s), stats.norm(m, s)),
    "truncated_gaussian": lambda m, s: ((m, s, m - 0.7 * s, m + 2 * s), stats.truncnorm(-0.7, 2.0, m, s)),
    "uniform": lambda m, s: ((m - s, m + s), stats.uniform(m - s, 2 * s)),
    "exponential": lambda m, s: ((1 / s,), stats.expon(scale=s)),
    "laplace": lambda m, s: ((m, s), stats.laplace(m, s)),
    "student_t": lambda m, s: ((m, s, 1.5), stats.t(1.5, m, s)),
    "beta": lambda m, s: ((1 + s, 1 + abs(m)), stats.beta(1 + s, 1 + abs(m))),
    "gamma": lambda m, s: ((1 + abs(m), 1 / s), stats.gamma(1 + abs(m), scale=s)),
    "lognormal": lambda m, s: ((m, s), stats.lognorm(s, scale=math.exp(m))),
}
SLOW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def circuit(rng, n, n_parts):
    """Return a mixture of products of leaves of all kinds, and its density in logs by scipy."""
    build = cm.CircuitBuilder(cm.Domain([cm.Real(f"x{i}") for i in range(n)]))
    weights, products, laws = np.log(rng.dirichlet(np.ones(n_parts))), [], []
    for _ in range(n_parts):
        row, members = [], []
        for i in range(n):
            kind = list(LAWS)[int(rng.integers(len(LAWS)))]
            parameters, law = LAWS[kind](rng.normal(), rng.uniform(0.3, 2.0))
            members.append(
                build.gaussian(i, *parameters) if kind == "gaussian" else build.real(kind, i, *parameters)
            )
            row.append(law)
        products.append(build.product(members) if n > 1 else members[0])
        laws.append(row)
    build.sum(products, weights)

    def log_density(points):
        each = [sum(law.logpdf(points[:, i]) for i, law in enumerate(row)) for row in laws]
        return np.logaddexp.reduce(weights + np.stack(each, axis=1), axis=1)

    return build.build(), log_density


def grid(rng, low, high, n=400):
    """Return corners, the middle, ends, and random places of a box."""
    corners = np.stack(np.meshgrid(*zip(low, 0.5 * (low + high), high, strict=True), indexing="ij"), -1)
    return np.concatenate([corners.reshape(-1, len(low)), rng.uniform(low, high, (n, len(low)))])


def parts_of(arrays, n, edges):
    asked = Question(np.ones(n, np.int64), np.arange(n), np.zeros(n))
    return products_of(read_graph(arrays, asked, edges, CheckBudget()), arrays, asked, edges)


def bounds_of(parts, low, high):
    found = parts.majorants(low[None], high[None])
    plain = float(np.logaddexp.reduce(found.peak[0]))
    return plain, float(second_order(*found)[0][0])


@SLOW
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 5), st.floats(-9.0, 2.0))
def test_no_density_of_leaves_is_above_a_bound(seed, n, n_parts, log_width):
    rng = np.random.default_rng(seed)
    model, log_density = circuit(rng, n, n_parts)
    _, _, arrays, _ = exported(model)
    edges = {i: np.array([-np.inf, np.inf]) for i in range(n)}
    parts = parts_of(arrays, n, edges)
    low = rng.normal(size=n) * 1.5
    high = low + math.exp(log_width) * rng.uniform(0.1, 1.0, n)
    with np.errstate(divide="ignore"):
        true = float(np.max(log_density(grid(rng, low, high))))
    plain, second = bounds_of(parts, low, high)
    assert plain >= true - 1e-10
    assert math.isnan(second) or second >= true - 1e-10


def mixture_of(rng, n, n_parts):
    root = rng.normal(size=(n_parts, n, n))
    covariances = np.matmul(root, root.swapaxes(1, 2)) + 0.05 * np.eye(n)
    return (
        rng.dirichlet(np.ones(n_parts)),
        rng.normal(size=(n_parts, n)),
        0.5 * (covariances + covariances.swapaxes(1, 2)),
    )


@SLOW
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 5), st.floats(-9.0, 2.0))
def test_no_density_of_gaussians_is_above_a_bound(seed, n, n_parts, log_width):
    rng = np.random.default_rng(seed)
    weights, means, covariances = mixture_of(rng, n, n_parts)
    nothing = np.zeros((n_parts, 0))
    given_ = NormalMoments(
        np.log(weights), nothing, means, np.zeros_like(means), covariances, np.zeros_like(covariances), 0.0
    )
    parts = Normals.of(given_, np.tile([-np.inf, np.inf], (n, 1)), np.zeros(0))
    low = rng.normal(size=n) * 1.5
    high = low + math.exp(log_width) * rng.uniform(0.1, 1.0, n)
    points = grid(rng, low, high)
    logs = [stats.multivariate_normal(m, c).logpdf(points) for m, c in zip(means, covariances, strict=True)]
    true = np.logaddexp.reduce(np.log(weights)[:, None] + np.array(logs).reshape(n_parts, -1), axis=0)
    plain, second = bounds_of(parts, low, high)
    assert plain >= true.max() - 1e-10
    assert math.isnan(second) or second >= true.max() - 1e-10
    value = parts.log_value(points[0], np.zeros(0, np.int64), np.zeros(1, np.int64))
    assert true[0] - 1e-9 <= value <= true[0] + 1e-11 * (1 + abs(true[0]))


def test_a_narrow_box_is_bounded_to_second_order():
    rng = np.random.default_rng(0)
    model, _ = circuit(rng, 2, 1)
    _, _, arrays, _ = exported(model)
    edges = {i: np.array([-np.inf, np.inf]) for i in range(2)}
    parts = parts_of(arrays, 2, edges)
    assert parts.n_real == 2
    weights, means, covariances = mixture_of(rng, 2, 3)
    nothing = np.zeros((3, 0))
    zeros = np.zeros_like(means), covariances, np.zeros_like(covariances)
    parts = Normals.of(
        NormalMoments(np.log(weights), nothing, means, *zeros, 0.0), np.tile([-9.0, 9.0], (2, 1)), np.zeros(0)
    )
    gaps = []
    for width in (1e-2, 1e-3):
        low = np.array([0.3, -0.2])
        true = max(
            parts.log_value(p, np.zeros(0, np.int64), np.zeros(1, np.int64)) for p in grid(rng, low, low + width)
        )
        gaps.append(bounds_of(parts, low, low + width)[1] - true)
    assert gaps[0] < 1e-4
    assert gaps[1] < 2e-2 * gaps[0]


@given(st.floats(0.0, 300.0), st.floats(0.0, 1.0))
def test_kappa_bounds_what_is_left_of_the_exponential(z, share):
    y = z * share
    if y > 1e-3:
        assert float(kappa(np.array(z))) * y * y / 2.0 >= math.expm1(y) - y - 1e-12 * math.exp(y)
    assert float(kappa(np.array(z))) >= 1.0


@SLOW
@given(st.integers(0, 10**6), st.integers(1, 5))
def test_no_quadratic_is_above_its_bound(seed, n):
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(n, n)) * math.exp(rng.normal())
    matrix, slope = matrix + matrix.T, rng.normal(size=n)
    points = grid(rng, -np.ones(n), np.ones(n))
    true = (points @ slope - 0.5 * np.einsum("pi,ij,pj->p", points, matrix, points)).max()
    assert largest_quadratic(slope[None], matrix[None])[0][0] >= true - 1e-12
    definite = matrix @ matrix
    true = (points @ slope - 0.5 * np.einsum("pi,ij,pj->p", points, definite, points)).max()
    assert largest_quadratic(slope[None], definite[None])[0][0] >= true - 1e-12
