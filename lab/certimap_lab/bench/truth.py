"""Hundreds of thousands of queries against enumeration: how many certificates are false, and how many may be."""

from __future__ import annotations

import math
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from certimap_lab.bench.hostile import binomial_tail
from certimap_lab.bench.machine import describe_machine, machine_line
from certimap_lab.bench.records import BenchError, Record, RecordFile
from certimap_lab.bench.tabular import Table
from certimap_lab.bench.workers import Job, WorkerPool
from certimap_lab.volume import FAMILIES, LEVELS, LOOSENED, OUTCOMES, Verdict, judge, loosened, make_case

CHUNK = 200  # queries in one record
CHUNK_SECONDS = 3600.0  # of the clock, generous because a machine may be very busy
CHANCE = 1e-4  # below it, so many false certificates are no accident
FILE = "truth.jsonl"


@dataclass(frozen=True)
class TruthPlan:
    """Queries number 0 to `n_queries - 1` of a seed.

    Attributes
    ----------
    out
        Folder of the run; a stopped run there resumes. None keeps nothing.
    loosen, factor
        A formula that is made looser by this factor (`certimap_lab.volume.LOOSENED`); then all queries are of
        the families that lean on it.
    """

    n_queries: int = 100_000
    seed: int = 0
    n_processes: int = 1
    out: Path | None = None
    loosen: str | None = None
    factor: float = 1.05

    def __post_init__(self) -> None:
        if self.n_queries < 1:
            raise BenchError(f"{self.n_queries} queries were asked for; expected at least one")
        if self.loosen is not None and self.loosen not in LOOSENED:
            raise BenchError(f"{self.loosen!r} is no formula to loosen; expected {', '.join(LOOSENED)}")

    @property
    def key(self) -> Record:
        """What records of one run share."""
        return {"seed": self.seed, "loosen": self.loosen, "factor": self.factor}


@dataclass
class TruthSummary:
    """What all queries came to.

    Attributes
    ----------
    outcomes
        (family, kind of certificate) to queries.
    solvers
        (solver, kind of certificate) to queries.
    risks
        (family, failure probability asked for) to answers, and those that are false by a certificate that may be.
    levels
        Answers that have a false pair with a failure probability within a level.
    n_answers
        Queries that got an answer.
    failures
        Number, family and sentence of what is false for certain, or went wrong; the first few of each record.
    n_failures, n_false_proofs
        How many queries failed in any way, and by a false proof.
    """

    n_queries: int = 0
    seconds: float = 0.0
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    solvers: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    risks: dict[tuple[str, float], list[int]] = field(default_factory=dict[tuple[str, float], list[int]])
    levels: Counter[float] = field(default_factory=Counter[float])
    n_answers: int = 0
    failures: list[tuple[int, str, str]] = field(default_factory=list[tuple[int, str, str]])
    n_failures: int = 0
    n_false_proofs: int = 0

    def add(self, record: Record) -> None:
        """Take in the record of a chunk."""
        self.n_queries += record["n"]
        self.seconds += record["seconds"]
        self.outcomes.update({(a, b): n for a, b, n in record["outcomes"]})
        self.solvers.update({(a, b): n for a, b, n in record["solvers"]})
        for family, delta, n, n_false in record["risks"]:
            counts = self.risks.setdefault((family, delta), [0, 0])
            counts[0] += n
            counts[1] += n_false
        self.levels.update(dict(record["levels"]))
        self.n_answers += record["n_answers"]
        self.n_failures += record["n_failures"]
        self.n_false_proofs += record["n_false_proofs"]
        self.failures += [(number, family, text) for number, family, text in record["failures"]]

    def chance_of(self, family: str) -> float:
        """Return how probable so many false certificates of a family are at most, all deltas taken together.

        Exact binomial tails at each level, combined by Fisher's method, which errs towards large values here.
        """
        stats: Any = import_module("scipy.stats")
        tails = [binomial_tail(k, n, delta) for (name, delta), (n, k) in self.risks.items() if name == family]
        doubled = -2.0 * sum(math.log(max(tail, 1e-300)) for tail in tails)
        return float(stats.chi2.sf(doubled, 2 * len(tails)))

    @property
    def at_risk(self) -> list[str]:
        """The families of which some answer may have a certificate that fails."""
        return sorted({family for family, _ in self.risks})

    @property
    def holds(self) -> bool:
        """Whether nothing was false for certain, and no more was false than may be."""
        levels = (binomial_tail(self.levels[level], self.n_answers, level) for level in LEVELS)
        chances = (self.chance_of(family) for family in self.at_risk)
        return not self.n_failures and min([1.0, *levels, *chances]) >= CHANCE


