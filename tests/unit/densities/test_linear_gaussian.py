"""Linear-Gaussian networks against dense formulas, enumeration of configurations, and searches on grids."""

from __future__ import annotations

import itertools

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats
from scipy.special import logsumexp

import certimap as cm
from certimap.core.box import SearchBoxes
from certimap.core.query import make_query
from certimap.densities.linear_gaussian import _least_squares
from certimap.densities.posterior import MixedNormals
from certimap.errors import ImpossibleEvidence, ModelError, QueryError, TooLarge


def switches(rng):
    """Discrete variables a and b, of which b depends on a; the network, and ln of its joint table."""
    of_a, of_b = rng.dirichlet(np.ones(2)), rng.dirichlet(np.ones(3), 2)
    labels = {"a": [0, 1], "b": ["b0", "b1", "b2"]}
    network = cm.BayesianNetwork.from_cpts(labels, {"b": ["a"]}, {"a": of_a, "b": of_b})
    return network, np.log(of_a[:, None] * of_b)


def random_network(rng):
    """x depends on a; y on b, x and a; z on y and x. Returns it, and ln p(a, b, x, y, z) by its factors."""
    discrete, table = switches(rng)
    mean_x, sd_x = rng.normal(0, 2, 2), rng.uniform(0.5, 1.5, 2)
    start_y, slope_y, sd_y = rng.normal(size=(3, 2)), rng.normal(size=(3, 2)), rng.uniform(0.5, 1.5, (3, 2))
    nodes = [
        cm.LinearGaussian("z", ["y", "x"], 0.3, [0.8, -0.5], 0.7),
        cm.LinearGaussian("x", ["a"], mean_x, sd=sd_x),
        cm.LinearGaussian("y", ["b", "x", "a"], start_y, slope_y[..., None], sd_y),
    ]

    def log_joint(a, b, x, y, z):
        of_x = stats.norm.logpdf(x, mean_x[a], sd_x[a])
        of_y = stats.norm.logpdf(y, start_y[b, a] + slope_y[b, a] * x, sd_y[b, a])
        return table[a, b] + of_x + of_y + stats.norm.logpdf(z, 0.3 + 0.8 * y - 0.5 * x, 0.7)

    return cm.LinearGaussianNetwork(nodes, discrete), log_joint


CONFIGURATIONS = list(itertools.product(range(2), range(3)))


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_the_density_is_the_product_of_the_factors(seed):
    rng = np.random.default_rng(seed)
    network, log_joint = random_network(rng)
    x, y, z = rng.normal(0, 2, 3)
    mixture = network.mixture(["x", "y", "z"])
    factors = [log_joint(a, b, x, y, z) for a, b in CONFIGURATIONS]
    assert mixture.log_density([[x, y, z]])[0] == pytest.approx(logsumexp(factors), abs=1e-9)
    rest = network.mixture(["y"], {"x": x, "z": z})
    grid = np.linspace(-30.0, 30.0, 3001)
    terms = np.array([log_joint(a, b, x, grid, z) for a, b in CONFIGURATIONS])
    dense = logsumexp(terms, axis=0) - np.log(np.trapezoid(np.exp(logsumexp(terms, axis=0)), grid))
    at = np.abs(grid) < 4
    np.testing.assert_allclose(rest.log_density(grid[at, None]), dense[at], atol=1e-6)


