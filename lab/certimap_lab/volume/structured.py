"""Queries that other families do not make: mixtures of trees, queries shared out, linear-Gaussian networks."""

from __future__ import annotations

import itertools
import math
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder
from certimap.core.domain import Categorical, Domain
from certimap.densities.linear_gaussian import LinearGaussian, LinearGaussianNetwork
from certimap.networks import BayesianNetwork, Factor
from certimap_lab.volume import models
from certimap_lab.volume.case import Floats, Truth, VolumeCase

SHARED = ("frontier", "set_elimination", "hbfs", "pac", "smooth_pac")  # what works on parts of a space
LOG_2PI = math.log(2.0 * math.pi)


def tree_mixture(rng: np.random.Generator) -> VolumeCase:
    """A weighted sum of circuits that part the variables in different ways."""
    sizes = rng.integers(2, 4, int(rng.integers(4, 8))).tolist()
    while math.prod(sizes) > models.LARGEST:
        sizes.pop()
    domain = Domain.of_sizes(sizes)
    model = _forest(rng, domain, int(rng.integers(2, 5)), int(rng.integers(3, 7)))
    case = models.model_case("mixtures of trees", rng, model, models.table_of_circuit(model))
    if rng.random() < 0.6:  # the search that bounds by trees
        case = replace(case, solver="frontier", others=(str(case.solver), *case.others))
    return case


def _forest(rng: np.random.Generator, domain: Domain, n_trees: int, n_nodes: int) -> Circuit:
    """Return a mixture of region trees, each of which halves the variables in an order of its own."""
    build = CircuitBuilder(domain)

    def log_weights(k: int) -> list[float]:
        return np.log(rng.dirichlet(np.full(k, 0.5)) + 1e-9).tolist()

    def region(scope: list[int], n_sums: int) -> list[int]:
        if len(scope) == 1:
            size = int(domain.n_states[scope[0]])
            return [build.categorical(scope[0], log_weights=log_weights(size)) for _ in range(n_nodes)]
        half = len(scope) // 2
        left, right = region(scope[:half], n_nodes), region(scope[half:], n_nodes)
        pairs = zip(rng.permutation(left).tolist(), rng.permutation(right).tolist(), strict=True)
        products = [build.product([a, b]) for a, b in pairs]
        return [build.sum(products, log_weights=log_weights(n_nodes)) for _ in range(n_sums)]

    tops = [region(rng.permutation(len(domain)).tolist(), 1)[0] for _ in range(n_trees)]
    build.sum(tops, log_weights=log_weights(n_trees))
    return build.build(normalised=False)


class InPlace(Executor):
    """Does what it is given at once, in this process."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function; the future is done."""
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:  # as executors do
            done.set_exception(error)
        return done


def shared_query(rng: np.random.Generator) -> VolumeCase:
    """One query whose space is parted, with the ledgers of all parts merged."""
    make = (models.bayesian, models.markov, models.circuit, models.hidden_tree)[int(rng.integers(4))]
    case = make(rng)
    first, *rest = (SHARED[int(i)] for i in rng.permutation(len(SHARED)))
    settings = {**case.settings, "executor": InPlace()}
    settings["top_k"] = settings.get("top_k")
    return replace(case, family="shared queries", solver=first, others=tuple(rest), settings=settings)


@dataclass(frozen=True)
class _Linear:
    """A linear-Gaussian network written out: per state of its discrete parents a probability, mean and covariance.

    `states` has one row per joint state, in the order of the others' first axis.
    """

    states: Floats
    weights: Floats
    means: Floats
    covariances: Floats

    def log_joint(self, discrete: dict[int, int], values: dict[int, float]) -> float:
        """Return ln of the density of some real variables and the probability of some discrete ones."""
        fits = np.all([self.states[:, v] == s for v, s in discrete.items()] or [np.ones(len(self.states))], axis=0)
        real = sorted(values)
        x = np.array([values[v] for v in real])
        logs = [
            math.log(float(self.weights[c]))
            + _log_normal(x, self.means[c][real], self.covariances[c][np.ix_(real, real)])
            for c in np.flatnonzero(fits)
        ]
        return float(np.logaddexp.reduce(logs))

    def peaks(self, queried: list[int], observed: dict[int, float]) -> list[tuple[int, Floats, Floats]]:
        """Return, for each joint state, where the queried real variables are densest, and how wide they are."""
        found: list[tuple[int, Floats, Floats]] = []
        seen = sorted(observed)
        for c in range(len(self.weights)):
            mean, cov = self.means[c], self.covariances[c]
            forward: Floats = np.asarray(cov[np.ix_(queried, seen)], np.float64)
            gain = forward @ np.linalg.inv(np.asarray(cov[np.ix_(seen, seen)], np.float64))
            shift: Floats = np.array([observed[v] for v in seen]) - mean[seen]
            left: Floats = np.asarray(cov[np.ix_(queried, queried)], np.float64) - gain @ forward.T
            found.append((c, mean[queried] + gain @ shift, np.sqrt(np.maximum(np.diag(left), 1e-12))))
        return found


