"""A hostile model with a query and the exact truth about it, and the generators of each family."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from certimap.conversions.choose import View
from certimap.domain import Categorical, Domain
from certimap.testing.hostile.exact import arithmetic
from certimap.testing.hostile.numbers import likelihood, shuffled
from certimap.testing.hostile.truth import Truth


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
    views
        Names of views that the model has beside its own (see `certimap.conversions.choose.posterior_of`).
    size
        Natural log: how large the logs are that any evaluation has to add up, rounding being relative to them.
    refusal
        The error with which the model was refused on its way through a file, where that is right.
    """

    model: Any
    query: list[str] | None
    evidence: dict[str, Any] | None
    truth: Truth
    views: tuple[View, ...] = ()
    size: float = 0.0
    refusal: Exception | None = None


Generator = Callable[[np.random.Generator], HostileCase]
_PLACE = "certimap.testing.hostile"
FAMILIES: dict[str, tuple[str, str]] = {
    "leaf": ("circuits", "leaf"),
    "independent": ("circuits", "independent"),
    "sizes": ("circuits", "sizes"),
    "mixture": ("circuits", "mixture"),
    "shared": ("circuits", "shared"),
    "deciding": ("circuits", "deciding"),
    "structured": ("circuits", "structured"),
    "gaussian": ("circuits", "gaussian"),
    "naive_bayes": ("networks", "naive_bayes"),
    "chain": ("networks", "chain"),
    "hmm": ("networks", "hmm"),
    "bayesian": ("networks", "bayesian"),
    "markov": ("networks", "markov"),
    "hidden_tree": ("networks", "hidden_tree"),
    "function": ("others", "function"),
    "round_trip": ("others", "round_trip"),
    "text": ("others", "text"),
}


def family_of(seed: int) -> str:
    """Return the family of a seed: they take turns."""
    names = list(FAMILIES)
    return names[seed % len(names)]


def make_case(seed: int) -> HostileCase:
    """Return the hostile model of a seed (the same one whenever and wherever it is made)."""
    module, name = FAMILIES[family_of(seed)]
    generate: Generator = getattr(importlib.import_module(f"{_PLACE}.{module}"), name)
    with arithmetic():
        return generate(np.random.default_rng([seed, 7]))


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
