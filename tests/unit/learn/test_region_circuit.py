"""Circuits over region graphs: the graphs, expected counts, learning, and what users see of it."""

import itertools
import math
import pickle

import numpy as np
import pytest

from certimap import io, learn
from certimap.circuits import properties
from certimap.errors import DataError
from certimap.learn.region_circuit import RegionPasses, Tables, region_graph_of


def pictures(n_rows=200, seed=0, n_states=3):
    """Rows of 2 by 3 pixels: stripes along or across, with noise."""
    rng = np.random.default_rng(seed)
    along = np.repeat(rng.integers(n_states, size=(n_rows, 2)), 3, axis=1)
    across = np.tile(rng.integers(n_states, size=(n_rows, 3)), (1, 2))
    rows = np.where(rng.random((n_rows, 1)) < 0.5, along, across)
    return np.where(rng.random(rows.shape) < 0.1, rng.integers(n_states, size=rows.shape), rows)


def small(**settings):
    return learn.RegionGraphCircuit(4, **{"shape": (2, 3), "max_steps": 12, "random_state": 3, **settings})


@pytest.mark.parametrize(
    ("height", "width", "step"), [(4, 4, None), (3, 5, None), (1, 4, 1), (4, 6, 2), (3, 3, 1)]
)
def test_every_split_cuts_a_rectangle_in_two_that_came_before(height, width, step):
    def pixels(rectangle):
        top, left, bottom, right = rectangle
        return set(itertools.product(range(top, bottom), range(left, right)))

    graph = region_graph_of(height, width, step)
    assert graph.rectangles[-1] == (0, 0, height, width)
    assert len(set(graph.rectangles)) == len(graph.rectangles)
    for r, (rectangle, ways) in enumerate(zip(graph.rectangles, graph.splits, strict=True)):
        assert bool(ways) == (len(pixels(rectangle)) > 1)
        for a, b in ways:
            assert max(a, b) < r
            parts = [pixels(graph.rectangles[k]) for k in (a, b)]
            assert parts[0] | parts[1] == pixels(rectangle)
            assert not parts[0] & parts[1]


def test_squares_are_halved_both_ways_and_all_cuts_are_there_where_asked_for():
    quad = region_graph_of(4, 4, None)
    assert len(quad.rectangles) == 1 + 4 + 4 * (1 + 4) + 16
    assert quad.n_splits == 2 + 4 + 4 * (2 + 4)
    assert len(region_graph_of(4, 6, 1).splits[-1]) == 3 + 5
    assert len(region_graph_of(4, 6, 2).splits[-1]) == 1 + 2


def log_probs(graph, pixels, tables, codes):
    """Return ln p of each row by plain recursion."""

    def value(r, k, row):
        if not graph.splits[r]:
            return tables.leaves[r][k, row[pixels[r]]]
        n = tables.weights[r].shape[1] // len(graph.splits[r])
        return sum(
            tables.weights[r][k, s * n + j] * value(a, j, row) * value(b, j, row)
            for s, (a, b) in enumerate(graph.splits[r])
            for j in range(n)
        )

    return np.log([value(len(pixels) - 1, 0, row) for row in codes])


@pytest.mark.parametrize("step", [None, 1])
def test_expected_counts_are_parameters_times_derivatives(step):
    rng = np.random.default_rng(5)
    graph = region_graph_of(2, 3, step)
    pixels = [-1 if ways else r[0] * 3 + r[1] for r, ways in zip(graph.rectangles, graph.splits, strict=True)]
    weights, leaves = [], []
    for r, ways in enumerate(graph.splits):
        n_sums = 1 if r == len(pixels) - 1 else 2
        weights.append(rng.dirichlet(np.ones(2 * len(ways)), n_sums) if ways else np.empty((0, 0)))
        states = np.append(rng.dirichlet(np.ones(3), 2), np.ones((2, 1)), axis=1)
        leaves.append(np.empty((0, 0)) if ways else states)
    tables, codes = Tables(weights, leaves), rng.integers(0, 4, (5, 6))
    passes = [RegionPasses(graph, pixels, codes, 2, workers) for workers in (1, 2)]
    passes[1].block = 2
    counts, total = passes[0].expected_counts(tables)
    others, same = passes[1].expected_counts(tables)
    assert total == pytest.approx(log_probs(graph, pixels, tables, codes).sum())
    assert same == pytest.approx(total)
    assert passes[0].mean_log_likelihood(tables) == pytest.approx(total / 5)
    for mine, theirs, params in zip(
        [*counts.weights, *counts.leaves], [*others.weights, *others.leaves], [*weights, *leaves], strict=True
    ):
        np.testing.assert_allclose(mine, theirs, atol=1e-12)
        for at in list(np.ndindex(params.shape))[:6]:
            before, step_size = params[at], 1e-6
            params[at] = before + step_size
            above = log_probs(graph, pixels, tables, codes).sum()
            params[at] = before - step_size
            below = log_probs(graph, pixels, tables, codes).sum()
            params[at] = before
            assert mine[at] == pytest.approx(before * (above - below) / (2 * step_size), abs=1e-6)


