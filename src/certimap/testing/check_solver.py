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

    Checks on every posterior that:

    - the answer has its claimed probability;
    - bounds, certificates and Pareto pairs without risk are true, and those with risk fail no more often than
      they admit;
    - `delta=0` gets no probabilistic certificate;
    - equal seeds give equal answers;
    - limits are kept;
    - a posterior without the solver's required capabilities is rejected in one sentence that names another solver.

    Only `SolverCases` checks pickling of states: classes defined in a notebook or a function need not pickle.

    Parameters
    ----------
    make_solver
        Returns a fresh solver, or its registered name.
    posteriors
        Discrete posteriors, at most 20,000 joint states each; None makes random tables.
    n_posteriors, rng
        Number of tables, and the seed for everything.
    finds_best
        Also require the most probable assignment if the requested certificate is exact.
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
