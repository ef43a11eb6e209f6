"""Jeffrey's rule: likelihoods that give variables the probabilities that the evidence states."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from typing import Any

import numpy as np

from certimap.core.arrays import Floats
from certimap.core.box import Boxes
from certimap.core.control import Limits
from certimap.core.logs import log_of, log_sum
from certimap.core.model import Model
from certimap.core.posterior import Draws, Masses
from certimap.core.query import Evidence, make_query
from certimap.errors import ImpossibleEvidence, QueryError, TooLarge
from certimap.networks.network import Network

TOLERANCE = 1e-9  # between a stated probability and the one found
PATIENCE = 300  # steps per variable within which the largest difference must halve
MOST_CELLS = 2**16  # of a joint table over the variables; more are summed out anew at each step
_Logs = dict[str, Floats]


def likelihoods(model: Model, targets: Mapping[str, Floats], rest: Evidence, limits: Limits) -> _Logs:
    """Return natural logs of likelihoods that give variables the marginals `targets`, together with the `rest`.

    Iterated proportional fitting (Deming and Stephan 1940): the variable that is farthest off is scaled until all
    are within `TOLERANCE`. Raises ImpossibleEvidence for a target that the rest excludes, QueryError if the fit
    stalls, and TooLarge if sums do not fit. Cost: one table over the variables; beyond `MOST_CELLS`, a sum a step.
    """
    logs = {name: np.where(target > 0.0, 0.0, -np.inf) for name, target in targets.items()}
    marginals, best, waited = _marginals(model, list(targets), rest, limits), math.inf, 0
    while True:
        found = marginals(logs)
        for name, target in targets.items():
            if len(lost := np.flatnonzero((target > 0.0) & (found[name] == -np.inf))):
                variable: Any = model.domain[name]
                told = f"the probability of {name}={variable.states[lost[0]]!r} is stated as {target[lost[0]]:.6g}"
                raise ImpossibleEvidence(f"{told}, and the rest of the evidence excludes that state")
        off = {name: float(np.abs(np.exp(found[name]) - target).max()) for name, target in targets.items()}
        name = max(off, key=off.__getitem__)
        if off[name] <= TOLERANCE:
            return logs
        best, waited = (off[name], 0) if off[name] <= 0.5 * best else (best, waited + 1)
        if waited > PATIENCE * len(targets):
            raise QueryError(
                f"no likelihoods were found that give {', '.join(targets)} the stated probabilities together: "
                f"{name} stays {off[name]:.3g} off; expected probabilities that the model allows together"
            )
        limits.control.check("fitting the stated probabilities")
        moved = np.where(targets[name] > 0.0, logs[name] + log_of(targets[name]) - found[name], -np.inf)
        logs[name] = moved - moved.max()


def _marginals(model: Model, names: Sequence[str], rest: Evidence, limits: Limits) -> Callable[[_Logs], _Logs]:
    """Return a function from log likelihoods to logs of all marginals."""
    sizes, axes = [model.domain[name].n_states for name in names], range(len(names))

    def of_sums(logs: _Logs) -> _Logs:
        soft = {name: {"log_likelihood": own} for name, own in logs.items()}
        posterior = _summed(model, names, {**rest, **soft}, limits)
        each = posterior.log_mass_each(Boxes.full(posterior.domain))[0]
        return dict(zip(names, np.split(each, posterior.domain.offsets[1:-1]), strict=True))

    def of_table(logs: _Logs) -> _Logs:
        joint = table + reduce(np.add.outer, logs.values())
        joint -= max(float(log_sum(joint)), -1e300)
        return {n: log_sum(joint, tuple(a for a in axes if a != k)) for k, n in enumerate(names)}

    if math.prod(sizes) > MOST_CELLS:
        if isinstance(model, Network):  # compiled once, not at each step
            with suppress(TooLarge):
                model, rest = model.compile_query(make_query(model.domain, names, rest)), {}
        return of_sums
    posterior = _summed(model, names, rest, limits)
    points = np.indices(sizes).reshape(len(sizes), -1).T
    table = posterior.log_prob(points.astype(posterior.domain.point_dtype)).reshape(sizes)
    return of_table


def _summed(model: Model, names: Sequence[str], evidence: Evidence, limits: Limits) -> Masses:
    """Condition a model in a representation that sums exactly."""
    from certimap.conversions import condition

    found = condition(model, make_query(model.domain, names, evidence), wants=(Draws, Masses), limits=limits)
    if not isinstance(found, Masses):
        raise TooLarge(f"this {type(model).__name__} is too wide to sum")
    return found
