"""Thousands of hostile models, each put to every solver and compared with exact arithmetic."""

from __future__ import annotations

import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from certimap_lab.bench.records import BenchError, Record
from certimap_lab.bench.tabular import Table
from certimap_lab.bench.workers import Job, WorkerPool
from certimap_lab.hostile import FAMILIES, KINDS, check_seed, family_of

CHUNK = 20  # models between two exchanges with a process
CHUNK_SECONDS = 900.0  # a chunk that takes longer is given up, and its models tried one by one
MODEL_SECONDS = 120.0
MEMORY = 6 * 2**30  # bytes of address space for each process
SHOWN = 3  # failures shown for each model; `only` shows them all
LEVEL = 1e-6  # false certificates fail when as many had at most this probability
PROGRESS_EVERY = 500


@dataclass(frozen=True)
class HostilePlan:
    """Models number `seed` to `seed + n_models - 1`, in `n_processes` processes."""

    n_models: int = 20_000
    seed: int = 0
    n_processes: int = 2


@dataclass
class _Tally:
    """What the models of one family came to."""

    n_models: int = 0
    n_checks: int = 0
    n_failing: int = 0
    by_kind: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    n_late: int = 0
    seconds: float = 0.0


@dataclass
class HostileSummary:
    """The outcome of a run: its table, and whether everything held."""

    table: Table
    n_failing: int
    n_false_beyond_chance: int

    @property
    def holds(self) -> bool:
        return not self.n_failing and not self.n_false_beyond_chance


class _Checking:
    """Checks chunks of models in a process of its own, which may not take all of the machine's memory."""

    def __init__(self) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        if soft == resource.RLIM_INFINITY or soft > MEMORY:
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, hard))

    def __call__(self, job: Any, part: Any) -> Record:
        return {"models": [check_model(seed) for seed in range(*part)]}


def check_model(seed: int) -> Record:
    """Check one model; return what was found as a record."""
    started = time.process_time()
    report = check_seed(seed)
    return {
        "seed": seed,
        "family": report.family,
        "n_checks": report.n_checks,
        "failures": [(failure.kind, failure.text) for failure in report.failures],
        "risks": report.risks,
        "n_late": report.n_late,
        "seconds": time.process_time() - started,
    }


def failure_lines(record: Record, limit: int | None = SHOWN) -> list[str]:
    """Return the failures of a model, one line each, with what makes it again."""
    lines = [
        f"--only {record['seed']} ({record['family']}) {kind}: {text}"
        for kind, text in sorted(record["failures"], key=lambda failure: KINDS.index(failure[0]))
    ]
    more = [] if limit is None or len(lines) <= limit else [f"  and {len(lines) - limit} more"]
    return lines[:limit] + more


def run_hostile(plan: HostilePlan, *, report: Callable[[str], None] | None = None) -> HostileSummary:
    """Check the models of a plan.

    Parameters
    ----------
    report
        Receives a line for each failure, and one for the progress made.

    Raises
    ------
    BenchError
        For a plan without models.
    """
    if plan.n_models < 1:
        raise BenchError(f"{plan.n_models} models were asked for; expected at least one")
    say: Callable[[str], None] = report or (lambda _: None)
    tallies: dict[str, _Tally] = {name: _Tally() for name in FAMILIES}
    risks: defaultdict[float, list[bool]] = defaultdict(list)
    started, n_failing = time.monotonic(), 0
    for n_done, record in enumerate(_records(plan), start=1):
        _count(tallies[record["family"]], record)
        for delta, is_false in record["risks"]:
            risks[delta].append(is_false)
        for line in failure_lines(record):
            say(line)
        n_failing += bool(record["failures"])
        if n_done % PROGRESS_EVERY == 0 or n_done == plan.n_models:
            seconds = time.monotonic() - started
            say(f"{n_done:,} of {plan.n_models:,} models in {seconds:.0f} s, {n_failing:,} with failures")
    return _summary(plan, tallies, risks, time.monotonic() - started)


