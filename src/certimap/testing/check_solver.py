"""All cases of the conformance suite for solvers, in one call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from certimap.solvers.base import Solver
from certimap.testing.solver_cases import SolverCases


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
    gets no probabilistic certificate; that a seed replays; that limits are kept; and that a posterior which
    lacks what the solver needs is refused in one sentence that names another solver. That states pickle is left to
    `SolverCases`, for a class that was defined in a notebook or in a function need not.

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
    suite = SolverCases()
    suite.make_solver = (lambda: make_solver) if isinstance(make_solver, str) else make_solver
    if posteriors is not None:
        suite.make_posteriors = lambda: posteriors
    suite.seed, suite.n_posteriors, suite.finds_best, suite.max_samples = (
        rng,
        n_posteriors,
        finds_best,
        max_samples,
    )
    for name, case in inspect.getmembers(suite, inspect.ismethod):
        if name.startswith("test_") and name != "test_states_pickle_between_steps":
            case()
