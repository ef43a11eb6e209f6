"""Masses and draws of networks that stream: as a tree of conditional tables has them, and at the doors."""

from __future__ import annotations

import math

import numpy as np
import pytest

import certimap as cm
from certimap.conversions import condition, plan
from certimap.core.box import Boxes
from certimap.core.control import Control, Limits, TimeUp
from certimap.core.posterior import Draws, Masses, Regions
from certimap.core.query import make_query
from certimap.errors import CertimapError, ImpossibleEvidence, SolverError, TooLarge
from certimap.networks.posterior import NetworkPosterior
from certimap.networks.streamed import StreamedPosterior
from certimap.testing import check_posterior


def random_network(seed, n=7, zeros=0.15):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 4, n)
    scopes = [rng.permutation(n)[: rng.integers(1, 4)].tolist() for _ in range(n + 1)]
    tables = [np.exp(rng.normal(size=[sizes[v] for v in s])) for s in scopes]
    for table in tables:
        table[rng.random(table.shape) < zeros] = 0.0
    factors = [cm.Factor(s, t) for s, t in zip(scopes, tables, strict=True)]
    return cm.MarkovNetwork(cm.Domain.of_sizes(sizes.tolist()), factors)


def both(seed):
    """Return a posterior that streams, and the same one as a tree."""
    network = random_network(seed)
    names = list(network.domain.names)
    evidence = {names[0]: 1} if seed % 3 == 0 else {names[1]: [0.5, 2.0, 1.0][: network.domain[names[1]].n_states]}
    query = make_query(network.domain, names[2 : 3 + seed % 4][::-1], evidence)
    tree = condition(network, query, wants=(Regions,))
    return condition(network, query, wants=(StreamedPosterior,)), tree


def random_boxes(domain, rng, n=12):
    mask = rng.random((n, domain.total_states)) < 0.7
    mask[0] = True
    return Boxes(domain, mask)


@pytest.mark.parametrize("seed", range(20))
def test_masses_are_those_of_a_tree(seed):
    try:
        streamed, tree = both(seed)
    except ImpossibleEvidence:
        return
    assert isinstance(streamed, StreamedPosterior)
    assert isinstance(streamed, Draws)
    assert isinstance(streamed, Masses)
    assert streamed.facts.log_evidence == pytest.approx(tree.facts.log_evidence, abs=1e-11)
    boxes = random_boxes(streamed.domain, np.random.default_rng(seed))
    np.testing.assert_allclose(streamed.log_mass(boxes), tree.log_mass(boxes), atol=1e-10)
    np.testing.assert_allclose(streamed.log_mass_each(boxes), tree.log_mass_each(boxes), atol=1e-10)
    full = Boxes.full(streamed.domain)
    assert streamed.log_mass(full)[0] == pytest.approx(0.0, abs=1e-11)


def test_it_is_a_posterior_like_others():
    streamed, _ = both(2)
    check_posterior(streamed)


def test_draws_fall_into_boxes_by_their_masses():
    streamed, tree = both(4)
    domain, rng = streamed.domain, np.random.default_rng(3)
    points = streamed.sample(20_000, rng)
    each = np.exp(tree.log_mass_each(Boxes.full(domain))[0])
    columns = (points + domain.offsets[:-1]).reshape(-1)
    found = np.bincount(columns, minlength=domain.total_states) / len(points)
    assert np.abs(found - each).max() < 0.02
    halves = np.ones((2, domain.total_states), bool)
    halves[0, domain.offsets[0]] = False
    halves[1, domain.offsets[0] + 1 : domain.offsets[1]] = False
    parts = Boxes(domain, halves)
    inside = streamed.sample(5_000, rng, parts)
    assert len(inside) == 5_000
    share = np.exp(tree.log_mass(parts))
    assert np.mean(inside[:, 0] == 0) == pytest.approx(share[1] / share.sum(), abs=0.03)
    assert np.array_equal(
        streamed.sample(9, np.random.default_rng(0)), streamed.sample(9, np.random.default_rng(0))
    )


def test_boxes_without_mass_are_not_drawn_from():
    network = cm.MarkovNetwork(cm.Domain.of_sizes([2, 2]), [cm.Factor((0, 1), [[0.0, 0.0], [1.0, 2.0]])])
    posterior = condition(network, make_query(network.domain), wants=(StreamedPosterior,))
    mask = np.ones((1, 4), bool)
    mask[0, 1] = False
    assert posterior.log_mass(Boxes(posterior.domain, mask))[0] == -math.inf
    with pytest.raises(SolverError, match="probability zero"):
        posterior.sample(3, np.random.default_rng(0), Boxes(posterior.domain, mask))


