"""The compiled kernels: what is recorded of them, and small tasks for every kind of model that compile them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from pkgutil import walk_packages
from typing import Any

import numpy as np

import certimap as cm
from certimap.core.named import at
from certimap.kernels.cache import Record, caches
from certimap.kernels.parallel import default_workers
from certimap.kernels.tier import compile_first
from certimap.testing.models import random_circuit, random_network

OF_CIRCUITS = ("frontier", "smooth_pac", "pac", "budget", "max_product", "argmax_product", "beam", "hybrid_bp")
OF_NETWORKS = ("hbfs", "frontier", "wmb", "ijgp", "bucket_elimination", "aobb", "aobf", "aaobf")
OF_POINTS = ("hill_climb", "mcmc", "mcts", "independent")
OF_DENSITIES = ("frontier", "soo", "budget", "hoo")
REAL_LEAVES = {
    "gaussian": (0.0, 1.0), "truncated_gaussian": (0.0, 1.0, -2.0, 3.0), "uniform": (-1.0, 2.0),
    "exponential": (1.5,), "laplace": (0.0, 1.0), "student_t": (0.0, 1.0, 3.0), "beta": (2.0, 3.0),
    "gamma": (2.0, 1.0), "lognormal": (0.0, 1.0),
}  # fmt: skip
COUNT_LEAVES = {"poisson": (3.0,), "geometric": (0.3,), "negative_binomial": (3.0, 1.0)}


def _ask(model: Any, solvers: tuple[str, ...], variables: Any = None, evidence: Any = None) -> None:
    """Answer a query with the default solver and with each of `solvers`."""
    for solver in ("auto", *solvers):
        limits: dict[str, Any] = {"max_nodes": 200, "max_samples": 2000, "time_limit": 300.0}
        cm.map_query(model, variables, evidence, solver=solver, rng=0, progress=False, **limits)


def _network(n: int, states: int, seed: int = 0, parents: int = 2) -> cm.BayesianNetwork:
    domain = cm.Domain.of_sizes([states] * n)
    return random_network(np.random.default_rng(seed), domain, max_parents=parents, zeros=0.05)


def _grid(side: int, states: int = 2) -> cm.MarkovNetwork:
    rng = np.random.default_rng(0)
    edges = [(i, i + 1) for i in range(side * side) if (i + 1) % side]
    edges += [(i, i + side) for i in range(side * (side - 1))]
    factors = [cm.Factor(edge, rng.gamma(1.0, size=(states, states)) + 1e-3) for edge in edges]
    return cm.MarkovNetwork(cm.Domain.of_sizes([states] * side * side), factors)


def _rows(n: int, width: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.int16]]:
    rng = np.random.default_rng(seed)
    hidden = rng.integers(0, 2, (n, 1))
    return ((rng.random((n, width)) < 0.25 + 0.5 * hidden) * 1).astype(np.int16)


def small_network() -> None:
    """A network for a tree of tables."""
    network = _network(8, 2)
    _ask(network, ("pac", "smooth_pac", *OF_POINTS, "frontier", "set_elimination"), ["7", "5"], {"2": 1})
    _ask(network, (), None, {"2": 1})
    cm.marginals(network, evidence={"2": 1})
    cm.sample(network, 20, evidence={"2": 1}, rng=0)


def network_of_more() -> None:
    """Marginal MAP and soft evidence in a network with several states per variable."""
    network = _network(16, 4, 3)
    _ask(network, ("set_elimination", "smooth_pac"), [str(i) for i in range(12)], {"14": 1})
    _ask(network, (), None, {"14": 1, "13": [0.1, 0.2, 0.3, 0.4]})
    cm.map_query(network, ["0", "1"], {"14": {0, 1}}, top_k=3, rng=0, progress=False)


def wide_range() -> None:
    """Tables whose products are outside the range of doubles."""
    tables = {f"V{i}": np.array([1e-200, 1.0 - 1e-200]) for i in range(6)}
    states = {name: [0, 1] for name in tables}
    network = cm.BayesianNetwork.from_cpts(states, {}, tables)
    _ask(network, ("frontier", "smooth_pac"), None, {"V0": 0, "V1": 0, "V2": 0})
    chain = cm.hidden_markov_model([1e-250, 1.0], [[1e-200, 1.0], [1.0, 1e-200]], [[1e-150, 1.0], [0.5, 0.5]], 8)
    _ask(chain, ("frontier", "smooth_pac", "set_elimination"), [f"state{i}" for i in range(8)])


def hidden_markov_model() -> None:
    """The path of a hidden Markov model, and its last state."""
    rng = np.random.default_rng(0)
    model = cm.hidden_markov_model(*(rng.dirichlet(np.ones(3), k) for k in (None, 3, 3)), steps=20)
    symbols = {f"symbol{i}": int(rng.integers(3)) for i in range(20)}
    _ask(model, (), [f"state{i}" for i in range(20)], symbols)
    _ask(model, ("set_elimination",), ["state19"], symbols)


def wide_grid() -> None:
    """The most probable explanation of a grid too wide for tables."""
    _ask(_grid(7, 3), OF_NETWORKS)
    with suppress(cm.TooLarge):  # compilation may use up the time limit
        cm.map_query(_grid(20), rng=0, time_limit=10.0, progress=False)


def hidden_grid() -> None:
    """A grid in which half of the variables are summed out."""
    _ask(_grid(6), ("frontier", "wmb", "ijgp", "hbfs"), [str(i) for i in range(0, 36, 2)])
    wide = _grid(16)
    with suppress(cm.TooLarge):
        cm.map_query(wide, [str(i) for i in range(0, 256, 5)], rng=0, time_limit=10.0, progress=False)


def binary_circuit() -> None:
    """A circuit over binary variables, as LearnSPN builds it."""
    model = cm.learn.learnspn(_rows(400, 14), rng=0)
    names = list(model.domain.names)
    _ask(model, (*OF_CIRCUITS, *OF_POINTS), names[:8], {names[9]: 1})
    _ask(model, ("smooth_pac",), None, {names[0]: 1})
    cm.marginals(model, evidence={names[0]: 1})
    cm.sample(model, 20, evidence={names[0]: 1}, rng=0)
    cm.log_likelihood(model, _rows(20, 14))


def categorical_circuit() -> None:
    """A circuit over variables with several states."""
    domain = cm.Domain.of_sizes([3, 4, 2, 3, 5, 3])
    model = random_circuit(np.random.default_rng(1), domain)
    _ask(model, (*OF_CIRCUITS, *OF_POINTS), ["0", "1", "4", "5"], {"2": 1})
    _ask(model, ("smooth_pac",), None, {"2": [0.3, 0.7]})
    _ask(_network(10, 3, 5).compile(), ("smooth_pac", "frontier"), ["0", "1", "2"], {"9": 1})


def _leaves(kinds: Mapping[str, tuple[float, ...]]) -> cm.Circuit:
    """Return a mixture of two products with a leaf of each kind, and one state."""
    variables = [cm.Categorical("state", ("a", "b")), *(cm.Real(name) for name in kinds)]
    build = cm.CircuitBuilder(cm.Domain(variables))
    parts: list[int] = []
    for state in range(2):
        leaves = [build.real(kind, i + 1, *params) for i, (kind, params) in enumerate(kinds.items())]
        parts.append(build.product([build.indicator(0, state), *leaves]))
    build.sum(parts, log_weights=[-0.5, -0.9327521295671886])
    return build.build()


def leaves_of_densities() -> None:
    """Densities of every kind."""
    model = _leaves(REAL_LEAVES)
    _ask(model, ("budget",), list(REAL_LEAVES)[:2], {"state": "a", "laplace": 0.5})
    _ask(model, ("smooth_pac",), ["state"], {"gaussian": 0.5, "uniform": (0.0, 1.0)})
    cm.sample(model, 20, rng=0)


def leaves_of_counts() -> None:
    """Counts of every kind."""
    model = _leaves(COUNT_LEAVES)
    _ask(model, ("frontier", "pac"), list(COUNT_LEAVES), {"state": "a"})
    cm.sample(model, 20, rng=0)


def circuit_of_gaussians() -> None:
    """A mixture of products of Gaussians, as learned by LearnSPN from a table of numbers."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(300, 4)) + 3.0 * rng.integers(0, 2, (300, 1))
    model = cm.learn.learnspn(table, rng=0)
    names = list(model.domain.names)
    _ask(model, OF_DENSITIES, names[:2], {names[2]: 0.5})
    cm.map_query(model, names[:2], {names[2]: 0.5}, solver="cells", rng=0, max_nodes=200, progress=False)


