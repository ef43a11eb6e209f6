"""Intervals on real variables that are summed out: against quadrature, enumeration, local searches and samples."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, optimize, stats
from scipy.special import logsumexp

import certimap as cm
from certimap.core.box import SearchBoxes
from certimap.core.query import make_query
from certimap.densities.conditioned import conditioned
from certimap.densities.slices import masses_between
from certimap.densities.windows import WindowedNormals, WindowedProber
from certimap.errors import ModelError, QueryError

INF = np.inf
WINDOWS = [(-0.5, 1.5), (1.0, INF), (-INF, -2.0), (3.0, 3.001), (8.0, 9.0)]


def random_mixture(rng, k, n):
    roots = rng.normal(size=(k, n, n)) / np.sqrt(n) + 0.4 * np.eye(n)
    covariances = np.einsum("kij,klj->kil", roots, roots) + 0.05 * np.eye(n)
    names = [f"v{i}" for i in range(n)]
    return cm.GaussianMixture(rng.dirichlet(np.ones(k)), rng.normal(0, 1.5, (k, n)), covariances, names)


def log_mass(a, b):
    """ln of the mass of standardised intervals, from the lower tail."""
    a, b = np.where(a > 0, -b, a), np.where(a > 0, -a, b)
    return stats.norm.logcdf(b) + np.log1p(-np.exp(stats.norm.logcdf(a) - stats.norm.logcdf(b)))


def log_windowed(model, points, low, high):
    """ln of the joint density of the first variables and the mass of the last one's interval, by scipy."""
    logs = []
    for log_weight, mean, covariance in zip(model.log_weights, model.means, model.covariances, strict=True):
        own, across = covariance[:-1, :-1], covariance[-1, :-1]
        lines = np.linalg.solve(own, across)
        at = mean[-1] + (points - mean[:-1]) @ lines
        sd = np.sqrt(covariance[-1, -1] - across @ lines)
        masses = log_mass((low - at) / sd, (high - at) / sd)
        logs.append(log_weight + stats.multivariate_normal.logpdf(points, mean[:-1], own) + masses)
    return logsumexp(logs, axis=0)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("seed", range(2))
def test_densities_are_those_of_the_definition(seed, window):
    rng = np.random.default_rng(seed)
    model = random_mixture(rng, 3, 3)
    posterior = cm.condition(model, ["v0", "v1"], {"v2": window})
    points = rng.normal(0, 2, (50, 2))
    given = posterior.log_prob(points) + posterior.facts.log_evidence
    np.testing.assert_allclose(given, log_windowed(model, points, *window), rtol=1e-9, atol=1e-6)
    mass = logsumexp(
        [
            w + log_mass(*(np.array(window) - m[2]) / np.sqrt(c[2, 2]))
            for w, m, c in zip(model.log_weights, model.means, model.covariances, strict=True)
        ]
    )
    assert posterior.facts.log_evidence == pytest.approx(mass, abs=1e-6)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("seed", range(2))
def test_modes_against_local_searches(seed, window):
    rng = np.random.default_rng([7, seed])
    model = random_mixture(rng, int(rng.integers(1, 5)), 3)
    evidence, bounds = {"v2": window}, [(-INF, INF)] * 2
    if seed % 2:
        evidence["v0"] = bounds[0] = (-0.3, 0.8)
    result = cm.map_query(model, ["v0", "v1"], evidence, epsilon=1e-4, rng=0)
    best = -INF
    for start in np.concatenate([model.means[:, :2], rng.normal(0, 3, (3, 2))]):
        start = np.clip(start, [b[0] for b in bounds], [b[1] for b in bounds])
        found = optimize.minimize(
            lambda x: -log_windowed(model, x[None], *window)[0], start, bounds=bounds, method="L-BFGS-B"
        )
        best = max(best, -found.fun)
    assert result.certificate.kind in ("epsilon", "exact")
    assert (result.log_prob is None) == bool(seed % 2)
    assert result.log_joint >= best - 1e-4
    assert result.log_joint_upper_bound >= best - 1e-8 * abs(best)
    assert result.log_joint == pytest.approx(best, abs=1e-4)


