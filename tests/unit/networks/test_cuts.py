"""Roof duality and minimum cuts against enumeration: bounds hold, fixed states are those of a best assignment."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import certimap as cm
from certimap.errors import ImpossibleEvidence
from certimap.networks import cuts
from certimap.networks.cuts import OPEN, Binary, is_balanced, roof, settled
from certimap.networks.orders import looks_too_wide
from certimap.networks.problem import FLOOR, HARD, Problem, Table, value_at


def random_model(r: np.random.Generator, *, balanced: bool, zeros: bool, ties: bool) -> Binary:
    """Return a model of at most eight variables; a balanced one is attractive after some states are swapped."""
    n, scale = int(r.integers(1, 9)), 3 if ties else 10**6
    density = r.random()
    ends = [(i, j) for i in range(n) for j in range(i + 1, n) if r.random() < density]
    unary, pairs = r.integers(-scale, scale + 1, (n, 2)), r.integers(-scale, scale + 1, (len(ends), 2, 2))
    swapped = r.integers(2, size=n)
    for table, (i, j) in zip(pairs, ends, strict=True):
        if balanced and table[0, 0] + table[1, 1] < table[0, 1] + table[1, 0]:
            table[:] = table[:, ::-1].copy()
        if balanced and swapped[i] != swapped[j]:
            table[:] = table[:, ::-1].copy()
    if zeros:
        pairs = np.where(r.random(pairs.shape) < 0.15, HARD, pairs)
    return Binary(unary, np.array(ends, np.int64).reshape(-1, 2), pairs)


def values(model: Binary) -> tuple[np.ndarray, np.ndarray]:
    """Return all assignments and what they are worth."""
    points = np.array(list(itertools.product((0, 1), repeat=len(model.unary))))
    entries = [model.unary[i, points[:, i]] for i in range(len(model.unary))]
    entries += [t[points[:, i], points[:, j]] for t, (i, j) in zip(model.pairs, model.ends, strict=True)]
    is_hard = np.any(np.array(entries) <= FLOOR, axis=0)
    return points, np.where(is_hard, HARD, np.array(entries).sum(axis=0))


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("ties", [False, True])
def test_bounds_hold_and_fixed_states_are_best(balanced: bool, zeros: bool, ties: bool) -> None:
    r = np.random.default_rng([balanced, zeros, ties])
    n_fixed = 0
    for _ in range(60):
        model = random_model(r, balanced=balanced, zeros=zeros, ties=ties)
        found = roof(model)
        states, loss = settled(found)
        points, before = values(model)
        after = values(found.model)[1]
        assert np.array_equal(before <= FLOOR, after <= FLOOR)
        assert np.array_equal(before[before > FLOOR], after[after > FLOOR] + found.constant)
        best = int(before.max())
        if best <= FLOOR:
            continue
        assert found.constant >= best
        agrees = np.all((states == OPEN) | (points == states), axis=1)
        assert int(before[agrees].max()) + loss >= best
        assert loss <= 2 * (len(model.unary) + len(model.ends))
        n_fixed += int(np.sum(states != OPEN))
        if balanced and not zeros:
            assert is_balanced(model)
            assert (found.constant, loss) == (best, 0)
            assert not np.any(states == OPEN)
    assert n_fixed > 50


def test_states_that_flows_did_not_earn_are_taken_back() -> None:
    r = np.random.default_rng(5)
    n_taken_back = 0
    for _ in range(100):
        model = random_model(r, balanced=False, zeros=False, ties=False)
        found = roof(model)
        guessed = found._replace(states=r.integers(2, size=len(model.unary)))
        states, loss = settled(guessed)
        points, worth = values(model)
        agrees = np.all((states == OPEN) | (points == states), axis=1)
        assert int(worth[agrees].max()) + loss >= int(worth.max())
        n_taken_back += int(np.sum(states == OPEN))
    assert n_taken_back > 50


def random_problem(r: np.random.Generator, zeros: bool) -> Problem:
    """Return tables of one and two variables, several of the same ones among them."""
    names = sorted(r.choice(30, int(r.integers(2, 8)), replace=False).tolist())
    tables: list[Table] = []
    for _ in range(int(r.integers(1, 16))):
        scope = tuple(r.choice(names, int(r.integers(1, 3)), replace=False).tolist())
        logs = r.integers(-5, 6, (2,) * len(scope))
        tables.append(Table(scope, np.where(r.random(logs.shape) < 0.2, HARD, logs) if zeros else logs))
    sizes = dict.fromkeys(sorted({v for t in tables for v in t.scope}), 2)
    return Problem(sizes, frozenset(sizes), tuple(tables), int(r.integers(-5, 5)))


@pytest.mark.parametrize("zeros", [False, True])
def test_what_a_cut_leaves_has_the_same_maximum(zeros: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "FEWEST_VARIABLES", 1)
    r = np.random.default_rng(7)
    for _ in range(200):
        problem = random_problem(r, zeros)
        names, slack = sorted(problem.sizes), 2 * len(problem.tables)
        best = int(value_at(problem, _points(len(names)), names).max())
        try:
            left = cuts.cut(problem)
        except ImpossibleEvidence:
            assert best <= FLOOR
            continue
        open_ones = sorted(left.problem.sizes)
        worth = value_at(left.problem, _points(len(open_ones)), open_ones)
        if best <= FLOOR:
            assert int(worth.max()) <= FLOOR
            continue
        assert best <= int(worth.max()) <= best + slack
        states = left.decode(dict(zip(open_ones, _points(len(open_ones))[worth.argmax()].tolist(), strict=True)))
        assert int(value_at(problem, np.array([[states[v] for v in names]]), names)[0]) >= best - slack


def _points(n: int) -> np.ndarray:
    return np.array(list(itertools.product((0, 1), repeat=n)), np.int64).reshape(2**n, n)


def grid(n: int, seed: int, *, swaps: bool) -> cm.MarkovNetwork:
    """Return a grid whose neighbours agree best, after every other variable's states are swapped if wanted."""
    r = np.random.default_rng(seed)
    domain = cm.Domain([cm.Categorical(f"v{i}", (0, 1)) for i in range(n * n)])
    factors = [cm.Factor.from_log([v], r.normal(size=2)) for v in range(n * n)]
    at = np.arange(n * n).reshape(n, n)
    pairs = [*zip(at[1:].flat, at[:-1].flat, strict=True), *zip(at[:, 1:].flat, at[:, :-1].flat, strict=True)]
    for a, b in pairs:
        w = abs(r.normal())
        factors.append(cm.Factor.from_log([int(a), int(b)], [[-w, w], [w, -w]] if swaps else [[w, -w], [-w, w]]))
    return cm.MarkovNetwork(domain, factors)