def gaussian_mixture() -> None:
    """A mixture of Gaussians with full covariances, and one with intervals."""
    rng = np.random.default_rng(0)
    roots = rng.normal(size=(3, 4, 4))
    covariances = roots @ roots.transpose(0, 2, 1) + np.eye(4)
    model = cm.GaussianMixture([0.3, 0.3, 0.4], rng.normal(size=(3, 4)) * 3, covariances)
    names = list(model.domain.names)
    _ask(model, ("frontier", "budget"), names[:2], {names[2]: 0.5})
    _ask(model, (), names[:2], {names[2]: (0.0, 1.0)})
    cm.sample(model, 20, rng=0)


def linear_gaussian() -> None:
    """A linear-Gaussian network with a discrete parent."""
    nodes = [
        cm.LinearGaussian("x", ["d"], [0.0, 2.0], (), [1.0, 0.5]),
        cm.LinearGaussian("y", ["x"], 1.0, [0.5], 1.0),
    ]
    model = cm.LinearGaussianNetwork(nodes, cm.BayesianNetwork.from_cpts({"d": [0, 1]}, {}, {"d": [0.4, 0.6]}))
    _ask(model, (), ["d"], {"y": 1.0})
    _ask(model, ("frontier",), ["x"], {"y": 1.0})
    _ask(model, ("frontier",), ["d", "x"], {"y": 1.0})
    _ask(model, (), ["x"], {"y": (0.0, 1.0)})