@pytest.mark.parametrize("step", [None, 1])
def test_what_is_learned_is_a_distribution_a_circuit_and_better_than_products(step):
    rows, fresh = pictures(400), pictures(seed=9)
    estimator = small(step=step).fit(rows)
    circuit = estimator.to_circuit()
    everything = np.array(list(itertools.product(range(3), repeat=6)))
    assert np.exp(estimator.score_samples(everything)).sum() == pytest.approx(1.0, abs=1e-10)
    assert properties.is_smooth(circuit)
    assert properties.is_decomposable(circuit)
    margins = [np.bincount(rows[:, i], minlength=3) / len(rows) for i in range(6)]
    products = np.mean([sum(math.log(margins[i][x]) for i, x in enumerate(row)) for row in fresh])
    assert estimator.score(fresh) > products + 0.5


def test_full_steps_never_lose_likelihood_and_workers_do_not_matter():
    settings = {"smoothing": 1e-9, "batch_rows": 10**6, "patience": 100, "max_steps": 15}
    one, two = (small(workers=workers, **settings).fit(pictures(600)) for workers in (1, 2))
    train = [step.train for step in one.history_]
    assert np.all(np.diff(train) > -1e-9)
    assert train[-1] > train[0] + 0.1
    np.testing.assert_array_equal(one.model_.log_weights, two.model_.log_weights)


def test_a_seed_replays_and_models_are_kept(tmp_path):
    rows = pictures()
    estimator = small().fit(rows)
    again = pickle.loads(pickle.dumps(small().fit(rows)))
    np.testing.assert_array_equal(again.score_samples(rows), estimator.score_samples(rows))
    io.write(estimator.model_, tmp_path / "model.npz")
    read = io.read(tmp_path / "model.npz")
    np.testing.assert_allclose(learn.score_samples(read, rows), estimator.score_samples(rows))


def test_rows_with_holes_and_real_pixels_are_learned_from():
    rows = pictures(300).astype(float)
    rows[np.random.default_rng(0).random(rows.shape) < 0.2] = np.nan
    estimator = small().fit(rows)
    assert estimator.score(pictures(seed=9)) > -6.0
    real = small().fit(pictures(300) + np.random.default_rng(0).random((300, 6)))
    assert real.model_.domain.is_discrete is False
    assert np.isfinite(real.score(pictures(20, seed=9) + 0.5))


def test_one_pixel_one_row_and_one_node_are_enough():
    estimator = learn.RegionGraphCircuit(3, max_steps=2, random_state=0).fit(np.array([[0], [1], [1]]))
    assert np.exp(estimator.score_samples([[0], [1]])).sum() == pytest.approx(1.0)
    learn.RegionGraphCircuit(1, max_steps=2, random_state=0).fit(np.array([[0, 1, 0, 1]]))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"shape": (2, 2)}, r"shape is \(2, 2\); expected height and width of a picture of 6 pixels"),
        ({"shape": None}, "6 columns make no square picture"),
        ({"shape": (6,)}, "expected height and width"),
        ({"step": 0}, "step is 0"),
        ({"smoothing": 0.0}, r"smoothing is 0.0; expected a number in \(0, inf\)"),
        ({"max_steps": -1}, "max_steps is -1"),
        ({"time_limit": -1.0}, "time_limit is -1.0"),
    ],
)
def test_settings_out_of_range_are_named(settings, words):
    with pytest.raises(DataError, match=words):
        small(**settings).fit(pictures(30))


def test_time_limits_are_kept():
    estimator = small(max_steps=10**6, patience=10**6, time_limit=0.5).fit(pictures())
    assert estimator.timed_out_
    assert np.isfinite(estimator.score(pictures()))
