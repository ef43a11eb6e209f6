"""A user's evidence as exact weights: read here a second time, apart from `certimap.core.query`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np

from certimap.core.arguments import is_list, is_set, is_tuple
from certimap.core.domain import Categorical, Domain, Real
from certimap_lab.hostile.exact import ONE, ZERO, Exact, density, interval_mass


def state_weights(domain: Domain, evidence: Mapping[str, Any]) -> list[Exact | None]:
    """Return one weight per state for each variable that has evidence, None for the others and for real ones.

    A list is one likelihood per state, a set restricts, anything else is a label.
    """
    found: list[Exact | None] = []
    for variable in domain:
        value = evidence.get(variable.name)
        if value is None or not isinstance(variable, Categorical):
            found.append(None)
            continue
        weights = np.empty(variable.n_states, np.object_)
        if is_list(value):
            weights[:] = [Decimal(w) for w in value]
        elif is_set(value):
            weights[:] = [ONE if s in value else ZERO for s in variable.states]
        else:
            weights[:] = [ONE if s == value else ZERO for s in variable.states]
        found.append(weights)
    return found


def gaussian_weight(domain: Domain, variable: int, evidence: Mapping[str, Any], mean: float, sd: float) -> Decimal:
    """Return what evidence leaves of a normal distribution: a density, or the mass inside of an interval."""
    real = domain.variables[variable]
    assert isinstance(real, Real)
    value = evidence.get(real.name, (-math.inf, math.inf))
    if is_tuple(value):
        low, high = value
        return interval_mass(max(low, real.low), min(high, real.high), mean, sd)
    return density(float(value), mean, sd)
