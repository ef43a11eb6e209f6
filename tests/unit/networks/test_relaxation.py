"""Split trees bound every box from above, whatever their shifts and weights; unsplit ones are exact."""

import math

import numpy as np
import pytest
from problem_twin import random_problem, value_array

from certimap.core.control import TimeUp
from certimap.errors import TooLarge
from certimap.networks.relaxation import split_tree
from certimap.networks.relaxation.decoding import decode, decode_possible
from certimap.networks.relaxation.split_tree import PassClock, SplitTree, exact_tree, limit, nuisance_first, split
from certimap.networks.relaxation.tighten import TRIED, QuasiNewton, Tightener, least


def relaxations(rng, n):
    """Yield problems with nuisance, their values by enumeration, and trees of i-bounds 1 to 3 and none."""
    for _ in range(n):
        problem = random_problem(rng, max_variables=7, max_states=3, nuisance=float(rng.choice([0.0, 0.4, 0.7])))
        if not problem.query:
            continue
        query, values = value_array(problem)
        for i_bound in (1, 2, 3, None):
            if rng.random() < 0.7:
                order = nuisance_first(problem)
            else:
                order = [int(v) for v in rng.permutation(list(problem.sizes))]
            yield problem, query, values, SplitTree.of(problem, order, limit(problem.sizes, i_bound=i_bound))


def random_masks(rng, tree, query, n):
    """Return masks of a tree's states in which hidden variables keep all of theirs."""
    masks = np.ones((n, int(tree.arrays.state_ptr[-1])), np.uint8)
    for b in range(1, n):
        for v in query:
            i = tree.variables.index(v)
            own = masks[b, tree.arrays.state_ptr[i] : tree.arrays.state_ptr[i + 1]]
            own[:] = rng.random(len(own)) < (0.7 if b % 2 else 0.01)
            if not own.any():
                own[rng.integers(len(own))] = 1
    return masks


def inside(tree, mask, query, values, held=None):
    """Return the largest value within a mask, with one (variable, state) held."""
    allowed = []
    for v in query:
        i = tree.variables.index(v)
        own = np.flatnonzero(mask[tree.arrays.state_ptr[i] : tree.arrays.state_ptr[i + 1]])
        allowed.append(np.array([held[1]]) if held is not None and held[0] == v else own)
    return float(values[np.ix_(*allowed)].max())


def unsettle(rng, tree):
    """Give a tree tightened, random, or no shifts and weights."""
    kind = rng.integers(3)
    tightener = Tightener(tree)
    if kind == 1:
        for temperature in (0.3, 0.05):
            tightener.run(temperature, 8)
    elif kind == 2 and tightener.n_parameters:
        tightener.set_parameters(rng.normal(size=tightener.n_parameters))


@pytest.mark.parametrize("seed", range(4))
def test_bounds_of_boxes_and_states_hold(seed):
    rng = np.random.default_rng(seed)
    for _, query, values, tree in relaxations(rng, 25):
        unsettle(rng, tree)
        masks = random_masks(rng, tree, query, 4)
        bounds, each = tree.probe(masks)
        for b, mask in enumerate(masks):
            best = inside(tree, mask, query, values)
            assert bounds[b] >= best
            assert tree.bound(mask) == pytest.approx(bounds[b], abs=1e-9)
            if tree.is_exact and best > -np.inf:
                assert bounds[b] == pytest.approx(best, abs=1e-9)
            for v in query:
                i = tree.variables.index(v)
                for state in np.flatnonzero(mask[tree.arrays.state_ptr[i] : tree.arrays.state_ptr[i + 1]]):
                    own = inside(tree, mask, query, values, (v, state))
                    assert each[b, tree.arrays.state_ptr[i] + state] >= own
                    if tree.is_exact and own > -np.inf:
                        assert each[b, tree.arrays.state_ptr[i] + state] == pytest.approx(own, abs=1e-9)


def test_exact_trees_decode_a_best_assignment():
    rng = np.random.default_rng(10)
    n_exact = 0
    for _, query, values, tree in relaxations(rng, 40):
        if values.max() == -np.inf:
            continue
        state = decode(tree)
        value = values[tuple(state[v] for v in query)]
        if tree.is_exact:
            n_exact += 1
            assert value == pytest.approx(values.max(), abs=1e-9)
    assert n_exact > 30


def test_possible_assignments_are_read_off_where_decoding_fails():
    """Guided by bounds, with zeros propagated: never an impossible assignment, never outside of the mask."""
    rng = np.random.default_rng(21)
    n_found = n_missed = n_saved = 0
    for _ in range(300):
        problem = random_problem(rng, max_variables=8, max_states=3, nuisance=0.3, zeros=0.6)
        query, values = value_array(problem)
        tree = SplitTree.of(problem, nuisance_first(problem), limit(problem.sizes, i_bound=1))
        mask = random_masks(rng, tree, query, 2)[1]
        found = decode_possible(tree, mask, PassClock(), lambda: False)
        if found is None:
            n_missed += inside(tree, mask, query, values) > -np.inf
            continue
        n_found += 1
        assert values[tuple(found[v] for v in query)] > -np.inf
        assert all(mask[tree.arrays.state_ptr[tree.variables.index(v)] + found[v]] for v in query)
        plain = decode(tree, mask)
        n_saved += values[tuple(plain[v] for v in query)] == -np.inf
    assert n_found > 20
    assert n_saved > 3
    assert n_missed < 3


