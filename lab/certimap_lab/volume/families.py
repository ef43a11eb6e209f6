"""The families of cases, and which of them a number belongs to."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from certimap_lab.volume import intervals, models, questions, structured, tight
from certimap_lab.volume.case import VolumeCase

Make = Callable[[np.random.Generator], VolumeCase]
FAMILIES: dict[str, tuple[Make, float]] = {
    # The rules where they only just hold: what is looser by a little is false here.
    "one above many": (tight.one_above_many, 0.14),
    "one above many, published": (tight.one_above_many_published, 0.08),
    "draws from the rest": (tight.draws_from_the_rest, 0.1),
    "smooth around the mode": (tight.smooth_around_the_mode, 0.08),
    "smooth density": (tight.smooth_density, 0.06),
    "all but the best": (tight.all_but_the_best, 0.06),
    "stopped searches": (tight.stopped_search, 0.06),
    "rivals": (tight.rivals, 0.0),  # where its rule is loosened, and not in the mixture
    # Models and posteriors of every kind, under every solver.
    "Bayesian networks": (models.bayesian, 0.12),
    "Markov networks": (models.markov, 0.06),
    "circuits": (models.circuit, 0.1),
    "hidden trees": (models.hidden_tree, 0.04),
    "mixtures of Gaussians": (models.gaussians, 0.04),
    "functions": (models.function, 0.02),
    "tables": (models.table, 0.02),
    "values between two sides": (models.two_sided, 0.02),
    "mixtures of trees": (structured.tree_mixture, 0.02),
    "shared queries": (structured.shared_query, 0.01),
    "linear-Gaussian networks": (structured.linear_gaussian, 0.02),
    # Other questions.
    "constraints": (questions.constrained, 0.08),
    "interventions": (questions.intervened, 0.04),
    "stated probabilities": (questions.stated, 0.03),
    "sets that hold a probability": (questions.covered, 0.05),
    # Real variables in intervals, some of which end where a density does.
    "leaves in intervals": (intervals.leaves_in_intervals, 0.06),
    "correlated in intervals": (intervals.correlated_in_intervals, 0.04),
}
"""By name: what makes a case, and the share of the queries."""

_NAMES = list(FAMILIES)
_SHARES = np.array([share for _, share in FAMILIES.values()])


def _generator(seed: int, number: int) -> np.random.Generator:
    return np.random.default_rng([17, seed, number])


def family_of(seed: int, number: int) -> str:
    """Return the family of a query by its number."""
    return _NAMES[int(_generator(seed, number).choice(len(_NAMES), p=_SHARES / _SHARES.sum()))]


def make_case(seed: int, number: int, family: str | None = None) -> VolumeCase:
    """Make the query of a number: the same for the same seed, number and family (by default its own)."""
    make, _ = FAMILIES[family or family_of(seed, number)]
    return make(_generator(seed, number).spawn(1)[0])
