"""What proofs of recorded queries cost: solving without and with one, checking it, and its file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

from certimap import io
from certimap.ask.api import map_query
from certimap.core.result import CertificateKind, MapResult
from certimap.errors import CertimapError
from certimap.proofs import check
from certimap_lab.bench.models import model_path
from certimap_lab.bench.network_cases import NetworkCase, load_network, uai_cases
from certimap_lab.bench.protocol import Split, draw_query, solver_seed
from certimap_lab.bench.records import BenchError, Record, RecordFile
from certimap_lab.bench.tabular import Table
from certimap_lab.bench.twenty import SPLITS

RECORDS = "proofs.jsonl"
PROOFS = "files"
HASTE = 1.0  # seconds; shorter solving is timed three times
NO_CERTIFICATE, NO_PROOF, NOT_IN_TIME = "no certificate", "no proof", "not checked in time"
BOUND_ALONE = "proof of a bound alone"
ACCEPTED, REJECTED, FAILED = "accepted", "rejected", "error"
Told = Callable[[str], None]
Question = tuple[Any, list[str], dict[str, Any], int]


@dataclass(frozen=True)
class Asked:
    """One recorded query: the group it counts in, its name, and what reads it (model, query, evidence, seed)."""

    group: str
    name: str
    load: Callable[[], Question]


@dataclass(frozen=True)
class Limits:
    """Seconds of an answer (proof included where one is asked for), and of a check."""

    solving: float = 60.0
    checking: float = 300.0


def twenty_queries(folder: Path, n_queries: int, seed: int = 0) -> Iterator[Asked]:
    """Yield the queries of `bench twenty` to a folder of its models (`DATASET-CIRCUIT.npz`).

    All models, data sets and splits have their first query before any has its second.
    """
    stems = sorted(path.stem.partition("-")[::-2] for path in folder.glob("*.npz"))
    if not stems or any(not circuit for circuit, _ in stems):
        raise BenchError(
            f"{folder} holds no models like nltcs-learnspn.npz; expected those that 'bench twenty' keeps"
        )

    @lru_cache(maxsize=2)
    def model_of(dataset: str, circuit: str) -> Any:
        return io.read(model_path(folder, dataset, circuit))

    def loader(dataset: str, circuit: str, split: Split, index: int) -> Callable[[], Question]:
        def load() -> Question:
            model = model_of(dataset, circuit)
            query = draw_query(model, seed, dataset, split, index)
            return model, list(query.variables), dict(query.evidence), solver_seed(seed, dataset, split, index)

        return load

    for index in range(n_queries):
        for circuit, dataset in stems:
            for text in SPLITS:
                split = Split.parse(text)
                name = f"{dataset}-{circuit} {split.name} #{index}"
                yield Asked(circuit, name, loader(dataset, circuit, split, index))


def network_queries(folder: Path) -> Iterator[Asked]:
    """Yield the queries of a folder with `cases.json`, or with .uai files and what goes with them."""

    def loader(case: NetworkCase) -> Callable[[], Question]:
        def load() -> Question:
            model = load_network(case)
            rest = [name for name in model.domain.names if name not in case.evidence]
            return model, rest if case.query is None else list(case.query), dict(case.evidence), 0

        return load

    for case in uai_cases(folder):
        yield Asked(folder.name, f"{folder.name} {case.name}", loader(case))


def weigh(run: Path, asked: Sequence[Asked], limits: Limits, tell: Told = print) -> list[Record]:
    """Solve each query without and with a proof and check the proof, by one thread; go on where a run stopped.

    Parameters
    ----------
    run
        The folder that gets one record per query (`proofs.jsonl`), and the proofs (`files`).
    asked
        The queries.
    limits
        Seconds allowed.
    tell
        Gets a line per query that is new.

    Returns
    -------
    list of dict
        The records of these queries, older ones included.
    """
    wanted = {item.name for item in asked}
    with closing(RecordFile(run / RECORDS)) as file:
        done = {record["name"] for record in file.records}
        left = [item for item in asked if item.name not in done]
        if left:
            tell(f"{len(left):,} queries to ask, {len(wanted) - len(left):,} done before")
        for number, item in enumerate(left, start=1):
            record = _weighed(item, run / PROOFS, limits)
            file.append(record)
            tell(f"[{number}/{len(left)}] {item.name}: {record['outcome']}")
        return [record for record in file.records if record["name"] in wanted]


def _weighed(item: Asked, folder: Path, limits: Limits) -> Record:
    """Return the record of one query: CPU seconds, the file's size, what came out, and why."""
    record: Record = {"group": item.group, "name": item.name, "limits": [limits.solving, limits.checking]}
    try:
        model, variables, evidence, seed = item.load()
        settings: dict[str, Any] = {"epsilon": 0.0, "delta": 0.0, "rng": seed, "workers": 1, "progress": False}
        settings["time_limit"] = limits.solving
        proving, result = _timed(model, variables, evidence, {**settings, "proof": True})
    except CertimapError as error:
        return record | {"outcome": FAILED, "text": str(error)}
    record |= {"proving": proving, "certificate": result.certificate.kind.value, "solver": result.solver}
    if result.certificate.kind is CertificateKind.NONE or result.certificate.delta > 0.0:
        return record | {"outcome": NO_CERTIFICATE, "text": ""}
    if result.proof is None:
        return record | {"outcome": NO_PROOF, "text": str(result.no_proof)}
    if "certified" in result.proof.meta:
        verdict = check(model, result.proof, time_limit=limits.checking)
        return record | {"outcome": BOUND_ALONE if verdict else REJECTED, "text": verdict.message}
    times = [(_timed(model, variables, evidence, settings)[0], proving)]
    while len(times) < 3 and times[0][0] < HASTE:
        again = _timed(model, variables, evidence, settings)[0]
        times.append((again, _timed(model, variables, evidence, {**settings, "proof": True})[0]))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (item.name.replace("/", "-").replace(" ", "_") + ".proof.npz")
    result.proof.write(path)
    started = time.process_time()
    verdict = check(model, path, time_limit=limits.checking)
    record |= {
        "solving": min(t[0] for t in times),
        "proving": min(t[1] for t in times),
        "checking": time.process_time() - started,
        "n_bytes": path.stat().st_size,
        "method": result.proof.meta["method"],
        "text": verdict.message,
    }
    late = "did not end within" in verdict.message
    return record | {"outcome": ACCEPTED if verdict else NOT_IN_TIME if late else REJECTED}


