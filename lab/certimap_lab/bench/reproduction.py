"""The published experiments beside a recorded run of all seven methods, with the settings of the paper."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from certimap_lab.bench.paper import paper
from certimap_lab.bench.ranks import TIE_NATS, Trials, is_timeout, log_prob_of, mean_and_error, seconds_of, winners
from certimap_lab.bench.records import BenchError, Record, read_records
from certimap_lab.bench.report import run_head
from certimap_lab.bench.tabular import MISSING, Cell, Table, number, significant
from certimap_lab.bench.twenty import TRIALS

METHODS = {
    "independent": "independent",
    "max_product": "paper_max_product",
    "argmax_product": "argmax_product",
    "hbp": "hybrid_bp",
    "itself": "itself",
    "pac": "paper_pac",
    "smooth_pac": "paper",
}
"""The published methods, and the solvers here that follow them; the samplers with the published settings."""

PROVER = "auto"  # what the answers are compared with where it proves the optimum
CIRCUIT = "learnspn"


def reproduction(run: Path) -> str:
    """Return the tables of a run as Markdown, with how it was made.

    Raises
    ------
    BenchError
        When the run holds no trial of a published method on a LearnSPN circuit.
    """
    records = read_records(run / TRIALS)
    kept = [r for r in records if r["circuit"] == CIRCUIT and r["split"] in paper()["splits"]]
    trials = Trials.of(kept, tuple(METHODS.values()))
    if not trials.queries:
        raise BenchError(f"{run} holds no trial of {', '.join(METHODS.values())} on {CIRCUIT} circuits")
    every = Trials.of(kept)
    tables = [standing_table(trials), optimum_table(every), *folding_tables(every), seconds_table(trials)]
    return "\n".join([*run_head(run, records), *(table.to_markdown() for table in tables)])


def _ours(trials: Trials, split: str, dataset: str) -> dict[str, float]:
    """Return our average ranks under the published names."""
    ranks = trials.average_ranks(CIRCUIT, split, dataset)
    return {theirs: ranks[ours] for theirs, ours in METHODS.items() if ours in ranks}


def _standing(averages: Iterable[Mapping[str, float]]) -> dict[str, tuple[int, float]]:
    """Return (times ranked highest, mean of the average ranks) of each method."""
    known = list(averages)
    best = [winners(a) for a in known]
    found = {m: [a[m] for a in known if m in a] for m in METHODS}
    return {m: (sum(m in b for b in best), float(np.mean(values))) for m, values in found.items() if values}


def standing_table(trials: Trials) -> Table:
    """Return times ranked highest and mean ranks by split, published and ours, over the datasets of the run."""
    splits = trials.splits(CIRCUIT)
    header = ["method", "here"]
    for split in splits:
        header += [f"{split} highest", "paper", f"{split} mean rank", "paper"]
    table = Table("reproduction-ranks", "Times ranked highest and mean rank, all seven methods", header)
    columns: list[tuple[dict[str, tuple[int, float]], dict[str, tuple[int, float]]]] = []
    for split in splits:
        datasets = [d for d in trials.datasets(CIRCUIT, split) if d in paper()["average_rank"]]
        ours = _standing(_ours(trials, split, d) for d in datasets)
        theirs = _standing(paper()["average_rank"][d][split] for d in datasets)
        columns.append((ours, theirs))
    for method, solver in METHODS.items():
        row: list[Cell | str] = [method, solver]
        for ours, theirs in columns:
            mine, published = ours.get(method), theirs.get(method)
            row += [str(mine[0]) if mine else MISSING, str(published[0]) if published else MISSING]
            row += [number(mine[1] if mine else None, 2), number(published[1] if published else None, 2)]
        table.add(*row)
    table.notes.append(
        "Both sides over the datasets of the run, ranks among the methods that have an answer. The published "
        "tables have no ITSELF where nuisance variables are summed out."
    )
    return table


def optimum_table(trials: Trials) -> Table:
    """Return how often each method's answer is the optimum, where that is proved."""
    table = Table(
        "reproduction-optimum",
        "Answers beside the proved optimum",
        ("method", "answers", "at the optimum, %", "mean gap (nats)", "worst gap (nats)", "ended at a limit, %"),
    )
    for method, solver in METHODS.items():
        gaps: list[float] = []
        late: list[bool] = []
        for place, datasets in trials.queries.items():
            for dataset in datasets:
                for record, proof in _pairs(trials, place, dataset, solver):
                    value = log_prob_of(record)
                    gaps.append(math.inf if value is None else max(proof - value, 0.0))
                    late.append(is_timeout(record))
        if gaps:
            finite = [g for g in gaps if math.isfinite(g)]
            table.add(
                method,
                str(len(gaps)),
                number(100.0 * float(np.mean(np.array(gaps) <= 10 * TIE_NATS)), 0),
                significant(float(np.mean(finite)) if finite else None),
                significant(max(gaps)),
                number(100.0 * float(np.mean(late)), 0),
            )
    table.notes.append(f"Over the queries whose optimum `{PROVER}` proves as exact.")
    return table


