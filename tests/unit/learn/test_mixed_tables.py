"""Learning from tables as they are: leaf families against scipy, mixed columns, missing cells."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import certimap as cm
from certimap.circuits.circuit import CircuitBuilder
from certimap.core.domain import Categorical, Domain, Real
from certimap.errors import DataError
from certimap.learn.hidden_model import HiddenChowLiuModel
from certimap.learn.hidden_tree import _contexts
from certimap.learn.leaves import are_labels, densest, families_of
from certimap.learn.spn import _critical_values, components_of_known
from certimap.learn.table import DataTable, read_table

REAL = ("gaussian", "laplace", "student_t", "truncated_gaussian", "exponential", "gamma", "lognormal", "histogram")
COUNTS = ("poisson", "geometric", "negative_binomial")


def one_column(values: np.ndarray) -> DataTable:
    return DataTable(Domain([Real("x")]), values[:, None].astype(np.float64))


@pytest.mark.parametrize("name", [*REAL, *COUNTS, "beta"])
def test_families_are_the_densities_of_the_leaves_that_they_add(name):
    rng = np.random.default_rng(1)
    values = rng.poisson(4.0, 60).astype(float) if name in COUNTS else rng.gamma(2.0, 3.0, 60)
    values = values / (3.0 + values) if name == "beta" else values
    (family,) = families_of(one_column(values), 0, name)
    params = family.fit(values, rng.dirichlet(np.ones(3), 60), 0.5)
    builder = CircuitBuilder(Domain([Real("x")]))
    family.add(builder, 0, params[1])
    circuit = builder.build()
    points = np.concatenate([values, [0.0, 1.0, 25.0, -1.0]])
    posterior = cm.condition(circuit)
    assert family.log_density(points, params)[:, 1] == pytest.approx(posterior.log_prob(points[:, None]), rel=1e-9)


@pytest.mark.parametrize(
    ("name", "law"),
    [
        ("gaussian", stats.norm(3.0, 0.7)),
        ("laplace", stats.laplace(-2.0, 1.5)),
        ("student_t", stats.t(4.0, 1.0, 0.5)),
        ("truncated_gaussian", stats.truncnorm(-0.5, np.inf, 1.0, 2.0)),
        ("exponential", stats.expon(scale=3.0)),
        ("poisson", stats.poisson(6.0)),
        ("geometric", stats.geom(0.3, -1)),
        ("beta", stats.beta(2.0, 5.0)),
        ("gamma", stats.gamma(3.0, scale=2.0)),
        ("lognormal", stats.lognorm(0.6, scale=4.0)),
        ("negative_binomial", stats.nbinom(2.5, 0.3)),
    ],
)
def test_families_find_the_law_that_rows_come_from(name, law):
    values = np.asarray(law.rvs(20_000, random_state=0), np.float64)
    (family,) = families_of(one_column(values), 0, name)
    found = family.log_density(values, family.fit(values, np.ones((len(values), 1)), 1.0))[:, 0]
    true = law.logpmf(values) if name in COUNTS else law.logpdf(values)
    assert found.mean() == pytest.approx(true.mean(), abs=5e-4)
    assert found.mean() > true.mean() - 1e-5  # the most likely parameters are likelier than the true ones


def test_columns_that_touch_an_end_get_no_family_without_it():
    values = np.linspace(0.0, 0.9, 50)
    names = {family.name for family in families_of(one_column(values), 0, None)}
    assert {"exponential", "truncated_gaussian"} <= names
    assert not names & {"gamma", "lognormal", "beta"}
    assert {"gamma", "beta"} <= {family.name for family in families_of(one_column(values[1:]), 0, None)}


def test_the_plainest_family_stays_unless_another_leads_by_more_than_its_error():
    rng = np.random.default_rng(0)
    base = rng.normal(size=100)
    assert densest([base, base + rng.normal(0.0, 1.0, 100) - 0.05, base + 0.5]) == 2
    assert densest([base, base + np.where(np.arange(100) == 0, 5.0, -0.01)]) == 0
    assert densest([np.where(np.arange(100) == 0, -np.inf, base), base - 1.0]) == 1


def by_hand(table: np.ndarray) -> float:
    """G of a table of counts, and the critical comparison's degrees of freedom, by scipy."""
    rows, columns = table.sum(axis=1) > 0, table.sum(axis=0) > 0
    return stats.chi2_contingency(table[rows][:, columns], correction=False, lambda_="log-likelihood")


