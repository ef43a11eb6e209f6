"""Random models and posteriors under every solver; the truth about them is one table of the joint distribution."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from certimap.circuits.circuit import Circuit, CircuitBuilder, NodeKind
from certimap.core.domain import Categorical, Domain, Real
from certimap.core.posterior import FunctionPosterior
from certimap.learn.hidden_model import HiddenChowLiuModel
from certimap.networks import BayesianNetwork, Factor, MarkovNetwork
from certimap.solvers.registry import names
from certimap.testing.models import BoundedTable, IntervalTable, TablePosterior, random_circuit, random_table
from certimap_lab.volume.beside import Everything
from certimap_lab.volume.case import Floats, Truth, VolumeCase

LARGEST = 3000  # joint states of a model
BESIDE, LARGEST_BESIDE = 0.1, 300  # share of cases of which all else is asked, too, and joint states of these
SECONDS = 20.0  # a solver that has not come to an end by then answers for what it has
PRESETS = frozenset({"paper", "paper_pac"})
OTHER_QUESTIONS = frozenset({"cells"})  # its answers are intervals, and their probabilities


def solver_order(rng: np.random.Generator) -> tuple[str, tuple[str, ...]]:
    """Return a solver at random, and the others in the order to try them where it does not suit."""
    known = [name for name in names() if name not in PRESETS | OTHER_QUESTIONS]
    first, *rest = (known[int(i)] for i in rng.permutation(len(known)))
    return first, tuple(rest)


def settings_of(rng: np.random.Generator, *, n_draws: int = 2000) -> dict[str, Any]:
    """Return what is asked for, and limits, at random."""
    settings: dict[str, Any] = {
        "epsilon": float(rng.choice([0.0, 0.01, 0.05, 0.3])),
        "delta": float(rng.choice([0.0, 0.01, 0.05, 0.1, 0.3])),
        "max_samples": int(rng.choice([0, 10, 100, n_draws], p=[0.05, 0.15, 0.2, 0.6])),
        "rng": int(rng.integers(2**31)),
        "time_limit": SECONDS if rng.random() < 0.99 else 0.002,
    }
    if rng.random() < 0.3:
        settings["max_nodes"] = int(rng.choice([1, 2, 5, 20]))
    if rng.random() < 0.3:
        settings["top_k"] = int(rng.integers(1, 5))
    if rng.random() < 0.15:
        settings["warm_start"] = str(rng.choice(["independent", "max_product", "argmax_product"]))
    return settings


def _rows(rng: np.random.Generator, shape: Sequence[int]) -> Floats:
    """Return conditional distributions: sharp, even or nearly equal, now and then with zeros."""
    weights = rng.gamma(float(rng.choice([0.2, 1.0, 50.0])), size=shape) + 1e-12
    if rng.random() < 0.2:
        weights *= rng.random(shape) < 0.7
        weights[..., 0] += 1e-3
    return weights / weights.sum(axis=-1, keepdims=True)


def _domain(rng: np.random.Generator) -> Domain:
    sizes: list[int] = []
    for k in rng.integers(2, 4, int(rng.integers(2, 10))).tolist():
        if math.prod(sizes) * k <= LARGEST:
            sizes.append(k)
    return Domain.of_sizes(sizes)


def spread(table: Floats, scope: Sequence[int], n: int) -> Floats:
    """Give a table over some variables one axis for each of n."""
    order = np.argsort(scope)
    shape = [1] * n
    for axis in order.tolist():
        shape[scope[axis]] = table.shape[axis]
    return table.transpose(order).reshape(shape)


def _evidence(
    rng: np.random.Generator, domain: Domain, query: Sequence[str], unobserved: Collection[int] = ()
) -> tuple[dict[str, Any], dict[int, Floats]]:
    """Return evidence as a user gives it, and the same as one weight per state by variable."""
    given: dict[str, Any] = {}
    weights: dict[int, Floats] = {}
    rate = float(rng.choice([0.0, 0.3, 0.8]))
    for i, variable in enumerate(domain):
        if rng.random() > rate or i in unobserved:
            continue
        k = int(domain.n_states[i])
        kind = int(rng.integers(4))
        if kind <= 1 and variable.name not in query:
            state = int(rng.integers(k))
            given[variable.name], weights[i] = state, np.eye(k)[state]
        elif kind == 2 and k > 2:
            left_out = int(rng.integers(k))
            given[variable.name] = {s for s in range(k) if s != left_out}
            weights[i] = 1.0 - np.eye(k)[left_out]
        else:
            likelihood = rng.random(k) + 1e-3
            given[variable.name], weights[i] = {"likelihood": likelihood.tolist()}, likelihood
    return given, weights


def model_case(
    family: str, rng: np.random.Generator, model: Any, joint: Floats, unobserved: Collection[int] = ()
) -> VolumeCase:
    """Query some variables of a model (or all that have no evidence), sum the others out.

    There is no evidence on the variables at the positions `unobserved`.
    """
    domain: Domain = model.domain
    n = len(domain)
    n_query = n if rng.random() < 0.3 else int(rng.integers(1, n + 1))
    positions = [int(i) for i in rng.permutation(n)[:n_query]]
    query = [domain.names[i] for i in positions]
    evidence, weights = _evidence(rng, domain, query, unobserved)
    everything = None
    if rng.spawn(1)[0].random() < BESIDE and joint.size <= LARGEST_BESIDE:
        everything = Everything(model, joint, weights, evidence, query)
    for i, weight in weights.items():
        joint = joint * spread(weight, [i], n)
    summed: Floats = np.asarray(joint.sum(axis=tuple(i for i in range(n) if i not in positions)), np.float64)
    kept = summed.transpose(np.argsort(np.argsort(positions)))
    total = float(kept.sum())
    solver, others = solver_order(rng)
    log_total = math.log(total) if total > 0.0 else -math.inf
    truth = Truth.of_table(domain.subset(positions), kept if total > 0.0 else np.ones(kept.shape))
    settings = settings_of(rng)
    return VolumeCase(
        family, truth, solver, settings, model, query, evidence, log_total, others=others, everything=everything
    )


def bayesian(rng: np.random.Generator) -> VolumeCase:
    """A random Bayesian network."""
    domain, factors = random_factors(rng)
    joint = np.ones([1] * len(domain))
    for factor in factors:
        joint = joint * spread(factor.table, factor.scope, len(domain))
    return model_case("Bayesian networks", rng, BayesianNetwork(domain, factors), joint)


def random_factors(rng: np.random.Generator) -> tuple[Domain, list[Factor]]:
    """Return the variables of a random Bayesian network, and its conditional tables, the child last."""
    domain = _domain(rng)
    order = rng.permutation(len(domain)).tolist()
    factors: list[Factor] = []
    for i, child in enumerate(order):
        parents = [order[int(j)] for j in rng.permutation(i)[: int(rng.integers(0, 4))]]
        scope = [*parents, child]
        factors.append(Factor(scope, _rows(rng, [int(domain.n_states[v]) for v in scope])))
    return domain, factors


def markov(rng: np.random.Generator) -> VolumeCase:
    """A random Markov network: grids, loops and stars of small factors."""
    domain = _domain(rng)
    n = len(domain)
    factors: list[Factor] = []
    joint = np.ones(domain.n_states)
    scale = float(rng.choice([0.1, 1.0, 5.0]))
    for _ in range(n + int(rng.integers(0, n + 1))):
        scope = [int(v) for v in rng.permutation(n)[: int(rng.integers(1, min(n, 3) + 1))]]
        logs = scale * rng.normal(size=[int(domain.n_states[v]) for v in scope])
        factors.append(Factor(scope, np.exp(logs)))
        joint = joint * spread(np.exp(logs), scope, n)
    return model_case("Markov networks", rng, MarkovNetwork(domain, factors), joint)


def circuit(rng: np.random.Generator) -> VolumeCase:
    """A random circuit with shared nodes, or the tree of regions that it comes with."""
    domain = _domain(rng)
    model = random_circuit(rng, domain, n_components=int(rng.integers(1, 4)), zeros=float(rng.choice([0.0, 0.2])))
    return model_case("circuits", rng, model, table_of_circuit(model))


def table_of_circuit(circuit: Circuit) -> Floats:
    """Return the values of a categorical circuit at all joint states, one axis per variable, node by node."""
    n = len(circuit.domain)
    values: list[Floats] = []
    for node in range(circuit.n_nodes):
        kind = int(circuit.kind[node])
        children: list[int] = circuit.children_of(node).tolist()
        if kind == NodeKind.CATEGORICAL:
            values.append(spread(np.exp(circuit.params_of(node)), [int(circuit.leaf_var[node])], n))
            continue
        low, high = circuit.child_ptr[node : node + 2].tolist()
        weights: list[float] = np.exp(circuit.log_weights[low:high]).tolist()
        value: Floats = np.full([1] * n, 1.0 if kind == NodeKind.PRODUCT else 0.0)
        for weight, child in zip(weights, children, strict=True):
            below = values[child]
            value = np.asarray(value * below if kind == NodeKind.PRODUCT else value + weight * below, np.float64)
        values.append(value)
    return np.broadcast_to(values[-1], tuple(int(k) for k in circuit.domain.n_states))


def hidden_tree(rng: np.random.Generator) -> VolumeCase:
    """A hidden Chow-Liu tree."""
    domain = _domain(rng)
    n, k = len(domain), int(rng.integers(1, 4))
    parent = np.array([-1, *(int(rng.integers(0, i)) for i in range(1, n))], np.int64)
    prior, transition = _rows(rng, (k,)), _rows(rng, (n, k, k))
    emission = [_rows(rng, (k, int(m))) for m in domain.n_states]
    model = HiddenChowLiuModel(domain, parent, prior, transition, emission)
    below = [_spread_states(emission[i], i, n) for i in range(n)]
    for i in range(n - 1, 0, -1):
        message = np.tensordot(transition[i], below[i], axes=(1, 0))
        below[int(parent[i])] = below[int(parent[i])] * message
    return model_case("hidden trees", rng, model, np.tensordot(prior, below[0], axes=(0, 0)))


def _spread_states(emission: Floats, variable: int, n: int) -> Floats:
    """Give a table of a latent state and one variable an axis for each of n, after the latent one."""
    shape = [emission.shape[0], *([1] * n)]
    shape[1 + variable] = emission.shape[1]
    return emission.reshape(shape)


def table(rng: np.random.Generator) -> VolumeCase:
    """A table as a posterior, with bounds that are loose or not."""
    posterior = random_table(rng)
    solver, others = solver_order(rng)
    return VolumeCase("tables", _truth(posterior), solver, settings_of(rng), posterior, others=others)


def _truth(posterior: TablePosterior) -> Truth:
    return Truth.of_table(posterior.domain, posterior.probs.reshape(posterior.domain.n_states))


def function(rng: np.random.Generator) -> VolumeCase:
    """A sampler and an oracle, the oracle's scale known or not."""
    inner = random_table(rng)
    normalised = rng.random() < 0.7
    shift = 0.0 if normalised else float(rng.normal(0.0, 30.0))
    posterior = FunctionPosterior(
        inner.domain, inner.sample, lambda points: inner.log_prob(points) + shift, normalised=normalised
    )
    truth = _truth(inner)
    solver, others = solver_order(rng)
    log_evidence = math.nan if normalised else shift
    return VolumeCase(
        "functions", truth, solver, settings_of(rng), posterior, log_evidence=log_evidence, others=others
    )


