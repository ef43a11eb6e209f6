"""One trial: one solver on one query, measured and turned into a record."""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from certimap import __version__
from certimap.core.result import CertificateKind, MapResult
from certimap.errors import CertimapError
from certimap_lab.bench.machine import peak_memory_mib, reset_peak_memory
from certimap_lab.bench.models import load_model
from certimap_lab.bench.protocol import BenchQuery, Split, condition_on, draw_query, solver_seed
from certimap_lab.bench.records import BenchError, Record

N_PARETO = 64  # pairs kept of a Pareto front


@dataclass(frozen=True)
class TrialSettings:
    """What all trials of a run share.

    `time_limit` is in seconds and on solving alone; `workers` counts the threads of a trial and
    `max_memory` is in MiB. `evidence` is "random" for uniform evidence and "rows" for that of test rows.
    """

    epsilon: float = 0.01
    delta: float = 0.01
    max_samples: int | None = 2_500_000
    time_limit: float | None = 60.0
    max_memory: int | None = 4096
    workers: int = 1
    seed: int = 0
    evidence: Literal["random", "rows"] = "random"


@dataclass(frozen=True)
class Method:
    """A solver of the benchmark: a warm start in "smooth_pac+argmax_product", settings in "wmb:i_bound=5"."""

    name: str
    solver: str
    warm_start: str | None
    options: tuple[tuple[str, int], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Method:
        """Read SOLVER[:KEY=NUMBER...][+HEURISTIC] and check the names; raise BenchError for unknown ones."""
        first, _, warm = text.strip().partition("+")
        solver, *settings = first.split(":")
        if not solver or text.strip().endswith("+"):
            raise BenchError(f"{text!r} is no method; expected SOLVER or SOLVER+HEURISTIC")
        options = tuple(_setting(setting, text) for setting in settings)
        _check_solver(solver, text, dict(options))
        if warm:
            _check_solver(warm, text, {})
        return cls(text.strip(), solver, warm or None, options)

    def arguments(self, settings: TrialSettings) -> dict[str, Any]:
        """Return what `map_query` is told, but for the query and the seed."""
        return {
            "epsilon": settings.epsilon,
            "delta": settings.delta,
            "solver": self.solver,
            "warm_start": self.warm_start,
            "time_limit": settings.time_limit,
            "max_samples": settings.max_samples,
            "max_memory": None if settings.max_memory is None else settings.max_memory * 2**20,
            "workers": settings.workers,
            "progress": False,
            **dict(self.options),
        }


def _setting(setting: str, text: str) -> tuple[str, int]:
    key, _, value = setting.partition("=")
    if not value.isdigit():
        raise BenchError(f"{setting!r} in {text!r} is no setting; expected KEY=WHOLE-NUMBER")
    return key, int(value)


def _check_solver(name: str, text: str, options: dict[str, int]) -> None:
    from certimap.solvers.registry import make

    if name == "auto" and not options:
        return
    try:
        make(name, **options)
    except CertimapError as problem:
        raise BenchError(f"{text!r} cannot be run: {problem}") from None


@dataclass(frozen=True)
class Task:
    """A query and the methods still to be run on it."""

    dataset: str
    circuit: str
    split: Split
    index: int
    methods: tuple[str, ...]

    def key(self, method: str) -> tuple[str, str, str, int, str]:
        """Return the identity of a trial inside a run."""
        return (self.circuit, self.dataset, self.split.name, self.index, method)

    def header(self, method: str) -> Record:
        """Return the fields that name a trial."""
        names = ("circuit", "dataset", "split", "query", "solver")
        return dict(zip(names, self.key(method), strict=True))


def record_key(record: Record) -> tuple[str, str, str, int, str]:
    """Return the identity of a recorded trial inside its run."""
    return record["circuit"], record["dataset"], record["split"], record["query"], record["solver"]


def run_trial(model: Any, query: BenchQuery, method: Method, settings: TrialSettings, rng: int) -> Record:
    """Condition afresh, solve, and return the measured part of a trial's record.

    Every method conditions for itself, so that none profits from what another left in a cache. An
    error of the library becomes the field `error`; the answer's fields are absent then.
    """
    from certimap.ask.api import map_query
    from certimap.solvers.registry import wants_of

    reset_peak_memory()
    started = time.perf_counter()
    conditioned = started
    try:
        wants = wants_of(method.solver, method.warm_start)
        posterior = condition_on(model, query.on(model.domain), settings.workers, wants)
        conditioned = time.perf_counter()
        result: MapResult = map_query(posterior, None, None, **method.arguments(settings), rng=rng)
    except (CertimapError, MemoryError) as problem:
        outcome: Record = {"error": f"{type(problem).__name__}: {problem}"}
    else:
        outcome = answer_fields(result)
        outcome["n_edges"] = int(posterior.facts.work)
    ended = time.perf_counter()
    return outcome | {
        "seconds_conditioning": round(conditioned - started, 6),
        "seconds_solving": round(ended - conditioned, 6),
        "peak_memory_mib": round(peak_memory_mib(), 1),
    }


def answer_fields(result: MapResult) -> Record:
    """Return what a record keeps of a result: the answer, its bounds, its certificate and its effort."""
    certificate = result.certificate
    fields: Record = {
        "assignment": list(result.assignment.values()),
        "log_prob": result.log_prob,
        "log_upper_bound": result.log_upper_bound,
        "log_evidence": result.log_evidence,
        "log_joint": result.log_joint,
        "certificate": {
            "kind": certificate.kind.value,
            "epsilon": certificate.epsilon,
            "delta": certificate.delta,
            "rule": None if certificate.rule is None else certificate.rule.value,
            "assumptions": list(certificate.assumptions),
        },
        "status": result.status.value,
        "n_draws": result.n_draws,
        "n_draws_to_best": result.n_draws_to_best,
        "n_evaluations": result.n_evaluations,
        "engine": result.solver,
    }
    if result.history:
        fields["seconds_to_best"] = _seconds_to_best(result)
        fields["log_open_mass"] = result.history[-1].log_open_mass
    if certificate.kind is CertificateKind.NONE:
        fields["pareto"] = _thin(result.pareto, N_PARETO)
        if result.log_prob is not None and result.log_upper_bound is not None:
            fields["gap"] = result.log_upper_bound - result.log_prob
    return fields


def _seconds_to_best(result: MapResult) -> float:
    """Return when the answer was found, by the history (coarse)."""
    best = result.history[-1].log_prob
    return next(entry.seconds for entry in result.history if entry.log_prob >= best)


def _thin(pairs: list[tuple[float, float]], limit: int) -> list[tuple[float, float]]:
    if len(pairs) <= limit:
        return list(pairs)
    step = (len(pairs) - 1) / (limit - 1)
    return [pairs[round(i * step)] for i in range(limit)]


class TrialRunner:
    """Runs tasks in one process; keeps the model of the last one in memory.

    Before its first timed trial of a method and circuit it runs the method once for at most a second, so
    that loading compiled code is not measured.
    """

    def __init__(self, models: Path, settings: TrialSettings, data_dir: str | None = None) -> None:
        self.models = models
        self.settings = settings
        self.data_dir = data_dir
        self._model: tuple[str, str, Any] | None = None
        self._query: tuple[Any, BenchQuery] | None = None
        self._warm: set[tuple[str, str]] = set()

    def model(self, dataset: str, circuit: str) -> Any:
        if self._model is None or self._model[:2] != (dataset, circuit):
            self._model = (dataset, circuit, load_model(self.models, dataset, circuit))
        return self._model[2]

    def query(self, task: Task) -> BenchQuery:
        place = (task.circuit, task.dataset, task.split, task.index)
        if self._query is None or self._query[0] != place:
            model = self.model(task.dataset, task.circuit)
            rows = self._test_rows(task.dataset) if self.settings.evidence == "rows" else None
            query = draw_query(model, self.settings.seed, task.dataset, task.split, task.index, rows)
            self._query = (place, query)
        return self._query[1]

    def _test_rows(self, dataset: str) -> NDArray[np.integer]:
        from certimap.learn import datasets

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", datasets.StandInWarning)
            return np.asarray(datasets.load(dataset, self.data_dir).test)

    def warm_up(self, task: Task, method: Method) -> None:
        """Run a method briefly and unrecorded, once a circuit kind."""
        if (task.circuit, method.name) in self._warm:
            return
        self._warm.add((task.circuit, method.name))
        limit = 1.0 if self.settings.time_limit is None else min(1.0, self.settings.time_limit)
        brief = replace(self.settings, time_limit=limit)
        run_trial(self.model(task.dataset, task.circuit), self.query(task), method, brief, 0)

    def trial(self, task: Task, name: str) -> Record:
        """Run one method of a task and return the whole record."""
        method = Method.parse(name)
        query = self.query(task)
        self.warm_up(task, method)
        model = self.model(task.dataset, task.circuit)
        rng = solver_seed(self.settings.seed, task.dataset, task.split, task.index)
        record = task.header(name) | query.to_record(model.domain) | self.shared(rng)
        return record | run_trial(model, query, method, self.settings, rng)

    def shared(self, rng: int) -> Record:
        """Return the fields that say how to run the trial again."""
        s = self.settings
        return {
            "seed": s.seed,
            "rng": rng,
            "requested_epsilon": s.epsilon,
            "requested_delta": s.delta,
            "max_samples": s.max_samples,
            "time_limit": s.time_limit,
            "max_memory": s.max_memory,
            "workers": s.workers,
            "version": __version__,
        }


def replay(models: Path, record: Record) -> Record:
    """Run a recorded trial again, on the model kept in a folder, and return the new measurements.

    Where no time limit ended the trial, answer, bounds and certificate come out the same.
    """
    settings = TrialSettings(
        epsilon=record["requested_epsilon"],
        delta=record["requested_delta"],
        max_samples=record["max_samples"],
        time_limit=record["time_limit"],
        max_memory=record["max_memory"],
        workers=record["workers"],
        seed=record["seed"],
    )
    model = load_model(models, record["dataset"], record["circuit"])
    method = Method.parse(record["solver"])
    query = BenchQuery.from_record(record, model.domain)
    return run_trial(model, query, method, settings, record["rng"])


def describe(record: Record) -> str:
    """Return a trial's outcome as a few words."""
    if "error" in record:
        return record["error"]
    log_prob = record.get("log_prob")
    value = "?" if log_prob is None else f"{log_prob:.4f}"
    kind = record["certificate"]["kind"]
    seconds = record["seconds_conditioning"] + record["seconds_solving"]
    gap = record.get("gap")
    rest = f", gap {gap / math.log(2):.2f} bits" if gap is not None else ""
    return f"ln p {value}, {kind}{rest}, {seconds:.2f} s"
