"""Parameters that break arithmetic which loses what is small, near one, equal, or out of range."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LOWEST = math.log(1e-320)  # a denormal with three digits
_NEAR = (0.0, 1e-16, 1e-14, 1e-12, 1e-10, 5e-10, 2e-9, 1e-6)  # relative distances of near ties
STYLES = ("wide", "edge", "near_one", "zeros", "ties", "equal", "mild", "steps")
LOG_STYLES = (*STYLES, "deep", "huge")


def log_vector(rng: np.random.Generator, size: int, style: str) -> Floats:
    """Return natural logs of weights, at least one of them finite.

    Parameters
    ----------
    style
        "wide": log-uniform from 1e-320 to 1; "edge": about the smallest normal and denormal numbers;
        "near_one": one entry 1 and the others from 1e-20 to 1e-10; "zeros": wide, and some impossible; "ties" and
        "equal": equal up to nothing or to the last digits; "mild": ordinary; "steps": e^-700 apart, more than one
        double holds; "deep": down to e^-5000; "huge": from e^-300 to e^700.
    """
    if style == "edge":
        return rng.uniform(-745.0, -700.0, size)
    if style == "near_one":
        logs = rng.uniform(-46.0, -23.0, size)
        logs[rng.integers(size)] = 0.0
        return logs
    if style == "zeros":
        logs = rng.uniform(LOWEST, 0.0, size)
        impossible = rng.random(size) < 0.4
        impossible[rng.integers(size)] = False
        logs[impossible] = -math.inf
        return logs
    if style == "ties":
        return rng.uniform(LOWEST, 0.0) + rng.choice(_NEAR, size)
    if style == "equal":
        return np.full(size, rng.uniform(-700.0, 0.0))
    if style == "mild":
        return np.log(rng.dirichlet(np.ones(size)) + 1e-12)
    if style == "steps":
        return -700.0 * rng.permutation(size).astype(np.float64) + rng.uniform(-1.0, 1.0, size)
    if style == "deep":
        return rng.uniform(-5000.0, 0.0, size)
    if style == "huge":
        return rng.uniform(-300.0, 700.0, size)
    return rng.uniform(LOWEST, 0.0, size)


def shuffled(rng: np.random.Generator, n: int) -> list[int]:
    """Return the numbers 0 to n - 1 in random order."""
    return [int(i) for i in rng.permutation(n)]


def pick_style(rng: np.random.Generator, *, logs: bool = True) -> str:
    """Draw a style; `logs` also allows those that no float holds outside of logs."""
    return str(rng.choice(LOG_STYLES if logs else STYLES))


def rows(rng: np.random.Generator, shape: tuple[int, ...], style: str) -> Floats:
    """Return probabilities whose last axis adds to 1 up to rounding; each row is drawn anew in the same style."""
    flat = np.empty((math.prod(shape[:-1]), shape[-1]))
    for row in flat:
        logs = log_vector(rng, shape[-1], style)
        probs = np.exp(logs - logs.max())
        row[:] = probs / probs.sum()
    return flat.reshape(shape)


def likelihood(rng: np.random.Generator, size: int) -> list[float]:
    """Return weights of soft evidence, from 1e-300 to 1e300, some of them 0."""
    weights = 10.0 ** rng.choice([-300.0, -200.0, -3.0, 0.0, 2.0, 200.0, 300.0], size)
    weights = weights * rng.uniform(1.0, 9.0, size)
    dropped = rng.random(size) < 0.15
    dropped[rng.integers(size)] = False
    weights[dropped] = 0.0
    return [float(w) for w in weights]
