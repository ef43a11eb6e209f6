"""Tables of a run on networks: by method, case by case, and the gap against time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from certimap_lab.bench.networks import PEER, gap_of, is_proved, standing
from certimap_lab.bench.ranks import in_order, kind_of
from certimap_lab.bench.records import Record
from certimap_lab.bench.tabular import MISSING, Cell, Table, number, significant

MOMENTS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0)  # seconds
ByCase = dict[str, dict[str, Record]]


def network_tables(records: Sequence[Record], missing: Sequence[str] = ()) -> list[Table]:
    """Return the tables of a run; none without records.

    `missing` holds a sentence per peer that was left out. Where no reference is on file, answers are compared with
    the best one of the run.
    """
    if not records:
        return []
    cases = by_case(records)
    solvers = _methods(records)
    tables = [_summary_table(cases, solvers, missing), _case_table(cases, solvers)]
    tables += [_bound_table(cases, solvers), _time_table(cases, solvers)]
    return [t for t in tables if t.rows]


def by_case(records: Sequence[Record]) -> ByCase:
    """Return the records by case and solver, each compared with the best answer known for its case."""
    cases: ByCase = {}
    for record in records:
        cases.setdefault(record["case"], {})[record["solver"]] = dict(record)
    for mine in cases.values():
        found = [r["log_joint"] for r in mine.values() if r.get("log_joint") is not None]
        if not found or any(r["best_log_joint"] is not None for r in mine.values()):
            continue
        for record in mine.values():
            record["best_log_joint"] = max(found)
            if record.get("log_joint") is not None:
                record["above_best"] = record["log_joint"] - max(found)
    return cases


def open_cases(cases: ByCase) -> list[str]:
    """Return the cases on which a solver of ours that ran for a second or more left a gap."""
    return [
        name
        for name, mine in cases.items()
        if any((gap_of(r) or 0.0) > 0.0 and r.get("history") and r["seconds"] > 1.0 for r in mine.values())
    ]


def gap_series(mine: dict[str, Record]) -> dict[str, list[tuple[float, float]]]:
    """Return (seconds, gap in nats) of each solver on one case: its bound above the best answer known."""
    best = max((r["log_joint"] for r in mine.values() if r.get("log_joint") is not None), default=None)
    if best is None:
        return {}
    return {
        solver: [(seconds, max(0.0, upper - best)) for seconds, _, upper in mine[solver]["history"]]
        for solver in _methods(list(mine.values()))
        if mine[solver].get("history")
    }


def _methods(records: Sequence[Record]) -> list[str]:
    """Return solvers in the order of the registry, those with settings after them, then peers."""
    names = {r["solver"] for r in records}
    peers = sorted(n for n in names if n.startswith(PEER))
    plain = in_order(n for n in names if n not in peers and ":" not in n)
    return [*sorted((n for n in names if ":" in n and n not in peers), key=_setting_key), *plain, *peers]


def _setting_key(name: str) -> tuple[str, list[int]]:
    first, *settings = name.split(":")
    return first, [int(s.partition("=")[2] or 0) for s in settings]


def _summary_table(cases: ByCase, solvers: Sequence[str], missing: Sequence[str]) -> Table:
    header = ("method", "cases", "best", "better", "below", "no answer", "proved", "other certificate",
              "left with a gap", "median gap there", "median s", "worst s", "peak MiB")  # fmt: skip
    table = Table("networks-summary", "Networks: answers beside the best known", header)
    for solver in solvers:
        mine = [by_solver[solver] for by_solver in cases.values() if solver in by_solver]
        standings = [standing(r) for r in mine]
        timed = sorted(r["seconds"] for r in mine if "seconds" in r and "error" not in r)
        gaps = sorted(g for r in mine if (g := gap_of(r)) is not None and g > 0.0 and not is_proved(r))
        table.add(
            solver,
            str(len(mine)),
            *(str(standings.count(s)) for s in ("best", "better", "below", "none")),
            str(sum(is_proved(r) for r in mine)),
            str(sum(kind_of(r) in ("epsilon", "pac") for r in mine)),
            str(len(gaps)),
            significant(gaps[len(gaps) // 2] if gaps else None),
            significant(timed[len(timed) // 2] if timed else None),
            significant(timed[-1] if timed else None),
            f"{max((r['peak_memory_mib'] for r in mine if 'peak_memory_mib' in r), default=0):.0f}",
        )
    table.notes.append(
        "Best: the best answer known, or within 1e-5 nats of it (of this run's where none is on file). Gap: "
        "upper bound less answer, in nats. Seconds from the query to the answer, compiling the network "
        "included, reading it not."
    )
    if any(s.startswith(PEER) for s in solvers):
        table.notes.append(
            "Peers: answers scored by certimap's tables; proved by their own account; one that fails, is ended at "
            "the time limit or passes the memory limit has no answer."
        )
    table.notes += missing
    return table


def _case_table(cases: ByCase, solvers: Sequence[str]) -> Table:
    timed = any(r.get("reference_seconds") is not None for mine in cases.values() for r in mine.values())
    header = ["case", "queried", "best ln p(q, e)", *(["toulbar2 then, s"] if timed else []), *solvers]
    table = Table("networks-cases", "Networks, case by case", header)
    for name, mine in cases.items():
        first = next(iter(mine.values()))
        known = number(first["best_log_joint"], 4)
        row: list[Cell | str] = [
            name,
            _queried(mine),
            Cell(known.text + ("" if known.value is None or _is_sure(mine) else " ?")),
        ]
        if timed:
            row.append(significant(first.get("reference_seconds")))
        table.add(*row, *(_case_cell(mine.get(s)) for s in solvers))
    table.notes.append(
        "Each cell: proved (or the certificate, or the gap in nats), then seconds; 'below' by how many nats the "
        "answer is below the best known. A question mark: nobody has proved that the best known is the best."
    )
    return table


def _queried(mine: dict[str, Record]) -> str:
    for record in mine.values():
        if record["query"] is not None:
            return str(len(record["query"]))
        if "assignment" in record:
            return str(len(record["assignment"]))
    return "all"


def _is_sure(mine: dict[str, Record]) -> bool:
    return any(r["proven_optimal"] or (kind_of(r) == "exact" and standing(r) != "below") for r in mine.values())


def _case_cell(record: Record | None) -> Cell:
    if record is None:
        return Cell(MISSING)
    if "error" in record:
        return Cell(_failure(record), underline=record["error"] == "overran")
    gap, kind = gap_of(record), kind_of(record)
    upper: float | None = record.get("log_joint_upper_bound")
    if record.get("log_joint") is None:
        text = "no answer" + ("" if upper is None else f", bound {upper:.4f}")
    elif is_proved(record):
        text = "proved"
    elif kind in ("epsilon", "pac"):
        text = kind
    else:
        text = "no bound" if gap is None else f"gap {significant(gap)}"
    below = -(record.get("above_best") or 0.0)
    shown = f", below {significant(below)}" if standing(record) == "below" else ""
    return Cell(f"{text}, {significant(record['seconds'])}{shown}", bold=is_proved(record) and not shown)


def _failure(record: Record) -> str:
    if record.get("unsuited"):
        return "not asked"
    text = str(record["error"]).strip().splitlines()[-1]
    if text == "overran":
        return "over time"
    return "refused" if text.startswith("SolverError") else text[:40]


def _ending(record: Record) -> str:
    if "error" in record:
        return _failure(record)
    return "proved" if is_proved(record) else str(record.get("status", "open"))


def _bound_table(cases: ByCase, solvers: Sequence[str]) -> Table:
    """Return what our solvers left unproved, with the bound that each run began with."""
    table = Table(
        "networks-bounds",
        "What stayed open: answers and bounds",
        ("case", "queried", "method", "solver", "ln p(q, e)", "upper bound", "gap", "first bound", "s", "end"),
    )
    n_all = n_proved = n_closer = 0
    for name, mine in cases.items():
        for solver in (s for s in solvers if s in mine and not s.startswith(PEER)):
            record = mine[solver]
            n_all += 1
            if is_proved(record):
                n_proved += 1
                continue
            upper: float | None = record.get("log_joint_upper_bound")
            first: float | None = record["history"][0][2] if record.get("history") else None
            n_closer += int(upper is not None and first is not None and upper < first)
            table.add(
                name,
                _queried(mine),
                solver,
                str(record.get("engine", MISSING)),
                number(record.get("log_joint"), 4),
                number(upper, 4),
                significant(gap_of(record)),
                number(first, 4),
                significant(record.get("seconds")),
                _ending(record),
            )
    table.notes.append(
        f"{n_proved} of {n_all} trials ended with a proof of exactness; {n_closer} of the others with a bound "
        "below the first one of their run."
    )
    return table


def _time_table(cases: ByCase, solvers: Sequence[str]) -> Table:
    """Return the gap at a few moments, for the cases that a solver left open."""
    longest = max(
        (r["seconds"] for mine in cases.values() for r in mine.values() if r.get("history")), default=0.0
    )
    moments = [m for m in MOMENTS if m <= 1.2 * longest] or [MOMENTS[0]]
    header = ["case", "method", *(f"{m:g} s" for m in moments), "end", "s", "answer below the best"]
    table = Table("networks-time", "Gap over time, cases left open", header)
    for name in open_cases(cases):
        series = gap_series(cases[name])
        for solver in (s for s in solvers if s in series):
            record = cases[name][solver]
            below = -(record.get("above_best") or 0.0)
            ended = record["seconds"]
            table.add(
                name,
                solver,
                *_at_moments(series[solver], moments, ended),
                significant(series[solver][-1][1]),
                significant(ended),
                significant(below if standing(record) == "below" else 0.0),
            )
    table.notes.append(
        "Upper bound less the best answer of any method, in nats, at so many seconds. '=': the run had ended."
    )
    return table


def _at_moments(series: Sequence[tuple[float, float]], moments: Sequence[float], ended: float) -> Iterator[str]:
    for moment in moments:
        if moment > ended:
            yield "="
            continue
        passed = [gap for seconds, gap in series if seconds <= moment]
        yield significant(passed[-1] if passed else None)
