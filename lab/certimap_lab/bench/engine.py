"""The engine's benchmark: evaluation beside sparc-pc, sampling, a full run of draws, scaling, first start."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from certimap.circuits.circuit import Circuit, NodeKind
from certimap.circuits.posterior import CircuitPosterior
from certimap.core.query import make_query
from certimap_lab.bench.machine import describe_machine, machine_line, peak_memory_mib, reset_peak_memory
from certimap_lab.bench.random_circuits import random_learnspn
from certimap_lab.bench.tabular import MISSING, Table, number, significant

_SHAPES = ((40, 1_000), (70, 6_000), (100, 50_000))  # variables, edges
_EDGE_ROWS = 1.2e8  # edge evaluations in one timed run beside sparc-pc
_QUERIED = 50


@dataclass
class EngineResults:
    """What `run_engine_benchmark` measured; `str()` of it is Markdown."""

    machine: dict[str, Any]
    workers: int
    tables: list[Table] = field(default_factory=list[Table])

    def __str__(self) -> str:
        head = f"{machine_line(self.machine)}; {self.workers} threads.\n"
        return "\n".join([head, *(table.to_markdown() for table in self.tables)])


def run_engine_benchmark(*, workers: int = 2, quick: bool = False, repeats: int = 7) -> EngineResults:
    """Measure the circuit engine on seeded random circuits of LearnSPN's shape.

    Parameters
    ----------
    workers
        Threads of certimap, and of sparc-pc where it is installed.
    quick
        A tenth of the rows and three repetitions, for a look.
    repeats
        Paired runs of which the median ratio is taken.
    """
    results = EngineResults(describe_machine(), workers)
    with suppress(PackageNotFoundError):
        results.machine["sparc-pc"] = version("sparc-pc")
    scale, repeats = (0.1, 3) if quick else (1.0, repeats)
    results.tables = [
        evaluation_table(workers, scale, repeats),
        sampling_table(workers, scale, repeats),
        full_run_table(workers, int(2_500_000 * scale)),
        *scaling_tables(workers, scale, repeats),
        depth_table(workers, scale, repeats),
        start_table(),
    ]
    return results


def paired_times(
    first: Callable[[], object], second: Callable[[], object], repeats: int
) -> list[tuple[float, float]]:
    """Time two functions alternately, once each to warm up and then `repeats` times; in seconds."""
    first()
    second()
    return [(_seconds(first), _seconds(second)) for _ in range(repeats)]


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _median_seconds(function: Callable[[], object], repeats: int) -> float:
    function()
    return statistics.median(_seconds(function) for _ in range(repeats))


def _posterior(circuit: Circuit, workers: int, n_queried: int | None = None) -> CircuitPosterior:
    """Condition on half of the variables (at random states) when a number of query variables is given."""
    names = circuit.domain.names
    if n_queried is None:
        return CircuitPosterior.from_circuit(circuit, make_query(circuit.domain), workers=workers)
    rng = np.random.default_rng(1)
    evidence = {name: int(rng.integers(2)) for name in names[n_queried:]}
    return CircuitPosterior.from_circuit(
        circuit, make_query(circuit.domain, names[:n_queried], evidence), workers=workers
    )


def evaluation_table(workers: int, scale: float = 1.0, repeats: int = 7) -> Table:
    """Compare `log_prob` with the compiled `log_likelihood` of sparc-pc on the same circuits and rows."""
    table = Table(
        "engine-evaluation",
        "Evaluating points",
        ("edges", "variables", "rows", "G edges/s", "sparc-pc, G edges/s", "ratio", "largest difference"),
        notes=[f"Ratio: median over {repeats} paired runs of sparc-pc's time by certimap's. Difference: in nats."],
    )
    for n_variables, n_edges in _SHAPES:
        circuit = random_learnspn(n_variables, n_edges)
        posterior = _posterior(circuit, workers)
        rows = max(int(scale * _EDGE_ROWS / circuit.n_edges), 256)
        points = posterior.sample(rows, np.random.default_rng(0))
        other = sparc_log_likelihood(circuit, workers)
        if other is None:
            pairs = [(_median_seconds(lambda p=posterior, x=points: p.log_prob(x), repeats), np.nan)]
            ratio, difference = None, MISSING
        else:
            inputs = points.astype(np.int64)
            pairs = paired_times(
                lambda p=posterior, x=points: p.log_prob(x), lambda f=other, x=inputs: f(x), repeats
            )
            ratio = statistics.median(theirs / ours for ours, theirs in pairs)
            difference = f"{float(np.max(np.abs(posterior.log_prob(points) - other(inputs)))):.1e}"
        ours, theirs = (statistics.median(pair[k] for pair in pairs) for k in (0, 1))
        work = circuit.n_edges * rows / 1e9
        speeds = (number(work / ours, 2), number(work / theirs if ratio else None, 3))
        table.add(str(circuit.n_edges), str(n_variables), str(rows), *speeds, number(ratio, 1), difference)
    return table


def sparc_log_likelihood(circuit: Circuit, workers: int) -> Callable[[Any], Any] | None:
    """Return sparc-pc's compiled `log_likelihood` of a binary circuit; None where it is not installed."""
    try:
        module: Any = import_module("sparc")
    except ImportError:
        return None
    module.set_num_threads(workers)
    nodes: list[Any] = []
    for node in range(circuit.n_nodes):
        children = [nodes[c] for c in circuit.children_of(node)]
        if circuit.kind[node] == NodeKind.PRODUCT:
            nodes.append(module.ProductNode(children))
        elif circuit.kind[node] == NodeKind.SUM:
            edges = slice(int(circuit.child_ptr[node]), int(circuit.child_ptr[node + 1]))
            weights = np.exp(circuit.log_weights[edges])
            nodes.append(module.SumNode(children, (weights / weights.sum()).tolist()))
        else:
            nodes.append(
                module.BernoulliInputNode(int(circuit.leaf_var[node]), float(np.exp(circuit.params_of(node)[1])))
            )
    return nodes[-1].compile().log_likelihood


