"""Cells filled one by one, means and draws, against enumeration and closed forms; the choice of a model."""

import numpy as np
import pytest

import certimap as cm

pytest.importorskip("sklearn", minversion="1.6")
pandas = pytest.importorskip("pandas")

WEIGHTS, MEANS = np.array([0.3, 0.7]), np.array([[0.0, 1.0, -1.0], [3.0, -2.0, 2.0]])
ROOTS = np.array([[[1.0, 0, 0], [0.6, 0.8, 0], [-0.3, 0.2, 0.9]], [[0.5, 0, 0], [0.1, 1.2, 0], [0.7, -0.4, 0.6]]])
ROW = np.array([[1.2, np.nan, np.nan]])


def mixture():
    return cm.GaussianMixture(WEIGHTS, MEANS, ROOTS @ ROOTS.transpose(0, 2, 1))


def conditionals(x: float):
    """Shares of the components given the first variable, and their conditional means and covariances."""
    covariances = ROOTS @ ROOTS.transpose(0, 2, 1)
    variance = covariances[:, 0, 0]
    shares = WEIGHTS * np.exp(-0.5 * (x - MEANS[:, 0]) ** 2 / variance) / np.sqrt(variance)
    slopes = covariances[:, 1:, 0] / variance[:, None]
    left = covariances[:, 1:, 1:] - slopes[:, :, None] * covariances[:, None, 0, 1:]
    return shares / shares.sum(), MEANS[:, 1:] + slopes * (x - MEANS[:, :1]), left


def test_means_of_gaussian_mixtures_in_closed_form():
    shares, means, _ = conditionals(1.2)
    filled = cm.MapImputer(mixture(), point="mean").fit(ROW).transform(ROW)
    assert filled[0, 1:] == pytest.approx(shares @ means, abs=1e-9)
    assert filled[0, 0] == 1.2
    frame = pandas.DataFrame({"0": [1.0, 2.0], "1": [np.nan, 1.0], "2": [3.0, np.nan]})
    filled = cm.MapImputer(mixture(), point="mean").fit(frame).transform(frame)
    assert filled["1"][0] != np.rint(filled["1"][0])


def test_draws_have_the_moments_of_the_closed_form_and_repeat():
    shares, means, left = conditionals(1.2)
    imputer = cm.MapImputer(mixture()).fit(ROW)
    tables = imputer.draw(ROW, n_draws=4000, rng=1)
    drawn = np.array([table[0, 1:] for table in tables])
    mean = shares @ means
    spread = np.einsum("k,kij->ij", shares, left + np.einsum("ki,kj->kij", means - mean, means - mean))
    assert np.abs(drawn.mean(axis=0) - mean).max() < 5 * np.sqrt(np.diag(spread).max() / 4000)
    assert np.cov(drawn.T) == pytest.approx(spread, abs=0.2)
    again = imputer.draw(ROW, n_draws=3, rng=1)
    assert np.array_equal(again[2], imputer.draw(ROW, n_draws=3, rng=1)[2])
    assert not np.array_equal(again[0], again[1])


def test_joint_modes_of_densities_are_certified_and_no_worse_than_marginal_ones():
    joint, results = cm.MapImputer(mixture()).fit(ROW).impute(ROW)
    own = cm.MapImputer(mixture(), point="marginal").fit(ROW).transform(ROW)
    assert results[0].certificate.epsilon <= 0.01
    log_density = mixture().log_density
    assert log_density(joint)[0] >= log_density(own)[0] - 0.01
    shares, means, left = conditionals(1.2)
    grid = np.linspace(-5, 5, 4001)
    density = sum(
        s * np.exp(-0.5 * (grid - m[0]) ** 2 / v[0, 0]) / np.sqrt(v[0, 0])
        for s, m, v in zip(shares, means, left, strict=True)
    )
    at = np.interp(own[0, 1], grid, density)
    assert at >= 0.99 * density.max()


def chain():
    states = {"a": ["x", "y"], "b": ["x", "y"], "c": ["x", "y", "z"]}
    tables = {
        "a": [0.4, 0.6],
        "b": {"x": [0.55, 0.45], "y": [0.0, 1.0]},
        "c": {"x": [0.2, 0.5, 0.3], "y": [0.6, 0.3, 0.1]},
    }
    return cm.BayesianNetwork.from_cpts(states, {"b": ["a"], "c": ["b"]}, tables)


