"""Decide by held-out rows whether a column with many integers holds labels or numbers."""

from __future__ import annotations

import numpy as np

from certimap.circuits.leaves.family import LeafFamily, is_count
from certimap.circuits.leaves.gaussian import Gaussian
from certimap.circuits.leaves.geometric import Geometric
from certimap.circuits.leaves.poisson import Poisson
from certimap.core.arrays import Floats
from certimap.learn.leaf_families import Histogram

HELD_OUT = 5  # one row in so many is held out
SEEN = 3  # minimum rows per value: with rarer values, new ones would turn up later that labels cannot hold
PRIOR = 0.5  # pseudo-counts per label


def are_labels(values: Floats) -> bool:
    """Return whether held-out values are more probable as labels than as counts, bars or normal numbers.

    The lead must exceed the standard error of the difference. A density at an integer approximates the mass of the
    unit interval around it. Columns with a rare value are numbers. Equal values give equal answers. `values`: the
    known cells of a column of integers.
    """
    order = np.random.default_rng(0).permutation(len(values))
    kept, held = values[order[len(values) // HELD_OUT :]], values[order[: len(values) // HELD_OUT]]
    labels, rows = np.unique(values, return_counts=True)
    if not len(held) or rows.min() < SEEN:
        return False
    counts = np.bincount(np.searchsorted(labels, kept), minlength=len(labels)) + PRIOR
    as_labels = np.log(counts / counts.sum())[np.searchsorted(labels, held)]
    families: list[LeafFamily] = [Histogram(kept), Gaussian(kept)]
    if np.all(is_count(values)):
        families += [Poisson(kept), Geometric(kept)]
    one = np.ones((len(kept), 1))
    judged = [family.log_density(held, family.fit(kept, one, 1.0))[:, 0] for family in families]
    gains = as_labels - max(judged, key=lambda logs: float(logs.mean()))
    return float(gains.mean()) > float(gains.std()) / len(gains) ** 0.5
