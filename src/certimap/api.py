"""The public entry point: one query, or a frame of evidence rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast, overload

import numpy as np

from certimap.errors import ImpossibleEvidence, QueryError, SolverError
from certimap.limits import DEFAULT_MAX_EDGES, Limits
from certimap.model import Model
from certimap.posterior import Posterior
from certimap.query import make_query
from certimap.result import MapResult, ResultList
from certimap.solvers.base import Solver
from certimap.solvers.driver import Progress, run, seed_of
from certimap.solvers.registry import wants_of


def read(path: Any, **options: Any) -> Any:
    """Read a model: .bif, .uai, .spn or .npz, plain or with .gz; see `certimap.io.read`."""
    from certimap.io import read as read_model

    return read_model(path, **options)


class Frame(Protocol):
    """What tells a data frame of evidence rows apart."""

    @property
    def index(self) -> Any: ...
    @property
    def columns(self) -> Any: ...
    def iterrows(self) -> Any: ...


@overload
def map_query(
    model: Any,
    variables: Sequence[str] | str | None = None,
    evidence: Mapping[str, Any] | None = None,
    **settings: Any,
) -> MapResult: ...
@overload
def map_query(
    model: Any, variables: Sequence[str] | str | None, evidence: Frame, **settings: Any
) -> ResultList: ...
@overload
def map_query(
    model: Any, variables: Sequence[str] | str | None = None, evidence: Any = None, **settings: Any
) -> Any: ...
def map_query(
    model: Any,
    variables: Sequence[str] | str | None = None,
    evidence: Any = None,
    *,
    epsilon: float = 0.01,
    delta: float = 0.01,
    solver: str | Solver = "auto",
    rng: int | np.random.Generator | None = None,
    time_limit: float | None = None,
    max_samples: int | None = None,
    max_nodes: int | None = None,
    max_memory: int | None = None,
    warm_start: Any = None,
    top_k: int | None = None,
    tolerance: float = 1e-9,
    max_edges: int = DEFAULT_MAX_EDGES,
    workers: int | None = None,
    progress: Progress = None,
    **solver_options: Any,
) -> Any:
    """Return the most probable assignment of some variables given others, everything else summed out.

    Parameters
    ----------
    model
        A circuit, a network, a fitted model, or a posterior (then `variables` and `evidence` stay None).
    variables
        Names of the query variables; None means every variable that has no hard evidence (MPE).
    evidence
        A mapping or pandas Series from names to labels; None and NaN mean unobserved, a set of labels restricts,
        one likelihood a state weighs, a number observes a real variable and a (low, high) tuple bounds it. A data
        frame with a column a variable asks one query a row.
    epsilon, delta
        The certificate asked for: p(answer | e) >= (1 - epsilon) p* with probability at least 1 - delta.
        `epsilon=0` asks for exactness within `tolerance`; `delta=0` accepts no probabilistic stop.
    solver
        A name (`certimap.solvers.registry.names`), a solver object, or "auto", which picks by what the
        posterior offers (`certimap.solvers.registry.choose`); further keywords are settings of a named solver.
    rng
        A seed, a numpy Generator, or None; the seed used is recorded, and replays the answer.
    time_limit, max_samples, max_nodes, max_memory
        Limits in seconds (counted once the model is conditioned), draws, search nodes and bytes. A run that one
        ends returns what it has earned.
    warm_start
        Assignments (labels by name, frames, or arrays of state positions) or the name of a heuristic.
    top_k
        Ask for the k most probable assignments, in `result.top`.
    tolerance
        Relative slack that counts as exact.
    max_edges
        Refuse to compile a network into a circuit larger than this.
    workers
        Threads; None uses every core. The answer does not depend on it.
    progress
        None shows a line on a terminal, True always, False never; a function receives history entries.

    Returns
    -------
    MapResult or ResultList
        One result, or one a row of a data frame. Logs are natural.

    Raises
    ------
    QueryError, ImpossibleEvidence
        For a query that names something unknown, contradicts itself, or has evidence of probability 0.
    ModelError
        When the model is too large for `max_edges`.
    SolverError
        When the solver does not suit the posterior, or a setting is out of range.
    """
    settings: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": delta,
        "time_limit": time_limit,
        "max_samples": max_samples,
        "max_nodes": max_nodes,
        "max_memory": max_memory,
        "warm_start": warm_start,
        "top_k": top_k,
        "tolerance": tolerance,
        "progress": progress,
        "options": solver_options,
    }
    if workers is not None and workers < 1:
        raise SolverError(
            f"workers is {workers}; a positive number of threads, or None for every core, is accepted"
        )
    limits, wants = Limits(max_edges, workers), wants_of(solver)
    if _is_frame(evidence):
        return _map_rows(model, variables, evidence, solver, rng, settings, limits)
    return run(_posterior(model, variables, evidence, limits, wants), solver, rng=rng, **settings)


def condition(
    model: Any,
    variables: Sequence[str] | str | None = None,
    evidence: Any = None,
    *,
    max_edges: int = DEFAULT_MAX_EDGES,
    workers: int | None = None,
) -> Posterior:
    """Return p(variables | evidence) as a posterior, to sample, to score, or to query several times.

    It is in the representation that `map_query(model, ..., solver="auto")` works on.
    """
    return _posterior(model, variables, evidence, Limits(max_edges, workers), None)


def _posterior(
    model: Any, variables: Any, evidence: Any, limits: Limits, wants: Sequence[type] | None
) -> Posterior:
    if is_posterior(model):
        if variables is not None or evidence is not None:
            raise QueryError(
                f"a {type(model).__name__} is a posterior already; its query and evidence are fixed, so leave "
                "variables and evidence out"
            )
        return cast("Posterior", model)
    if not isinstance(model, Model):
        raise QueryError(
            f"{type(model).__name__} is no model; a circuit, a network, a fitted model or a posterior is accepted"
        )
    from certimap.conversions import condition

    return condition(model, make_query(model.domain, variables, evidence), wants=wants, limits=limits)


def is_posterior(model: Any) -> bool:
    """Whether an object is a posterior rather than a model to condition."""
    return (
        hasattr(model, "domain") and callable(getattr(model, "log_prob", None)) and hasattr(model, "log_evidence")
    )


def _is_frame(evidence: Any) -> bool:
    return hasattr(evidence, "iterrows") and hasattr(evidence, "columns")


def _map_rows(
    model: Any,
    variables: Any,
    frame: Any,
    solver: str | Solver,
    rng: int | np.random.Generator | None,
    settings: dict[str, Any],
    limits: Limits,
) -> ResultList:
    """Answer one query a row; each result records a seed of its own."""
    generator = np.random.default_rng(seed_of(rng))
    results: list[MapResult] = []
    labels: list[Any] = list(frame.index)
    columns: list[Any] = list(frame.columns)
    for label, row in zip(labels, frame.itertuples(index=False, name=None), strict=True):
        seed = seed_of(generator)
        try:
            posterior = _posterior(
                model, variables, dict(zip(columns, row, strict=True)), limits, wants_of(solver)
            )
        except ImpossibleEvidence as error:
            raise ImpossibleEvidence(f"row {label!r}: {error}") from None
        results.append(run(posterior, solver, rng=seed, **settings))
    return ResultList(results, labels)
