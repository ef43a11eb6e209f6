"""How time and memory grow with the number of variables: networks in simple shapes over three decades."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from certimap_lab.bench.machine import peak_memory_mib
from certimap_lab.bench.records import BenchError, Record
from certimap_lab.bench.tabular import MISSING, Table, significant
from certimap_lab.bench.workers import Job, WorkerPool

SIZES = (1_000, 10_000, 100_000)
N_STATES = 3
N_ASKED = 1_000  # variables of the marginal query
FORMATS = (".uai", ".bif", ".npz")
SHAPES: dict[str, Callable[[int], int]] = {
    "chain": lambda i: i - 1,
    "tree": lambda i: (i - 1) // 2,
    "hmm": lambda i: i - 2 + i % 2,  # even: hidden states, odd: what they emit
}


@dataclass(frozen=True)
class GrowthPlan:
    """What is measured: `shapes` are names of `SHAPES`, `sizes` numbers of variables."""

    shapes: tuple[str, ...] = tuple(SHAPES)
    sizes: tuple[int, ...] = SIZES
    seed: int = 0


def parts_of(shape: str, n: int, seed: int) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return what `BayesianNetwork.from_cpts` takes for a shape: states, parents and tables by name."""
    rng = np.random.default_rng([seed, n])
    above = SHAPES[shape]
    names = [f"v{i}" for i in range(n)]
    states = tuple(f"s{k}" for k in range(N_STATES))
    tables: dict[str, Any] = dict(zip(names, rng.dirichlet(np.ones(N_STATES), (n, N_STATES)), strict=True))
    tables["v0"] = tables["v0"][0]
    return dict.fromkeys(names, states), {names[i]: [names[above(i)]] for i in range(1, n)}, tables


class _Measuring:
    """Measures one shape and size in a process of its own, so that its peak memory is its own."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __call__(self, job: Any, part: Any) -> Record:
        import certimap as cm

        shape, n = job
        cm.map_query(cm.BayesianNetwork.from_cpts(*parts_of(shape, 50, self._seed)), rng=0)  # loads compiled code
        given = parts_of(shape, n, self._seed)
        record: Record = {"shape": shape, "n_variables": n}
        model = timed(record, "build", lambda: cm.BayesianNetwork.from_cpts(*given))
        with tempfile.TemporaryDirectory() as folder:
            for suffix in FORMATS:
                path = Path(folder) / f"model{suffix}"
                timed(record, f"write {suffix}", lambda path=path: model.write(path))
                timed(record, f"read {suffix}", lambda path=path: cm.read(path))
        result = timed(record, "mpe", lambda: cm.map_query(model, epsilon=0, rng=0))
        record["mpe_kind"] = result.certificate.kind.value
        names = model.domain.names
        asked = names[:: 2 * max(1, n // (2 * N_ASKED))]
        evidence = dict.fromkeys(names[1::2], "s0")
        timed(record, "condition", lambda: cm.condition(model, asked, evidence))
        record["peak_memory_mib"] = round(peak_memory_mib(), 1)
        return record


def timed(record: Record, name: str, work: Callable[[], Any]) -> Any:
    started = time.process_time()
    result = work()
    record[name] = round(time.process_time() - started, 4)
    return result


def run_growth(plan: GrowthPlan, report: Callable[[str], None] | None = None) -> list[Record]:
    """Measure every shape at every size; return a record each, processor seconds by step.

    Raises
    ------
    BenchError
        For a shape that is not known, or a size below 10.
    """
    for shape in plan.shapes:
        if shape not in SHAPES:
            raise BenchError(f"{shape!r} is no shape of networks; expected {', '.join(SHAPES)}")
    for n in plan.sizes:
        if n < 10:
            raise BenchError(f"{n} variables are too few to measure; expected 10 or more")
    records: list[Record] = []
    for shape, n in ((shape, n) for shape in plan.shapes for n in plan.sizes):
        (outcome,) = WorkerPool(1, _Measuring, (plan.seed,)).run([Job((shape, n), ["all"])])
        record = outcome.record or {"shape": shape, "n_variables": n, "error": outcome.problem}
        records.append(record)
        if report is not None:
            said = record.get("error") or f"solved in {record['mpe']:.2f} s, {record['peak_memory_mib']:.0f} MiB"
            report(f"{shape} of {n:,} variables: {said}")
    return records


def growth_table(records: Sequence[Record]) -> Table:
    """Return the table of processor seconds by step, a row per shape and size."""
    steps = [
        "build",
        *(f"{verb} {suffix}" for suffix in FORMATS for verb in ("write", "read")),
        "mpe",
        "condition",
    ]
    table = Table(
        "growth",
        "Growth: processor seconds by number of variables",
        ("network", "variables", *steps, "proof of the MPE", "MiB"),
    )
    for r in records:
        cells = [significant(r[step]) if step in r else MISSING for step in steps]
        peak = significant(r.get("peak_memory_mib"))
        table.add(r["shape"], f"{r['n_variables']:,}", *cells, r.get("mpe_kind", MISSING), peak)
    table.notes.append(
        f"Variables of {N_STATES} states. MPE: every variable, epsilon 0. Condition: about {N_ASKED:,} variables "
        "given every odd one, the others summed out."
    )
    return table