def test_marginal_states_and_draws_by_enumeration():
    frame = pandas.DataFrame({"a": [None, None, "x"], "c": ["y", "z", None]})
    imputer = cm.MapImputer(chain(), point="marginal").fit(frame)
    filled = imputer.transform(frame)
    joint = np.einsum("a,ab,bc->ac", [0.4, 0.6], [[0.55, 0.45], [0.0, 1.0]], [[0.2, 0.5, 0.3], [0.6, 0.3, 0.1]])
    assert filled["a"].tolist()[:2] == [["x", "y"][int(joint[:, c].argmax())] for c in (1, 2)]
    assert filled["c"][2] == ["x", "y", "z"][int(joint[0].argmax())]
    drawn = [table["c"][2] for table in imputer.draw(frame, n_draws=1000, rng=0)]
    assert [drawn.count(s) / 1000 for s in "xyz"] == pytest.approx(joint[0] / joint[0].sum(), abs=0.05)


def test_probabilities_and_means_of_mixed_circuits():
    from certimap.ask.cells import expected_cells
    from certimap.core.domain import Categorical, Domain, Real

    domain = Domain([Categorical("s", ("u", "v")), Real("x"), Real("y")])
    builder = cm.CircuitBuilder(domain)
    parts = [
        builder.product(
            [
                builder.categorical(0, probs=[p, 1 - p]),
                builder.gaussian(1, m, 1.0),
                builder.real("laplace", 2, t, 2.0),
            ]
        )
        for p, m, t in ((0.9, 0.0, 5.0), (0.2, 3.0, -1.0))
    ]
    builder.sum(parts, weights=[0.5, 0.5])
    found = expected_cells(builder.build(), domain, np.array([[np.nan, 1.0, np.nan]]), 0)
    weights = np.exp(-0.5 * np.array([1.0, 4.0]))
    weights /= weights.sum()
    assert found[0][0] == pytest.approx([weights @ [0.9, 0.2], weights @ [0.1, 0.8]], abs=1e-9)
    assert found[2][0, 0] == pytest.approx(weights @ [5.0, -1.0], abs=0.8)


def numbers(n=120, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    whole = np.column_stack([x, 2 * x + 0.1 * rng.normal(size=n), np.rint(30 + 20 * x)])
    return whole, np.where(rng.random(whole.shape) < 0.2, np.nan, whole)


def test_linear_tables_get_gaussians_and_whole_numbers_stay_whole():
    whole, spoiled = numbers()
    imputer = cm.MapImputer(point="mean", random_state=0).fit(spoiled)
    assert isinstance(imputer.model_, cm.GaussianMixture)
    filled = imputer.transform(spoiled)
    hidden = np.isnan(spoiled)
    seen = hidden & (~hidden).any(axis=1, keepdims=True)
    assert np.abs((filled - whole) / whole.std(axis=0))[seen].mean() < 0.1
    assert np.array_equal(filled[:, 2], np.rint(filled[:, 2]))


def test_frames_of_labels_and_numbers_by_models_with_real_leaves():
    whole, spoiled = numbers()
    frame = pandas.DataFrame(spoiled, columns=["x", "y", "age"])
    frame["age"] = frame["age"].astype("Int64")
    frame["sign"] = np.where(whole[:, 0] > 0, "plus", "minus")
    frame.loc[::7, "sign"] = None
    for model in ("mixture", "learnspn", "auto"):
        imputer = cm.MapImputer(model, point="mean", random_state=0).fit(frame)
        for filled in (imputer.transform(frame), *imputer.draw(frame, n_draws=1)):
            assert (filled.dtypes == frame.dtypes).all()
            assert not filled.isna().any().any()
        right = filled["sign"][::7] == np.where(whole[::7, 0] > 0, "plus", "minus")
        assert right.mean() > 0.6


def test_frames_of_polars():
    polars = pytest.importorskip("polars")
    _, spoiled = numbers()
    columns = {"x": spoiled[:, 0].tolist(), "age": [None if np.isnan(v) else int(v) for v in spoiled[:, 2]]}
    frame = polars.DataFrame({**columns, "word": ["a", None, "b"] * 40})
    filled = cm.MapImputer(random_state=0, point="mean").fit_transform(frame)
    assert filled.schema == frame.schema
    assert filled["age"].null_count() + filled["word"].null_count() + filled["x"].is_nan().sum() == 0


def test_averaged_trees_and_settings():
    states = np.random.default_rng(0).integers(3, size=(60, 3)).astype(float)
    states[::4, 1] = np.nan
    assert len(cm.MapImputer(point="marginal", n_models=2, random_state=0).fit(states).models_) == 2
    with pytest.raises(cm.CertimapError, match="joint modes are of one model"):
        cm.MapImputer(n_models=2).fit(states)
    with pytest.raises(cm.CertimapError, match="point is 'best'"):
        cm.MapImputer(point="best").fit(states)
    with pytest.raises(cm.CertimapError, match="n_draws is 0"):
        cm.MapImputer(random_state=0).fit(states).draw(states, 0)
