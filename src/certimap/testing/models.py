"""Small random models with difficult features: zeros, ties, one-state variables, shared nodes."""

from __future__ import annotations

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.core.domain import Domain
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.factor import Factor
from certimap.testing.posteriors import TablePosterior


def random_domain(rng: np.random.Generator, *, max_variables: int = 5, max_states: int = 4) -> Domain:
    """Return a domain of 1 to `max_variables` variables with 1 to `max_states` states each.

    Parameters
    ----------
    rng
        The only source of randomness.
    max_variables, max_states
        Maximum number of each.

    Returns
    -------
    Domain
    """
    n = int(rng.integers(1, max_variables + 1))
    return Domain.of_sizes(int(k) for k in rng.integers(1, max_states + 1, n))


def random_table(rng: np.random.Generator, domain: Domain | None = None) -> TablePosterior:
    """Return a random table: skewed or flat, sometimes with zeros, sometimes with ties.

    Parameters
    ----------
    rng
        The only source of randomness.
    domain
        Its variables; None for random ones.

    Returns
    -------
    TablePosterior
    """
    domain = random_domain(rng) if domain is None else domain
    n = int(np.prod(domain.n_states))
    probs = rng.gamma(rng.choice([0.1, 1.0, 20.0]), size=n)
    if rng.random() < 0.3:
        probs[rng.random(n) < 0.4] = 0.0
    if rng.random() < 0.3:
        probs = np.ceil(4.0 * probs / max(probs.max(), 1e-300))
    if not probs.sum() > 0.0:
        probs[int(rng.integers(n))] = 1.0
    return TablePosterior(domain, probs, looseness=float(rng.choice([0.0, 0.5])))


def random_circuit(
    rng: np.random.Generator, domain: Domain, *, n_components: int = 3, zeros: float = 0.2
) -> Circuit:
    """Return a random smooth and decomposable circuit over categorical variables.

    Scopes are split at random. Parents share each scope's pool of mixtures, so that the circuit is a graph, not a
    tree.

    Parameters
    ----------
    rng
        The only source of randomness.
    domain
        Its variables.
    n_components
        Mixtures per scope.
    zeros
        The probability that a state is impossible in a leaf.

    Returns
    -------
    Circuit
    """
    build = CircuitBuilder(domain)

    def leaf(variable: int) -> int:
        size = int(domain.n_states[variable])
        weights = rng.gamma(0.7, size=size) + 1e-9
        dropped = rng.random(size) < zeros
        dropped[int(rng.integers(size))] = False
        weights[dropped] = 0.0
        with np.errstate(divide="ignore"):
            return build.categorical(variable, log_weights=np.log(weights / weights.sum()))

    def pool(scope: list[int]) -> list[int]:
        if len(scope) == 1:
            return [leaf(scope[0]) for _ in range(n_components)]
        order = [scope[int(i)] for i in rng.permutation(len(scope))]
        cut = int(rng.integers(1, len(order)))
        left, right = pool(order[:cut]), pool(order[cut:])
        products = [
            build.product([left[int(rng.integers(len(left)))], right[int(rng.integers(len(right)))]])
            for _ in range(n_components + 1)
        ]
        return [mixture(products) for _ in range(n_components)]

    def mixture(children: list[int]) -> int:
        weights = rng.dirichlet(np.ones(len(children)))
        return build.sum(children, log_weights=[float(w) for w in np.log(weights + 1e-12)])

    mixture(pool(list(range(len(domain)))))
    return build.build(normalised=False)


def random_network(
    rng: np.random.Generator, domain: Domain, *, max_parents: int = 2, zeros: float = 0.1
) -> BayesianNetwork:
    """Return a random Bayesian network: each variable has up to `max_parents` earlier variables as parents."""
    factors: list[Factor] = []
    for child in range(len(domain)):
        n = int(rng.integers(0, min(child, max_parents) + 1))
        parents = sorted(int(p) for p in rng.choice(child, n, replace=False)) if n else []
        shape = [int(domain.n_states[v]) for v in (*parents, child)]
        table = rng.gamma(0.7, size=shape) + 1e-6
        dropped = rng.random(shape) < zeros
        dropped[..., int(rng.integers(shape[-1]))] = False
        table[dropped] = 0.0
        factors.append(Factor((*parents, child), table / table.sum(axis=-1, keepdims=True)))
    return BayesianNetwork(domain, factors)