def _log_normal(x: Floats, mean: Floats, cov: Floats) -> float:
    if not len(x):
        return 0.0
    factor = np.linalg.cholesky(cov)
    z = np.linalg.solve(factor, x - mean)
    return -0.5 * float(z @ z) - float(np.sum(np.log(np.diag(factor)))) - 0.5 * len(x) * LOG_2PI


def _network(rng: np.random.Generator, n_real: int, n_discrete: int) -> tuple[LinearGaussianNetwork, _Linear]:
    """Return a random network and the same written out."""
    shape = [2] * n_discrete
    B = rng.normal(0.0, 1.0, [*shape, n_real, n_real]) * np.tri(n_real, k=-1)
    intercepts, sds = rng.normal(0.0, 2.0, [*shape, n_real]), rng.choice([0.3, 1.0, 2.0], [*shape, n_real])
    parents = [f"d{i}" for i in range(n_discrete)]
    nodes = [
        LinearGaussian(
            f"x{v}", [*(f"x{u}" for u in range(v)), *parents], intercepts[..., v], B[..., v, :v], sds[..., v]
        )
        for v in range(n_real)
    ]
    weights, discrete = np.ones(1), None
    if n_discrete:
        tables = [rng.dirichlet([1.0, 1.0], [2] * i) for i in range(n_discrete)]
        domain = Domain([Categorical(name, (0, 1)) for name in parents])
        discrete = BayesianNetwork(domain, [Factor(list(range(i + 1)), t) for i, t in enumerate(tables)])
        weights = np.ones(shape)
        for i, t in enumerate(tables):
            weights = weights * t.reshape([2] * (i + 1) + [1] * (n_discrete - i - 1))
    inverse = np.linalg.inv(np.eye(n_real) - B.reshape(-1, n_real, n_real))
    means = np.einsum("cij,cj->ci", inverse, intercepts.reshape(-1, n_real))
    covariances = np.einsum("cij,cj,ckj->cik", inverse, sds.reshape(-1, n_real) ** 2, inverse)
    states = np.array(list(itertools.product(*(range(2) for _ in shape)))).reshape(len(means), n_discrete)
    return LinearGaussianNetwork(nodes, discrete), _Linear(states, weights.reshape(-1), means, covariances)


def linear_gaussian(rng: np.random.Generator) -> VolumeCase:
    """A linear-Gaussian network, some of whose variables are observed and some summed or integrated out.

    As for mixtures, the best point known may be below the true best: what is false beside it is false.
    """
    n_real, n_discrete = int(rng.integers(1, 5)), int(rng.integers(0, 3))
    model, written = _network(rng, n_real, n_discrete)
    order = rng.permutation(n_real).tolist()
    n_query = int(rng.integers(1, min(n_real, 3) + 1))
    real, rest = sorted(order[:n_query]), order[n_query:]
    row = int(rng.choice(len(written.weights), p=written.weights))
    observed = {v: float(written.means[row, v] + rng.normal()) for v in rest if rng.random() < 0.6}
    discrete = [i for i in range(n_discrete) if rng.random() < 0.5]
    query = [*(f"d{i}" for i in discrete), *(f"x{v}" for v in real)]
    log_evidence = written.log_joint({}, observed)

    def log_density(point: Any) -> float:
        states = {i: int(point[k]) for k, i in enumerate(discrete)}
        values = {v: float(point[len(discrete) + k]) for k, v in enumerate(real)}
        return written.log_joint(states, {**values, **observed}) - log_evidence

    best = -math.inf
    for c, start, scale in written.peaks(real, observed):
        labels = [float(written.states[c, i]) for i in discrete]
        best = max(best, models.climbed(log_density, np.array([*labels, *start]), scale, 1e6))
    solver, others = models.solver_order(rng)
    settings = models.settings_of(rng, n_draws=300)
    settings["max_nodes"] = int(rng.choice([5, 50, 300]))
    settings.pop("top_k", None)
    domain = Domain([model.domain[name] for name in query])
    evidence = {f"x{v}": x for v, x in observed.items()}
    return VolumeCase(
        "linear-Gaussian networks", Truth(domain, log_density, np.array([best]), None), solver, settings, model,
        query, evidence, log_evidence=log_evidence if observed else math.nan, others=others,
    )  # fmt: skip
