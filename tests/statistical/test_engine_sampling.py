"""Draws from a circuit have the distribution that they should: chi-square and Kolmogorov-Smirnov, fixed seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from certimap.circuits.circuit import CircuitBuilder
from certimap.circuits.posterior import CircuitPosterior
from certimap.core.box import Boxes
from certimap.core.domain import Categorical, Domain, Real
from certimap.core.query import make_query

N = 60_000


def mixture(scale: float = 1.0) -> CircuitPosterior:
    """Three components over 2 x 3 x 4 states with zeros; `scale` < 1 adds a rare fourth variable's state."""
    rng = np.random.default_rng(8)
    domain = Domain.of_sizes([2, 3, 4, 2])
    b = CircuitBuilder(domain)
    parts = []
    for k in range(3):
        leaves = []
        for i, size in enumerate((2, 3, 4)):
            p = rng.dirichlet(np.ones(size))
            if k == 1 and i == 2:
                p[0] = 0.0
            with np.errstate(divide="ignore"):
                leaves.append(b.categorical(i, np.log(p / p.sum())))
        leaves.append(b.categorical(3, [math.log(scale), math.log1p(-scale) if scale < 1 else -math.inf]))
        parts.append(b.product(leaves))
    b.sum(parts, np.log([0.5, 0.3, 0.2]).tolist())
    return CircuitPosterior.from_circuit(b.build(), make_query(domain))


def cells(posterior: CircuitPosterior) -> np.ndarray:
    sizes = posterior.domain.n_states
    return np.array(list(np.ndindex(*(int(k) for k in sizes))), np.int16)


def chi_square(draws: np.ndarray, points: np.ndarray, probabilities: np.ndarray) -> float:
    keys = {tuple(p): k for k, p in enumerate(points.tolist())}
    counts = np.bincount([keys[tuple(d)] for d in draws.tolist()], minlength=len(points))
    assert not counts[probabilities == 0].any()
    kept = probabilities > 0
    expected = probabilities[kept] / probabilities.sum() * len(draws)
    return float(stats.chisquare(counts[kept], expected).pvalue)


@pytest.mark.parametrize("seed", range(3))
def test_frequencies(seed: int) -> None:
    posterior = mixture()
    points = cells(posterior)
    draws = posterior.sample(N, np.random.default_rng(seed))
    assert chi_square(draws, points, np.exp(posterior.log_prob(points))) > 1e-3


@pytest.mark.parametrize("rare", [False, True])
def test_frequencies_inside_boxes(rare: bool) -> None:
    """Inside a union of disjoint boxes by mass; also where masses are so small that they are taken in logs."""
    posterior = mixture(1e-300) if rare else mixture()
    points = cells(posterior)
    mask = np.ones((3, posterior.domain.total_states), np.bool_)
    mask[0, [1, 4]] = False  # first variable 0, second 0 or 1
    mask[1, [0, 2, 3]] = False  # first 1, second 2
    mask[2, [0, 3, 4, 6]] = False  # first 1, second 0, third not 1
    mask[:, 10] = False  # the fourth variable's likely state under `rare` is left out
    boxes = Boxes(posterior.domain, mask)
    columns = posterior.domain.offsets[:-1] + points
    inside = mask[:, columns].all(axis=2)
    assert inside.sum(axis=0).max() == 1
    logs = posterior.log_prob(points)
    with np.errstate(under="ignore"):
        table = np.where(inside.any(axis=0), np.exp(logs - logs[inside.any(axis=0)].max()), 0.0)
    draws = posterior.sample(N, np.random.default_rng(3), boxes)
    assert chi_square(draws, points, table) > 1e-3
    half = len(draws) // 2
    assert (
        abs((draws[:half, 0] == 0).mean() - (draws[half:, 0] == 0).mean()) < 0.02
    )  # the order of draws says nothing


@pytest.mark.parametrize(
    ("low", "high"), [(-math.inf, math.inf), (-0.5, 1.0), (2.5, 2.6), (6.0, math.inf), (-9.0, -4.0)]
)
def test_gaussian_draws(low: float, high: float) -> None:
    domain = Domain([Real("x"), Categorical("c", ("a", "b"))])
    b = CircuitBuilder(domain)
    b.product([b.gaussian(0, 0.0, 1.0), b.categorical(1, [math.log(0.5)] * 2)])
    posterior = CircuitPosterior.from_circuit(b.build(), make_query(domain))
    boxes = Boxes(posterior.domain, np.array([[True, False]]), np.array([[low, 0.0]]), np.array([[high, 0.0]]))
    draws = posterior.sample(20_000, np.random.default_rng(5), boxes)
    assert (draws[:, 1] == 0).all()
    assert draws[:, 0].min() >= low
    assert draws[:, 0].max() <= high
    truncated = stats.truncnorm(low, high)
    assert stats.kstest(draws[:, 0], truncated.cdf).pvalue > 1e-3
