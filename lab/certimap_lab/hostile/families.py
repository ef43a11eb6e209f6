"""The families of hostile models, which take turns over the seeds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from certimap_lab.hostile import circuits, edges, networks, others
from certimap_lab.hostile.case import HostileCase
from certimap_lab.hostile.densities import DensityCase, densities
from certimap_lab.hostile.exact import arithmetic

FAMILIES: dict[str, Callable[[np.random.Generator], HostileCase | DensityCase | edges.EdgeCase]] = {
    generate.__name__: generate
    for generate in (
        circuits.leaf,
        circuits.independent,
        circuits.sizes,
        circuits.mixture,
        circuits.shared,
        circuits.deciding,
        circuits.structured,
        circuits.gaussian,
        networks.naive_bayes,
        networks.chain,
        networks.hmm,
        networks.bayesian,
        networks.markov,
        networks.hidden_tree,
        others.function,
        others.round_trip,
        others.text,
        densities,
        edges.ends,
        edges.gaps,
        edges.frames,
    )
}


def family_of(seed: int) -> str:
    """Return the family of a seed."""
    names = list(FAMILIES)
    return names[seed % len(names)]


def make_case(seed: int) -> HostileCase | DensityCase | edges.EdgeCase:
    """Return the hostile model of a seed (the same one whenever and wherever it is made)."""
    with arithmetic():
        return FAMILIES[family_of(seed)](np.random.default_rng([seed, 7]))
