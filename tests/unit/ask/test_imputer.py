"""MapImputer: scikit-learn's checks, joint modes by enumeration, frames in and out, and what it refuses."""

import itertools

import numpy as np
import pytest

import certimap as cm

sklearn = pytest.importorskip("sklearn", minversion="1.6")
pandas = pytest.importorskip("pandas")

from sklearn.utils.estimator_checks import parametrize_with_checks  # noqa: E402


@parametrize_with_checks([cm.MapImputer(random_state=0)])
def test_scikit_learn_accepts_it(estimator, check):
    check(estimator)


def table(n: int = 200, d: int = 5, seed: int = 0):
    rng = np.random.default_rng(seed)
    whole = (rng.integers(3, size=(n, 1)) + (rng.random((n, d)) < 0.3)) % 3.0
    hidden = rng.random((n, d)) < 0.25
    return np.where(hidden, np.nan, whole)


def test_fills_are_joint_modes():
    X = table()
    imputer = cm.MapImputer(random_state=0).fit(X)
    filled, results = imputer.impute(X)
    for i in range(40):
        missing = np.isnan(X[i])
        assert np.array_equal(filled[i, ~missing], X[i, ~missing])
        assert (results[i] is None) == (not missing.any())
        if results[i] is None:
            continue
        fills = np.array(list(itertools.product(range(3), repeat=int(missing.sum()))), float)
        rows = np.repeat(X[i][None], len(fills), axis=0)
        rows[:, missing] = fills
        best = cm.log_likelihood(imputer.model_, rows).max()
        assert cm.log_likelihood(imputer.model_, filled[i][None])[0] == pytest.approx(best, abs=1e-9)
        assert results[i].certificate.kind == "exact"


@pytest.mark.slow
def test_processes_change_nothing():
    X = table(n=400, d=4)
    one, two = (cm.MapImputer(random_state=0, n_jobs=n).fit_transform(X) for n in (1, 2))
    assert np.array_equal(one, two)


class TestFrames:
    def frame(self):
        n = 60
        rng = np.random.default_rng(0)
        kind = rng.integers(3, size=n)
        frame = pandas.DataFrame(
            {
                "size": pandas.Categorical.from_codes(kind, ["S", "M", "L"], ordered=True),
                "count": pandas.array(kind * 2, dtype="Int64"),
                "word": np.array(["a", "b", "c"], object)[kind],
                "flag": pandas.array(kind > 1, dtype="boolean"),
                "weight": kind + rng.normal(size=n) * 0.1,
                "whole": np.arange(n, dtype=np.int32),
            },
            index=[f"row{i}" for i in range(n)],
        )
        spoiled = frame.copy()
        for j in range(5):
            spoiled.iloc[[j, j + 10, j + 20], j] = None
        return frame, spoiled

    def test_dtypes_categories_and_index_stay(self):
        frame, spoiled = self.frame()
        filled = cm.MapImputer(random_state=0).fit_transform(spoiled)
        assert (filled.dtypes == spoiled.dtypes).all()
        assert filled.index.equals(frame.index)
        assert filled["size"].cat.categories.tolist() == ["S", "M", "L"]
        assert not filled.isna().any().any()
        for name in ("size", "count", "word", "flag"):
            assert (filled[name] == frame[name]).mean() > 0.98
        assert np.abs(filled["weight"] - frame["weight"]).max() < 0.5

    def test_the_given_frame_is_left_alone(self):
        _, spoiled = self.frame()
        before = spoiled.copy()
        cm.MapImputer(random_state=0).fit_transform(spoiled)
        pandas.testing.assert_frame_equal(spoiled, before)

    def test_output_as_configured(self):
        X = table(n=30)
        frame = cm.MapImputer(random_state=0).set_output(transform="pandas").fit_transform(X)
        assert list(frame.columns) == ["x0", "x1", "x2", "x3", "x4"]


