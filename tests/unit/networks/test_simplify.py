"""Exact reductions of problems against enumeration."""

from __future__ import annotations

import numpy as np
import pytest
from problem_twin import all_values, random_problem

from certimap.networks.integers import in_nats, to_integers
from certimap.networks.problem import HARD, components, restrict, value_at
from certimap.networks.simplify import simplify, sum_out


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("nuisance", [0.0, 0.4])
def test_simplify_keeps_the_maximum_and_decodes_to_it(seed, nuisance):
    problem = random_problem(np.random.default_rng(seed), nuisance=nuisance)
    values = all_values(problem)
    best = max(values.values())
    small = simplify(problem)
    left = all_values(small.problem)
    top = max(left, key=left.get)
    assert left[top] == pytest.approx(best, abs=1e-9)
    assert abs(left[top] - best) <= small.problem.log_slack + 1e-12
    states = small.decode(dict(zip(sorted(small.problem.query), top, strict=True)))
    assert values[tuple(states[v] for v in sorted(problem.query))] == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_integers_bound_every_value_and_reduce_exactly(seed):
    problem = random_problem(np.random.default_rng(seed))
    integers = to_integers(problem)
    values = all_values(problem)
    variables = sorted(problem.sizes)
    points = np.array(list(values))
    exact = value_at(integers, points, variables)
    for value, unit_value in zip(values.values(), exact, strict=True):
        upper = in_nats(int(unit_value), integers.unit)
        assert upper >= value
        assert upper == value or upper - value < 1e-10
    small = simplify(integers)
    assert isinstance(small.problem.constant, int)
    best = max(int(x) for x in exact)
    assert int(max(all_values(small.problem).values())) == best


@pytest.mark.parametrize("seed", range(40))
def test_keep_all_keeps_every_possible_assignment(seed):
    problem = random_problem(np.random.default_rng(seed), max_variables=6)
    values = {q: v for q, v in all_values(problem).items() if v > -np.inf}
    small = simplify(problem, keep_all=True)
    found = {}
    for q, value in all_values(small.problem).items():
        states = small.decode(dict(zip(sorted(small.problem.query), q, strict=True)))
        found[tuple(states[v] for v in sorted(problem.query))] = value
    for q, value in values.items():
        assert found[q] == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_sum_out_keeps_every_value(seed):
    problem = random_problem(np.random.default_rng(seed), nuisance=0.5)
    summed = sum_out(problem, 2**20)
    assert not summed.nuisance & frozenset(v for t in summed.tables for v in t.scope)
    before, after = all_values(problem), all_values(summed)
    for q, value in before.items():
        assert (
            after[q] == pytest.approx(value, abs=1e-9 + problem.log_slack)
            if value > -np.inf
            else after[q] == value
        )


@pytest.mark.parametrize("seed", range(20))
def test_components_and_restriction(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng)
    best = max(all_values(problem).values())
    parts = components(problem)
    assert sum(max(all_values(p).values()) for p in parts) + problem.constant == pytest.approx(best)
    v = next(iter(problem.sizes))
    keep = np.flatnonzero(rng.random(problem.sizes[v]) < 0.7)
    if len(keep):
        inside = restrict(problem, {v: keep})
        i = sorted(problem.query).index(v)
        expected = max(x for q, x in all_values(problem).items() if q[i] in keep)
        assert max(all_values(inside).values()) == pytest.approx(expected)


def test_sums_of_many_zeros_stay_in_range():
    problem = random_problem(np.random.default_rng(1), zeros=0.9)
    assert value_at(to_integers(problem), np.zeros((1, len(problem.sizes)), int), sorted(problem.sizes))[0] >= HARD