@pytest.mark.parametrize("swaps", [False, True])
def test_balanced_grids_are_exact_at_once(swaps: bool) -> None:
    small = grid(4, 1, swaps=swaps)
    found = cuts.solved(_problem(small))
    assert found is not None
    value = float(small.log_joint(np.array([[found[0][v] for v in range(16)]]))[0])
    best = float(small.log_joint(_points(16)).max())
    assert value == pytest.approx(best, abs=1e-12)
    assert best <= found[1] <= best + 1e-9
    wide = cm.map_query(grid(40, 2, swaps=swaps), epsilon=0, delta=0, max_nodes=1, rng=0)
    assert wide.certificate.kind.value == "exact"


def test_far_from_zero_a_cut_is_still_exact() -> None:
    """Logs that are given as logs are not rounded, so that 4e5 nats leave room for the tolerance."""
    model = grid(13, 4, swaps=False)
    factors = [*model.factors, cm.Factor.from_log([0], np.full(2, 4e5))]
    found = cm.map_query(cm.MarkovNetwork(model.domain, factors), epsilon=0, delta=0, max_nodes=1, rng=0)
    assert found.solver == "hbfs"
    assert found.certificate.kind.value == "exact"


@pytest.mark.parametrize("seed", range(20))
def test_a_bound_holds_for_sums_without_rounding(seed: int) -> None:
    """Rounded logs of all sizes: the bound is above the exact sum of the best assignment, by little."""
    r = np.random.default_rng(seed)
    tables = [Table((v,), r.normal(size=2) * 10.0 ** r.uniform(-20, 6)) for v in range(6)]
    tables += [Table((v, v + 1), r.normal() * 10.0 ** r.uniform(-20, 6) + np.eye(2)) for v in range(5)]
    problem = Problem(dict.fromkeys(range(6), 2), frozenset(range(6)), tuple(tables), float(r.normal()))
    found = cuts.solved(problem)
    assert found is not None
    exact = max(
        sum((Fraction(float(t.log_values[tuple(x[list(t.scope)])])) for t in tables), Fraction(problem.constant))
        for x in _points(6)
    )
    reach = problem.joined.reach()
    assert exact <= Fraction(found[1]) <= exact + Fraction(4e-16 * reach + 1e-14)
    rounded = cuts.solved(replace(problem, log_slack=0.25))  # logs that are off by as much
    assert rounded is not None
    assert rounded[1] >= found[1] + 0.25


