"""Real variables in intervals, queried and hidden, under every solver; intervals end where densities do, too.

The density is a sum of products of leaves in closed form, or a mixture of two correlated Gaussians. The best point
known is that of a grid with all ends and peaks, so that what is false beside it is false.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from certimap.circuits.circuit import CircuitBuilder
from certimap.core.domain import Domain, Real
from certimap.densities.gaussian_mixture import GaussianMixture
from certimap_lab.volume.case import Floats, Truth, VolumeCase
from certimap_lab.volume.models import settings_of, solver_order

ENDS = (-1.0, 0.0, 0.5, 1.0, 2.0)  # of supports and of intervals
WIDTHS = (1e-12, 1e-6, 1e-3, 0.1, 1.0, 10.0, 1e3)
EPSILONS = (0.0, 0.001, 0.01, 0.05, 0.2, 0.5)
N_GRID = {1: 2001, 2: 121}  # places for each of so many queried variables
Leaf = tuple[str, tuple[float, ...]]
Interval = tuple[float, float]
WHOLE = (-math.inf, math.inf)
NARROW = 1e-3  # standard deviations


def normal_mass(low: float, high: float, mean: float, sd: float) -> float:
    """Return the mass of an interval under a Gaussian, in digits that a tail keeps."""
    a, b = (low - mean) / (sd * math.sqrt(2.0)), (high - mean) / (sd * math.sqrt(2.0))
    a, b = (a, b) if a + b > 0.0 else (-b, -a)
    return 0.5 * (math.erfc(a) - math.erfc(b))


def mass_between(leaf: Leaf, low: float, high: float) -> float:
    """Return the mass of an interval under a leaf, without subtracting numbers that nearly agree."""
    kind, p = leaf
    if kind == "gaussian":
        if high - low < NARROW * p[1]:  # Simpson's rule, off by less than a unit of the last place here
            ends = np.exp(log_densities(leaf, np.array([low, 0.5 * low + 0.5 * high, high])))
            return float(ends @ np.array([1.0, 4.0, 1.0])) * (high - low) / 6.0
        return normal_mass(low, high, *p)
    if kind == "uniform":
        return max(min(high, p[1]) - max(low, p[0]), 0.0) / (p[1] - p[0])
    if kind == "exponential":
        return _tail(max(low, 0.0), high - max(low, 0.0), p[0])
    above = _tail(max(low - p[0], 0.0), high - max(low, p[0]), 1.0 / p[1])
    below = _tail(max(p[0] - high, 0.0), min(high, p[0]) - low, 1.0 / p[1])
    return 0.5 * (above + below)


def _tail(low: float, width: float, rate: float) -> float:
    """Return the mass of [low, low + width] under an exponential law, 0 for an empty interval."""
    return -math.exp(-rate * low) * math.expm1(-rate * width) if width > 0.0 else 0.0


def log_densities(leaf: Leaf, x: Floats) -> Floats:
    """Return natural logs of the density of a leaf; both ends of its support belong to it."""
    kind, p = leaf
    if kind == "gaussian":
        return -0.5 * ((x - p[0]) / p[1]) ** 2 - math.log(p[1] * math.sqrt(2.0 * math.pi))
    if kind == "exponential":
        return np.where(x >= 0.0, math.log(p[0]) - p[0] * np.maximum(x, 0.0), -math.inf)
    if kind == "uniform":
        return np.where((x >= p[0]) & (x <= p[1]), -math.log(p[1] - p[0]), -math.inf)
    return -np.abs(x - p[0]) / p[1] - math.log(2.0 * p[1])


def _log(x: float) -> float:
    return math.log(x) if x > 0.0 else -math.inf


def _leaf(rng: np.random.Generator) -> Leaf:
    kind = str(rng.choice(["gaussian", "exponential", "uniform", "laplace"]))
    if kind == "exponential":
        return kind, (float(rng.choice([0.3, 1.0, 5.0])),)
    if kind == "uniform":
        low, high = sorted(rng.choice(ENDS, 2, replace=False).tolist())
        return kind, (low, high)
    return kind, (float(rng.normal()), float(rng.choice([0.05, 0.5, 2.0])))


def _interval(rng: np.random.Generator) -> Interval:
    """Return ends that densities may have too, or anything narrow or wide."""
    if rng.random() < 0.6:
        low, high = sorted(rng.choice(ENDS, 2, replace=False).tolist())
        return low, high
    low = float(rng.normal())
    return low, low + float(rng.choice(WIDTHS))


def _case(
    family: str,
    rng: np.random.Generator,
    model: Any,
    asked: list[str],
    evidence: dict[str, Interval],
    joint: Callable[[Floats], Floats],
    places: list[list[float]],
    total: float,
) -> VolumeCase:
    """Ask for some variables; `joint` is ln p(q, e) at points, `places` are peaks and ends, `total` is p(e)."""
    grids: list[Floats] = []
    for name, own in zip(asked, places, strict=True):
        low, high = evidence.get(name, (-8.0, 8.0))
        some = np.linspace(low, high, N_GRID[len(asked)])
        more = np.array([x for x in (*own, *ENDS, low, high) if low <= x <= high])
        grids.append(np.unique(np.concatenate([some, more])))
    points = np.array(list(itertools.product(*grids)))
    best = float(joint(points).max())

    def log_prob(point: Any) -> float:
        value = float(joint(np.asarray(point, np.float64)[None])[0])
        inside = all(
            evidence.get(n, WHOLE)[0] <= x <= evidence.get(n, WHOLE)[1] for n, x in zip(asked, point, strict=True)
        )
        return value - log_total if inside else -math.inf

    log_total = math.log(total) if total > 0.0 else -math.inf
    solver, others = solver_order(rng)
    settings = settings_of(rng, n_draws=300) | {"epsilon": float(rng.choice(EPSILONS))}
    settings["max_nodes"] = int(rng.choice([5, 50, 1000]))
    settings.pop("top_k", None)
    settings.pop("warm_start", None)
    truth = Truth(
        model.domain.subset([model.domain.index(n) for n in asked]), log_prob, np.array([best - log_total]), None
    )
    given: dict[str, Any] = dict(evidence)
    return VolumeCase(family, truth, solver, settings, model, asked, given, log_total, others=others)


def leaves_in_intervals(rng: np.random.Generator) -> VolumeCase:
    """A sum of products of leaves of four kinds over one to three variables, most of them in intervals."""
    n, k = int(rng.integers(1, 4)), int(rng.integers(1, 5))
    names = [f"x{i}" for i in range(n)]
    parts = [[_leaf(rng) for _ in names] for _ in range(k)]
    parts[0] = [("gaussian", (0.0, 2.0))] * n  # so that no interval is impossible
    weights = rng.dirichlet(np.ones(k))
    build = CircuitBuilder(Domain([Real(name) for name in names]))
    made = [[build.real(kind, v, *p) for v, (kind, p) in enumerate(part)] for part in parts]
    build.sum([build.product(nodes) for nodes in made], weights=weights)
    asked = names[: int(rng.integers(1, min(n, 2) + 1))]
    evidence = {name: _interval(rng) for name in names if rng.random() < 0.7}
    places = [
        [p[0] if kind in ("gaussian", "laplace") else 0.0 for kind, p in column]
        for column in zip(*parts, strict=True)
    ]

    def mass(leaf: Leaf, name: str) -> float:
        return mass_between(leaf, *evidence.get(name, WHOLE))

    def joint(points: Floats) -> Floats:
        total = np.full(len(points), -math.inf)
        for weight, part in zip(weights.tolist(), parts, strict=True):
            term = np.full(len(points), math.log(weight))
            for name, leaf in zip(names, part, strict=True):
                term += (
                    log_densities(leaf, points[:, asked.index(name)]) if name in asked else _log(mass(leaf, name))
                )
            total = np.logaddexp(total, term)
        return total

    each = [
        w * math.prod(mass(leaf, name) for name, leaf in zip(names, part, strict=True))
        for w, part in zip(weights, parts, strict=True)
    ]
    case = _case(
        "leaves in intervals", rng, build.build(), asked, evidence, joint, places[: len(asked)], math.fsum(each)
    )
    # the masses of narrow intervals are known to some digits here
    return (
        replace(case, log_evidence=math.nan) if any(high - low < 0.1 for low, high in evidence.values()) else case
    )


def correlated_in_intervals(rng: np.random.Generator) -> VolumeCase:
    """A mixture of Gaussians over two variables, one of them in an interval, queried or hidden."""
    k, names = int(rng.integers(1, 5)), ["a", "b"]
    weights, means = rng.dirichlet(np.ones(k)), rng.normal(0.0, 1.5, (k, 2))
    sds, slopes = rng.choice([0.05, 0.5, 2.0], (k, 2)), rng.uniform(-0.9, 0.9, k)
    own = [[[s**2, r * s * t], [r * s * t, t**2]] for (s, t), r in zip(sds.tolist(), slopes.tolist(), strict=True)]
    low = float(means[0, 0] + sds[0, 0] * rng.uniform(-3.0, 3.0))
    evidence = {"a": (low, low + float(rng.choice([1e-3, 0.1, 1.0, 10.0])))}
    asked = ["b"] if rng.random() < 0.5 else ["a", "b"]

    def joint(points: Floats) -> Floats:
        total = np.full(len(points), -math.inf)
        for w, m, s, r in zip(weights, means, sds, slopes, strict=True):
            term = math.log(w) + log_densities(("gaussian", (m[1], s[1])), points[:, -1])
            centre, sd = m[0] + r * s[0] / s[1] * (points[:, -1] - m[1]), s[0] * math.sqrt(1.0 - r * r)
            if len(asked) == 2:
                term += log_densities(("gaussian", (0.0, sd)), points[:, 0] - centre)
            else:
                low, high = evidence["a"]
                term += np.array([_log(normal_mass(low, high, c, sd)) for c in centre.tolist()])
            total = np.logaddexp(total, term)
        return total

    each = [
        w * normal_mass(*evidence["a"], m[0], s[0])
        for w, m, s in zip(weights.tolist(), means.tolist(), sds.tolist(), strict=True)
    ]
    places = [means[:, names.index(name)].tolist() for name in asked]
    model = GaussianMixture(weights, means, own, names)
    case = _case("correlated in intervals", rng, model, asked, evidence, joint, places, math.fsum(each))
    return replace(case, log_evidence=math.nan) if math.fsum(each) < 1e-6 else case
