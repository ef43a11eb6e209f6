"""Dual ascent, depth-first search and local search on integer costs, against their slow twins."""

import costs_twin as twin
import numpy as np
import pytest
from problem_twin import random_problem

from certimap.networks.costs import Costs
from certimap.networks.kernels.dual_ascent import SweepRule, ascend
from certimap.networks.kernels.searches import FINISHED, FOUND, kick_search, replay, search, tabu_search
from certimap.networks.problem import HARD, to_integers


def random_costs(rng, **options):
    """Return costs laid out for the kernels, and the same as plain arrays."""
    problem = to_integers(random_problem(rng, max_variables=6, max_states=3, nuisance=0.0, **options))
    costs = Costs(problem, [int(v) for v in rng.permutation(sorted(problem.sizes))])
    net = costs.arrays
    n = len(net.n_states)
    unary = {i: net.unary[net.offset[i] : net.offset[i + 1]].copy() for i in range(n)}
    tables = []
    for t in range(len(net.table_ptr) - 1):
        scope = tuple(int(v) for v in net.scope[net.scope_ptr[t] : net.scope_ptr[t + 1]])
        values = net.tables[net.table_ptr[t] : net.table_ptr[t + 1]]
        tables.append((scope, values.reshape([int(net.n_states[v]) for v in scope]).copy()))
    return costs, tables, unary


def no_incumbent(costs):
    incumbent = np.zeros(len(costs.variables) + 1, np.int64)
    incumbent[0] = HARD
    return incumbent


@pytest.mark.parametrize("seed", range(40))
def test_costs_move_as_the_twin_moves_them(seed):
    rng = np.random.default_rng(seed)
    costs, tables, unary = random_costs(rng)
    values = twin.all_values(tables, unary)
    level = HARD if seed % 2 else int(np.quantile(list(values.values()), 0.7))
    dual, slow, net = costs.dual(), twin.DualTwin(tables, unary), costs.arrays
    for _ in range(3):
        failed = ascend(net, dual, SweepRule(1, -1.0, level, -1, False, no_incumbent(costs)))
        assert slow.sweep(level) == failed
        assert int(dual.bound[0]) == slow.bound
        if failed >= 0:
            assert max(values.values()) <= level
            return
        for i, kept in slow.alive.items():
            start = net.offset[i]
            assert dual.alive[start : start + dual.n_alive[i]].tolist() == kept
            assert dual.unary[start + np.array(kept)].tolist() == slow.unary[i][kept].tolist()
            assert bool(dual.is_done[i]) == slow.done[i]
        for t, (scope, table) in enumerate(slow.tables):
            at = np.ix_(*(slow.alive[v] for v in scope))
            fast = dual.tables[net.table_ptr[t] : net.table_ptr[t + 1]].reshape(table.shape)
            assert np.array_equal(fast[at], table[at])
        assert max(values.values()) <= slow.bound


def run_search(costs, threshold, margin, incumbent, reports_leaves, max_backtracks=2**40):
    """Search to the end; return the leaves that were reported."""
    dual, stack = costs.dual(), costs.stack(len(costs.arrays.unary) + 1)
    leaf, leaves = np.zeros(len(incumbent), np.int64), []
    while True:
        rule = SweepRule(2, 0.05, threshold, margin, not reports_leaves, incumbent)
        status = search(costs.arrays, dual, stack, max_backtracks, 50, 2**50, rule, leaf)
        if status == FOUND:
            leaves.append((int(leaf[0]), tuple(leaf[1:].tolist())))
        elif status == FINISHED:
            return leaves


@pytest.mark.parametrize("seed", range(30))
def test_depth_first_search_finds_what_enumeration_finds(seed):
    costs, tables, unary = random_costs(np.random.default_rng(100 + seed))
    values = twin.all_values(tables, unary)
    incumbent = no_incumbent(costs)
    assert run_search(costs, HARD, 0, incumbent, reports_leaves=False) == []
    assert int(incumbent[0]) == max(values.values())
    assert values[tuple(incumbent[1:].tolist())] == max(values.values())
    level = int(np.quantile(list(values.values()), 0.5))
    leaves = run_search(costs, level, 0, no_incumbent(costs), reports_leaves=True)
    assert sorted(leaves) == sorted((v, states) for states, v in values.items() if v > level)


