"""Values of points: nuisance summed out by elimination, against enumeration."""

import itertools
import math

import numpy as np
import pytest
from problem_twin import random_problem, value_array

from certimap.core.domain import Domain
from certimap.networks import Factor, MarkovNetwork, conditional
from certimap.networks import problem as problem_module
from certimap.networks.conditional import PointEvaluator
from certimap.networks.elimination_plan import plan
from certimap.networks.kernels import conditional as kernels
from certimap.networks.problem import (
    FLOOR,
    Problem,
    Table,
    problem_of,
    product,
    rounding_at,
    to_integers,
    value_at,
)
from certimap.networks.relaxation.split_tree import SplitTree
from certimap.networks.simplify import simplify
from certimap.networks.sum_elimination import sum_all, sum_in_logs


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_values_are_those_of_enumeration(seed, is_streamed, monkeypatch):
    if is_streamed:
        monkeypatch.setattr(conditional, "STREAMED", -1.0)
    rng, n_streamed = np.random.default_rng(seed), 0
    for _ in range(40):
        problem = random_problem(rng, max_variables=7, max_states=3, nuisance=float(rng.choice([0.3, 0.7])))
        query, values = value_array(problem)
        points = np.array(list(itertools.product(*[range(problem.sizes[v]) for v in query]))).reshape(
            -1, len(query)
        )
        evaluator = PointEvaluator(problem, query)
        n_streamed += sum(part.order is not None for part in evaluator.sums)
        found = evaluator.log_values(points)
        assert np.allclose(found, values.ravel(), atol=1e-9)
    assert (n_streamed > 10) == is_streamed


def test_logs_agree_with_scaled_products():
    rng = np.random.default_rng(7)
    for _ in range(30):
        problem = random_problem(rng, max_variables=7, max_states=3, nuisance=0.6)
        evaluator = PointEvaluator(problem, sorted(problem.query))
        for part in evaluator.sums:
            point = np.array([rng.integers(problem.sizes[sorted(problem.query)[c]]) for c in part.query], np.int64)
            a = part.arrays
            local = np.empty(int(np.max(np.diff(a.local_ptr))))
            value = kernels.sum_in_logs(a, point, np.empty(part.buffer_size), local) + part.log_scale
            scaled = part.log_values(point[None])[0]
            assert value == scaled or value == pytest.approx(scaled, abs=1e-9)


@pytest.mark.parametrize("together", ["one by one", "pieces", "at once"])
def test_climbs_end_where_no_single_change_helps(together, monkeypatch):
    if together != "one by one":
        monkeypatch.setattr(conditional, "DEAR", -1.0)
        monkeypatch.setattr(conditional, "WORK_BETWEEN_LOOKS", 1.0 if together == "pieces" else 1e9)
    rng = np.random.default_rng(8)
    for _ in range(40):
        problem = random_problem(rng, max_variables=7, max_states=3, zeros=0.0, nuisance=0.4)
        if not problem.query:
            continue
        query, values = value_array(problem)
        sizes = np.array([problem.sizes[v] for v in query])
        evaluator = PointEvaluator(problem, query)
        point = evaluator.climb(rng.integers(sizes), sizes)
        for i, n in enumerate(sizes):
            for state in range(n):
                near = point.copy()
                near[i] = state
                assert values[tuple(near)] <= values[tuple(point)] + 1e-9


@pytest.mark.parametrize("is_large", [False, True])
def test_one_point_is_worth_what_it_is_among_others(is_large, monkeypatch):
    if is_large:
        monkeypatch.setattr(problem_module, "KEPT_ENTRIES", 0)
    rng = np.random.default_rng(4)
    for _ in range(20):
        problem = random_problem(rng, max_variables=6, max_states=3, nuisance=0.0)
        for asked in (problem, to_integers(problem)):
            variables = sorted(asked.sizes)
            points = rng.integers([asked.sizes[v] for v in variables], size=(4, len(variables)))
            together = value_at(asked, points, variables)
            alone = [value_at(asked, p[None], variables)[0] for p in points]
            possible = np.array(alone) > FLOOR  # all integers below it stand for ln 0
            np.testing.assert_array_equal(possible, together > FLOOR)
            np.testing.assert_allclose(np.array(alone)[possible], together[possible], rtol=1e-12)


