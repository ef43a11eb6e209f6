"""Exact reductions of problems against enumeration."""

from __future__ import annotations

import itertools
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from problem_twin import all_values, random_problem

from certimap.networks.problem import HARD, components, in_nats, restrict, to_integers, value_at
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


def exact_best(problem):
    """The value of a problem with 50 digits, of the numbers that its tables hold; None for ln 0."""
    variables = [*sorted(problem.query), *sorted(problem.nuisance)]
    best = None
    for q in itertools.product(*(range(problem.sizes[v]) for v in sorted(problem.query))):
        logs = []
        for h in itertools.product(*(range(problem.sizes[v]) for v in sorted(problem.nuisance))):
            at = dict(zip(variables, [*q, *h], strict=True))
            entries = [float(t.log_values[tuple(at[v] for v in t.scope)]) for t in problem.tables]
            if min(entries, default=0.0) > -np.inf:
                logs.append(mpmath.fsum(mpmath.mpf(x) for x in [*entries, float(problem.constant)]))
        if logs:
            value = logs[0] if len(logs) == 1 else mpmath.log(mpmath.fsum(mpmath.exp(x) for x in logs))
            best = value if best is None else max(best, value)
    return best


@pytest.mark.parametrize("nuisance", [0.0, 0.5])
def test_simplify_is_off_by_no_more_than_it_says(nuisance):
    """To the last digit: what tables and constant lose is within `log_slack`, at numbers of all sizes."""
    n_rounded = 0
    with mpmath.workdps(50):
        for seed in range(40):
            rng = np.random.default_rng([5, seed])
            problem = random_problem(rng, max_variables=5, max_states=3, nuisance=nuisance)
            size = float(rng.choice([0.1, 1.0, 300.0]))
            problem = replace(
                problem,
                tables=tuple(t._replace(log_values=t.log_values * size) for t in problem.tables),
                log_slack=0.0,
            )
            best = exact_best(problem)
            small = simplify(problem).problem
            left = exact_best(small)
            assert (best is None) == (left is None)
            if best is not None:
                assert abs(left - best) <= mpmath.mpf(small.log_slack)
                n_rounded += left != best
    assert n_rounded > 10


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


def test_unary_tables_of_large_problems_join_others(monkeypatch):
    """Dual ascent closes large problems several times as fast on the joined tables; every value stays."""
    rng = np.random.default_rng(3)
    problem = random_problem(rng, max_variables=6)
    states = np.array(list(itertools.product(*(range(problem.sizes[v]) for v in sorted(problem.sizes)))))
    assert sum_out(problem, 2**20) is problem
    monkeypatch.setattr("certimap.networks.simplify.MANY_TABLES", 0)
    joined = sum_out(problem, 2**20)
    scopes = [set(t.scope) for t in joined.tables]
    assert not any(a < b for a in scopes for b in scopes)
    values = [value_at(p, states, sorted(problem.sizes)) for p in (problem, joined)]
    np.testing.assert_allclose(values[0], values[1], atol=1e-9)
