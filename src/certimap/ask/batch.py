"""Many queries to one model: a failing row does not affect others, and answers are yielded as found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

import numpy as np

from certimap.ask.session import Ready, Session
from certimap.core.arguments import is_dict, is_records
from certimap.core.domain import OTHER, Categorical, Domain, Variable
from certimap.core.executors import Spread
from certimap.core.posterior import Posterior
from certimap.core.query import Query, check_names
from certimap.core.result import FailedQuery, MapResult, Origin
from certimap.errors import CertimapError, DataError, ParseError, QueryError, SolverError, at_place
from certimap.solvers.driver import Progress, n_interrupts, seed_of
from certimap.solvers.registry import entry
from certimap.solvers.request import Request

if TYPE_CHECKING:
    from certimap.learn.table import Column

OnError = Literal["raise", "keep"]
Extra = Literal["refuse", "ignore"]
Unknown = Literal["refuse", "missing"]
TOGETHER = 256  # rows conditioned together
N_KEPT = 4096  # answers kept for later rows that ask the same
N_PARTS = 64  # parts that rows are split into; serves up to this many workers
Outcome = MapResult | CertimapError | MemoryError
_Sent = tuple[int, Any, Any, int]  # a row for a worker: its number, variables, evidence and seed
_NO_MEMORY = "memory ran out; lower max_memory or max_edges, or ask a smaller query"


@dataclass(frozen=True)
class BatchRow:
    """One query of a batch."""

    label: Any  # the row's name in results
    # returns variables and evidence for `map_query`; its exceptions count as the row's failure
    ask: Callable[[], tuple[Any, Any]]
    place: str  # a prefix of the row's errors when they are raised; "" for none


def map_rows(
    session: Session,
    rows: Sequence[BatchRow],
    rng: int | np.random.Generator | None,
    errors: OnError = "raise",
    executor: Executor | None = None,
    progress: Progress = None,
) -> Iterator[MapResult | FailedQuery]:
    """Yield the answer to each row, in order, as soon as it is ready.

    Each row has its own seed, drawn in advance, so that no row's failure changes another's answer; a single row
    uses the given seed. Rows that ask the same query share one run if its solver uses no seed. The workers of an
    executor have one thread each unless the request sets a number. After Ctrl-C the current row is yielded with
    its best answer (not with an executor), and KeyboardInterrupt is raised.
    """
    check_errors(errors)
    seeds = seeds_of(rng, len(rows))
    given = session, rows, seeds
    outcomes = _outcomes(*given, progress) if executor is None else _spread_outcomes(*given, executor)
    return (_judged(row, outcome, errors) for row, outcome in zip(rows, outcomes, strict=False))


def _outcomes(
    session: Session, rows: Sequence[BatchRow], seeds: Sequence[int], progress: Progress
) -> Iterator[Outcome]:
    """Yield a result or an exception for each row, in order; after Ctrl-C raise KeyboardInterrupt."""
    done: dict[str, MapResult] = {}
    for start in range(0, len(rows), TOGETHER):
        part = rows[start : start + TOGETHER]
        texts = [None if callable(progress) else _text_of(row) for row in part]
        first = {text: k for k, text in reversed(list(enumerate(texts)))}
        ready = _conditioned_together(
            session, {k: part[k] for k, t in enumerate(texts) if t is None or (t not in done and first[t] == k)}
        )
        for k, (row, text) in enumerate(zip(part, texts, strict=True)):
            before, seed = n_interrupts(), seeds[start + k]
            if text in done:
                yield _copied(done[text], seed, Origin(session.model, row.ask))
                continue
            try:
                outcome: Outcome = session.answer(row.ask, seed, progress, ready.get(k))
            except (CertimapError, MemoryError) as error:
                outcome = error
            if text is not None and len(done) < N_KEPT and _suits_every_seed(outcome, session.request):
                done[text] = _copied(outcome, seed, None)
            is_last = n_interrupts() > before
            if not is_last or isinstance(outcome, MapResult):  # a row that was cut short has not failed
                yield outcome
            if is_last:
                raise KeyboardInterrupt


def _spread_outcomes(
    session: Session, rows: Sequence[BatchRow], seeds: Sequence[int], executor: Executor
) -> Iterator[Outcome]:
    """Yield the same outcomes from workers; only the number of rows decides how they are split."""
    session = Session(session.model, session.request.of_worker())
    size = max(1, min(TOGETHER, -(-len(rows) // N_PARTS)))
    parts = [range(start, min(start + size, len(rows))) for start in range(0, len(rows), size)]
    refused: dict[int, CertimapError] = {}

    def make(i: int) -> list[_Sent]:
        sent: list[_Sent] = []
        for k in parts[i]:
            try:
                sent.append((k, *rows[k].ask(), seeds[k]))
            except CertimapError as error:  # kept as the row's failure, until its turn
                refused[k] = error
        return sent

    results = Spread(executor, _answer_part, session).results(len(parts), make)
    for part, outcomes in zip(parts, results, strict=True):
        for k in part:
            outcome = refused[k] if k in refused else outcomes[k]
            is_answer = isinstance(outcome, MapResult)  # it was sent without the model
            yield replace(outcome, origin=Origin(session.model, rows[k].ask)) if is_answer else outcome


def _text_of(row: BatchRow) -> str | None:
    """Return a text that rows share only if they ask the same; None if there is none."""
    try:
        variables, evidence = row.ask()
    except CertimapError:  # the row fails in its turn
        return None
    is_plain = is_dict(evidence) and all(type(value) in PLAIN for value in evidence.values())
    return repr((variables, evidence)) if is_plain and type(variables) in (str, list, tuple, type(None)) else None


PLAIN = (str, int, float, bool, type(None))  # types of hard evidence, whose `repr` tells values apart


def _suits_every_seed(outcome: Outcome, request: Request) -> TypeGuard[MapResult]:
    """Whether a run with any seed would have had the same outcome."""
    if not isinstance(outcome, MapResult) or not outcome.certified or request.warm_start is not None:
        return False
    solver = entry(outcome.solver).load() if request.solver == "auto" else type(request.solver)
    return not solver.is_seeded


def _copied(found: MapResult, seed: int, origin: Origin | None) -> MapResult:
    """Return a result for another row that asks the same; it shares nothing that can change."""
    return replace(
        found,
        seed=seed,
        origin=origin,
        assignment=dict(found.assignment),
        pareto=list(found.pareto),
        history=list(found.history),
        ties=None if found.ties is None else [dict(tie) for tie in found.ties],
        top=None if found.top is None else [(dict(labels), value) for labels, value in found.top],
    )


def _conditioned_together(session: Session, rows: Mapping[int, BatchRow]) -> Mapping[int, Ready]:
    """Return the checked queries of valid rows, with posteriors for rows that share their conditioning."""
    queries: dict[int, Query | None] = {}
    if len(rows) < 2 or not session.shares:
        return {}
    for k, row in rows.items():
        with suppress(CertimapError):
            queries[k] = session.query(*row.ask())
    shared: Mapping[int, Posterior] = {}
    with suppress(MemoryError):
        shared = session.posteriors(queries)
    return {k: (query, shared.get(k)) for k, query in queries.items()}


def _judged(row: BatchRow, outcome: Outcome, errors: OnError) -> MapResult | FailedQuery:
    """Return a result unchanged; raise an exception, or convert it to the row's `FailedQuery`."""
    if isinstance(outcome, MapResult):
        return outcome
    if errors == "raise":
        if isinstance(outcome, ParseError | MemoryError) or not row.place:  # a ParseError names its file and line
            raise outcome from None
        raise at_place(outcome, row.place) from None
    if isinstance(outcome, MemoryError):
        return FailedQuery(row.label, "MemoryError", _NO_MEMORY)
    return FailedQuery(row.label, type(outcome).__name__, str(outcome))


