"""`auto` beside every part of it that accepts a query: it should be at least the best of them, and in time."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

from certimap.ask.api import map_query
from certimap.errors import CertimapError
from certimap_lab.bench.portfolio_models import PortfolioCase, ising, lattice, some_of
from certimap_lab.bench.tabular import Cell, Table, number, significant
from certimap_lab.bench.trial import Method

PARTS = (
    "hbfs",
    "set_elimination",
    "frontier",
    "aobb",
    "aobf",
    "wmb:i_bound=10:iterations=50",
    "bucket_elimination",
)
WORSE = 1e-6  # of the best answer's log, that auto's may be below it
GAP_SHARE = 0.1  # of the best gap, that auto's bound may be above the best one
LATE_SHARE, LATE = 1.05, 1.0  # of the limit, and seconds, that a run may take


@dataclass(frozen=True)
class Outcome:
    """What one solver made of a query.

    Attributes
    ----------
    solver
        Its name, with settings.
    log_joint, log_upper
        ln p(answer, evidence) and its bound, in nats; -inf and inf where there are none.
    seconds
        All that the call took.
    refusal
        Why there is no answer; "" where there is one.
    """

    solver: str
    log_joint: float = -math.inf
    log_upper: float = math.inf
    seconds: float = 0.0
    refusal: str = ""


@dataclass(frozen=True)
class Row:
    """All outcomes of one query at one limit, that of `auto` first."""

    case: PortfolioCase
    limit: float
    outcomes: tuple[Outcome, ...]

    @property
    def best(self) -> float:
        """The best answer's log."""
        return max(o.log_joint for o in self.outcomes)

    @property
    def bound(self) -> float:
        """The lowest bound."""
        return min(o.log_upper for o in self.outcomes)

    @property
    def failures(self) -> list[str]:
        """What `auto` is worse at than a part: "answer", "bound"; or "late"."""
        auto, slack = self.outcomes[0], WORSE * max(1.0, abs(self.best))
        found: list[str] = []
        if auto.log_joint < self.best - slack:
            found.append("answer")
        gap = max(self.bound - self.best, 0.0)
        if auto.log_upper > self.bound + max(slack, GAP_SHARE * gap if math.isfinite(gap) else 0.0):
            found.append("bound")
        if auto.seconds > LATE_SHARE * self.limit + LATE:
            found.append("late")
        return found


def run_portfolio(
    make_cases: Callable[[], Sequence[PortfolioCase]],
    limits: Sequence[float] = (10.0,),
    parts: Sequence[str] = PARTS,
    seed: int = 0,
    report: Callable[[str], None] = lambda _: None,
    n_jobs: int = 1,
) -> Iterator[Row]:
    """Ask `auto` and its parts each query, at each limit (seconds), exactness wanted.

    Each call gets a model of its own, so that none finds what another has worked out. Small queries go before, so
    that none loads kernels. With `n_jobs` above 1 as many processes, each on a processor of its own, take one
    query at a time; `make_cases` is then pickled.
    """
    cases = make_cases()
    asked = [(k, limit, tuple(parts), seed) for k in range(len(cases)) for limit in limits]
    if n_jobs == 1:
        _warm(parts, seed)
        found = (_outcomes(cases[k], limit, parts, seed) for k, limit, parts, seed in asked)
        yield from _reported(cases, asked, found, report)
        return
    context = get_context("spawn")
    how = (make_cases, context.Value("i", 0), tuple(parts), seed)
    with ProcessPoolExecutor(n_jobs, context, _begin, how) as pool:
        yield from _reported(cases, asked, pool.map(_of_process, asked), report)


Question = tuple[int, float, tuple[str, ...], int]  # the query's number, the limit, the parts and the seed
_cases: list[PortfolioCase] = []  # of a process that has begun


def _warm(parts: Sequence[str], seed: int) -> None:
    """Load what the solvers need."""
    grid = partial(ising, 36, lattice(6, 6), seed)
    for share in (0.5, 1.0):
        _outcomes(PortfolioCase("grid", "6x6", lambda q=share: some_of(grid(), q, seed)), 30.0, parts, seed)


