"""Bounds by the shares of components: against values inside boxes of shares, and certified modes."""

import numpy as np
import pytest

import certimap as cm
from certimap.core.arrays import Floats
from certimap.densities.shares import Shares, shares_of


def _search(rng: np.random.Generator, k: int, n: int, spread: float) -> Shares:
    sample = rng.normal(size=(n, 3 * n + 3))
    root = np.asarray(np.linalg.inv(np.linalg.cholesky(sample @ sample.T + 0.1 * np.eye(n))), np.float64)
    tops = np.log(rng.dirichlet(np.ones(k))) + rng.normal()
    made = shares_of(tops, spread * rng.normal(size=(k, n)), np.broadcast_to(root, (k, n, n)))
    assert made is not None
    return made


def _values(of: Shares, shares: Floats) -> Floats:
    squares = np.square(of.points[:, None] - of.points).sum(axis=2)
    entropy = -np.where(shares > 0.0, shares * np.log(np.maximum(shares, 1e-300)), 0.0).sum(axis=1)
    return shares @ of.tops + entropy - 0.25 * np.einsum("bk,kj,bj->b", shares, squares, shares)


def _box(rng: np.random.Generator, k: int, width: float) -> tuple[Floats, Floats, Floats]:
    """Return the ends of a box of shares, and shares inside."""
    inside = rng.dirichlet(np.ones(k), size=400)
    close = inside[0] + rng.uniform(0.0, width, size=(400, 1)) * (inside - inside[0])
    return close.min(axis=0)[None], close.max(axis=0)[None], close


@pytest.mark.parametrize("seed", range(40))
def test_each_bound_in_a_box_of_shares(seed: int) -> None:
    rng = np.random.default_rng(seed)
    of = _search(rng, int(rng.integers(2, 7)), int(rng.integers(1, 4)), float(rng.choice([0.1, 0.3, 1.0, 3.0])))
    low, high, inside = _box(rng, len(of.tops), float(rng.choice([1e-3, 0.1, 1.0])))
    values, entropies = _values(of, inside), _values(Shares(0.0 * of.tops, 0.0 * of.points, of.means, 0.0), inside)
    line, fixed, _ = of.lines(low, high)
    over_lines = inside @ line[0] + fixed[0] - (values - entropies)
    assert over_lines.min() >= -1e-12
    at = 0.5 * (low + high) / (0.5 * (low + high)).sum()
    bound, better = of.tangents(low, high, at, line, fixed)
    assert bound[0] >= values.max() - 1e-12
    components = of.tops - 0.5 * np.square((inside @ of.points)[:, None] - of.points).sum(axis=2)
    caps, plain = of.caps(low, high)
    assert np.all(caps[0] >= components.max(axis=0) - 1e-12)
    assert plain[0] >= np.log(np.exp(components).sum(axis=1)).max() - 1e-12
    tiny = 1e-7 * np.ones_like(at)
    near = of.tangents(better - tiny, better + tiny, better, *of.lines(better - tiny, better + tiny)[:2])[0]
    steep = 1e-7 * len(of.tops) * (1.0 + float(np.abs(np.log(better)).max()) + of.squares.max())
    assert near[0] == pytest.approx(_values(of, better)[0], abs=4.0 * steep)
    corner = np.zeros_like(low)
    corner[0, 0] = 0.7  # where lower ends alone confine shares, the lines are exact in the corners
    ends = corner + 0.3 * np.eye(len(of.tops))
    line, fixed, _ = of.lines(corner, np.ones_like(low))
    nothing = np.where(ends > 0.0, ends * np.log(np.maximum(ends, 1e-300)), 0.0).sum(axis=1)
    assert ends @ line[0] + fixed[0] == pytest.approx(
        _values(of, ends) + nothing, abs=1e-6 * (1.0 + of.squares.max())
    )


@pytest.mark.parametrize("seed", range(5))
def test_lines_are_exact_where_one_point_is_possible(seed: int) -> None:
    rng = np.random.default_rng(seed)
    of = _search(rng, 5, 2, 1.0)
    only = rng.dirichlet(np.ones(5))[None]
    line, fixed, _ = of.lines(0.5 * only, only)
    assert only @ line[0] + fixed[0] == pytest.approx(_values(of, only) + (only * np.log(only)).sum(), abs=1e-7)


def test_tangents_where_the_function_is_hardly_concave() -> None:
    points = np.array([[-2.0], [2.0]])
    of = Shares(np.zeros(2), points, points, 0.0)
    low, high = np.full((1, 2), 0.3), np.full((1, 2), 0.7)
    line, fixed, _ = of.lines(low, high)
    bound, _ = of.tangents(low, high, np.full((1, 2), 0.5), line, fixed)
    assert _values(of, np.array([[0.3, 0.7]]))[0] <= bound[0] <= _values(of, np.array([[0.3, 0.7]]))[0] + 0.003


@pytest.mark.parametrize("seed", range(3))
def test_a_threshold_below_the_maximum_stays_open_and_one_above_closes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    of = _search(rng, 5, 2, 1.0)
    grid = np.stack(np.meshgrid(*2 * [np.linspace(-8.0, 8.0, 400)]), axis=-1).reshape(-1, 2)
    squares = np.square(grid[:, None] - of.points).sum(axis=2)
    top = float(np.log(np.exp(of.tops - 0.5 * squares).sum(axis=1)).max())
    of.advance(3000 * of.work, top - 0.01)
    assert of.found is not None or of.log_bound >= top
    again = Shares(of.tops, of.points, of.means, of.slack)
    again.advance(10_000 * of.work, top + 0.01)
    assert again.log_bound <= top + 0.01


@pytest.mark.parametrize("seed", range(3))
def test_twenty_overlapping_components_in_ten_dimensions_are_certified(seed: int) -> None:
    means = np.random.default_rng(seed).normal(size=(20, 10))
    model = cm.GaussianMixture(np.ones(20), means, np.broadcast_to(np.eye(10), (20, 10, 10)))
    result = cm.map_query(model, epsilon=0.01, rng=0, max_nodes=1000)
    assert result.certificate.kind == "epsilon"
    assert result.log_upper_bound is not None
    assert result.log_prob is not None
    assert result.log_upper_bound <= result.log_prob + 0.0102
    climbed = model.log_density(means)
    assert result.log_prob >= climbed.max()


def test_a_discrete_variable_beside_equal_covariances() -> None:
    group = cm.BayesianNetwork.from_cpts({"g": [0, 1]}, {}, {"g": [0.4, 0.6]})
    nodes = [cm.LinearGaussian(f"x{i}", ["g"], [0.0, float(i)], sd=[1.0, 1.0]) for i in range(3)]
    result = cm.map_query(cm.LinearGaussianNetwork(nodes, discrete=group), ["g", "x0", "x1", "x2"], rng=0)
    assert result.assignment["g"] == 1
    assert result.log_prob == pytest.approx(np.log(0.6) - 1.5 * np.log(2.0 * np.pi))
