"""Set elimination on small hidden chains and latent class models, against enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from bucket_twin import tree_of_network

import certimap as cm
from certimap.ask.api import map_query
from certimap.core.query import make_query
from certimap.core.result import CertificateKind
from certimap.solvers.elimination import set_elimination
from certimap.solvers.elimination.geometry import VectorSet
from certimap.solvers.elimination.set_elimination import SetElimination

START_WORK = set_elimination.START_WORK


def chain(rng):
    """A hidden Markov model, the symbols queried (some observed), and ln p of each sequence of symbols."""
    steps, k, m = int(rng.integers(3, 6)), int(rng.integers(2, 13)), int(rng.integers(2, 6))
    alpha = rng.choice([0.3, 1.0, 3.0])
    start, move = rng.dirichlet(np.full(k, alpha)), rng.dirichlet(np.full(k, alpha), k)
    emit = rng.dirichlet(np.full(m, alpha), k)
    model = cm.hidden_markov_model(start, move, emit, steps)
    seen = {int(t): int(rng.integers(m)) for t in rng.permutation(steps)[: int(rng.integers(0, 2))]}
    values = []
    for symbols in itertools.product(*([seen[t]] if t in seen else range(m) for t in range(steps))):
        forward = start * emit[:, symbols[0]]
        for s in symbols[1:]:
            forward = (forward @ move) * emit[:, s]
        values.append(forward.sum())
    names = [f"symbol{t}" for t in range(steps) if t not in seen]
    return model, names, {f"symbol{t}": s for t, s in seen.items()}, np.array(values)


def classes(rng):
    """A latent class model, all features queried, and ln p of each row."""
    n, k, m = int(rng.integers(3, 7)), int(rng.integers(2, 12)), int(rng.integers(2, 4))
    prior = rng.dirichlet(np.ones(k))
    tables = rng.dirichlet(np.full(m, rng.choice([0.3, 1.0, 3.0])), (n, k))
    features = {f"x{v}": {c: dict(enumerate(tables[v, c])) for c in range(k)} for v in range(n)}
    model = cm.naive_bayes("class", dict(enumerate(prior)), features)
    values = [
        (prior * np.prod([tables[v, :, s] for v, s in enumerate(row)], axis=0)).sum()
        for row in itertools.product(range(m), repeat=n)
    ]
    return model, list(features), {}, np.array(values)


def check(rng, maker, monkeypatch):
    """Run one case, often with limits that merge, split and stop half-way; what it claims must be true."""
    model, names, seen, values = maker(rng)
    if not values.sum():
        return None
    exact = np.log(np.sort(values)[::-1] / values.sum())
    query = make_query(model.domain, names, seen)
    asked = set(query.variables)  # they go first, so that all hidden states are left
    order = sorted(range(len(model.domain)), key=lambda v: (v not in asked, v))
    posterior = tree_of_network(model, query, order=order)
    solver = SetElimination(
        limits=[(1,), (2,), (256,)][int(rng.integers(3))],
        split_limit=int(rng.choice([1, 2, 64])),
        n_starts=1,
        n_first_draws=1,
    )
    monkeypatch.setattr(set_elimination, "START_WORK", 0 if rng.random() < 0.7 else START_WORK)
    epsilon, top_k = float(rng.choice([0.0, 0.01, 0.3])), int(rng.choice([1, 1, 1, 3]))
    max_nodes = None if rng.random() < 0.4 else int(rng.integers(1, 4))
    result = map_query(
        posterior,
        solver=solver,
        epsilon=epsilon,
        delta=0.0,
        rng=rng,
        top_k=top_k,
        max_nodes=max_nodes,
        progress=False,
    )
    assert result.log_prob <= exact[0] + 1e-9 <= result.log_upper_bound + 2e-9
    if result.certificate.kind is CertificateKind.EXACT:
        k = min(top_k, int(np.count_nonzero(values)))
        np.testing.assert_allclose([v for _, v in result.top][:k], exact[:k], atol=2e-9)
    elif result.certified:
        assert result.log_prob >= exact[0] + math.log1p(-epsilon) - 1e-9
    return result


@pytest.mark.parametrize("maker", [chain, classes])
@pytest.mark.parametrize("floor", [None, -3])
def test_random_chains_and_classes(maker, floor, monkeypatch):
    dropped = 0
    unmixed = VectorSet.unmixed

    def spy(self, control):
        nonlocal dropped
        found = unmixed(self, control)
        dropped += len(self) - len(found[0])
        return found

    monkeypatch.setattr(VectorSet, "unmixed", spy)
    if floor is not None:
        monkeypatch.setattr("certimap.solvers.elimination.one_pass.SET_FLOOR", floor)
    results = [check(np.random.default_rng([7, t]), maker, monkeypatch) for t in range(120)]
    assert sum(r.certified for r in results if r is not None) > 80
    assert any(r is not None and not r.certified for r in results)
    assert maker is classes or dropped > 30


def random_chain(rng, steps, k, m, alpha=1.0):
    start, move = rng.dirichlet(np.full(k, alpha)), rng.dirichlet(np.full(k, alpha), k)
    model = cm.hidden_markov_model(start, move, rng.dirichlet(np.full(m, alpha), k), steps)
    return model, [f"symbol{t}" for t in range(steps)]


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_runs_that_are_stopped_half_way_bracket_the_optimum(alpha):
    n_open = 0
    for seed in range(6):
        model, asked = random_chain(np.random.default_rng(seed), 40, 12, 6, alpha)
        exact = cm.map_query(model, asked, epsilon=0.0, delta=0.0, rng=0)
        assert exact.certificate.kind is CertificateKind.EXACT
        posterior = tree_of_network(model, make_query(model.domain, asked, {}))
        for limits, max_nodes in (((2,), 1), ((2, 8), 2), ((8,), 4), ((64,), 1)):
            solver = SetElimination(limits=limits, split_limit=limits[-1])
            result = map_query(
                posterior, solver=solver, epsilon=0.0, delta=0.0, rng=seed, max_nodes=max_nodes, progress=False
            )
            n_open += not result.certified
            assert result.log_prob <= exact.log_prob + 1e-9 <= result.log_upper_bound + 2e-9
    assert n_open > 6


def test_a_chain_of_a_thousand_steps_is_proved():
    """The bound from outside is e^400 above what can be reached: thresholds lie below the floor of doubles."""
    model, asked = random_chain(np.random.default_rng(1), 1000, 5, 10)
    result = cm.map_query(model, asked, delta=0.0, epsilon=0.01, rng=0)
    assert result.certified
    assert result.solver == "portfolio"  # set elimination has its first turn
