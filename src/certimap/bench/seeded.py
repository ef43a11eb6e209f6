"""Queries made from seeds: on networks at hand with little evidence, and on parity codes with a noisy word."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.bench.network_cases import NetworkCase, choose
from certimap.bench.records import BenchError
from certimap.domain import Categorical, Domain
from certimap.networks.bayesian import BayesianNetwork
from certimap.networks.factor import Factor
from certimap.networks.markov import MarkovNetwork

SHARES_QUERIED = (20, 50)  # percent of the variables
SHARES_OBSERVED = (0, 5)
CHECKS_PER_BIT = 3
BITS_PER_CHECK = 6
FLIP = 0.08  # the channel's error rate


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
    if not folder.is_dir():
        raise BenchError(f"{folder} is no folder; one with .bif or .bif.gz files is accepted")
    files = sorted(p for p in folder.iterdir() if p.name.endswith((".bif", ".bif.gz")))
    if not files:
        raise BenchError(f"{folder} has no .bif or .bif.gz file; one per network is expected")
    wanted = [p for p in files if not only or any(_stem(p) in (o, o.rsplit("-", 2)[0]) for o in only)]
    return choose([case for path in wanted for case in _cases_of(path, seed)], only, str(folder))


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".bif")


def _cases_of(path: Path, seed: int) -> list[NetworkCase]:
    from certimap import io

    model: Any = io.read(path)
    if not isinstance(model, BayesianNetwork):
        raise BenchError(f"{path} holds no Bayesian network")
    word = int.from_bytes(_stem(path).encode()[:8].ljust(8, b"\0"), "big")
    cases: list[NetworkCase] = []
    for queried in SHARES_QUERIED:
        for observed in SHARES_OBSERVED:
            rng = np.random.default_rng([seed, word, queried, observed])
            order = rng.permutation(len(model.domain))
            n_query = max(1, round(len(order) * queried / 100))
            n_observed = round(len(order) * observed / 100)
            point = ancestral_sample(model, rng)
            names, variables = model.domain.names, model.domain.variables
            evidence: dict[str, Any] = {}
            for i in sorted(int(i) for i in order[n_query : n_query + n_observed]):
                variable = variables[i]
                assert isinstance(variable, Categorical)
                evidence[variable.name] = variable.states[int(point[i])]
            cases.append(
                NetworkCase(
                    name=f"{_stem(path)}-{queried}q-{observed}e",
                    network=str(path),
                    query=tuple(names[int(i)] for i in sorted(order[:n_query])),
                    evidence=evidence,
                )
            )
    return cases


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
            _, received = _code_and_word(*_parse(name))
            evidence = {f"r{i}": int(x) for i, x in enumerate(received)}
            cases.append(NetworkCase(name, name, tuple(f"b{i}" for i in range(n)), evidence))
    return cases


def parity_network(name: str) -> MarkovNetwork:
    """Build the network of a code "parity-N-SEED".

    N bits with 3 checks each, of 6 bits (Gallager's construction): a check's factor is 1 where its bits add to an
    even number, else 0. Each bit is sent over a channel that flips it with probability 0.08: variable "r0" is what
    was received for "b0".
    """
    n, seed = _parse(name)
    checks, _ = _code_and_word(n, seed)
    domain = Domain(
        [Categorical(f"b{i}", (0, 1)) for i in range(n)] + [Categorical(f"r{i}", (0, 1)) for i in range(n)]
    )
    even = (np.indices((2,) * BITS_PER_CHECK).sum(axis=0) % 2 == 0).astype(np.float64)
    channel = np.array([[1 - FLIP, FLIP], [FLIP, 1 - FLIP]])
    factors = [Factor([int(i) for i in check], even) for check in checks]
    factors += [Factor([i, n + i], channel) for i in range(n)]
    return MarkovNetwork(domain, factors)


def _parse(name: str) -> tuple[int, int]:
    parts = name.split("-")
    if len(parts) != 3 or not (parts[1].isdecimal() and parts[2].isdecimal()):
        raise BenchError(f"{name!r} is no parity code; parity-N-SEED is accepted")
    n, seed = int(parts[1]), int(parts[2])
    if n < 1 or n % BITS_PER_CHECK:
        raise BenchError(f"a parity code of {n} bits; a positive multiple of {BITS_PER_CHECK} is accepted")
    return n, seed


def _code_and_word(n: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the checks, shape (n / 2, 6), and a received word: a random word of the code with bits flipped."""
    rng = np.random.default_rng([seed, n])
    checks = np.concatenate([rng.permutation(n).reshape(-1, BITS_PER_CHECK) for _ in range(CHECKS_PER_BIT)])
    matrix = np.zeros((len(checks), n), np.int64)
    np.put_along_axis(matrix, checks, 1, axis=1)
    sent = _random_solution(matrix, rng)
    return checks, sent ^ (rng.random(n) < FLIP)


def _random_solution(matrix: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return a random x with matrix x = 0 modulo 2, by Gauss-Jordan elimination."""
    rows = matrix.copy()
    pivots: list[int] = []
    for column in range(rows.shape[1]):
        below = np.flatnonzero(rows[len(pivots) :, column])
        if not below.size:
            continue
        at = len(pivots)
        rows[[at, at + below[0]]] = rows[[at + below[0], at]]
        others = np.flatnonzero(rows[:, column])
        rows[others[others != at]] ^= rows[at]
        pivots.append(column)
        if len(pivots) == len(rows):
            break
    word = rng.integers(0, 2, size=(rows.shape[1],), dtype=np.int64)
    is_free = np.ones(len(word), np.bool_)
    is_free[pivots] = False
    for i, column in enumerate(pivots):
        word[column] = int(rows[i, is_free] @ word[is_free]) % 2
    return word
