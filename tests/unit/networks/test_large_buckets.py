"""Elimination from large tables, with limits so low that small ones are large: against enumeration."""

from __future__ import annotations

import math

import numpy as np
import pytest
from problem_twin import all_values, random_problem

from certimap.networks import elimination_plan, streamed
from certimap.networks.elimination_plan import eliminated, plan
from certimap.networks.max_elimination import MaxElimination
from certimap.networks.problem import Problem, Table, to_integers
from certimap.networks.streamed import StreamedSum
from certimap.networks.sum_elimination import sum_all


@pytest.fixture(params=[0, 5])
def lowered(request, monkeypatch):
    """Let most products be large, some rows short, and several tasks share the blocks."""
    for module in (elimination_plan, streamed):
        monkeypatch.setattr(module, "SMALL_PRODUCT", request.param)
    monkeypatch.setattr(elimination_plan, "SMALL_TABLE", request.param)
    monkeypatch.setattr(elimination_plan, "LARGEST_ROW", 4 if request.param else 8)
    monkeypatch.setattr(elimination_plan, "LEAST_ROW", 2)
    monkeypatch.setattr(elimination_plan, "ROWS_PER_TASK", 8)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("workers", [1, 2])
def test_sums_of_large_products(seed, workers, lowered):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, max_variables=7)
    scaled = tuple(Table(t.scope, t.log_values + rng.choice([0.0, 100.0, -60.0])) for t in problem.tables)
    problem = Problem(problem.sizes, frozenset(problem.sizes), scaled, problem.constant)
    values = np.array(list(all_values(problem).values()))
    true = float(np.logaddexp.reduce(values))
    order = plan(problem)
    assert sum_all(problem, order, workers=workers).log_value == pytest.approx(true, abs=1e-9)
    total, each = StreamedSum(problem, order, workers=workers).log_each()
    assert total == pytest.approx(true, abs=1e-9)
    for v in problem.sizes:
        assert float(np.logaddexp.reduce(each[v])) == pytest.approx(true, abs=1e-9)


@pytest.mark.parametrize("side", [3, 5])
def test_grids_whose_messages_take_each_others_place(side, lowered):
    """A message of a band order has the size of the one that it is made of, and is written over it."""
    rng = np.random.default_rng(side)
    at = np.arange(3 * side).reshape(3, side)
    pairs = [*zip(at[1:].flat, at[:-1].flat, strict=True), *zip(at[:, 1:].flat, at[:, :-1].flat, strict=True)]
    tables = tuple(Table((int(a), int(b)), rng.normal(size=(2, 2))) for a, b in pairs)
    problem = Problem(dict.fromkeys(at.flat, 2), frozenset(at.ravel().tolist()), tables)
    values = np.array(list(all_values(problem).values()))
    order = plan(problem)
    alone, shared = (sum_all(problem, order, workers=k).log_value for k in (1, 2))
    assert alone == shared == pytest.approx(float(np.logaddexp.reduce(values)), abs=1e-10)
    whole = to_integers(problem)
    found = MaxElimination(whole, order, workers=2)
    assert found.value * whole.unit == pytest.approx(values.max(), abs=1e-10)
    states = found.assignment()
    at_best = sum(float(t.log_values[tuple(states[v] for v in t.scope)]) for t in tables)
    assert at_best == pytest.approx(values.max(), abs=1e-10)


@pytest.mark.parametrize("seed", range(10))
def test_any_axis_goes_and_any_order_is_read(seed, lowered):
    """Views in any memory order, a variable on any axis, new variables: the same as NumPy's product."""
    rng = np.random.default_rng(seed)
    sizes = {v: int(rng.integers(2, 4)) for v in range(5)}
    v = int(rng.integers(5))
    tables = []
    for scope in (
        (0, 1, 2, 3, 4)[: rng.integers(2, 6)],
        (3, v) if v != 3 else (3,),
        (4, v) if v != 4 else (4,),
        (v,),
    ):
        scope = tuple(rng.permutation(sorted({*scope, v})).tolist())
        values = rng.random([sizes[u] for u in scope][::-1]).T
        tables.append(Table(scope, values))
    separator = sorted({u for t in tables for u in t.scope} - {v})
    letters = [*("".join("abcde"[u] for u in t.scope) for t in tables)]
    before = [t.log_values.copy() for t in tables]
    found = eliminated(v, separator, tables, sizes, 2, lambda: None, factor=2.0)
    target = "".join("abcde"[u] for u in found.table.scope)
    whole = 2.0 * np.einsum(",".join(letters) + "->" + target, *before)
    np.testing.assert_allclose(found.table.log_values, whole, rtol=1e-12)
    assert (found.top, found.least) == (found.table.log_values.max(), found.table.log_values.min())
    assert all(map(np.array_equal, before, (t.log_values for t in tables)))
    assert math.prod(found.table.log_values.shape) == math.prod(sizes[u] for u in separator)