def two_sided(rng: np.random.Generator) -> VolumeCase:
    """A table that knows bounds but no masses, its values exactly or between two sides."""
    inner = random_table(rng)
    posterior: BoundedTable = BoundedTable(inner)
    if rng.random() < 0.7:
        gap = rng.random(len(inner.points)) * float(rng.choice([1e-9, 0.01, 0.5]))
        posterior = IntervalTable(inner, gap)
    solver, others = solver_order(rng)
    settings = settings_of(rng)
    settings.pop("warm_start", None)
    return VolumeCase("values between two sides", _truth(inner), solver, settings, posterior, others=others)


def gaussians(rng: np.random.Generator) -> VolumeCase:
    """A mixture over one class and a few real variables, of which the density's peaks are sought.

    The best point known is that of a climb from every component's mean, which may be below the true best: what is
    false beside it is false.
    """
    n_real, n_parts, n_classes = int(rng.integers(1, 4)), int(rng.integers(1, 5)), int(rng.integers(2, 4))
    domain = Domain(
        [Categorical("c", tuple(range(n_classes))), *(Real(f"x{i}", -9.0, 9.0) for i in range(n_real))]
    )
    build = CircuitBuilder(domain)
    weights, leaves = rng.dirichlet(np.ones(n_parts)), _rows(rng, (n_parts, n_classes))
    means, scales = rng.normal(0.0, 2.0, (n_parts, n_real)), rng.choice([0.1, 0.5, 2.0], (n_parts, n_real))
    products: list[int] = []
    for j in range(n_parts):
        with np.errstate(divide="ignore"):
            own = [build.categorical(0, log_weights=np.log(leaves[j]).tolist())]
        own += [build.gaussian(1 + i, float(means[j, i]), float(scales[j, i])) for i in range(n_real)]
        products.append(build.product(own))
    build.sum(products, log_weights=np.log(weights).tolist())
    log_density = _density(weights, leaves, means, scales)
    starts = [np.array([float(c), *means[j]]) for c in range(n_classes) for j in range(n_parts)]
    best = max(climbed(log_density, start, scales[i % n_parts], 9.0) for i, start in enumerate(starts))
    query = list(domain.names)
    solver, others = solver_order(rng)
    settings = settings_of(rng, n_draws=300)
    settings["max_nodes"] = int(rng.choice([5, 50, 500]))
    settings.pop("top_k", None)
    truth = Truth(domain, log_density, np.array([best]), None)
    return VolumeCase(
        "mixtures of Gaussians", truth, solver, settings, build.build(normalised=False), query, {},
        log_evidence=math.nan, others=others,
    )  # fmt: skip