def test_pairs_are_tested_on_the_rows_that_know_both():
    rng = np.random.default_rng(3)
    codes = rng.integers(3, size=(200, 4))
    codes[:, 1] = np.where(rng.random(200) < 0.5, codes[:, 0], codes[:, 1])
    known = rng.random(codes.shape) > 0.3
    indicators = np.concatenate(
        [(codes[:, [i]] == np.arange(1, 3)) & known[:, [i]] for i in range(4)], axis=1
    ).astype(np.float32)
    for threshold in (0.2, 0.05, 1e-3):
        linked = np.zeros((4, 4), bool)
        for i in range(4):
            for j in range(i):
                rows = known[:, i] & known[:, j]
                counts = np.zeros((3, 3))
                np.add.at(counts, (codes[rows, i], codes[rows, j]), 1.0)
                linked[i, j] = by_hand(counts).pvalue < threshold
        labels, count = components_of_known(indicators, np.full(4, 3), known, _critical_values(threshold))
        reached = np.linalg.matrix_power((linked | linked.T | np.eye(4, dtype=bool)).astype(int), 4) > 0
        assert np.array_equal(labels[:, None] == labels, reached)
        assert count == len(np.unique(labels))


def mixed_frame(n: int, seed: int, holes: float = 0.0) -> pd.DataFrame:
    """Two groups that all columns tell apart, of all kinds."""
    rng = np.random.default_rng(seed)
    group = rng.random(n) < 0.4
    frame = pd.DataFrame(
        {
            "length": np.where(group, rng.normal(500.0, 20.0, n), rng.normal(620.0, 30.0, n)),
            "wait": rng.exponential(np.where(group, 2.0, 30.0)),
            "visits": rng.poisson(np.where(group, 60.0, 12.0)),
            "colour": np.where(rng.random(n) < np.where(group, 0.9, 0.2), "red", "blue"),
            "children": rng.integers(3, size=n),
        }
    )
    if holes:
        frame = frame.astype({"children": "Int64"})
        for name in ("length", "wait", "colour", "children"):
            frame.loc[rng.random(n) < holes, name] = pd.NA if name == "children" else None
    return frame


TRUE = {
    "length": lambda g: stats.norm(500.0, 20.0) if g else stats.norm(620.0, 30.0),
    "wait": lambda g: stats.expon(scale=2.0 if g else 30.0),
}


def true_score(frame: pd.DataFrame) -> float:
    total = np.zeros(len(frame))
    for g, share in ((True, 0.4), (False, 0.6)):
        red = 0.9 if g else 0.2
        total += share * (
            TRUE["length"](g).pdf(frame["length"])
            * TRUE["wait"](g).pdf(frame["wait"])
            * stats.poisson(60.0 if g else 12.0).pmf(frame["visits"])
            * np.where(frame["colour"] == "red", red, 1.0 - red)
            / 3.0
        )
    return float(np.log(total).mean())


@pytest.mark.parametrize("learner", [cm.learn.mixture, cm.learn.learnspn])
@pytest.mark.parametrize("holes", [0.0, 0.2])
def test_mixed_tables_are_learned_in_their_own_units(learner, holes):
    circuit = learner(mixed_frame(1500, 0, holes), rng=0)
    assert circuit.domain["visits"] == Real("visits")
    assert circuit.domain["children"] == Categorical("children", (0, 1, 2))
    test = mixed_frame(1000, 9)
    score = cm.learn.score_samples(circuit, test).mean()
    assert true_score(test) - 0.25 < score < true_score(test) + 0.05
    result = cm.map_query(circuit, ["length", "visits"], {"colour": "red", "wait": 1.0}, rng=0)
    assert 480.0 < result.assignment["length"] < 520.0
    assert 50.0 < result.assignment["visits"] < 70.0
    assert result.assignment["visits"] == round(result.assignment["visits"])


