"""Expansion moves: no move to one state betters what they return, and attracting states end near the best."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import certimap as cm
from certimap.networks import expansions
from certimap.networks.expansions import Expansions
from certimap.networks.problem import FLOOR, HARD, Problem, Table, value_at
from certimap.solvers.networks import parts


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
    monkeypatch.setattr(expansions, "FEWEST_VARIABLES", 2)
    n = 7
    problem = potts(seed, n, 3, attracts=attracts, zeros=zeros)
    moves = Expansions.of(problem)
    assert moves is not None
    states = moves.better(dict.fromkeys(range(n), seed % 3))
    assert moves.work >= moves.least
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
    assert Expansions.of(potts(0, 40, 2, attracts=True)) is None
    assert Expansions.of(potts(0, 12, 3, attracts=True)) is None
    wide = Problem(
        dict.fromkeys(range(40), 3), frozenset(range(40)), (Table((0, 1, 2), np.zeros((3, 3, 3), np.int64)),)
    )
    assert Expansions.of(wide) is None


def test_moves_better_what_bounds_suggest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a grid of attracting states that is far from solved after some nodes, they find a better assignment."""
    r = np.random.default_rng(3)
    n, k = 24, 5
    factors = [cm.Factor.from_log((v,), r.normal(size=k)) for v in range(n * n)]
    for v in range(n * n):
        for u in [v + 1] * (v % n < n - 1) + [v + n] * (v < n * n - n):
            factors.append(cm.Factor.from_log((v, u), abs(r.normal()) * (2.0 * np.eye(k) - 1.0)))
    domain = cm.Domain([cm.Categorical(f"v{v}", tuple(range(k))) for v in range(n * n)])
    model = cm.MarkovNetwork(domain, factors)

    def answer() -> tuple[float, float]:
        found = cm.map_query(model, solver="hbfs", quick_entries=0, max_entries=0, max_nodes=1, delta=0.0, rng=0)
        assert found.log_joint is not None
        assert found.log_joint_upper_bound is not None
        return found.log_joint, found.log_joint_upper_bound

    monkeypatch.setattr(parts, "MAX_ASCENTS", 3)
    with_moves, _ = answer()

    def nothing(problem: Problem) -> None:
        return None

    monkeypatch.setattr(Expansions, "of", nothing)
    without, bound = answer()
    assert without + 0.5 < with_moves < bound
