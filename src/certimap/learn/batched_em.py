"""Expectation-maximisation on batches of rows, then on all of them; shared by learners of circuits and trees."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from certimap.core.arrays import Array, Ints
from certimap.core.progress import Progress
from certimap.learn.estimator import DensityEstimator, is_late

P = TypeVar("P")  # parameters
C = TypeVar("C", bound="ExpectedCounts")
B = TypeVar("B")  # a block of rows
T = TypeVar("T")


class ExpectedCounts(ABC):
    """Expected counts, as arrays that are added and scaled in place."""

    @property
    @abstractmethod
    def arrays(self) -> list[Array]: ...


class TrainingStep(NamedTuple):
    """One pass over the data: mean natural-log likelihoods before it (train) and after it (validation)."""

    train: float
    valid: float | None


@dataclass(kw_only=True, eq=False, repr=False)
class BatchLearner(DensityEstimator):
    """Base class of learners in batches of rows.

    - `max_steps`: maximum number of passes over the data, for each setting tried.
    - `batch_rows`: rows per batch. None takes a hundredth of the rows, at least 100 (and one per latent state of
      a hidden tree). The last fifth of the passes, or more, uses all rows.
    - `patience`: passes without a better validation likelihood after which batches end, and later learning ends.
    - `workers`: threads; None takes one per processor. The model does not depend on their number.
    """

    max_steps: int = 100
    batch_rows: int | None = None
    patience: int = 6
    workers: int | None = None
    history_: list[TrainingStep] = field(init=False)
    ranges: ClassVar[str] = "max_steps [0, inf); patience, batch_rows, workers [1, inf)"


class RowPasses(ABC, Generic[P, C, B]):
    """Rows of a table, in blocks for threads; sums over them do not depend on the number of threads."""

    n_rows: int
    workers: int
    ahead: int = 1  # blocks per thread at a time

    @abstractmethod
    def blocks(self, rows: Ints | None) -> Sequence[B]:
        """Split some rows, or all, into blocks that fit into memory."""

    @abstractmethod
    def counts_of(self, parameters: P, block: B) -> tuple[C, float]:
        """Return the expected counts of a block and the sum of the natural-log likelihoods of its rows."""

    @abstractmethod
    def log_prob_of(self, parameters: P, block: B) -> float:
        """Return the sum of the natural-log likelihoods of the rows of a block."""

    def expected_counts(self, parameters: P, rows: Ints | None = None) -> tuple[C, float]:
        """Return the expected counts of some rows and the sum of their natural-log likelihoods."""
        found = self._each(partial(self.counts_of, parameters), rows)
        total, log_likelihood = next(found)  # empty tables are rejected earlier
        for counts, log_prob in found:
            for mine, new in zip(total.arrays, counts.arrays, strict=True):
                mine += new
            log_likelihood += log_prob
        return total, log_likelihood

    def mean_log_likelihood(self, parameters: P) -> float:
        """Return the mean natural-log likelihood of all rows."""
        return sum(self._each(partial(self.log_prob_of, parameters), None)) / self.n_rows

    def _each(self, work: Callable[[B], T], rows: Ints | None) -> Iterator[T]:
        """Apply a function to all blocks, some per thread at a time, and yield its results in their order."""
        blocks, together = self.blocks(rows), self.ahead * self.workers
        if self.workers == 1 or len(blocks) == 1:
            yield from map(work, blocks)
            return
        with ThreadPoolExecutor(self.workers) as pool:
            for start in range(0, len(blocks), together):
                yield from pool.map(work, blocks[start : start + together])


class BatchedEM(ABC, Generic[P, C]):
    """The state of one run: parameters, running counts, and the best parameters so far.

    The rows `held_out` judge parameters; without them the training rows, `passes`, do. Batches, drawn by `rng`,
    update the `running` counts in place (None for no batches); they have `least_batch` rows unless the settings
    give a size.
    """

    def __init__(
        self,
        settings: BatchLearner,
        passes: RowPasses[P, C, Any],
        held_out: RowPasses[P, C, Any] | None,
        rng: np.random.Generator,
        running: C | None,
        parameters: P,
        *,
        least_batch: int = 100,
    ) -> None:
        self._schedule, self._passes, self._held_out, self._rng = settings, passes, held_out, rng
        self._running, self._least_batch, self.n_rows = running, least_batch, passes.n_rows
        self._in_batches = running is not None
        self.parameters, self.best = parameters, parameters
        self.best_value = -np.inf if held_out is None else held_out.mean_log_likelihood(parameters)
        self._steps_since_best = 0
        self.history: list[TrainingStep] = []

    @abstractmethod
    def maximise(self, counts: C) -> P:
        """Return the most probable parameters given expected counts and smoothing."""

    def train(self, title: str, deadline: float | None) -> bool:
        """Learn until the validation score stops rising; return whether the deadline ended learning."""
        schedule = self._schedule
        with Progress(title, schedule.max_steps, schedule.progress) as bar:
            for number in range(schedule.max_steps):
                if is_late(deadline):
                    return True
                self.history.append(self._step(number))
                bar.step(f"{self.history[-1].train:.3f} nats per row")
                if self._steps_since_best >= schedule.patience:
                    if not self._in_batches:
                        break
                    # return to the best parameters and use all rows from now on
                    self._in_batches, self.parameters, self._steps_since_best = False, self.best, 0
        return False

    def _step(self, number: int) -> TrainingStep:
        """Make one pass over the data and judge it; at most the first four fifths of passes use batches."""
        n_rows = self.n_rows
        batch = self._schedule.batch_rows or max(self._least_batch, n_rows // 100)
        self._in_batches = self._in_batches and 5 * number < 4 * self._schedule.max_steps and batch < n_rows
        if self._in_batches:
            total = self._pass_in_batches(number, batch)
        else:
            counts, total = self._passes.expected_counts(self.parameters)
            self.parameters = self.maximise(counts)
        train = total / n_rows
        valid = None if self._held_out is None else self._held_out.mean_log_likelihood(self.parameters)
        value = train if valid is None else valid
        self._steps_since_best += 1
        if value > self.best_value:
            self.best, self.best_value, self._steps_since_best = self.parameters, value, 0
        return TrainingStep(train, valid)

    def _pass_in_batches(self, number: int, batch: int) -> float:
        """Maximise after every batch; return the sum of the natural-log likelihoods of all rows."""
        running, total = self._running, 0.0
        assert running is not None  # batches need running counts
        order = self._rng.permutation(self.n_rows)
        cuts = range(0, len(order), batch)
        for b, start in enumerate(cuts):
            rows = np.sort(order[start : start + batch])
            counts, log_likelihood = self._passes.expected_counts(self.parameters, rows)
            total += log_likelihood
            rate = 1.0 / (2.0 + number + b / len(cuts))
            for mine, new in zip(running.arrays, counts.arrays, strict=True):  # a table at a time stays near
                mine *= 1.0 - rate
                mine += rate * self.n_rows / len(rows) * new
            self.parameters = self.maximise(running)
        return total