def learners() -> None:
    """Learners of every kind on small tables."""
    rows = _rows(300, 9)
    for name in ("chow_liu", "clt_mixture", "hclt", "mixture", "region_graph"):
        learn = at(f"certimap.learn:{name}")
        cm.map_query(learn(rows, rng=0), rng=0, progress=False)
    cm.learn.gaussian_mixture(np.random.default_rng(0).normal(size=(100, 3)), rng=0)


def proofs() -> None:
    """Answers with proof files."""
    cm.map_query(_network(8, 2), ["7", "5"], {"2": 1}, rng=0, proof=True, progress=False)
    cm.map_query(cm.learn.learnspn(_rows(200, 8), rng=0), solver="frontier", rng=0, proof=True, progress=False)


_LONG = (wide_grid, hidden_grid, binary_circuit, circuit_of_gaussians, categorical_circuit, gaussian_mixture)
_SHORT = (network_of_more, leaves_of_densities, leaves_of_counts, linear_gaussian, wide_range, small_network)
_LAST = (hidden_markov_model, learners, proofs)
TASKS: dict[str, Callable[[], None]] = {task.__name__: task for task in (*_LONG, *_SHORT, *_LAST)}


def run(name: str) -> float:
    """Run one task; return its processor time in seconds."""
    compile_first()
    started = time.process_time()
    TASKS[name]()
    return time.process_time() - started


def records(is_shipped: bool) -> Iterator[Record]:
    """Yield the records in the cache files of this package's kernels."""
    for module in walk_packages(cm.__path__, "certimap."):
        if ".kernels" in module.name or ".leaves" in module.name:
            import_module(module.name)
    for cache in caches:
        yield from (cache.shipped if is_shipped else cache.own).records()


def compile_all(workers: int | None) -> None:
    """Run the tasks in separate processes, and report the time."""
    n_workers = min(workers or default_workers(), len(TASKS))
    started = time.perf_counter()
    with ProcessPoolExecutor(n_workers, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        running: dict[Future[float], str] = {pool.submit(run, name): name for name in TASKS}
        spent = 0.0
        for done in as_completed(running):
            spent += done.result()
            print(f"{running[done].replace('_', ' ')}: {done.result():.1f} s", flush=True)
    print(f"{spent:.1f} s of processor time, {time.perf_counter() - started:.1f} s on {n_workers} processes")
