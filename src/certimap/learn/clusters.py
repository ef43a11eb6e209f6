"""Row clusters: k-means, hard EM of a naive Bayes mixture, or any scikit-learn clusterer."""

from __future__ import annotations

import copy
from typing import Any, Literal

import numpy as np

from certimap.core.arrays import Floats, Floats32, Ints
from certimap.core.named import needed
from certimap.errors import DataError
from certimap.learn.kernels.rows import k_means

Clusterer = Any  # an object whose fit_predict(rows) returns a cluster number for each: all of scikit-learn's
Clusters = Literal["kmeans", "em", "sklearn"] | Clusterer
MAX_STEPS = 30
EM_STEPS = 25
_WORD = (1 << 64) - 1


def mix(key: int, value: int) -> int:
    """Derive a 64-bit key from another key and a number (splitmix64 finaliser)."""
    z = (key + 0x9E3779B97F4A7C15 * (value + 1)) & _WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _WORD
    return z ^ (z >> 31)


def check_clusters(clusters: Any) -> None:
    """Raise DataError when `clusters` is neither a known name nor a clusterer."""
    if clusters not in ("kmeans", "em", "sklearn") and not callable(getattr(clusters, "fit_predict", None)):
        raise DataError(
            f"clusters is {clusters!r}; expected 'kmeans', 'em', 'sklearn' or an object with fit_predict"
        )


def row_clusters(features: Floats32, n_clusters: int, clusters: Clusters, key: int) -> Ints:
    """Split rows of contiguous features into at most `n_clusters` >= 2; return cluster numbers without gaps.

    "kmeans" is k-means++ and Lloyd, single-threaded; "em" a mixture of independent Gaussian features, started by
    k-means; "sklearn" scikit-learn's KMeans. Of an object with `fit_predict` a copy is used. Equal 64-bit keys
    give equal clusters.
    """
    n_clusters = min(n_clusters, len(features))
    if clusters in ("kmeans", "em"):
        labels = np.empty(len(features), np.int64)
        k_means(features, n_clusters, np.uint64(key), MAX_STEPS, labels)
        if clusters == "em":
            labels = _naive_bayes_em(features, labels)
    else:
        model: Any = copy.deepcopy(clusters)
        if clusters == "sklearn":
            why = "clusters='sklearn' needs scikit-learn; pip install certimap[learn]"
            model = needed("sklearn.cluster", why).KMeans(n_clusters, n_init=1, max_iter=MAX_STEPS)
        if hasattr(model, "get_params") and "random_state" in model.get_params():
            model.set_params(random_state=key & 0x7FFFFFFF)
        labels = np.asarray(model.fit_predict(features), np.int64)
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def _naive_bayes_em(features: Floats32, labels: Ints) -> Ints:
    """Refine clusters by hard EM of a mixture of independent Gaussian features with a variance floor."""
    n = len(features)
    floor = 0.02 + 0.01 * features.var(axis=0)
    for _ in range(EM_STEPS):
        numbers, labels = np.unique(labels, return_inverse=True)
        scores = np.empty((n, len(numbers)), np.float32)
        for c in range(len(numbers)):
            rows = features[labels == c]
            variance = rows.var(axis=0) + floor
            distance = (features - rows.mean(axis=0)) ** 2 @ (1.0 / variance)
            scores[:, c] = np.log(len(rows) / n) - 0.5 * (distance + np.log(variance).sum())
        updated = np.argmax(scores, axis=1)
        if np.count_nonzero(updated != labels) * 1000 <= n:
            return updated
        labels = updated
    return labels


def first_shares(features: Floats32, k: int, key: int, *, own: float = 0.9, rest: float = 0.1) -> Floats:
    """Return shares of rows, shape (n_rows, n_clusters): `own` to the k-means cluster, `rest` to all evenly."""
    if k == 1 or len(features) < 2:
        return np.ones((len(features), 1))
    labels = row_clusters(features, k, "kmeans", key)
    n_found = int(labels.max()) + 1
    return own * np.eye(n_found)[labels] + rest / n_found
