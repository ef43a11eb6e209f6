"""Queries made from seeds: on networks at hand with little evidence, and on parity codes with a noisy word."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.core.domain import Categorical
from certimap.networks.bayesian import BayesianNetwork
from certimap_lab.bench.network_cases import NetworkCase, bif_files, choose
from certimap_lab.bench.parity import code_and_word
from certimap_lab.bench.records import BenchError

SHARES_QUERIED = (20, 50)  # percent of the variables
SHARES_OBSERVED = (0, 5)
SHARES_EXPLAINED = (0, 10)  # percent observed where everything else is queried


def seeded_cases(folder: Path, seed: int = 0, only: Sequence[str] = ()) -> list[NetworkCase]:
    """Return four marginal MAP queries on each Bayesian network of a folder.

    20 and 50 % of the variables are queried with 0 and 5 % observed, at random; evidence is sampled from the
    network, so that it is possible. Which ones depends on (seed, name of the network, shares) alone.

    Parameters
    ----------
    folder
        Holds .bif or .bif.gz files.
    seed
        Another seed gives other queries.
    only
        Names of networks or cases (as in "link-20q-5e"); all when empty. Networks not named are not read.

    Raises
    ------
    BenchError
        When the folder has no such file, or not the one named.
    """
    found = [item for item in bif_files(folder).items() if not only or _is_wanted(item[0], only)]
    return choose([case for name, path in found for case in _marginal_cases(name, path, seed)], only, str(folder))


def explanation_cases(folder: Path, seed: int = 0) -> list[NetworkCase]:
    """Return two MPE queries on each Bayesian network of a folder: with nothing and with a tenth observed.

    Evidence is sampled from the network; names are as in "link-mpe-10e".

    Raises
    ------
    BenchError
        When the folder has no .bif or .bif.gz file.
    """
    return [case for name, path in bif_files(folder).items() for case in _explanation_cases(name, path, seed)]


def _is_wanted(name: str, only: Sequence[str]) -> bool:
    return any(name in (o, o.rsplit("-", 2)[0]) for o in only)


def _read(path: Path) -> BayesianNetwork:
    from certimap import io

    model: Any = io.read(path)
    if not isinstance(model, BayesianNetwork):
        raise BenchError(f"{path} holds no Bayesian network")
    return model


def _marginal_cases(name: str, path: Path, seed: int) -> list[NetworkCase]:
    model = _read(path)
    word = int.from_bytes(name.encode()[:8].ljust(8, b"\0"), "big")
    cases: list[NetworkCase] = []
    for queried, observed in product(SHARES_QUERIED, SHARES_OBSERVED):
        rng = np.random.default_rng([seed, word, queried, observed])
        order = rng.permutation(len(model.domain))
        n_query = max(1, round(len(order) * queried / 100))
        n_observed = round(len(order) * observed / 100)
        evidence = _sampled(model, order[n_query : n_query + n_observed], rng)
        query = tuple(model.domain.names[int(i)] for i in sorted(order[:n_query]))
        cases.append(NetworkCase(f"{name}-{queried}q-{observed}e", str(path), query, evidence))
    return cases


def _explanation_cases(name: str, path: Path, seed: int) -> list[NetworkCase]:
    model = _read(path)
    cases: list[NetworkCase] = []
    for observed in SHARES_EXPLAINED:
        rng = np.random.default_rng([seed, *name.encode(), observed])
        order = rng.permutation(len(model.domain))
        evidence = _sampled(model, order[: -(-len(order) * observed // 100)], rng)
        cases.append(NetworkCase(f"{name}-mpe-{observed}e", str(path), None, evidence))
    return cases


def _sampled(model: BayesianNetwork, observed: NDArray[np.int64], rng: np.random.Generator) -> dict[str, Any]:
    """Return evidence on some variables, by position, sampled from the network."""
    point = ancestral_sample(model, rng)
    evidence: dict[str, Any] = {}
    for i in sorted(int(i) for i in observed):
        variable = model.domain.variables[i]
        assert isinstance(variable, Categorical)
        evidence[variable.name] = variable.states[int(point[i])]
    return evidence


def ancestral_sample(model: BayesianNetwork, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw one assignment of positions, parents before children."""
    point = np.full(len(model.domain), -1, np.int64)
    waiting = {factor.scope[-1]: factor for factor in model.factors}
    while waiting:
        ready = [i for i, f in waiting.items() if all(point[p] >= 0 for p in f.scope[:-1])]
        for i in ready:
            factor = waiting.pop(i)
            row = factor.table[tuple(point[p] for p in factor.scope[:-1])]
            point[i] = rng.choice(len(row), p=row / row.sum())
    return point


def parity_cases(sizes: Sequence[int], n_words: int = 3, seed: int = 0) -> list[NetworkCase]:
    """Return MPE queries on parity codes: which word was sent, given the noisy one received.

    Raises
    ------
    BenchError
        For a length that is no positive multiple of 6.
    """
    cases: list[NetworkCase] = []
    for n in sizes:
        for k in range(seed, seed + n_words):
            name = f"parity-{n}-{k}"
            _, received = code_and_word(name)
            evidence = {f"r{i}": int(x) for i, x in enumerate(received)}
            cases.append(NetworkCase(name, name, tuple(f"b{i}" for i in range(n)), evidence))
    return cases
