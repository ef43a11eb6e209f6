"""Upward and downward passes over blocks of rows: likelihoods and expected counts of a hidden tree."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from certimap.domain import Domain
from certimap.learn.kernels.hidden import absorb_message, add_rows, divide_out, finish_posterior

Floats = NDArray[np.float32]
Rows = NDArray[np.int64] | None
T = TypeVar("T")
MAX_BLOCK = 512
BLOCK_NUMBERS = 1 << 24  # beliefs and messages of one block hold about twice as many


@dataclass
class Counts:
    """Expected counts, float64: `root` (K,), `transition` (n, K, K), `emission` (total_states, K)."""

    root: NDArray[np.float64]
    transition: NDArray[np.float64]
    emission: NDArray[np.float64]

    def add(self, other: Counts, weight: float = 1.0) -> None:
        """Add `weight` times other counts."""
        for mine, theirs in zip(self._parts(), other._parts(), strict=True):
            mine += theirs if weight == 1.0 else weight * theirs

    def scale(self, factor: float) -> None:
        """Multiply all counts."""
        for part in self._parts():
            part *= factor

    def _parts(self) -> tuple[NDArray[np.float64], ...]:
        return self.root, self.transition, self.emission


@dataclass(frozen=True, eq=False)
class Parameters:
    """A hidden tree in float32, ready for the passes: `emission` is (total_states + n, K), where the last
    row of every variable holds ones and stands for a missing value."""

    order: NDArray[np.int64]
    parent: NDArray[np.int64]
    root_prior: Floats
    transition: Floats
    emission: Floats
    offsets: NDArray[np.int64]  # where the rows of each variable start in `emission`

    @property
    def n_hidden(self) -> int:
        return len(self.root_prior)


class Passes:
    """Rows of a table, cut into blocks that threads work on; results do not depend on their number.

    Parameters
    ----------
    domain
        The observed variables.
    codes
        int64, shape (n, n_rows): positions of the states, `n_states[i]` where missing.
    n_hidden
        The number of latent states, for the size of the blocks.
    workers
        Threads; None takes one a processor.
    """

    def __init__(self, domain: Domain, codes: NDArray[np.int64], n_hidden: int, workers: int | None) -> None:
        self.domain = domain
        self.codes = codes
        self.n_hidden = n_hidden
        fitting = BLOCK_NUMBERS // (max(1, len(codes)) * n_hidden)
        self.block = max(16, min(MAX_BLOCK, fitting))
        self.workers = workers or os.cpu_count() or 1

    @property
    def n_rows(self) -> int:
        return self.codes.shape[1]

    def blocks(self, rows: Rows = None) -> list[NDArray[np.int64]]:
        """Return the codes of all rows, or of some, in blocks."""
        codes = self.codes if rows is None else self.codes[:, rows]
        n = codes.shape[1]
        return [np.ascontiguousarray(codes[:, a : a + self.block]) for a in range(0, n, self.block)]

    def expected_counts(self, parameters: Parameters, rows: Rows = None) -> tuple[Counts, float]:
        """Return the expected counts of some rows and the sum of their natural-log likelihoods."""
        n, k = len(self.domain), self.n_hidden
        total = Counts(np.zeros(k), np.zeros((n, k, k)), np.zeros((len(parameters.emission), k)))
        log_likelihood = 0.0
        for counts, log_probs in self._map(_block_counts, parameters, rows):
            total.add(counts)
            log_likelihood += float(log_probs.sum())
        return total, log_likelihood

    def mean_log_likelihood(self, parameters: Parameters) -> float:
        """Return the mean natural-log likelihood of all rows (single precision inside)."""
        return sum(float(v.sum()) for v in self._map(_block_likelihoods, parameters, None)) / self.n_rows

    def _map(
        self, work: Callable[[Parameters, NDArray[np.int64]], T], parameters: Parameters, rows: Rows
    ) -> Iterator[T]:
        """Apply a function to all blocks, a few at a time, and yield its results in their order."""
        blocks = self.blocks(rows)
        if self.workers == 1 or len(blocks) == 1:
            for block in blocks:
                yield work(parameters, block)
            return
        with ThreadPoolExecutor(self.workers) as pool:
            for start in range(0, len(blocks), 2 * self.workers):
                yield from pool.map(partial(work, parameters), blocks[start : start + 2 * self.workers])


def _upward(
    parameters: Parameters, codes: NDArray[np.int64], beliefs: Floats, messages: Floats
) -> NDArray[np.float64]:
    """Fill beliefs (evidence at and below each variable, scaled) and messages to the parents.

    Both have shape (n, n_rows, K). Returns ln p of each row.
    """
    log_scale = np.zeros(codes.shape[1])
    for i in range(len(codes)):
        np.take(parameters.emission, parameters.offsets[i] + codes[i], axis=0, out=beliefs[i])
    for i in parameters.order[::-1].tolist():
        up = int(parameters.parent[i])
        if up < 0:
            with np.errstate(divide="ignore"):
                return log_scale + np.log(beliefs[i] @ parameters.root_prior)
        np.matmul(beliefs[i], parameters.transition[i].T, out=messages[i])
        absorb_message(beliefs[up], messages[i], log_scale)
    raise AssertionError("the order ends at the root")


def _block_likelihoods(parameters: Parameters, codes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return ln p of the rows of a block, shape (n_rows,)."""
    shape = (*codes.shape, parameters.n_hidden)
    return _upward(parameters, codes, np.empty(shape, np.float32), np.empty(shape, np.float32))


def _block_counts(parameters: Parameters, codes: NDArray[np.int64]) -> tuple[Counts, NDArray[np.float64]]:
    """Return the expected counts of a block and ln p of its rows."""
    n, n_rows = codes.shape
    k = parameters.n_hidden
    beliefs, messages = np.empty((n, n_rows, k), np.float32), np.empty((n, n_rows, k), np.float32)
    log_probs = _upward(parameters, codes, beliefs, messages)
    posteriors = beliefs  # each belief is overwritten by the posterior of its variable once it was used
    transition = np.zeros((n, k, k))
    emission = np.zeros((len(parameters.emission), k), np.float32)
    ratio = np.empty((n_rows, k), np.float32)
    predicted = np.empty((n_rows, k), np.float32)
    root = int(parameters.order[0])
    finish_posterior(np.broadcast_to(parameters.root_prior, (n_rows, k)).copy(), beliefs[root], posteriors[root])
    for i in parameters.order.tolist():
        up = int(parameters.parent[i])
        if up >= 0:
            divide_out(posteriors[up], messages[i], ratio)
            transition[i] = parameters.transition[i] * (ratio.T @ beliefs[i])
            np.matmul(ratio, parameters.transition[i], out=predicted)
            finish_posterior(predicted, beliefs[i], posteriors[i])
        add_rows(posteriors[i], parameters.offsets[i] + codes[i], emission)
    root_counts = posteriors[root].sum(axis=0, dtype=np.float64)
    return Counts(root_counts, transition, emission.astype(np.float64)), log_probs