def test_one_gaussian_is_the_dense_formula():
    """x = (I - W)^-1 (b + noise): mean and covariance by matrices, in any order of the nodes."""
    rng = np.random.default_rng(1)
    weights = np.tril(rng.normal(size=(5, 5)), -1)
    intercepts, sds = rng.normal(size=5), rng.uniform(0.2, 2.0, 5)
    nodes = [
        cm.LinearGaussian(f"v{i}", [f"v{j}" for j in range(i)], intercepts[i], weights[i, :i], sds[i])
        for i in range(5)
    ]
    mixture = cm.LinearGaussianNetwork(nodes[::-1]).mixture([f"v{i}" for i in range(5)])
    inverse = np.linalg.inv(np.eye(5) - weights)
    np.testing.assert_allclose(mixture.means[0], inverse @ intercepts)
    np.testing.assert_allclose(mixture.covariances[0], inverse @ np.diag(sds**2) @ inverse.T)


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_states_given_values_follow_bayes_rule(seed):
    rng = np.random.default_rng(seed)
    network, log_joint = random_network(rng)
    x, y, z = rng.normal(0, 2, 3)
    logs = {c: log_joint(*c, x, y, z) for c in CONFIGURATIONS}
    seen = {"x": x, "y": y, "z": z}
    result = cm.map_query(network, ["b"], seen, epsilon=0, rng=0)
    each = np.array([logsumexp([logs[a, b] for a in range(2)]) for b in range(3)])
    assert result.assignment["b"] == f"b{np.argmax(each)}"
    assert result.certificate.kind == "exact"
    assert result.log_prob == pytest.approx(each.max() - logsumexp(each), abs=1e-9)
    assert result.log_joint == pytest.approx(each.max(), abs=1e-9)
    soft = cm.map_query(network, ["b"], {**seen, "a": {"likelihood": [0.2, 0.9]}}, epsilon=0, rng=0)
    weighted = np.array([logsumexp([logs[a, b] + np.log([0.2, 0.9][a]) for a in range(2)]) for b in range(3)])
    assert soft.log_joint == pytest.approx(weighted.max(), abs=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_mixed_modes_against_local_searches_in_every_state(seed):
    rng = np.random.default_rng(seed)
    network, log_joint = random_network(rng)
    evidence, limits = {"z": float(rng.normal())}, [(-np.inf, np.inf)] * 2
    if seed % 2:
        evidence["x"] = (0.5, 2.0)
        limits[0] = (0.5, 2.0)
    result = cm.map_query(network, ["b", "x", "y"], evidence, epsilon=1e-6, rng=0)
    found = []
    for b in range(3):

        def loss(p, b=b):
            return -logsumexp([log_joint(a, b, *p, evidence["z"]) for a in range(2)])

        for start in rng.normal(0, 2, (6, 2)):
            start[0] = np.clip(start[0], *limits[0])
            found.append(-optimize.minimize(loss, start, bounds=limits, method="L-BFGS-B").fun)
    assert result.certificate.kind in ("epsilon", "exact")
    assert result.log_joint == pytest.approx(max(found), abs=1e-5)
    assert result.log_joint + 1e-6 >= max(found)
    at = [
        log_joint(
            a,
            int(result.assignment["b"][1]),
            result.assignment["x"],
            result.assignment["y"],
            evidence["z"],
        )
        for a in range(2)
    ]
    assert result.log_joint == pytest.approx(logsumexp(at), abs=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_no_point_of_a_mixed_box_is_above_its_bound(seed):
    rng = np.random.default_rng(seed)
    network, _ = random_network(rng)
    posterior = cm.condition(network, ["x", "b", "y"], {"z": 0.4})
    assert isinstance(posterior, MixedNormals)
    layout = posterior.prober().layout
    mask = np.ones((20, 7), np.uint8)
    mask[:, 2:5] = rng.random((20, 3)) < 0.6
    low = rng.normal(0, 2, (20, 3))
    boxes = SearchBoxes(mask, low, low + 10.0 ** rng.uniform(-6, 1, (20, 3)))
    answers = posterior.prober().probe(boxes)
    for row in range(20):
        shares = rng.random((100, 3))
        points = boxes.low[row] + shares * (boxes.high[row] - boxes.low[row])
        for b in range(3):
            points[:, 1] = b
            values = posterior.log_prob(points)
            column = layout.offsets[1] + b
            if mask[row, column]:
                assert answers.log_bound[row] >= answers.each_bound[row, column] >= values.max()
            else:
                assert answers.each_bound[row, column] == -np.inf


def test_the_highest_peak_wins_over_the_larger_mass():
    coin = cm.BayesianNetwork.from_cpts({"c": ["wide", "narrow"]}, {}, {"c": [0.8, 0.2]})
    network = cm.LinearGaussianNetwork([cm.LinearGaussian("x", ["c"], [0.0, 3.0], sd=[1.0, 0.01])], coin)
    assert cm.map_query(network, ["c"], rng=0).assignment == {"c": "wide"}
    both = cm.map_query(network, ["c", "x"], epsilon=1e-6, rng=0)
    assert both.assignment["c"] == "narrow"
    assert both.assignment["x"] == pytest.approx(3.0)
    assert both.is_density
    assert both.log_prob == pytest.approx(np.log(0.2) + stats.norm.logpdf(0, 0, 0.01))


def test_draws_have_the_moments_of_the_network():
    rng = np.random.default_rng(3)
    network, _ = random_network(rng)
    posterior = cm.condition(network, ["x", "b", "y"])
    points = posterior.sample(20_000, np.random.default_rng(0))
    mixture = network.mixture(["x", "y"])
    mean = np.exp(mixture.log_weights) @ mixture.means
    np.testing.assert_allclose(points[:, [0, 2]].mean(axis=0), mean, atol=0.1)
    p = [np.exp(cm.map_query(network, ["b"], {"b": {"states": [f"b{i}"]}}, rng=0).log_joint) for i in range(3)]
    np.testing.assert_allclose(np.bincount(points[:, 1].astype(int), minlength=3) / 20_000, p, atol=0.02)


def test_barren_and_unused_variables_do_not_count():
    variables = {f"d{i}": [0, 1] for i in range(14)}
    discrete = cm.BayesianNetwork.from_cpts(variables, {}, {name: [0.4, 0.6] for name in variables})
    nodes = [cm.LinearGaussian("x0", ["d0"], [0.0, 4.0])]
    nodes += [cm.LinearGaussian(f"x{i}", [f"x{i - 1}", f"d{i}"], [0.0, 1.0], 1.0) for i in range(1, 14)]
    for i in range(1, 14):
        nodes[i] = cm.LinearGaussian(f"x{i}", [f"x{i - 1}", f"d{i}"], [0.0, 1.0], [[1.0], [1.0]])
    network = cm.LinearGaussianNetwork(nodes, discrete)
    assert len(network.mixture(["x2"]).log_weights) == 8
    with pytest.raises(TooLarge, match="16384 configurations"):
        network.mixture(["x13"])
    with pytest.raises(ModelError, match="16384 configurations of discrete variables, of at most 4096"):
        cm.map_query(network, ["x13"], rng=0)
    seen = {f"d{i}": 0 for i in range(4)}
    assert len(network.mixture(["x13"], seen).log_weights) == 1024


@pytest.mark.parametrize("variables", [["b"], ["x"], ["b", "x"]])
def test_rounding_of_the_discrete_model_counts(variables, monkeypatch):
    network, _ = random_network(np.random.default_rng(0))
    before = cm.condition(network, variables, {"z": 0.1}).facts.log_slack
    inner = network._configurations
    monkeypatch.setattr(network, "_configurations", lambda query: (*inner(query)[:3], inner(query)[3] + 1e-3))
    assert cm.condition(network, variables, {"z": 0.1}).facts.log_slack == pytest.approx(before + 1e-3)


GOOD = [cm.LinearGaussian("x", ["a"], [0.0, 1.0])]


@pytest.mark.parametrize(
    ("nodes", "sentence"),
    [
        ([], "without real variables"),
        ([cm.LinearGaussian("a")], "declared twice"),
        ([cm.LinearGaussian("x", ["q"])], "the parent 'q' of variable 'x' is no variable"),
        ([cm.LinearGaussian("x", ["a", "a"])], "has a parent twice"),
        ([cm.LinearGaussian("x", ["a"], [0.0, 1.0, 2.0])], r"the intercept of variable 'x' has the shape \(3,\)"),
        ([*GOOD, cm.LinearGaussian("y", ["x"])], r"the coefficients of variable 'y' has the shape \(0,\)"),
        ([cm.LinearGaussian("x", sd=0.0)], "the sd of variable 'x' is 0.0; expected positive numbers"),
        ([cm.LinearGaussian("x", intercept=np.nan)], "expected finite numbers"),
        (
            [cm.LinearGaussian("x", ["y"], 0.0, [1.0]), cm.LinearGaussian("y", ["x"], 0.0, [1.0])],
            "the parents form a cycle through .x.",
        ),
    ],
)
def test_what_is_refused_is_one_sentence(nodes, sentence):
    with pytest.raises(ModelError, match=sentence):
        cm.LinearGaussianNetwork(nodes, switches(np.random.default_rng(0))[0])


def test_queries_that_are_refused():
    network, _ = random_network(np.random.default_rng(0))
    with pytest.raises(QueryError, match="'a' is discrete"):
        network.mixture(["a", "x"])
    with pytest.raises(QueryError, match="restricted to an interval"):
        network.mixture(["x"], {"x": (0.0, 1.0)})
    sure = cm.BayesianNetwork.from_cpts({"c": [0, 1]}, {}, {"c": [1.0, 0.0]})
    with pytest.raises(ImpossibleEvidence):
        cm.LinearGaussianNetwork([cm.LinearGaussian("x", ["c"], [0.0, 1.0])], sure).mixture(["x"], {"c": 1})
    assert len(cm.LinearGaussianNetwork([cm.LinearGaussian("x", ["c"], [0.0, 1.0])], sure).mixture().means) == 1
    assert make_query(network.domain).variables.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("evidence", [{"likelihood": [0.1, 0.9]}, {"states": [1]}, {0, 1}, {1}])
@pytest.mark.parametrize("asked", [["x"], ["x", "y"], ["x", "y", "d"]])
def test_evidence_on_a_discrete_variable_that_is_no_parent_weighs(evidence, asked):
    discrete = cm.BayesianNetwork.from_cpts({"d": [0, 1]}, {}, {"d": [0.3, 0.7]})
    model = cm.LinearGaussianNetwork([cm.LinearGaussian("x"), cm.LinearGaussian("y", ["x"], 0.0, [1.0])], discrete)
    result = cm.map_query(model, asked, {"d": evidence}, epsilon=0.01, delta=0.0)
    assert [result.assignment[name] for name in asked if name != "d"] == pytest.approx(
        [0.0] * (2 if "y" in asked else 1)
    )
    assert result.log_evidence == pytest.approx(cm.log_evidence(discrete, {"d": evidence}))


def test_evidence_of_intervals_is_the_mass_of_independent_ones():
    covariance = np.array([[1.0, 0.2, 0.0], [0.2, 1.0, 0.0], [0.0, 0.0, 4.0]])
    model = cm.GaussianMixture([0.4, 0.6], [[0.0, 0.0, 0.0], [1.0, 2.0, -1.0]], [covariance] * 2, ["a", "b", "c"])

    def mass(low, high, means, sd):
        return stats.norm.cdf((high - np.array(means)) / sd) - stats.norm.cdf((low - np.array(means)) / sd)

    of_a, of_c = mass(0.0, 1.0, [0.0, 1.0], 1.0), mass(-2.0, 0.5, [0.0, -1.0], 2.0)
    assert cm.log_evidence(model, {"a": (0, 1)}) == pytest.approx(np.log([0.4, 0.6] @ of_a))
    assert cm.log_evidence(model, {"a": (0, 1), "c": (-2, 0.5)}) == pytest.approx(
        np.log([0.4, 0.6] @ (of_a * of_c))
    )
    given_b = np.exp(-0.5 * (0.5 - np.array([0.0, 2.0])) ** 2) / np.sqrt(2.0 * np.pi)
    of_a = mass(0.0, 1.0, [0.1, 1.0 + 0.2 * -1.5], np.sqrt(0.96))
    assert cm.log_evidence(model, {"a": (0, 1), "b": 0.5}) == pytest.approx(np.log([0.4, 0.6] @ (of_a * given_b)))
    with pytest.raises(QueryError, match=r"no closed form.*'a', 'b'"):
        cm.log_evidence(model, {"a": (0, 1), "b": (0, 1)})
    network = cm.LinearGaussianNetwork([cm.LinearGaussian("x"), cm.LinearGaussian("y", ["x"], 0.0, [1.0])])
    assert cm.log_evidence(network, {"x": (0, 1)}) == pytest.approx(np.log(mass(0.0, 1.0, 0.0, 1.0)))
    with pytest.raises(QueryError, match="is of networks"):
        cm.log_evidence_bounds(model, {"a": (0, 1)})


def walk(steps, seen):
    """A level with a drift, measured now and then: the network, and its equations as a matrix and a right side."""
    nodes, rows, right = [], [], []
    for t in range(steps):
        above = [f"level{t - 1}", f"drift{t - 1}"] if t else []
        nodes.append(cm.LinearGaussian(f"level{t}", above, 0.0, [1.0, 1.0] if t else [], 0.3 if t else 1.0))
        nodes.append(cm.LinearGaussian(f"drift{t}", above[1:], 0.0, [1.0] if t else [], 0.05 if t else 0.1))
        nodes.append(cm.LinearGaussian(f"read{t}", [f"level{t}"], 0.0, [1.0], 0.5))
        for own, node in ((t, nodes[-3]), (steps + t, nodes[-2])):
            row = np.zeros(2 * steps)
            row[own] = 1.0
            row[[t - 1, steps + t - 1][own // steps :] if t else []] = -1.0
            rows.append(row / node.sd)
            right.append(0.0)
        if f"read{t}" in seen:
            rows.append(np.eye(2 * steps)[t] / 0.5)
            right.append(seen[f"read{t}"] / 0.5)
    return cm.LinearGaussianNetwork(nodes), np.array(rows), np.array(right)


def test_the_mean_of_a_long_walk_is_its_exact_mode():
    """Covariances grow with the square of the length before anything is measured; the smoother needs none."""
    steps, rng = 100, np.random.default_rng(4)
    levels = np.cumsum(rng.normal(0, 0.4, steps))
    seen = {f"read{t}": float(levels[t]) for t in range(steps) if t % 5 != 3}
    network, rows, right = walk(steps, seen)
    names = [f"level{t}" for t in range(steps)] + [f"drift{t}" for t in range(steps)]
    found = cm.map_query(network, names, seen)
    assert found.certificate.kind is cm.CertificateKind.EXACT
    point, *_ = np.linalg.lstsq(rows, right, rcond=None)
    assert np.max(np.abs([found.assignment[name] for name in names] - point)) < 1e-12
    top = np.linalg.slogdet(rows.T @ rows)[1] / 2 - steps * np.log(2 * np.pi)
    assert found.log_prob == pytest.approx(top, abs=1e-9)


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_least_squares_are_as_close_as_their_bounds_say(seed):
    """Against 60 digits, for equations whose standard deviations are up to a million times apart."""
    rng = np.random.default_rng(seed)
    p, extra = int(rng.integers(1, 6)), int(rng.integers(0, 4))
    matrix = np.tril(rng.normal(0, 3, (p + extra, p)))
    matrix[np.arange(p), np.arange(p)] = 1.0
    right, sds = rng.normal(0, 5, p + extra), 10.0 ** rng.uniform(-3, 3, p + extra)
    system = np.column_stack([matrix, right]) / sds[:, None]
    found, logs, errors, shifts = _least_squares(system[None], np.abs(system[None, :, p]), np.log(sds)[None])
    with mpmath.workdps(60):
        a, t = mpmath.matrix(system[:, :p].tolist()), mpmath.matrix(system[:, p].tolist())
        gram = a.T * a
        point = mpmath.lu_solve(gram, a.T * t)
        left, off = t - a * point, mpmath.matrix(found[0, :, p].tolist()) - point
        log_det = mpmath.log(mpmath.det(gram)) / 2
        exact = -log_det - (left.T * left)[0] / 2 - extra * mpmath.log(2 * mpmath.pi) / 2
        exact -= mpmath.fsum(mpmath.log(mpmath.mpf(float(sd))) for sd in sds)
        assert abs(exact - mpmath.mpf(float(logs[0]))) <= errors[0]
        assert abs(log_det - mpmath.fsum(mpmath.log(mpmath.mpf(x)) for x in found[0].diagonal())) <= errors[0]
        assert mpmath.sqrt((off.T * gram * off)[0]) <= shifts[0]
    assert np.isfinite(errors[0])
