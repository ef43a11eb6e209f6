"""Hostile networks: naive Bayes with thousands of features, chains, HMMs, hidden trees, random factors."""

from __future__ import annotations

from typing import Any

import numpy as np

from certimap.core.domain import Domain
from certimap.learn.hidden_model import HiddenChowLiuModel
from certimap.networks import BayesianNetwork, Factor, MarkovNetwork
from certimap_lab.hostile.case import HostileCase, choose_evidence, choose_query
from certimap_lab.hostile.exact import from_floats, from_logs
from certimap_lab.hostile.numbers import Floats, log_vector, pick_style, rows, shuffled
from certimap_lab.hostile.oracles import factor_truth, hidden_tree_truth

Tables = list[tuple[tuple[int, ...], Floats]]


def bayesian_case(domain: Domain, tables: Tables, query: list[str], evidence: dict[str, Any]) -> HostileCase:
    """Return the case of a query to a Bayesian network given by its conditional tables."""
    model = BayesianNetwork(domain, [Factor(scope, table) for scope, table in tables])
    factors = [(scope, from_floats(table)) for scope, table in tables]
    return HostileCase(model, query, evidence, factor_truth(domain, factors, query, evidence))


def naive_bayes(rng: np.random.Generator) -> HostileCase:
    """A class with many features; evidence may leave a class e^-700 to e^-5000 below another.

    Then the queried features may bring it back to the top, once enough of them are decided.
    """
    n_classes = int(rng.integers(2, 4))
    n_evidence = int(rng.choice([0, 10, 100, 900, 2500], p=[0.2, 0.3, 0.3, 0.17, 0.03]))
    n_query = int(rng.choice([1, 3, 8, 300, 1200], p=[0.3, 0.3, 0.3, 0.07, 0.03]))
    if n_query > 100:
        n_evidence = min(n_evidence, 900)
    domain = Domain.of_sizes([n_classes, *[2] * (n_evidence + n_query)])
    prior = rows(rng, (n_classes,), pick_style(rng, logs=False))
    seen, asked = _feature_tables(rng, n_classes), _feature_tables(rng, n_classes)
    tables: Tables = [((0,), prior)]
    tables += [((0, v), seen[int(rng.integers(len(seen)))]) for v in range(1, n_evidence + 1)]
    # With one table for all asked features the best state may be the same in every class.
    tables += [((0, v), asked[int(rng.integers(len(asked)))]) for v in range(n_evidence + 1, len(domain))]
    evidence: dict[str, Any] = {domain.names[v]: int(rng.random() < 0.9) for v in range(1, n_evidence + 1)}
    query = list(domain.names[n_evidence + 1 :])
    if len(query) > 20 or rng.random() < 0.7:
        query.insert(0, "0")
    if len(query) > 11:
        return bayesian_case(domain, tables, query, evidence)
    return bayesian_case(domain, tables, query[:8], evidence)


def _feature_tables(rng: np.random.Generator, n_classes: int) -> list[Floats]:
    """Return a few conditional tables of binary features."""
    kind = int(rng.integers(0, 4))
    if kind == 0:
        return [rows(rng, (n_classes, 2), pick_style(rng, logs=False)) for _ in range(3)]
    if kind == 1:  # what the classes disagree about
        ones = rng.choice([1 / 3, 2 / 3, 0.5, 0.01, 0.99, 0.9], n_classes, replace=False)
    elif kind == 2:  # the same best state in each class
        ones = rng.choice([0.6, 0.9, 0.99, 1.0 - 1e-10], n_classes)
    else:
        ones = rng.choice([1e-13, 1e-17, 1e-300, 0.0, 0.5], n_classes)
    return [np.stack([1.0 - ones, ones], axis=1)]


def chain(rng: np.random.Generator) -> HostileCase:
    """A Markov chain: all of it, or a few of its variables with the rest observed or summed."""
    n = int(rng.choice([3, 6, 40, 400], p=[0.3, 0.4, 0.2, 0.1]))
    k = int(rng.integers(2, 4))
    domain = Domain.of_sizes([k] * n)
    styles = [pick_style(rng, logs=False) for _ in range(3)]
    kinds = [rows(rng, (k, k), style) for style in styles]
    tables: Tables = [((0,), rows(rng, (k,), styles[0]))]
    tables += [((v - 1, v), kinds[int(rng.integers(3))]) for v in range(1, n)]
    return bayesian_case(domain, tables, *_few_or_all(rng, domain, list(domain.names)))


