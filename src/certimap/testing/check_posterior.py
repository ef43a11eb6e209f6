"""The conformance suite for posteriors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.box import Boxes, Points
from certimap.domain import Domain
from certimap.posterior import Draws, Masses

MAX_STATES = 20_000


def check_posterior(
    posterior: Any, *, rng: int = 0, n_boxes: int = 8, n_samples: int = 4000, atol: float = 1e-9
) -> None:
    """Check a discrete posterior against enumeration; raise AssertionError with a sentence on a failure.

    Checked: shapes and types; that probabilities add to 1; that draws follow them and replay by seed; and, where
    the posterior has them, masses, bounds and the same for every (variable, state), and draws inside boxes.

    Parameters
    ----------
    posterior
        Over categorical variables, with at most 20,000 joint states.
    rng
        Seed of the boxes and of the draws.
    n_boxes, n_samples
        Random boxes to ask about, and draws to compare with the probabilities.
    atol
        Allowed difference of logs, in nats.
    """
    domain: Domain = posterior.domain
    _require(domain.is_discrete, "the conformance suite enumerates, so every variable must be categorical")
    _require(domain.log_size <= math.log(MAX_STATES), f"the domain has more than {MAX_STATES} joint states")
    generator = np.random.default_rng(rng)
    points = _all_points(domain)
    log_probs = np.asarray(posterior.log_prob(points), np.float64)
    _require(log_probs.shape == (len(points),), f"log_prob returns shape {log_probs.shape}")
    _require(not np.any(np.isnan(log_probs)), "log_prob returns NaN")
    if posterior.facts.is_normalised:
        total = float(np.sum(np.exp(log_probs)))
        _require(abs(total - 1.0) < 1e-6, f"the probabilities add to {total}")
    one_by_one = np.concatenate([posterior.log_prob(points[i : i + 1]) for i in range(min(len(points), 50))])
    _require(_same(one_by_one, log_probs[:50], atol), "log_prob of a point depends on the batch that it is in")
    probs = np.exp(log_probs - np.logaddexp.reduce(log_probs))
    if isinstance(posterior, Draws):
        _check_draws(posterior, points, probs, None, n_samples, rng)
    if isinstance(posterior, Masses):
        boxes = random_boxes(domain, generator, n_boxes)
        _check_boxes(posterior, boxes, points, log_probs, atol)
        _check_box_draws(posterior, boxes, points, probs, n_samples, rng)


def random_boxes(domain: Domain, rng: np.random.Generator, n: int) -> Boxes:
    """Return n random boxes of categorical states, none empty; the first is the whole space."""
    mask = rng.random((n, domain.total_states)) < rng.choice([0.3, 0.6, 0.9], (n, 1))
    for row in mask:
        for i in range(len(domain)):
            row[int(domain.offsets[i]) + int(rng.integers(int(domain.n_states[i])))] = True
    mask[0] = True
    return Boxes(domain, mask)


def _check_boxes(
    posterior: Any, boxes: Boxes, points: Points, log_probs: NDArray[np.float64], atol: float
) -> None:
    inside = _inside(boxes, points)
    masses = _log_sums(inside, log_probs)
    _require(_same(posterior.log_mass(boxes), masses, atol), "log_mass differs from the sum over a box")
    if callable(getattr(posterior, "log_bound", None)):
        maxima = np.where(inside, log_probs, -np.inf).max(axis=1)
        _require(
            bool(np.all(posterior.log_bound(boxes) >= maxima - atol)), "log_bound is below a point of its box"
        )
    for name, is_mass in (("log_mass_each", True), ("log_bound_each", False)):
        if not callable(getattr(posterior, name, None)):
            continue
        answer = np.asarray(getattr(posterior, name)(boxes))
        _require(answer.shape == boxes.mask.shape, f"{name} returns shape {answer.shape}")
        for i in range(len(boxes.domain)):
            for column in range(int(boxes.domain.offsets[i]), int(boxes.domain.offsets[i + 1])):
                mask = boxes.mask.copy()
                mask[:, boxes.domain.offsets[i] : boxes.domain.offsets[i + 1]] = False
                mask[:, column] = True
                held = _inside(Boxes(boxes.domain, mask), points)
                if is_mass:
                    _require(
                        _same(answer[:, column], _log_sums(held, log_probs), atol), f"{name} differs from log_mass"
                    )
                else:
                    maxima = np.where(held, log_probs, -np.inf).max(axis=1)
                    _require(
                        bool(np.all(answer[:, column] >= maxima - atol)), f"{name} is below a point of its box"
                    )


def _check_box_draws(
    posterior: Any, boxes: Boxes, points: Points, probs: NDArray[np.float64], n: int, rng: int
) -> None:
    """Compare draws from the union of two disjoint boxes with the probabilities there."""
    domain = boxes.domain
    widest = int(np.argmax(domain.n_states))
    if domain.n_states[widest] < 2:
        return
    mask = np.ones((2, domain.total_states), np.bool_)
    start, end = int(domain.offsets[widest]), int(domain.offsets[widest + 1])
    mask[:, start:end] = False
    mask[0, start] = mask[1, end - 1] = True
    union = Boxes(domain, mask)
    held = np.any(_inside(union, points), axis=0)
    if float(np.sum(probs[held])) > 1e-12:
        _check_draws(posterior, points, np.where(held, probs, 0.0), union, n, rng)


def _check_draws(
    posterior: Any, points: Points, weights: NDArray[np.float64], boxes: Boxes | None, n: int, rng: int
) -> None:
    extra = {} if boxes is None else {"boxes": boxes}
    drawn = posterior.sample(n, np.random.default_rng(rng), **extra)
    again = posterior.sample(n, np.random.default_rng(rng), **extra)
    place = "the whole space" if boxes is None else "a union of boxes"
    _require(drawn.shape == (n, points.shape[1]), f"sample returns shape {drawn.shape}")
    _require(bool(np.array_equal(drawn, again)), f"draws from {place} do not replay by seed")
    sizes = tuple(int(k) for k in posterior.domain.n_states)
    counts = np.bincount(np.ravel_multi_index(tuple(drawn.astype(np.int64).T), sizes), minlength=len(points))
    expected = n * weights / weights.sum()
    _require(not np.any(counts[expected == 0.0]), f"a draw from {place} has probability 0 there")
    # Freeman-Tukey: squares of nearly standard normals, whatever the expected counts, halved.
    distance = float(np.sum((np.sqrt(counts) + np.sqrt(counts + 1.0) - np.sqrt(4.0 * expected + 1.0)) ** 2))
    df = max(1, int(np.sum(expected > 0.0)) - 1)
    _require(
        distance < df + 6.0 * math.sqrt(2.0 * df) + 20.0, f"draws from {place} do not follow the probabilities"
    )


def _all_points(domain: Domain) -> Points:
    sizes = tuple(int(k) for k in domain.n_states)
    return np.stack(np.unravel_index(np.arange(math.prod(sizes)), sizes), axis=1).astype(domain.point_dtype)


def _inside(boxes: Boxes, points: Points) -> NDArray[np.bool_]:
    held = np.ones((len(boxes), len(points)), np.bool_)
    for i in range(len(boxes.domain)):
        held &= boxes.mask[:, boxes.domain.offsets[i] + points[:, i].astype(np.int64)]
    return held


def _log_sums(inside: NDArray[np.bool_], log_probs: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.logaddexp.reduce(np.where(inside, log_probs, -np.inf), axis=1)


def _same(a: NDArray[np.float64], b: NDArray[np.float64], atol: float) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    finite = np.isfinite(b)
    return a.shape == b.shape and bool(
        np.array_equal(a[~finite], b[~finite]) and np.all(np.abs(a[finite] - b[finite]) <= atol)
    )


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise AssertionError(sentence)
