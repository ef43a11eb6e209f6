"""Networks and circuits evaluated the slow way, and random networks to try them on."""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import strategies as st

from certimap.core.domain import Domain
from certimap.networks import BayesianNetwork, Factor, MarkovNetwork

CATEGORICAL, GAUSSIAN, PRODUCT, SUM = range(4)


def all_points(sizes):
    return np.array(list(itertools.product(*(range(k) for k in sizes))), np.int64).reshape(-1, len(sizes))


def positive_network(rng, n=5):
    """Return a random Bayesian network of variables v0, v1, ... without zeros, each with up to two parents."""
    sizes = {f"v{i}": int(rng.integers(2, 4)) for i in range(n)}
    names = list(sizes)
    parents = {name: names[max(0, i - 2) : i] for i, name in enumerate(names)}
    tables = {name: rng.dirichlet(np.ones(sizes[name]), [sizes[p] for p in parents[name]]) for name in names}
    return BayesianNetwork.from_cpts({k: range(v) for k, v in sizes.items()}, parents, tables)


def network_value(network, point):
    """The product of all factors at one point, by plain indexing."""
    value = 1.0
    for factor in network.factors:
        value *= float(factor.table[tuple(point[v] for v in factor.scope)])
    return value


def circuit_value(circuit, point):
    """The value of a circuit at one discrete point, node by node."""
    values = []
    for node in range(circuit.n_nodes):
        children = [values[c] for c in circuit.children_of(node)]
        kind = circuit.kind[node]
        if kind == CATEGORICAL:
            values.append(math.exp(circuit.params_of(node)[point[circuit.leaf_var[node]]]))
        elif kind == PRODUCT:
            values.append(math.prod(children))
        else:
            low, high = circuit.child_ptr[node : node + 2]
            weights = circuit.log_weights[low:high]
            values.append(sum(math.exp(w) * c for w, c in zip(weights, children, strict=True)))
    return values[-1]


def marginal(network, query):
    """Sum the network over all points, weighed by a query's evidence, onto the query variables."""
    domain = network.domain
    totals = {}
    for point in all_points(domain.n_states):
        weight = network_value(network, point)
        for i, state in enumerate(point):
            weight *= math.exp(query.log_weights[domain.offsets[i] + state])
        key = tuple(int(point[i]) for i in query.variables)
        totals[key] = totals.get(key, 0.0) + weight
    return totals


# Zeros, equal rows and context-specific independence are common on purpose.
_entries = st.sampled_from([0.0, 0.0, 0.25, 0.5, 1.0, 2.0, 3.7])


@st.composite
def networks(draw, max_variables=6):
    """A small Bayesian or Markov network with zeros, repeated scopes, constants and loose variables."""
    n = draw(st.integers(1, max_variables))
    sizes = draw(st.lists(st.integers(1, 3), min_size=n, max_size=n))
    domain = Domain.of_sizes(sizes)
    if draw(st.booleans()):
        factors = []
        for _ in range(draw(st.integers(0, n + 2))):
            scope = draw(st.lists(st.integers(0, n - 1), unique=True, max_size=3))
            factors.append(Factor(scope, _table(draw, [sizes[v] for v in scope])))
        return MarkovNetwork(domain, factors)
    order = draw(st.permutations(range(n)))
    cpts = []
    for k, child in enumerate(order):
        parents = draw(st.lists(st.sampled_from(order[:k]), unique=True, max_size=3)) if k else []
        table = _table(draw, [sizes[v] for v in [*parents, child]])
        table = np.where(table.sum(axis=-1, keepdims=True) == 0.0, 1.0, table)
        cpts.append(Factor([*parents, child], table / table.sum(axis=-1, keepdims=True)))
    return BayesianNetwork(domain, cpts)


def _table(draw, shape):
    size = math.prod(shape)
    return np.array(draw(st.lists(_entries, min_size=size, max_size=size))).reshape(shape)


@st.composite
def queries(draw, domain):
    """Query variables and evidence (hard, sets, likelihoods, also on query variables) by name."""
    names = draw(st.permutations(domain.names))
    query = names[: draw(st.integers(1, len(names)))]
    evidence = {}
    for name in names:
        states = domain[name].states
        kind = draw(st.sampled_from(["none", "none", "set", "weights"] + ["hard"] * (name not in query)))
        if kind == "hard":
            evidence[name] = draw(st.sampled_from(states))
        elif kind == "set":
            evidence[name] = draw(st.sets(st.sampled_from(states), min_size=1))
        elif kind == "weights":
            weights = draw(st.lists(_entries, min_size=len(states), max_size=len(states)))
            evidence[name] = {"likelihood": weights if any(weights) else [1.0] * len(states)}
    return list(query), evidence
