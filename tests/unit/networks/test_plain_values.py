"""Sums of table entries by compiled code: the numbers of the tables added one by one."""

from __future__ import annotations

import numpy as np

import certimap as cm
from certimap.core.query import make_query
from certimap.networks import Factor, conditional
from certimap.networks.posterior import NetworkPosterior


def test_compiled_sums_have_the_same_numbers(monkeypatch):
    rng = np.random.default_rng(3)
    domain = cm.Domain.of_sizes(rng.integers(2, 4, 12))
    scopes = [rng.choice(12, rng.integers(1, 4), replace=False).tolist() for _ in range(30)]
    shapes = [[int(domain.n_states[v]) for v in scope] for scope in scopes]
    tables = [np.exp(9.0 * rng.normal(size=s)) * (rng.random(s) > 0.02) for s in shapes]
    network = cm.MarkovNetwork(domain, [Factor(*pair) for pair in zip(scopes, tables, strict=True)])
    posterior = NetworkPosterior.of_network(network, make_query(domain, list(domain.names[:9])))
    points = rng.integers(0, domain.n_states[:9], (200, 9)).astype(np.int16)
    one_by_one = posterior.log_prob(points)
    monkeypatch.setattr(conditional, "COMPILED", 1)
    assert np.array_equal(posterior.log_prob(points), one_by_one)
    assert -np.inf in one_by_one
    assert np.isfinite(one_by_one).sum() > 50