class TestModels:
    def network(self):
        states = {"rain": ["no", "yes"], "wet": ["no", "yes"], "other": [0, 1]}
        tables = {"rain": [0.8, 0.2], "wet": {"no": [0.9, 0.1], "yes": [0.1, 0.9]}, "other": [0.5, 0.5]}
        return cm.BayesianNetwork.from_cpts(states, {"wet": ["rain"]}, tables)

    def test_a_model_that_was_given(self):
        frame = pandas.DataFrame({"wet": ["yes", None, "no"], "rain": [None, "yes", None]})
        filled, results = cm.MapImputer(self.network()).fit(frame).impute(frame)
        assert filled["rain"].tolist() == ["yes", "yes", "no"]
        assert filled["wet"].tolist() == ["yes", "yes", "no"]
        assert results[0].log_prob == pytest.approx(np.log(0.18 / 0.26))

    def test_it_must_know_the_columns(self):
        with pytest.raises(cm.QueryError, match="'sun' is no variable"):
            cm.MapImputer(self.network()).fit(pandas.DataFrame({"sun": ["yes"]}))
        with pytest.raises(cm.CertimapError, match="'maybe' in column 'wet' is no state"):
            cm.MapImputer(self.network()).fit(pandas.DataFrame({"wet": ["maybe"]}))

    def test_learners(self):
        X = table(n=80)
        for model in ("chow-liu", "learnspn"):
            whole = X[~np.isnan(X).any(axis=1)]
            filled = cm.MapImputer(model, random_state=0).fit(whole).transform(X)
            assert not np.isnan(filled).any()
            assert not np.isnan(cm.MapImputer(model, random_state=0).fit(X).transform(X)).any()

    def test_an_estimator_keeps_its_settings(self):
        from certimap.learn import HiddenChowLiuTree

        learner = HiddenChowLiuTree(3, random_state=0, progress=False)
        imputer = cm.MapImputer(learner).fit(table(n=80))
        assert len(imputer.model_.root_prior) == 3
        assert not hasattr(learner, "model_")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": "forest"}, "auto, hclt, gaussian-mixture"),
        ({"bins": 1}, "bins is 1"),
        ({"max_levels": 0.5}, "max_levels is 0.5"),
    ],
)
def test_settings_out_of_range(options, said):
    with pytest.raises(cm.CertimapError, match=said):
        cm.MapImputer(**options).fit(table(n=20))


def test_values_that_were_never_seen_and_columns_without_values():
    imputer = cm.MapImputer(random_state=0).fit(table(n=40))
    row = np.array([[7.0, np.nan, 0.0, 0.0, 0.0]])
    with pytest.raises(cm.CertimapError, match=r"7\.0 in column '0' is no state"):
        imputer.transform(row)
    with pytest.raises(cm.CertimapError, match="no value at all"):
        cm.MapImputer().fit(np.array([[1.0, np.nan], [0.0, np.nan]]))
    with pytest.raises(cm.CertimapError, match="not fitted"):
        cm.MapImputer().transform(row)


def test_numbers_are_cut_at_quantiles_and_filled_with_medians():
    rng = np.random.default_rng(0)
    x = rng.normal(size=400)
    X = np.stack([x, x + 0.01 * rng.normal(size=400)], axis=1)
    spoiled = X.copy()
    spoiled[::4, 0] = np.nan
    filled = cm.MapImputer(random_state=0, bins=10).fit_transform(spoiled)
    assert np.corrcoef(filled[::4, 0], X[::4, 0])[0, 1] > 0.95


def test_lists_of_dicts_are_filled_as_they_are():
    rows = [{"a": "x" if i % 2 else "y", "b": 2.5 if i % 2 else 0.5, "c": i % 2} for i in range(40)]
    holes = [{"a": "x", "b": None, "c": 1}, {"a": None, "b": 0.5}]
    imputer = cm.MapImputer(random_state=0).fit(rows)
    filled = imputer.transform(holes)
    assert filled == [{"a": "x", "b": 2.5, "c": 1}, {"a": "y", "b": 0.5, "c": 0}]
    assert [type(row["c"]) for row in filled] == [int, int]
    assert len(imputer.draw(holes, 2, rng=0)) == 2
