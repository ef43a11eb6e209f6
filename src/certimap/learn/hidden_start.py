"""Initial parameters of a hidden tree for expectation-maximisation: clusters of each variable's neighbourhood."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from certimap.core.domain import Domain
from certimap.learn.clusters import mix
from certimap.learn.hidden_passes import Counts, Parameters
from certimap.learn.kernels.rows import k_means

NEIGHBOURS = 12
ROWS_CLUSTERED = 4000
STEPS = 20
MANY = 64  # clusters beyond which fewer steps are made: they cost more and change less
TIE_BREAKING = 1e-3  # spreads equal rows over several states


def neighbourhoods(parent: NDArray[np.int64], limit: int = NEIGHBOURS) -> list[list[int]]:
    """Return, for each variable, itself and its nearest variables in the tree, at most `limit` in all."""
    nothing: list[int] = []
    near = [list(nothing) for _ in parent]
    parents: list[int] = parent.tolist()
    for i, up in enumerate(parents):
        if up >= 0:
            near[up].append(i)
            near[i].append(up)
    out: list[list[int]] = []
    for i in range(len(near)):
        found, seen = [i], {i}
        for at in found:
            if len(found) >= limit:
                break
            fresh = [j for j in near[at] if j not in seen]
            seen.update(fresh)
            found.extend(fresh)
        out.append(found[:limit])
    return out


def counts_of_clusters(
    domain: Domain, indicators: NDArray[np.float32], parent: NDArray[np.int64], n_hidden: int, seed: int
) -> Counts:
    """Return counts with each latent variable set to the cluster of its variable's neighbourhood.

    Parameters
    ----------
    indicators
        float32, shape (n_rows, total_states); 0 in all states of a missing value.
    parent
        int64, shape (n,), -1 at the root.
    n_hidden
        The number of clusters.
    seed
        Equal seeds give equal counts.
    """
    n_rows, n = len(indicators), len(domain)
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.permutation(n_rows)[:ROWS_CLUSTERED])
    labels = np.empty((n, n_rows), np.int64)
    for i, near in enumerate(neighbourhoods(parent)):
        ranges = [range(int(domain.offsets[j]), int(domain.offsets[j + 1])) for j in near]
        columns = [column for some in ranges for column in some]
        features = np.ascontiguousarray(indicators[:, columns])
        features += TIE_BREAKING * rng.random(features.shape, np.float32)
        labels[i] = _cluster(features, rows, n_hidden, mix(seed & ((1 << 64) - 1), i))
    k = n_hidden
    counts = Counts(np.zeros(k), np.zeros((n, k, k), np.float32), np.zeros((domain.total_states + n, k)))
    for i, up in enumerate(parent.tolist()):
        start = int(domain.offsets[i]) + i
        for s in range(int(domain.n_states[i])):
            weights = indicators[:, domain.offsets[i] + s]
            counts.emission[start + s] = np.bincount(labels[i], weights, minlength=k)
        if up < 0:
            counts.root += np.bincount(labels[i], minlength=k)
        else:
            counts.transition[i] = np.bincount(labels[up] * k + labels[i], minlength=k * k).reshape(k, k)
    return counts


def _cluster(features: NDArray[np.float32], rows: NDArray[np.int64], n_hidden: int, key: int) -> NDArray[np.int64]:
    """Cluster some of the rows, and assign every row to the nearest centre."""
    labels = np.empty(len(rows), np.int64)
    some = np.ascontiguousarray(features[rows])
    n_steps = max(2, min(STEPS, STEPS * MANY // n_hidden))
    k_means(some, min(n_hidden, len(rows)), np.uint64(key), n_steps, labels)
    used = np.unique(labels)
    centres = np.stack([some[labels == c].mean(axis=0) for c in used])
    scores = features @ centres.T - 0.5 * np.sum(centres**2, axis=1)
    return used[np.argmax(scores, axis=1)]


def split_states(parameters: Parameters, n_hidden: int, rng: np.random.Generator) -> Parameters:
    """Split the latent states evenly into more states; the model stays almost the same.

    Parameters
    ----------
    parameters
        A hidden tree with fewer states.
    n_hidden
        The new number of states.
    rng
        Changes transitions by up to half, so that expectation-maximisation can tell the new states apart.
    """
    k = parameters.n_hidden
    origin = np.arange(n_hidden) % k
    share = (1.0 / np.bincount(origin, minlength=k)[origin]).astype(np.float32)
    transition = np.empty((len(parameters.order), n_hidden, n_hidden), np.float32)
    for old, new in zip(parameters.transition, transition, strict=True):
        np.multiply(old[np.ix_(origin, origin)], share, out=new)
        new *= np.float32(0.5) + rng.random(new.shape, np.float32)
        new /= new.sum(axis=1, keepdims=True)
    return Parameters(
        parameters.order,
        parameters.parent,
        parameters.root_prior[origin] * share,
        transition,
        np.ascontiguousarray(parameters.emission[:, origin]),
        parameters.offsets,
    )
