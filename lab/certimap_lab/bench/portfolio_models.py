"""Ten families of random queries to models of which some fit no table, for `auto` beside its own parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from certimap.core.domain import Categorical, Domain
from certimap.core.model import Model
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.factor import Factor
from certimap.networks.network import MarkovNetwork
from certimap.networks.noisy import NoisyOr
from certimap_lab.bench.network_cases import bif_files, load_network, uai_cases
from certimap_lab.bench.random_chains import random_chain
from certimap_lab.bench.random_circuits import random_learnspn
from certimap_lab.bench.reach import tree_mixture

Pairs = list[tuple[int, int]]


@dataclass(frozen=True)
class Asked:
    """A model and a query; None asks for everything that is not observed."""

    model: Model
    query: Sequence[str] | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class PortfolioCase:
    """A query of one family, made when it is its turn."""

    family: str
    name: str
    make: Callable[[], Asked]


def lattice(rows: int, columns: int, *, wraps: bool = False) -> Pairs:
    """Return the neighbours of a planar grid, or of one whose opposite sides meet."""
    at = np.arange(rows * columns).reshape(rows, columns)
    pairs = [(at[:-1], at[1:]), (at[:, :-1], at[:, 1:])]
    if wraps:
        pairs += [(at[-1], at[0]), (at[:, -1], at[:, 0])]
    return [(int(a), int(b)) for one, two in pairs for a, b in zip(one.flat, two.flat, strict=True)]


def ising(
    n: int, pairs: Pairs, seed: int, *, coupling: float = 1.0, n_states: int = 2, attracts: bool = False
) -> MarkovNetwork:
    """Return variables with random fields whose pairs agree, or differ, with random weights."""
    rng = np.random.default_rng(seed)
    factors = [Factor.from_log((v,), rng.normal(size=n_states)) for v in range(n)]
    for a, b in pairs:
        weight = coupling * rng.normal()
        weight = abs(weight) if attracts else weight
        factors.append(Factor.from_log((a, b), np.where(np.eye(n_states) > 0, weight, -weight)))
    return MarkovNetwork(Domain([Categorical(f"v{i}", tuple(range(n_states))) for i in range(n)]), factors)


def diagnosis(n_causes: int, n_findings: int, n_positive: int, seed: int) -> Asked:
    """Return a two-layer noisy-or network with all findings seen, the first of them positive."""
    rng = np.random.default_rng(seed)
    states: dict[str, list[int]] = {f"d{i}": [0, 1] for i in range(n_causes)}
    tables: dict[str, Any] = {
        v: [1.0 - p, p] for v, p in zip(states, rng.uniform(0.002, 0.05, n_causes), strict=True)
    }
    parents: dict[str, list[str]] = {}
    for j in range(n_findings):
        name = f"f{j}"
        parents[name] = [f"d{i}" for i in rng.choice(n_causes, 6, replace=False)]
        causes = dict(zip(parents[name], rng.uniform(0.3, 0.95, 6).tolist(), strict=True))
        states[name], tables[name] = [0, 1], NoisyOr(causes, leak=0.01)
    evidence = {f"f{j}": int(j < n_positive) for j in range(n_findings)}
    return Asked(BayesianNetwork.from_cpts(states, parents, tables), None, evidence)


def gates(n_inputs: int, n_gates: int, seed: int, n_seen: int = 8) -> Asked:
    """Return random gates of two, the last of which are seen; the inputs are asked for."""
    rng = np.random.default_rng(seed)
    names = [f"x{i}" for i in range(n_inputs)]
    states: dict[str, list[int]] = {v: [0, 1] for v in names}
    tables: dict[str, Any] = {v: [1.0 - p, p] for v, p in zip(names, rng.uniform(0.1, 0.9, n_inputs), strict=True)}
    parents: dict[str, list[str]] = {}
    value = {v: int(rng.integers(2)) for v in names}
    functions = (np.bitwise_and, np.bitwise_or, np.bitwise_xor)
    for g in range(n_gates):
        one, two = (names[int(i)] for i in rng.choice(len(names), 2, replace=False))
        function, name = functions[int(rng.integers(3))], f"g{g}"
        on = function.outer(np.arange(2), np.arange(2))
        states[name], parents[name], tables[name] = [0, 1], [one, two], np.stack([1 - on, on], axis=-1)
        value[name] = int(on[value[one], value[two]])
        names.append(name)
    seen = names[-n_seen:]
    model = BayesianNetwork.from_cpts(states, parents, tables)
    return Asked(model, [f"x{i}" for i in range(n_inputs)], {v: value[v] for v in seen})


def some_of(model: Model, share: float, seed: int, observed: float = 0.0) -> Asked:
    """Ask for a share of a model's variables, with a share of the others as one draw has them."""
    rng = np.random.default_rng(seed)
    names = list(model.domain.names)
    order = [names[int(i)] for i in rng.permutation(len(names))]
    query = order[: max(1, round(share * len(names)))]
    evidence: dict[str, Any] = {}
    if observed > 0.0 and isinstance(model, BayesianNetwork):
        drawn = model.domain.decode(model.sample(1, rng)[0])
        evidence = {v: drawn[v] for v in order[len(order) - round(observed * len(names)) :]}
    return Asked(model, query, evidence)


