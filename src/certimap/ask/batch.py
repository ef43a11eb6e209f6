"""Many queries of one model: a row's failure is that row's own, and answers come as they are found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from certimap.ask.answer import answer_one, answer_query
from certimap.certify.checks import check_settings
from certimap.core.control import Control
from certimap.core.executors import Spread
from certimap.core.posterior import Posterior
from certimap.core.query import refuse_doubled
from certimap.core.result import MapResult
from certimap.core.result_list import FailedQuery
from certimap.errors import CertimapError, ParseError, SolverError, at_place
from certimap.solvers.base import Solver
from certimap.solvers.driver import check_limits, seed_of
from certimap.solvers.interrupts import n_interrupts
from certimap.solvers.registry import check_solver

OnError = Literal["raise", "keep"]
Condition = Callable[[Any, Any, Control], Posterior]
Share = Callable[[Mapping[int, tuple[Any, Any]]], Mapping[int, Posterior]]
TOGETHER = 256  # rows that are looked at together
N_PARTS = 64  # parts that few rows are shared out in, for up to so many workers
Outcome = MapResult | CertimapError | MemoryError
_NO_MEMORY = "memory ran out; lower max_memory or max_edges, or ask a smaller query"


@dataclass(frozen=True)
class Row:
    """One query of a batch.

    Attributes
    ----------
    label
        What the row is called in results.
    ask
        Returns variables and evidence, as `map_query` takes them; what it raises is the row's own failure.
    place
        What stands before the row's errors where these are raised; "" where nothing need.
    """

    label: Any
    ask: Callable[[], tuple[Any, Any]]
    place: str


class _Sent(NamedTuple):
    """A row as it goes to a worker."""

    number: int
    label: Any
    variables: Any
    evidence: Any
    seed: int


@dataclass(frozen=True)
class Batch:
    """How the rows of a batch are answered.

    Attributes
    ----------
    condition, fallback
        Turn variables and evidence into a posterior under a control; see `certimap.ask.answer.answer_query`.
    share
        From variables and evidence of rows by number to the posteriors of those that can share their conditioning.
    solver, settings
        As `certimap.solvers.driver.run` takes them; `settings` holds its keywords except `rng`.
    errors
        "raise" ends the batch at the first row that fails, with its error, which names the row; "keep" lets a
        `FailedQuery` stand for the row. Whatever would fail every row (an unknown solver, a setting out of
        range) is raised in either case, before the first row.
    """

    condition: Condition
    fallback: Condition
    share: Share
    solver: str | Solver
    settings: Mapping[str, Any]
    errors: OnError = "raise"

    def __post_init__(self) -> None:
        check_errors(self.errors)
        given = self.settings
        check_solver(self.solver, given.get("options") or {})
        top_k = given.get("top_k")
        check_settings(
            given.get("epsilon", 0.01), given.get("delta", 0.01), 1 if top_k is None else top_k, "sharp"
        )
        check_limits(*(given.get(name) for name in ("time_limit", "max_samples", "max_nodes", "max_memory")))

    def answers(
        self, rows: Sequence[Row], rng: int | np.random.Generator | None
    ) -> Iterator[MapResult | FailedQuery]:
        """Yield the answer of each row, in order, as soon as it is there.

        Each row has a seed of its own, drawn before anything can fail, so that one row's failure changes no
        other row's answer; a row alone has the seed given. Ctrl-C ends the batch: the row at work is yielded with
        what it has earned, and KeyboardInterrupt is raised after it.
        """
        outcomes = self.outcomes(rows, seeds_of(rng, len(rows)))
        return (self._judged(row, outcome) for row, outcome in zip(rows, outcomes, strict=False))

    def spread_answers(
        self, rows: Sequence[Row], rng: int | np.random.Generator | None, executor: Executor
    ) -> Iterator[MapResult | FailedQuery]:
        """Yield the same answers, found by the workers of an executor; Ctrl-C raises KeyboardInterrupt at once.

        Rows go out in parts whose size follows from their number alone.
        """
        seeds = seeds_of(rng, len(rows))
        size = max(1, min(TOGETHER, -(-len(rows) // N_PARTS)))
        parts = [range(start, min(start + size, len(rows))) for start in range(0, len(rows), size)]
        refused: dict[int, CertimapError] = {}

        def make(i: int) -> list[_Sent]:
            sent: list[_Sent] = []
            for k in parts[i]:
                try:
                    sent.append(_Sent(k, rows[k].label, *rows[k].ask(), seeds[k]))
                except CertimapError as error:  # the row's own failure, when it is its turn
                    refused[k] = error
            return sent

        settings = {**self.settings, "progress": False}
        results = Spread(executor, _answer_part, replace(self, settings=settings)).results(len(parts), make)
        for part, outcomes in zip(parts, results, strict=True):
            for k in part:
                yield self._judged(rows[k], refused[k] if k in refused else outcomes[k])

    def outcomes(self, rows: Sequence[Row], seeds: Sequence[int]) -> Iterator[Outcome]:
        """Yield a result, or why there is none, for each row in order; after Ctrl-C raise KeyboardInterrupt."""
        for start in range(0, len(rows), TOGETHER):
            part = rows[start : start + TOGETHER]
            shared = self._shared(part)
            for k, row in enumerate(part):
                before = n_interrupts()
                outcome = self._outcome(row, seeds[start + k], shared.get(k))
                is_last = n_interrupts() > before
                if not is_last or isinstance(outcome, MapResult):  # a row cut short has not failed
                    yield outcome
                if is_last:
                    raise KeyboardInterrupt

    def _shared(self, rows: Sequence[Row]) -> Mapping[int, Posterior]:
        """Return posteriors that are conditioned together; whatever fails is left to fail when it is its turn."""
        asked: dict[int, tuple[Any, Any]] = {}
        if len(rows) < 2:
            return {}
        for k, row in enumerate(rows):
            with suppress(CertimapError):
                asked[k] = row.ask()
        with suppress(MemoryError):
            return self.share(asked)
        return {}

    def _outcome(self, row: Row, seed: int, shared: Posterior | None) -> Outcome:
        try:
            if shared is not None:
                return answer_one(shared, self.solver, seed, self.settings)
            variables, evidence = row.ask()
            return answer_query(
                lambda control: self.condition(variables, evidence, control),
                lambda control: self.fallback(variables, evidence, control),
                self.solver,
                seed,
                self.settings,
            )
        except (CertimapError, MemoryError) as error:
            return error

    def _judged(self, row: Row, outcome: Outcome) -> MapResult | FailedQuery:
        """Return a result as it is; raise what stands for one, or keep it as the row's failure."""
        if isinstance(outcome, MapResult):
            return outcome
        if isinstance(outcome, MemoryError):
            if self.errors == "raise":
                raise outcome
            return FailedQuery(row.label, "MemoryError", _NO_MEMORY)
        if self.errors == "raise":
            named = isinstance(outcome, ParseError) or not row.place  # a ParseError names its file and line
            raise outcome if named else at_place(outcome, row.place) from None
        return FailedQuery(row.label, type(outcome).__name__, str(outcome))