def test_leaves_are_chosen_where_the_column_asks_for_them():
    estimator = cm.learn.ProductMixture(n_components=2, smoothing=0.1, random_state=0).fit(mixed_frame(1500, 0))
    leaves = dict(estimator.choice_.leaves)
    assert leaves["length"] == "gaussian"
    assert leaves["wait"] in ("exponential", "truncated_gaussian", "histogram")
    assert leaves["visits"] == "poisson"
    assert estimator.choice_ in estimator.choices_
    again = cm.learn.ProductMixture(n_components=2, smoothing=0.1, random_state=0).fit(mixed_frame(1500, 0))
    assert np.array_equal(again.model_.params, estimator.model_.params)


def test_each_step_of_the_mixture_raises_the_likelihood_of_tables_with_holes():
    frame = mixed_frame(300, 4, 0.3)
    scores = []
    for steps in (1, 2, 4, 8, 16):
        estimator = cm.learn.ProductMixture(
            3,
            smoothing=1e-6,
            leaves={"length": "gaussian", "wait": "exponential", "visits": "poisson"},
            n_starts=1,
            max_steps=steps,
            tolerance=0.0,
            random_state=0,
        ).fit(frame)
        scores.append(estimator.score(frame))
    assert np.all(np.diff(scores) > -1e-9)


def test_counts_and_leaves_can_be_asked_for():
    frame = pd.DataFrame({"n": [0, 3, 1, 2] * 10, "x": [0.5, -1.5, 2.0, 1.0] * 10})
    spn = cm.learn.LearnSPN(kinds={"n": "count"}, leaves={"x": "laplace"}, random_state=0).fit(frame)
    assert spn.leaves_["n"] in COUNTS
    assert spn.leaves_["x"] == "laplace"
    for settings, message in (
        ({"kinds": {"x": "count"}}, r"column 'x' holds .* a count is a whole number from 0"),
        ({"leaves": {"x": "exponential"}}, r"column 'x' holds -1.5; exponential leaves take numbers from 0"),
        ({"leaves": {"x": "poisson"}}, r"poisson leaves take whole numbers from 0"),
        ({"leaves": {"x": "betas"}}, r"the leaves of column 'x' are 'betas'; expected one of gaussian"),
        ({"leaves": {"x": "beta"}}, r"column 'x' holds -1.5; beta leaves take numbers between 0 and 1"),
        ({"leaves": {"y": "laplace"}}, r"leaves names the column 'y'"),
        ({"leaves": {"n": "laplace"}}, r"leaves names the column 'n', which is categorical"),
    ):
        for estimator in (cm.learn.LearnSPN, cm.learn.ProductMixture):
            with pytest.raises(DataError, match=message):
                estimator(**settings).fit(frame)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_components": 0}, "n_components is 0"),
        ({"n_components": ()}, r"n_components is \(\)"),
        ({"smoothing": 0.0}, "smoothing is 0.0"),
        ({"max_steps": 1.5}, "max_steps is 1.5"),
    ],
)
def test_settings_of_the_mixture_are_checked(settings, message):
    with pytest.raises(DataError, match=message):
        cm.learn.ProductMixture(**settings).fit([[0.5, 1.0], [1.5, 2.0]])


def test_many_integers_become_real_where_leaves_hold_them():
    rows = {"many": np.arange(60), "few": np.arange(60) % 3, "text": ["a", "b", "c"] * 20}
    assert isinstance(read_table(rows).domain["many"], Categorical)
    table = read_table(rows, as_labels=are_labels)
    assert table.domain["many"] == Real("many")
    assert table.whole == {0: "whole"}
    assert isinstance(table.domain["few"], Categorical)
    assert isinstance(table.domain["text"], Categorical)


def test_rows_without_any_value_and_columns_mostly_missing_are_taken():
    rows = np.full((40, 3), np.nan)
    rows[:20, 0] = np.linspace(0.1, 5.0, 20)
    rows[10:30, 1] = np.linspace(-3.0, 8.5, 20)
    rows[3, 2] = 1.25
    for learner in (cm.learn.mixture, cm.learn.learnspn):
        circuit = learner(rows, rng=0)
        assert np.all(np.isfinite(cm.learn.score_samples(circuit, rows)))


