"""The box search against enumeration: random trees and DAGs, many states, zeros, ties, limits, spoiled starts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from frontier_twin import all_points, random_circuit, random_domain

from certimap.ask.api import map_query
from certimap.certify.ledger import Ledger
from certimap.circuits.posterior import CircuitPosterior
from certimap.core.control import Control
from certimap.core.query import make_query
from certimap.core.result import CertificateKind
from certimap.errors import ImpossibleEvidence
from certimap.solvers.box_search.frontier import Frontier, Pace
from certimap.testing import TablePosterior

TOLERANCE = 2e-9


def random_posterior(rng):
    """A conditioned random circuit, some variables summed out or weighed by soft evidence; or None."""
    n = int(rng.integers(1, 8))
    domain = random_domain(rng, n + int(rng.integers(0, 3)))
    circuit = random_circuit(rng, domain, shared=rng.random() < 0.5, flat=rng.random() < 0.15)
    names = [domain.names[i] for i in rng.permutation(len(domain))]
    evidence = {}
    if rng.random() < 0.3:
        k = int(domain[names[-1]].n_states)
        evidence[names[-1]] = list(rng.random(k) + 0.1)
    try:
        return CircuitPosterior.from_circuit(circuit, make_query(domain, names[:n], evidence))
    except ImpossibleEvidence:
        return None


def random_solver(rng):
    return Frontier(
        draw_share=float(rng.choice([0.0, 0.2])),
        first_draws=int(rng.choice([0, 4, 256])),
        exact_work=int(rng.choice([0, 2000, 400_000_000])),
        caps=bool(rng.random() < 0.5),
        incumbent=bool(rng.random() < 0.3),
    )


def check(posterior, rng, max_nodes, epsilons=(0.0, 0.0, 0.01, 0.3)):
    points = all_points(posterior.domain)
    truth = np.sort(posterior.log_prob(points))[::-1]
    epsilon, k = float(rng.choice(epsilons)), min(int(rng.choice([1, 1, 1, 2, 5])), len(points))
    solver = random_solver(rng)
    result = map_query(
        posterior, solver=solver, epsilon=epsilon, delta=0.0, rng=int(rng.integers(2**31)), top_k=k,
        max_nodes=max_nodes, progress=False,
    )  # fmt: skip
    assert result.log_upper_bound >= truth[0] - 1e-12 * (1 + abs(truth[0]))
    certificate = result.certificate
    if max_nodes is None:
        assert certificate.kind is not CertificateKind.NONE
    if certificate.kind is CertificateKind.NONE:
        return
    assert certificate.kind is not CertificateKind.PAC
    assert certificate.delta == 0.0
    margin = TOLERANCE - math.log1p(-certificate.epsilon)
    values = [value for _, value in result.top]
    assert len(values) == k or truth[len(values)] < -30.0  # the rest was proved to be impossible
    for found, best in zip(values, truth, strict=False):
        assert found == best or found >= best - margin
    if result.ties is not None and k == 1:
        n_best = int(np.sum(truth >= result.log_prob - math.log1p(1e-9)))
        assert len(result.ties) + 1 == n_best


@pytest.mark.parametrize("max_nodes", [None, 1, 7])
def test_circuits_against_enumeration(max_nodes):
    for t in range(700):
        rng = np.random.default_rng([7, t])
        posterior = random_posterior(rng)
        if posterior is not None:
            check(posterior, rng, max_nodes)


def random_table(rng):
    sizes = [int(k) for k in rng.choice([1, 2, 2, 3, 4], size=int(rng.integers(1, 6)))]
    n = int(np.prod(sizes))
    probs = rng.integers(0, 3, n).astype(float) if rng.random() < 0.3 else rng.random(n) ** 4
    probs[rng.integers(n)] += 0.5
    return TablePosterior(sizes, probs, looseness=float(rng.choice([0.0, 0.5, 5.0])))


@pytest.mark.parametrize("max_nodes", [None, 5])
def test_tables_with_loose_bounds(max_nodes):
    for t in range(150):
        rng = np.random.default_rng([8, t])
        check(random_table(rng), rng, max_nodes)


@pytest.mark.nojit
def test_masses_add_up_after_every_step():
    for t in range(40):
        rng = np.random.default_rng([9, t])
        posterior = random_posterior(rng) if t % 2 else random_table(rng)
        if posterior is None:
            continue
        ledger = Ledger(posterior, epsilon=0.0, delta=0.0)
        solver = Frontier(draw_share=0.2, first_draws=4, incumbent=t % 3 == 0, pace=Pace(step_work=1))
        state = solver.init(posterior, Control(), rng)
        bound = math.inf
        while not state.done and not ledger.satisfied:
            state = solver.step(state, ledger)
            total = np.logaddexp(ledger.log_closed_measure, state.open.log_mass)
            assert total == pytest.approx(0.0, abs=1e-9)
            assert ledger.log_upper_bound <= bound
            bound = ledger.log_upper_bound


def test_real_variables_get_epsilon_certificates():
    n_certified = 0
    for t in range(60):
        rng = np.random.default_rng([8, t])
        n = int(rng.integers(1, 6))
        domain = random_domain(rng, n, n_real=min(n, int(rng.integers(1, 4))))
        posterior = CircuitPosterior.from_circuit(
            random_circuit(rng, domain, shared=rng.random() < 0.5), make_query(domain)
        )
        solver = Frontier(incumbent=bool(rng.random() < 0.7))
        result = map_query(
            posterior, solver=solver, epsilon=0.01, delta=0.0, rng=t, max_nodes=20_000, progress=False
        )
        reached = posterior.prober().climb(posterior.sample(300, rng))
        best = float(posterior.log_prob(reached).max())
        assert result.log_upper_bound >= best - 1e-12
        if result.certificate.kind is not CertificateKind.NONE:
            n_certified += 1
            assert result.log_prob >= best + math.log1p(-0.01) - 1e-12
    assert n_certified >= 55
