"""A run set beside the published figures."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from certimap_lab.bench.paper import METHODS, SAMPLERS, paper
from certimap_lab.bench.protocol import Split
from certimap_lab.bench.ranks import Trials, mean_and_error, seconds_of, winners
from certimap_lab.bench.tables import short_name
from certimap_lab.bench.tabular import MISSING, Cell, Table, number, significant


def comparison_tables(trials: Trials, circuit: str) -> list[Table]:
    """Return the tables that set a circuit's runs beside the published ones; none without a published sampler.

    Only the methods that both have are ranked against each other here, on both sides: published ranks
    are among six or seven methods, so where a method in between is absent here its successors can rank
    better by one.
    """
    kept = Trials.of(
        (
            r
            for (c, s), datasets in trials.queries.items()
            if c == circuit and s in paper()["splits"]
            for queries in datasets.values()
            for by_solver in queries.values()
            for r in by_solver.values()
        ),
        METHODS,
    )
    splits = kept.splits(circuit)
    if not any(name in SAMPLERS for split in splits for name in kept.solvers(circuit, split)):
        return []
    tables = [_highest_table(kept, circuit, splits), _speed_table(kept, circuit, splits)]
    tables += [_rank_table(kept, circuit, split) for split in splits]
    tables += [_runtime_table(kept, circuit, split) for split in splits]
    return [t for t in tables if t.rows]


def _shared(trials: Trials, circuit: str, split: str) -> list[str]:
    return [d for d in trials.datasets(circuit, split) if d in paper()["average_rank"]]


def _highest_table(trials: Trials, circuit: str, splits: list[str]) -> Table:
    """Return times ranked highest and mean average rank, ours and the published ones on the same datasets."""
    header = ["method"]
    for split in splits:
        header += [f"{split} highest", "(paper)", f"{split} mean rank", "(paper)"]
    table = Table(f"paper-overview-{circuit}", f"Beside the paper: standing of the methods, {circuit}", header)
    columns = [_both_standings(trials, circuit, split) for split in splits]
    for method in METHODS:
        row: list[Cell | str] = [method]
        for ours, theirs in columns:
            for_ours, for_theirs = ours.get(method), theirs.get(method)
            row.append(str(for_ours[0]) if for_ours else Cell(MISSING))
            row.append(str(for_theirs[0]) if for_theirs else Cell(MISSING))
            row.append(number(for_ours[1] if for_ours else None, 2))
            row.append(number(for_theirs[1] if for_theirs else None, 2))
        table.add(*row)
    table.notes += [
        f"Paper: {paper()['source']}",
        "Both sides over the datasets of this run. Published ranks are among six or seven methods; ours here are "
        "among the five that both have.",
    ]
    return table


def _both_standings(
    trials: Trials, circuit: str, split: str
) -> tuple[dict[str, tuple[int, float]], dict[str, tuple[int, float]]]:
    datasets = _shared(trials, circuit, split)
    ours = [trials.average_ranks(circuit, split, d) for d in datasets]
    theirs = [paper()["average_rank"][d][split] for d in datasets]
    return _standing(ours), _standing(theirs)


def _standing(averages: list[dict[str, float]]) -> dict[str, tuple[int, float]]:
    found = {m for a in averages for m in a}
    best = [winners(a) for a in averages]
    return {
        m: (sum(m in b for b in best), float(np.mean([a[m] for a in averages if m in a])))
        for m in METHODS
        if m in found
    }


def _rank_table(trials: Trials, circuit: str, split: str) -> Table:
    present = [m for m in METHODS if m in trials.solvers(circuit, split)]
    title = f"Beside the paper: average ranks, {circuit}, {Split.parse(split).title}"
    table = Table(f"paper-ranks-{circuit}-{short_name(split)}", title, ("dataset", *present))
    for dataset in _shared(trials, circuit, split):
        ours = trials.average_ranks(circuit, split, dataset)
        theirs: Mapping[str, float] = paper()["average_rank"][dataset][split]
        row: list[Cell | str] = [dataset]
        for method in present:
            mine = number(ours.get(method)).text
            row.append(Cell(f"{mine} ({number(theirs.get(method)).text})", bold=method in winners(ours)))
        table.add(*row)
    table.notes.append("Ours among the five methods shown, in brackets the published rank among six or seven.")
    return table


def _runtime_table(trials: Trials, circuit: str, split: str) -> Table:
    present = [m for m in METHODS if m in trials.solvers(circuit, split)]
    title = f"Beside the paper: mean seconds, {circuit}, {Split.parse(split).title}"
    table = Table(f"paper-runtimes-{circuit}-{short_name(split)}", title, ("dataset", *present))
    for dataset in _shared(trials, circuit, split):
        row: list[Cell | str] = [dataset]
        for method in present:
            mean, _ = _our_seconds(trials, circuit, split, method, dataset)
            theirs = paper()["seconds"][dataset][split].get(method)
            row.append(f"{significant(mean)} ({significant(theirs[0] if theirs else None)})")
        table.add(*row)
    table.notes.append(
        f"In brackets the published mean, on other hardware and software ({paper()['machine']}), with circuits "
        "learned by other means and without a time limit."
    )
    return table


def _our_seconds(
    trials: Trials, circuit: str, split: str, method: str, dataset: str
) -> tuple[float | None, float | None]:
    records = trials.records(circuit, split, method, dataset)
    return mean_and_error([seconds_of(r) for r in records if "error" not in r])


def _speed_table(trials: Trials, circuit: str, splits: list[str]) -> Table:
    """Return the geometric mean over the datasets of the mean seconds, ours and published."""
    header = ["method"]
    for split in splits:
        header += [split, "(paper)"]
    title = f"Beside the paper: geometric mean over the datasets of the mean seconds, {circuit}"
    table = Table(f"paper-speed-{circuit}", title, header)
    for method in METHODS:
        row: list[Cell | str] = [method]
        for split in splits:
            pairs = [
                (mean, theirs[0])
                for d in _shared(trials, circuit, split)
                if (mean := _our_seconds(trials, circuit, split, method, d)[0])
                and (theirs := paper()["seconds"][d][split].get(method))
            ]
            logs = np.log(np.array(pairs)).mean(axis=0) if pairs else [math.nan, math.nan]
            row += [significant(math.exp(logs[0])), significant(math.exp(logs[1]))]
        table.add(*row)
    table.notes.append(
        "Our sampling methods stop at the run's time limit, the published ones at the draw limit alone."
    )
    return table
