"""Random models with their posteriors by brute force, and slow twins of the kernels on sets of vectors."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from certimap.core.domain import Domain
from certimap.core.query import Query, make_query


@dataclass
class Case:
    """A model as factors (latents come after the observables), a query, and how to build it as a tree."""

    factors: list
    sizes: list[int]
    query: Query
    tree: dict | None

    def brute_force(self):
        """Return (ln p(e), p(q | e) for every point in row-major order), by one sum over everything."""
        domain = self.query.domain
        operands = []
        for i in range(len(domain)):
            weights = np.exp(self.query.log_weights[domain.offsets[i] : domain.offsets[i + 1]])
            operands += [weights, [i]]
        for scope, table in self.factors:
            operands += [table, list(scope)]
        joint = np.einsum(*operands, [int(v) for v in self.query.variables], optimize="greedy")
        total = joint.sum()
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log(total), (joint / total).ravel()

    def points(self):
        counts = [range(int(k)) for k in self.query.query_domain.n_states]
        return np.array(list(itertools.product(*counts)), np.int16)


def _query(rng, sizes, max_query):
    n = len(sizes)
    perm = rng.permutation(n)
    n_query = max(int(rng.integers(1, min(n, max_query) + 1)) for _ in range(2))
    n_evidence = int(rng.integers(0, n - n_query + 1))
    evidence = {}
    for v in perm[n_query : n_query + n_evidence]:
        soft = rng.random() < 0.3
        evidence[str(v)] = rng.random(sizes[v]).tolist() if soft else int(rng.integers(sizes[v]))
    if rng.random() < 0.2:
        evidence[str(perm[0])] = rng.random(sizes[perm[0]]).tolist()
    return make_query(Domain.of_sizes(sizes), [str(v) for v in perm[:n_query]], evidence)


def random_network(rng, max_variables=8) -> Case:
    """Factors at random: many-valued variables, zeros, ties."""
    n = int(rng.integers(2, max_variables + 1))
    sizes = [int(k) for k in rng.integers(1, 4, n)]
    factors = [((v,), np.ones(sizes[v])) for v in range(n)]
    coarse = rng.random() < 0.3
    for _ in range(int(rng.integers(n - 1, 2 * n))):
        scope = tuple(int(v) for v in rng.choice(n, size=min(n, int(rng.integers(1, 4))), replace=False))
        table = rng.random([sizes[v] for v in scope]) ** rng.integers(1, 6)
        if coarse:
            table = np.ceil(table * 3) / 3
        table[rng.random(table.shape) < 0.1] = 0.0
        factors.append((scope, table))
    return Case(factors, sizes, _query(rng, sizes, 6), None)


def random_latent_tree(rng, chain=False) -> Case:
    """A forest of latent variables with emissions; a hidden Markov model when `chain`."""
    n = int(rng.integers(2, 11))
    n_latents = int(rng.integers(1, 7))
    sizes = [int(k) for k in rng.integers(2, 4, n)]
    states = [int(k) for k in rng.integers(1, 7, n_latents)]
    parent = np.array([-1] + [i - 1 if chain else int(rng.integers(i)) for i in range(1, n_latents)])
    if n_latents > 2 and rng.random() < 0.2:
        parent[int(rng.integers(1, n_latents))] = -1
    spread = float(rng.choice([0.3, 1.0, 2.0]))
    transitions = [
        np.zeros((1, 1)) if parent[i] < 0 else rng.dirichlet(np.full(states[i], spread), size=states[parent[i]])
        for i in range(n_latents)
    ]
    priors = {i: rng.dirichlet(np.full(states[i], spread)) for i in range(n_latents) if parent[i] < 0}
    latent_of = np.sort(rng.integers(0, n_latents, n))
    emissions = [rng.dirichlet(np.full(sizes[v], spread), size=states[latent_of[v]]) for v in range(n)]
    if rng.random() < 0.3:  # ties and zeros
        emissions = [np.where(e == e.max(axis=1, keepdims=True), 1.0, 0.5 * (e > 0.2)) for e in emissions]
    factors = [((v, n + int(latent_of[v])), emissions[v].T) for v in range(n)]
    factors += [((n + i,), p) for i, p in priors.items()]
    factors += [((n + int(parent[i]), n + i), transitions[i]) for i in range(n_latents) if parent[i] >= 0]
    tree = {
        "parent": parent,
        "transitions": transitions,
        "priors": priors,
        "latent_of": latent_of,
        "emissions": emissions,
        "root": None if rng.random() < 0.5 else int(rng.integers(n_latents)),
    }
    return Case(factors, sizes, _query(rng, sizes, 8), tree)


def random_case(rng) -> Case:
    kind = int(rng.integers(3))
    return random_network(rng) if kind == 0 else random_latent_tree(rng, chain=kind == 2)


def tree_of_network(network, query, *, max_table=4_000_000, order=None, workers=None):
    """Condition a network on a query as a tree of regions, along `order` or by min-fill."""
    from certimap.conversions.from_networks import elimination_order, tree_of_reduced
    from certimap.networks.orders import plan_elimination
    from certimap.networks.reduction import reduce_network

    reduced = reduce_network(network, query)
    if order is None:
        scopes = [f.scope for f in reduced.factors]
        order = elimination_order(reduced, plan_elimination(scopes, reduced.sizes, reduced.query))
    needed = {*reduced.sizes, *reduced.query}
    order = [v for v in order if v in needed]
    return tree_of_reduced(reduced, query, order, max_table=max_table, workers=workers)


def build(case: Case, rng=None, **options):
    """Return the case's bucket tree; with `rng`, networks are eliminated in a random order half of the time."""
    from certimap.networks import Factor, MarkovNetwork
    from certimap.trees.bucket_tree import BucketTreePosterior

    if case.tree is not None:
        return BucketTreePosterior.from_tree(query=case.query, **case.tree, **options)
    order = None
    if rng is not None and rng.random() < 0.5:
        order = [int(v) for v in rng.permutation(len(case.sizes)) if int(v) not in case.query.observed]
    network = MarkovNetwork(case.query.domain, [Factor(scope, table) for scope, table in case.factors])
    return tree_of_network(network, case.query, order=order, **options)


