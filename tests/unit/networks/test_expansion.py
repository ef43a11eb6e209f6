"""Expansion moves: no move to one state betters what they return, and attracting states end near the best."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from certimap.networks.problem import FLOOR, HARD, Problem, Table, value_at
from certimap.solvers.networks import hbfs
from certimap.solvers.networks.hbfs import expanded


def potts(seed: int, n: int, n_states: int, *, attracts: bool, zeros: bool = False) -> Problem:
    """Return variables in a ring with chords, whose pairs agree or differ by integer weights."""
    r = np.random.default_rng(seed)
    tables = [Table((v,), r.integers(-20, 20, n_states)) for v in range(n)]
    for v in range(n):
        for u in ((v + 1) % n, (v + 3) % n):
            weight = int(r.integers(0 if attracts else -15, 15))
            logs = weight * np.eye(n_states, dtype=np.int64)
            if zeros:
                logs = np.where((r.random(logs.shape) < 0.2) & (logs == 0), HARD, logs)
            tables.append(Table((v, u), logs))
    return Problem(dict.fromkeys(range(n), n_states), frozenset(range(n)), tuple(tables), 3)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("attracts", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
def test_no_move_to_one_state_is_better(
    seed: int, attracts: bool, zeros: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hbfs, "FEWEST_VARIABLES", 2)
    n = 7
    problem = potts(seed, n, 3, attracts=attracts, zeros=zeros)
    states = expanded(problem)
    if states is None:
        assert zeros
        return
    found = np.array([states[v] for v in range(n)])
    value = int(value_at(problem, found[None], range(n))[0])
    assert value > FLOOR
    points = np.array(list(itertools.product(range(3), repeat=n)))
    values = value_at(problem, points, range(n))
    if attracts and not zeros:
        for label in range(3):
            near = np.all((points == found) | (points == label), axis=1)
            assert int(values[near].max()) == value
        best = int(values.max())
        assert value >= best - 0.1 * abs(best)


def test_other_problems_are_left_alone() -> None:
    assert expanded(potts(0, 40, 2, attracts=True)) is None
    assert expanded(potts(0, 12, 3, attracts=True)) is None
    wide = Problem(
        dict.fromkeys(range(40), 3), frozenset(range(40)), (Table((0, 1, 2), np.zeros((3, 3, 3), np.int64)),)
    )
    assert expanded(wide) is None
