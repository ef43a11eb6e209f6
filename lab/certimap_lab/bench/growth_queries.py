"""How time grows with the number of evidence rows, and with the number of best assignments asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from certimap_lab.bench.growth import parts_of, timed
from certimap_lab.bench.random_circuits import random_learnspn
from certimap_lab.bench.records import Record
from certimap_lab.bench.tabular import MISSING, Table, significant
from certimap_lab.bench.workers import Job, WorkerPool

COUNTS = (10, 100, 1_000)
N_VARIABLES, N_STATES = 64, 3
N_QUERIED, N_OBSERVED = 32, 16
REACH = 3  # a variable's parents are among so many before it
N_EDGES = 5_000
TASKS = {
    "rows": "evidence rows of a network",
    "hmm": "best assignments of a hidden Markov model",
    "circuit": "best assignments of a circuit",
}


def loopy_parts(n: int, seed: int) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return states, parents and tables (see `BayesianNetwork.from_cpts`) of a narrow network with loops.

    Each variable has two parents among the three before it.
    """
    rng = np.random.default_rng([seed, n])
    names = [f"v{i}" for i in range(n)]
    parents: dict[str, Any] = {}
    tables: dict[str, Any] = {}
    for i, name in enumerate(names):
        above = sorted(rng.choice(range(max(0, i - REACH), i), size=min(2, i), replace=False)) if i else []
        if above:
            parents[name] = [names[k] for k in above]
        tables[name] = rng.dirichlet(np.ones(N_STATES), (N_STATES,) * len(above))
    states = tuple(f"s{k}" for k in range(N_STATES))
    return dict.fromkeys(names, states), parents, tables


class _Measuring:
    """Measures one task at one count in a process of its own."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __call__(self, job: Any, part: Any) -> Record:
        task, count = job
        work = self._rows() if task == "rows" else self._ranked(task)
        work(2)  # loads compiled code
        record: Record = {"task": task, "count": count}
        found = timed(record, "seconds", lambda: work(count))
        record["n_exact"] = sum(r.certificate.kind.value == "exact" for r in found)
        return record

    def _rows(self) -> Callable[[int], list[Any]]:
        """Ask for the most probable rest of rows drawn from the model, a quarter of the variables observed."""
        import certimap as cm
        from certimap.ask.batch import BatchRow, map_rows
        from certimap.ask.inference import sample
        from certimap.ask.session import Session
        from certimap.solvers.request import Request

        model = cm.BayesianNetwork.from_cpts(*loopy_parts(N_VARIABLES, self._seed))
        observed = model.domain.names[:: N_VARIABLES // N_OBSERVED]
        drawn = sample(model, max(COUNTS), variables=observed, rng=self._seed)

        def row(k: int) -> BatchRow:
            given = {name: drawn[name][k] for name in observed}
            return BatchRow(k, lambda: (None, given), f"row {k}")

        def work(count: int) -> list[Any]:
            session = Session(model, Request(epsilon=0.0, delta=0.0))
            return list(map_rows(session, [row(k) for k in range(count)], 0))

        return work

    def _ranked(self, task: str) -> Callable[[int], list[Any]]:
        """Ask for the best assignments of every second variable, the others summed out."""
        import certimap as cm

        model: Any = random_learnspn(N_VARIABLES, N_EDGES, seed=self._seed)
        if task == "hmm":
            model = cm.BayesianNetwork.from_cpts(*parts_of("hmm", N_VARIABLES, self._seed))
        asked = model.domain.names[1 :: N_VARIABLES // N_QUERIED]

        def work(count: int) -> list[Any]:
            return [cm.map_query(model, asked, top_k=count, epsilon=0.0, delta=0.0, rng=0)]

        return work


def run_growth_queries(seed: int = 0, counts: Sequence[int] = COUNTS) -> list[Record]:
    """Measure every task at every count; return one record each, in processor seconds."""
    records: list[Record] = []
    for task in TASKS:
        for count in counts:
            (outcome,) = WorkerPool(1, _Measuring, (seed,)).run([Job((task, count), ["all"])])
            records.append(outcome.record or {"task": task, "count": count, "error": outcome.problem})
    return records


def growth_queries_table(records: Sequence[Record]) -> Table:
    """Return the table of processor seconds, one row per task and count."""
    table = Table(
        "growth-queries",
        "Growth: processor seconds by evidence rows and by best assignments",
        ("what", "how many", "seconds", "answers proved exact"),
    )
    for r in records:
        seconds, n_exact = significant(r.get("seconds")), str(r.get("n_exact", MISSING))
        table.add(TASKS[r["task"]], f"{r['count']:,}", seconds, n_exact)
    table.notes.append(
        f"{N_VARIABLES} variables. Rows: {N_STATES} states, two parents each, {N_OBSERVED} observed, the "
        f"most probable rest. Best assignments: of {N_QUERIED} variables in one query (so one proof), the others "
        f"summed out; the circuit has {N_EDGES:,} edges."
    )
    return table
