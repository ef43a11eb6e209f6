"""The Twenty Datasets benchmark: learn circuits, run every solver on the same queries, record every trial."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from certimap import __version__
from certimap_lab.bench.machine import describe_machine
from certimap_lab.bench.models import CircuitKind, ensure_model, known_model
from certimap_lab.bench.protocol import Split
from certimap_lab.bench.records import BenchError, Record, RecordFile, to_plain, write_json
from certimap_lab.bench.trial import Method, Task, TrialRunner, TrialSettings, describe, record_key
from certimap_lab.bench.workers import Job, Outcome, WorkerPool

TRIALS = "trials.jsonl"
ABOUT = "run.json"
CIRCUITS = "circuits.json"
SPLITS = ("20/80", "50/50", "20/50", "50/30")
SOLVERS = ("independent", "max_product", "argmax_product", "pac", "smooth_pac", "auto")


@dataclass(frozen=True)
class Plan:
    """What a benchmark run covers.

    Attributes
    ----------
    run
        The folder that gets `trials.jsonl`, `run.json`, `circuits.json` and `models/`.
    models
        The folder of learned models, to share them between runs; `run/models` when None.
    data_dir
        The folder of the datasets; None stands for the environment variable CERTIMAP_DATA.
    n_queries
        Queries a dataset and split.
    n_processes
        Trials at once; each has `settings.workers` threads.
    answers
        A file of other programs' answers (see `certimap_lab.bench.answers`), recorded beside the trials.
    overrun
        Seconds beyond twice the time limit after which a trial is given up as overrun.
    """

    run: Path
    data_dir: str | None
    datasets: tuple[str, ...]
    circuits: tuple[str, ...] = ("learnspn",)
    splits: tuple[str, ...] = SPLITS
    solvers: tuple[str, ...] = SOLVERS
    n_queries: int = 10
    n_processes: int = 1
    overrun: float = 60.0
    models: Path | None = None
    answers: Path | None = None
    settings: TrialSettings = field(default_factory=TrialSettings)

    @property
    def model_dir(self) -> Path:
        return self.models or self.run / "models"

    def check(self) -> None:
        """Raise BenchError, naming the value, unless everything named exists."""
        from certimap.errors import CertimapError

        for name, values in (("datasets", self.datasets), ("circuits", self.circuits), ("solvers", self.solvers)):
            if not values:
                raise BenchError(f"no {name} are named; at least one is needed")
            if len(set(values)) != len(values):
                raise BenchError(f"the {name} {', '.join(values)} hold one twice; name each once")
        if self.answers is not None:
            from certimap_lab.bench.answers import read_answers

            read_answers(self.answers)
        if self.n_queries < 1 or self.n_processes < 1 or self.settings.workers < 1:
            raise BenchError("queries, jobs and workers are counts; expected 1 or more")
        for text in self.circuits:
            CircuitKind.parse(text)
        for text in self.splits:
            Split.parse(text)
        try:
            for text in self.solvers:
                Method.parse(text)
        except CertimapError as problem:
            raise BenchError(str(problem)) from None

    @property
    def n_trials(self) -> int:
        return len(self.datasets) * len(self.circuits) * len(self.splits) * self.n_queries * len(self.solvers)


Report = Callable[[str], None]


class _Learning:
    """Learns models in a process of its own."""

    def __init__(self, folder: Path, data_dir: str | None, seed: int) -> None:
        self._arguments = (folder, data_dir)
        self._seed = seed

    def __call__(self, job: Any, part: Any) -> Record:
        folder, data_dir = self._arguments
        return ensure_model(folder, data_dir, job, part, self._seed)


class _Solving:
    """Runs trials in a process of its own."""

    def __init__(self, models: Path, settings: TrialSettings, data_dir: str | None) -> None:
        self._runner = TrialRunner(models, settings, data_dir)

    def __call__(self, job: Any, part: Any) -> Record:
        return self._runner.trial(job, part)


def run_twenty(
    plan: Plan, *, command: str = "", report: Report | None = None, executor: Executor | None = None
) -> Record:
    """Run the benchmark, or go on where a stopped one left off.

    Every finished trial of the run's file is kept and skipped. Returns the counts of `summarize` over the
    trials of this plan. With an executor its workers run the trials, with the same answers and certificates for
    any number of them; they must see the folders of models and data. Models are learned here in any case.

    Raises
    ------
    BenchError
        When the plan names something unknown, or the run was begun with other settings.
    """
    plan.check()
    say: Report = report or (lambda _: None)
    _open_run(plan, command)
    learned = _learn(plan, say)
    started = time.perf_counter()
    with RecordFile(plan.run / TRIALS) as file:
        done = {record_key(r) for r in file.records if r.get("error") != "interrupted"}
        tasks = [task for task in _tasks(plan, learned) if task.methods]
        jobs = [Job(t, [m for m in t.methods if t.key(m) not in done]) for t in tasks]
        n_left = sum(len(job.parts) for job in jobs)
        if n_left:
            say(f"{n_left} trials to run, {sum(len(t.methods) for t in tasks) - n_left} done before")
        for count, outcome in enumerate(_outcomes(plan, jobs, executor), start=1):
            record = _recorded(outcome.payload, outcome.part, outcome.record, outcome.problem, plan)
            file.append(record)
            name = "{circuit} {dataset} {split} #{query} {solver}".format(**record)
            say(f"[{count}/{n_left}] {name}: {describe(record)}")
        for record in _entered(plan):
            if record_key(record) not in done:
                file.append(record)
        wanted = {t.key(m) for t in tasks for m in t.methods}
        summary = summarize([r for r in file.records if record_key(r) in wanted])
    summary["n_missing"] = plan.n_trials - summary["n_trials"]
    summary["seconds_of_this_call"] = round(time.perf_counter() - started, 1)
    return summary


def _outcomes(plan: Plan, jobs: Sequence[Job], executor: Executor | None) -> Iterator[Outcome]:
    """Run trials, in processes of this machine or by the workers of an executor."""
    shared = (plan.model_dir, plan.settings, plan.data_dir)
    if executor is not None:
        from certimap_lab.bench.spread_trials import Trials, run_spread

        return run_spread(executor, Trials(*shared), jobs)
    limit = plan.settings.time_limit
    pool = WorkerPool(
        plan.n_processes,
        _Solving,
        shared,
        n_threads=plan.settings.workers,
        part_limit=None if limit is None else 2 * limit + plan.overrun,
    )
    return pool.run(jobs)


def _entered(plan: Plan) -> Iterator[Record]:
    """Yield the records of other programs' answers."""
    if plan.answers is not None:
        from certimap_lab.bench.answers import score_answers

        yield from score_answers(plan.answers, TrialRunner(plan.model_dir, plan.settings, plan.data_dir))


