"""Better elimination orders: never dearer than the quick one, and in time."""

from __future__ import annotations

import time

import pytest

from certimap.core.control import Control, TimeUp
from certimap.networks.elimination import measure, min_fill
from certimap.networks.orders import best_order


def grid(n):
    across = [(i * n + j, i * n + j + 1) for i in range(n) for j in range(n - 1)]
    down = [(i * n + j, i * n + n + j) for i in range(n - 1) for j in range(n)]
    return [*across, *down], dict.fromkeys(range(n * n), 3)


def test_the_order_is_no_dearer_than_the_quick_one():
    scopes, sizes = grid(14)
    found = best_order(scopes, sizes, n_tries=5)
    assert sorted(v for v, _ in found) == sorted(sizes)
    assert measure(found, sizes, ()).log2_size <= measure(min_fill(scopes, sizes), sizes, ()).log2_size


def test_no_try_is_begun_that_would_not_end_in_time(monkeypatch):
    from certimap.networks import orders

    scopes, sizes = grid(14)
    n_tried = []

    def slow(*given):
        n_tried.append(1)
        time.sleep(0.2)
        return 1e9

    monkeypatch.setattr(orders, "greedy_order", slow)
    started = time.perf_counter()
    best_order(scopes, sizes, n_tries=100, control=Control.starting_now(0.5))
    assert 1 <= len(n_tried) <= 3
    assert time.perf_counter() - started < 5.0


def test_the_quick_order_looks_at_the_clock():
    scopes, sizes = grid(40)
    with pytest.raises(TimeUp):
        best_order(scopes, sizes, control=Control.starting_now(-1.0))