def _timed(
    model: Any, variables: list[str], evidence: Mapping[str, Any], settings: Mapping[str, Any]
) -> tuple[float, MapResult]:
    started = time.process_time()
    result: MapResult = map_query(model, variables, evidence, **settings)
    return time.process_time() - started, result


def cost_tables(records: Sequence[Record]) -> list[Table]:
    """Return what became of queries by group, with medians of costs, and each certified one without a proof."""
    header = (
        "models",
        "queries",
        "certified",
        "proofs",
        "accepted",
        "solving (ms)",
        "with a proof (times)",
        "checking (ms)",
        "checking / solving",
        "longest check (s)",
        "file (kB)",
        "largest file (kB)",
    )
    table = Table("proofs", "Proofs of recorded queries", header)
    for group in dict.fromkeys(record["group"] for record in records):
        mine = [record for record in records if record["group"] == group]
        proved = [record for record in mine if "n_bytes" in record]
        counts = [len(mine), sum(r["outcome"] not in (NO_CERTIFICATE, FAILED) for r in mine), len(proved)]
        counts.append(sum(record["outcome"] == ACCEPTED for record in mine))
        figures = _figures(proved) if proved else ["--"] * 7
        table.add(group, *(f"{count:,}" for count in counts), *figures)
    table.notes.append(
        "CPU time of one thread; medians over proofs, conditioning included in solving. Exact answers are asked "
        "for; certified are those with a certificate of delta = 0."
    )
    missing = Table("unproved", "Certified answers without an accepted proof", ("query", "outcome", "why"))
    for record in records:
        if record["outcome"] not in (ACCEPTED, NO_CERTIFICATE):
            missing.add(record["name"], record["outcome"], record["text"])
    return [table, missing] if missing.rows else [table]


def _figures(proved: Sequence[Record]) -> list[str]:
    solving, checking, size = ([float(r[key]) for r in proved] for key in ("solving", "checking", "n_bytes"))
    return [
        f"{1e3 * median(solving):.1f}",
        f"{median(r['proving'] / r['solving'] for r in proved):.2f}",
        f"{1e3 * median(checking):.1f}",
        f"{median(c / s for c, s in zip(checking, solving, strict=True)):.1f}",
        f"{max(checking):.1f}",
        f"{median(size) / 1e3:.1f}",
        f"{max(size) / 1e3:.1f}",
    ]
