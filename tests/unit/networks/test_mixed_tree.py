"""Bounds by elimination at full width, against enumeration: zeros, tiny numbers, every order, every delay."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference.problem_twin import all_values, random_problem

from certimap.core.control import Control, TimeUp
from certimap.networks import delayed_orders as orders
from certimap.networks import mixed_tree
from certimap.networks.delayed_orders import RECIPES, delayed, greedily_delayed
from certimap.networks.kernels import mixed as kernels
from certimap.networks.mixed_tree import Memory, MixedTree
from certimap.networks.problem import Problem, Table


def best_by_state(problem: Problem) -> tuple[float, dict[int, np.ndarray]]:
    """Return the largest value, and the largest with each state of each queried variable."""
    query, found = sorted(problem.query), all_values(problem)
    each = {v: np.full(problem.sizes[v], -np.inf) for v in query}
    for states, value in found.items():
        for v, state in zip(query, states, strict=True):
            each[v][state] = max(each[v][state], value)
    return max(found.values()), each


def check(problem: Problem, order: list[int], workers: int = 1) -> float:
    """Check every bound of an order, and return the bound of the whole less the truth."""
    value, each = best_by_state(problem)
    tree = MixedTree(problem, order, workers=workers)
    found = tree.bounds()
    assert found.log_value >= value
    assert value <= found.log_value <= found.log_total
    assert set(found.each) == problem.query
    for v, own in found.each.items():
        assert np.all(own >= each[v])
    return found.log_value - value if value > -math.inf else 0.0


@pytest.mark.parametrize("few", [1, 8])
@pytest.mark.parametrize("n_leaves", [9, 12])
@pytest.mark.parametrize("hub", [True, False])
def test_messages_around_many_children_are_those_of_all_the_others(
    few: int, n_leaves: int, hub: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixed_tree, "FEW", few)
    monkeypatch.setattr(mixed_tree, "MANY", max(few, 5))
    rng = np.random.default_rng(n_leaves)
    sizes = {0: 3, **dict.fromkeys(range(1, n_leaves), 2)}
    tables = tuple(Table((0, v), rng.normal(size=(3, 2))) for v in range(1, n_leaves))
    query = frozenset({*range(1, n_leaves), *([0] if hub else [])})
    gap = check(Problem(sizes, query, tables), [*range(1, n_leaves), 0])
    assert gap == pytest.approx(0.0, abs=1e-9) or not hub


def test_a_hub_waits_for_the_leaves_that_wait_for_it() -> None:
    sizes = dict.fromkeys(range(120), 2)
    tables = tuple(Table((0, v), np.zeros((2, 2))) for v in range(1, 120))
    found = delayed(Problem(sizes, frozenset(range(100)), tables), [*range(1, 119), 0, 119], 0.0)
    assert sorted(found.order) == list(range(120))
    assert found.log2_largest <= 2.0


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.0, 0.9), st.sampled_from([1.0, 40.0, 400.0]))
def test_every_order_bounds_and_exact_ones_are_tight(seed: int, nuisance: float, spread: float) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, max_variables=6, max_states=3, nuisance=nuisance)
    wide = tuple(Table(t.scope, t.log_values * spread) for t in problem.tables)
    problem = replace(problem, tables=wide)
    order = [int(v) for v in rng.permutation(sorted(problem.sizes))]
    check(problem, order)
    sums_first = sorted(order, key=lambda v: v in problem.query)
    if spread == 1.0:
        assert check(problem, sums_first) == pytest.approx(0.0, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.0, 14.0))
def test_delayed_orders_hold_all_variables_and_bound(seed: int, bits: float) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, max_variables=7, max_states=3, nuisance=0.6)
    base = [int(v) for v in rng.permutation(sorted(problem.sizes))]
    gains = {v: float(rng.random()) for v in problem.query}
    found = delayed(problem, [99, *base], bits, gains)
    assert sorted(found.order) == sorted(problem.sizes)
    gap = check(problem, found.order)
    if [v in problem.query for v in found.order] == sorted(v in problem.query for v in found.order):
        assert gap == pytest.approx(0.0, abs=1e-9)
    towards = MixedTree(problem, found.order).order_towards(base[0])
    assert sorted(towards) == sorted(problem.sizes)
    assert towards[-1] == base[0]
    check(problem, towards)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(4.0, 14.0))
def test_greedy_orders_keep_to_their_limit_and_let_hidden_variables_go_first(seed: int, bits: float) -> None:
    problem = random_problem(np.random.default_rng(seed), max_variables=7, max_states=3, nuisance=0.6)
    for recipe in RECIPES[1:]:
        found = greedily_delayed(problem, bits, recipe)
        if found is None:
            continue
        assert sorted(found.order) == sorted(problem.sizes)
        cliques = [math.prod(problem.sizes[v] for v in (r.own, *r.separator)) for r in
                   MixedTree(problem, found.order).regions]  # fmt: skip
        assert sum(cliques) == pytest.approx(2.0**found.log2_work)
        assert found.log2_work <= bits
        check(problem, found.order)
    roomy = greedily_delayed(problem, 40.0, RECIPES[1])
    assert roomy is not None
    assert [v in problem.query for v in roomy.order] == sorted(v in problem.query for v in roomy.order)


def grid(n: int, seed: int, queried: float) -> Problem:
    rng = np.random.default_rng(seed)
    tables = [Table((v,), rng.normal(size=2)) for v in range(n * n)]
    for v in range(n * n):
        tables += [
            Table((v, u), rng.normal(size=(2, 2))) for u in (v + 1, v + n) if (u < n * n and u != v + 1) or u % n
        ]
    query = frozenset(np.flatnonzero(rng.random(n * n) < queried).tolist())
    return Problem(dict.fromkeys(range(n * n), 2), query, tuple(t for t in tables if max(t.scope) < n * n))


def test_more_room_delays_more_and_the_bound_meets_the_value_at_last() -> None:
    problem = grid(4, 3, 0.4)
    value = max(all_values(problem).values())
    bounds = []
    for bits in (0.0, 5.0, 6.0, 16.0):
        order = delayed(problem, range(16), bits)
        bounds.append(MixedTree(problem, order.order).bounds().log_value)
        assert bounds[-1] >= value
    assert bounds[0] > bounds[-1]
    assert bounds[-1] == pytest.approx(value, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_tables_apart_and_memory_used_again_change_no_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, max_variables=6, max_states=3, nuisance=0.5)
    order = [int(v) for v in rng.permutation(sorted(problem.sizes))]
    whole = MixedTree(problem, order).bounds()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixed_tree, "JOINED", 0.0)
        patch.setattr(mixed_tree, "JOINED_SHARE", 0.0)
        patch.setattr(Memory, "LEAST", 1)
        memory = Memory()
        for _ in range(2):
            apart = MixedTree(problem, order, memory=memory).bounds()
            assert apart.log_value == pytest.approx(whole.log_value, abs=1e-9)
            for v, own in whole.each.items():
                np.testing.assert_allclose(apart.each[v], own, rtol=0.0, atol=1e-9)


def test_memory_gives_rooms_that_are_large_enough_and_each_only_once() -> None:
    memory, rng = Memory(2**22), np.random.default_rng(0)
    held = list[np.ndarray]()
    for k in range(300):
        n = int(rng.integers(Memory.LEAST, 8 * Memory.LEAST))
        held.append(memory.take(n))
        held[-1][:] = k
        assert len(held[-1]) == n
        if len(held) > 3:
            values = held.pop(int(rng.integers(len(held))))
            assert np.all(values == values[0])
            memory.give(values)


def test_threads_and_pieces_change_nothing() -> None:
    problem = grid(15, 1, 0.1)
    alone, together = MixedTree(problem, range(225)).bounds(), MixedTree(problem, range(225), workers=2).bounds()
    assert alone.log_value == together.log_value
    assert all(np.array_equal(own, together.each[v]) for v, own in alone.each.items())


def test_a_pass_ends_with_its_run_and_says_beforehand_what_it_holds() -> None:
    tree = MixedTree(grid(15, 1, 0.1), range(225), Control(interrupted=True))
    assert 8.0 * 2**15 < tree.n_bytes < 2.0**25
    with pytest.raises(TimeUp):
        tree.bounds()


@pytest.mark.parametrize("seed", range(40))
def test_the_kernel_agrees_with_its_twin(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_axes, n_own, is_max = int(rng.integers(0, 4)), int(rng.integers(1, 4)), bool(seed % 2)
    shape = [int(k) for k in rng.integers(1, 4, n_axes)]
    tables, views = [], []
    for _ in range(kernels.MAX_INPUTS):
        held = rng.random(n_axes + 1) < 0.6
        table = rng.random([k if h else 1 for k, h in zip([*shape, n_own], held, strict=True)])
        tables.append(table.ravel())
        views.append([s // 8 if h else 0 for s, h in zip(table.strides, held, strict=True)])
    out = np.empty(math.prod(shape))
    target = [s // 8 for s in out.reshape(shape).strides] if n_axes else []
    columns = np.array([*views, [*target, 0]], np.int64)
    inner, n_inner = (columns[:, n_axes - 1], shape[-1]) if n_axes else (np.zeros(5, np.int64), 1)
    groups = np.array(shape[:-1], np.int64)
    strides = np.ascontiguousarray(columns[:, : len(groups)].T)
    for start in range(n_inner):
        moves = kernels.Moves(groups, strides, inner.copy(), columns[:, -1].copy())
        kernels.combine(tuple(tables), moves, n_own, is_max, start, start + 1, out)
    expected = []
    for at in np.ndindex(*shape):
        products = [
            math.prod(
                t[sum(i * c for i, c in zip((*at, s), view, strict=True))]
                for t, view in zip(tables, views, strict=True)
            )
            for s in range(n_own)
        ]
        expected.append(max(products) if is_max else sum(products))
    assert out == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("seed", range(40))
def test_messages_from_the_roots_hold_all_that_lies_outside(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = grid(3, seed, 0.5)
    if not problem.query:
        return
    order = [int(v) for v in rng.permutation(9)]
    check(problem, order)
    exact = MixedTree(problem, sorted(order, key=lambda v: v in problem.query)).bounds()
    _, each = best_by_state(problem)
    for v, own in exact.each.items():
        assert own.max() == pytest.approx(each[v].max(), abs=1e-9)
        assert np.all(own >= each[v] - 1e-12)


def test_orders_of_queried_variables_alone_cost_little_per_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    n_calls, weight = 0, orders.EliminationGraph.weight

    def counted(*args: Any) -> float:
        nonlocal n_calls
        n_calls += 1
        return weight(*args)

    monkeypatch.setattr(orders.EliminationGraph, "weight", counted)
    costs: list[float] = []
    for n in (8, 16, 32):
        n_calls = 0
        assert len(delayed(grid(n, 0, 1.0), list(range(n * n)), 0.0).order) == n * n
        costs.append(n_calls / n**2)
    assert costs[2] < 2.0 * costs[0]


def test_orders_end_with_the_time() -> None:
    with pytest.raises(TimeUp):
        delayed(grid(4, 0, 1.0), list(range(16)), 0.0, control=Control.starting_now(0.0))
