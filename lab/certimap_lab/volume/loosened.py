"""Formulas made looser on purpose: what the judgement of many answers must find out."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.certify import bounds
from certimap.solvers.elimination import geometry

LOOSER = 1.05
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def _scaled_draws(factor: float, *, partial: bool) -> dict[str, Callable[..., Any]]:
    """Count `factor` times the evidence of draws made at R = 1, or of those made at less."""
    one, many = bounds.evidence_per_draw, bounds.martingale_evidence

    def each(log_t: float, log_r: float = 0.0) -> float:
        return one(log_t, log_r) * (factor if (log_r < 0.0) == partial else 1.0)

    def groups(
        log_t: float,
        log_t_within: float,
        log_r: NDArray[np.float64],
        log_closed: NDArray[np.float64],
        counts: NDArray[np.int64],
    ) -> float:
        chosen = (log_r < 0.0) == partial
        parts = (many(log_t, log_t_within, log_r[m], log_closed[m], counts[m]) for m in (chosen, ~chosen))
        return factor * next(parts) + next(parts)

    return {"evidence_per_draw": each, "martingale_evidence": groups}


def _published(factor: float) -> dict[str, Callable[..., Any]]:
    true = bounds.published_evidence_per_draw

    def each(log_t: float) -> float:
        return factor * true(log_t)

    return {"published_evidence_per_draw": each}


def _shifted(name: str, nats: float) -> dict[str, Callable[..., Any]]:
    """Add some nats to a formula."""
    true = getattr(bounds, name)
    return {name: lambda *given, **named: true(*given, **named) + nats}


def _less_epsilon(factor: float) -> dict[str, Callable[..., Any]]:
    true = bounds.achieved_epsilon
    return {"achieved_epsilon": lambda *given: true(*given) / factor}


def _dominance(factor: float) -> dict[str, Callable[..., Any]]:
    """Let vectors go that others, larger by a factor, would be above: entries are rounded up to its powers."""
    true, step = geometry.skyband, math.log(factor)

    def skyband(values: Floats, ptr: Ints, k: int, by: Ints) -> None:
        with np.errstate(divide="ignore"):
            powers = np.ceil(np.log(values) / step) if step else np.log(values)
        true(np.exp(powers * step) if step else values, ptr, k, by)

    return {"skyband": skyband}


LOOSENED: dict[str, tuple[tuple[str, ...], Callable[[float], dict[str, Callable[..., Any]]]]] = {
    "residual": (("all but the best",), lambda f: _shifted("log_p_check", -math.log(f))),
    "epsilon": (("all but the best",), _less_epsilon),
    "bounds": (("stopped searches",), lambda f: _shifted("round_up", -math.log(f))),
    "dominance": (("rivals",), _dominance),
    "draws": (("one above many",), lambda f: _scaled_draws(f, partial=False)),
    "published": (("one above many, published",), _published),
    "tau": (("one above many",), lambda f: _shifted("log_tau", math.log(f))),
    "frontier": (("draws from the rest",), lambda f: _scaled_draws(f, partial=True)),
    "hamming": (("smooth around the mode",), lambda f: _shifted("log_ball_weight", math.log(f))),
    "real": (("smooth density",), lambda f: _shifted("log_real_ball_weight", math.log(f))),
}
"""By name: the families that lean on a formula, and what takes its place when it is a factor too loose; formulas
of `certify.bounds` but for dominance, which is the set elimination's.
"""


@contextmanager
def loosened(name: str, factor: float = LOOSER) -> Generator[None]:
    """Let a formula be too loose by a factor while inside; for tests of the tests alone, in one thread."""
    _, make = LOOSENED[name]
    changed = make(factor)
    place: Any = geometry if name == "dominance" else bounds
    saved = {key: getattr(place, key) for key in changed}
    try:
        for key, function in changed.items():
            setattr(place, key, function)
        yield
    finally:
        for key, function in saved.items():
            setattr(place, key, function)
