"""Slow twins of network problems: enumeration of every joint state, in plain Python loops over the query."""

from __future__ import annotations

import itertools
import math

import numpy as np

from certimap.networks.problem import Problem, Table


def random_problem(rng, *, max_variables=8, max_states=4, zeros=None, nuisance=0.0, ties=None):
    """Draw a small problem with zeros, ties and repeated scopes; some assignment has a positive value."""
    n = int(rng.integers(1, max_variables + 1))
    sizes = {10 + 3 * i: int(rng.integers(1 if rng.random() < 0.1 else 2, max_states + 1)) for i in range(n)}
    names = list(sizes)
    query = frozenset(v for v in names if rng.random() >= nuisance) or frozenset(names[:1])
    zeros = float(rng.choice([0.0, 0.2, 0.4])) if zeros is None else zeros
    ties = rng.random() < 0.3 if ties is None else ties
    witness = {v: int(rng.integers(sizes[v])) for v in names}
    tables = []
    for _ in range(int(rng.integers(1, 2 * n + 3))):
        k = int(rng.integers(1, min(n, 3) + 1))
        scope = tuple(names[int(i)] for i in rng.choice(n, k, replace=False))
        values = rng.normal(size=[sizes[v] for v in scope]) * 2.0
        if ties:
            values = np.round(values)
        if rng.random() < 0.2 and k > 1:  # a function of the others
            values[...] = -np.inf
            flat = values.reshape(-1, values.shape[-1])
            flat[np.arange(len(flat)), rng.integers(0, flat.shape[1], len(flat))] = 0.0
        else:
            values[rng.random(values.shape) < zeros] = -np.inf
        index = tuple(witness[v] for v in scope)
        values[index] = 0.0 if values[index] == -np.inf else values[index]
        tables.append(Table(scope, values))
    return Problem(sizes, query, tuple(tables), float(rng.normal()))


def all_values(problem):
    """Return {assignment of the query: log value} by enumeration."""
    query, nuisance = sorted(problem.query), sorted(problem.nuisance)
    found = {}
    for q in itertools.product(*(range(problem.sizes[v]) for v in query)):
        logs = []
        for z in itertools.product(*(range(problem.sizes[v]) for v in nuisance)):
            states = dict(zip(query, q, strict=True)) | dict(zip(nuisance, z, strict=True))
            logs.append(sum(float(t.log_values[tuple(states[v] for v in t.scope)]) for t in problem.tables))
        top = max(logs)
        total = top + math.log(sum(math.exp(x - top) for x in logs)) if top > -math.inf else top
        found[q] = total + float(problem.constant)
    return found


def value_array(problem):
    """Return the query variables in order and the log values of all their assignments, one axis per variable."""
    query = sorted(problem.query)
    return query, np.array(list(all_values(problem).values())).reshape([problem.sizes[v] for v in query])