def _begin(
    make_cases: Callable[[], Sequence[PortfolioCase]], n_begun: Any, parts: Sequence[str], seed: int
) -> None:
    """Give a process its processor and its queries."""
    _cases[:] = make_cases()
    with n_begun.get_lock():
        number: int = n_begun.value
        n_begun.value += 1
    if sys.platform == "linux":
        available: list[int] = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, [available[number % len(available)]])
    _warm(parts, seed)


def _of_process(question: Question) -> tuple[Outcome, ...]:
    return _outcomes(_cases[question[0]], *question[1:])


def _outcomes(case: PortfolioCase, limit: float, parts: Sequence[str], seed: int) -> tuple[Outcome, ...]:
    return tuple(_outcome(case, Method.parse(text), limit, seed) for text in ("auto", *parts))


def _reported(
    cases: Sequence[PortfolioCase],
    asked: Sequence[Question],
    found: Iterable[tuple[Outcome, ...]],
    report: Callable[[str], None],
) -> Iterator[Row]:
    for question, outcomes in zip(asked, found, strict=True):
        row = Row(cases[question[0]], question[1], outcomes)
        report(_line(row))
        yield row


def _outcome(case: PortfolioCase, method: Method, limit: float, seed: int) -> Outcome:
    asked, started = case.make(), time.perf_counter()
    try:
        found = map_query(
            asked.model, asked.query, asked.evidence, solver=method.solver, epsilon=0.0, delta=0.0,
            time_limit=limit, rng=seed, **dict(method.options),
        )  # fmt: skip
    except CertimapError as refusal:
        return Outcome(method.name, seconds=time.perf_counter() - started, refusal=str(refusal))
    seconds = time.perf_counter() - started
    value, upper = found.log_joint, found.log_joint_upper_bound
    return Outcome(
        method.name, -math.inf if value is None else value, math.inf if upper is None else upper, seconds
    )


def _line(row: Row) -> str:
    shown = " ".join(f"{o.solver} {o.log_joint:.6g}..{o.log_upper:.6g} {o.seconds:.1f} s" for o in row.outcomes)
    return f"{row.case.family} {row.case.name} at {row.limit:g} s: {shown} {' '.join(row.failures).upper()}"


def portfolio_tables(rows: Sequence[Row]) -> list[Table]:
    """Return one table per limit, and how often `auto` was beaten or late."""
    tables: list[Table] = []
    for limit in dict.fromkeys(row.limit for row in rows):
        mine = [row for row in rows if row.limit == limit]
        table = Table(
            f"portfolio-{limit:g}",
            f"`auto` beside its parts, {limit:g} s each (answer .. bound in nats)",
            [
                "query",
                "auto",
                "gap",
                "seconds",
                "best answer of a part",
                "best bound of a part",
                "auto is behind in",
            ],
        )
        for row in mine:
            table.add(*_cells(row))
        table.notes.append(summary(mine))
        tables.append(table)
    return tables


def _cells(row: Row) -> list[Cell | str]:
    auto, parts = row.outcomes[0], row.outcomes[1:]
    gap = auto.log_upper - auto.log_joint
    higher = max(parts, key=lambda o: o.log_joint, default=auto)
    lower = min(parts, key=lambda o: o.log_upper, default=auto)
    return [
        f"{row.case.family} {row.case.name}",
        f"{auto.log_joint:.4f}..{auto.log_upper:.4f}",
        significant(max(gap, 0.0)),
        number(auto.seconds),
        f"{higher.log_joint:.4f} {higher.solver}",
        f"{lower.log_upper:.4f} {lower.solver}",
        ", ".join(row.failures),
    ]


def summary(rows: Sequence[Row]) -> str:
    """Say in how many queries `auto` is worse than its best part, or late."""
    counts = {what: sum(what in row.failures for row in rows) for what in ("answer", "bound", "late")}
    n_behind = sum(bool(row.failures) for row in rows)
    return (
        f"{len(rows)} queries, auto behind in {n_behind}: {counts['answer']} answers more than {WORSE:g} below "
        f"the best, {counts['bound']} bounds more than a tenth of the gap above the best, {counts['late']} late."
    )