@pytest.mark.parametrize("kinds", [{"visits": "count"}, None])
@pytest.mark.parametrize("holes", [0.0, 0.2])
def test_hidden_trees_choose_leaves_on_validation_rows(kinds, holes):
    estimator = cm.learn.HiddenChowLiuTree(8, kinds=kinds, random_state=0).fit(mixed_frame(1500, 0, holes))
    assert estimator.leaves_.pop("wait") in ("truncated_gaussian", "gamma")
    assert estimator.leaves_ == {"length": "gaussian", "visits": "poisson"}
    test = mixed_frame(1000, 9)
    assert true_score(test) - 0.06 < estimator.score(test) < true_score(test) + 0.05
    result = cm.map_query(estimator.model_, ["visits"], {"colour": "red"}, rng=0)
    assert result.certificate.kind == "exact"
    assert result.assignment["visits"] == int(result.assignment["visits"])


def test_contexts_are_the_other_cells_of_a_row():
    """P(latent state | all cells but one), against the network with its latent variables."""
    rng = np.random.default_rng(4)
    parent, k = np.array([-1, 0, 0, 1]), 3
    model = HiddenChowLiuModel(
        Domain.of_sizes([2, 3, 2, 4]),
        parent,
        rng.dirichlet(np.ones(k)),
        rng.dirichlet(np.ones(k), (4, k)),
        [rng.dirichlet(np.ones(size), k) for size in (2, 3, 2, 4)],
    )
    points = np.array([[0, 2, 1, 3], [1, -1, 0, 0], [-1, -1, -1, -1]], np.int16)
    found = _contexts(model, DataTable(model.domain, points), [0, 1, 2, 3])
    network = model.to_network()
    for row, point in enumerate(points.tolist()):
        for i in range(4):
            seen = {str(j): x for j, x in enumerate(point) if j != i and x >= 0}
            wanted = list(cm.marginals(network, [f"z:{i}"], seen)[f"z:{i}"].values())
            assert found[i][row] == pytest.approx(wanted, abs=1e-12)


@pytest.mark.slow
def test_columns_of_many_integers_are_labels_where_rows_prefer_them():
    rng = np.random.default_rng(0)
    codes = rng.choice(rng.choice(10_000, 25, replace=False), 1200)  # 25 codes far apart
    ages = np.clip(np.rint(rng.normal(40.0, 12.0, 1200)), 0, 90).astype(int)
    few = np.concatenate([np.repeat(np.arange(30), 40), [77]])  # a value that is rare: more may come
    assert are_labels(codes.astype(float))
    assert not are_labels(ages.astype(float))
    assert not are_labels(few.astype(float))
    for learner in (cm.learn.hclt, cm.learn.chow_liu, cm.learn.clt_mixture, cm.learn.learnspn, cm.learn.mixture):
        model = learner({"code": codes, "age": ages}, rng=0)
        assert isinstance(model.domain["code"], Categorical)
        assert isinstance(model.domain["age"], Real)
    assert isinstance(cm.learn.gaussian_mixture({"code": codes, "age": ages}, rng=0).domain["code"], Real)


@pytest.mark.parametrize("learner", [cm.learn.hclt, cm.learn.chow_liu, cm.learn.clt_mixture])
def test_trees_take_real_columns_as_histograms_and_missing_cells(learner):
    circuit = learner(mixed_frame(1500, 0, 0.2), kinds={"visits": "count"}, rng=0)
    assert isinstance(circuit, cm.Circuit)
    test = mixed_frame(1000, 9)
    alone = cm.learn.mixture(mixed_frame(1500, 0, 0.2), n_components=1, kinds={"visits": "count"}, rng=0)
    score = cm.learn.score_samples(circuit, test).mean()
    assert cm.learn.score_samples(alone, test).mean() < score < true_score(test) + 0.05


