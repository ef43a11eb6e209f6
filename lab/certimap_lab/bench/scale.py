"""How time and memory grow with a circuit: random ones as LearnSPN shapes them, up to millions of edges."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from certimap.circuits.circuit import Circuit
from certimap_lab.bench.growth import timed
from certimap_lab.bench.machine import peak_memory_mib, reset_peak_memory
from certimap_lab.bench.random_circuits import grown_learnspn
from certimap_lab.bench.records import BenchError, Record
from certimap_lab.bench.tabular import MISSING, Table, significant
from certimap_lab.bench.workers import Job, WorkerPool

SIZES = (1_000_000, 10_000_000, 50_000_000)
N_ASKED = 100  # variables of the query
N_ROWS = 100  # that are drawn and scored
EDGES_PER_VARIABLE = 500
FEWEST_VARIABLES = 150
WARM_EDGES = 20_000  # of the circuit that loads compiled code
STEPS = {
    "native": ("write .npz", "read .npz", "condition", "query"),
    "all": ("condition all", "draw", "log_prob"),
    "text": ("write .spn", "read .spn"),
}


@dataclass(frozen=True)
class ScalePlan:
    """What is measured.

    Attributes
    ----------
    sizes
        Numbers of edges, about.
    seed
        Of circuits, queries and draws.
    time_limit
        Seconds that the query may take.
    text_limit
        Edges up to which `.spn` files are written and read too, which take some 80 bytes per edge.
    whole_limit
        Edges up to which a query of all variables is conditioned too, which takes some 160 bytes per edge.
    """

    sizes: tuple[int, ...] = SIZES
    seed: int = 0
    time_limit: float = 60.0
    text_limit: int = 10_000_000
    whole_limit: int = 10_000_000


class _Measuring:
    """Measures one part of the steps in a process of its own, so that its peak memory is its own."""

    def __init__(self, folder: str, seed: int, time_limit: float) -> None:
        self._folder, self._seed, self._time_limit = Path(folder), seed, time_limit

    def __call__(self, job: Any, part: Any) -> Record:
        work: Callable[[Record, Path], None] = {
            "grow": self._grow,
            "native": self._native,
            "all": self._all,
            "text": self._text,
        }[part]
        if part != "grow":
            warm = self._folder / "warm.npz"
            _grown(WARM_EDGES, self._seed).write(warm)
            work({}, warm)
        record: Record = {"n_edges_asked": job}
        reset_peak_memory()
        before = peak_memory_mib()
        work(record, self._folder / f"{job}.npz")
        record[f"peak bytes {part}"] = round((peak_memory_mib() - before) * 2**20)
        return record

    def _grow(self, record: Record, path: Path) -> None:
        circuit = timed(record, "grow", lambda: _grown(int(path.stem), self._seed))
        record |= {"n_edges": circuit.n_edges, "n_nodes": circuit.n_nodes, "n_variables": len(circuit.domain)}
        timed(record, "write .npz", lambda: circuit.write(path))
        record["bytes .npz"] = path.stat().st_size

    def _native(self, record: Record, path: Path) -> None:
        import certimap as cm

        circuit = timed(record, "read .npz", lambda: cm.read(path))
        rng = np.random.default_rng(self._seed)
        names = [circuit.domain.names[i] for i in rng.permutation(len(circuit.domain))]
        n_asked = min(N_ASKED, len(names) // 2)
        asked, rest = names[:n_asked], names[n_asked:]
        evidence = dict(zip(rest, rng.integers(2, size=len(rest)).tolist(), strict=True))
        timed(record, "condition", lambda: cm.condition(circuit, asked, evidence, workers=1))
        settings: dict[str, Any] = {"rng": self._seed, "time_limit": self._time_limit, "workers": 1}
        result = timed(record, "query", lambda: cm.map_query(circuit, asked, evidence, **settings))
        record["kind"] = result.certificate.kind.value

    def _all(self, record: Record, path: Path) -> None:
        import certimap as cm

        circuit = cm.read(path)
        posterior: Any = timed(record, "condition all", lambda: cm.condition(circuit, workers=1))
        rng = np.random.default_rng(self._seed)
        rows = timed(record, "draw", lambda: posterior.sample(N_ROWS, rng))
        timed(record, "log_prob", lambda: posterior.log_prob(rows))

    def _text(self, record: Record, path: Path) -> None:
        import certimap as cm

        circuit, text = cm.read(path), path.with_suffix(".spn")
        timed(record, "write .spn", lambda: circuit.write(text))
        record["bytes .spn"] = text.stat().st_size
        read = timed(record, "read .spn", lambda: cm.read(text))
        record["n_edges .spn"] = read.n_edges
        text.unlink()


def _grown(n_edges: int, seed: int) -> Circuit:
    return grown_learnspn(max(FEWEST_VARIABLES, n_edges // EDGES_PER_VARIABLE), n_edges, seed=seed)


def run_scale(plan: ScalePlan, report: Callable[[str], None] | None = None) -> list[Record]:
    """Measure circuits of every size; return a record each, with processor seconds by step.

    Raises
    ------
    BenchError
        For a size below 10,000 edges, or where one could not be measured.
    """
    for n in plan.sizes:
        if n < 10_000:
            raise BenchError(f"{n} edges are too few to measure; expected 10,000 or more")
    records: list[Record] = []
    for n in plan.sizes:
        record: Record = {}
        with tempfile.TemporaryDirectory() as folder:
            whole = ("all",) if n <= plan.whole_limit else ()
            text = ("text",) if n <= plan.text_limit else ()
            for part in ("grow", "native", *whole, *text):
                pool = WorkerPool(1, _Measuring, (folder, plan.seed, plan.time_limit))
                (outcome,) = pool.run([Job(n, [part])])
                if outcome.record is None:
                    raise BenchError(f"a circuit of {n:,} edges: the part {part!r} failed: {outcome.problem}")
                record |= outcome.record
        records.append(record)
        if report is not None:
            report(
                f"{record['n_edges']:,} edges: read in {record['read .npz']:.2f} s, query {record['query']:.2f} s "
                f"({record['kind']})"
            )
    return records


def scale_table(records: Sequence[Record]) -> Table:
    """Return the table of processor seconds by step, and bytes per edge."""
    steps = [step for part in STEPS.values() for step in part]
    sizes = [("bytes .npz", "file .npz"), *((f"peak bytes {part}", f"peak {part}") for part in STEPS)]
    table = Table(
        "scale",
        "Large circuits: processor seconds by number of edges, and bytes per edge",
        ("edges", "variables", *steps, "proof of the query", *(f"B/edge {name}" for _, name in sizes)),
    )
    for r in records:
        cells = [significant(r[step]) if step in r else MISSING for step in steps]
        per_edge = [significant(r[key] / r["n_edges"]) if key in r else MISSING for key, _ in sizes]
        table.add(f"{r['n_edges']:,}", f"{r['n_variables']:,}", *cells, r["kind"], *per_edge)
    table.notes += [
        "Random trees of alternating sums and products, with as many nodes as edges. Condition and query: "
        f"{N_ASKED} variables, all others observed; the query's seconds include its conditioning again. Condition "
        f"all: nothing observed; then {N_ROWS} rows are drawn and scored.",
        "Peak native: beyond what the process holds before it reads, the mapped file counted. Peak all and text: "
        "the same with the steps of these columns. A `.spn` file writes each leaf as a sum of its variable's "
        "indicators, so that it has some 2.7 times as many edges.",
    ]
    return table
