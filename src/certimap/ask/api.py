"""The public entry point: one query, or a frame of evidence rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import numpy as np

from certimap.ask.batch import BatchRow, Extra, OnError, Unknown, check_errors, collect, map_rows, rows_of_table
from certimap.ask.session import Session, askable, joined, model_of
from certimap.core.arguments import (
    Record,
    check_whole,
    flag_checked,
    has_names,
    is_dict,
    is_mapping,
    keywords_hinted,
)
from certimap.core.control import DEFAULT_PROOF
from certimap.core.executors import workers_of
from certimap.core.posterior import Posterior
from certimap.core.progress import Progress as Bar
from certimap.core.query import Evidence
from certimap.core.result import FailedQuery, MapResult, ResultList
from certimap.errors import SolverError
from certimap.kernels.notice import announce_compilation
from certimap.solvers.base import Solver
from certimap.solvers.driver import Progress, seed_of
from certimap.solvers.record import is_on_terminal
from certimap.solvers.request import QuerySettings, Request

if TYPE_CHECKING:
    import pandas as pd
    from pandas import DataFrame

    from certimap.core.constraints import Constraint

    Given = Evidence | pd.Series | None
    Rows = DataFrame | Sequence[Evidence]


Names = Sequence[str] | str | None


class MapSettings(QuerySettings, total=False):
    """Keywords of `map_query`; see there."""

    rng: int | np.random.Generator | None
    progress: Progress
    virtual_evidence: Any
    show_progress: bool | None
    proof: bool
    max_proof: int
    n_jobs: int | None
    executor: Any
    extra: Extra
    unknown: Unknown


@overload
def map_query(  # pyright: ignore[reportOverlappingOverload]  # a call without evidence is this one, or the fourth
    model: Any, variables: Names = None, evidence: Given = None, **settings: Unpack[MapSettings]
) -> MapResult: ...
@overload
def map_query(
    model: Any,
    variables: Names = None,
    evidence: Rows = ...,
    *,
    errors: Literal["raise"] = "raise",
    **settings: Unpack[MapSettings],
) -> ResultList[MapResult]: ...
@overload
def map_query(
    model: Any, variables: Names = None, evidence: Rows = ..., *, errors: OnError, **settings: Unpack[MapSettings]
) -> ResultList[MapResult | FailedQuery]: ...
@overload
def map_query(  # pyright: ignore[reportOverlappingOverload]  # without evidence, as the first
    model: Any, variables: Names = None, evidence: Given = None, *, solver: str | Solver, **solver_options: Any
) -> MapResult: ...
@overload
def map_query(
    model: Any, variables: Names = None, evidence: Rows = ..., *, solver: str | Solver, **solver_options: Any
) -> ResultList[Any]: ...
def map_query(
    model: Any,
    variables: Names = None,
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
    upper_bound: Any = None,
    top_k: int | None = None,
    top_mass: float | None = None,
    tolerance: float = 1e-9,
    constraints: Sequence[Constraint | Record] = (),
    max_edges: int | None = None,
    workers: int | None = None,
    device: str | None = None,
    progress: Progress = None,
    errors: OnError = "raise",
    virtual_evidence: Any = None,
    show_progress: bool | None = None,
    proof: bool = False,
    max_proof: int = DEFAULT_PROOF,
    n_jobs: int | None = None,
    executor: Any = None,
    extra: Extra = "refuse",
    unknown: Unknown = "refuse",
    **solver_options: Any,
) -> MapResult | ResultList[Any]:
    """Return the most probable assignment of some variables given others, everything else summed out.

    - `model`: a circuit, a network, a fitted model, or a posterior (then `variables` and `evidence` stay None). A
      model from another library is converted at each call; `certimap.from_object` converts it once.
    - `variables`: names of the query variables; None: every variable without hard evidence (MPE).
    - `evidence`: a mapping or pandas Series from names to values: a label; None or NaN for unobserved; a set of
      labels as a restriction; one likelihood per state; a number for a real variable, or a (low, high) tuple as
      its interval. If the evidence assigns every variable, the answer is the empty assignment, with ln p = 0 and
      ln p(e) in `log_evidence`. A table asks one query per row: a frame (pandas, polars, or any with columns by
      name) or a list of mappings. What it holds of `variables` is no evidence.
    - `epsilon`, `delta`: the requested certificate: p(answer | e) >= (1 - epsilon) p*, with probability at least
      1 - delta. `epsilon=0` requests exactness within `tolerance`; `delta=0` forbids probabilistic stops.
    - `solver`: a name (`certimap.solvers.registry.names`), a solver object, or "auto", which chooses by the
      posterior's capabilities (`certimap.solvers.registry.choose`). Further keywords,
      `solver_options`, are settings of a named solver.
    - `rng`: a seed, a numpy Generator, or None. The result records the seed, which replays the answer.
    - `time_limit`, `max_samples`, `max_nodes`, `max_memory`: limits in seconds, draws, search nodes and bytes,
      counted from the call: orders, conditioning, search and decoding. A run that reaches a limit returns its best
      answer and certificate so far. If conditioning cannot end in time, a quicker method answers and `note` names
      the step that was cut short. Default of `max_memory`: see `certimap.core.control.default_max_memory`.
    - `warm_start`: assignments (labels by name, frames, or arrays of state positions) or the name of a heuristic.
    - `upper_bound`: a bound that another program proved: `{"source": "daoopt", "log_joint": -12.3}` bounds ln p(q,
      e), and `log_prob` bounds ln p(q | e), for every q. A certificate that uses it names the source among its
      `assumptions`.
    - `top_k`: return the k most probable assignments in `result.top`.
    - `top_mass`: a probability, such as 0.95: return in `result.top` the most probable assignments that hold it
      together, at most `top_k` of them (1,024 if that is None). `result.top_mass` says what they hold, and the
      size below which no set can hold that much; the search ends once that exceeds `top_k`. Needs p(e).
    - `tolerance`: the relative error that still counts as exact.
    - `constraints`: rules that answers satisfy: `AtMost`, `AtLeast`, `Exactly`, `Never`, `Implies`,
      `AllDifferent`, `Linear`, `Allowed`, or their JSON forms, on variables that are queried or observed. The
      answer is the most probable of the assignments that satisfy all of them, p* is its probability, and so are
      `top_k` and every bound; probabilities stay those of the model without constraints.
    - `max_edges`: largest circuit (edges) and largest table (entries) to build. None: limited only by
      `max_memory`.
    - `workers`: threads; None: one per core. The answer does not depend on it.
    - `device`: "cpu", "cuda" or "cuda:N": a circuit samples and scores points there, by PyTorch, for solvers based
      on draws ("auto" is then `smooth_pac`). None: compiled kernels, which also bound boxes.
    - `progress`: whether to show progress; None: only on a terminal. A function receives history entries.
      Compilation of kernels, which happens once, is shown too.
    - `errors`: for tables. "raise": the first failing row ends the batch, with an error that names the row.
      "keep": a failing row gets a `FailedQuery` with the error message, and the other rows are answered.
    - `virtual_evidence`, `show_progress`: pgmpy's names: tables over single variables, which join `evidence` as
      likelihoods; and `progress`.
    - `proof`, `max_proof`: whether to make `result.proof` (see `certimap.check`), and its largest size in bytes.
    - `n_jobs`, `executor`: workers for the rows of a data frame, or for the parts of one hard query: a number of
      local processes (-1 for one per core), or any `concurrent.futures.Executor` or dask's `Client`. Each worker
      has one thread unless `workers` is given; answers depend on neither number. See docs/many-machines.md.
    - `extra`, `unknown`: for tables: "refuse" or "ignore" columns that are no variables; "refuse" labels that are
      no states, or take them as "missing". A variable with the state "(other)" takes such labels for it.

    Returns a `MapResult`, or a `ResultList` with one per row of a data frame. Logs are natural. Ctrl-C ends a data
    frame's batch: the list then holds the finished rows, and its `interrupted` is true.

    Raises QueryError and ImpossibleEvidence for a query that names unknown variables or states, contradicts
    itself, or has evidence of probability 0; NoAnswer when no assignment of positive probability satisfies the
    constraints, which is proved; TooLarge when no representation of the model fits `max_memory` and `max_edges`,
    or none was ready in time; SolverError when the solver does not suit the posterior, or a setting is out of
    range.
    """
    check_errors(errors, extra, unknown)
    max_proof = check_whole("max_proof", max_proof, "a whole number of bytes")
    evidence = joined(evidence, virtual_evidence)
    flag_checked("proof", proof)
    request = Request.of(
        solver=solver,
        options=solver_options,
        epsilon=epsilon,
        delta=delta,
        time_limit=time_limit,
        max_samples=max_samples,
        max_nodes=max_nodes,
        max_memory=max_memory,
        max_edges=max_edges,
        device=device,
        upper_bound=upper_bound,
        warm_start=warm_start,
        top_k=top_k,
        top_mass=top_mass,
        tolerance=tolerance,
        constraints=constraints,
        workers=workers,
        proof_bytes=max_proof if proof else None,
    )
    told = show_progress if progress is None else progress
    if told is True or (told is None and is_on_terminal()):
        announce_compilation()
    session = Session(model_of(model), request)
    if not is_mapping(evidence) and has_names(evidence):
        if request.upper_bound is not None:
            raise SolverError("upper_bound bounds one query, and a table holds many; ask them one by one")
        rows = rows_of_table(variables, evidence, askable(session.model).domain, extra, unknown)
        return _answer_rows(session, rows, rng, (errors, n_jobs, executor, told))
    given: Any = evidence.copy() if is_dict(evidence) else evidence  # the caller may change it later
    seed, ask = seed_of(rng), lambda: (variables, given)
    if n_jobs is None and executor is None:
        return session.answer(ask, seed, told)
    from certimap.ask.shared_query import answer_shared

    with workers_of(n_jobs, executor) as pool:
        assert pool is not None
        return answer_shared(session, ask, seed, pool, told)


def _answer_rows(
    session: Session, rows: Sequence[BatchRow], rng: Any, how: tuple[OnError, int | None, Any, Progress]
) -> ResultList[Any]:
    """Answer each row of a table; `how` is (errors, n_jobs, executor, progress) as in `map_query`."""
    errors, n_jobs, executor, progress = how
    shown = False if callable(progress) else progress
    with Bar("rows", len(rows), shown) as bar, workers_of(n_jobs, executor) as pool:
        found = map_rows(session, rows, rng, errors, pool, False if bar.is_shown else progress)
        answers, interrupted = collect(bar.counted(found))
    return ResultList(answers, [row.label for row in rows[: len(answers)]], interrupted=interrupted)


@keywords_hinted()
def condition(
    model: Any,
    variables: Sequence[str] | str | None = None,
    evidence: Any = None,
    *,
    max_edges: int | None = None,
    workers: int | None = None,
    device: str | None = None,
    solver: str | Solver = "auto",
) -> Posterior:
    """Return p(variables | evidence) as a posterior, to sample, to score, or to query several times.

    It has the representation that `map_query(model, ..., solver=solver)` uses; `model`, `variables`, `evidence` (a
    single row), `max_edges`, `workers` and `device` are as for `map_query`, and so are the exceptions. For "auto"
    this may lack a sampler (for MPE on networks it only maximises); `solver="pac"` requires one. With
    `device="cuda"` a circuit samples and scores points there, and offers nothing else. The capabilities of the
    posterior depend on the representation (see `certimap.core.posterior`).
    """
    request = Request.of(solver=solver, max_edges=max_edges, workers=workers, device=device)
    return Session(model_of(model), request.raising("max_edges")).conditioned_on(variables, evidence)
