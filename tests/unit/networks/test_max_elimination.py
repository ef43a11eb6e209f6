"""Exact maximisation by elimination against enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from problem_twin import all_values, random_problem

from certimap.networks import elimination_plan
from certimap.networks.elimination_plan import best_type, plan
from certimap.networks.max_elimination import MaxElimination, PackedStates
from certimap.networks.problem import FLOOR, Problem, Table, narrow_reach, to_integers, value_at


@pytest.fixture(params=["one pass", "mixed", "streamed"])
def small_limit(request, monkeypatch):
    """Which products are small: all, some, or none."""
    if request.param != "one pass":
        monkeypatch.setattr(elimination_plan, "SMALL_PRODUCT", 6 if request.param == "mixed" else 0)
        monkeypatch.setattr(elimination_plan, "SMALL_TABLE", 0)
        monkeypatch.setattr(elimination_plan, "LARGEST_ROW", 2 if request.param == "mixed" else 8)


@pytest.mark.parametrize("seed", range(60))
def test_maximum_and_assignment(seed, small_limit):
    problem = to_integers(random_problem(np.random.default_rng(seed)))
    found = MaxElimination(problem, plan(problem), workers=2)
    assert found.value == max(all_values(problem).values())
    states = found.assignment()
    variables = sorted(problem.sizes)
    assert value_at(problem, np.array([[states[v] for v in variables]]), variables)[0] == found.value


@pytest.mark.parametrize("seed", range(40))
def test_ranked_yields_every_possible_assignment_in_order(seed, small_limit):
    problem = to_integers(random_problem(np.random.default_rng(seed), max_variables=5))
    expected = sorted((v for v in all_values(problem).values() if v > FLOOR), reverse=True)
    found = MaxElimination(problem, plan(problem), keep_tables=True)
    ranked = list(itertools.islice(found.ranked(), len(expected) + 5))
    assert [value for value, _ in ranked] == expected
    variables = sorted(problem.sizes)
    points = np.array([[states[v] for v in variables] for _, states in ranked])
    assert len(np.unique(points, axis=0)) == len(points)
    np.testing.assert_array_equal(value_at(problem, points, variables), expected)


def test_many_zeros_at_one_state_stay_a_zero(small_limit):
    """Nine of the integers that stand for ln 0 would overflow, and come out as the best value of all."""
    zero_at_0 = Table((0,), np.array([-np.inf, -1.0]))
    tables = (*[zero_at_0] * 40, Table((0, 1), np.array([[0.0, -1.0], [-2.0, -3.0]])))
    problem = to_integers(Problem({0: 2, 1: 2}, frozenset({0, 1}), tables))
    found = MaxElimination(problem, plan(problem))
    assert found.assignment() == {0: 1, 1: 0}
    assert found.value == value_at(problem, np.array([[1, 0]]), [0, 1])[0]


def test_the_reach_follows_the_widest_table():
    impossible = Table((0,), np.full(2, -np.inf))
    wide = Table((0, 1), np.array([[-np.inf, -30.0], [2.0, 0.0]]))
    flat = Table((1,), np.array([1.0, 1.5]))
    sizes, query = {0: 2, 1: 2}, frozenset({0, 1})
    assert narrow_reach(Problem(sizes, query, ())) == 32.0
    assert narrow_reach(Problem(sizes, query, (flat, impossible))) == 32.0
    assert narrow_reach(Problem(sizes, query, (flat, wide))) == 4.0 * 32.0


@pytest.mark.parametrize("n_states", [1, 2, 3, 4, 5, 16, 17, 256, 257])
def test_states_of_few_bits_are_read_back(n_states):
    shape = (3, 5, 7)
    states = np.random.default_rng(n_states).integers(0, n_states, shape).astype(best_type(n_states))
    packed = PackedStates(states, n_states, (0, 1, 2))
    assert [packed.at(np.array(k)) for k in np.ndindex(*shape)] == states.ravel().tolist()
    assert PackedStates(states[0, 0, 0], n_states, ()).at(np.zeros(0, np.int64)) == states[0, 0, 0]