def sampling_table(workers: int, scale: float = 1.0, repeats: int = 7) -> Table:
    """Measure draws from p(Q | e) over 50 query variables, everything else observed."""
    table = Table(
        "engine-sampling",
        f"Drawing from p(Q | e), {_QUERIED} query variables",
        ("edges", "edges once conditioned", "draws/s", "conditioning, ms"),
    )
    for n_variables, n_edges in ((100, 6_000), (100, 50_000), (500, 400_000)):
        circuit = random_learnspn(n_variables, n_edges)
        posterior = _posterior(circuit, workers, _QUERIED)
        n = int(500_000 * scale)
        seconds = _median_seconds(lambda p=posterior, n=n: p.sample(n, np.random.default_rng(0)), repeats)
        conditioning = _median_seconds(lambda c=circuit: _posterior(c, workers, _QUERIED), repeats)
        edges = (str(circuit.n_edges), str(posterior.n_edges))
        table.add(*edges, significant(n / seconds), significant(1e3 * conditioning))
    return table


def full_run_table(workers: int, n_draws: int) -> Table:
    """Draw, deduplicate and evaluate on a query of 50 variables of a circuit of 50,000 edges."""
    from certimap.certify.ledger import Ledger

    circuit = random_learnspn(100, 50_000)
    posterior = _posterior(circuit, workers, _QUERIED)
    rng = np.random.default_rng(0)
    posterior.log_prob(posterior.sample(1000, rng))
    reset_peak_memory()
    before = peak_memory_mib()
    ledger = Ledger(posterior, epsilon=0.0, delta=0.0, early_stop=False)
    start = time.perf_counter()
    for done in range(0, n_draws, 1 << 16):
        ledger.draws(posterior.sample(min(1 << 16, n_draws - done), rng))
    seconds = time.perf_counter() - start
    table = Table(
        "engine-run",
        f"{n_draws / 1e6:g} million draws, deduplicated and evaluated",
        ("edges", "edges once conditioned", "distinct", "seconds", "peak memory, MiB", "memory before, MiB"),
    )
    sizes = (str(circuit.n_edges), str(posterior.n_edges), str(ledger.n_evaluations))
    table.add(*sizes, number(seconds, 2), number(peak_memory_mib(), 0), number(before, 0))
    return table


