"""Check of a conversion: the converted model and the original object must agree at a few points.

Half of the points are drawn from the converted model, which makes them possible there. The other half draw each
variable independently, which can reveal parts lost in conversion. Nothing here runs a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from certimap.circuits.circuit import Circuit
from certimap.circuits.nodewise import chosen, circuit_values, drawn_point
from certimap.core.arrays import Floats, Ints
from certimap.core.logs import log_sum
from certimap.core.model import Model
from certimap.densities.gaussian_mixture import GaussianMixture
from certimap.densities.linear_gaussian import LinearGaussianNetwork
from certimap.errors import ModelError
from certimap.interop.reading import Reading, kind_of, log_normal
from certimap.networks.network import Network

AGREEMENT = 1e-3  # tolerance in nats: large circuits in single precision
UNDERFLOW = -80.0  # nats, relative to other parts, below which single precision may call a value 0
N_POINTS = 8


def check_agreement(reading: Reading, x: Any) -> None:
    """Compare a converted model with the library's own values at a few points.

    `reading`: the converted model. `x`: the object. Raises ModelError if values differ by more than `AGREEMENT`
    nats (times 1 + |log|), only one is impossible, or one is NaN; names the assignment. Also if the library itself
    fails.
    """
    model = reading.model if reading.compared is None else reading.compared
    states = model.domain.n_states if reading.states is None else np.asarray(reading.states, np.int64)
    points = _points(model, states, np.random.default_rng(0))
    ours = _values(model, points, sorted(reading.hidden))
    found = _asked(reading, points, x)
    same = (ours == found) | (np.isneginf(found) & (ours < UNDERFLOW))
    near = np.isfinite(ours) & np.isfinite(found)
    same[near] |= np.abs(ours[near] - found[near]) <= AGREEMENT * (1.0 + np.abs(ours[near]))
    if np.all(same):
        return
    at = int(np.flatnonzero(~same)[0])
    labels = list(model.domain.decode(points[at]).items())
    shown = ", ".join(f"{name}={label!r}" for i, (name, label) in enumerate(labels) if i not in reading.hidden)
    shown = shown if len(shown) <= 300 else f"{shown[:300]}..."
    raise ModelError(
        f"this {kind_of(x)} gives the assignment {shown} the log value {found[at]:.6g}, and what was read of it "
        f"{ours[at]:.6g}; this object, or this version of its library, is not understood, and nothing is guessed"
    )


def _asked(reading: Reading, points: Floats, x: Any) -> Floats:
    """Return the library's own values at points."""
    try:
        found = np.asarray(reading.theirs(points), np.float64).reshape(-1)
    except ModelError:
        raise
    except Exception as error:  # libraries raise any error for objects that they cannot evaluate
        said = " ".join(str(error).split()) or "no message"
        raise ModelError(
            f"this {kind_of(x)} cannot be evaluated by its own library ({type(error).__name__}: {said}); expected "
            "a complete model"
        ) from None
    if len(found) != len(points):
        raise ModelError(f"this {kind_of(x)} gave {len(found)} values for {len(points)} assignments")
    return found


def _points(model: Model, states: Ints, rng: np.random.Generator) -> Floats:
    """Return points, the first half drawn from the model; columns of states are below `states`."""
    drawn = np.array([_drawn(model, rng) for _ in range(N_POINTS // 2)])
    free = rng.permuted(drawn, axis=0)  # each column independently
    discrete = states > 0
    free[:, discrete] = rng.integers(states[discrete], size=(len(free), int(discrete.sum())))
    drawn[:, discrete] = np.minimum(drawn[:, discrete], states[discrete] - 1)
    return np.concatenate([drawn, free])


def _drawn(model: Model, rng: np.random.Generator) -> Floats:
    if isinstance(model, Circuit):
        return drawn_point(model, rng)
    if isinstance(model, Network):
        return _filled(model, rng)
    if isinstance(model, LinearGaussianNetwork):
        return _propagated(model, rng)
    assert isinstance(model, GaussianMixture)
    k = rng.choice(len(model.log_weights), p=np.exp(model.log_weights - log_sum(model.log_weights)))
    return rng.multivariate_normal(model.means[k], model.covariances[k])


def _filled(network: Network, rng: np.random.Generator) -> Floats:
    """Draw a point variable by variable, parents first, each by the factors whose scope it completes."""
    order: Sequence[int] = getattr(network, "topological_order", range(len(network.domain)))
    rank = {v: k for k, v in enumerate(order)}
    completed: dict[int, list[int]] = {}
    for k, factor in enumerate(network.factors):
        if factor.scope:
            completed.setdefault(max(factor.scope, key=rank.__getitem__), []).append(k)
    point = np.zeros(len(network.domain), np.int64)
    for v in order:
        rows = np.tile(point, (int(network.domain.n_states[v]), 1))
        rows[:, v] = np.arange(len(rows))
        log_weights = np.zeros(len(rows))
        for k in completed.get(v, ()):
            log_weights += network.factors[k].log_value(rows)
        point[v] = chosen(log_weights, rng)
    return point.astype(np.float64)


def _propagated(network: LinearGaussianNetwork, rng: np.random.Generator) -> Floats:
    """Return a draw from a network of real variables."""
    assert network.discrete is None  # no supported library has others
    point = np.zeros(len(network.domain))
    for i, parents, intercept, coefficients, sd in network.equations():
        point[i] = intercept + coefficients @ point[parents] + sd * rng.normal()
    return point


def _values(model: Model, points: Floats, hidden: list[int]) -> Floats:
    """Return the logs of a model's values, hidden variables summed out; shape (n,)."""
    if isinstance(model, Circuit):
        points = points.copy()
        points[:, hidden] = np.nan
        return circuit_values(model, points)
    if isinstance(model, Network):
        sizes = [int(model.domain.n_states[v]) for v in hidden]
        paths = np.stack(np.unravel_index(np.arange(math.prod(sizes)), sizes or (1,)), axis=1)
        rows = np.repeat(points.astype(np.int64), len(paths), axis=0)
        rows[:, hidden] = np.tile(paths, (len(points), 1))[:, : len(hidden)]
        return log_sum(model.log_joint(rows).reshape(len(points), -1), 1)
    if isinstance(model, LinearGaussianNetwork):
        total = np.zeros(len(points))
        for i, parents, intercept, coefficients, sd in model.equations():
            total += log_normal(points[:, i], intercept + points[:, parents] @ coefficients, sd)
        return total
    assert isinstance(model, GaussianMixture)
    return model.log_density(points)
