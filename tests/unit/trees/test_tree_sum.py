"""Bounds on sums of trees against enumeration: any boxes, targets and sizes of sets."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import certimap as cm
from certimap.circuits.posterior import CircuitPosterior
from certimap.conversions.circuit_to_tree import TreeMixturePosterior, trees_of_circuit
from certimap.core.control import Control, TimeUp
from certimap.core.query import make_query
from certimap.trees.kernels import vector_bounds as kernels
from certimap_lab.bench.reach import tree_mixture


def all_points(sizes):
    return np.array(np.unravel_index(np.arange(np.prod(sizes)), sizes)).T.astype(np.int16)


def case(seed):
    """Return a random mixture as a sum of trees, all points, their values, and each tree's table of values."""
    rng = np.random.default_rng(seed)
    n_states = int(rng.integers(2, 4))
    n = int(rng.integers(3, 9 if n_states == 2 else 6))
    circuit = tree_mixture(n, int(rng.integers(2, 5)), int(rng.integers(1, 4)), seed, n_states)
    posterior = CircuitPosterior.from_circuit(circuit, make_query(circuit.domain))
    points = all_points((n_states,) * n)
    return rng, posterior, points, np.exp(posterior.log_prob(points))


def random_box(rng, domain):
    mask = rng.random(domain.total_states) < 0.7
    first = domain.offsets[:-1]
    mask[first[~np.logical_or.reduceat(mask, first)]] = True
    return mask


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_bounds_hold_in_any_box(seed):
    rng, posterior, points, values = case(seed)
    trees = trees_of_circuit(posterior.plan)
    if trees is None:  # conditioning may merge trees
        return
    domain = posterior.domain
    mask = random_box(rng, domain)
    columns = domain.offsets[:-1] + points
    inside = mask[columns].all(axis=1)
    best = values[inside].max()
    log_target = float(np.log(best) + rng.normal(0.0, rng.choice([0.0, 0.5, 3.0])))
    room = trees.room(int(rng.choice([8, 64])))
    found = trees.bound(mask, log_target, room, Control())
    assert found.log_bound >= np.log(best) - 1e-12
    assert mask[domain.offsets[:-1] + found.points].all()
    for column in range(len(mask)):
        held = inside & np.any(columns == column, axis=1)
        if held.any():
            assert found.log_states[column] >= np.log(values[held].max()) - 1e-12
        elif not mask[column]:
            assert found.log_states[column] == -np.inf


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_a_trees_elimination_finds_its_maximum(seed):
    """With room for all rows an elimination is exact: it is compared with every assignment's value."""
    rng, posterior, points, _ = case(seed)
    trees = trees_of_circuit(posterior.plan)
    if trees is None:
        return
    domain = posterior.domain
    tree, variable, room = trees.trees[0].arrays, trees.trees[0].variable, trees.room(512)
    mask = random_box(rng, domain)
    columns = domain.offsets[:-1] + points
    values = np.empty(len(points))
    for i, held in enumerate(columns):
        alone = np.zeros(len(mask), np.bool_)
        alone[held] = True
        kernels.bound_messages(tree, alone, room.tops)
        values[i] = 3.0 * room.tops[len(tree.own_states) - 1, 0]
    values[~mask[columns].all(axis=1)] = -np.inf
    kernels.bound_messages(tree, mask, room.tops)
    value, row = kernels.eliminate(tree, mask, 3.0, 0.5 * values.max(), room)
    assert value == pytest.approx(values.max(), abs=1e-12)
    point = np.zeros(len(domain), np.int16)
    kernels.decode(tree, variable, row, room, point)
    assert values[np.all(points == point, axis=1)] == pytest.approx(value, abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_searches_are_right_wherever_they_stop(seed):
    rng, posterior, _, values = case(seed)
    trees = trees_of_circuit(posterior.plan)
    if trees is None:
        return
    mixture = TreeMixturePosterior(posterior, trees, Control())
    limit = None if rng.random() < 0.5 else int(rng.integers(1, 12))
    result = cm.map_query(mixture, solver="frontier", epsilon=0.0, delta=0.0, rng=seed, max_nodes=limit)
    best = np.log(values.max())
    assert result.log_prob <= best + 1e-12
    assert result.log_upper_bound >= best - 1e-9
    if result.certified:
        assert result.log_prob == pytest.approx(best, abs=2e-9)
    if limit is None:
        assert result.certified


@pytest.mark.parametrize(("sizes", "seed"), [((32, 4, 6), 1), ((64, 5, 10), 1), ((64, 3, 20), 0)])
def test_auto_takes_the_trees_and_proves_what_the_circuit_leaves_open(sizes, seed):
    circuit = tree_mixture(*sizes, seed)
    posterior = cm.condition(circuit)
    assert isinstance(posterior, TreeMixturePosterior)
    first, second = (cm.map_query(circuit, epsilon=0.01, delta=0.0, rng=1, time_limit=600) for _ in range(2))
    assert first.certified
    assert first.assignment == second.assignment
    assert first.log_upper_bound == second.log_upper_bound


def test_an_elimination_ends_with_its_control():
    posterior = cm.condition(tree_mixture(32, 4, 6, 2))
    prober = posterior.prober()
    prober.control = Control.starting_now(0.0)
    with pytest.raises(TimeUp):
        prober.tighten(1, 1e-3, prober.layout.full(), -20.0)