def seeds_of(rng: int | np.random.Generator | None, n_rows: int) -> list[int]:
    """Return a seed per row; a row alone has the seed given."""
    seed = seed_of(rng)
    if n_rows == 1:
        return [seed]
    generator = np.random.default_rng(seed)
    return [seed_of(generator) for _ in range(n_rows)]


def _answer_part(batch: Batch, sent: Sequence[_Sent]) -> dict[int, Outcome]:
    """Answer rows in a worker; return what became of each, by its number."""
    rows = [Row(s.label, lambda s=s: (s.variables, s.evidence), "") for s in sent]
    outcomes = batch.outcomes(rows, [s.seed for s in sent])
    return {s.number: outcome for s, outcome in zip(sent, outcomes, strict=True)}


def check_errors(errors: str) -> None:
    """Refuse what says nothing of rows that fail."""
    if errors not in ("raise", "keep"):
        raise SolverError(f"errors is {errors!r}; expected 'raise' or 'keep'")


def rows_of_frame(variables: Any, frame: Any) -> list[Row]:
    """Return one row for each row of a data frame whose columns are variables."""
    columns: list[Any] = list(frame.columns)
    refuse_doubled(columns, "the frame of evidence has two columns")
    rows = frame.itertuples(index=False, name=None)

    def ask(values: tuple[Any, ...]) -> tuple[Any, Any]:
        return variables, dict(zip(columns, values, strict=True))

    return [
        Row(label, lambda values=values: ask(values), f"row {label!r}")
        for label, values in zip(list(frame.index), rows, strict=True)
    ]


def collect(answers: Iterable[MapResult | FailedQuery]) -> tuple[list[Any], bool]:
    """Return the answers that come before Ctrl-C, and whether it cut the batch short.

    Ctrl-C before the first answer is raised as usual.
    """
    found: list[Any] = []
    try:
        for answer in answers:
            found.append(answer)
    except KeyboardInterrupt:
        if not found:
            raise
        return found, True
    return found, False