@pytest.mark.parametrize("seed", range(30))
def test_tabu_search_without_tabus_is_steepest_ascent(seed):
    rng = np.random.default_rng(200 + seed)
    costs, tables, unary = random_costs(rng, zeros=0.0, ties=False)
    if any((values <= twin.FLOOR).any() for _, values in tables):
        costs, tables, unary = random_costs(rng, zeros=0.0, ties=False)
    soft = costs.softened()
    states = (rng.random(len(unary)) * costs.arrays.n_states).astype(np.int64)
    start, incumbent = states.copy(), no_incumbent(costs)
    tabu_search(costs.arrays, soft, states, 8, 0, np.uint64(seed), incumbent)
    if not any((values <= twin.FLOOR).any() for _, values in tables):
        found, point = twin.steepest(tables, unary, start.tolist(), 8)
        assert int(incumbent[0]) == found
        assert twin.value(tables, unary, incumbent[1:].tolist()) == twin.value(tables, unary, point)
    incumbent = no_incumbent(costs)
    tabu_search(costs.arrays, soft, start, 40, 2, np.uint64(seed), incumbent)
    if incumbent[0] > HARD:
        assert twin.value(tables, unary, incumbent[1:].tolist()) == int(incumbent[0])


@pytest.mark.parametrize("seed", range(30))
def test_kicks_end_where_no_single_change_helps(seed):
    rng = np.random.default_rng(300 + seed)
    costs, tables, unary = random_costs(rng)
    net, dual = costs.arrays, costs.dual()
    soft = costs.softened()
    states = (rng.random(len(unary)) * net.n_states).astype(np.int64)
    start, incumbent = states.copy(), no_incumbent(costs)
    kick_search(net, soft, dual, states, 10**6, np.uint64(seed), incumbent)
    if incumbent[0] > HARD:
        assert twin.value(tables, unary, incumbent[1:].tolist()) == int(incumbent[0])
    softened = [
        (scope, soft.tables[net.table_ptr[t] : net.table_ptr[t + 1]].reshape(values.shape))
        for t, (scope, values) in enumerate(tables)
    ]
    soft = {i: soft.unary[net.offset[i] : net.offset[i + 1]] for i in unary}
    here = twin.value(softened, soft, states.tolist())
    assert here >= twin.value(softened, soft, start.tolist())
    for v, own in soft.items():
        for s in range(len(own)):
            moved = states.copy()
            moved[v] = s
            assert twin.value(softened, soft, moved.tolist()) <= here


@pytest.mark.parametrize("seed", range(40))
def test_decisions_propagate_through_zeros_as_in_the_twin(seed):
    rng = np.random.default_rng(seed)
    costs, tables, unary = random_costs(rng, zeros=0.35)
    net, dual = costs.arrays, costs.dual()
    n = len(net.n_states)
    alive = {i: list(range(int(net.n_states[i]))) for i in range(n)}
    before = twin.supported(tables, unary, alive)
    if not all(before.values()):
        return
    for i, kept in before.items():
        dual.alive[net.offset[i] : net.offset[i] + len(kept)] = kept
        dual.n_alive[i] = len(kept)
    v = int(rng.integers(n))
    s = int(rng.choice(before[v]))
    one = np.array([v]), np.array([s]), np.zeros(1, np.bool_)
    possible = replay(net, dual, *one, SweepRule(0, 0.0, HARD, -1, False, no_incumbent(costs)))
    after = twin.supported(tables, unary, before | {v: [s]})
    assert possible == all(after.values())
    for i, kept in after.items() if possible else ():
        assert dual.alive[net.offset[i] : net.offset[i] + dual.n_alive[i]].tolist() == kept
