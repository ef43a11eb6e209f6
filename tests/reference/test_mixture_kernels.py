"""The kernel that drops vectors for mixtures of others, against linear programs."""

from __future__ import annotations

import numpy as np
import pytest
from bucket_twin import slow_skyband
from mixture_twin import best_share

from certimap.kernels.wide import extent
from certimap.solvers.elimination.kernels import dominance as mixtures


def undropped(values, ptr, rounds=400, budget=1 << 40):
    state, order = np.zeros(len(values), np.int8), np.empty(len(values), np.int64)
    at, calls, picked = np.zeros(2, np.int64), 0, np.empty((0, rounds), np.int32)
    while at[0] < len(ptr) - 1:
        mixtures.unmixed(values, ptr, rounds, budget, state, order, at, picked)
        calls += 1
    return state != mixtures.DROPPED, calls


def random_rows(rng):
    """Contexts of rows that are products of smooth factors, some entries 0 or tiny, duplicates among them."""
    width = int(rng.integers(1, 7))
    counts = rng.integers(0, 40, 3)
    ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    values = rng.dirichlet(np.full(width, rng.choice([0.3, 1.0, 4.0])), int(ptr[-1]))
    values *= rng.choice([1.0, 1e-3, 1e-290], (1, width))
    values[rng.random(values.shape) < rng.choice([0.0, 0.2])] = 0.0
    return values, ptr


@pytest.mark.nojit
def test_what_is_dropped_lies_below_a_mixture_of_what_is_kept():
    for t in range(8):
        values, ptr = random_rows(np.random.default_rng(t))
        kept, _ = undropped(values, ptr, rounds=60)
        for c in range(len(ptr) - 1):
            rows = np.arange(ptr[c], ptr[c + 1])
            for i in rows[~kept[rows]]:
                assert best_share(values[i], values[rows[kept[rows]]]) >= 1.0 - 1e-9


def test_most_of_what_lies_well_below_a_mixture_is_dropped():
    n_dropped = n_missed = 0
    for t in range(30):
        values, ptr = random_rows(np.random.default_rng([1, t]))
        alive = slow_skyband(values, ptr, 1)
        kept, _ = undropped(values, ptr, rounds=1000)
        for c in range(len(ptr) - 1):
            rows = np.arange(ptr[c], ptr[c + 1])
            if len(rows) < mixtures.FEWEST:
                continue
            n_dropped += int(np.count_nonzero(alive[rows] & ~kept[rows]))  # that no single row dominates
            for i in rows[kept[rows]][:3]:
                others = np.minimum(values[rows[kept[rows] & (rows != i)]], mixtures.MOST * values[i])
                n_missed += best_share(values[i], others) > 1.05
    assert n_dropped > 50
    assert n_missed < n_dropped / 5


def test_pieces_of_work_end_as_one():
    rng = np.random.default_rng(2)
    values, ptr = rng.dirichlet(np.full(5, 3.0), 300), np.array([0, 3, 200, 200, 300], np.int64)
    whole, one = undropped(values, ptr)
    pieces, many = undropped(values, ptr, budget=1000)
    assert one == 1
    assert many > 20
    np.testing.assert_array_equal(whole, pieces)


@pytest.mark.nojit
def test_extent():
    assert extent(np.array([0.0, 3.0, 1e-300, 2.0])) == (3.0, 1e-300)
    assert extent(np.zeros(4)) == (0.0, np.inf)


def test_combinations_are_at_least_what_they_stand_for():
    n_found = 0
    for t in range(20):
        values, ptr = random_rows(np.random.default_rng([2, t]))
        state, order = np.zeros(len(values), np.int8), np.empty(len(values), np.int64)
        picked = np.empty((len(values), 400), np.int32)
        mixtures.unmixed(values, ptr, 400, 1 << 40, state, order, np.zeros(2, np.int64), picked)
        kept, rows = state != mixtures.DROPPED, np.flatnonzero(state == mixtures.DROPPED)
        for row, picks in zip(rows, picked[rows], strict=True):
            end = int(np.argmax(picks < 0)) if np.any(picks < 0) else len(picks)
            if not end:
                continue
            chosen, counts = picks[:end], np.arange(1.0, end + 1.0)
            assert kept[chosen].all()
            assert np.all(np.searchsorted(ptr, chosen, side="right") == np.searchsorted(ptr, row, side="right"))
            assert np.all(counts @ values[chosen] >= counts.sum() * values[row])
            n_found += 1
    assert n_found > 50
