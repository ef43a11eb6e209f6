"""Random small models of real variables for proofs under attack: circuits, full covariances, networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from certimap.ask.api import condition
from certimap.checker import Proof
from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.core.domain import Categorical, Domain, Real
from certimap.core.posterior import Draws, Posterior, Probes
from certimap.densities.gaussian_mixture import GaussianMixture
from certimap.densities.linear_gaussian import LinearGaussian, LinearGaussianNetwork
from certimap.errors import CertimapError
from certimap.networks.bayesian import BayesianNetwork
from certimap_lab.conformance.solver_cases import highest_found
from certimap_lab.proofs import MARGIN, Case

KINDS = ("gaussian", "gaussian", "truncated_gaussian", "uniform", "exponential", "laplace", "student_t")


@dataclass(frozen=True, eq=False)
class RealCase(Case):
    """A query with real variables; `log_values` holds the largest value that draws and local searches found."""

    def is_true(self, proof: Proof) -> bool:
        """Whether nothing that was found is better than a claim with delta 0 allows, small differences granted."""
        claim = proof.meta["claim"]
        posterior = condition(self.model, self.variables, self.evidence, workers=1)
        point = posterior.domain.encode(dict(proof.meta["answer"]))
        found = float(posterior.log_prob(point[None])[0])
        slack = np.log1p(claim["tolerance"]) - np.log1p(-claim["epsilon"]) + MARGIN
        return found >= float(self.log_values.max()) - slack


def random_real_case(seed: int) -> RealCase:
    """Return case number `seed`: a circuit, a mixture of Gaussians, or a linear-Gaussian network, in turn."""
    rng = np.random.default_rng([seed, 7])
    make = (_circuit, _mixture, _network)[seed % 3]
    while True:
        model = make(rng)
        order = [model.domain.names[int(i)] for i in rng.permutation(len(model.domain))]
        n_query = int(rng.integers(1, len(order) + 1))
        variables, rest = order[:n_query], order[n_query:]
        evidence = {name: _seen(rng, model.domain, name) for name in rest if rng.random() < 0.5}
        for name in variables:
            if isinstance(model.domain[name], Real) and rng.random() < 0.2:
                low = float(rng.normal())
                evidence[name] = (low, low + float(rng.exponential()) + 0.1)
        try:
            posterior = condition(model, variables, evidence, workers=1)
        except CertimapError:
            continue  # evidence of density 0
        return RealCase(model, variables, evidence, np.array([_best(posterior, rng)]))


def _best(posterior: Posterior, rng: np.random.Generator) -> float:
    """Return the largest value that draws find, or, where none can be made, a probe's climbs."""
    if isinstance(posterior, Draws) and not np.any(posterior.domain.n_states == 0):
        return float(np.max(posterior.log_prob(posterior.sample(500, rng))))
    found = [-np.inf]
    if isinstance(posterior, Draws):
        found.append(highest_found(posterior, rng))
    if isinstance(posterior, Probes):
        found.append(float(np.max(posterior.log_prob(posterior.prober().starts()), initial=-np.inf)))
    return max(found)


def _seen(rng: np.random.Generator, domain: Domain, name: str) -> Any:
    variable = domain[name]
    if isinstance(variable, Categorical):
        return variable.states[int(rng.integers(len(variable.states)))]
    return float(rng.normal())


def _circuit(rng: np.random.Generator) -> Circuit:
    n_real, n_parts = int(rng.integers(1, 4)), int(rng.integers(1, 6))
    labels = [
        Categorical(f"c{i}", tuple("abc"[: int(rng.integers(2, 4))])) for i in range(int(rng.integers(0, 3)))
    ]
    builder = CircuitBuilder(Domain([*(Real(f"x{d}") for d in range(n_real)), *labels]))
    parts: list[int] = []
    for _ in range(n_parts):
        leaves = [_leaf(builder, rng, d) for d in range(n_real)]
        for k, label in enumerate(labels, n_real):
            leaves.append(
                builder.categorical(k, log_weights=np.log(rng.dirichlet(np.ones(len(label.states)))).tolist())
            )
        parts.append(builder.product(leaves) if len(leaves) > 1 else leaves[0])
    builder.sum(parts, log_weights=np.log(rng.dirichlet(np.ones(n_parts))).tolist())
    return builder.build(normalised=False)


def _leaf(builder: CircuitBuilder, rng: np.random.Generator, d: int) -> int:
    mean, scale = float(rng.normal()), float(10.0 ** rng.uniform(-0.7, 0.5))
    kind = str(rng.choice(KINDS))
    parameters = {
        "truncated_gaussian": (mean, scale, mean - scale, mean + 2.0 * scale),
        "uniform": (mean - scale, mean + scale),
        "exponential": (1.0 / scale,),
        "student_t": (mean, scale, float(rng.uniform(1.0, 6.0))),
    }.get(kind, (mean, scale))
    return builder.real(kind, d, *parameters)


def _mixture(rng: np.random.Generator) -> GaussianMixture:
    n, k = int(rng.integers(1, 5)), int(rng.integers(1, 6))
    roots = rng.normal(size=(k, n, n))
    covariances = roots @ np.swapaxes(roots, 1, 2) / n + 0.05 * np.eye(n)
    return GaussianMixture(rng.dirichlet(np.ones(k)), rng.normal(size=(k, n)), covariances)


def _network(rng: np.random.Generator) -> LinearGaussianNetwork:
    """Return a network of reals in a chain of ancestors, each perhaps below discrete ones."""
    labels = {f"c{i}": list("abc"[: int(rng.integers(2, 4))]) for i in range(int(rng.integers(0, 3)))}
    names = list(labels)
    above = {name: names[:i] for i, name in enumerate(names) if i}
    tables: dict[str, Any] = {}
    for i, name in enumerate(names):
        shape = [len(labels[u]) for u in names[:i]]
        tables[name] = rng.dirichlet(np.ones(len(labels[name])), size=shape).tolist()
    discrete = BayesianNetwork.from_cpts(labels, above, tables) if labels else None
    nodes: list[LinearGaussian] = []
    for i in range(int(rng.integers(1, 5))):
        parents = [node.variable for node in nodes if rng.random() < 0.6]
        chosen = [name for name in names if rng.random() < 0.5]
        shape = tuple(len(labels[name]) for name in chosen)
        coefficients = rng.normal(size=(*shape, len(parents)))
        sd = rng.uniform(0.3, 1.5, shape)
        nodes.append(LinearGaussian(f"x{i}", [*chosen, *parents], rng.normal(size=shape), coefficients, sd))
    return LinearGaussianNetwork(nodes, discrete)