def scaling_tables(workers: int, scale: float = 1.0, repeats: int = 7) -> list[Table]:
    """Show that cost grows in proportion to edges and to rows: the time an edge and row is constant."""
    edges = Table(
        "engine-edges",
        "Cost and the number of edges",
        ("edges", "log_prob, ps/edge/row", "log_mass", "log_mass_each"),
    )
    for n_edges in (6_000, 50_000, 400_000):
        posterior = _posterior(random_learnspn(500, n_edges), workers)
        rows = max(int(scale * 4e8 / n_edges), 64)
        edges.add(str(posterior.n_edges), *(significant(x) for x in _costs(posterior, rows, repeats)))
    batch = Table("engine-batch", "Cost and the number of rows", ("rows", *edges.header[1:]))
    posterior = _posterior(random_learnspn(70, 6_000), workers)
    for rows in (1_000, 10_000, 100_000):
        batch.add(str(rows), *(significant(x) for x in _costs(posterior, rows, repeats)))
    return [edges, batch]


def _costs(posterior: CircuitPosterior, rows: int, repeats: int) -> list[float]:
    """Return picoseconds an edge and row of the three questions, on points and on random boxes."""
    from certimap.core.box import Boxes

    rng = np.random.default_rng(0)
    points = posterior.sample(rows, rng)
    mask = rng.random((rows, posterior.domain.total_states)) < 0.5
    boxes = Boxes(posterior.domain, mask | Boxes.of_points(posterior.domain, points).mask)
    questions: list[Callable[[], object]] = [
        lambda: posterior.log_prob(points),
        lambda: posterior.log_mass(boxes),
        lambda: posterior.log_mass_each(boxes),
    ]
    return [1e12 * _median_seconds(ask, repeats) / (rows * posterior.n_edges) for ask in questions]


def depth_table(workers: int, scale: float = 1.0, repeats: int = 7) -> Table:
    """Show that a row's depth costs nothing: circuits of one size over more and more variables."""
    table = Table(
        "engine-depth",
        "Evaluating points far below float64",
        ("variables", "edges", "mean ln p", "log_prob, G edges/s", "share of the first row"),
    )
    first = None
    for n_variables in (100, 1_000, 10_000, 100_000):
        posterior = _posterior(random_learnspn(n_variables, 200_000), workers)
        rows = max(int(scale * 2e8 / posterior.n_edges), 64)
        points = posterior.sample(rows, np.random.default_rng(0))
        log_prob = float(posterior.log_prob(points).mean())
        seconds = _median_seconds(lambda p=posterior, x=points: p.log_prob(x), repeats)
        speed = posterior.n_edges * rows / seconds / 1e9
        first = speed if first is None else first
        table.add(
            str(n_variables),
            str(posterior.n_edges),
            number(log_prob, 0),
            number(speed, 2),
            number(speed / first, 2),
        )
    return table


def start_table() -> Table:
    """Time `certimap solve` on alarm in fresh processes: with an empty kernel cache, then with a full one."""
    table = Table("engine-start", "certimap solve on alarm, whole process", ("kernel cache", "seconds"))
    model = Path(__file__).parents[3] / "examples" / "alarm.bif"
    if not model.exists():
        table.add(f"{model} is not there", MISSING)
        return table
    command = [sys.executable, "-m", "certimap.cli", "solve", str(model)]
    command += ["--query", "HISTORY,CVP", "--evidence", "HRBP=HIGH", "--json"]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        for label in ("empty", "full", "full"):
            start = time.perf_counter()
            subprocess.run(command, env=environment, check=True, capture_output=True)
            table.add(label, number(time.perf_counter() - start, 2))
    return table
