"""All applicable cases of the conformance suite for a posterior, in one call."""

from __future__ import annotations

import inspect
from typing import Any

from certimap.core.posterior import Bounds, Capability, Decodes, Draws, Masses, Probes, TwoSided
from certimap.testing.posterior_cases import (
    BoundCases,
    Cases,
    DecodeCases,
    DrawCases,
    MassCases,
    PosteriorCases,
    ProbeCases,
    TwoSidedCases,
)

CASES: tuple[tuple[Capability, type[Cases]], ...] = (
    (Draws, DrawCases),
    (Masses, MassCases),
    (Bounds, BoundCases),
    (Probes, ProbeCases),
    (Decodes, DecodeCases),
)


def check_posterior(
    posterior: Any, *, rng: int = 0, n_boxes: int = 8, n_samples: int = 4000, atol: float = 1e-9
) -> None:
    """Check a discrete posterior against enumeration; raise AssertionError with a sentence on a failure.

    Runs the cases of `certimap.testing.posterior_cases` for every capability of the posterior. If its values are
    two-sided, the true values are unknown, and only the cases without capabilities run: subclass the others and
    override `log_truth`.

    Parameters
    ----------
    posterior
        A posterior over categorical variables, with at most 20,000 joint states.
    rng
        Seed of the boxes and of the draws.
    n_boxes, n_samples
        Numbers of random boxes to check, and of draws to compare with the probabilities.
    atol
        Allowed difference of logs, in nats.
    """
    offered = [cases for capability, cases in CASES if isinstance(posterior, capability)]
    if isinstance(posterior, TwoSided):
        offered = [TwoSidedCases]
    for cases in (PosteriorCases, *offered):
        suite = cases()
        suite.make_posterior = lambda: posterior
        suite.seed, suite.n_boxes, suite.n_samples, suite.atol = rng, n_boxes, n_samples, atol
        for name, case in inspect.getmembers(suite, inspect.ismethod):
            if name.startswith("test_"):
                case()
