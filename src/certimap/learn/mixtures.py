"""The settings and the starts that the learners of mixtures share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, TypeVar

import numpy as np

from certimap.core.arrays import Floats, Floats32
from certimap.errors import DataError
from certimap.learn.clusters import mix, row_clusters
from certimap.learn.estimator import DensityEstimator, check_count, check_positive

HELD_OUT = 0.2
M = TypeVar("M")


@dataclass(eq=False, repr=False)
class MixtureEstimator(DensityEstimator):
    """Base class of learners of mixtures, which try several settings on validation rows.

    Parameters
    ----------
    n_components
        The number of components, or several to choose from.
    smoothing
        See the learner; one number, or several to choose from.
    n_starts
        Starts (k-means clusters) of each setting; the best on its own rows is kept.
    max_steps
        Maximum number of steps per start.
    tolerance
        A start ends when a step gains less than this, in nats per row.
    """

    n_components: int | Sequence[int] = 1
    _: KW_ONLY
    smoothing: float | Sequence[float] | None = 1.0
    n_starts: int = 2
    max_steps: int = 100
    tolerance: float = 1e-3

    def _grid(self, smoothing: float | Sequence[float] | None) -> tuple[list[int], list[float]]:
        """Return the numbers of components and the smoothings to try; check these and both counts."""
        components: list[Any] = np.atleast_1d(np.array(self.n_components, object)).tolist()
        smoothings: list[Any] = np.atleast_1d(np.array(smoothing, object)).tolist()
        counts: list[tuple[str, Any]] = [("n_components", k) for k in components]
        for name, k in [*counts, ("n_starts", self.n_starts), ("max_steps", self.max_steps)]:
            check_count(name, k, 1)
        for s in smoothings:
            check_positive("smoothing", s, "a positive number, or several of them")
        if not components or not smoothings:
            raise DataError("n_components or smoothing is empty; at least one value is needed")
        return components, smoothings

    def _best_of_starts(self, k: int, attempt: Callable[[int], tuple[float, M]]) -> M:
        """Return the best of several starts, each a function of a key, judged on the training rows."""
        best: tuple[float, M] | None = None
        for start in range(self.n_starts if k > 1 else 1):
            if best is not None and self._is_late():
                break
            found = attempt(mix(self._key, start))
            if best is None or found[0] > best[0]:
                best = found
        assert best is not None
        return best[1]


def first_shares(features: Floats32, k: int, key: int, *, own: float = 0.9, rest: float = 0.1) -> Floats:
    """Return shares of rows, shape (n_rows, n_clusters): `own` to the k-means cluster, `rest` to all evenly."""
    if k == 1 or len(features) < 2:
        return np.ones((len(features), 1))
    labels = row_clusters(features, k, "kmeans", key)
    n_found = int(labels.max()) + 1
    return own * np.eye(n_found)[labels] + rest / n_found