def inside(domain, mask, points):
    """Return bool, shape (boxes, points): which points each box holds."""
    columns = domain.offsets[:-1] + points.astype(np.int64)
    return mask[:, columns].all(axis=2)


def slow_skyband(values, ptr, k):
    alive = np.ones(len(values), bool)
    for c in range(len(ptr) - 1):
        rows = list(range(ptr[c], ptr[c + 1]))
        rows.sort(key=lambda i: (-sum(values[i].tolist()), i))
        for place, v in enumerate(rows):
            above = [w for w in rows[:place] if alive[w] and np.all(values[w] * (1 + 1e-14) >= values[v])]
            alive[v] = len(above) < k
    return alive


def slow_pairs(left, left_ptr, right, right_ptr, context, hidden, functional, threshold):
    """Return {(a, b): score} of the pairs above the threshold, and the products by pair."""
    scores, products = {}, {}
    for c in range(len(left_ptr) - 1):
        for a in range(left_ptr[c], left_ptr[c + 1]):
            for b in range(right_ptr[context[c]], right_ptr[context[c] + 1]):
                product = left[a] * right[b][hidden]
                score = float(product @ functional[c])
                if score > threshold:
                    scores[a, b], products[a, b] = score, product
    return scores, products


def slow_lift(joint, ptr, table, shape, is_query):
    """Return, for each output context, a list of (source row, own state, vector)."""
    n_sq, n_sh, n_rq, n_rh, k = shape
    table = table.reshape(shape)
    out = []
    for sq, rq in itertools.product(range(n_sq), range(n_rq)):
        rows = []
        for v in range(k) if is_query else [None]:
            source = sq if v is None else sq * k + v
            for i in range(ptr[source], ptr[source + 1]):
                vector = np.zeros((n_sh, n_rh))
                for sh, rh in itertools.product(range(n_sh), range(n_rh)):
                    if v is None:
                        vector[sh, rh] = joint[i].reshape(n_sh, k)[sh] @ table[sq, sh, rq, rh]
                    else:
                        vector[sh, rh] = joint[i][sh] * table[sq, sh, rq, rh, v]
                rows.append((i, v, vector.ravel()))
        out.append(rows)
    return out
