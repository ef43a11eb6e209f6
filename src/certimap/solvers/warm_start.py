"""Warm starts: given assignments, or the name of a heuristic."""

from __future__ import annotations

from typing import Any

import numpy as np

from certimap.certify.ledger import Ledger
from certimap.core.arguments import is_mapping, is_sequence
from certimap.core.box import Points
from certimap.core.domain import Categorical, Domain
from certimap.core.posterior import Draws, Posterior
from certimap.errors import SolverError
from certimap.solvers.base import Solver


def apply_warm_start(warm_start: Any, posterior: Posterior, ledger: Ledger, rng: np.random.Generator) -> None:
    """Give a warm start to the ledger; probabilities are recomputed, and nothing counts as a draw.

    `warm_start`: None; the name of a solver that finishes by itself (such as "argmax_product"), or a solver
    object; an assignment of labels by name; a data frame of labels, one assignment per row; an array of state
    positions, shape (batch, n) or (n,); or a list of any of these. Raises QueryError for an assignment with
    unknown, missing or misspelt names or labels. Raises SolverError for anything else.
    """
    if warm_start is None:
        return
    if isinstance(warm_start, str | Solver):
        _run_heuristic(warm_start, posterior, ledger, rng)
        return
    numbers = int | float | np.integer | np.floating
    if is_sequence(warm_start) and not (len(warm_start) > 0 and all(isinstance(x, numbers) for x in warm_start)):
        for item in warm_start:
            apply_warm_start(item, posterior, ledger, rng)
        return
    ledger.candidates(as_points(warm_start, posterior.domain))


def as_points(given: Any, domain: Domain) -> Points:
    """Convert an assignment, a frame of assignments or an array of positions to points, shape (batch, n)."""
    if is_mapping(given):
        return domain.encode(dict(given))[None, :]
    if hasattr(given, "to_dict") and hasattr(given, "columns"):
        rows: list[dict[str, Any]] = given.to_dict("records")
        return (
            np.stack([domain.encode(row) for row in rows])
            if rows
            else np.empty((0, len(domain)), domain.point_dtype)
        )
    if hasattr(given, "to_dict"):
        return domain.encode(given.to_dict())[None, :]
    try:
        raw = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        raise SolverError(
            f"a warm start is a {type(given).__name__}; expected an assignment of labels by name, a data frame of "
            "them, an "
            "array of state positions, a list of these, or the name of a heuristic"
        ) from None
    points = np.atleast_2d(raw)
    _check_positions(points, domain)
    return points.astype(domain.point_dtype)


def _check_positions(points: Points, domain: Domain) -> None:
    if points.ndim != 2 or points.shape[1] != len(domain):
        raise SolverError(f"a warm start has shape {points.shape}; expected (batch, {len(domain)})")
    for i, variable in enumerate(domain):
        column = points[:, i]
        if isinstance(variable, Categorical):
            bad = (column != np.floor(column)) | (column < 0) | (column >= variable.n_states)
            accepted = f"a position from 0 to {variable.n_states - 1}"
        else:
            bad = ~((column >= variable.low) & (column <= variable.high))
            accepted = f"a number in [{variable.low}, {variable.high}]"
        if np.any(bad):
            raise SolverError(
                f"a warm start gives {column[bad][0]:g} to variable {variable.name!r}; expected {accepted}"
            )


def _run_heuristic(chosen: Any, posterior: Posterior, ledger: Ledger, rng: np.random.Generator) -> None:
    from certimap.solvers.registry import heuristics, resolve

    solver = resolve(chosen, posterior)
    if Draws in solver.needs and not solver.heuristic:
        raise SolverError(f"solver {solver.name!r} draws, and a warm start may not; {', '.join(heuristics())} may")
    state = solver.init(posterior, ledger.control, rng)
    while not (state.done or ledger.control.should_stop):
        state = solver.step(state, ledger)
