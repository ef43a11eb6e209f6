"""Enumeration and comparison, for the cases of the conformance suite."""

from __future__ import annotations

import math

import numpy as np

from certimap.core.arrays import Flags, Floats
from certimap.core.box import Boxes, Points
from certimap.core.domain import Domain
from certimap.core.posterior import Draws


def random_boxes(domain: Domain, rng: np.random.Generator, n: int) -> Boxes:
    """Return `n` random boxes of categorical states of a `domain`, drawn by `rng`.

    None is empty, and the first is the whole space.
    """
    mask = rng.random((n, domain.total_states)) < rng.choice([0.3, 0.6, 0.9], (n, 1))
    for row in mask:
        for i in range(len(domain)):
            row[int(domain.offsets[i]) + int(rng.integers(int(domain.n_states[i])))] = True
    mask[0] = True
    return Boxes(domain, mask)


def check_draws(posterior: Draws, points: Points, weights: Floats, boxes: Boxes | None, n: int, rng: int) -> None:
    """Require that equal seeds give equal draws, distributed as `weights`, shape (n_points,), not all zero."""
    drawn = posterior.sample(n, np.random.default_rng(rng), boxes)
    again = posterior.sample(n, np.random.default_rng(rng), boxes)
    place = "the whole space" if boxes is None else "a union of boxes"
    require(drawn.shape == (n, points.shape[1]), f"sample returns shape {drawn.shape}")
    require(bool(np.array_equal(drawn, again)), f"draws from {place} do not replay by seed")
    sizes = tuple(int(k) for k in posterior.domain.n_states)
    counts = np.bincount(np.ravel_multi_index(tuple(drawn.astype(np.int64).T), sizes), minlength=len(points))
    expected = n * weights / weights.sum()
    require(not np.any(counts[expected == 0.0]), f"a draw from {place} has probability 0 there")
    # Freeman-Tukey: squares of nearly standard normals, whatever the expected counts, halved.
    distance = float(np.sum((np.sqrt(counts) + np.sqrt(counts + 1.0) - np.sqrt(4.0 * expected + 1.0)) ** 2))
    df = max(1, int(np.sum(expected > 0.0)) - 1)
    require(
        distance < df + 6.0 * math.sqrt(2.0 * df) + 20.0, f"draws from {place} do not follow the probabilities"
    )


def all_points(domain: Domain) -> Points:
    """Return every joint state, shape (n_points, n_variables), the last variable varying fastest."""
    sizes = tuple(int(k) for k in domain.n_states)
    return np.stack(np.unravel_index(np.arange(math.prod(sizes)), sizes), axis=1).astype(domain.point_dtype)


def with_column(boxes: Boxes, column: int) -> Boxes:
    """Return the boxes with the column's variable set to its state."""
    offsets = boxes.domain.offsets
    i = int(np.searchsorted(offsets, column, side="right")) - 1
    mask = boxes.mask.copy()
    mask[:, offsets[i] : offsets[i + 1]] = False
    mask[:, column] = True
    return Boxes(boxes.domain, mask)


def inside(boxes: Boxes, points: Points) -> Flags:
    """Return which points are in each box, shape (batch, n_points)."""
    found = np.ones((len(boxes), len(points)), np.bool_)
    for i in range(len(boxes.domain)):
        found &= boxes.mask[:, boxes.domain.offsets[i] + points[:, i].astype(np.int64)]
    return found


def log_sums(held: Flags, log_probs: Floats) -> Floats:
    """Return ln of the total probability of the points in each box, shape (batch,)."""
    return np.logaddexp.reduce(np.where(held, log_probs, -np.inf), axis=1)


def same(a: Floats, b: Floats, atol: float) -> bool:
    """Whether logs agree within `atol` nats, infinite ones exactly."""
    a, b = np.asarray(a), np.asarray(b)
    finite = np.isfinite(b)
    return a.shape == b.shape and bool(
        np.array_equal(a[~finite], b[~finite]) and np.all(np.abs(a[finite] - b[finite]) <= atol)
    )


def require(condition: bool, sentence: str) -> None:
    """Raise AssertionError with a sentence unless the condition holds."""
    if not condition:
        raise AssertionError(sentence)
