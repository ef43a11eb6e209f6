"""Slow twins of the exact oracles: 60-digit mpmath, everything by enumeration of all variables, node by node.

Nothing is shared with `certimap_lab.hostile`: no elimination, no tables, no decimal arithmetic, and evidence
is read by `certimap.core.query`.
"""

from __future__ import annotations

import itertools
import math

import mpmath

from certimap.circuits.circuit import NodeKind

DIGITS = 60


def exp(x):
    return mpmath.mpf(0) if x == -math.inf else mpmath.exp(mpmath.mpf(x))


def joint(model):
    """A function from a full assignment (positions) to its exact weight; hidden trees sum their latent states."""
    if hasattr(model, "child_ptr"):
        return lambda point: circuit_value(model, lambda v, s: exp(0) if s == point[v] else mpmath.mpf(0), {}, {})
    if hasattr(model, "factors"):
        return lambda point: network_value(model, point)
    return lambda point: hidden_value(model, point)


def network_value(network, point):
    value = mpmath.mpf(1)
    for factor in network.factors:
        index = tuple(point[v] for v in factor.scope)
        value *= exp(float(factor.log_table[index])) if factor.in_logs else mpmath.mpf(float(factor.table[index]))
    return value


def hidden_value(model, point):
    """The message of a latent node to its parent, by recursion from the leaves."""
    n, k = len(point), model.n_hidden
    children = [[i for i in range(n) if model.parent[i] == j] for j in range(n)]

    def message(i, z):
        value = mpmath.mpf(float(model.emission[i][z, point[i]]))
        for c in children[i]:
            value *= mpmath.fsum(mpmath.mpf(float(model.transition[c][z, a])) * message(c, a) for a in range(k))
        return value

    root = int(next(i for i in range(n) if model.parent[i] < 0))
    return mpmath.fsum(mpmath.mpf(float(model.root_prior[z])) * message(root, z) for z in range(k))


def circuit_value(circuit, state_weight, values, intervals):
    """The value of a circuit whose states weigh `state_weight(variable, state)`, at real values."""
    found = []
    for node in range(circuit.n_nodes):
        children = [found[c] for c in circuit.children_of(node)]
        kind, v = NodeKind(int(circuit.kind[node])), int(circuit.leaf_var[node])
        params = [float(x) for x in circuit.params_of(node)]
        if kind == NodeKind.PRODUCT:
            found.append(mpmath.fprod(children))
        elif kind == NodeKind.SUM:
            start = int(circuit.child_ptr[node])
            weights = [float(circuit.log_weights[start + i]) for i in range(len(children))]
            found.append(mpmath.fsum(exp(w) * c for w, c in zip(weights, children, strict=True)))
        elif kind == NodeKind.CATEGORICAL:
            found.append(mpmath.fsum(exp(w) * state_weight(v, s) for s, w in enumerate(params)))
        elif v in values:
            found.append(mpmath.npdf(mpmath.mpf(values[v]), mpmath.mpf(params[0]), mpmath.mpf(params[1])))
        else:
            real = circuit.domain.variables[v]
            low, high = intervals.get(v, (real.low, real.high))
            found.append(interval(low, high, *map(mpmath.mpf, params)))
    return found[-1]


def interval(low, high, mean, sd):
    """The mass of a normal distribution, by the complement of the error function with digits to spare."""
    with mpmath.workdps(10 * DIGITS):

        def above(x):
            return mpmath.erfc((mpmath.mpf(x) - mean) / sd / mpmath.sqrt(2)) / 2

        return above(low) - above(high)


def marginal(model, query):
    """p(q, e) of every assignment of the query variables, by enumeration."""
    domain = model.domain
    if hasattr(model, "child_ptr"):
        return _circuit_marginal(model, query)
    weigh, totals = joint(model), {}
    for point in itertools.product(*(range(int(k)) for k in domain.n_states)):
        value = weigh(point)
        for v, state in enumerate(point):
            value *= exp(float(query.log_weights[domain.offsets[v] + state]))
        key = tuple(point[v] for v in query.variables)
        totals[key] = totals.get(key, mpmath.mpf(0)) + value
    return totals


def _circuit_marginal(circuit, query):
    domain, totals = circuit.domain, {}
    sizes = [int(domain.n_states[v]) for v in query.variables]
    for key in itertools.product(*map(range, sizes)):
        asked = dict(zip((int(v) for v in query.variables), key, strict=True))

        def weight(v, state, asked=asked):
            held = asked.get(v, state) == state
            return exp(float(query.log_weights[domain.offsets[v] + state])) if held else mpmath.mpf(0)

        totals[key] = circuit_value(circuit, weight, query.values, query.intervals)
    return totals
