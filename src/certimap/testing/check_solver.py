"""The conformance suite for solvers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from certimap.errors import SolverError
from certimap.function_posterior import FunctionPosterior
from certimap.result import CertificateKind, MapResult
from certimap.solvers.base import Solver
from certimap.solvers.driver import run
from certimap.solvers.exhaustive import joint_states
from certimap.testing.models import random_table


def check_solver(
    make_solver: Callable[[], Solver] | str,
    *,
    posteriors: Sequence[Any] | None = None,
    n_posteriors: int = 20,
    rng: int = 0,
    finds_best: bool = False,
    max_samples: int = 20_000,
) -> None:
    """Check a solver against enumeration; raise AssertionError with a sentence on a failure.

    Checked on every posterior: that the answer has the probability that it claims; that bounds, certificates and
    Pareto pairs without risk are true, and false ones with risk no more frequent than they admit; that `delta=0`
    gets no probabilistic certificate; that a seed replays; that limits are kept; and that a posterior which lacks
    what the solver needs is refused in one sentence that names another solver.

    Parameters
    ----------
    make_solver
        Returns a fresh solver, or its registered name.
    posteriors
        Discrete, at most 20,000 joint states each; None makes random tables.
    n_posteriors, rng
        How many tables, and the seed of everything.
    finds_best
        Also require the most probable assignment where the certificate asked for is exact.
    max_samples
        Draw limit of each run.
    """
    generator = np.random.default_rng(rng)
    cases = [random_table(generator) for _ in range(n_posteriors)] if posteriors is None else list(posteriors)
    n_false, n_risky = 0, 0.0
    for number, posterior in enumerate(cases):
        log_probs = posterior.log_prob(
            joint_states(posterior.domain, 0, math.prod(posterior.domain.n_states.tolist()))
        )
        log_best = float(np.max(log_probs))
        for epsilon, delta in ((0.0, 0.0), (0.1, 0.0), (0.0, 0.2), (0.1, 0.2)):
            settings: dict[str, Any] = {
                "epsilon": epsilon,
                "delta": delta,
                "max_samples": max_samples,
                "progress": False,
            }
            result = run(posterior, _made(make_solver), rng=rng + number, **settings)
            again = run(posterior, _made(make_solver), rng=rng + number, **settings)
            _require(_timeless(result) == _timeless(again), "a seed does not replay")
            _check_answer(posterior, result, log_best, max_samples)
            is_false = _check_certificate(result, log_best)
            if result.certificate.kind is CertificateKind.PAC and not result.certificate.assumptions:
                n_false += is_false
                n_risky += result.certificate.delta
            if finds_best and epsilon == delta == 0.0:
                _require(
                    result.certificate.kind is CertificateKind.EXACT,
                    "no proof of exactness where one was asked for",
                )
        _check_limits(posterior, make_solver, rng)
    # Each false certificate has at most the probability that it admits; six standard deviations and one to spare.
    _require(
        n_false <= n_risky + 6.0 * math.sqrt(n_risky) + 1.0,
        f"{n_false} certificates are false; {n_risky:.2f} may be",
    )
    _check_refusal(make_solver)


def _check_answer(posterior: Any, result: MapResult, log_best: float, max_samples: int) -> None:
    value = float(posterior.log_prob(posterior.domain.encode(result.assignment)[None, :])[0])
    _require(list(result.assignment) == list(posterior.domain.names), "the assignment is not in the query's order")
    _require(
        result.log_prob is not None and _close(result.log_prob, value), "log_prob is not that of the assignment"
    )
    upper = result.log_upper_bound
    _require(
        upper is not None and upper >= log_best - 1e-9, f"log_upper_bound {upper} is below ln p* = {log_best}"
    )
    _require(result.n_draws <= max_samples, f"{result.n_draws} draws were made; the limit is {max_samples}")
    for epsilon, delta in result.pareto:
        true = value >= log_best + math.log1p(-epsilon) - 1e-8 if epsilon < 1.0 else True
        _require(delta > 0.0 or true, f"the pair ({epsilon}, 0) is false")


def _check_certificate(result: MapResult, log_best: float) -> bool:
    """Require what is claimed for certain; return whether what is claimed with a risk is false."""
    certificate = result.certificate
    if certificate.kind is CertificateKind.NONE:
        return False
    _require(result.log_prob is not None, "a certificate without log_prob")
    assert result.log_prob is not None
    _require(certificate.epsilon <= certificate.requested_epsilon + 1e-12, "epsilon is larger than was asked for")
    _require(certificate.delta <= certificate.requested_delta + 1e-12, "delta is larger than was asked for")
    true = result.log_prob >= log_best + math.log1p(-certificate.epsilon) - 1e-8
    if certificate.kind is CertificateKind.EXACT:
        _require(
            certificate.epsilon == certificate.delta == 0.0, "an exact certificate has epsilon or delta above 0"
        )
    if certificate.delta == 0.0 and not certificate.assumptions:
        _require(true, f"a certificate with delta = 0 is false at epsilon = {certificate.epsilon}")
    return not true


def _check_limits(posterior: Any, make_solver: Callable[[], Solver] | str, rng: int) -> None:
    few = run(posterior, _made(make_solver), rng=rng, max_samples=7, epsilon=0.0, delta=0.0, progress=False)
    _require(few.n_draws <= 7, f"{few.n_draws} draws were made; the limit is 7")
    quick = run(posterior, _made(make_solver), rng=rng, time_limit=0.0, progress=False)
    _require(quick.log_prob is not None, "a run that time cuts short has no answer")


def _check_refusal(make_solver: Callable[[], Solver] | str) -> None:
    """Offer a posterior that only draws and scores to a solver that needs more."""
    bare = FunctionPosterior(
        [2, 2], lambda n, rng: rng.integers(0, 2, (n, 2)), lambda points: np.full(len(points), -math.log(4.0))
    )
    solver = _made(make_solver)
    if isinstance(solver, str) or all(isinstance(bare, capability) for capability in solver.needs):
        return
    try:
        run(bare, solver, progress=False)
    except SolverError as error:
        _require("solver=" in str(error), f"the refusal names no other solver: {error}")
        return
    raise AssertionError("a posterior that lacks what the solver needs is not refused")


def _made(make_solver: Callable[[], Solver] | str) -> Solver | str:
    return make_solver if isinstance(make_solver, str) else make_solver()


def _timeless(result: MapResult) -> dict[str, Any]:
    data = result.to_dict()
    del data["seconds"]
    return data


def _close(a: float, b: float) -> bool:
    return a == b or abs(a - b) <= 1e-9


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise AssertionError(sentence)