def grid(n, seed=0):
    rng = np.random.default_rng(seed)
    pairs = [(i * n + j, i * n + j + 1) for i in range(n) for j in range(n - 1)]
    pairs += [(v, v + n) for v in range(n * (n - 1))]
    tables = [cm.Factor((v,), np.exp(rng.normal(size=2))) for v in range(n * n)]
    tables += [cm.Factor(pair, np.exp(rng.normal(size=(2, 2)))) for pair in pairs]
    return cm.MarkovNetwork(cm.Domain.of_sizes([2] * n * n), tables)


def test_doors_stream_where_tables_do_not_fit_together():
    network = grid(12)
    whole = cm.log_evidence(network)
    assert network.log_partition == whole
    little = 2**23
    limits, query = Limits(control=Control(max_memory=little)), make_query(network.domain, ["5", "77"])
    with pytest.raises(TooLarge):
        plan(network, query, wants=(Regions,), limits=limits)
    assert cm.log_evidence(network, max_memory=little) == whole
    given = cm.log_evidence(network, {"3": 1}, max_memory=little) - whole
    tables = cm.marginals(network, ["3", "77"], max_memory=little)
    assert math.log(tables["3"][1]) == pytest.approx(given, abs=1e-9)
    expected = cm.marginals(network, ["3", "77"])
    assert tables["77"][0] == pytest.approx(expected["77"][0], abs=1e-12)
    drawn = cm.sample(network, 4_000, variables=["3", "77"], rng=1, max_memory=little)
    assert np.mean(drawn["3"]) == pytest.approx(expected["3"][1], abs=0.05)
    with pytest.raises(TooLarge, match="max_memory allows"):
        cm.log_evidence(network, max_memory=10_000)


def test_doors_end_at_a_time_limit_and_refuse_what_is_no_limit():
    with pytest.raises(TimeUp):
        cm.log_evidence(grid(16), time_limit=0)
    for door in (cm.log_evidence, cm.marginals, lambda model, **given: cm.sample(model, 1, **given)):
        with pytest.raises(CertimapError, match="time_limit"):
            door(grid(3), time_limit=-1)
        with pytest.raises(CertimapError, match="max_memory"):
            door(grid(3), max_memory="much")


def test_draws_bound_the_answer_of_a_query_that_no_tree_fits():
    network = grid(9)
    names = [str(v) for v in np.random.default_rng(0).permutation(81)[:4]]
    limits = Limits(control=Control(max_memory=2**20))
    assert plan(network, make_query(network.domain, names), wants=(Draws,), limits=limits).row.name.startswith(
        "str"
    )
    found = cm.map_query(network, names, solver="pac", epsilon=0.1, delta=0.1, rng=0, max_memory=2**20)
    exact = cm.map_query(network, names, rng=0)
    assert found.log_prob == pytest.approx(exact.log_prob, abs=1e-9)
    assert found.certified


def test_a_network_without_evidence_has_probability_1():
    rng = np.random.default_rng(0)
    n = 24
    states = {f"v{i}": [0, 1] for i in range(n)}
    parents = {f"v{i}": [f"v{j}" for j in rng.permutation(i)[:3]] for i in range(4, n)}
    tables = {}
    for name in states:
        shape = (2,) * (1 + len(parents.get(name, [])))
        table = rng.random(shape)
        tables[name] = table / table.sum(axis=-1, keepdims=True)
    network = cm.BayesianNetwork.from_cpts(states, parents, tables)
    assert network.log_total_slack < 1e-12
    posterior = NetworkPosterior.of_network(network, make_query(network.domain, list(states)[::2]))
    assert posterior.log_evidence == 0.0
    assert posterior.facts.is_normalised
    total = np.logaddexp.reduce(posterior.log_prob(np.array(list(np.ndindex(*(2,) * 12)))))
    assert total == pytest.approx(0.0, abs=1e-10)
    soft = make_query(network.domain, list(states)[::2], {"v1": [0.5, 0.5]})
    assert NetworkPosterior.of_network(network, soft).log_evidence == pytest.approx(math.log(0.5), abs=1e-10)
