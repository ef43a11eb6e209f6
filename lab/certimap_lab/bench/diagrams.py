"""Public influence diagrams: the best policy, between two sides, beside pyAgrum where it is installed."""

from __future__ import annotations

import importlib
import importlib.util
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from certimap_lab.bench.peers import READING
from certimap_lab.bench.records import BenchError, Record
from certimap_lab.bench.tabular import MISSING, Table, significant
from certimap_lab.bench.workers import Job, Outcome, WorkerPool

PEER_MEMORY = 12 * 2**30  # bytes of address space
OURS, PEER = "certimap", "pyagrum"


def diagram_files(folder: Path) -> list[Path]:
    """Return the .uai files of a folder that have an .id file beside them.

    Raises
    ------
    BenchError
        When there is none.
    """
    found = sorted(p for p in folder.glob("*.uai*") if _beside(p).is_file()) if folder.is_dir() else []
    if not found:
        raise BenchError(f"{folder} has no .uai file with an .id file beside it; expected one per diagram")
    return found


def _beside(path: Path) -> Path:
    return path.with_name(path.name.replace(".uai", ".id"))


@dataclass(frozen=True)
class _Deciding:
    """Decides on a diagram in a process of its own; what is compiled is loaded before it counts."""

    time_limit: float

    def __call__(self, job: Path, part: str) -> Record:
        if part == PEER:
            resource.setrlimit(resource.RLIMIT_AS, (PEER_MEMORY, PEER_MEMORY))
            return _by_pyagrum(job)
        import certimap as cm

        network: Any = cm.read(job)
        cm.decide(network, time_limit=min(1.0, self.time_limit))
        started = time.process_time()
        policy = cm.decide(network, time_limit=self.time_limit)
        return {
            "seconds": time.process_time() - started,
            "value": policy.expected_utility,
            "upper": policy.upper_bound,
            "is_exact": policy.certificate.kind.value == "exact",
            "n_decisions": len(network.decisions),
        }


def _by_pyagrum(path: Path) -> Record:
    """Ask ShaferShenoyLIMIDInference; it reads the diagram from .bifxml."""
    import certimap as cm

    gum: Any = importlib.import_module("pyagrum")
    network: Any = cm.read(path)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "diagram.bifxml"
        network.write(file)
        diagram = gum.loadID(str(file))
    started = time.process_time()
    engine = gum.ShaferShenoyLIMIDInference(diagram)
    if not engine.isSolvable():
        return {"refused": True}
    try:
        engine.makeInference()
    except (MemoryError, gum.OutOfBounds, gum.FatalError, RuntimeError) as problem:
        return {"failed": type(problem).__name__, "seconds": time.process_time() - started}
    return {"seconds": time.process_time() - started, "value": float(engine.MEU()["mean"])}


def run_diagrams(folder: Path, time_limit: float, say: Callable[[str], None]) -> Table:
    """Decide on the diagrams of a folder, one after the other, and return the table."""
    files = diagram_files(folder)
    peers = [PEER] if importlib.util.find_spec(PEER) else []
    found: dict[tuple[Path, str], Outcome] = {}
    for parts, limit in (([OURS], 2 * time_limit + READING), (peers, time_limit)):
        pool = WorkerPool(
            1, _Deciding, (time_limit,), part_limit=limit, replace_after=lambda record: record.get("value") is None
        )
        for outcome in pool.run(Job(file, list(parts)) for file in files):
            found[outcome.payload, outcome.part] = outcome
            say(f"{outcome.payload.name} {outcome.part}: {outcome.record or outcome.problem}")
    beside = [f"{peer}: {what}" for peer in peers for what in ("utility", "seconds")]
    header = ("diagram", "decisions", "expected utility", "seconds", *beside)
    table = Table("diagrams", "Public influence diagrams", header)
    for file in files:
        table.add(*_row(file, found[file, OURS], [found[file, peer] for peer in peers]))
    table.notes.append(
        f"Processor seconds, file read and code loaded; at most {time_limit:g} s each. {PEER} "
        f"(ShaferShenoyLIMIDInference, {PEER_MEMORY >> 30} GiB) refuses diagrams that it does not find solvable; "
        "its answers with limited memory carry no bound. Crashed: its process ended without an answer."
    )
    return table


def _row(file: Path, ours: Outcome, peers: list[Outcome]) -> Iterator[str]:
    record = ours.record or {}
    yield file.name.partition(".uai")[0]
    yield str(record.get("n_decisions", MISSING))
    if not record:
        yield from (str(ours.problem), MISSING)
    else:
        value = f"{record['value']:.6g}"
        yield f"{value} exact" if record["is_exact"] else f"{value} .. {record['upper']:.6g}"
        yield significant(record["seconds"])
    for outcome in peers:
        yield from _peer_cells(outcome)


def _peer_cells(outcome: Outcome) -> tuple[str, str]:
    record = outcome.record
    if record is None:
        return ("over time" if outcome.problem == "overran" else "crashed", MISSING)
    if record.get("refused"):
        return ("refused", MISSING)
    seconds = significant(record["seconds"])
    return ("out of memory", seconds) if "failed" in record else (f"{record['value']:.6g}", seconds)