class _Answering:
    """Answers chunks of queries in a process of its own."""

    def __init__(self, plan: TruthPlan) -> None:
        self._plan = plan

    def __call__(self, job: Any, part: Any) -> Record:
        return answer_chunk(self._plan, *part)


def answer_chunk(plan: TruthPlan, start: int, stop: int) -> Record:
    """Answer and judge the queries from `start` to `stop` - 1; return the counts as a record."""
    began = time.process_time()
    families = (None,) if plan.loosen is None else LOOSENED[plan.loosen][0]
    verdicts: list[tuple[int, Verdict]] = []
    with nullcontext() if plan.loosen is None else loosened(plan.loosen, plan.factor):
        for number in range(start, stop):
            family = families[number % len(families)]
            try:
                verdict = judge(make_case(plan.seed, number, family))
            except Exception as error:  # nothing here deserves one
                place = traceback.extract_tb(error.__traceback__)[-1]
                said = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {error}"
                verdict = Verdict(family or "error", "error", "error", [said])
            verdicts.append((number, verdict))
    failing = [(number, v) for number, v in verdicts if v.false_proofs]
    risks: dict[tuple[str, float], list[int]] = {}
    for _, verdict in verdicts:
        if verdict.risk is not None:
            delta, is_false = verdict.risk
            counts = risks.setdefault((verdict.family, delta), [0, 0])
            counts[0] += 1
            counts[1] += is_false
    return {
        **plan.key,
        "start": start,
        "n": stop - start,
        "seconds": time.process_time() - began,
        "outcomes": [[*key, n] for key, n in Counter((v.family, v.outcome) for _, v in verdicts).items()],
        "solvers": [[*key, n] for key, n in Counter((v.solver, v.outcome) for _, v in verdicts).items()],
        "risks": [[*key, *counts] for key, counts in risks.items()],
        "levels": [[level, sum(v.false_delta <= level for _, v in verdicts)] for level in LEVELS],
        "n_answers": sum(v.has_answer for _, v in verdicts),
        "n_failures": len(failing),
        "n_false_proofs": sum(v.outcome != "error" for _, v in failing),
        "failures": [[number, v.family, f"{v.solver}: {v.false_proofs[0]}"] for number, v in failing[:5]],
    }


def run_truth(plan: TruthPlan, *, report: Callable[[str], None] | None = None) -> TruthSummary:
    """Answer and judge the queries of a plan, those on record left out.

    Raises
    ------
    BenchError
        When the folder holds a run of another seed.
    """
    say: Callable[[str], None] = report or (lambda _: None)
    summary = TruthSummary()
    with nullcontext() if plan.out is None else RecordFile(plan.out / FILE) as file:
        done = _records_of(plan, [] if file is None else file.records)
        for record in done.values():
            summary.add(record)
        starts = [start for start in range(0, plan.n_queries, CHUNK) if start not in done]
        parts = [(start, min(start + CHUNK, plan.n_queries)) for start in starts]
        for record in _answered(plan, parts):
            summary.add(record)
            if file is not None and record["seconds"]:  # a lost chunk is tried again by a run that resumes
                file.append(record)
            for number, family, text in record["failures"]:
                say(f"query {number} ({family}) {text}")
            say(f"{summary.n_queries:,} of {plan.n_queries:,} queries, {summary.n_failures:,} with failures")
    return summary


def _records_of(plan: TruthPlan, records: Iterable[Record]) -> dict[int, Record]:
    """Return the chunks of a plan that are on record, by their first query."""
    done: dict[int, Record] = {}
    for record in records:
        given = {name: record.get(name) for name in plan.key}
        if given != plan.key:
            raise BenchError(f"{plan.out} holds a run with {given}; another folder is needed for {plan.key}")
        if record["start"] + record["n"] <= plan.n_queries:
            done[record["start"]] = record
    return done


def _answered(plan: TruthPlan, parts: list[tuple[int, int]]) -> Iterator[Record]:
    """Yield the record of each chunk; a process that dies or takes too long fails all of its chunk."""
    pool = WorkerPool(plan.n_processes, _Answering, (plan,), part_limit=CHUNK_SECONDS)
    for outcome in pool.run([Job(None, [part]) for part in parts]):
        if outcome.record is not None:
            yield outcome.record
        else:
            start, stop = outcome.part
            reason = f"{(outcome.problem or '').strip().splitlines()[-1]} (limit {CHUNK_SECONDS:,.0f} s)"
            empty: Record = {
                "outcomes": [],
                "solvers": [],
                "risks": [],
                "levels": [],
                "n_answers": 0,
                "seconds": 0.0,
            }
            counts = {"n_failures": stop - start, "n_false_proofs": 0}
            yield {**plan.key, "start": start, "n": stop - start, **empty, **counts,
                   "failures": [[start, "error", f"the process {reason}"]]}  # fmt: skip