def _grids(seed: int) -> Iterator[PortfolioCase]:
    for n, share in ((14, 0.5), (18, 0.1), (20, 0.0625), (20, 0.5), (20, 1.0), (24, 1.0)):
        yield PortfolioCase(
            "grid",
            f"{n}x{n}, {share:.3g}",
            lambda n=n, q=share: some_of(ising(n * n, lattice(n, n), seed + n), q, seed),
        )


def _tori(seed: int) -> Iterator[PortfolioCase]:
    for n, share in ((8, 0.5), (12, 0.2), (16, 0.1), (20, 0.0675), (16, 1.0), (20, 1.0)):
        yield PortfolioCase(
            "torus",
            f"{n}x{n}, {share:.3g}",
            lambda n=n, q=share: some_of(ising(n * n, lattice(n, n, wraps=True), seed + n), q, seed),
        )


def _attractive(seed: int) -> Iterator[PortfolioCase]:
    for n in (16, 32, 48, 64, 96, 128):
        yield PortfolioCase(
            "attractive",
            f"{n}x{n}",
            lambda n=n: Asked(ising(n * n, lattice(n, n), seed + n, coupling=0.8, attracts=True)),
        )


def _potts(seed: int) -> Iterator[PortfolioCase]:
    for n, k, attracts in (
        (10, 4, False),
        (16, 4, False),
        (20, 3, False),
        (16, 4, True),
        (32, 5, True),
        (48, 3, True),
    ):
        yield PortfolioCase(
            "potts",
            f"{n}x{n} of {k}{', attractive' if attracts else ''}",
            lambda n=n, k=k, a=attracts: Asked(ising(n * n, lattice(n, n), seed + n, n_states=k, attracts=a)),
        )


def _noisy(seed: int) -> Iterator[PortfolioCase]:
    sizes = ((40, 80, 10, 1.0), (60, 120, 15, 1.0), (80, 160, 25, 1.0), (40, 80, 10, 0.5), (60, 120, 15, 0.5))
    for causes, findings, positive, share in (*sizes, (60, 120, 25, 0.2)):

        def make(n: int = causes, m: int = findings, p: int = positive, q: float = share) -> Asked:
            asked = diagnosis(n, m, p, seed + n + m)
            names = [f"d{i}" for i in np.random.default_rng(seed).permutation(n)[: round(q * n)]]
            return Asked(asked.model, names, asked.evidence)

        yield PortfolioCase("noisy-or", f"{causes}/{findings}, {positive} positive, {share:g}", make)


