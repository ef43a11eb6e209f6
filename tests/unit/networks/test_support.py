"""Assignments without zeros, and the ceiling of a Bayesian network's joint, against enumeration."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from problem_twin import random_problem

import certimap as cm
from certimap.ask.api import map_query
from certimap.core.query import make_query
from certimap.networks.factor import Factor
from certimap.networks.posterior import NetworkPosterior, log_largest_joint
from certimap.networks.problem import Problem, Table, problem_of
from certimap.networks.relaxation.split_tree import RelaxationPlan
from certimap.networks.support import supported_states
from certimap.solvers.networks.and_or import AndOrBranchAndBound
from certimap.solvers.networks.wmb import WeightedMiniBuckets


@pytest.mark.parametrize("zeros", [0.2, 0.6])
def test_states_are_found_where_there_are_any(zeros):
    rng = np.random.default_rng(int(100 * zeros))
    n_possible = 0
    for _ in range(60):
        problem = random_problem(rng, max_variables=6, max_states=3, nuisance=0.5, zeros=zeros)
        names = list(problem.sizes)
        possible = [
            states
            for states in itertools.product(*(range(problem.sizes[v]) for v in names))
            if _is_possible(problem, dict(zip(names, states, strict=True)))
        ]
        found = supported_states(problem)
        assert (found is not None) == bool(possible)
        if found is not None:
            assert tuple(found[v] for v in names) in possible
            n_possible += 1
    assert n_possible > 5


def _is_possible(problem, states):
    return all(t.log_values[tuple(states[v] for v in t.scope)] > -np.inf for t in problem.tables)


def test_wrong_turns_are_taken_back():
    """Two colours suffice for a chain with ends alike; the weights lure the search into the other end colour."""
    differ = np.where(np.eye(3, dtype=bool), -np.inf, 0.0)
    tables = [Table((i, i + 1), differ) for i in range(5)]
    tables.append(Table((0, 5), np.where(np.eye(3, dtype=bool), -9.0, -np.inf)))
    tables += [Table((i,), np.array([5.0, 4.0, -np.inf if i in (1, 2, 3) else 0.0])) for i in range(6)]
    problem = Problem(dict.fromkeys(range(6), 3), frozenset(range(6)), tuple(tables))
    found = supported_states(problem)
    assert found is not None
    assert _is_possible(problem, found)
    assert supported_states(problem, lambda: True) is None


def random_bayesian(rng, n=7):
    domain = cm.Domain.of_sizes(rng.integers(2, 4, n))
    cpts = []
    for i in range(n):
        scope = (*rng.permutation(i)[: min(i, 3)].tolist(), i)
        table = rng.random([int(domain.n_states[v]) for v in scope]) * (rng.random() < 0.9) + 1e-3
        cpts.append(Factor(scope, table / table.sum(axis=-1, keepdims=True)))
    return cm.BayesianNetwork(domain, cpts)


@pytest.mark.parametrize("solver", ["frontier", WeightedMiniBuckets(1, 0), AndOrBranchAndBound(1, 0)])
def test_bounds_stay_at_or_below_the_largest_likelihoods(solver):
    rng = np.random.default_rng(3)
    for _ in range(4):
        network = random_bayesian(rng)
        names = network.domain.names
        weights = (4.0 * rng.random(int(network.domain.n_states[5]))).tolist()
        query = make_query(network.domain, names[:3], {names[6]: 0, names[5]: {"likelihood": weights}})
        whole = NetworkPosterior.of_network(network, query)
        assert whole.log_evidence is not None
        assert whole.log_ceiling == pytest.approx(0.0, abs=1e-10)
        ceiling = log_largest_joint(network, query)
        assert ceiling == pytest.approx(np.log(max(weights)), abs=1e-7)
        narrow = RelaxationPlan(exact_entries=0.0, first_bits=0.0, last_bits=0.0, steps=1)
        prepared = problem_of(network, query)
        posterior = NetworkPosterior(whole.domain, prepared, plan=narrow, log_ceiling=ceiling)
        points = np.array(list(itertools.product(*(range(int(k)) for k in posterior.domain.n_states))))
        best = float(posterior.log_prob(points).max())
        result = map_query(posterior, solver=solver, epsilon=0.0, delta=0.0, rng=0, progress=False, max_nodes=1)
        assert result.log_joint == pytest.approx(best, abs=1e-9) or result.log_joint < best
        assert best - 1e-9 <= result.log_joint_upper_bound <= ceiling + 1e-7


def test_a_loose_relaxation_needs_the_ceiling():
    """Split sums over causes that are nearly certain, given effects that say little, come to more than 1."""
    n_causes = 5
    pairs = list(itertools.combinations(range(n_causes), 2))
    domain = cm.Domain.of_sizes([3] * n_causes + [2] * len(pairs))
    cpts = [Factor((i,), np.array([0.98, 0.01, 0.01])) for i in range(n_causes)]
    weak = np.full((3, 3, 2), [0.99, 0.01])
    weak[0, 0] = 0.98, 0.02
    cpts += [Factor((*pair, n_causes + k), weak) for k, pair in enumerate(pairs)]
    network = cm.BayesianNetwork(domain, cpts)
    evidence = dict.fromkeys(domain.names[n_causes:], 0)
    query = make_query(domain, domain.names[:1], evidence)
    bounds = []
    for ceiling in (np.inf, log_largest_joint(network, query)):
        posterior = NetworkPosterior(query.query_domain, problem_of(network, query), log_ceiling=ceiling)
        bounds.append(map_query(posterior, solver=WeightedMiniBuckets(1, 0), rng=0).log_joint_upper_bound)
    assert bounds[0] > 0.5
    assert bounds[1] <= 1e-7


def test_a_network_of_weights_has_no_ceiling():
    domain = cm.Domain.of_sizes([2, 2])
    network = cm.MarkovNetwork(domain, [Factor((0, 1), np.full((2, 2), 5.0))])
    assert log_largest_joint(network, make_query(domain, domain.names)) == np.inf


def test_tables_with_zeros_are_found_among_small_and_large_ones():
    rng = np.random.default_rng(3)
    for size in (3, 70):  # of a pair of variables: seen together, and one by one
        tables = [Table((i, i + 1), np.log(rng.random((size, size)))) for i in range(4)]
        problem = Problem(dict.fromkeys(range(5), size), frozenset(), tuple(tables), 0.0, 0.0)
        assert set(supported_states(problem)) == set(range(5))
        holed = tables[2].log_values.copy()
        holed[np.arange(size) != 1] = -np.inf
        problem = replace(problem, tables=(*tables[:2], Table((2, 3), holed), tables[3]))
        found = supported_states(problem)
        assert found[2] == 1
        holed[1] = -np.inf
        assert supported_states(problem) is None
