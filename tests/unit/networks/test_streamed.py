"""Sums with a variable held, and draws, from eliminations in stretches: against enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from certimap.core.control import Control, TimeUp
from certimap.errors import TooLarge
from certimap.networks import elimination_plan, streamed
from certimap.networks.elimination_plan import plan, stretches
from certimap.networks.problem import Problem, Table
from certimap.networks.streamed import StreamedSum


def random_problem(seed, n=7, zeros=0.2, spread=2.0):
    rng = np.random.default_rng(seed)
    sizes = {3 * i + 1: int(rng.integers(2, 4)) for i in range(n)}
    names = sorted(sizes)
    tables = []
    for _ in range(n + 2):
        scope = tuple(names[i] for i in rng.permutation(n)[: rng.integers(1, 4)])
        values = spread * rng.normal(size=[sizes[v] for v in scope])
        values[rng.random(values.shape) < zeros] = -np.inf
        tables.append(Table(scope, values))
    return Problem(sizes, frozenset(names[:2]), tuple(tables), constant=0.75)


def enumerated(problem, masks=None):
    """Return every assignment with its value times e^700, variables in order, and which the masks leave out."""
    names = sorted(problem.sizes)
    points = list(itertools.product(*(range(problem.sizes[v]) for v in names)))
    values, inside = [], []
    for point in points:
        state = dict(zip(names, point, strict=True))
        logs = [t.log_values[tuple(state[v] for v in t.scope)] for t in problem.tables]
        values.append(problem.constant + sum(logs))
        inside.append([masks is None or v not in masks or bool(masks[v][state[v]]) for v in names])
    return names, np.array(points), np.array(values), np.array(inside)


def log_of(values):
    return float(np.logaddexp.reduce(values)) if len(values) else -math.inf


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("in_logs", [False, True])
def test_sums_are_those_of_enumeration(seed, in_logs):
    problem = random_problem(seed)
    rng = np.random.default_rng(seed)
    masks = {v: rng.random(problem.sizes[v]) < 0.7 for v in sorted(problem.sizes)[::2]} if seed % 2 else None
    work = StreamedSum(problem, plan(problem), masks=masks)
    work._in_logs = in_logs
    total, each = work.log_each()
    names, points, values, inside = enumerated(problem, masks)
    assert total == pytest.approx(log_of(values[inside.all(axis=1)]), abs=1e-10)
    assert sorted(each) == names
    for k, v in enumerate(names):
        others = np.delete(inside, k, axis=1).all(axis=1)
        for s in range(problem.sizes[v]):
            expected = log_of(values[others & (points[:, k] == s)])
            assert each[v][s] == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("n_stretches", [1, 2, 3, 7])
def test_stretches_change_nothing(n_stretches, monkeypatch):
    problem = random_problem(3, n=9, zeros=0.0)
    found = plan(problem)
    whole = StreamedSum(problem, found)
    borders = np.linspace(0, len(found.order), n_stretches + 1).round().astype(int).tolist()
    monkeypatch.setattr(streamed, "stretches", lambda *given: borders)
    parts = StreamedSum(problem, found)
    total, each = parts.log_each()
    expected_total, expected = whole.log_each()
    assert total == expected_total
    assert all(np.array_equal(each[v], expected[v]) for v in expected)
    draws = [work.draw(50, np.random.default_rng(1)) for work in (whole, parts)]
    assert np.array_equal(*draws)


def test_numbers_beyond_doubles_are_summed_in_logs():
    values = np.array([[0.0, -800.0], [-900.0, -5.0]])
    tables = tuple(Table((i, i + 1), values) for i in range(6))
    problem = Problem(dict.fromkeys(range(7), 2), frozenset(), tables)
    work = StreamedSum(problem, plan(problem))
    total, each = work.log_each()
    assert work._in_logs
    names, points, logs, _ = enumerated(problem)
    assert total == pytest.approx(log_of(logs), abs=1e-12)
    for k, v in enumerate(names):
        for s in (0, 1):
            assert each[v][s] == pytest.approx(log_of(logs[points[:, k] == s]), rel=1e-12)
    assert work.draw(20, np.random.default_rng(0)).max() == 0  # anything else has e^-30 of the mass


@pytest.mark.parametrize("in_logs", [False, True])
def test_draws_have_the_probabilities_of_the_product(in_logs):
    problem = random_problem(5, n=4)
    found = plan(problem)
    work = StreamedSum(problem, found, masks={4: np.arange(problem.sizes[4]) < 2})
    work._in_logs = in_logs
    draws = work.draw(40_000, np.random.default_rng(2))
    names, points, values, inside = enumerated(problem, {4: np.arange(problem.sizes[4]) < 2})
    values = np.where(inside.all(axis=1), values, -np.inf)
    expected = np.exp(values - log_of(values))
    columns = [found.order.index(v) for v in names]
    index = np.ravel_multi_index(draws[:, columns].T, [problem.sizes[v] for v in names])
    shape = [problem.sizes[v] for v in names]
    counts = np.bincount(index, minlength=math.prod(shape))
    assert np.all(counts[expected == 0.0] == 0)
    likely = expected > 2e-4
    z = (counts[likely] - 40_000 * expected[likely]) / np.sqrt(40_000 * expected[likely] * (1 - expected[likely]))
    assert np.abs(z).max() < 5.0
    assert points.shape == (len(counts), 4)


def test_memory_decides_how_many_stretches_and_refuses():
    tables = tuple(Table((i, i + 1), np.zeros((64, 64))) for i in range(100))
    problem = Problem(dict.fromkeys(range(101), 64), frozenset(), tables)
    found = plan(problem)
    roomy = stretches(problem, found, Control(max_memory=2**33))
    assert len(roomy) == 2
    wide = random_problem(1, n=9)
    many = StreamedSum(wide, plan(wide), Control(max_memory=2**33))
    assert math.isfinite(many.log_each()[0])
    clique = Problem(dict.fromkeys(range(20), 2), frozenset(), (Table(tuple(range(20)), np.zeros((2,) * 20)),))
    with pytest.raises(TooLarge, match="the messages of an elimination would take"):
        stretches(clique, plan(clique), Control(max_memory=2**22))


def test_a_long_strip_is_cut_where_memory_is_short():
    rng = np.random.default_rng(0)
    n, m = 8, 40
    tables = []
    for i in range(m):
        for j in range(n):
            here = i * n + j
            tables += [
                Table((here, there), rng.normal(size=(2, 2)))
                for there in ([here + n] if i < m - 1 else []) + ([here + 1] if j < n - 1 else [])
            ]
    problem = Problem(dict.fromkeys(range(n * m), 2), frozenset(), tuple(tables))
    found = plan(problem)
    all_at_once = stretches(problem, found, Control(max_memory=2**33))
    fewest = 8.0 * (3.0 * 2.0**9 + problem.n_entries)
    short = Control(max_memory=int(fewest + 0.9 * found.n_bytes_kept))
    few = stretches(problem, found, short)
    assert len(all_at_once) == 2 < len(few)
    total, each = StreamedSum(problem, found, short).log_each()
    expected_total, expected = StreamedSum(problem, found).log_each()
    assert total == expected_total
    assert all(np.array_equal(each[v], expected[v]) for v in expected)


def test_the_clock_is_looked_at():
    problem = random_problem(2)
    work = StreamedSum(problem, plan(problem), Control.starting_now(-1.0))
    work._pace.MEASURED = 1
    with pytest.raises(TimeUp, match="summing a network"):
        work.log_each()


@pytest.mark.parametrize("in_logs", [False, True])
@pytest.mark.parametrize("block", [1, 4, 30, 2**20])
def test_sums_in_blocks_of_any_size_are_those_of_the_whole_product(block, in_logs, monkeypatch):
    monkeypatch.setattr(elimination_plan, "BLOCK", block)
    rng, sizes = np.random.default_rng(block), {3: 2, 1: 3, 4: 2, 0: 4, 2: 1}
    scopes = [(1, 3), (4, 0, 1), (3,), (2, 0)]
    parts = [(scope, rng.random([sizes[v] for v in scope])) for scope in scopes]
    letters = ["".join("abcde"[v] for v in scope) for scope in scopes]
    for kept in ([], [1], [0, 4], [3, 1, 0], [0, 1, 2, 3, 4]):
        dropped = [v for v in sizes if v not in kept]
        whole = np.einsum(",".join(letters) + "->" + "".join("abcde"[v] for v in kept), *(x for _, x in parts))
        given = [(s, np.log(x)) for s, x in parts] if in_logs else parts
        alone, shared = (elimination_plan.summed(given, kept, dropped, sizes, k, in_logs=in_logs) for k in (1, 3))
        np.testing.assert_array_equal(alone, shared)
        np.testing.assert_allclose(np.exp(alone) if in_logs else alone, whole, rtol=1e-12)
        assert alone.flags.writeable