@pytest.mark.slow
def test_models_of_bars_integrate_to_one():
    circuit = cm.learn.hclt({"x": np.random.default_rng(0).gamma(2.0, 3.0, 300)}, rng=0)
    grid = np.linspace(-200.0, 200.0, 400_001)
    density = np.exp(cm.learn.score_samples(circuit, {"x": grid}))
    assert density.sum() * (grid[1] - grid[0]) == pytest.approx(1.0, abs=1e-3)


def test_trees_sum_missing_cells_out():
    rng = np.random.default_rng(5)
    rows = rng.integers(3, size=(300, 4))
    rows[:, 2] = np.where(rng.random(300) < 0.7, rows[:, 0], rows[:, 2])
    tree = cm.learn.ChowLiuTree().fit(rows).tree_
    points = np.array([[0, -1, 2, 1], [-1, -1, -1, -1], [1, 2, -1, -1]])
    for point, found in zip(points, tree.log_likelihood(points), strict=True):
        grids = [range(3) if x < 0 else [x] for x in point]
        every = np.array(np.meshgrid(*grids)).reshape(4, -1).T
        assert found == pytest.approx(np.logaddexp.reduce(tree.log_likelihood(every)), abs=1e-12)


def correlated(n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    covariance = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.3], [0.0, 0.3, 1.0]])
    rows = rng.multivariate_normal([0.0, 0.0, 0.0], covariance, n)
    return np.where(rng.random((n, 1)) < 0.3, 4.0, 0.0) + rows * [1.0, 2.0, 1.0] + [1000.0, 0.0, 0.001]


@pytest.mark.parametrize("holes", [0.0, 0.3])
def test_full_covariances_are_learned_with_missing_cells(holes, tmp_path):
    rows, test = correlated(1200, 0), correlated(800, 1)
    rows[np.random.default_rng(2).random(rows.shape) < holes] = np.nan
    estimator = cm.learn.FullMixture(random_state=0).fit(rows)
    best = cm.learn.gaussian_mixture(correlated(20_000, 3), n_components=2, smoothing=0.1, rng=0)
    assert estimator.score(test) == pytest.approx(best.log_density(test).mean(), abs=0.1)
    model = estimator.model_
    model.write(tmp_path / "model.npz")
    again = cm.read(tmp_path / "model.npz")
    assert np.array_equal(again.log_density(test), model.log_density(test))
    assert again.domain == model.domain


def test_steps_on_full_covariances_raise_the_likelihood_of_what_is_known():
    rows = correlated(200, 0)
    rows[np.random.default_rng(2).random(rows.shape) < 0.3] = np.nan
    fits = [
        cm.learn.FullMixture(2, smoothing=1e-9, n_starts=1, max_steps=k, tolerance=0.0, random_state=0).fit(rows)
        for k in (1, 2, 4, 8, 16)
    ]
    assert np.all(np.diff([fit.score(rows) for fit in fits]) > -1e-9)


def test_full_covariances_refuse_labels():
    with pytest.raises(DataError, match="column 'colour' is categorical, which gaussian_mixture cannot take"):
        cm.learn.gaussian_mixture(mixed_frame(50, 0))


def test_two_missing_columns_of_a_flower_are_filled_by_the_mode():
    datasets = pytest.importorskip("sklearn.datasets")
    rows = datasets.load_iris().data
    rows[np.random.default_rng(0).random(rows.shape) < 0.1] = np.nan
    names = ["sepal_l", "sepal_w", "petal_l", "petal_w"]
    model = cm.learn.gaussian_mixture(dict(zip(names, rows.T, strict=True)), n_components=3, smoothing=0.1, rng=0)
    seen = {"sepal_l": 5.5, "sepal_w": 3.0}
    result = cm.map_query(model, names[2:], seen, epsilon=0.01, rng=0)
    rest, _ = model.given(seen)
    mean = np.exp(rest.log_weights) @ rest.means
    assert result.log_upper_bound - result.log_prob <= 0.0101
    assert rest.log_density(mean[None])[0] < result.log_prob - 1.0  # between the clusters
    near = np.nanmin(np.abs(rows[:, 2] - result.assignment["petal_l"]))
    assert near < 0.1