def seeds_of(rng: int | np.random.Generator | None, n_rows: int) -> list[int]:
    """Return a seed per row; a single row gets the given seed."""
    seed = seed_of(rng)
    if n_rows == 1:
        return [seed]
    generator = np.random.default_rng(seed)
    return [seed_of(generator) for _ in range(n_rows)]


def _answer_part(session: Session, sent: Sequence[_Sent]) -> dict[int, Outcome]:
    """Answer rows in a worker; return their outcomes by row number."""
    rows = [BatchRow(None, lambda asked=(variables, evidence): asked, "") for _, variables, evidence, _ in sent]
    outcomes = _outcomes(session, rows, [seed for *_, seed in sent], False)
    return {number: outcome for (number, *_), outcome in zip(sent, outcomes, strict=True)}


def check_errors(errors: str, extra: str = "refuse", unknown: str = "refuse") -> None:
    """Raise SolverError unless each word is one of its two."""
    given = {"errors": (errors, "raise", "keep"), "extra": (extra, "refuse", "ignore")}
    for name, (word, *accepted) in {**given, "unknown": (unknown, "refuse", "missing")}.items():
        if word not in accepted:
            raise SolverError(f"{name} is {word!r}; expected {' or '.join(map(repr, accepted))}")


def rows_of_table(
    variables: Any, table: Any, domain: Domain, extra: Extra = "refuse", unknown: Unknown = "refuse"
) -> list[BatchRow]:
    """Return one row for each row of a table whose columns are variables; labels of asked ones are no evidence.

    `extra`: whether other columns are refused; `unknown`: whether labels that are no states are refused too.
    """
    from certimap.learn.table import columns_of

    asked = () if variables is None else (variables,) if isinstance(variables, str) else tuple(variables)
    try:
        columns = {c.name: c for c in columns_of(table)}
    except DataError as error:
        raise QueryError(str(error)) from None
    kept = [name for name in columns if extra == "refuse" or name in domain]
    check_names(domain, variables, kept)
    n_rows = len(next(iter(columns.values())).values) if columns else 0
    index = None if is_records(table) else getattr(table, "index", None)
    labels = list(range(n_rows)) if index is None else list(index)
    values = [_evidence_of(columns[name], domain[name], unknown, name in asked) for name in kept]
    rows = zip(labels, zip(*values, strict=True) if kept else [()] * n_rows, strict=True)
    return [
        BatchRow(label, lambda held=held: (variables, dict(zip(kept, held, strict=True))), f"row {label!r}")
        for label, held in rows
    ]


def _evidence_of(column: Column, variable: Variable, unknown: Unknown, is_asked: bool) -> list[Any]:
    """Return the values of a column, None where missing."""
    labels, some = column.categories, column.values.tolist()
    values = [None if gone else labels[v] if labels else v for v, gone in zip(some, column.missing, strict=True)]
    if is_asked:
        return [None if isinstance(v, PLAIN) else v for v in values]
    if isinstance(variable, Categorical) and (unknown == "missing" or OTHER in variable):
        default = OTHER if OTHER in variable else None
        return [default if v is not None and isinstance(v, PLAIN) and v not in variable else v for v in values]
    return values


def collect(answers: Iterable[MapResult | FailedQuery]) -> tuple[list[Any], bool]:
    """Return the answers before Ctrl-C, and whether it came; before the first answer it is raised."""
    found: list[Any] = []
    try:
        for answer in answers:
            found.append(answer)
    except KeyboardInterrupt:
        if not found:
            raise
        return found, True
    return found, False