def _gates(seed: int) -> Iterator[PortfolioCase]:
    for n, m in ((20, 40), (25, 75), (30, 120), (35, 150), (40, 250), (40, 400)):
        yield PortfolioCase("gates", f"{n}/{m}", lambda n=n, m=m: gates(n, m, seed + m))


def _chains(seed: int) -> Iterator[PortfolioCase]:
    for steps, states, symbols in (
        (100, 5, 10),
        (400, 8, 8),
        (1000, 5, 10),
        (200, 20, 20),
        (60, 50, 30),
        (2000, 3, 4),
    ):

        def make(n: int = steps, k: int = states, m: int = symbols) -> Asked:
            model, names = random_chain(n, k, m, seed + n)
            return Asked(model, names)

        yield PortfolioCase("chain", f"{steps} steps, {states} states, {symbols} symbols", make)


def _mixtures(seed: int) -> Iterator[PortfolioCase]:
    for n, trees, nodes in ((32, 3, 5), (64, 5, 10), (64, 10, 10), (128, 5, 10), (128, 10, 10), (96, 8, 15)):
        yield PortfolioCase(
            "mixture",
            f"{trees} trees of {n}, {nodes} nodes",
            lambda n=n, t=trees, k=nodes: Asked(tree_mixture(n, t, k, seed + n)),
        )


def _circuits(seed: int) -> Iterator[PortfolioCase]:
    for n, edges, share in (
        (20, 2_000, 0.5),
        (40, 4_000, 0.5),
        (60, 8_000, 1.0),
        (60, 20_000, 0.3),
        (100, 20_000, 1.0),
        (100, 50_000, 0.5),
    ):
        yield PortfolioCase(
            "circuit",
            f"{n} variables, {edges} edges, {share:g}",
            lambda n=n, m=edges, q=share: some_of(random_learnspn(n, m, seed=seed + n), q, seed),
        )


def _networks(folder: Path, seed: int) -> Iterator[PortfolioCase]:
    for k, (name, path) in enumerate(bif_files(folder).items()):
        observed = 0.05 * (k % 2)

        def make(path: Path = path, seed: int = seed + k, observed: float = observed) -> Asked:
            from certimap import io

            return some_of(io.read(path), (0.1, 0.3, 0.5)[seed % 3], seed, observed)

        yield PortfolioCase("network", f"{name}, {observed:.0%} seen", make)


def _uai(folder: Path, most: int) -> Iterator[PortfolioCase]:
    for case in uai_cases(folder)[:most]:
        yield PortfolioCase(
            "uai", case.name, lambda case=case: Asked(load_network(case), case.query, case.evidence)
        )


FAMILIES: Mapping[str, Callable[[int], Iterator[PortfolioCase]]] = {
    "grid": _grids,
    "torus": _tori,
    "attractive": _attractive,
    "potts": _potts,
    "noisy-or": _noisy,
    "gates": _gates,
    "chain": _chains,
    "mixture": _mixtures,
    "circuit": _circuits,
}
MOST_OF_A_FOLDER = 6


def portfolio(
    seed: int = 0,
    networks: Path | None = None,
    uai: Sequence[Path] = (),
    only: Sequence[str] = (),
    most: int | None = None,
) -> list[PortfolioCase]:
    """Return the queries: six of each family, and those of folders of public networks.

    Parameters
    ----------
    seed
        Of the models and queries.
    networks
        A folder of BIF networks, each asked for a share of its variables with 0 or 5 % observed; or None.
    uai
        Folders of UAI instances, of which the first six are asked.
    only
        Families; all when empty.
    most
        Queries of each family, the first ones; None for all.
    """
    found = [case for make in FAMILIES.values() for case in make(seed)]
    found += [] if networks is None else _networks(networks, seed)
    found += [case for folder in uai for case in _uai(folder, MOST_OF_A_FOLDER)]
    found = [case for case in found if not only or case.family in only]
    families = dict.fromkeys(case.family for case in found)
    return [case for family in families for case in [c for c in found if c.family == family][:most]]
