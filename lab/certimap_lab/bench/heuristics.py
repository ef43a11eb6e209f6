"""What heuristics are worth: their answers beside proved optima, on random and on learned circuits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from certimap.circuits.tensors import is_installed
from certimap.core.domain import Label
from certimap.core.model import Model
from certimap_lab.bench.protocol import BenchQuery, Split, draw_query
from certimap_lab.bench.random_circuits import random_learnspn
from certimap_lab.bench.records import BenchError, Record
from certimap_lab.bench.tabular import Table, significant

SOLVERS = (
    "independent",
    "max_product",
    "argmax_product",
    "hybrid_bp",
    "beam",
    "hill_climb",
    "mcmc",
    "mcts",
)
NEEDS_TORCH = ("itself",)
EXACT = 1e-8  # nats below the optimum up to which an answer counts as exact
SPLITS = (Split(20, 80), Split(50, 50), Split(20, 50), Split(50, 30))
N_ASKED = 12  # variables of a random circuit that are queried: few enough to list all assignments


@dataclass(frozen=True)
class HeuristicsPlan:
    """What is measured.

    Attributes
    ----------
    n_random
        Random circuits, each with one query that is small enough to list.
    models
        Files of learned circuits, named DATASET-CIRCUIT.npz as `certimap bench twenty` keeps them.
    n_learned
        Queries of learned circuits, spread over the models; where `auto` proves no optimum they are left out.
    solvers
        The heuristics; by default those that can run here.
    time_limit
        Seconds per answer, and for the proof.
    """

    n_random: int = 200
    models: tuple[Path, ...] = ()
    n_learned: int = 100
    solvers: tuple[str, ...] = field(default_factory=lambda: SOLVERS + (NEEDS_TORCH if is_installed() else ()))
    time_limit: float = 20.0
    seed: int = 0


def run_heuristics(plan: HeuristicsPlan, report: Callable[[str], None] | None = None) -> list[Record]:
    """Ask every heuristic for every query; return a record per answer: group, solver, gap (nats) and seconds.

    Optima are proved by `auto` (by listing all assignments on the random circuits).
    """
    import certimap as cm

    records: list[Record] = []
    for group, name, model, query in _cases(plan):
        settings: dict[str, Any] = {"time_limit": plan.time_limit, "rng": plan.seed}
        prover = "exhaustive" if group == "random" else "auto"
        proof = cm.map_query(model, query.variables, query.evidence, solver=prover, epsilon=0, delta=0, **settings)
        if proof.certificate.kind != "exact" or proof.log_prob is None:
            continue
        for solver in plan.solvers:
            started = time.perf_counter()
            answer = cm.map_query(model, query.variables, query.evidence, solver=solver, **settings)
            seconds = time.perf_counter() - started
            gap = math.inf if answer.log_prob is None else max(proof.log_prob - answer.log_prob, 0.0)
            records.append({"group": group, "case": name, "solver": solver, "gap": gap, "seconds": seconds})
        if report is not None:
            report(f"{group} {name}: {len(query.variables)} variables queried")
    return records


def _cases(plan: HeuristicsPlan) -> Iterator[tuple[str, str, Model, BenchQuery]]:
    import certimap as cm

    for i in range(plan.n_random):
        rng = np.random.default_rng([plan.seed, i])
        n_states = int(rng.integers(2, 4))
        n_asked = N_ASKED if n_states == 2 else N_ASKED - 4
        circuit = random_learnspn(n_asked + 4, int(rng.integers(200, 2000)), seed=i, n_states=n_states)
        names = [circuit.domain.names[int(v)] for v in rng.permutation(n_asked + 4)]
        evidence: dict[str, Label] = dict.fromkeys(names[:2], 0)
        yield "random", str(i), circuit, BenchQuery(tuple(names[4:]), evidence, "random", 0)
    for k in range(plan.n_learned if plan.models else 0):
        path = plan.models[k % len(plan.models)]
        turn = k // len(plan.models)
        model = cm.read(path)
        query = draw_query(model, plan.seed, path.stem, SPLITS[turn % len(SPLITS)], turn // len(SPLITS))
        yield "learned", f"{path.stem} {SPLITS[turn % len(SPLITS)].name}", model, query


def models_in(folder: Path) -> tuple[Path, ...]:
    """Return the learned models of a folder, in order of their names.

    Raises
    ------
    BenchError
        When there is none.
    """
    found = tuple(sorted(folder.glob("*-*.npz")))
    if not found:
        raise BenchError(
            f"{folder} holds no model; expected files DATASET-CIRCUIT.npz, as bench twenty keeps them"
        )
    return found


def heuristics_table(records: Sequence[Record]) -> Table:
    """Return what each heuristic is worth, a row per heuristic, columns by group of circuits."""
    groups = [g for g in ("random", "learned") if any(r["group"] == g for r in records)]
    parts = ("exact, %", "mean gap", "worst gap", "median ms")
    header = ("heuristic", *(f"{group}: {part}" for group in groups for part in parts))
    table = Table("heuristics", "What heuristics are worth", header)
    for solver in dict.fromkeys(r["solver"] for r in records):
        cells: list[str] = []
        for group in groups:
            own = [r for r in records if r["group"] == group and r["solver"] == solver]
            gaps = np.array([r["gap"] for r in own])
            cells.append(f"{100.0 * float(np.mean(gaps <= EXACT)):.0f}")
            cells += [significant(float(np.mean(gaps))), significant(float(np.max(gaps)))]
            cells.append(significant(1e3 * float(np.median([r["seconds"] for r in own]))))
        table.add(solver, *cells)
    counts = [f"{len({r['case'] for r in records if r['group'] == g})} {g}" for g in groups]
    table.notes.append(
        f"Queries on {' and '.join(counts)} circuits whose optimum is proved; gaps to it in nats. "
        "Times are those of whole calls, conditioning included."
    )
    return table
