from __future__ import annotations

import itertools
import math
import pickle
import subprocess
import sys

import learn_twin as twin
import numpy as np
import pandas as pd
import pytest

from certimap import io, learn
from certimap.circuits import properties
from certimap.core.domain import Domain
from certimap.core.query import make_query
from certimap.errors import DataError, MissingDependency
from certimap.learn import HiddenChowLiuTree
from certimap.learn.clusters import row_clusters
from certimap.learn.estimator import posterior_over_all
from certimap.learn.hidden_passes import Parameters, Passes
from certimap.learn.kernels.rows import independent_components, k_means
from certimap.learn.spn import StructureLearner
from certimap.learn.table import DataTable, one_hot
from certimap.learn.tree import mutual_information, pair_counts, smoothed_joint, spanning_tree


def chain(n_rows=400, n=6, seed=0, sizes=None):
    """Rows of a noisy chain, every other variable with three states."""
    rng = np.random.default_rng(seed)
    sizes = sizes or [2 + (i % 2) for i in range(n)]
    rows = np.empty((n_rows, n), np.int16)
    rows[:, 0] = rng.integers(sizes[0], size=n_rows)
    for i in range(1, n):
        copied = rows[:, i - 1] % sizes[i]
        rows[:, i] = np.where(rng.random(n_rows) < 0.8, copied, rng.integers(sizes[i], size=n_rows))
    return rows


def blocks(n_rows=600, seed=0):
    """Two independent groups of three binary variables, each ruled by a hidden coin."""
    rng = np.random.default_rng(seed)
    coins = rng.random((n_rows, 2)) < 0.4
    flips = rng.random((n_rows, 6)) < 0.15
    return (np.repeat(coins, 3, axis=1) ^ flips).astype(np.int16)


METHODS = {
    "learnspn": lambda: learn.LearnSPN(random_state=3),
    "chow_liu": lambda: learn.ChowLiuTree(),
    "clt_mixture": lambda: learn.ChowLiuMixture(3, random_state=3),
    "hclt": lambda: learn.HiddenChowLiuTree(4, max_steps=10, random_state=3),
}


