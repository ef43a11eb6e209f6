"""The tables of a run: ranks, runtimes, certificates, open queries, ratios of times."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from certimap.solvers.registry import family
from certimap_lab.bench.protocol import Split
from certimap_lab.bench.ranks import (
    TIE_NATS,
    Trials,
    in_order,
    is_certified,
    is_timeout,
    kind_of,
    log_prob_of,
    mean_and_error,
    seconds_of,
    winners,
)
from certimap_lab.bench.records import Record
from certimap_lab.bench.tabular import MISSING, Cell, Table, number, significant

PROVING = ("search", "elimination")  # families of solvers that prove an answer for certain
UNDERLINED = "Underlined: at least one trial ended at a limit without the certificate asked for."


def short_name(split: str) -> str:
    """Return a split as part of a file name."""
    return split.replace("/", "-")


def model_table(models: Sequence[Record]) -> Table:
    """Return how the circuits were learned and how well they fit."""
    table = Table(
        "models",
        "Circuits",
        ("circuit", "dataset", "variables", "edges", "learned on", "tested on", "test log-likelihood", "seconds"),
    )
    for m in sorted(models, key=lambda m: (m["circuit"], m["dataset"])):
        table.add(
            m["circuit"],
            m["dataset"],
            str(m["n_variables"]),
            str(m.get("n_edges") or MISSING),
            f"{m['train_rows_from']} ({m['n_train_rows']})",
            m["test_rows_from"] + (" (seen)" if m["test_rows_from"] == m["train_rows_from"] else ""),
            number(m["test_log_likelihood"], 3),
            number(m["seconds_learning"], 1),
        )
    table.notes.append(
        "Mean log-likelihood in nats. Where a split's file is absent the one named stands in; (seen): on the very "
        "rows that were learned on."
    )
    return table


def rank_table(trials: Trials, circuit: str, split: str) -> Table:
    """Return the average ranks per dataset, best in bold, with the times ranked highest."""
    solvers = trials.solvers(circuit, split)
    table = Table(
        f"ranks-{circuit}-{short_name(split)}",
        f"Average ranks, {circuit}, {Split.parse(split).title}",
        ("dataset", *solvers),
    )
    n_best = dict.fromkeys(solvers, 0)
    for dataset in trials.datasets(circuit, split):
        averages = trials.average_ranks(circuit, split, dataset)
        best = winners(averages)
        for solver in best:
            n_best[solver] += 1
        row: list[Cell | str] = [dataset]
        for solver in solvers:
            late = any(is_timeout(r) for r in trials.records(circuit, split, solver, dataset))
            row.append(number(averages.get(solver), bold=solver in best, underline=late))
        table.add(*row)
    table.add("times ranked highest", *(str(n_best[s]) for s in solvers))
    table.notes += [
        "Competition ranks of ln p(answer | e) on each query, ties within 1e-9 nats sharing the better rank, "
        "averaged over the queries. Bold: best.",
        UNDERLINED,
    ]
    return table


def runtime_table(trials: Trials, circuit: str, split: str) -> Table:
    """Return mean seconds ± standard error per dataset, conditioning and solving together."""
    solvers = trials.solvers(circuit, split)
    table = Table(
        f"runtimes-{circuit}-{short_name(split)}",
        f"Seconds, {circuit}, {Split.parse(split).title}",
        ("dataset", *solvers),
    )
    for dataset in trials.datasets(circuit, split):
        records = {s: trials.records(circuit, split, s, dataset) for s in solvers}
        means = {s: mean_and_error([seconds_of(r) for r in rs if "error" not in r]) for s, rs in records.items()}
        fastest = min((m for m, _ in means.values() if m is not None), default=math.nan)
        row: list[Cell | str] = [dataset]
        for solver in solvers:
            mean, error = means[solver]
            if mean is None:
                row.append(Cell(MISSING, underline=any(is_timeout(r) for r in records[solver])))
                continue
            text = significant(mean) + ("" if error is None else f" ± {significant(error, 2)}")
            row.append(Cell(text, mean, mean == fastest, any(is_timeout(r) for r in records[solver])))
        table.add(*row)
    table.notes += ["Mean ± standard error over the queries, conditioning included. Bold: fastest.", UNDERLINED]
    return table


def certificate_table(trials: Trials, circuit: str) -> Table:
    """Return how the trials of each method and split ended, and what they cost."""
    table = Table(
        f"certificates-{circuit}",
        f"How each answer was certified, {circuit}",
        (
            "split", "method", "trials", "exact", "epsilon", "pac", "heuristic", "limit", "failed", "certified %",
            "with delta = 0 %", "median s", "95 % s", "worst s", "median conditioning s", "peak MiB",
        ),
    )  # fmt: skip
    everything: dict[str, list[Record]] = {}
    for split in trials.splits(circuit):
        for solver in trials.solvers(circuit, split):
            records = trials.records(circuit, split, solver)
            table.add(split, solver, *_ending_cells(records))
            everything.setdefault(solver, []).extend(records)
    if len(trials.splits(circuit)) > 1:
        for solver in in_order(everything):
            table.add("all", solver, *_ending_cells(everything[solver]))
    table.notes.append(
        "Seconds of solving alone except where it says conditioning; failed trials count in the shares only."
    )
    picked = Counter(r["engine"] for r in everything.get("auto", []) if "engine" in r)
    if picked:
        shown = ", ".join(f"{name} {n}" for name, n in picked.most_common())
        table.notes.append(f"What auto ran: {shown}.")
    return table


def _ending_cells(records: Sequence[Record]) -> Iterator[Cell | str]:
    kinds = [kind_of(r) for r in records]
    yield str(len(records))
    for kind in ("exact", "epsilon", "pac", "heuristic", "limit", "failed"):
        yield str(kinds.count(kind))
    sure = [r for r in records if is_certified(r) and r["certificate"]["delta"] == 0]
    yield number(100 * sum(is_certified(r) for r in records) / len(records))
    yield number(100 * len(sure) / len(records))
    timed = [r for r in records if "error" not in r]
    solving = [r["seconds_solving"] for r in timed] or [math.nan]
    for share in (50, 95, 100):
        yield significant(float(np.percentile(solving, share)))
    yield significant(float(np.median([r["seconds_conditioning"] for r in timed] or [math.nan])))
    yield f"{max((r['peak_memory_mib'] for r in timed), default=math.nan):.0f}"


def certified_per_dataset(trials: Trials, circuit: str, split: str) -> Table:
    """Return, per dataset and method, how many trials ended with which certificate."""
    solvers = trials.solvers(circuit, split)
    table = Table(
        f"certified-{circuit}-{short_name(split)}",
        f"Certificates per dataset, {circuit}, {Split.parse(split).title}",
        ("dataset", *solvers),
    )
    for dataset in trials.datasets(circuit, split):
        row: list[Cell | str] = [dataset]
        for solver in solvers:
            records = trials.records(circuit, split, solver, dataset)
            kinds = [kind_of(r) for r in records]
            shown = [f"{kinds.count(k)} {k}" for k in dict.fromkeys(sorted(kinds, key=_KINDS.index))]
            row.append(Cell(", ".join(shown) or MISSING, underline=any(is_timeout(r) for r in records)))
        table.add(*row)
    table.notes.append(UNDERLINED)
    return table


_KINDS = ("exact", "epsilon", "pac", "heuristic", "limit", "failed")


def ratio_table(trials: Trials, circuit: str) -> Table:
    """Return, per split, how many times as long the sampling methods take as the proving ones."""
    table = Table(
        f"ratios-{circuit}",
        f"Ratio of times on the same query, {circuit}",
        ("split", "sampler / prover", "both certify", "median", "geometric mean", "lowest", "highest",
         "only prover", "only sampler", "neither"),
    )  # fmt: skip
    for split in trials.splits(circuit):
        solvers = trials.solvers(circuit, split)
        for prover in (s for s in solvers if family(s) in PROVING):
            for sampler in (s for s in solvers if family(s) == "sampling"):
                table.add(split, f"{sampler} / {prover}", *_ratio_cells(trials, circuit, split, prover, sampler))
    table.notes.append(
        "Seconds of the sampler over seconds of the prover, conditioning included, where both certify."
    )
    return table


def _pairs(trials: Trials, circuit: str, split: str, *solvers: str) -> Iterator[tuple[Record, ...]]:
    """Yield the records of several methods on each query that all were run on."""
    for queries in trials.queries[circuit, split].values():
        for by_solver in queries.values():
            if all(s in by_solver for s in solvers):
                yield tuple(by_solver[s] for s in solvers)


def _ratio_cells(trials: Trials, circuit: str, split: str, prover: str, sampler: str) -> Iterator[Cell | str]:
    pairs = list(_pairs(trials, circuit, split, prover, sampler))
    proved = [is_certified(p) for p, _ in pairs]
    sampled = [is_certified(s) for _, s in pairs]
    both = [(p, s) for p, s in pairs if is_certified(p) and is_certified(s)]
    ratios = np.array([seconds_of(s) / max(seconds_of(p), 1e-9) for p, s in both] or [math.nan])
    yield str(len(both))
    yield significant(float(np.median(ratios)))
    yield significant(float(np.exp(np.mean(np.log(ratios)))))
    yield significant(float(ratios.min()))
    yield significant(float(ratios.max()))
    yield str(sum(p and not s for p, s in zip(proved, sampled, strict=True)))
    yield str(sum(s and not p for p, s in zip(proved, sampled, strict=True)))
    yield str(sum(not s and not p for p, s in zip(proved, sampled, strict=True)))


def below_table(trials: Trials, circuit: str) -> Table:
    """Return how often each method answered with a lower probability than another one did."""
    table = Table(
        f"below-{circuit}",
        f"Answers below the best one known, {circuit}",
        ("split", "method", "answers", "below the best", "worst deficit (nats)", "certified and false"),
    )
    for split in trials.splits(circuit):
        for solver in trials.solvers(circuit, split):
            deficits: list[float] = []
            n_false = 0
            for queries in trials.queries[circuit, split].values():
                for by_solver in queries.values():
                    mine = log_prob_of(by_solver[solver]) if solver in by_solver else None
                    if mine is None:
                        continue
                    best = max(v for r in by_solver.values() if (v := log_prob_of(r)) is not None)
                    deficit = 0.0 if best == mine else best - mine
                    deficits.append(deficit)
                    n_false += _is_false(by_solver[solver], deficit)
            low = sum(d > TIE_NATS for d in deficits)
            worst = significant(max(deficits, default=0.0)) if low else "0"
            table.add(split, solver, str(len(deficits)), str(low), worst, str(n_false))
    table.notes.append(
        "Below: by more than 1e-9 nats. False: the certificate claims (1 - epsilon) p*, and another method's "
        "answer shows that it is lower; for a pac certificate that may happen with probability delta."
    )
    return table


def _is_false(record: Record, deficit: float) -> bool:
    """Whether an answer this far below another contradicts its certificate."""
    if not is_certified(record):
        return False
    return deficit > -math.log1p(-record["certificate"]["epsilon"]) + TIE_NATS


def open_table(trials: Trials, circuit: str) -> Table:
    """Return the trials that ended uncertified, with their gap and what a certificate would take."""
    table = Table(
        f"open-{circuit}",
        f"Trials that ended without a certificate, {circuit}",
        ("split", "dataset", "query", "method", "ln p", "gap (bits)", "ln open mass", "log10 draws needed",
         "draws made", "delta reached", "reason"),
    )  # fmt: skip
    for split in trials.splits(circuit):
        for solver in trials.solvers(circuit, split):
            for r in trials.records(circuit, split, solver):
                if kind_of(r) not in ("limit", "failed"):
                    continue
                gap, certificate = r.get("gap"), r.get("certificate")
                table.add(
                    split,
                    r["dataset"],
                    str(r["query"]),
                    solver,
                    number(r.get("log_prob"), 3),
                    number(None if gap is None else gap / math.log(2), 2),
                    number(r.get("log_open_mass"), 2),
                    number(log10_draws_needed(r), 1),
                    str(r.get("n_draws", MISSING)),
                    significant(certificate["delta"]) if certificate else MISSING,
                    (r.get("error") or r.get("status") or "").strip().splitlines()[-1],
                )
    table.notes.append(
        "Draws needed: ln(1/delta) / -ln(1 - tau/R), with R the open mass and tau = p(answer)/(1 - epsilon)."
    )
    return table


def log10_draws_needed(record: Record) -> float | None:
    """Return the decimal logarithm of the draws that would certify an uncertified answer, or None."""
    log_prob, delta = record.get("log_prob"), record.get("requested_delta")
    if log_prob is None or not delta:
        return None
    from certimap.certify.bounds import log_draws_needed, log_tau

    open_mass = record.get("log_open_mass")
    target = log_tau(log_prob, record.get("requested_epsilon", 0.0))
    return log_draws_needed(target, delta, 0.0 if open_mass is None else open_mass) / math.log(10)


def overview_table(trials: Trials, circuit: str) -> Table:
    """Return the times ranked highest and the mean of the average ranks, per method and split."""
    splits = trials.splits(circuit)
    solvers = in_order(s for split in splits for s in trials.solvers(circuit, split))
    header = [h for split in splits for h in (f"{split} highest", f"{split} mean rank")]
    table = Table(f"overview-{circuit}", f"Times ranked highest and mean rank, {circuit}", ("method", *header))
    columns: list[dict[str, tuple[int, float]]] = [_standing(trials, circuit, split) for split in splits]
    for solver in solvers:
        row: list[Cell | str] = [solver]
        for column in columns:
            highest, mean = column.get(solver, (0, math.nan))
            row += [str(highest) if solver in column else Cell(MISSING), number(mean, 2)]
        table.add(*row)
    return table


def _standing(trials: Trials, circuit: str, split: str) -> dict[str, tuple[int, float]]:
    """Return (times ranked highest, mean over datasets of the average rank) of each method."""
    averages = [trials.average_ranks(circuit, split, d) for d in trials.datasets(circuit, split)]
    best = [winners(a) for a in averages]
    return {
        solver: (
            sum(solver in b for b in best),
            float(np.mean([a[solver] for a in averages if solver in a] or [math.nan])),
        )
        for solver in trials.solvers(circuit, split)
    }


def all_tables(trials: Trials, models: Sequence[Record]) -> list[Table]:
    """Return every table of a run, circuit by circuit."""
    tables = [model_table(models)] if models else []
    per_split: tuple[Callable[[Trials, str, str], Table], ...] = (rank_table, runtime_table, certified_per_dataset)
    for circuit in trials.circuits:
        tables += [overview_table(trials, circuit), certificate_table(trials, circuit)]
        tables += [make(trials, circuit, split) for make in per_split for split in trials.splits(circuit)]
        tables += [ratio_table(trials, circuit), below_table(trials, circuit), open_table(trials, circuit)]
    return [table for table in tables if table.rows]
