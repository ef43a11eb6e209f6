"""Networks of any width: points, boxes and searches against enumeration, with relaxations forced to split."""

import dataclasses
import itertools

import numpy as np
import pytest
from problem_twin import random_problem, value_array

import certimap as cm
from certimap.ask.api import map_query
from certimap.core.box import Boxes
from certimap.core.probing import answers_in
from certimap.core.query import make_query
from certimap.core.result import CertificateKind
from certimap.networks.factor import Factor
from certimap.networks.network import MarkovNetwork
from certimap.networks.posterior import NetworkPosterior
from certimap.networks.relaxation.split_tree import RelaxationPlan
from certimap.networks.relaxation.tighten import Tightener

NARROW = RelaxationPlan(exact_entries=0.0, first_bits=1.0, raise_bits=1.5, last_bits=5.0, steps=6)


def random_case(rng, **settings):
    """Return the posterior of a random Markov network, all its points and their values."""
    problem = random_problem(rng, max_variables=7, max_states=3, **settings)
    place = {v: i for i, v in enumerate(sorted(problem.sizes))}
    domain = cm.Domain.of_sizes(problem.sizes[v] for v in place)
    factors = [Factor.from_log([place[v] for v in t.scope], t.log_values) for t in problem.tables]
    query, values = value_array(problem)
    names = [domain.names[place[v]] for v in query]
    posterior = NetworkPosterior.of_network(MarkovNetwork(domain, factors), make_query(domain, names))
    points = np.array(list(itertools.product(*(range(problem.sizes[v]) for v in query))))
    values = values.ravel() - np.logaddexp.reduce(values.ravel())
    return posterior, points, values


@pytest.mark.parametrize("seed", range(3))
def test_points_and_boxes(seed):
    rng = np.random.default_rng(seed)
    for _ in range(20):
        posterior, points, values = random_case(rng, nuisance=float(rng.choice([0.0, 0.5])))
        posterior = dataclasses.replace(posterior, plan=NARROW)
        assert np.allclose(posterior.log_prob(points), values, atol=1e-9)
        mask = rng.random((3, posterior.domain.total_states)) < 0.7
        mask[0] = True
        boxes = Boxes(posterior.domain, mask)
        answers = answers_in(posterior, boxes)
        bound, each = answers.log_bound, answers.each_bound
        columns = posterior.domain.offsets[:-1] + points
        for b in range(3):
            held = mask[b][columns]
            inside = held.all(axis=1)
            assert bound[b] >= values[inside].max(initial=-np.inf)
            for i in range(points.shape[1]):
                others = np.delete(held, i, axis=1).all(axis=1)
                for state in range(posterior.domain.n_states[i]):
                    own = values[others & (points[:, i] == state)].max(initial=-np.inf)
                    column = posterior.domain.offsets[i] + state
                    assert each[b, column] >= own or not mask[b, column]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("plan", [NARROW, RelaxationPlan()])
def test_searches_prove_the_maximum(seed, plan):
    rng = np.random.default_rng(100 + seed)
    for _ in range(12):
        posterior, _, values = random_case(rng, nuisance=float(rng.choice([0.0, 0.4, 0.8])))
        result = map_query(
            dataclasses.replace(posterior, plan=plan),
            solver="frontier",
            epsilon=0.0,
            delta=0.0,
            rng=0,
            progress=False,
        )
        assert result.certificate.kind is CertificateKind.EXACT
        assert result.log_prob == pytest.approx(values.max(), abs=1e-8)
        assert result.log_upper_bound >= values.max() - 1e-9


