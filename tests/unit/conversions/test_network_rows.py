"""Rows of evidence that are conditioned together have the answers that they have one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import certimap as cm
from certimap.conversions import condition, trees_of_rows
from certimap.core.control import Limits

pd = pytest.importorskip("pandas")


def random_network(rng: np.random.Generator, n: int = 9, zeros: float = 0.15) -> cm.BayesianNetwork:
    sizes = rng.integers(1, 4, n)
    parents = [sorted(rng.choice(i, min(i, int(rng.integers(0, 3))), replace=False).tolist()) for i in range(n)]
    tables = []
    for i, own in enumerate(parents):
        table = rng.random([int(sizes[v]) for v in (*own, i)]) + 0.01
        table[rng.random(table.shape) < zeros] = 0.0
        table[..., 0] += (table.sum(axis=-1) == 0.0) * 1.0
        tables.append(cm.Factor([*own, i], table / table.sum(axis=-1, keepdims=True)))
    return cm.BayesianNetwork(cm.Domain.of_sizes(sizes.tolist()), tables)


def queries_of(network: cm.BayesianNetwork, rng: np.random.Generator, n_rows: int, n_asked: int | None):
    names = network.domain.names
    mixed = [names[i] for i in rng.permutation(len(names))]
    observed, asked = mixed[:3], mixed[3:] if n_asked is None else mixed[3 : 3 + n_asked]
    rows = [{v: int(rng.integers(network.domain[v].n_states)) for v in observed} for _ in range(n_rows)]
    return rows, asked


@pytest.mark.parametrize("n_asked", [None, 2])
def test_trees_made_together_are_the_trees_made_one_by_one(n_asked: int | None):
    n_shared = n_impossible = 0
    for t in range(40):
        rng = np.random.default_rng([11, t])
        network = random_network(rng)
        rows, asked = queries_of(network, rng, 8, n_asked)
        queries = [cm.make_query(network.domain, asked, row) for row in rows]
        wants = (cm.trees.bucket_tree.BucketTreePosterior,)
        found = trees_of_rows(network, queries, wants=wants, limits=Limits())
        for i, query in enumerate(queries):
            try:
                alone = condition(network, query, wants=wants)
            except cm.ImpossibleEvidence:
                assert i not in found
                n_impossible += 1
                continue
            if i not in found:
                continue
            n_shared += 1
            together = found[i]
            assert together.domain == alone.domain
            assert together.log_evidence == pytest.approx(alone.log_evidence, abs=1e-12)
            a, b = together.region_tree.arrays, alone.region_tree.arrays
            for name in ("own_states", "column", "table_ptr", "children", "gather", "scatter", "message_ptr"):
                np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
            np.testing.assert_allclose(a.tables, b.tables, rtol=1e-14)
            points = alone.sample(20, np.random.default_rng(0))
            np.testing.assert_array_equal(together.sample(20, np.random.default_rng(0)), points)
    assert n_shared > 60
    assert n_impossible > 5


def same(one: cm.MapResult, other: cm.MapResult) -> bool:
    names = ("assignment", "certificate", "seed", "status", "solver", "n_draws", "n_evaluations")
    return all(getattr(one, name) == getattr(other, name) for name in names)


def test_a_frame_answers_as_its_rows_do(shared_data: Path):
    network = cm.read(shared_data / "networks" / "alarm.bif.gz")
    rng = np.random.default_rng(2)
    points, mixed = network.sample(30, rng), rng.permutation(37)
    variables = [network.domain.variables[i] for i in mixed[:10]]
    frame = pd.DataFrame(
        {v.name: [v.states[s] for s in points[:, network.domain.index(v.name)]] for v in variables}
    )
    frame.iloc[3, 2] = None  # a row that observes fewer variables
    for asked in (
        None,
        [network.domain.names[i] for i in mixed[10:13]],
        [network.domain.names[i] for i in mixed[10:24]],
    ):
        together = cm.map_query(network, asked, frame, rng=7, epsilon=0)
        for result, (_, row) in zip(together, frame.iterrows(), strict=True):
            alone = cm.map_query(network, asked, row, rng=result.seed, epsilon=0)
            assert same(result, alone)
            assert result.log_prob == pytest.approx(alone.log_prob, abs=1e-12)


def test_rows_with_soft_evidence_are_left_to_be_conditioned_one_by_one():
    network = random_network(np.random.default_rng(1), zeros=0.0)
    names = [v.name for v in network.domain if v.n_states == 2]
    soft = {names[0]: {"likelihood": [0.5, 1.0]}}
    queries = [cm.make_query(network.domain, None, soft)] * 2
    assert trees_of_rows(network, queries, wants=None, limits=Limits()) == {}


def test_rows_share_what_follows_from_the_shape_of_their_trees(shared_data: Path):
    from certimap.solvers.elimination.geometry import Geometry

    network = cm.read(shared_data / "networks" / "asia.bif.gz")
    names = network.domain.names
    first = network.domain.variables[0].states
    queries = [cm.make_query(network.domain, None, {names[0]: state}) for state in first]
    wants = (cm.trees.bucket_tree.BucketTreePosterior,)
    one, other = trees_of_rows(network, queries, wants=wants, limits=Limits()).values()
    a, b = Geometry.of(one.region_tree), Geometry.of(other.region_tree)
    assert a.links is b.links
    assert a.tree.arrays.tables is not b.tree.arrays.tables
    fresh = Geometry.of(condition(network, queries[1], wants=wants).region_tree)
    assert fresh.links is not b.links
    assert (fresh.shapes, fresh.order_of_children, fresh.longest_sum) == (
        b.shapes,
        b.order_of_children,
        b.longest_sum,
    )


def test_a_value_does_not_depend_on_the_points_beside_it():
    rng = np.random.default_rng(4)
    network = random_network(rng, zeros=0.0)
    posterior = condition(
        network, cm.make_query(network.domain), wants=(cm.trees.bucket_tree.BucketTreePosterior,)
    )
    points = posterior.sample(5000, rng)
    together = posterior.log_prob(points)
    for start in (0, 1, 63, 64, 4999):
        np.testing.assert_array_equal(posterior.log_prob(points[start : start + 70]), together[start : start + 70])
