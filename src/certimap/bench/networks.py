"""Queries on Bayesian networks with known best answers: is the answer as good, and is it certified?"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from certimap import __version__
from certimap.bench.machine import describe_machine, peak_memory_mib, reset_peak_memory
from certimap.bench.ranks import in_order, is_certified, kind_of
from certimap.bench.records import BenchError, Record, RecordFile, to_plain, write_json
from certimap.bench.tabular import MISSING, Cell, Table, number, significant
from certimap.bench.trial import Method, TrialSettings, answer_fields
from certimap.bench.workers import Job, WorkerPool
from certimap.errors import CertimapError
from certimap.result import MapResult

NETWORK_TRIALS = "networks.jsonl"
CASES = "cases.json"
SETTINGS = "networks.json"
ROUNDING_NATS = 1e-6  # rows of the files add to 1 only after rounding, and readers differ in how they mend that


@dataclass(frozen=True)
class NetworkPlan:
    """What a run on networks covers; `cases` are names of cases or of networks, all when empty.

    `out` None keeps the records in memory alone.
    """

    data_dir: Path
    out: Path | None = None
    solvers: tuple[str, ...] = ("auto",)
    cases: tuple[str, ...] = ()
    n_processes: int = 1
    overrun: float = 60.0
    settings: TrialSettings = field(default_factory=TrialSettings)


class _Solving:
    """Answers cases in a process of its own; keeps the last network in memory."""

    def __init__(self, data_dir: Path, settings: TrialSettings) -> None:
        self._data_dir = data_dir
        self._settings = settings
        self._loaded: tuple[str, Any] | None = None
        self._warm: set[str] = set()

    def __call__(self, job: Any, part: Any) -> Record:
        case, method = job, Method.parse(part)
        model = self._network(case["network"])
        if part not in self._warm:
            self._warm.add(part)
            _answer(model, case, method, self._settings)  # loads compiled code; not recorded
        return case_header(case, part, self._settings) | _answer(model, case, method, self._settings)

    def _network(self, name: str) -> Any:
        if self._loaded is None or self._loaded[0] != name:
            from certimap import io

            self._loaded = (name, io.read(_network_path(self._data_dir, name)))
        return self._loaded[1]


def _network_path(folder: Path, name: str) -> Path:
    for suffix in (".bif.gz", ".bif"):
        if (folder / f"{name}{suffix}").is_file():
            return folder / f"{name}{suffix}"
    raise BenchError(f"{folder} has no {name}.bif or {name}.bif.gz")


def case_header(case: Record, solver: str, settings: TrialSettings) -> Record:
    """Return the fields that name a trial and say how to run it again."""
    return {
        "case": case["id"],
        "network": case["network"],
        "task": case["task"],
        "solver": solver,
        "query": case["query"],
        "evidence": case["evidence"],
        "best_log_joint": case["best_log_prob"],
        "proven_optimal": case["proven_optimal"],
        "requested_epsilon": settings.epsilon,
        "requested_delta": settings.delta,
        "rng": settings.seed,
        "version": __version__,
    }


def _answer(model: Any, case: Record, method: Method, settings: TrialSettings) -> Record:
    """Solve a case; the seconds include compiling the network."""
    from certimap.api import map_query

    reset_peak_memory()
    started = time.perf_counter()
    try:
        result: MapResult = map_query(
            model,
            cast("list[str]", case["query"]),
            cast("dict[str, str]", case["evidence"]),
            **method.arguments(settings),
            rng=settings.seed,
        )
    except (CertimapError, MemoryError) as problem:
        outcome: Record = {"error": f"{type(problem).__name__}: {problem}"}
        seconds_solving = None
    else:
        outcome = answer_fields(result)
        seconds_solving = round(result.seconds, 6)
        if result.log_joint is not None:
            outcome["above_best"] = result.log_joint - case["best_log_prob"]
            known = case.get("best_assignment", {})
            outcome["same_answer"] = {k: str(v) for k, v in result.assignment.items()} == {
                k: str(v) for k, v in known.items()
            }
    outcome["seconds"] = round(time.perf_counter() - started, 6)
    outcome["seconds_solving"] = seconds_solving
    outcome["peak_memory_mib"] = round(peak_memory_mib(), 1)
    return outcome


def run_networks(
    plan: NetworkPlan, *, command: str = "", report: Callable[[str], None] | None = None
) -> list[Record]:
    """Run solvers on the cases of `cases.json` beside the networks; return the records, those of before too.

    Raises
    ------
    BenchError
        When the folder has no `cases.json`, or a case or solver is unknown.
    """
    say: Callable[[str], None] = report or (lambda _: None)
    cases = _chosen_cases(plan)
    for solver in plan.solvers:
        Method.parse(solver)
    file = None if plan.out is None else _open(plan, plan.out, command)
    records: list[Record] = [] if file is None else file.records
    done = {(r["case"], r["solver"]) for r in records}
    jobs = [Job(case, [s for s in plan.solvers if (case["id"], s) not in done]) for case in cases]
    limit = plan.settings.time_limit
    pool = WorkerPool(
        plan.n_processes,
        _Solving,
        (plan.data_dir, plan.settings),
        n_threads=plan.settings.workers,
        part_limit=None if limit is None else 4 * limit + plan.overrun,
    )
    try:
        for outcome in pool.run(jobs):
            record = outcome.record
            if record is None:
                record = case_header(outcome.payload, outcome.part, plan.settings) | {"error": outcome.problem}
            if file is None:
                records.append(to_plain(record))
            else:
                file.append(record)
            say(f"{record['case']} {record['solver']}: {_outcome(records[-1])}")
    finally:
        if file is not None:
            file.close()
    return records


def _open(plan: NetworkPlan, out: Path, command: str) -> RecordFile:
    about = {
        "settings": asdict(plan.settings),
        "machine": describe_machine(),
        "version": __version__,
        "command": command,
    }
    write_json(out / SETTINGS, about)
    return RecordFile(out / NETWORK_TRIALS)


def _chosen_cases(plan: NetworkPlan) -> list[Record]:
    path = plan.data_dir / CASES
    if not path.is_file():
        raise BenchError(f"{plan.data_dir} has no {CASES}; a folder with it and the networks it names is accepted")
    cases: list[Record] = json.loads(path.read_text())["cases"]
    for name in plan.cases:
        if not any(name in (c["id"], c["network"]) for c in cases):
            raise BenchError(f"{name!r} is no case of {path} and no network of one")
    return [c for c in cases if not plan.cases or c["id"] in plan.cases or c["network"] in plan.cases]


def standing(record: Record) -> str:
    """Return how an answer compares with the best one known: best, better, below or none."""
    above = record.get("above_best")
    if above is None:
        return "none"
    if record.get("same_answer") or abs(above) <= ROUNDING_NATS:
        return "best"
    return "better" if above > 0 else "below"


def _outcome(record: Record) -> str:
    if "error" in record:
        return str(record["error"]).strip().splitlines()[-1]
    return f"{standing(record)}, {kind_of(record)}, {record['seconds']:.3f} s"


def network_summary(records: Sequence[Record]) -> str:
    """Return the counts as one line."""
    standings = [standing(r) for r in records]
    certified = sum(is_certified(r) for r in records)
    return (
        f"{len(records)} trials: {standings.count('best')} equal the best known, "
        f"{standings.count('better')} better, "
        f"{standings.count('below')} below, {standings.count('none')} without an answer; {certified} certified"
    )


def network_tables(records: Sequence[Record]) -> list[Table]:
    """Return the table of cases and a summary per method; none without records."""
    if not records:
        return []
    return [_summary_table(records), _case_table(records)]


def _summary_table(records: Sequence[Record]) -> Table:
    table = Table(
        "networks-summary",
        "Bayesian networks: answers beside the best known",
        (
            "method",
            "cases",
            "best",
            "better",
            "below",
            "no answer",
            "exact",
            "epsilon",
            "pac",
            "median s",
            "worst s",
        ),
    )
    for solver in in_order(r["solver"] for r in records):
        mine = [r for r in records if r["solver"] == solver]
        standings, kinds = [standing(r) for r in mine], [kind_of(r) for r in mine]
        seconds = sorted(r["seconds"] for r in mine if "seconds" in r and "error" not in r)
        table.add(
            solver,
            str(len(mine)),
            *(str(standings.count(s)) for s in ("best", "better", "below", "none")),
            *(str(kinds.count(k)) for k in ("exact", "epsilon", "pac")),
            significant(seconds[len(seconds) // 2] if seconds else None),
            significant(seconds[-1] if seconds else None),
        )
    table.notes.append("Seconds from the query to the answer, compiling the network included.")
    return table


def _case_table(records: Sequence[Record]) -> Table:
    solvers = in_order(r["solver"] for r in records)
    table = Table("networks", "Bayesian networks, case by case", ("case", "query", "best ln p(q, e)", *solvers))
    cases: dict[str, dict[str, Record]] = {}
    for r in records:
        cases.setdefault(r["case"], {})[r["solver"]] = r
    for name, by_solver in cases.items():
        first = next(iter(by_solver.values()))
        row: list[Cell | str] = [name, str(len(first["query"])), number(first["best_log_joint"], 4)]
        row += [_case_cell(by_solver.get(s)) for s in solvers]
        table.add(*row)
    table.notes.append(
        "Standing against the best known answer (best: the same one, or within 1e-6 nats of it), how it was "
        "certified, seconds."
    )
    return table


def _case_cell(record: Record | None) -> Cell:
    if record is None:
        return Cell(MISSING)
    if "error" in record:
        refused = record["error"].startswith("SolverError")
        return Cell("refused" if refused else "failed", underline=kind_of(record) == "limit")
    text = f"{standing(record)}, {kind_of(record)}, {significant(record['seconds'])}"
    return Cell(text, bold=standing(record) in ("best", "better"), underline=kind_of(record) == "limit")