def test_tightening_bounds_what_it_was_given_whatever_it_drops():
    """Thresholds above the best value make it drop everything; the bound counts what was dropped."""
    rng = np.random.default_rng(12)
    n_fell = 0
    for _ in range(30):
        posterior, _, values = random_case(rng, nuisance=float(rng.choice([0.0, 0.5])))
        prober = dataclasses.replace(posterior, plan=NARROW, log_ceiling=50.0).prober()
        best, last = values.max(), np.inf
        threshold = float(rng.choice([best - 1.0, best - 1e-6, best + 0.5]))
        for _ in range(60):
            came_to = prober.tighten(400, 1e-10, prober.layout.full(), threshold)
            assert best <= came_to.log_bound <= last
            n_fell += came_to.log_bound < last
            last = came_to.log_bound
            if came_to.is_complete:
                break
        found = posterior.log_prob(prober.starts())
        assert np.all(found <= best + 1e-9)
    assert n_fell > 60


def test_tables_too_large_for_the_time_left_leave_it_to_the_search(monkeypatch):
    """Steps on trees beyond the first one are cut: there is nothing more to tighten, and the first one stays."""
    rng = np.random.default_rng(5)
    n_cut = 0
    plain = Tightener.run

    def cut(self, temperature, n_steps):
        goes_on = plain(self, temperature, n_steps)
        self.is_cut = True
        return goes_on

    monkeypatch.setattr(Tightener, "run", cut)
    for _ in range(30):
        posterior, _, values = random_case(rng, nuisance=0.4)
        prober = dataclasses.replace(posterior, plan=NARROW).prober()
        for _ in range(60):
            had_larger = prober.next is not None
            came_to = prober.tighten(400, 1e-10, prober.layout.full(), values.max() - 5.0)
            assert came_to.log_bound >= values.max()
            if came_to.is_complete:
                break
            assert not had_larger
        assert came_to.is_complete
        n_cut += had_larger and prober.next is None
    assert n_cut > 3


def test_the_k_best_are_found():
    rng = np.random.default_rng(7)
    for _ in range(10):
        posterior, points, values = random_case(rng, nuisance=0.4, zeros=0.0)
        k = min(3, len(points))
        result = map_query(
            dataclasses.replace(posterior, plan=NARROW), solver="frontier", epsilon=0.0, delta=0.0, rng=0, top_k=k
        )
        assert [value for _, value in result.top] == pytest.approx(np.sort(values)[::-1][:k], abs=1e-8)
        assert result.certificate.kind is CertificateKind.EXACT


def test_an_impossible_state_has_no_probability():
    posterior, points, values = random_case(np.random.default_rng(11), nuisance=0.3, zeros=0.4)
    assert np.array_equal(np.isneginf(posterior.log_prob(points)), np.isneginf(values))


def wide_grid(n, rng):
    """Return an n by n grid with strong couplings, far too wide for tables of a few entries."""
    domain = cm.Domain.of_sizes([2] * (n * n))
    factors = [Factor.from_log([i], rng.normal(size=2)) for i in range(n * n)]
    for i in range(n * n):
        for j in (i + 1 if (i + 1) % n else None, i + n if i + n < n * n else None):
            if j is not None:
                factors.append(Factor.from_log([i, j], rng.normal(size=(2, 2))))
    return MarkovNetwork(domain, factors)


def test_a_seed_replays_and_limits_are_kept_where_the_evidence_is_unknown(monkeypatch):
    monkeypatch.setattr("certimap.networks.posterior.KNOWN_WORK", 0.0)
    network = wide_grid(8, np.random.default_rng(1))
    names = network.domain.names[::2]
    results = []
    for _ in range(2):
        posterior = NetworkPosterior.of_network(network, make_query(network.domain, names))
        posterior = dataclasses.replace(
            posterior, plan=RelaxationPlan(exact_entries=0.0, first_bits=4.0, last_bits=6.0)
        )
        results.append(map_query(posterior, solver="frontier", epsilon=0.0, delta=0.0, rng=3, max_nodes=50))
    first, second = results
    assert first.assignment == second.assignment
    assert first.log_joint_upper_bound == second.log_joint_upper_bound
    assert first.log_prob is None
    assert first.log_evidence is None
    assert np.isfinite(first.log_joint_upper_bound)
    assert first.log_joint <= first.log_joint_upper_bound