# ---------------------------------------------------------------- every method


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_probabilities_of_all_states_add_to_one(method):
    estimator = METHODS[method]().fit(chain())
    states = twin.all_states(estimator.domain_.n_states.tolist())
    assert np.exp(estimator.score_samples(states)).sum() == pytest.approx(1.0, abs=1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_learned_circuits_are_smooth_and_decomposable_and_agree_with_the_model(method):
    rows = chain()
    estimator = METHODS[method]().fit(rows)
    circuit = estimator.to_circuit()
    assert properties.is_smooth(circuit)
    assert properties.is_decomposable(circuit)
    posterior = posterior_over_all(circuit)
    assert posterior.log_evidence == pytest.approx(0.0, abs=1e-10)
    np.testing.assert_allclose(posterior.log_prob(rows), estimator.score_samples(rows), atol=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_a_seed_replays_and_learning_beats_independence(method):
    rows, fresh = chain(), chain(seed=9)
    estimator = METHODS[method]().fit(rows)
    again = METHODS[method]().fit(rows)
    assert np.array_equal(estimator.score_samples(fresh), again.score_samples(fresh))
    assert np.array_equal(estimator.sample(20, rng=1), again.sample(20, rng=1))
    margins = [np.bincount(rows[:, i]) / len(rows) for i in range(rows.shape[1])]
    independent = sum(np.log(m[fresh[:, i]]) for i, m in enumerate(margins)).mean()
    assert estimator.score(fresh) > independent + 0.5


@pytest.mark.parametrize("method", METHODS)
def test_samples_follow_the_model(method):
    estimator = METHODS[method]().fit(blocks())
    drawn = estimator.sample(20_000, rng=5).astype(int)
    states = twin.all_states([2] * 6)
    expected = np.exp(estimator.score_samples(states))
    seen = np.bincount(drawn @ (1 << np.arange(5, -1, -1)), minlength=64) / len(drawn)
    assert np.abs(seen - expected).max() < 4.5 * math.sqrt(0.25 / len(drawn))


@pytest.mark.parametrize("method", METHODS)
def test_frames_keep_names_and_labels(method):
    rows = chain(200, 3)
    frame = pd.DataFrame({"a": np.array(["no", "yes"])[rows[:, 0]], "b": rows[:, 1], "c": rows[:, 2] > 0})
    frame["constant"] = "same"
    estimator = METHODS[method]().fit(frame)
    assert estimator.domain_.names == ("a", "b", "c", "constant")
    assert estimator.domain_["c"].states == (False, True)
    drawn = estimator.sample(50, rng=0)
    assert list(drawn.columns) == ["a", "b", "c", "constant"]
    assert set(drawn["a"]) <= {"no", "yes"}
    assert np.isfinite(estimator.score(frame))
    assert estimator.score(frame[["constant", "c", "b", "a"]]) == estimator.score(frame)
    with pytest.raises(DataError, match="'maybe' in column 'a'"):
        estimator.score(frame.assign(a="maybe"))


@pytest.mark.parametrize("method", METHODS)
def test_errors_are_typed(method):
    estimator = METHODS[method]()
    with pytest.raises(DataError, match="not fitted"):
        estimator.score(chain(10))
    with pytest.raises(DataError, match="empty"):
        estimator.fit(np.empty((0, 2), int))
    with pytest.raises(DataError, match="no parameter"):
        estimator.set_params(nonsense=1)
    holes = {"a": [0.0, 1.0, np.nan] * 9, "b": [0, 1, 1] * 9}
    assert np.isfinite(estimator.fit(holes).score(holes))
    assert np.isfinite(estimator.fit({"a": np.linspace(0.1, 0.9, 30)}).score({"a": [0.5, None]}))


@pytest.mark.parametrize("method", METHODS)
def test_missing_values_are_summed_out_when_scoring(method):
    estimator = METHODS[method]().fit(blocks())
    holes = np.array([[0, 1, np.nan, 0, 0, 1], [np.nan] * 6, [1, 1, 1, 0, 0, 0]])
    got = estimator.score_samples(holes)
    full = np.array([[0, 1, x, 0, 0, 1] for x in (0, 1)])
    assert got[0] == pytest.approx(np.logaddexp(*estimator.score_samples(full)), abs=1e-9)
    assert got[1] == pytest.approx(0.0, abs=1e-9)
    assert got[2] == pytest.approx(estimator.score_samples(holes[2:])[0], abs=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_one_row_and_one_column_are_enough(method):
    assert METHODS[method]().fit(np.array([[1, 0]])).score(np.array([[1, 0]])) < 0
    assert METHODS[method]().fit(np.array([[1], [0], [1]])).score(np.array([[1]])) < 0


@pytest.mark.parametrize("method", METHODS)
def test_estimators_pickle_and_work_with_scikit_learn(method):
    model_selection = pytest.importorskip("sklearn.model_selection")
    base = pytest.importorskip("sklearn.base")
    rows = blocks(150)
    estimator = METHODS[method]().fit(rows)
    assert pickle.loads(pickle.dumps(estimator)).score(rows) == estimator.score(rows)
    assert base.clone(estimator).get_params() == estimator.get_params()
    name = "n_states" if method == "hclt" else "smoothing"
    search = model_selection.GridSearchCV(METHODS[method](), {name: [1, 2]}, cv=2).fit(rows)
    assert search.best_params_[name] in (1, 2)


@pytest.mark.parametrize("method", METHODS)
def test_models_are_written_and_read_back(method, tmp_path):
    rows = chain()
    model = METHODS[method]().fit(rows).model_
    io.write(model, tmp_path / "model.npz")
    again = io.read(tmp_path / "model.npz")
    assert again.domain == model.domain
    expected = posterior_over_all(model).log_prob(rows)
    assert np.array_equal(posterior_over_all(again).log_prob(rows), expected)


def test_functions_return_models():
    rows = blocks(200)
    for function in (learn.learnspn, learn.mixture, learn.chow_liu, learn.clt_mixture):
        assert np.isfinite(posterior_over_all(function(rows, rng=1)).log_prob(rows)).all()
    assert type(learn.chow_liu(rows)).__name__ == "BayesianNetwork"
    assert type(learn.chow_liu(rows, form="circuit")).__name__ == "Circuit"
    assert type(learn.hclt(rows, n_states=2, rng=1, max_steps=2)).__name__ == "HiddenChowLiuModel"
    with pytest.raises(DataError, match="form is 'tree'"):
        learn.chow_liu(rows, form="tree")


def test_time_limits_are_kept():
    rows = chain(2000, 20)
    spn = learn.LearnSPN(random_state=0, time_limit=1e-9).fit(rows)
    assert spn.timed_out_
    assert np.isfinite(spn.score(rows))
    hidden = learn.HiddenChowLiuTree(4, random_state=0, time_limit=1e-9).fit(rows)
    assert hidden.timed_out_
    assert hidden.history_ == []
    assert np.isfinite(hidden.score(rows))
    with pytest.raises(DataError, match="time_limit"):
        learn.LearnSPN(time_limit=-1).fit(rows)


# ---------------------------------------------------------------- LearnSPN


def test_components_match_the_slow_twin():
    rng = np.random.default_rng(2)
    for trial in range(30):
        sizes = rng.integers(1, 5, size=6)
        rows = np.stack([rng.integers(k, size=80) for k in sizes], axis=1)
        rows[:, 3] = np.where(rng.random(80) < 0.3, rows[:, 1] % sizes[3], rows[:, 3])
        domain = Domain.of_sizes(np.maximum(sizes, 2))
        learner = StructureLearner(DataTable(domain, rows), 1, 2, "kmeans", trial, {})
        indicators = learner._indicators
        first = np.concatenate([[0], np.cumsum(domain.n_states - 1)[:-1]])
        from scipy.stats import chi2

        critical = chi2.isf(0.1, np.maximum(np.arange(40), 1))
        component = np.empty(6, np.int64)
        counts = indicators.T @ indicators
        independent_components(counts, first, domain.n_states, 80, learner._x_log_x, critical, component)
        assert component.tolist() == twin.components(rows, 0.1)


def test_k_means_matches_the_slow_twin():
    rng = np.random.default_rng(3)
    for trial in range(20):
        n, width, k = rng.integers(2, 60), rng.integers(1, 5), rng.integers(1, 5)
        features = rng.integers(4, size=(n, width)).astype(np.float32)
        labels = np.empty(n, np.int64)
        used = k_means(features, int(k), np.uint64(trial), 30, labels)
        assert (used, labels.tolist()) == twin.k_means(features, int(k), trial, 30)


def test_k_means_finds_separate_groups_and_improves_on_its_start():
    rng = np.random.default_rng(0)
    centres = np.array([[0, 0], [10, 0], [0, 10]])
    truth = rng.integers(3, size=300)
    features = (centres[truth] + rng.normal(size=(300, 2))).astype(np.float32)
    labels = np.empty(300, np.int64)
    assert k_means(features, 3, np.uint64(5), 30, labels) == 3
    assert len({(a, b) for a, b in zip(truth.tolist(), labels.tolist(), strict=True)}) == 3
    equal = np.ones((10, 2), np.float32)
    assert k_means(equal, 3, np.uint64(5), 30, labels[:10]) == 1


@pytest.mark.parametrize("clusters", ["kmeans", "em", "sklearn"])
def test_clusters_of_every_kind_separate_groups_and_replay(clusters):
    rows = blocks(500)[:, :3].astype(np.float32)
    labels = row_clusters(rows, 2, clusters, 7)
    assert np.array_equal(labels, row_clusters(rows, 2, clusters, 7))
    means = [rows[labels == c].mean() for c in (0, 1)]
    assert abs(means[0] - means[1]) > 0.5


def test_a_scikit_learn_clusterer_is_accepted_and_nonsense_is_not():
    cluster = pytest.importorskip("sklearn.cluster")
    rows = blocks(300)
    estimator = learn.LearnSPN(clusters=cluster.MiniBatchKMeans(2, n_init=1), random_state=1, threshold=0.01)
    assert estimator.fit(rows).score(rows) > -4
    with pytest.raises(DataError, match="clusters is 'nonsense'"):
        learn.LearnSPN(clusters="nonsense").fit(rows)


def test_a_missing_scikit_learn_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(MissingDependency, match=r"pip install certimap\[learn\]"):
        learn.LearnSPN(clusters="sklearn").fit(blocks(100))


def test_learnspn_splits_independent_groups():
    circuit = learn.learnspn(blocks(2000), rng=1, threshold=1e-4, smoothing=0.1)
    root_children = circuit.children_of(circuit.root)
    assert circuit.kind[circuit.root] == 2
    assert len(root_children) == 2


def test_learnspn_chooses_among_the_settings_given_on_validation_rows():
    train, valid = blocks(1500), blocks(700, seed=1)
    estimator = learn.LearnSPN(random_state=0, threshold=[0.5, 1e-3], smoothing=[0.1, 50.0], min_rows=[20, 1000])
    estimator.fit(train, valid=valid)
    assert len(estimator.choices_) == 8
    best = max(c.log_likelihood for c in estimator.choices_)
    assert estimator.choice_.log_likelihood == best
    assert estimator.choice_.smoothing == 0.1
    assert estimator.score(valid) == pytest.approx(best, abs=1e-4)


def test_leaves_hold_smoothed_counts():
    rows = np.array([[0], [1], [1], [1]])
    circuit = learn.learnspn(rows, threshold=0.01, smoothing=0.5)
    np.testing.assert_allclose(np.exp(circuit.params_of(circuit.root)), [1.5 / 5, 3.5 / 5])


def test_mixed_columns_get_gaussian_leaves():
    rng = np.random.default_rng(0)
    group = rng.integers(2, size=2000)
    frame = pd.DataFrame(
        {"g": np.array(["a", "b"])[group], "x": rng.normal(6.0 * group, 1.0), "y": rng.normal(size=2000)}
    )
    estimator = learn.LearnSPN(random_state=0).fit(frame)
    fresh = pd.DataFrame({"g": ["a", "b"], "x": [0.0, 6.0], "y": [0.0, 0.0]})
    truth = math.log(0.5) - math.log(2 * math.pi)
    np.testing.assert_allclose(estimator.score_samples(fresh), truth, atol=0.25)
    drawn = estimator.sample(4000, rng=0)
    assert drawn["x"][drawn["g"] == "b"].mean() == pytest.approx(6.0, abs=0.25)
    partial = pd.DataFrame({"g": ["a", None], "x": [np.nan, 6.0], "y": [np.nan, np.nan]})
    got = estimator.score_samples(partial)
    assert got[0] == pytest.approx(math.log(0.5), abs=0.1)
    assert got[1] == pytest.approx(math.log(0.5) - 0.5 * math.log(2 * math.pi), abs=0.25)
    grid = np.linspace(-8, 14, 4001)
    density = posterior_over_all(estimator.model_)
    points = np.stack([np.zeros(4001), grid, np.zeros(4001)], axis=1)
    both = np.exp(density.log_prob(points)) + np.exp(density.log_prob(points + np.array([1, 0, 0])))
    only_y = make_query(estimator.domain_, ["y"])
    at_zero = np.exp(estimator.model_.condition(only_y).log_prob(np.zeros((1, 1))))[0]
    assert np.trapezoid(both, grid) == pytest.approx(at_zero, rel=1e-6)


# ---------------------------------------------------------------- trees


def test_mutual_information_matches_its_definition():
    rows = chain(300, 4)
    domain = Domain.of_sizes([2, 3, 2, 3])
    joint = smoothed_joint(pair_counts(one_hot(domain, rows)), domain, 0.0)
    information = mutual_information(joint, domain)
    for a in range(4):
        for b in range(4):
            expected = 0.0 if a == b else twin.g_test(rows, a, b)[0] / (2 * len(rows))
            assert information[a, b] == pytest.approx(expected, abs=1e-9)


def test_the_spanning_tree_is_maximal_and_rooted():
    rng = np.random.default_rng(1)
    values = rng.random((6, 6))
    information = values + values.T
    np.fill_diagonal(information, 0.0)
    order, parent = spanning_tree(information)
    assert sorted(order.tolist()) == list(range(6))
    place = {v: i for i, v in enumerate(order.tolist())}
    assert all(parent[v] < 0 or place[parent[v]] < place[v] for v in order)
    weight = sum(information[i, parent[i]] for i in range(6) if parent[i] >= 0)
    pairs = list(itertools.combinations(range(6), 2))

    def connected(edges):
        label = list(range(6))
        for a, b in edges:
            label = [label[a] if x == label[b] else x for x in label]
        return len(set(label)) == 1

    best = max(
        sum(information[e] for e in edges) for edges in itertools.combinations(pairs, 5) if connected(edges)
    )
    assert weight == pytest.approx(best)


def test_a_chow_liu_tree_recovers_the_chain():
    estimator = learn.ChowLiuTree().fit(chain(3000))
    edges = {frozenset((i, int(p))) for i, p in enumerate(estimator.tree_.parent) if p >= 0}
    assert edges == {frozenset((i, i + 1)) for i in range(5)}


def test_independent_columns_still_make_one_tree():
    rows = np.random.default_rng(0).integers(2, size=(50, 4))
    rows[:, 0] = 1
    estimator = learn.ChowLiuTree(smoothing=0.0).fit(rows)
    assert np.count_nonzero(estimator.tree_.parent < 0) == 1
    assert np.isfinite(estimator.score(rows))


def test_a_mixture_fits_better_than_one_tree():
    rng = np.random.default_rng(0)
    first, second = chain(800, 6, sizes=[2] * 6), chain(800, 6, seed=1, sizes=[2] * 6)
    second[:, ::2] = 1 - second[:, 1::2]
    rows = rng.permutation(np.concatenate([first, second]))
    tree = learn.ChowLiuTree().fit(rows[:1200]).score(rows[1200:])
    mixture = learn.ChowLiuMixture(2, random_state=0).fit(rows[:1200])
    assert mixture.score(rows[1200:]) > tree + 0.1
    assert all(b >= a - 0.02 for a, b in zip(mixture.history_, mixture.history_[1:], strict=False))


# ---------------------------------------------------------------- hidden trees


def random_parameters(rng, domain, parent, order, k):
    n = len(domain)
    offsets = domain.offsets[:-1] + np.arange(n)
    emission = np.ones((domain.total_states + n, k), np.float32)
    for i in range(n):
        start = int(offsets[i])
        emission[start : start + domain.n_states[i]] = rng.dirichlet(np.ones(domain.n_states[i]), size=k).T
    transition = rng.dirichlet(np.ones(k), size=(n, k)).astype(np.float32)
    root = rng.dirichlet(np.ones(k)).astype(np.float32)
    return Parameters(np.array(order), np.array(parent), root, transition, emission, offsets)


@pytest.mark.parametrize("workers", [1, 3])
def test_expected_counts_match_the_slow_twin(workers, monkeypatch):
    rng = np.random.default_rng(4)
    domain = Domain.of_sizes([2, 3, 1, 2, 4])
    parameters = random_parameters(rng, domain, [-1, 0, 0, 1, 1], [0, 1, 2, 3, 4], 3)
    codes = np.stack([rng.integers(k + 1, size=40) for k in domain.n_states])  # k stands for missing
    monkeypatch.setattr("certimap.learn.hidden_passes.BLOCK_NUMBERS", 60 * 3)
    passes = Passes(domain, codes, parameters.order, parameters.parent, 3, workers)
    assert len(passes.blocks(np.arange(40))) > 1
    counts, log_likelihood = passes.expected_counts(parameters)
    root, transition, emission, expected = twin.hidden_tree_counts(parameters, domain, codes.T)
    np.testing.assert_allclose(counts.root, root, rtol=2e-4)
    np.testing.assert_allclose(counts.transition, transition, rtol=2e-3, atol=1e-5)
    np.testing.assert_allclose(counts.emission, emission, rtol=2e-3, atol=1e-5)
    assert log_likelihood == pytest.approx(expected, rel=1e-5)
    assert passes.mean_log_likelihood(parameters) == pytest.approx(expected / 40, rel=1e-5)


def test_hidden_models_agree_with_enumeration_in_every_view():
    rows = chain(300, 4)
    estimator = learn.HiddenChowLiuTree(3, max_steps=5, random_state=0).fit(rows)
    model = estimator.model_
    few = rows[:5]
    expected = [twin.hidden_tree_log_likelihood(model, row) for row in few]
    np.testing.assert_allclose(estimator.score_samples(few), expected, atol=1e-10)
    network = model.to_network()
    assert network.domain.names[4:] == ("z:0", "z:1", "z:2", "z:3")
    query = make_query(network.domain, ["0", "1", "2", "3"])
    np.testing.assert_allclose(network.condition(query).log_prob(few), expected, atol=1e-10)
    assert model.domain.names == ("0", "1", "2", "3")


def test_hidden_models_answer_conditional_queries_as_their_circuit_does():
    rows = chain(300, 6)
    model = learn.hclt(rows, n_states=3, rng=0, max_steps=5)
    query = make_query(model.domain, ["4", "0"], {"2": 1, "5": 2})
    points = twin.all_states([2, 2])
    tree, circuit = model.condition(query), model.to_circuit().condition(query)
    np.testing.assert_allclose(tree.log_prob(points), circuit.log_prob(points), atol=1e-10)
    assert tree.log_evidence == pytest.approx(circuit.log_evidence, abs=1e-10)


def test_full_steps_never_lose_likelihood_and_workers_do_not_matter():
    rows = chain(700, 8)
    settings = {"max_steps": 12, "batch_rows": 10**6, "random_state": 0, "smoothing": 1e-3, "patience": 99}
    one = learn.HiddenChowLiuTree(4, workers=1, **settings).fit(rows)
    three = learn.HiddenChowLiuTree(4, workers=3, **settings).fit(rows)
    train = [step.train for step in one.history_]
    assert all(b >= a - 1e-5 for a, b in itertools.pairwise(train))
    assert np.array_equal(one.model_.transition, three.model_.transition)


def test_hidden_trees_learn_from_rows_with_holes():
    rows = chain(1500, 6).astype(float)
    holes = rows.copy()
    holes[np.random.default_rng(0).random(holes.shape) < 0.3] = np.nan
    fresh = chain(1500, 6, seed=8)
    whole = learn.HiddenChowLiuTree(4, random_state=0).fit(rows).score(fresh)
    partial = learn.HiddenChowLiuTree(4, random_state=0).fit(holes).score(fresh)
    assert partial > whole - 0.15


def test_settings_out_of_range_are_named():
    for settings, message in (
        ({"n_states": 0}, "n_states is 0"),
        ({"smoothing": 0.0}, "smoothing is 0.0"),
        ({"max_steps": 1.5}, "max_steps is 1.5"),
    ):
        with pytest.raises(DataError, match=message):
            learn.HiddenChowLiuTree(**settings).fit(chain(30))
    for settings, message in (
        ({"threshold": 2.0}, "threshold is 2.0"),
        ({"min_rows": 0}, "min_rows is 0"),
        ({"smoothing": []}, r"smoothing is \[\]; expected a number in \[0, inf\), or several"),
    ):
        with pytest.raises(DataError, match=message):
            learn.LearnSPN(**settings).fit(chain(30))


def test_importing_the_package_loads_no_learner():
    heavy = ("sklearn", "pandas", "numba", "scipy")
    code = f"import certimap.learn, sys; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["0", "1"])
def test_a_fresh_process_replays_a_seed(seed):
    code = (
        "import numpy as np\nfrom certimap import learn\n"
        "rows = np.random.default_rng(0).integers(2, size=(200, 5)); rows[:, 1] = rows[:, 0]\n"
        "print(repr(learn.LearnSPN(random_state=4).fit(rows).score(rows)),"
        " repr(learn.HiddenChowLiuTree(3, max_steps=4, random_state=4).fit(rows).score(rows)))"
    )
    import os

    env = {**os.environ, "PYTHONHASHSEED": seed}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env).stdout
    rows = np.random.default_rng(0).integers(2, size=(200, 5))
    rows[:, 1] = rows[:, 0]
    spn = learn.LearnSPN(random_state=4).fit(rows).score(rows)
    hidden = learn.HiddenChowLiuTree(3, max_steps=4, random_state=4).fit(rows).score(rows)
    assert out.split() == [repr(spn), repr(hidden)]


# ---------------------------------------------------------------- public data


@pytest.mark.slow
def test_public_data_is_fitted_better_than_the_published_learnspn(shared_data):
    from certimap.learn import datasets

    data = datasets.load("nltcs", shared_data / "twenty")
    assert learn.LearnSPN(random_state=1).fit(data).score(data.test) > -6.110
    assert learn.ChowLiuTree().fit(data).score(data.test) == pytest.approx(-6.759, abs=2e-3)


def test_more_states_than_rows_support_are_not_taken():
    rng = np.random.default_rng(0)
    hidden = rng.integers(0, 2, 120)
    table = (rng.random((120, 8)) < np.where(hidden[:, None] == 1, 0.8, 0.2)).astype(int)
    fresh = (rng.random((4000, 8)) < np.where(rng.integers(0, 2, 4000)[:, None] == 1, 0.8, 0.2)).astype(int)
    few, many, fixed = (
        HiddenChowLiuTree(k, smoothing=s, random_state=0, workers=1, progress=False, max_steps=20).fit(table)
        for k, s in ((2, None), (32, None), (32, 0.3))
    )
    assert fixed.choice_ == (32, 0.3)
    assert many.choice_.n_states < 32
    assert many.model_.n_hidden == many.choice_.n_states
    assert many.score(fresh) > fixed.score(fresh)
    assert many.score(fresh) > few.score(fresh) - 0.3


def test_many_states_are_grown_from_fewer():
    rows = chain(400)
    settings = {"smoothing": 0.3, "random_state": 0, "max_steps": 8, "progress": False}
    few = HiddenChowLiuTree(17, workers=1, **settings).fit(rows[:300], valid=rows[300:])
    one, two = (HiddenChowLiuTree(68, workers=n, **settings).fit(rows[:300], valid=rows[300:]) for n in (1, 2))
    assert one.choice_ == (68, pytest.approx(0.3 / 4))
    assert one.model_.n_hidden == 68
    assert one.score(rows[300:]) > few.score(rows[300:]) - 0.1
    np.testing.assert_array_equal(one.model_.transition, two.model_.transition)


def test_split_states_mean_what_they_meant():
    rows = chain(400)
    scores = [
        HiddenChowLiuTree(k, smoothing=0.3, random_state=0, max_steps=0, progress=False).fit(rows).score(rows)
        for k in (17, 68, 272)
    ]
    assert max(scores) - min(scores) < 0.1