def test_a_cut_needs_no_elimination_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an order was looked for")

    monkeypatch.setattr("certimap.conversions.from_networks.plan_elimination", refuse)
    monkeypatch.setattr("certimap.networks.elimination_plan.best_order", refuse)
    found = cm.map_query(grid(31, 3, swaps=True), max_memory=2**30, rng=0)
    assert found.certificate.kind.value == "exact"
    with pytest.raises(AssertionError, match="order"):
        cm.map_query(grid(13, 3, swaps=True), max_memory=2**30, rng=0)


def test_only_balanced_problems_are_settled_by_a_cut() -> None:
    assert cuts.is_settled(_problem(grid(4, 1, swaps=True)))
    assert not cuts.is_settled(_problem(frustrated()))


def _problem(model: cm.MarkovNetwork) -> Problem:
    from certimap.networks.problem import problem_of

    return problem_of(model).problem


def test_flows_may_add_up_to_more_than_64_bits() -> None:
    r, n, scale = np.random.default_rng(3), 1000, 2**57
    ends = np.stack([np.arange(n - 1), np.arange(1, n)], axis=1)
    weights = r.integers(0, scale // 16, n - 1)
    pairs = np.stack([weights, -weights, -weights, weights], axis=1).reshape(-1, 2, 2)
    model = Binary(r.integers(-scale, scale, (n, 2)), ends, pairs)
    found = roof(model)
    states, loss = settled(found)
    entries = [
        *model.unary[np.arange(n), states].tolist(),
        *pairs[np.arange(n - 1), states[:-1], states[1:]].tolist(),
    ]
    assert loss == 0
    assert sum(entries) == found.constant


def frustrated() -> cm.MarkovNetwork:
    domain = cm.Domain([cm.Categorical(f"v{i}", (0, 1)) for i in range(3)])
    factors = [cm.Factor.from_log([i, (i + 1) % 3], [[-1.0, 1.0], [1.0, -1.0]]) for i in range(3)]
    return cm.MarkovNetwork(domain, factors)


def test_frustrated_models_are_left_to_the_search() -> None:
    assert cuts.solved(_problem(frustrated())) is None


def test_only_what_fits_nowhere_looks_too_wide() -> None:
    def scopes(n: int, m: int) -> list[tuple[int, int]]:
        at = np.arange(n * m).reshape(n, m)
        down = zip(at[1:].flat, at[:-1].flat, strict=True)
        right = zip(at[:, 1:].flat, at[:, :-1].flat, strict=True)
        return [(int(a), int(b)) for a, b in (*down, *right)]

    assert looks_too_wide(scopes(60, 60), dict.fromkeys(range(3600), 2))
    assert not looks_too_wide(scopes(20, 400), dict.fromkeys(range(8000), 2))
    assert looks_too_wide(scopes(20, 400), dict.fromkeys(range(8000), 12))