def _recorded(task: Task, method: str, record: Record | None, problem: str | None, plan: Plan) -> Record:
    """Return the record of a part, made up from its name where it was lost."""
    if record is not None:
        return record
    lost = task.header(method) | {"error": problem, "seed": plan.settings.seed, "version": __version__}
    if problem == "overran":
        limit = plan.settings.time_limit or 0.0
        lost |= {"status": "time_limit", "seconds_conditioning": 0.0, "seconds_solving": 2 * limit + plan.overrun}
    return lost


def _tasks(plan: Plan, learned: set[tuple[str, str]]) -> Iterator[Task]:
    """Yield the queries of a plan, those of one model together."""
    for circuit in plan.circuits:
        for dataset in plan.datasets:
            if (dataset, circuit) not in learned:
                continue
            for split in plan.splits:
                for index in range(plan.n_queries):
                    yield Task(dataset, circuit, Split.parse(split), index, plan.solvers)


def _learn(plan: Plan, say: Report) -> set[tuple[str, str]]:
    """Learn what the run lacks; return the (dataset, circuit) pairs that there are."""
    jobs = [Job(dataset, [circuit]) for circuit in plan.circuits for dataset in plan.datasets]
    found = {(j.payload, j.parts[0]): known_model(plan.model_dir, j.payload, j.parts[0]) for j in jobs}
    learned = {place: record for place, record in found.items() if record is not None}
    missing = [j for j in jobs if (j.payload, j.parts[0]) not in learned]
    pool = WorkerPool(plan.n_processes, _Learning, (plan.model_dir, plan.data_dir, plan.settings.seed))
    for outcome in pool.run(missing):
        place = f"{outcome.part} on {outcome.payload}"
        if outcome.record is None:
            say(f"could not learn {place}: {(outcome.problem or '').strip().splitlines()[-1]}")
            continue
        learned[outcome.payload, outcome.part] = r = outcome.record
        say(f"learned {place}: {r['n_edges']} edges, test {r['test_log_likelihood']:.3f} nats, "
            f"{r['seconds_learning']:.1f} s")  # fmt: skip
    if not learned:
        raise BenchError(
            f"no model could be learned from {plan.data_dir or 'CERTIMAP_DATA'}; see the reasons above"
        )
    path = plan.run / CIRCUITS
    kept: list[Record] = json.loads(path.read_text()) if path.is_file() else []
    others = [m for m in kept if (m["dataset"], m["circuit"]) not in learned]
    write_json(path, [*others, *learned.values()])
    return set(learned)


