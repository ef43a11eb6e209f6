"""A hostile model with a query and the exact truth about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from certimap.core.domain import Categorical, Domain
from certimap_lab.hostile.numbers import likelihood, shuffled
from certimap_lab.hostile.truth import Truth


@dataclass(frozen=True)
class HostileCase:
    """One model, one query, and what is true about it.

    Attributes
    ----------
    model
        What `map_query` takes: a circuit, a network, a hidden tree, or a posterior.
    query, evidence
        What `map_query` takes beside it; None for a posterior.
    truth
        The exact distribution of the query variables.
    refusal
        The error with which the model was refused on its way through a file, where that is right.
    """

    model: Any
    query: list[str] | None
    evidence: dict[str, Any] | None
    truth: Truth
    refusal: Exception | None = None


def choose_query(
    rng: np.random.Generator, domain: Domain, *, max_points: int = 256, candidates: list[str] | None = None
) -> list[str]:
    """Return query variables in random order whose joint states are at most `max_points`."""
    names = [v.name for v in domain if isinstance(v, Categorical)] if candidates is None else candidates
    wanted = int(rng.integers(1, len(names) + 1))
    chosen: list[str] = []
    n_points = 1
    for i in shuffled(rng, len(names)):
        n_points *= domain[names[i]].n_states
        if n_points > max_points or len(chosen) == wanted:
            break
        chosen.append(names[i])
    return chosen or [min(names, key=lambda name: domain[name].n_states)]


def choose_evidence(rng: np.random.Generator, domain: Domain, query: list[str]) -> dict[str, Any]:
    """Return evidence of every kind, on query variables soft evidence only."""
    evidence: dict[str, Any] = {}
    rate = rng.choice([0.2, 0.6, 0.9])
    for variable in domain:
        if not isinstance(variable, Categorical) or rng.random() > rate * (0.3 if variable.name in query else 1.0):
            continue
        kind = int(rng.integers(0, 5))
        if kind <= 2 and variable.name not in query:
            evidence[variable.name] = variable.states[int(rng.integers(variable.n_states))]
        elif kind == 3:
            kept = rng.random(variable.n_states) < 0.7
            kept[rng.integers(variable.n_states)] = True
            evidence[variable.name] = {s for s, keep in zip(variable.states, kept, strict=True) if keep}
        else:
            evidence[variable.name] = likelihood(rng, variable.n_states)
    return evidence
