"""Queries with an empty answer: every variable is observed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from certimap.core.arrays import Floats
from certimap.core.box import Boxes, Points
from certimap.core.domain import Categorical, Domain
from certimap.core.posterior import Facts, Posterior
from certimap.core.query import Query
from certimap.errors import ImpossibleEvidence


@dataclasses.dataclass(frozen=True)
class CompletePosterior:
    """The distribution over no variables: one empty assignment, of probability 1."""

    # natural log of p(e), where e assigns every variable of the model: of the unnormalised product in a Markov
    # network, and of a density with real variables
    log_evidence: float
    domain: Domain = dataclasses.field(default_factory=lambda: Domain(()))

    @property
    def facts(self) -> Facts:
        """Properties of the posterior for solvers."""
        return Facts.of(self.domain, log_evidence=self.log_evidence)

    def sample(self, n: int, rng: np.random.Generator, boxes: Boxes | None = None) -> Points:
        """Return n empty assignments, shape (n, 0)."""
        return np.empty((n, 0), np.int16)

    def log_prob(self, points: Points) -> Floats:
        """Return ln 1 for each row of `points`, shape (batch,)."""
        return np.zeros(len(points))


def complete_posterior(query: Query, condition: Callable[[Query], Posterior]) -> CompletePosterior:
    """Return the posterior of a query whose evidence assigns every variable; ImpossibleEvidence if p(e) = 0.

    `condition` conditions the model on a query with query variables. It is called for one variable (with the
    fewest states) given all others, the model's cheapest query.
    """
    sizes = query.domain.n_states.tolist()
    asked = min(query.observed, key=lambda i: (sizes[i] or math.inf, i))
    start, end = int(query.domain.offsets[asked]), int(query.domain.offsets[asked + 1])
    weights = query.log_weights.copy()
    weights[start:end] = 0.0
    one = dataclasses.replace(
        query,
        variables=np.array([asked], np.int64),
        log_weights=weights,
        values={i: value for i, value in query.values.items() if i != asked},
        observed=query.observed - {asked},
    )
    posterior = condition(one)
    value: Any = query.values.get(asked)
    if isinstance(query.domain.variables[asked], Categorical):
        value = int(np.argmax(query.log_weights[start:end]))
    point = np.array([[value]], posterior.domain.point_dtype)
    facts = posterior.facts
    # If it is not normalised, log_prob is ln of the joint.
    shift = facts.log_evidence if facts.is_normalised and facts.log_evidence is not None else 0.0
    log_evidence = float(posterior.log_prob(point)[0]) + shift
    if log_evidence == -math.inf:
        raise ImpossibleEvidence("the evidence has probability 0 under the model; it assigns every variable")
    return CompletePosterior(log_evidence)
