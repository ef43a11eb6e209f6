"""Kernels on sets of vectors against their slow twins."""

from __future__ import annotations

import numpy as np
import pytest
from bucket_twin import slow_lift, slow_pairs, slow_skyband

from certimap.core.rounding import NEARLY
from certimap.solvers.elimination.kernels import vector_sets as kernels
from certimap.solvers.elimination.kernels.dominance import skyband, spatial_order


def random_set(rng, n_contexts, width, most, coarse):
    counts = rng.integers(0, most + 1, n_contexts)
    ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    values = rng.random((int(ptr[-1]), width)) ** 3
    if coarse:
        values = np.round(values * 3) / 3
    return values, ptr


@pytest.mark.nojit
@pytest.mark.parametrize("k", [1, 3])
def test_skyband(k):
    for t in range(12):
        rng = np.random.default_rng([k, t])
        values, ptr = random_set(rng, 3, int(rng.integers(1, 5)), 160, coarse=t % 2 == 0)
        by = np.full(len(values), -1)
        skyband(values, ptr, k, by)
        np.testing.assert_array_equal(by < 0, slow_skyband(values, ptr, k))
        rows = np.flatnonzero(by >= 0)
        assert np.all(by[by[rows]] < 0)
        assert np.all(values[by[rows]] * NEARLY >= values[rows])
        assert np.all(np.searchsorted(ptr, by[rows], side="right") == np.searchsorted(ptr, rows, side="right"))


def test_skyband_of_a_large_segment():
    rng = np.random.default_rng(0)
    values = rng.random((1500, 3))
    ptr = np.array([0, 1500])
    by = np.full(1500, -1)
    skyband(values, ptr, 2, by)
    np.testing.assert_array_equal(by < 0, slow_skyband(values, ptr, 2))


@pytest.mark.nojit
def test_pairs_and_their_products():
    for t in range(20):
        rng = np.random.default_rng(t)
        width, right_width = int(rng.integers(2, 6)), int(rng.integers(1, 4))
        most = 90 if t % 4 == 0 else 9
        left, left_ptr = random_set(rng, 3, width, most, coarse=False)
        right, right_ptr = random_set(rng, 2, right_width, most, coarse=False)
        context = rng.integers(0, 2, 3)
        hidden = rng.integers(0, right_width, width)
        functional = rng.random((3, width))
        threshold = float(rng.choice([0.0, 0.3, 0.8]))
        scores, products = slow_pairs(left, left_ptr, right, right_ptr, context, hidden, functional, threshold)
        room = len(scores)
        rows, columns, found = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room)
        ptr = np.empty(4, np.int64)
        sets = kernels.VectorRows(left, left_ptr), kernels.VectorRows(right, right_ptr)
        args = (*sets, context, hidden, functional, threshold)
        n, _ = kernels.select_pairs(*args, kernels.Pairs(rows, columns, found, ptr))
        assert n == room
        assert {(int(a), int(b)) for a, b in zip(rows, columns, strict=True)} == set(scores)
        for c in range(3):
            assert np.all(
                (rows[ptr[c] : ptr[c + 1]] >= left_ptr[c]) & (rows[ptr[c] : ptr[c + 1]] < left_ptr[c + 1])
            )
        out = np.empty((n, width))
        kernels.multiply_pairs(left, right, rows, columns, hidden, out)
        for i in range(n):
            key = int(rows[i]), int(columns[i])
            assert found[i] == pytest.approx(scores[key])
            np.testing.assert_allclose(out[i], products[key])
        if room:
            short = np.empty(room - 1, np.int64), np.empty(room - 1, np.int64), np.empty(room - 1)
            assert kernels.select_pairs(*args, kernels.Pairs(*short, ptr))[0] == -1


@pytest.mark.nojit
@pytest.mark.parametrize("is_query", [True, False])
def test_lift(is_query):
    for t in range(8):
        rng = np.random.default_rng(t)
        shape = tuple(int(x) for x in rng.integers(1, 4, 5))
        n_sq, n_sh, n_rq, n_rh, k = shape
        joint, ptr = random_set(
            rng, n_sq * k if is_query else n_sq, n_sh if is_query else n_sh * k, 3, coarse=False
        )
        table = rng.random(int(np.prod(shape)))
        n = len(joint) * n_rq
        out, out_ptr = np.empty((n, n_sh * n_rh)), np.empty(n_sq * n_rq + 1, np.int64)
        source, state = np.empty(n, np.int64), np.empty(n, np.int16)
        kernels.lift(joint, ptr, table, shape, is_query, out, out_ptr, source, state)
        for c, rows in enumerate(slow_lift(joint, ptr, table, shape, is_query)):
            assert out_ptr[c + 1] - out_ptr[c] == len(rows)
            for i, (row, v, vector) in zip(range(out_ptr[c], out_ptr[c + 1]), rows, strict=True):
                assert source[i] == row
                assert state[i] == (-1 if v is None else v)
                np.testing.assert_allclose(out[i], vector)


@pytest.mark.nojit
def test_merging_covers_every_row_and_keeps_the_best():
    for t in range(12):
        rng = np.random.default_rng(t)
        values, ptr = random_set(rng, 3, 3, 60, coarse=t % 2 == 0)
        scores = values.sum(axis=1)
        cutoff = float(np.quantile(scores, 0.8))
        cell = int(rng.integers(2, 9))
        out, source = np.empty_like(values), np.empty(len(values), np.int64)
        out_ptr = np.empty_like(ptr)
        n = kernels.merge_rows(values, ptr, scores, cutoff, cell, out, out_ptr, source)
        assert n == out_ptr[-1]
        for c in range(3):
            old, new = values[ptr[c] : ptr[c + 1]], out[out_ptr[c] : out_ptr[c + 1]]
            rest = int(np.sum(scores[ptr[c] : ptr[c + 1]] <= cutoff))
            assert len(new) == len(old) - rest + -(-rest // cell)
            for row in old:
                assert np.any(np.all(new >= row, axis=1))
        single = np.flatnonzero(source[:n] >= 0)
        np.testing.assert_array_equal(out[single], values[source[single]])
        several = np.flatnonzero(source[:n] < 0)
        assert np.all(scores[-1 - source[several]] <= cutoff)
        assert np.all(out[several] >= values[-1 - source[several]])


@pytest.mark.nojit
def test_filter_and_maxima():
    rng = np.random.default_rng(0)
    values, ptr = random_set(rng, 4, 3, 5, coarse=False)
    functional = rng.random((4, 3))
    alive, scores = np.empty(len(values), bool), np.empty(len(values))
    kernels.filter_rows(values, ptr, functional, 0.3, alive, scores)
    maxima = np.empty((4, 3))
    kernels.context_maxima(values, ptr, maxima)
    for c in range(4):
        rows = values[ptr[c] : ptr[c + 1]]
        np.testing.assert_allclose(scores[ptr[c] : ptr[c + 1]], rows @ functional[c])
        np.testing.assert_array_equal(maxima[c], rows.max(axis=0, initial=0.0))
    np.testing.assert_array_equal(alive, scores > 0.3)


def test_spatial_order_is_a_permutation_with_tight_cells():
    rng = np.random.default_rng(0)
    values = rng.random((1000, 2))
    order = np.empty(900, np.int64)
    spatial_order(values, 50, 950, 32, order)
    assert sorted(order) == list(range(50, 950))
    widths = [np.ptp(values[order[i : i + 32]], axis=0).max() for i in range(0, 896, 32)]
    assert np.mean(widths) < 0.4