def _records(plan: HostilePlan) -> Iterator[Record]:
    """Yield a record for each model; a model that takes its process down, or too long, is one with an error."""
    end = plan.seed + plan.n_models
    chunks = [(start, min(start + CHUNK, end)) for start in range(plan.seed, end, CHUNK)]
    lost: list[tuple[int, int]] = []
    for part, record, _ in _checked(plan, chunks, CHUNK_SECONDS):
        if record is None:
            lost.extend((seed, seed + 1) for seed in range(*part))
        else:
            yield from record["models"]
    for part, record, problem in _checked(plan, lost, MODEL_SECONDS):
        if record is None:
            seed = part[0]
            failures = [("error", f"the process {(problem or '').strip().splitlines()[-1]}")]
            empty: Record = {
                "seed": seed,
                "family": family_of(seed),
                "n_checks": 0,
                "risks": [],
                "n_late": 0,
                "seconds": MODEL_SECONDS,
            }
            yield {**empty, "failures": failures}
        else:
            yield from record["models"]


def _checked(
    plan: HostilePlan, parts: Iterable[tuple[int, int]], limit: float
) -> Iterator[tuple[tuple[int, int], Record | None, str | None]]:
    pool = WorkerPool(plan.n_processes, _Checking, (), part_limit=limit)
    for outcome in pool.run([Job(None, [part]) for part in parts]):
        yield outcome.part, outcome.record, outcome.problem


def _count(tally: _Tally, record: Record) -> None:
    tally.n_models += 1
    tally.n_checks += record["n_checks"]
    tally.n_failing += bool(record["failures"])
    tally.n_late += record["n_late"]
    tally.seconds += record["seconds"]
    for kind in {kind for kind, _ in record["failures"]}:
        tally.by_kind[kind] += 1


def _summary(
    plan: HostilePlan, tallies: dict[str, _Tally], risks: dict[float, list[bool]], seconds: float
) -> HostileSummary:
    """Put counts into a table, and judge the certificates that may be false."""
    header = ["family", "models", "checks", "models with failures", *KINDS, "CPU s"]
    last = plan.seed + plan.n_models - 1
    table = Table("hostile", f"Hostile models, seeds {plan.seed} to {last}", header)
    everything = _Tally()
    for name, tally in tallies.items():
        table.add(*_cells(name, tally))
        everything.n_models += tally.n_models
        everything.n_checks += tally.n_checks
        everything.n_failing += tally.n_failing
        everything.n_late += tally.n_late
        everything.seconds += tally.seconds
        for kind in KINDS:
            everything.by_kind[kind] += tally.by_kind[kind]
    table.add(*_cells("all", everything))
    table.notes.append(f"{seconds:.0f} s in {plan.n_processes} processes. Kinds count models, not failures.")
    table.notes.append(
        f"Runs without an answer when their time was up, which are no failures: {everything.n_late:,}."
    )
    n_beyond = 0
    for delta, claims in sorted(risks.items()):
        n_false, chance = sum(claims), binomial_tail(sum(claims), len(claims), delta)
        n_beyond += n_false if chance < LEVEL else 0
        table.notes.append(
            f"Certificates with a failure probability of at most {delta:g}: {len(claims):,}, of which {n_false} "
            f"are false (so many or more have a probability of at most {chance:.3g})."
        )
    return HostileSummary(table, everything.n_failing, n_beyond)


def _cells(name: str, tally: _Tally) -> list[str]:
    kinds = [f"{tally.by_kind[kind]:,}" for kind in KINDS]
    counts = [f"{n:,}" for n in (tally.n_models, tally.n_checks, tally.n_failing)]
    return [name, *counts, *kinds, f"{tally.seconds:.0f}"]


def binomial_tail(n_successes: int, n: int, p: float) -> float:
    """Return the probability of at least so many successes in n trials."""
    stats: Any = import_module("scipy.stats")
    return float(stats.binom.sf(n_successes - 1, n, p))
