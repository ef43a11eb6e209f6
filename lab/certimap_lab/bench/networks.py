"""Queries on networks: is the answer as good as the best one known, is it proved, how large a gap is left?"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from certimap import __version__
from certimap.core.result import MapResult
from certimap.errors import CertimapError
from certimap_lab.bench.machine import describe_machine, peak_memory_mib, reset_peak_memory
from certimap_lab.bench.network_cases import NetworkCase, load_network
from certimap_lab.bench.peers import READING, PeerServer, installed_peers
from certimap_lab.bench.ranks import is_certified, kind_of
from certimap_lab.bench.records import BenchError, Record, RecordFile, read_records, to_plain, write_json
from certimap_lab.bench.trial import Method, TrialSettings, answer_fields
from certimap_lab.bench.workers import Job, Outcome, WorkerPool

NETWORK_TRIALS = "networks.jsonl"
SETTINGS = "networks.json"
ROUNDING_NATS = 1e-5  # rows of the files add to 1 only after rounding, and readers differ in how they mend that
CLOSED = (
    1e-8  # share of an answer's log, or of 100 nats, that a peer's bound may lose to the rounding of its costs
)
PEER = "peer:"  # before a peer's name where it stands among solvers
N_MOMENTS = 200  # entries kept of a run's history
Report = Callable[[str], None]


@dataclass(frozen=True)
class NetworkPlan:
    """What a run on networks covers.

    Attributes
    ----------
    cases
        The queries.
    out
        The folder of the records; None keeps them in memory alone.
    solvers
        Methods, as `Method.parse` reads them.
    peers
        Other libraries (`certimap_lab.bench.peers.PEERS`).
    n_processes
        Trials at once.
    overrun
        Seconds beyond twice the time limit after which a trial is given up.
    """

    cases: tuple[NetworkCase, ...]
    out: Path | None = None
    solvers: tuple[str, ...] = ("auto",)
    peers: tuple[str, ...] = ()
    n_processes: int = 1
    overrun: float = 60.0
    settings: TrialSettings = field(default_factory=TrialSettings)


class _Solving:
    """Answers cases in a process of its own; keeps the last network in memory."""

    def __init__(self, settings: TrialSettings) -> None:
        self._settings = settings
        self._loaded: tuple[str, Any] | None = None
        self._warm: set[tuple[str, bool]] = set()

    def __call__(self, job: Any, part: Any) -> Record:
        case: NetworkCase = job
        method = Method.parse(part)
        if self._loaded is None or self._loaded[0] != case.network:
            self._loaded = (case.network, load_network(case))
        model = self._loaded[1]
        kind = (part, case.query is None)
        if kind not in self._warm:  # compiled code is loaded before it counts
            self._warm.add(kind)
            limit = 1.0 if self._settings.time_limit is None else min(1.0, self._settings.time_limit)
            _answer(model, case, method, replace(self._settings, time_limit=limit))
        return _answer(model, case, method, self._settings)


def case_header(case: NetworkCase, solver: str, settings: TrialSettings) -> Record:
    """Return the fields that name a trial and say how to run it again."""
    return {
        "case": case.name,
        "network": case.network_name,
        "solver": solver,
        "query": case.query,
        "evidence": dict(case.evidence),
        "best_log_joint": case.best_log_joint,
        "proven_optimal": case.proven,
        "reference_seconds": case.reference_seconds,
        "requested_epsilon": settings.epsilon,
        "requested_delta": settings.delta,
        "time_limit": settings.time_limit,
        "rng": settings.seed,
        "version": __version__,
    }


def _answer(model: Any, case: NetworkCase, method: Method, settings: TrialSettings) -> Record:
    """Solve a case; the seconds include compiling the network."""
    from certimap.ask.api import map_query

    reset_peak_memory()
    started = time.perf_counter()
    try:
        result: MapResult = map_query(
            model,
            None if case.query is None else list(case.query),
            dict(case.evidence),
            **method.arguments(settings),
            rng=settings.seed,
        )
    except (CertimapError, MemoryError) as problem:
        outcome: Record = {"error": f"{type(problem).__name__}: {problem}"}
        seconds_solving = None
    else:
        outcome = answer_fields(result)
        outcome["log_joint_upper_bound"] = result.log_joint_upper_bound
        outcome["history"] = list(moments(result))
        seconds_solving = round(result.seconds, 6)
    outcome["seconds"] = round(time.perf_counter() - started, 6)
    outcome["seconds_solving"] = seconds_solving
    outcome["peak_memory_mib"] = round(peak_memory_mib(), 1)
    return outcome


def moments(result: MapResult) -> Iterator[tuple[float, float | None, float]]:
    """Yield (seconds, ln p(answer, e) so far, its upper bound) where one of the bounds has moved, in nats."""
    shift = result.log_evidence or 0.0
    last: tuple[float, float] | None = None
    kept: list[tuple[float, float | None, float]] = []
    for entry in result.history:
        bounds = (entry.log_prob + shift, entry.log_upper_bound + shift)
        if bounds != last and bounds[1] != float("inf"):
            last = bounds
            kept.append((round(entry.seconds, 4), bounds[0] if bounds[0] > float("-inf") else None, bounds[1]))
    step = max(1, -(-len(kept) // N_MOMENTS))
    yield from kept[:-1:step]
    yield from kept[-1:]


def run_networks(
    plan: NetworkPlan, *, command: str = "", report: Callable[[str], None] | None = None
) -> list[Record]:
    """Run solvers and peers on the cases of a plan; return the records, those of before too.

    Raises
    ------
    BenchError
        When a solver or peer is unknown, nothing is to be done, or the folder holds a run with other settings.
    """
    say: Report = report or (lambda _: None)
    for solver in plan.solvers:
        Method.parse(solver)
    peers, missing = installed_peers(plan.peers)
    for sentence in missing:
        say(sentence)
    if not plan.cases:
        raise BenchError("there is no case to run; at least one is needed")
    file = None if plan.out is None else _open(plan, plan.out, command, missing)
    records: list[Record] = [] if file is None else file.records
    done = {(r["case"], r["solver"]) for r in records}
    stages = [(_solving_pool(plan), plan.solvers, "")]
    stages += [(_peer_pool(plan), (peer,), PEER) for peer in peers]  # no peer shares a process with another
    try:
        for pool, names, prefix in stages:
            jobs = [Job(c, [n for n in names if (c.name, prefix + n) not in done]) for c in plan.cases]
            for outcome in pool.run(jobs):
                record = _record(outcome, prefix, plan.settings)
                if file is None:
                    records.append(to_plain(record))
                else:
                    file.append(record)
                say(f"{record['case']} {record['solver']}: {_outcome(records[-1])}")
    finally:
        if file is not None:
            file.close()
    return records


def _solving_pool(plan: NetworkPlan) -> WorkerPool:
    limit = plan.settings.time_limit
    return WorkerPool(
        plan.n_processes,
        _Solving,
        (plan.settings,),
        n_threads=plan.settings.workers,
        part_limit=None if limit is None else 2 * limit + plan.overrun,
    )


def _peer_pool(plan: NetworkPlan) -> WorkerPool:
    settings = plan.settings
    memory = None if settings.max_memory is None else settings.max_memory * 2**20
    return WorkerPool(
        plan.n_processes,
        PeerServer,
        (memory, settings.time_limit),
        n_threads=settings.workers,
        part_limit=None if settings.time_limit is None else settings.time_limit + READING,
        replace_after=lambda record: "error" in record,  # what failed for want of memory may still hold some
    )


def _record(outcome: Outcome, prefix: str, settings: TrialSettings) -> Record:
    """Return the whole record of a trial, measured or lost."""
    case: NetworkCase = outcome.payload
    record = case_header(case, prefix + outcome.part, settings) | (outcome.record or {"error": outcome.problem})
    value = record.get("log_joint")
    if value is not None and case.best_log_joint is not None:
        record["above_best"] = value - case.best_log_joint
    return record


def _open(plan: NetworkPlan, out: Path, command: str, missing: list[str]) -> RecordFile:
    """Open the records of a run, or go on with those of one with the same settings."""
    settings = asdict(plan.settings)
    del settings["evidence"]  # the cases have their own
    kept = _about(out)
    for name, value in kept.get("settings", {}).items():
        if name in settings and settings[name] != value:
            raise BenchError(
                f"{out} was begun with {name} = {value}, now it is {settings[name]}; resume with the same "
                "settings or name another folder"
            )
    about = {
        "settings": settings,
        "machine": describe_machine(),
        "version": __version__,
        "calls": [*kept.get("calls", []), {"command": command}],
        "missing": missing,
    }
    write_json(out / SETTINGS, about)
    return RecordFile(out / NETWORK_TRIALS)


def _about(out: Path) -> Record:
    """Return how the run in a folder was made; nothing where there is none."""
    path = out / SETTINGS
    if not path.is_file() or not read_records(out / NETWORK_TRIALS):
        return {}
    return json.loads(path.read_text())


def standing(record: Record) -> str:
    """Return how an answer compares with the best one known: best, better, below; none without an answer."""
    if record.get("log_joint") is None:
        return "none"
    above = record.get("above_best")
    if above is None or abs(above) <= ROUNDING_NATS:
        return "best"
    return "better" if above > 0 else "below"


def gap_of(record: Record) -> float | None:
    """Return by how much the upper bound exceeds the answer, in nats; None where one of them is missing."""
    value, upper = record.get("log_joint"), record.get("log_joint_upper_bound")
    if value is None or upper is None:
        return None
    return 0.0 if kind_of(record) == "exact" else max(0.0, upper - value)


def is_proved(record: Record) -> bool:
    """Whether the answer was proved to be the best; for a peer, by its own account or its bound."""
    if record["solver"].startswith(PEER):
        gap = gap_of(record)
        closed = gap is not None and gap <= CLOSED * max(100.0, abs(record["log_joint"]))
        return bool(record.get("peer_proves")) or closed
    return kind_of(record) == "exact"


def _outcome(record: Record) -> str:
    if "error" in record:
        return str(record["error"]).strip().splitlines()[-1]
    gap = gap_of(record)
    shown = "proved" if is_proved(record) else "open" if gap is None else f"gap {gap:.3g}"
    known = f"{standing(record)}, " if record["best_log_joint"] is not None else ""
    return f"{known}{shown}, {record['seconds']:.3f} s"


def network_summary(records: Sequence[Record]) -> str:
    """Return the counts as one line."""
    standings = [standing(r) for r in records]
    certified = sum(is_certified(r) for r in records)
    return (
        f"{len(records)} trials: {standings.count('best')} equal the best known, "
        f"{standings.count('better')} better, "
        f"{standings.count('below')} below, {standings.count('none')} without an answer; {certified} certified"
    )