def truth_text(plan: TruthPlan, summary: TruthSummary) -> str:
    """Return the tables of a run as Markdown."""
    families = Table("families", "By family", ["family", "queries", *OUTCOMES, "no answer"])
    for family in FAMILIES:
        families.add(family, *_counts(summary.outcomes, family))
    solvers = Table("solvers", "By the solver that answered", ["solver", "queries", *OUTCOMES, "no answer"])
    for solver in sorted({name for name, outcome in summary.solvers if outcome in OUTCOMES}):
        solvers.add(solver, *_counts(summary.solvers, solver))
    head = [
        f"{summary.n_queries:,} queries of seed {plan.seed}, {summary.seconds:,.0f} s of CPU time. "
        f"**False claims among the certain ones: {summary.n_false_proofs}.** "
        f"Errors: {summary.n_failures - summary.n_false_proofs}.",
        "",
        f"{machine_line(describe_machine())}.",
        "",
    ]
    tables = (families, solvers, risk_table(summary), level_table(summary))
    return "\n".join([*head, *(table.to_markdown() for table in tables)])


def _counts(counter: Counter[tuple[str, str]], name: str) -> list[str]:
    """Return the cells of one row: all queries, those with each kind of certificate, and the others."""
    total = sum(n for (key, _), n in counter.items() if key == name)
    known = [counter[name, outcome] for outcome in OUTCOMES]
    return [f"{n:,}" for n in (total, *known, total - sum(known))]


def risk_table(summary: TruthSummary) -> Table:
    """Return how many answers have a false certificate that may be false, by family and failure probability."""
    header = ["family", "delta", "answers", "false", "share", "probability of so many, at most"]
    table = Table("risks", "Answers asked for at a failure probability delta", header)
    for family in summary.at_risk:
        own = {delta: counts for (name, delta), counts in summary.risks.items() if name == family}
        for delta, (n, n_false) in sorted(own.items()):
            tail = binomial_tail(n_false, n, delta)
            table.add(family, f"{delta:g}", f"{n:,}", f"{n_false:,}", f"{n_false / n:.4f}", f"{tail:.3g}")
        n, n_false = (sum(counts[i] for counts in own.values()) for i in (0, 1))
        chance = summary.chance_of(family)
        table.add(family, "all", f"{n:,}", f"{n_false:,}", f"{n_false / n:.4f}", f"{chance:.3g}")
    return table


def level_table(summary: TruthSummary) -> Table:
    """Return how often a pair of a Pareto front is false at a level."""
    header = ["level", "answers", "with a false pair of at most that delta", "probability of so many, at most"]
    table = Table("levels", "Pairs (epsilon, delta) of answers, certified or not", header)
    for level in LEVELS:
        n, n_false = summary.n_answers, summary.levels[level]
        table.add(f"{level:g}", f"{n:,}", f"{n_false:,}", f"{binomial_tail(n_false, n, level):.3g}")
    return table


def loosened_text(plan: TruthPlan, *, report: Callable[[str], None] | None = None) -> tuple[str, bool]:
    """Run a plan's queries with every formula loosened in turn; return a table, and whether each was found out."""
    header = [
        "formula",
        "queries",
        "false for certain",
        "may fail",
        "false",
        "probability of so many",
        "found out",
    ]
    title = f"Every formula looser by {plan.factor - 1.0:.0%}, one at a time"
    table = Table("loosened", title, header)
    all_found = True
    for name, (families, _) in LOOSENED.items():
        part = TruthPlan(plan.n_queries, plan.seed, plan.n_processes, None, name, plan.factor)
        summary = run_truth(part)
        n, n_false = (sum(c[i] for c in summary.risks.values()) for i in (0, 1))
        chance = min([1.0, *(summary.chance_of(family) for family in summary.at_risk)])
        found = not summary.holds
        all_found &= found
        cells = (name, f"{summary.n_queries:,}", f"{summary.n_false_proofs:,}", f"{n:,}", f"{n_false:,}")
        table.add(*cells, f"{chance:.3g}", "yes" if found else "**no**")
        if report is not None:
            report(f"{name}: {'found out' if found else 'NOT found out'} on {', '.join(families)}")
    return table.to_markdown(), all_found
