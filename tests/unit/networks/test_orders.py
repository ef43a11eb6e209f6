"""Elimination orders: cliques as by hand, constraints kept, never dearer than the quick one, and in time."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest

from certimap.core.control import Control, TimeUp
from certimap.networks import orders
from certimap.networks.orders import best_order, min_fill


def grid(n, size=3):
    across = [(i * n + j, i * n + j + 1) for i in range(n) for j in range(n - 1)]
    down = [(i * n + j, i * n + n + j) for i in range(n - 1) for j in range(n)]
    return [*across, *down], dict.fromkeys(range(n * n), size)


def random_graph(seed, n=14):
    rng = np.random.default_rng(seed)
    sizes = {int(v): int(rng.integers(2, 9)) for v in rng.permutation(100)[:n]}
    names = sorted(sizes)
    scopes = [[names[i] for i in rng.permutation(n)[: rng.integers(1, 4)]] for _ in range(int(1.5 * n))]
    return scopes, sizes


def plain_cliques(scopes, order):
    """Join the neighbours of one variable after another."""
    near = {v: set() for v in order}
    for scope in scopes:
        for v in scope:
            near[v] |= set(scope) - {v}
    found = []
    for v in order:
        members = near.pop(v)
        found.append((v, members))
        for a in members:
            near[a] = (near[a] | members) - {a, v}
    return found


@pytest.mark.parametrize("seed", range(30))
def test_cliques_and_sizes_are_those_of_joining_neighbours(seed):
    scopes, sizes = random_graph(seed)
    query = sorted(sizes)[::3]
    found = [
        min_fill(scopes, sizes, query=query),
        min_fill(scopes, sizes, query, 8.0),
        best_order(scopes, sizes, effort=1e6, seed=seed),
    ]
    for order in found:
        assert order is not None
        assert sorted(order.order) == sorted(sizes)
        plain = plain_cliques(scopes, order.order)
        assert [(v, set(near)) for v, near in order.cliques] == plain
        places = {v: i for i, v in enumerate(order.order)}
        assert all(list(near) == sorted(near, key=places.__getitem__) for near in order.separators)
        clique = [math.prod(sizes[u] for u in (v, *near)) for v, near in plain]
        assert order.log2_largest == pytest.approx(math.log2(max(clique)))
        assert order.log2_size == pytest.approx(math.log2(sum(clique)))


@pytest.mark.parametrize("seed", range(10))
def test_hidden_variables_go_first_while_their_cliques_are_small(seed):
    scopes, sizes = random_graph(seed)
    query = sorted(sizes)[::2]
    hidden = [v for v in sizes if v not in query]
    for limit in (1, 40, 10**6):
        found = min_fill(scopes, sizes, hidden, math.log2(limit))
        assert found is not None
        for i, v in enumerate(found.order):
            if v in query:
                waiting = [u for u in found.order[i:] if u in hidden]
                cliques = [
                    plain_cliques(scopes, [*found.order[:i], u, *set(found.order[i:]) - {u}])[i] for u in waiting
                ]
                assert all(math.prod(sizes[w] for w in (u, *members)) > limit for u, members in cliques)


def test_a_grid_is_swept_along_a_band():
    scopes, sizes = grid(20, 2)
    found = best_order(scopes, sizes)
    assert found.log2_largest <= 21.0
    quick = min_fill(scopes, sizes)
    assert quick is not None
    assert quick.log2_largest > 25.0


def test_the_order_is_no_dearer_than_the_quick_one():
    scopes, sizes = grid(14)
    found, quick = best_order(scopes, sizes, effort=1e6), min_fill(scopes, sizes)
    assert quick is not None
    assert sorted(found.order) == sorted(sizes)
    assert found.log2_size <= quick.log2_size


def test_restarts_find_more_with_more_effort_and_the_same_again():
    rng = np.random.default_rng(0)
    scopes = [tuple(rng.permutation(60)[:2].tolist()) for _ in range(140)]
    sizes = {v: int(rng.integers(2, 5)) for v in range(60)}
    quick, little, much = (best_order(scopes, sizes, effort=e) for e in (0.0, 1e5, 3e6))
    assert quick.log2_size >= little.log2_size >= much.log2_size
    assert much.log2_size < quick.log2_size - 0.5
    assert much == best_order(scopes, sizes, effort=3e6)
    others = [best_order(scopes, sizes, effort=3e6, seed=seed) for seed in (1, 2)]
    assert len({order.order for order in (much, *others)}) > 1


def test_a_cheap_order_is_not_improved(monkeypatch):
    def refuse(*given):
        raise AssertionError("an order was tried though the first is cheap")

    monkeypatch.setattr(orders._Search, "made", refuse)
    chain = [(i, i + 1) for i in range(200)]
    assert best_order(chain, dict.fromkeys(range(201), 4)).log2_largest == 4.0


def test_no_search_is_begun_without_time(monkeypatch):
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    scopes, sizes = grid(14)
    hurried = best_order(scopes, sizes, control=Control.starting_now(1e-3 * 60))
    assert sorted(hurried.order) == sorted(sizes)
    with pytest.raises(TimeUp):
        best_order(*grid(40), control=Control.starting_now(-1.0))


def test_slow_tries_take_a_tenth_of_the_time(monkeypatch):
    now, made, scopes = [0.0], orders._Search.made, grid(14)

    def slow(search, *given):
        now[0] += 1.0
        return made(search, *given)

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(orders._Search, "made", slow)
    unhurried = best_order(*scopes)
    assert now[0] > 7.0
    now[0] = 0.0
    best_order(*scopes, control=Control.starting_now(70.0))
    assert now[0] == 7.0
    now[0] = 0.0
    assert best_order(*scopes, control=Control.starting_now(1e6)) == unhurried


def test_an_order_that_is_too_dear_is_given_up():
    scopes, sizes = grid(10)
    found = min_fill(scopes, sizes)
    assert found is not None
    assert min_fill(scopes, sizes, most_entries=2.0 ** (found.log2_size - 1)) is None
    assert min_fill(scopes, sizes, most_entries=2.0 ** (found.log2_size + 1)) == found


def test_restarts_end_soon_where_hours_of_work_are_left(monkeypatch):
    tried: list[float] = []
    made = orders._Search.made
    monkeypatch.setattr(orders._Search, "made", lambda search, *given: tried.append(0.0) or made(search, *given))
    monkeypatch.setattr(orders, "LITTLE", 2.0**14)
    scopes, sizes = grid(10)
    whole = best_order(scopes, sizes)
    n_tried = len(tried)
    tried.clear()
    monkeypatch.setattr(orders, "DEAR", whole.log2_size - 1.0)
    assert best_order(scopes, sizes).log2_size >= whole.log2_size
    assert 0 < len(tried) < n_tried


def test_nothing_to_order():
    assert best_order([], {}).order == ()
    assert best_order([(), (3,)], {3: 2, 5: 4}).log2_size == pytest.approx(math.log2(6))


def test_a_clique_with_little_room():
    pairs = list(itertools.combinations(range(30), 2))
    star = [(0, i) for i in range(1, 30)]
    assert best_order(pairs, dict.fromkeys(range(30), 2), effort=1e5).log2_largest == 30.0
    # The pool of neighbours has to grow when the hub goes first.
    found = min_fill(star, dict.fromkeys(range(30), 2), [0])
    assert found is not None
    assert found.order[0] == 0
    assert found.log2_largest == 30.0


def test_an_order_is_found_whatever_its_cliques_cost():
    sizes = dict.fromkeys(range(1200), 2)
    clique = [tuple(range(1200))]
    for found in (best_order(clique, sizes), min_fill(clique, sizes)):
        assert sorted(found.order) == list(range(1200))
        assert found.log2_size > 1000.0
    assert min_fill(clique, sizes, most_entries=1e300) is None