def hmm(rng: np.random.Generator) -> HostileCase:
    """A hidden Markov model with all symbols observed: the whole path, or a few of its states."""
    n = int(rng.choice([3, 20, 300], p=[0.5, 0.4, 0.1]))
    k, n_symbols = int(rng.integers(2, 4)), int(rng.integers(2, 4))
    domain = Domain.of_sizes([k] * n + [n_symbols] * n)
    styles = [pick_style(rng, logs=False) for _ in range(3)]
    moves, emits = [rows(rng, (k, k), s) for s in styles[:2]], [rows(rng, (k, n_symbols), s) for s in styles[1:]]
    tables: Tables = [((0,), rows(rng, (k,), "mild"))]
    tables += [((v - 1, v), moves[int(rng.integers(2))]) for v in range(1, n)]
    tables += [((v, n + v), emits[int(rng.integers(2))]) for v in range(n)]
    query, evidence = _few_or_all(rng, domain, list(domain.names[:n]))
    for v in range(n, 2 * n):
        evidence[domain.names[v]] = int(rng.integers(n_symbols))
    return bayesian_case(domain, tables, query, evidence)


def _few_or_all(rng: np.random.Generator, domain: Domain, names: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Query all of some variables, or a few of them with evidence on others."""
    if rng.random() < 0.5:
        return names, {}
    few = [names[i] for i in shuffled(rng, len(names))[:12]]
    query = choose_query(rng, domain, candidates=few)
    return query, choose_evidence(rng, domain.subset([domain.index(name) for name in names]), query)


def bayesian(rng: np.random.Generator) -> HostileCase:
    """A random Bayesian network of a few variables."""
    n = int(rng.integers(2, 8))
    domain = Domain.of_sizes(rng.integers(2, 4, n).tolist())
    order = shuffled(rng, n)
    tables: Tables = []
    for i, child in enumerate(order):
        parents = [order[j] for j in shuffled(rng, i)[: int(rng.integers(0, 3))]]
        shape = tuple(int(domain.n_states[v]) for v in [*parents, child])
        tables.append(((*parents, child), rows(rng, shape, pick_style(rng, logs=False))))
    query = choose_query(rng, domain)
    return bayesian_case(domain, tables, query, choose_evidence(rng, domain, query))


def markov(rng: np.random.Generator) -> HostileCase:
    """A Markov network whose factors are given by logs, also such as no float holds outside of logs."""
    domain, factors = log_factors(rng)
    model = MarkovNetwork(domain, [Factor.from_log(scope, logs) for scope, logs in factors])
    query = choose_query(rng, domain)
    evidence = choose_evidence(rng, domain, query)
    exact = [(scope, from_logs(logs)) for scope, logs in factors]
    return HostileCase(model, query, evidence, factor_truth(domain, exact, query, evidence))


def log_factors(rng: np.random.Generator) -> tuple[Domain, Tables]:
    """Return random factors of a few variables as natural logs; every variable has one at least."""
    n = int(rng.integers(1, 7))
    domain = Domain.of_sizes(rng.integers(2, 4, n).tolist())
    tables: Tables = []
    for i in range(n + int(rng.integers(0, 3))):
        others = [v for v in shuffled(rng, n) if v != i][: int(rng.integers(0, 3))]
        scope = tuple(others if i >= n else [i, *others])
        shape = [int(domain.n_states[v]) for v in scope]
        logs = log_vector(rng, int(np.prod(shape)), pick_style(rng)).reshape(shape)
        tables.append((scope, logs))
    return domain, tables


def hidden_tree(rng: np.random.Generator) -> HostileCase:
    """A hidden Chow-Liu tree: a few queried variables, or all of a tree with one latent state."""
    n = int(rng.choice([2, 5, 12, 200], p=[0.3, 0.35, 0.25, 0.1]))
    k = int(rng.integers(1, 4))
    domain = Domain.of_sizes([2] * n if n > 12 else rng.integers(2, 4, n).tolist())
    parent = np.array([-1, *(int(rng.integers(max(0, i - 3), i)) for i in range(1, n))], np.int64)
    moves = [rows(rng, (k, k), pick_style(rng, logs=False)) for _ in range(2)]
    transition = np.stack([moves[int(rng.integers(2))] for _ in range(n)])
    styles = [pick_style(rng, logs=False) for _ in range(2)]
    binary = [rows(rng, (k, 2), style) for style in styles]
    emission = [
        binary[int(rng.integers(2))] if m == 2 else rows(rng, (k, int(m)), styles[0]) for m in domain.n_states
    ]
    prior = rows(rng, (k,), pick_style(rng, logs=False))
    model = HiddenChowLiuModel(domain, parent, prior, transition, emission)
    if k == 1 and rng.random() < 0.5:
        query, evidence = list(domain.names), dict[str, Any]()
    else:
        few = [domain.names[i] for i in shuffled(rng, n)[:10]]
        query = choose_query(rng, domain, candidates=few)
        evidence = choose_evidence(rng, domain, query)
    return HostileCase(model, query, evidence, hidden_tree_truth(model, query, evidence))