@pytest.mark.parametrize("seed", range(40))
def test_no_point_of_a_box_is_above_its_bound(seed):
    rng = np.random.default_rng([3, seed])
    n = int(rng.integers(1, 4))
    model = random_mixture(rng, int(rng.integers(1, 5)), n + 1)
    low = float(rng.normal(0, 3))
    window = [(low, low + 10.0 ** rng.uniform(-4, 1)), (low, INF), (-INF, low)][seed % 3]
    query = make_query(model.domain, [f"v{i}" for i in range(n)], {f"v{n}": window})
    posterior = conditioned(model, query, 1)
    assert isinstance(posterior, WindowedNormals)
    start = rng.normal(0, 2.0 * 10.0 ** rng.uniform(0, 1), (60, n))
    boxes = SearchBoxes(np.ones((60, 2 * n), np.uint8), start, start + 10.0 ** rng.uniform(-6, 1.3, (60, 1)))
    answers = posterior.prober().probe(boxes)
    shares = rng.random((60, 60, n)).round(1)  # corners too
    for row in range(60):
        values = posterior.log_prob(boxes.low[row] + shares[row] * (boxes.high[row] - boxes.low[row]))
        assert answers.log_bound[row] >= values.max()
    wide = boxes.high.copy()
    wide[:, 0] = INF
    answers = posterior.prober().probe(SearchBoxes(boxes.mask, boxes.low, wide))
    for row in range(60):
        points = boxes.low[row] + shares[row] * (boxes.high[row] - boxes.low[row])
        points[:, 0] = boxes.low[row, 0] + rng.exponential(3.0, 60)
        assert answers.log_bound[row] >= posterior.log_prob(points).max()


def test_bounds_meet_the_density_as_boxes_shrink():
    """The gap falls like the square of the width, as it does without windows."""
    model = random_mixture(np.random.default_rng(1), 3, 3)
    posterior = conditioned(model, make_query(model.domain, ["v0", "v1"], {"v2": (0.2, 0.7)}), 1)
    prober = posterior.prober()
    assert isinstance(prober, WindowedProber)
    at = prober.starts()[:1]
    value = posterior.log_prob(at)[0]
    gaps = []
    for width in (0.1, 0.01):
        boxes = SearchBoxes(np.ones((1, 4), np.uint8), at - width / 2, at + width / 2)
        gaps.append(prober.probe(boxes).log_bound[0] - value)
    assert 0.0 <= gaps[1] < 0.03 * gaps[0] + 1e-9  # rounding
    assert gaps[1] < 1e-4


@pytest.mark.parametrize("seed", range(6))
def test_climbs_only_go_up(seed):
    rng = np.random.default_rng(seed)
    model = random_mixture(rng, 4, 3)
    posterior = conditioned(model, make_query(model.domain, ["v0", "v1"], {"v2": WINDOWS[seed % 5]}), 1)
    starts = rng.normal(0, 2, (20, 2))
    climbed = posterior.prober().climb(starts)
    assert np.all(posterior.log_prob(climbed) >= posterior.log_prob(starts) - 1e-9)
    step = 1e-5
    for d in range(2):  # stationary
        off = step * np.eye(2)[d]
        slope = (posterior.log_prob(climbed + off) - posterior.log_prob(climbed - off)) / (2 * step)
        assert np.abs(slope).max() < 1e-3


def factory() -> cm.LinearGaussianNetwork:
    discrete = cm.BayesianNetwork.from_cpts({"c": ["u", "v", "w"]}, {}, {"c": [0.5, 0.3, 0.2]})
    nodes = [
        cm.LinearGaussian("x", ["c"], [0.0, 2.0, -1.0], sd=[1.0, 0.5, 2.0]),
        cm.LinearGaussian("y", ["x", "c"], [0.0, 1.0, 0.5], [[1.0], [-0.5], [2.0]], [0.5, 1.0, 0.8]),
        cm.LinearGaussian("z", ["x"], 0.3, [0.7], 0.6),
    ]
    return cm.LinearGaussianNetwork(nodes, discrete)


def log_factory(c, x, y_window, z_window):
    mean, sd = [0.0, 2.0, -1.0][c], [1.0, 0.5, 2.0][c]
    total = np.log([0.5, 0.3, 0.2][c]) + stats.norm.logpdf(x, mean, sd)
    center = [0.0, 1.0, 0.5][c] + [1.0, -0.5, 2.0][c] * x
    total += log_mass(*(np.array(y_window) - center) / [0.5, 1.0, 0.8][c])
    return total + log_mass(*(np.array(z_window) - 0.3 - 0.7 * x) / 0.6)


