"""Bounds with one variable for the policy of a decision, against enumeration: zeros, constants, boxes, orders."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference.problem_twin import all_values

from certimap.core.control import Control
from certimap.networks.choices import ChoiceBounds, choices_of, joined, order_of_choices
from certimap.networks.mixed_tree import Memory, MixedTree
from certimap.networks.problem import Problem, Table, restrict


def decisions(rng: np.random.Generator, n_decisions: int, n_seen: int, zeros: float) -> Problem:
    """Return a problem in which hidden variables decide by policies after others that they see, in turn."""
    sizes: dict[int, int] = {}
    query, tables = set[int](), list[Table]()

    def new(n: int) -> int:
        sizes[len(sizes)] = n
        return len(sizes) - 1

    hidden = [new(2)]
    for _ in range(n_decisions):
        seen = [new(2) for _ in range(n_seen)]
        n_actions = 2 if n_decisions > 1 else int(rng.integers(2, 4))
        act, outcome = new(n_actions), new(2)
        for v in seen:
            tables.append(Table((hidden[-1], v), rng.normal(size=(sizes[hidden[-1]], sizes[v]))))
        for state in product(*(range(sizes[v]) for v in seen)):
            rule = new(n_actions)
            query.add(rule)
            values = np.full((*(sizes[v] for v in seen), n_actions, n_actions), float(rng.normal()))
            own = rng.normal(size=(n_actions, n_actions))
            own[np.eye(n_actions) < 1] -= rng.exponential()
            if rng.random() < zeros:
                own[np.eye(n_actions) < 1] = -np.inf
            values[state] = own
            at = rng.permutation(n_seen + 2)
            scope = [*seen, act, rule]
            tables.append(Table(tuple(scope[i] for i in at), np.transpose(values, at)))
        tables.append(Table((hidden[-1], act, outcome), 2.0 * rng.normal(size=(2, n_actions, 2))))
        hidden.append(outcome)
    tables.append(Table((hidden[0], hidden[-1]), rng.normal(size=(2, 2))))
    return Problem(sizes, frozenset(query), tuple(tables), 0.5)


def bounds_of(problem: Problem) -> ChoiceBounds:
    return ChoiceBounds(problem, Control(), 1, Memory(), math.inf)


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 2**32 - 1), st.integers(1, 2), st.integers(1, 2), st.sampled_from([0.0, 0.5, 1.0]))
def test_bounds_hold_in_boxes(seed: int, n_decisions: int, n_seen: int, zeros: float) -> None:
    rng = np.random.default_rng(seed)
    problem = decisions(rng, n_decisions, 1 if n_decisions > 1 else n_seen, zeros)
    bounds = bounds_of(problem)
    assert len(bounds.choices) == n_decisions
    for row in range(2):
        keep = {
            v: np.sort(rng.choice(n, int(rng.integers(1, n + 1)), replace=False)).astype(np.int64)
            for v, n in problem.sizes.items()
            if v in problem.query and row and rng.random() < 0.4
        }
        box = restrict(problem, {v: own for v, own in keep.items() if len(own) < problem.sizes[v]})
        value = max(all_values(box).values())
        assert bounds.bound(box, 30.0, row) >= value
        assert bounds.bound(box, 30.0) >= value
        for limit in (0.0, 2.0, 4.0):
            order = order_of_choices(bounds_of(problem)._whole, bounds.choices, limit, row + 1)
            assert bounds._by(joined(box, bounds.choices), order) >= value


def test_one_decision_that_sees_all_is_bounded_by_its_value() -> None:
    rng = np.random.default_rng(0)
    problem = decisions(rng, 1, 2, 1.0)
    value = max(all_values(problem).values())
    found = bounds_of(problem).bound(problem, 30.0, 0)
    assert value <= found <= value + 1e-9
    plain = MixedTree(problem, [*sorted(problem.query), *sorted(problem.nuisance)]).bounds().log_total
    assert plain > value + 0.1


@pytest.mark.parametrize("seed", range(4))
def test_a_choice_goes_before_all_that_it_may_depend_on(seed: int) -> None:
    problem = decisions(np.random.default_rng(seed), 2, 2, 0.5)
    choices = choices_of(problem)
    assert choices
    whole = joined(problem, choices)
    for row in range(4):
        order = order_of_choices(whole, choices, 3.0, row).order
        assert sorted(order) == sorted(whole.sizes)
        for choice in choices:
            own = next(v for v in choice.members if v in whole.query)
            assert all(order.index(own) < order.index(v) for v in choice.seen)


def test_variables_that_matter_in_the_same_state_stay_apart() -> None:
    problem = decisions(np.random.default_rng(1), 1, 1, 0.5)
    assert choices_of(problem)
    k = next(k for k, t in enumerate(problem.tables) if not problem.query.isdisjoint(t.scope))
    noisy = Table(
        problem.tables[k].scope, np.random.default_rng(2).normal(size=problem.tables[k].log_values.shape)
    )
    changed = Problem(problem.sizes, problem.query, (*problem.tables[:k], noisy, *problem.tables[k + 1 :]), 0.0)
    own = problem.query.intersection(noisy.scope)
    assert all(own.isdisjoint(choice.members) for choice in choices_of(changed))