def test_slopes_are_those_of_differences():
    rng = np.random.default_rng(3)
    checked = 0
    for problem, _, _, tree in relaxations(rng, 12):
        tightener = Tightener(tree)
        if not tightener.n_parameters or tree.bound() == -np.inf:
            continue
        x = rng.normal(size=tightener.n_parameters) * 0.3
        _, slope = tightener.value(x, 0.2)
        for i in rng.integers(len(x), size=3):
            step = np.zeros(len(x))
            step[i] = 1e-5
            up, down = tightener.value(x + step, 0.2)[0], tightener.value(x - step, 0.2)[0]
            assert slope[i] == pytest.approx((up - down) / 2e-5, abs=1e-5)
            checked += 1
        assert problem.sizes
    assert checked > 20


def test_tightening_never_raises_the_smoothed_bound_and_helps():
    rng = np.random.default_rng(4)
    gains = []
    for _, _, values, tree in relaxations(rng, 25):
        if not tree.is_split or values.max() == -np.inf:
            continue
        before = tree.bound()
        tightener = Tightener(tree)
        for temperature in (0.3, 0.1, 0.03, 0.01):
            tightener.run(temperature, 30)
        gains.append(before - tree.bound())
    assert len(gains) > 10
    assert np.mean(gains) > 0.1


def test_quasi_newton_finds_the_minimum_of_a_quadratic():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(30, 30))
    matrix, target = root @ root.T + np.eye(30), rng.normal(size=30)

    def objective(x):
        return float(0.5 * (x - target) @ matrix @ (x - target)), matrix @ (x - target)

    search = QuasiNewton(np.zeros(30), *objective(np.zeros(30)))
    for _ in range(200):
        if not search.step(objective, 1e-14):
            break
    assert np.allclose(search.x, target, atol=1e-4)


def test_regions_respect_the_bound_on_their_scope():
    rng = np.random.default_rng(5)
    for _ in range(30):
        problem = random_problem(rng, max_variables=8, nuisance=0.5)
        widest = max((len(t.scope) for t in problem.tables), default=0)
        for i_bound in (1, 2, 4):
            for region in split(problem, nuisance_first(problem), limit(problem.sizes, i_bound=i_bound)):
                assert len(region.scope) <= max(i_bound + 1, widest)


def test_a_tree_beyond_the_memory_is_refused_before_it_is_built():
    problem = random_problem(np.random.default_rng(6), max_variables=8)
    with pytest.raises(TooLarge, match="split tree"):
        SplitTree.of(problem, nuisance_first(problem), limit(problem.sizes), max_bytes=8)


def late(*_, **__):
    """Run out of time."""
    raise TimeUp("bounding")


def test_of_several_orders_the_one_that_bounds_least_is_taken():
    rng, n_second, n_turned = np.random.default_rng(3), 0, 0
    for _ in range(20):
        problem = random_problem(rng, max_variables=8, max_states=3, nuisance=0.3)
        fits, clock = limit(problem.sizes, 4.0), PassClock()
        orders = [list(rng.permutation(list(problem.sizes))) for _ in range(3)]
        orders = [sorted(order, key=lambda v: v in problem.query) for order in orders]
        trees = [SplitTree.of(problem, order, fits) for order in orders]
        taken = least(problem, orders, fits, math.inf, clock)[0].tree
        bounds = [tree.bound() for tree in trees]
        assert taken.bound() == min(bounds) or not trees[bounds.index(taken.bound())].is_split
        n_second += bounds.index(taken.bound()) > 0
        tried, ranked = least(problem, orders, fits, math.inf, clock, 3)
        for tree in trees:
            Tightener(tree).run(TRIED, 3)
        if all(tree.is_split for tree in trees):
            after = [tree.bound() for tree in trees]
            assert [after[k] for k in ranked] == sorted(after)
            assert tried.tree.bound() == min(after)
            n_turned += after.index(min(after)) != bounds.index(min(bounds))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(SplitTree, "bound", late)
            first = least(problem, orders, fits, math.inf, clock)[0].tree
        assert first.bound() == bounds[0]
    assert n_second > 1
    assert n_turned > 0


@pytest.mark.parametrize("seed", range(8))
def test_orders_of_hopeless_cliques_are_not_followed(seed, monkeypatch):
    problem = random_problem(np.random.default_rng(seed), nuisance=0.5)
    monkeypatch.setattr(split_tree, "HOPELESS_CLIQUES", 1.0)
    order = nuisance_first(problem)
    assert sorted(order) == sorted(problem.sizes)
    assert [v in problem.query for v in order] == sorted(v in problem.query for v in order)
    n_hidden = len(problem.nuisance)
    assert {*order[:n_hidden]} == problem.nuisance
    _, values = value_array(problem)
    assert exact_tree(problem, 2.0**20).bound() == pytest.approx(values.max(), abs=1e-9)


def test_a_tree_that_is_too_large_is_left_out():
    problem = random_problem(np.random.default_rng(3), max_variables=8, nuisance=0.5)
    regions = split(problem, nuisance_first(problem), lambda scope: True)
    sizes = [math.prod(problem.sizes[v] for v in region.scope) for region in regions]
    assert exact_tree(problem, sum(sizes) + 0.5) is not None
    assert exact_tree(problem, sum(sizes) - 0.5) is None
    assert exact_tree(problem, max(sizes) - 0.5) is None