def _open_run(plan: Plan, command: str) -> None:
    """Write down settings and machine, or check that a run begun before had the same settings."""
    path = plan.run / ABOUT
    settings = to_plain(asdict(plan.settings))
    call = {"command": command, "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "jobs": plan.n_processes}
    if not path.is_file():
        about = {"settings": settings, "machine": describe_machine(), "version": __version__, "calls": [call]}
        write_json(path, about)
        return
    about = json.loads(path.read_text())
    begun = asdict(TrialSettings()) | about["settings"]  # a run may be older than a setting
    for name, value in settings.items():
        if begun[name] != value:
            raise BenchError(
                f"{plan.run} was begun with {name} = {begun[name]}, now it is {value}; "
                "resume with the same settings or name another folder"
            )
    about["calls"].append(call)
    write_json(path, about)


def summarize(records: Sequence[Record]) -> Record:
    """Count trials by how they ended."""
    kinds = [r["certificate"]["kind"] for r in records if "certificate" in r]
    statuses = [r.get("status") for r in records if r.get("certificate", {}).get("kind") == "none"]
    n_heuristic = sum(s == "heuristic" for s in statuses)
    return {
        "n_trials": len(records),
        "n_exact": kinds.count("exact"),
        "n_epsilon": kinds.count("epsilon"),
        "n_pac": kinds.count("pac"),
        "n_heuristic": n_heuristic,
        "n_limited": len(statuses) - n_heuristic,
        "n_failed": sum("error" in r for r in records),
        "seconds_of_trials": round(
            sum(r.get("seconds_conditioning", 0.0) + r.get("seconds_solving", 0.0) for r in records), 1
        ),
    }


def summary_line(summary: Record) -> str:
    """Return the counts of `summarize` as one line."""
    certified = summary["n_exact"] + summary["n_epsilon"] + summary["n_pac"]
    missing = f", {summary['n_missing']} missing" if summary.get("n_missing") else ""
    return (
        f"{summary['n_trials']} trials: {certified} certified ({summary['n_exact']} exact, {summary['n_epsilon']} "
        f"epsilon, {summary['n_pac']} pac), {summary['n_heuristic']} heuristic answers, {summary['n_limited']} "
        f"stopped by a limit, {summary['n_failed']} failed{missing}; {summary['seconds_of_trials']} s of trials"
    )
