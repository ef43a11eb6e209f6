"""Folders of instances in the layout of the UAI inference evaluations: answered, with a bound, in what time?"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from certimap import io
from certimap.api import map_query
from certimap.bench.records import BenchError
from certimap.bench.tabular import MISSING, Table, number, significant
from certimap.errors import CertimapError
from certimap.io.uai import read_query
from certimap.networks.network import Network
from certimap.result import CertificateKind, MapResult

CASES = "cases.json"
TIMES, SECONDS_MORE = 5.0, 1.0  # a proof is in time within so many times the reference's seconds and these


@dataclass(frozen=True)
class Instance:
    """One query: a model file, states observed by number, and the variables asked for (None: all others)."""

    name: str
    model: Path
    evidence: Mapping[int, int] = field(default_factory=dict[int, int])
    query: tuple[int, ...] | None = None
    reference: float | None = None
    is_proven: bool = False
    reference_seconds: float | None = None


@dataclass(frozen=True)
class Answer:
    """What a run brought, or what went wrong; seconds of wall and processor, the reading apart."""

    instance: Instance
    n_variables: int
    result: MapResult | None
    wall: float
    cpu: float
    read: float
    error: str = ""

    @property
    def is_proved(self) -> bool:
        return self.result is not None and self.result.certificate.kind is CertificateKind.EXACT


def instances_of(folder: Path) -> list[Instance]:
    """Return the instances of a folder: those of its `cases.json`, or each .uai with its .evid and .query files.

    Raises
    ------
    BenchError
        When there is none.
    """
    if (folder / CASES).is_file():
        cases = json.loads((folder / CASES).read_text(encoding="utf-8"))["cases"]
        return [
            Instance(
                case["id"],
                folder / case["model"],
                {int(v): int(s) for v, s in case.get("evidence", {}).items()},
                tuple(case["query"]) if case.get("query") else None,
                case.get("best_log_joint"),
                bool(case.get("proven", False)),
                case.get("toulbar2_seconds"),
            )
            for case in cases
        ]
    found: list[Instance] = []
    for path in sorted([*folder.glob("*.uai"), *folder.glob("*.uai.gz")]):
        name = path.name.removesuffix(".gz")
        evidence, query = _beside(folder, f"{name}.evid"), _beside(folder, f"{name}.query")
        observed = io.read_evidence(evidence)[0] if evidence else {}
        asked = tuple(v for v in read_query(query) if v not in observed) if query else None
        found.append(Instance(name.removesuffix(".uai"), path, observed, asked))
    if not found:
        raise BenchError(f"{folder} has neither {CASES} nor a .uai file")
    return found


def _beside(folder: Path, name: str) -> Path | None:
    return next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)


def answer(
    instance: Instance,
    *,
    solver: str = "auto",
    time_limit: float | None = 60.0,
    epsilon: float = 0.0,
    workers: int = 2,
    seed: int = 0,
) -> Answer:
    """Read and solve one instance; an error is part of the answer."""
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # readers say which rows they renormalise
        model: Network = io.read(instance.model)
    read = time.perf_counter() - started
    names = model.domain.names
    point = np.zeros(len(names), model.domain.point_dtype)
    point[list(instance.evidence)] = list(instance.evidence.values())
    labels = model.domain.decode(point)
    evidence = {names[v]: labels[names[v]] for v in instance.evidence}
    query = None if instance.query is None else [names[v] for v in instance.query]
    wall, cpu = time.perf_counter(), time.process_time()
    result, error = None, ""
    try:
        result = map_query(
            model,
            query,
            evidence,
            solver=solver,
            epsilon=epsilon,
            delta=0.0,
            time_limit=time_limit,
            workers=workers,
            rng=seed,
            progress=False,
        )
    except CertimapError as failure:
        error = f"{type(failure).__name__}: {failure}"
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Answer(instance, len(names), result, wall, cpu, read, error)


def run_uai(
    folder: Path,
    *,
    cases: Sequence[str] = (),
    solver: str = "auto",
    time_limit: float | None = 60.0,
    epsilon: float = 0.0,
    workers: int = 2,
    seed: int = 0,
    report: Callable[[str], None] = lambda _: None,
) -> list[Answer]:
    """Answer the instances of a folder, or those named; the smallest once more beforehand, which loads kernels."""
    instances = [i for i in instances_of(folder) if not cases or i.name in cases]
    if not instances:
        raise BenchError(f"{folder} has no instance named {', '.join(cases)}")
    answer(min(instances, key=lambda i: i.model.stat().st_size), solver=solver, time_limit=time_limit, seed=seed)
    answers: list[Answer] = []
    for instance in instances:
        found = answer(instance, solver=solver, time_limit=time_limit, epsilon=epsilon, workers=workers, seed=seed)
        answers.append(found)
        kind = found.result.certificate.kind.value if found.result else found.error
        report(f"{instance.name}: {kind}, {found.wall:.2f} s")
    return answers


def uai_table(answers: Sequence[Answer]) -> Table:
    """Return one row per instance."""
    table = Table(
        "uai",
        "Instances of the UAI inference evaluations",
        ("instance", "variables", "ln p(q, e)", "gap, nats", "to the best known", "certificate", "solver",
         "wall, s", "CPU, s", "reading, s", "reference, s"),
        notes=["Gap: between the bound and the answer. To the best known: above 0 where ours is better."],
    )  # fmt: skip
    for a in answers:
        size, times = str(a.n_variables), (significant(a.wall), significant(a.cpu), significant(a.read))
        reference = significant(a.instance.reference_seconds) if a.instance.is_proven else MISSING
        r = a.result
        if r is None or r.log_joint is None or r.log_joint_upper_bound is None:
            table.add(
                a.instance.name, size, MISSING, MISSING, MISSING, a.error or "none", MISSING, *times, reference
            )
            continue
        known = a.instance.reference
        ahead = MISSING if known is None else f"{r.log_joint - known:+.1e}"
        gap = significant(r.log_joint_upper_bound - r.log_joint)
        kind = r.certificate.kind.value
        table.add(a.instance.name, size, number(r.log_joint, 6), gap, ahead, kind, r.solver, *times, reference)
    return table


def uai_summary(answers: Sequence[Answer]) -> str:
    """Count what is answered, proved, and proved in time beside the reference."""
    proved = [a for a in answers if a.is_proved]
    lines = [f"{len(proved)} of {len(answers)} proved, {sum(a.result is not None for a in answers)} answered."]
    known = [a for a in answers if a.instance.is_proven and a.instance.reference_seconds is not None]
    if known:
        in_time = [
            a
            for a in known
            if a.is_proved and a.wall <= TIMES * (a.instance.reference_seconds or 0.0) + SECONDS_MORE
        ]
        lines.append(
            f"Of {len(known)} that the reference proves, {sum(a.is_proved for a in known)} are proved, "
            f"{len(in_time)} of these within {TIMES:g} times its seconds plus {SECONDS_MORE:g}."
        )
    return " ".join(lines)
