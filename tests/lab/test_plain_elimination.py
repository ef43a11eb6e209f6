"""The plain elimination that MPE is set beside, against enumeration."""

from __future__ import annotations

import numpy as np
import pytest

import certimap as cm
from certimap.networks.factor import Factor
from certimap.networks.orders import min_fill
from certimap_lab.bench.plain_elimination import Asked, compared, plain_maximum, plain_table


def random_network(rng):
    n = int(rng.integers(2, 7))
    sizes = rng.integers(2, 4, n)
    scopes = [rng.permutation(n)[: rng.integers(1, min(n, 3) + 1)].tolist() for _ in range(n + 2)]
    factors = [Factor(s, rng.random([sizes[v] for v in s]) + 0.01) for s in scopes]
    return cm.MarkovNetwork(cm.Domain.of_sizes(sizes.tolist()), factors)


@pytest.mark.parametrize("seed", range(20))
def test_the_plain_maximum_is_that_of_enumeration(seed):
    rng = np.random.default_rng(seed)
    network = random_network(rng)
    sizes = network.domain.n_states
    observed = {0: int(rng.integers(sizes[0]))} if seed % 2 else {}
    points = np.array([p for p in np.ndindex(*sizes) if all(p[v] == s for v, s in observed.items())])
    scopes = [tuple(v for v in f.scope if v not in observed) for f in network.factors]
    order = min_fill(scopes, {v: int(k) for v, k in enumerate(sizes) if v not in observed})
    found = plain_maximum(network, observed, order)
    assert found == pytest.approx(float(network.log_joint(points).max()), abs=1e-12)


def test_a_record_has_both_times_and_says_that_the_values_agree():
    network = random_network(np.random.default_rng(3))
    record = compared(Asked("random", network, {0: 1}), n_repeats=1)
    assert record is not None
    assert record["agrees"]
    assert record["kind"] == "exact"
    assert "random" in plain_table([record]).to_markdown()


def test_tables_that_do_not_fit_are_left_out():
    rng = np.random.default_rng(0)
    n = 30
    factors = [Factor((a, b), rng.random((2, 2))) for a in range(n) for b in range(a)]
    network = cm.MarkovNetwork(cm.Domain.of_sizes([2] * n), factors)
    assert compared(Asked("clique", network, {})) is None
