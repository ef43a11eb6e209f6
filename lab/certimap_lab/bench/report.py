"""Writing a run's tables and figures, one file each and all together in one page of Markdown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from certimap import plots
from certimap.errors import MissingDependency
from certimap_lab.bench import drawn
from certimap_lab.bench.comparison import comparison_tables
from certimap_lab.bench.figures import (
    certified_seconds,
    illustration,
    pareto_records,
    pareto_table,
    warm_pairs,
    warm_start_table,
)
from certimap_lab.bench.machine import machine_line
from certimap_lab.bench.network_comparison import network_comparison_tables
from certimap_lab.bench.network_tables import by_case, gap_series, network_tables, open_cases
from certimap_lab.bench.networks import NETWORK_TRIALS, SETTINGS
from certimap_lab.bench.ranks import Trials
from certimap_lab.bench.records import BenchError, Record, read_records
from certimap_lab.bench.tables import all_tables
from certimap_lab.bench.tabular import Cell, Table
from certimap_lab.bench.twenty import ABOUT, CIRCUITS, TRIALS, summarize, summary_line
from certimap_lab.bench.wrapping import wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("md", "csv", "png", "svg")
SUMMARY = ("overview", "certificates", "ratios", "below", "warm-start", "pareto", "networks-summary",
           "networks-cases", "networks-bounds", "networks-time", "paper-overview", "paper-speed",
           "paper-network")  # fmt: skip
Picture = tuple[str, str, Callable[[], "Figure"]]
"""File stem, caption, and what draws it."""


@dataclass(frozen=True)
class Report:
    """What `write_report` wrote.

    Attributes
    ----------
    files
        The files; the last one is the page with everything.
    summary
        Markdown of the short tables and the figures, for a page that links to the whole one.
    problem
        The sentence that says why there are no figures, or None.
    """

    files: list[Path]
    summary: str
    problem: str | None


def write_report(
    run: Path,
    out: Path | None = None,
    *,
    circuits: Sequence[str] | None = None,
    formats: Sequence[str] = FORMATS,
    link: str = "",
) -> Report:
    """Write the tables (Markdown and CSV) and figures (PNG and SVG) of a run, and `README.md` with all.

    Parameters
    ----------
    run
        A folder written by `certimap bench twenty` or `certimap bench networks`.
    out
        Where to write; `run/tables` by default.
    circuits
        Only these; all by default.
    formats
        Some of "md", "csv", "png", "svg": what gets files of its own beside the page.
    link
        Where `out` is, seen from the page that the summary is for.

    Raises
    ------
    BenchError
        When the folder holds no records, or a format is unknown.
    """
    unknown = [f for f in formats if f not in FORMATS]
    if unknown:
        raise BenchError(f"{unknown[0]!r} is no format; expected {', '.join(FORMATS)}")
    records = read_records(run / TRIALS)
    if circuits is not None:
        records = [r for r in records if r["circuit"] in circuits]
    network_records = read_records(run / NETWORK_TRIALS)
    if not records and not network_records:
        raise BenchError(
            f"{run} holds no trials; expected a folder written by 'certimap bench twenty' or 'networks'"
        )
    folder = out or run / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    trials = Trials.of(records)
    tables = all_tables(trials, _models(run, trials)) + _figure_tables(trials)
    tables += network_tables(network_records, _about(run, SETTINGS).get("missing", ()))
    for circuit in trials.circuits:
        beside = network_comparison_tables(trials, circuit)
        tables += beside or comparison_tables(trials, circuit)
    suffixes = [f for f in formats if f in ("png", "svg")]
    drawn = [*_pictures(trials), *_gap_pictures(network_records)] if suffixes else []
    pictures, problem = _draw(drawn, folder, suffixes)
    written = [path for table in tables for path in _write_table(table, folder, formats)]
    written += [folder / f"{stem}.{suffix}" for stem, _ in pictures for suffix in suffixes]
    head = run_head(run, records)
    page = folder / "README.md"
    text = "\n".join(["# Benchmark tables", "", *head, *_body(tables, pictures, suffixes, "", 2)])
    page.write_text(wrapped(text) + "\n")
    short = [t for t in tables if t.name.startswith(SUMMARY)]
    prefix = f"{link.rstrip('/')}/" if link else ""
    more = ["", f"All tables: [{prefix}README.md]({prefix}README.md)."] if link else []
    summary = "\n".join([*head, *_body(short, pictures, suffixes, prefix, 4), *more])
    return Report([*written, page], summary, problem)


def _models(run: Path, trials: Trials) -> list[Record]:
    """Return how the models of a run were learned."""
    path = run / CIRCUITS
    found: list[Record] = json.loads(path.read_text()) if path.is_file() else []
    return [m for m in found if m["circuit"] in trials.circuits]


def _write_table(table: Table, folder: Path, formats: Sequence[str]) -> Iterator[Path]:
    for suffix, text in (("md", table.to_markdown()), ("csv", table.to_csv())):
        if suffix in formats:
            path = folder / f"{table.name}.{suffix}"
            path.write_text(text)
            yield path


def _figure_tables(trials: Trials) -> list[Table]:
    """Return the numbers behind the warm-start and Pareto figures."""
    tables: list[Table] = []
    for circuit in trials.circuits:
        for split in trials.splits(circuit):
            tables += [
                warm_start_table(trials, circuit, split, warm, heuristic)
                for warm, heuristic in warm_pairs(trials, circuit, split)
            ]
        table = pareto_table(pareto_records(trials, circuit))
        table.name = f"pareto-{circuit}"
        table.title += f", {circuit}"
        tables.append(table)
    return [t for t in tables if t.rows]


def _pictures(trials: Trials) -> list[Picture]:
    pictures: list[Picture] = []
    with_draws = False
    for circuit in trials.circuits:
        for split in trials.splits(circuit):
            for warm, heuristic in warm_pairs(trials, circuit, split):
                table = warm_start_table(trials, circuit, split, warm, heuristic)
                if table.rows:
                    pictures.append((table.name, table.title, lambda t=table: draw_warm_start(t)))
        fronts = pareto_records(trials, circuit)
        if fronts:
            caption = f"Pareto fronts of uncertified runs, {circuit}"
            pictures.append((f"pareto-{circuit}", caption, lambda f=fronts: _draw_pareto(f)))
            with_draws = True
        seconds, n_trials = certified_seconds(trials, circuit)
        if seconds:
            caption = f"Share of trials certified within a time, {circuit}, all splits together"
            pictures.append((f"certified-{circuit}", caption, lambda s=seconds, n=n_trials: _draw_certified(s, n)))
    if with_draws:
        caption = "Schematic run of the purely random method: bounds and failure probability against draws"
        pictures.append(("schematic", caption, draw_schematic))
    return pictures


def draw_warm_start(table: Table) -> Figure:
    """Draw a table of `warm_start_table`."""
    rows = [row for row in table.rows if row[0] != "all"]
    names = [str(row[0]) for row in rows]
    figure, (ax,) = plots.new_figure(width=8.0)
    drawn.plot_warm_start(names, [_value(r[2]) or 0.0 for r in rows], [_value(r[3]) for r in rows], ax)
    return figure


def _gap_pictures(records: Sequence[Record]) -> list[Picture]:
    """Return a picture of the gap against time for each case left open on which several methods were run."""
    cases = by_case(records)
    return [
        (f"gap-{name}", f"Gap against time, {name}", lambda mine=cases[name]: _draw_gaps(gap_series(mine)))
        for name in open_cases(cases)
        if len(gap_series(cases[name])) > 1
    ]


def _draw_gaps(series: dict[str, list[tuple[float, float]]]) -> Figure:
    figure, (ax,) = plots.new_figure()
    drawn.plot_gaps(series, ax)
    return figure


def _value(cell: Cell | str) -> float | None:
    return float(cell.value) if isinstance(cell, Cell) and cell.value is not None else None


def _draw_pareto(records: dict[str, Record]) -> Figure:
    figure, (ax,) = plots.new_figure()
    fronts = {
        f"{name}  ln p = {r['log_prob']:.2f}, {r['n_draws']:,} draws": r["pareto"] for name, r in records.items()
    }
    plots.plot_pareto(fronts, ax)
    return figure


def _draw_certified(seconds: dict[str, list[float]], n_trials: dict[str, int]) -> Figure:
    figure, (ax,) = plots.new_figure()
    drawn.plot_certified_over_time(seconds, n_trials, ax)
    return figure


def draw_schematic() -> Figure:
    """Draw the schematic run."""
    figure, axes = plots.new_figure(2, width=9.0, height=3.6)
    drawn.plot_schematic(illustration(), axes)
    return figure


def _draw(
    pictures: Sequence[Picture], folder: Path, suffixes: Sequence[str]
) -> tuple[list[tuple[str, str]], str | None]:
    """Write the pictures; return (stem, caption) of each, and why there are none."""
    done: list[tuple[str, str]] = []
    for stem, caption, make in pictures:
        try:
            figure: Any = make()
        except MissingDependency as problem:
            return done, str(problem)
        for suffix in suffixes:
            figure.savefig(folder / f"{stem}.{suffix}", dpi=150)
        done.append((stem, caption))
    return done, None


def _about(run: Path, name: str) -> dict[str, Any]:
    return json.loads((run / name).read_text()) if (run / name).is_file() else {}


def run_head(run: Path, records: list[Record]) -> list[str]:
    """Return how a run was made, and its counts."""
    lines: list[str] = []
    for name in (ABOUT, SETTINGS):
        about = _about(run, name)
        if not about:
            continue
        calls = about.get("calls", [about])
        lines += [f"Machine: {machine_line(about['machine'])}.", "", "Commands:", ""]
        lines += [f"    {command}" for command in dict.fromkeys(c["command"] for c in calls) if command]
        settings = ", ".join(f"{k} {v}" for k, v in about["settings"].items())
        lines += ["", f"Settings: {settings}.", ""]
    if records:
        lines += [summary_line(summarize(records)) + ".", ""]
    return lines


def _body(
    tables: Sequence[Table], pictures: Sequence[tuple[str, str]], suffixes: Sequence[str], prefix: str, level: int
) -> Iterator[str]:
    """Yield figures and tables as Markdown, headings at a level."""
    for stem, caption in pictures:
        yield from (f"![{caption}]({prefix}{stem}.{suffixes[0]})", "", f"*{caption}.*", "")
    for table in tables:
        yield table.to_markdown(level)


def insert_section(path: Path, section: str, text: str) -> None:
    """Replace what stands between `<!-- begin NAME -->` and `<!-- end NAME -->` in a page.

    Raises
    ------
    BenchError
        When the page lacks these two lines.
    """
    begin, end = f"<!-- begin {section} -->", f"<!-- end {section} -->"
    page = path.read_text() if path.is_file() else ""
    head, found_begin, rest = page.partition(begin)
    _, found_end, tail = rest.partition(end)
    if not (found_begin and found_end):
        raise BenchError(f"{path} has no section between {begin!r} and {end!r}; both lines are needed")
    path.write_text(f"{head}{begin}\n\n{wrapped(text.strip())}\n\n{end}{tail}")
