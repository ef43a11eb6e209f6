"""Parity codes (LDPC) as networks: random codes by Gallager's construction, and a noisy word of each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from certimap.core.domain import Categorical, Domain
from certimap.networks.factor import Factor
from certimap.networks.network import MarkovNetwork
from certimap_lab.bench.records import BenchError

CHECKS_PER_BIT = 3
BITS_PER_CHECK = 6
FLIP = 0.08  # the channel's error rate


def parity_network(name: str) -> MarkovNetwork:
    """Build the network of a code "parity-N-SEED".

    N bits with 3 checks each, of 6 bits (Gallager's construction): a check's factor is 1 where its bits add to an
    even number, else 0. Each bit is sent over a channel that flips it with probability 0.08: variable "r0" is what
    was received for "b0".
    """
    n, _ = _parse(name)
    checks, _ = code_and_word(name)
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
        raise BenchError(f"{name!r} is no parity code; expected parity-N-SEED")
    n, seed = int(parts[1]), int(parts[2])
    if n < 1 or n % BITS_PER_CHECK:
        raise BenchError(f"a parity code of {n} bits; expected a positive multiple of {BITS_PER_CHECK}")
    return n, seed


def code_and_word(name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the checks, shape (n / 2, 6), and a received word: a random word of the code with bits flipped."""
    n, seed = _parse(name)
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
