"""Upward and downward passes over blocks of rows: likelihoods and expected counts of a hidden tree.

Both messages to the parent and expected counts are matrix products, left to BLAS. Rows that agree in all variables
below an edge send the same message along it, and the downward pass needs only their summed flow. The passes thus
work on the distinct patterns of each subtree (`hidden_patterns`); near the leaves there are far fewer than rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from certimap.core.domain import Domain
from certimap.learn.batched_em import RowPasses, in_threads
from certimap.learn.hidden_patterns import PatternBlock, Patterns
from certimap.learn.kernels.hidden import absorb_message, add_rows, divide_out

Floats = NDArray[np.float32]
Rows = NDArray[np.int64] | None
T = TypeVar("T")
BLOCK_NUMBERS = (
    1 << 25
)  # beliefs and messages of one block hold twice as many, or as parameters where these are more


@dataclass
class Counts:
    """Expected counts: `root` (K,), `transition` (n, K, K; float32), `emission` (total_states + n, K)."""

    root: NDArray[np.float64]
    transition: Floats
    emission: NDArray[np.float64]

    def add(self, other: Counts) -> None:
        """Add other counts."""
        self.root += other.root
        self.transition += other.transition
        self.emission += other.emission

    def move_to(self, other: Counts, rate: float, weight: float) -> None:
        """Move by `rate` towards `weight` times the other counts."""
        self.root += rate * (weight * other.root - self.root)
        self.emission += rate * (weight * other.emission - self.emission)
        for mine, theirs in zip(self.transition, other.transition, strict=True):  # a table at a time stays near
            mine *= np.float32(1.0 - rate)
            mine += np.float32(rate * weight) * theirs


@dataclass(frozen=True, eq=False)
class Parameters:
    """A hidden tree in float32, ready for the passes.

    `emission` is (total_states + n, K); the last row of every variable holds ones, for a missing value."""

    order: NDArray[np.int64]
    parent: NDArray[np.int64]
    root_prior: Floats
    transition: Floats
    emission: Floats
    offsets: NDArray[np.int64]  # where the rows of each variable start in `emission`

    @property
    def n_hidden(self) -> int:
        return len(self.root_prior)


class Passes(RowPasses[Parameters, Counts]):
    """Rows of a table, cut into blocks for threads; results do not depend on the number of threads.

    Parameters
    ----------
    domain
        The observed variables.
    codes
        int64, shape (n, n_rows): positions of the states, `n_states[i]` where missing.
    order, parent
        int64, shape (n,): the tree, as in `Parameters`.
    n_hidden
        The number of latent states, for the size of the blocks.
    workers
        Threads; None takes one per processor.
    """

    def __init__(
        self,
        domain: Domain,
        codes: NDArray[np.int64],
        order: NDArray[np.int64],
        parent: NDArray[np.int64],
        n_hidden: int,
        workers: int | None,
    ) -> None:
        self.domain = domain
        self.n_rows = codes.shape[1]
        self.n_hidden = n_hidden
        self.workers = workers or os.cpu_count() or 1
        self._patterns = Patterns(codes, order, parent)
        self._all = self.blocks(np.arange(self.n_rows, dtype=np.int64))

    def blocks(self, rows: NDArray[np.int64]) -> list[PatternBlock]:
        """Split rows into blocks that fit into memory."""
        most = max(BLOCK_NUMBERS, len(self.domain) * self.n_hidden**2)  # the number of parameters
        return self._patterns.blocks(rows, most // self.n_hidden)

    def expected_counts(self, parameters: Parameters, rows: Rows = None) -> tuple[Counts, float]:
        """Return the expected counts of some rows and the sum of their natural-log likelihoods."""
        total, log_likelihood = None, 0.0
        for counts, log_prob in self._map(_block_counts, parameters, rows):
            log_likelihood += log_prob
            if total is None:
                total = counts
            else:
                total.add(counts)
        assert total is not None  # empty tables are rejected earlier
        return total, log_likelihood

    def mean_log_likelihood(self, parameters: Parameters) -> float:
        """Return the mean natural-log likelihood of all rows (single precision inside)."""
        return sum(self._map(_block_likelihood, parameters, None)) / self.n_rows

    def _map(
        self, work: Callable[[Parameters, PatternBlock], T], parameters: Parameters, rows: Rows
    ) -> Iterator[T]:
        """Apply a function to all blocks and yield its results in their order."""
        blocks = self._all if rows is None else self.blocks(rows)
        return in_threads(partial(work, parameters), blocks, self.workers)


@dataclass
class _Upward:
    """Result of an upward pass: per variable and pattern, evidence at and below it, and messages to the parent.

    Arrays of shape (n_patterns, K), each row scaled to maximum 1 before its message is sent.
    """

    beliefs: list[Floats]
    messages: list[Floats]
    n_rows: NDArray[np.float64]  # of each pattern of the whole tree
    log_prob: float  # the sum over all rows


def _upward(parameters: Parameters, block: PatternBlock) -> _Upward:
    beliefs = [np.take(parameters.emission, parameters.offsets[i] + c, axis=0) for i, c in enumerate(block.codes)]
    messages = [np.empty((0, parameters.n_hidden), np.float32)] * len(beliefs)
    log_scales = [np.zeros(len(codes)) for codes in block.codes]
    root = int(parameters.order[0])
    backwards: list[int] = parameters.order[:0:-1].tolist()
    for i in backwards:
        up = int(parameters.parent[i])
        messages[i] = beliefs[i] @ parameters.transition[i].T
        absorb_message(beliefs[up], messages[i], block.below(i, up), log_scales[up], log_scales[i])
    n_rows = np.bincount(block.number[root], minlength=len(beliefs[root])).astype(np.float64)
    with np.errstate(divide="ignore"):
        log_prob = log_scales[root] + np.log(beliefs[root] @ parameters.root_prior)
    return _Upward(beliefs, messages, n_rows, float(n_rows @ log_prob))


def _block_likelihood(parameters: Parameters, block: PatternBlock) -> float:
    """Return the sum of ln p over the rows of a block."""
    return _upward(parameters, block).log_prob


def _block_counts(parameters: Parameters, block: PatternBlock) -> tuple[Counts, float]:
    """Return the expected counts of a block and the sum of ln p over its rows.

    The downward flow sums the posterior of the latent variable over the rows of each pattern.
    """
    upward, k = _upward(parameters, block), parameters.n_hidden
    flows, messages = upward.beliefs, upward.messages  # the flow overwrites each belief after its last use
    transition = np.zeros((len(flows), k, k), np.float32)
    emission = np.zeros((len(parameters.emission), k), np.float32)
    order: list[int] = parameters.order.tolist()
    root = order[0]
    flows[root] *= parameters.root_prior
    total = flows[root].sum(axis=1, keepdims=True)
    flows[root] *= upward.n_rows[:, None].astype(np.float32) / np.where(total > 0.0, total, np.float32(np.inf))
    for i in order:
        up = int(parameters.parent[i])
        if up >= 0:
            weights = np.zeros_like(messages[i])
            add_rows(flows[up], block.below(i, up), weights)
            divide_out(weights, messages[i])
            np.matmul(weights.T, flows[i], out=transition[i])
            transition[i] *= parameters.transition[i]
            flows[i] *= weights @ parameters.transition[i]
        add_rows(flows[i], (parameters.offsets[i] + block.codes[i]).astype(np.int32), emission)
    root_counts = flows[root].sum(axis=0, dtype=np.float64)
    return Counts(root_counts, transition, emission.astype(np.float64)), upward.log_prob
