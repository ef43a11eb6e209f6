"""Small models whose numbers differ by hundreds of orders of magnitude, and their posteriors in 60 digits."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import mpmath
import numpy as np

from certimap.core.domain import Domain
from certimap.core.query import Query, make_query

mpmath.mp.dps = 60


@dataclass
class WideCase:
    """Factors (scope, natural logs) over observables and latents, a query over the observables, a tree or None."""

    factors: list
    sizes: list[int]
    query: Query
    tree: dict | None

    def points(self):
        counts = [range(int(k)) for k in self.query.query_domain.n_states]
        return np.array(list(itertools.product(*counts)), np.int16)

    def exact(self):
        """Return (p(e), p(q, e) of every point in row-major order) as mpmath numbers, by enumeration."""
        tables = [(scope, _exp(logs), logs.shape) for scope, logs in self.factors]
        domain = self.query.domain
        for v in range(len(domain)):
            logs = self.query.log_weights[domain.offsets[v] : domain.offsets[v + 1]]
            tables.append(((v,), _exp(logs), logs.shape))
        totals: dict = {}
        for state in itertools.product(*(range(k) for k in self.sizes)):
            product = mpmath.mpf(1)
            for scope, values, shape in tables:
                product *= values[int(np.ravel_multi_index([state[v] for v in scope], shape))]
                if not product:
                    break
            key = tuple(state[int(v)] for v in self.query.variables)
            totals[key] = totals.get(key, mpmath.mpf(0)) + product
        values = [totals[key] for key in sorted(totals)]
        return mpmath.fsum(values), values


def _exp(logs):
    return [mpmath.exp(x) if x > -np.inf else mpmath.mpf(0) for x in logs.ravel().tolist()]


def log_of(value) -> float:
    """Return the natural log of an mpmath number as a double; -inf of 0."""
    return float(mpmath.log(value)) if value else -np.inf


def wide_logs(rng, shape, span):
    """Logs that are uniform down to -span, with zeros, and entries near 1."""
    logs = -span * rng.random(shape)
    logs[rng.random(shape) < 0.15] = 0.0
    logs[rng.random(shape) < 0.1] = -1e-17
    logs[rng.random(shape) < 0.1] = -np.inf
    return logs


def wide_latent_tree(rng) -> WideCase:
    """A tree of latent variables (a chain, or naive Bayes, at times) with tables of any size."""
    n, n_latents = int(rng.integers(2, 7)), int(rng.integers(1, 4))
    sizes = [int(k) for k in rng.integers(2, 4, n)]
    states = [int(k) for k in rng.integers(1, 4, n_latents)]
    chain = rng.random() < 0.3
    parent = np.array([-1] + [i - 1 if chain else int(rng.integers(i)) for i in range(1, n_latents)])
    span = float(rng.choice([2.0, 400.0, 750.0, 2000.0]))
    transitions = [
        np.zeros((1, 1)) if parent[i] < 0 else wide_logs(rng, (states[parent[i]], states[i]), span)
        for i in range(n_latents)
    ]
    prior = wide_logs(rng, (states[0],), span)
    latent_of = np.sort(rng.integers(0, n_latents, n))
    emissions = [wide_logs(rng, (states[latent_of[v]], sizes[v]), span) for v in range(n)]
    factors = [((n + int(latent_of[v]), v), emissions[v]) for v in range(n)]
    factors.append(((n,), prior))
    factors += [((n + int(parent[i]), n + i), transitions[i]) for i in range(1, n_latents)]
    tree = {
        "parent": parent,
        "transitions": transitions,
        "priors": {0: prior},
        "latent_of": latent_of,
        "emissions": emissions,
        "root": None if rng.random() < 0.5 else int(rng.integers(n_latents)),
    }
    return WideCase(factors, sizes + states, _query(rng, sizes), tree)


def wide_network(rng) -> WideCase:
    """Factors at random over few variables."""
    n = int(rng.integers(2, 7))
    sizes = [int(k) for k in rng.integers(1, 4, n)]
    span = float(rng.choice([2.0, 400.0, 750.0, 2000.0]))
    factors = [((v,), np.zeros(sizes[v])) for v in range(n)]
    for _ in range(int(rng.integers(n - 1, 2 * n))):
        scope = tuple(int(v) for v in rng.choice(n, size=min(n, int(rng.integers(1, 4))), replace=False))
        shift = float(rng.choice([0.0, -900.0, 900.0]))
        factors.append((scope, wide_logs(rng, [sizes[v] for v in scope], span) + shift))
    return WideCase(factors, sizes, _query(rng, sizes), None)


def _query(rng, sizes):
    n = len(sizes)
    perm = rng.permutation(n)
    n_query = int(rng.integers(1, min(n, 5) + 1))
    evidence = {}
    for v in perm[n_query:]:
        kind = rng.random()
        if kind < 0.3:
            evidence[str(v)] = int(rng.integers(sizes[v]))
        elif kind < 0.6:
            evidence[str(v)] = (10.0 ** rng.uniform(-300, 300, sizes[v])).tolist()
    return make_query(Domain.of_sizes(sizes), [str(v) for v in perm[:n_query]], evidence)


def wide_case(rng) -> WideCase:
    return wide_network(rng) if rng.random() < 0.4 else wide_latent_tree(rng)


def build_wide(case: WideCase):
    """Return the case as a tree of regions."""
    from bucket_twin import tree_of_network

    from certimap.networks import Factor, MarkovNetwork
    from certimap.trees.bucket_tree import BucketTreePosterior
    from certimap.trees.wide import Wide

    if case.tree is None:
        factors = [Factor.from_log(scope, logs) for scope, logs in case.factors]
        return tree_of_network(MarkovNetwork(case.query.domain, factors), case.query)
    tree = dict(case.tree)
    for name in ("transitions", "emissions"):
        tree[name] = [Wide.of_logs(logs) for logs in tree[name]]
    tree["priors"] = {i: Wide.of_logs(logs) for i, logs in tree["priors"].items()}
    return BucketTreePosterior.from_tree(query=case.query, **tree)