def _density(weights: Floats, leaves: Floats, means: Floats, scales: Floats) -> Callable[[Any], float]:
    """Return the log density of the mixture over its box; the mass outside makes it a little denser inside."""
    edges = np.array([_normal_share(m, s) for m, s in zip(means.ravel(), scales.ravel(), strict=True)])
    log_total = math.log(float(np.sum(weights * np.prod(edges.reshape(means.shape), axis=1))))

    def log_density(point: Any) -> float:
        x = np.asarray(point, np.float64)
        with np.errstate(divide="ignore"):
            parts = np.log(weights) + np.log(leaves[:, int(x[0])])
        parts = parts - np.sum(
            0.5 * ((x[1:] - means) / scales) ** 2 + np.log(scales * math.sqrt(2 * math.pi)), axis=1
        )
        return float(np.logaddexp.reduce(parts)) - log_total

    return log_density


def _normal_share(mean: float, scale: float) -> float:
    """Return how much of a Gaussian lies between -9 and 9."""
    low, high = ((x - mean) / (scale * math.sqrt(2.0)) for x in (-9.0, 9.0))
    return 0.5 * (math.erf(high) - math.erf(low))


def climbed(log_density: Callable[[Any], float], start: Floats, scale: Floats, reach: float) -> float:
    """Climb in the last coordinates of a point, one per scale, by shrinking steps; return the log density reached.

    They stay between -reach and reach.
    """
    point, first = start.copy(), len(start) - len(scale)
    best, step = log_density(point), scale.copy()
    for _ in range(25):
        for i, sign in itertools.product(range(len(step)), (-1.0, 1.0)):
            moved = point.copy()
            moved[first + i] = min(max(moved[first + i] + sign * step[i], -reach), reach)
            value = log_density(moved)
            if value > best:
                point, best = moved, value
        step = step * 0.6
    return best