def test_a_dear_climb_looks_at_the_clock_between_pieces_and_keeps_what_it_has(monkeypatch):
    monkeypatch.setattr(conditional, "DEAR", -1.0)
    monkeypatch.setattr(conditional, "WORK_BETWEEN_LOOKS", 1.0)
    problem = random_problem(np.random.default_rng(3), max_variables=7, max_states=3, zeros=0.0, nuisance=0.4)
    query, values = value_array(problem)
    sizes = np.array([problem.sizes[v] for v in query])
    evaluator, start = PointEvaluator(problem, query), np.zeros(len(query), np.int64)
    worth = [float(values[tuple(start)])]
    for n_looks in range(1, int(sizes.sum()) + 1):
        left = iter([False] * n_looks)
        point = evaluator.climb(start, sizes, should_stop=lambda left=left: next(left, True))
        worth.append(float(values[tuple(point)]))
    assert worth == sorted(worth)
    assert worth[0] < worth[-1]


def test_thousands_of_tables_add_up_to_the_last_digit():
    rng = np.random.default_rng(0)
    domain = Domain.of_sizes([2] * 12)
    factors = []
    for _ in range(3000):
        scope = sorted(rng.choice(12, 2, replace=False).tolist())
        factors.append(Factor.from_log(scope, rng.normal(-40.0, 200.0, (2, 2))))
    prepared = problem_of(MarkovNetwork(domain, factors))
    points = rng.integers(0, 2, (20, 12))
    values = PointEvaluator(prepared.problem, prepared.query).log_values(points)
    for point, value in zip(points, values, strict=True):
        exact = math.fsum(float(f.log_table[tuple(point[list(f.scope)])]) for f in factors)
        assert abs(value - exact) <= 2.0 * math.ulp(exact)


def _many_observations():
    """A class of three states, 2,500 observations of it, and ln p of each class with them, exactly rounded."""
    rng = np.random.default_rng(3)
    tables = [Table((0,), np.log(rng.dirichlet(np.ones(3)) ** 9)) for _ in range(2500)]
    problem = Problem({0: 3}, frozenset({0}), tuple(tables), -1.0 / 3.0)
    return problem, [math.fsum([-1.0 / 3.0, *(float(t.log_values[k]) for t in tables)]) for k in range(3)]


def test_values_of_thousands_of_tables_are_off_by_their_slack_at_most():
    problem, logs = _many_observations()
    points = np.arange(3)[:, None]
    assert min(logs) < -1e4
    for values in (value_at(problem, points, [0]), PointEvaluator(problem, [0]).log_values(points)):
        assert np.abs(values - logs).max() <= 1e-11
        assert np.abs(values - logs).max() <= rounding_at(problem) < 1e-9
    assert np.abs(product(problem.tables, (0,), (3,)) - 1.0 / 3.0 - logs).max() <= 1e-11


def test_totals_of_thousands_of_tables_are_off_by_their_slack_at_most():
    problem, logs = _many_observations()
    total = sum_in_logs(problem)
    true = max(logs) + math.log(math.fsum(math.exp(x - max(logs)) for x in logs))
    assert abs(total.log_value - true) <= min(total.log_slack, 1e-11)
    assert total.log_slack < 1e-9
    tree = SplitTree.of(problem, [0], lambda scope: True)
    assert max(logs) <= tree.bound() <= max(logs) + 1e-9


def test_simplifying_thousands_of_tables_moves_values_by_their_slack_at_most():
    problem, logs = _many_observations()
    found = simplify(problem).problem
    assert abs(found.constant - max(logs)) <= found.log_slack < 1e-9


def test_messages_above_1_do_not_hide_an_underflow():
    """Both states come to e^-750 in four tables, and 300 messages of 1.1 each then multiply them."""
    leaves = range(1, 301)
    tables = [Table((0,), np.array(x)) for x in ([0.0, -380.0], [-380.0, 0.0], [0.0, -370.0], [-370.0, 0.0])]
    tables += [Table((0, v), np.log([[0.1, 1.0], [0.1, 1.0]])) for v in leaves]
    problem = Problem(dict.fromkeys(range(301), 2), frozenset(), tuple(tables))
    total = sum_in_logs(problem)
    assert total.log_value == pytest.approx(-750.0 + math.log(2.0) + 300 * math.log(1.1), abs=1e-10)


def test_messages_above_1_do_not_overflow():
    """1,500 messages of 1.9 each multiply to 2^1389 in one state, and to zero in the other."""
    leaves = range(1, 1501)
    tables = [Table((0,), np.array([0.0, -9.0]))]
    tables += [Table((0, v), np.log([[0.9, 1.0], [1e-3, 2e-3]])) for v in leaves]
    problem = Problem(dict.fromkeys(range(1501), 2), frozenset(), tuple(tables))
    assert sum_in_logs(problem).log_value == pytest.approx(1500 * math.log(1.9), rel=1e-12)
    assert sum_all(problem, plan(problem)).log_value == pytest.approx(1500 * math.log(1.9), rel=1e-12)