def _pairs(trials: Trials, place: tuple[str, str], dataset: str, solver: str) -> Iterable[tuple[Record, float]]:
    """Yield a method's records with ln p of the optimum, where it is proved."""
    for by_solver in trials.queries[place][dataset].values():
        proof: dict[str, Any] = by_solver.get(PROVER, {})
        if proof.get("certificate", {}).get("kind") == "exact" and solver in by_solver:
            yield by_solver[solver], float(proof["log_prob"])


def folding_tables(trials: Trials) -> list[Table]:
    """Return a table of max-product on circuits as learned beside that on folded ones, or none without both."""
    table = Table(
        "reproduction-folding",
        "Max-product on the circuit as learned, and conditioned and folded",
        ("split", "queries", "as learned better", "folded better", "same", "mean of folded - as learned (nats)"),
    )
    for split in trials.splits(CIRCUIT):
        gains: list[float] = []
        for by_index in trials.queries[CIRCUIT, split].values():
            for by_solver in by_index.values():
                pair = [log_prob_of(by_solver[s]) for s in ("paper_max_product", "max_product") if s in by_solver]
                if len(pair) == 2 and pair[0] is not None and pair[1] is not None:
                    gains.append(pair[1] - pair[0])
        if gains:
            array = np.array(gains)
            counts = [np.sum(array < -TIE_NATS), np.sum(array > TIE_NATS), np.sum(np.abs(array) <= TIE_NATS)]
            table.add(split, str(len(gains)), *(str(int(c)) for c in counts), significant(float(array.mean())))
    return [table] if table.rows else []


def seconds_table(trials: Trials) -> Table:
    """Return the geometric mean over datasets of the mean seconds per method and split, ours and published."""
    splits = trials.splits(CIRCUIT)
    header = ["method", *(h for split in splits for h in (split, "paper"))]
    table = Table("reproduction-seconds", "Seconds: geometric mean over the datasets of the run", header)
    for method, solver in METHODS.items():
        row: list[Cell | str] = [method]
        for split in splits:
            pairs: list[tuple[float, float]] = []
            for dataset in trials.datasets(CIRCUIT, split):
                records = trials.records(CIRCUIT, split, solver, dataset)
                mean, _ = mean_and_error([seconds_of(r) for r in records if "error" not in r])
                theirs = paper()["seconds"].get(dataset, {}).get(split, {}).get(method)
                if mean and theirs:
                    pairs.append((mean, theirs[0]))
            logs = np.log(np.array(pairs)).mean(axis=0) if pairs else [math.nan, math.nan]
            row += [significant(math.exp(logs[0])), significant(math.exp(logs[1]))]
        table.add(*row)
    table.notes.append(
        f"Conditioning included; `itself` trains for each query. Published: on {paper()['machine']}, other "
        "circuits, no time limit."
    )
    return table
