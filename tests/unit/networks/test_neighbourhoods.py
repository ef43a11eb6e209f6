"""Moves of many variables at once: never worse, exact where one move takes all, and better than single changes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from problem_twin import random_problem

from certimap.core.control import Control
from certimap.networks.max_elimination import Neighbourhoods
from certimap.networks.problem import FLOOR, Problem, Table, components, to_integers, value_at


def value(problem: Problem, states: dict[int, int]) -> int:
    names = list(problem.sizes)
    return int(value_at(problem, np.array([[states[v] for v in names]]), names)[0])


@pytest.mark.parametrize("seed", range(20))
def test_moves_are_never_worse_and_small_problems_end_at_the_best(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = to_integers(random_problem(rng, max_variables=7, max_states=3, nuisance=0.0, zeros=0.3))
    points = np.array(list(itertools.product(*(range(n) for n in problem.sizes.values()))))
    values = value_at(problem, points, list(problem.sizes))
    possible = points[values > FLOOR]
    if not len(possible) or len(problem.sizes) < 2:
        return
    states = dict(zip(problem.sizes, possible[int(rng.integers(len(possible)))].tolist(), strict=True))
    moves, last = Neighbourhoods(problem, seed, Control()), value(problem, states)
    while not moves.is_finished:
        states = moves.better(states, moves.work + 1.0)
        assert value(problem, states) >= last
        last = value(problem, states)
    assert last <= values.max()
    if len(components(problem)) == 1:  # a move of all variables ends at the best
        assert last == values.max()


def lattice(side: int, n_states: int, rng: np.random.Generator) -> Problem:
    at = np.arange(side * side).reshape(side, side)
    ends = [*zip(at[1:].flat, at[:-1].flat, strict=True), *zip(at[:, 1:].flat, at[:, :-1].flat, strict=True)]
    tables = [Table((int(min(e)), int(max(e))), rng.normal() * np.eye(n_states)) for e in ends]
    tables += [Table((v,), rng.normal(size=n_states)) for v in range(side * side)]
    sizes = dict.fromkeys(range(side * side), n_states)
    return to_integers(Problem(sizes, frozenset(sizes), tuple(tables)))


def test_moves_better_what_no_single_change_does_and_the_same_seed_moves_alike() -> None:
    problem = lattice(16, 3, np.random.default_rng(1))
    states = dict.fromkeys(problem.sizes, 0)
    changed = True
    while changed:  # single changes
        changed = False
        for v in problem.sizes:
            best = max(range(3), key=lambda s, v=v: value(problem, states | {v: s}))
            if value(problem, states | {v: best}) > value(problem, states):
                states, changed = states | {v: best}, True
    start = value(problem, states)
    found: list[dict[int, int]] = []
    for _ in range(2):
        moves = Neighbourhoods(problem, 5, Control())
        found.append(moves.better(states, 2e7))
        assert moves.work < 3e7
    assert found[0] == found[1]
    assert value(problem, found[0]) > start