@pytest.mark.slow
def test_states_given_an_interval_are_bayes_rule():
    window = (0.5, 1.2)
    masses = []
    for c in range(3):
        of_x = stats.norm([0.0, 2.0, -1.0][c], [1.0, 0.5, 2.0][c])

        def part(x, c=c, of_x=of_x):
            center = [0.0, 1.0, 0.5][c] + [1.0, -0.5, 2.0][c] * x
            return of_x.pdf(x) * np.diff(stats.norm.cdf(window, center, [0.5, 1.0, 0.8][c]))[0]

        masses.append([0.5, 0.3, 0.2][c] * integrate.quad(part, -15, 15, limit=400, epsabs=1e-12)[0])
    found = cm.marginals(factory(), ["c"], {"y": window})["c"]
    np.testing.assert_allclose([found[s] for s in "uvw"], np.array(masses) / sum(masses), atol=1e-8)
    result = cm.map_query(factory(), ["c"], {"y": window}, rng=0)
    assert result.certificate.kind == "exact"
    assert result.log_evidence == pytest.approx(np.log(sum(masses)), abs=1e-8)


@pytest.mark.parametrize("query", [["x"], ["c", "x"], ["x", "c"]])
def test_two_windows_that_are_independent_given_the_query(query):
    windows = (0.5, 1.2), (-1.0, 0.4)
    result = cm.map_query(factory(), query, {"y": windows[0], "z": windows[1]}, epsilon=1e-6, rng=0)

    def height(x):
        values = [log_factory(c, x, *windows) for c in range(3)]
        return max(values) if "c" in query else logsumexp(values)

    starts = np.linspace(-2, 3, 11)
    best = max(
        -optimize.minimize_scalar(lambda x: -height(x), bounds=(x, x + 0.5), method="bounded").fun for x in starts
    )
    assert result.certificate.kind in ("epsilon", "exact")
    assert result.log_prob is None  # the two are not independent where nothing is queried
    assert result.log_joint == pytest.approx(best, abs=1e-5)
    assert result.log_joint_upper_bound >= best - 1e-9


def test_intervals_that_depend_on_each_other_give_states_two_sides():
    windows = {"y": (0.0, 1.0), "z": (0.0, 1.0)}
    masses = [
        integrate.quad(lambda x, c=c: np.exp(log_factory(c, x, (0.0, 1.0), (0.0, 1.0))), -8.0, 10.0)[0]
        for c in range(3)
    ]
    posterior = cm.condition(factory(), ["c"], windows)
    expected = np.log(np.array(masses) / np.sum(masses))
    found = posterior.log_prob(np.arange(3)[:, None])
    np.testing.assert_allclose(found, expected, atol=1e-7)
    assert np.abs(found - expected).max() <= posterior.facts.log_slack < 1e-6
    assert cm.map_query(factory(), ["c"], windows, rng=0).certified
    assert cm.map_query(factory(), ["c", "y"], windows, rng=0).certified


def log_box(covariance, low, high):
    return np.log(
        stats.multivariate_normal(np.zeros(len(low)), covariance, maxpts=10**6).cdf(high, lower_limit=low)
    )


@pytest.mark.parametrize(("n", "high"), [(2, (1.0, 2.0)), (2, (INF, 1.5)), (3, (1.0, 0.5, 0.2))])
def test_masses_of_boxes_lie_between_their_sides(n, high):
    root = np.random.default_rng(n).normal(size=(n, n))
    covariance, low, high = root @ root.T + 0.3 * np.eye(n), np.full(n, -0.4), np.array(high)
    logs, slack = masses_between(cm.GaussianMixture([1.0], np.zeros((1, n)), covariance[None]), low, high)
    assert abs(logs[0] - log_box(covariance, low, np.minimum(high, 50.0))) <= slack + 1e-7
    assert slack < (1e-6 if n == 2 else 1e-3)


@pytest.mark.parametrize("interval", [(0.0, 2.0), (-0.5, INF)])
@pytest.mark.parametrize("seed", range(2))
def test_densities_with_dependent_intervals_lie_between_two_mixtures(seed, interval):
    rng = np.random.default_rng(seed)
    model, windows = random_mixture(rng, 2, 3), [interval, (-1.0, 0.5)]
    posterior = cm.condition(model, ["v0"], {"v1": windows[0], "v2": windows[1]})
    assert isinstance(posterior, WindowedNormals)
    assert posterior.above is not None
    points, low, high = rng.normal(0, 2, (12, 1)), *np.clip(np.array(windows).T, -50.0, 50.0)
    truth = np.zeros(len(points))
    for weight, mean, covariance in zip(np.exp(model.log_weights), model.means, model.covariances, strict=True):
        line = covariance[1:, 0] / covariance[0, 0]
        rest = covariance[1:, 1:] - np.outer(line, covariance[0, 1:])
        for k, x in enumerate(points[:, 0]):
            at = mean[1:] + line * (x - mean[0])
            mass = np.exp(log_box(rest, low - at, high - at))
            truth[k] += weight * stats.norm.pdf(x, mean[0], np.sqrt(covariance[0, 0])) * mass
    below, above = posterior.log_prob(points), posterior.above.log_prob(points)
    assert np.all(below <= np.log(truth) + 1e-6)
    assert np.all(above >= np.log(truth) - 1e-6)
    assert np.all(above - below < 0.03)
    box = SearchBoxes(np.ones((12, 2), np.uint8), points - 0.01, points + 0.01)
    assert np.all(posterior.prober().probe(box).log_bound >= np.log(truth))
    result = cm.map_query(model, ["v0"], {"v1": windows[0], "v2": windows[1]}, rng=0)
    assert result.certified


def log_chain(c, x):
    """ln p(c, x, 0 <= y <= 1, .3 <= z <= 2) in a chain c -> x -> y -> z <- c."""
    mean, sd = (0.0, 0.5)[c], (0.9, 1.1)[c]

    def inside(y):
        ends = stats.norm.cdf((0.3, 2.0), mean + (1.0, -0.6)[c] * y, sd)
        return stats.norm.pdf(y, 0.2 + 0.7 * x, 0.8) * (ends[1] - ends[0])

    own = np.log((0.35, 0.65)[c]) + stats.norm.logpdf(x, (-1.0, 1.5)[c], (1.0, 0.7)[c])
    return own + np.log(integrate.quad(inside, 0.0, 1.0)[0])


@pytest.mark.parametrize("query", [["c", "x"], ["x"]])
def test_networks_take_dependent_intervals_beside_real_queries(query):
    gaussian = cm.LinearGaussian
    nodes = [
        gaussian("x", ["c"], [-1.0, 1.5], sd=[1.0, 0.7]),
        gaussian("y", ["x"], 0.2, [0.7], sd=0.8),
        gaussian("z", ["y", "c"], [0.0, 0.5], [[1.0], [-0.6]], sd=[0.9, 1.1]),
    ]
    network = cm.LinearGaussianNetwork(nodes, cm.BayesianNetwork.from_cpts({"c": [0, 1]}, {}, {"c": [0.35, 0.65]}))
    result = cm.map_query(network, query, {"y": (0.0, 1.0), "z": (0.3, 2.0)}, rng=0)

    def height(x, states=(0, 1)):
        values = [log_chain(c, x) for c in states]
        return max(values) if "c" in query else logsumexp(values)

    assert result.certified
    x = result.assignment["x"]
    own = height(x, (result.assignment["c"],) if "c" in query else (0, 1))
    assert own - 1e-3 < result.log_joint <= own + 1e-9
    assert max(map(height, np.linspace(x - 1.0, x + 1.0, 41))) <= result.log_joint_upper_bound < own + 0.01


def test_too_many_slices_are_refused():
    model = cm.GaussianMixture([1.0], np.zeros((1, 3)), (np.eye(3) * 1e-7 + 1.0)[None])
    with pytest.raises(ModelError, match="slices are too many or too wide; query one too"):
        cm.map_query(model, ["0"], {"1": (-1.0, 1.0), "2": (-1.0, 1.0)}, rng=0)


def test_intervals_that_are_too_far_out_are_refused():
    network = cm.LinearGaussianNetwork([cm.LinearGaussian("x"), cm.LinearGaussian("y", ["x"], 0.0, [1.0])])
    with pytest.raises(QueryError, match="the log of their mass is beyond floats"):
        cm.map_query(network, ["x"], {"y": (1e200, 2e200)}, rng=0)
    far = cm.map_query(network, ["x"], {"y": (1e3, 1.1e3)}, epsilon=1e-3, rng=0)
    assert far.certified
    assert far.assignment["x"] == pytest.approx(500.0, abs=0.01)


def test_windows_of_a_query_without_real_variables_are_counted_as_slack():
    posterior = cm.condition(factory(), ["c"], {"y": (0.5, 1.2)})
    assert posterior.facts.log_slack > cm.condition(factory(), ["c"], {"y": 0.5}).facts.log_slack
