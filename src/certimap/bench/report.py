"""Writing a run's tables and figures, one file each and all together in one page of Markdown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from certimap import plots
from certimap.bench.comparison import comparison_tables
from certimap.bench.figures import (
    certified_seconds,
    illustration,
    pareto_records,
    pareto_table,
    warm_pairs,
    warm_start_table,
)
from certimap.bench.machine import machine_line
from certimap.bench.networks import NETWORK_TRIALS, network_tables
from certimap.bench.ranks import Trials
from certimap.bench.records import BenchError, Record, read_records
from certimap.bench.tables import all_tables
from certimap.bench.tabular import Cell, Table
from certimap.bench.twenty import ABOUT, TRIALS, summarize, summary_line
from certimap.errors import MissingDependency

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Picture = tuple[str, str, Callable[[], "Figure"]]
"""File stem, caption, and what draws it."""


def write_report(
    run: Path, out: Path | None = None, *, circuits: Sequence[str] | None = None, figures: bool = True
) -> tuple[list[Path], str | None]:
    """Write every table (Markdown and CSV) and figure (PNG and SVG) of a run, and `README.md` with all.

    Parameters
    ----------
    run
        A folder written by `certimap bench twenty` or `certimap bench networks`.
    out
        Where to write; `run/tables` by default.
    circuits
        Only these; all by default.
    figures
        False leaves the figures out.

    Returns
    -------
    The files written, and the sentence that says why there are no figures, if matplotlib is absent.

    Raises
    ------
    BenchError
        When the folder holds no records.
    """
    records = read_records(run / TRIALS)
    if circuits is not None:
        records = [r for r in records if r["circuit"] in circuits]
    network_records = read_records(run / NETWORK_TRIALS)
    if not records and not network_records:
        raise BenchError(
            f"{run} holds no trials; a folder written by 'certimap bench twenty' or 'networks' is accepted"
        )
    folder = out or run / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    trials = Trials.of(records)
    tables = all_tables(trials, _models(run, trials)) + _figure_tables(trials) + network_tables(network_records)
    for circuit in trials.circuits:
        tables += comparison_tables(trials, circuit)
    written = [path for table in tables for path in _write_table(table, folder)]
    pictures, problem = _draw(_pictures(trials), folder) if figures else ([], None)
    written += [folder / f"{stem}{suffix}" for stem, _ in pictures for suffix in (".png", ".svg")]
    page = folder / "README.md"
    page.write_text(_page(run, records, tables, pictures))
    return [*written, page], problem


def _models(run: Path, trials: Trials) -> list[Record]:
    """Return how the models of a run were learned."""
    found = [json.loads(path.read_text()) for path in sorted((run / "models").glob("*.json"))]
    return [m for m in found if m["circuit"] in trials.circuits]


def _write_table(table: Table, folder: Path) -> Iterator[Path]:
    for suffix, text in ((".md", table.to_markdown()), (".csv", table.to_csv())):
        path = folder / f"{table.name}{suffix}"
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
        seconds, n_trials = certified_seconds(trials, circuit)
        if seconds:
            caption = f"Share of trials certified within a time, {circuit}, all splits together"
            pictures.append((f"certified-{circuit}", caption, lambda s=seconds, n=n_trials: _draw_certified(s, n)))
    if trials.circuits:
        caption = "Schematic run of the purely random method: bounds and failure probability against draws"
        pictures.append(("schematic", caption, draw_schematic))
    return pictures


def draw_warm_start(table: Table) -> Figure:
    """Draw a table of `warm_start_table`."""
    rows = [row for row in table.rows if row[0] != "all"]
    names = [str(row[0]) for row in rows]
    figure, (ax,) = plots.new_figure(width=8.0)
    plots.plot_warm_start(names, [_value(r[2]) or 0.0 for r in rows], [_value(r[3]) for r in rows], ax)
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
    plots.plot_certified_over_time(seconds, n_trials, ax)
    return figure


def draw_schematic() -> Figure:
    """Draw the schematic run."""
    figure, axes = plots.new_figure(2, width=9.0, height=3.6)
    plots.plot_schematic(illustration(), axes)
    return figure


def _draw(pictures: Sequence[Picture], folder: Path) -> tuple[list[tuple[str, str]], str | None]:
    """Write the pictures; return (stem, caption) of each, and why there are none."""
    done: list[tuple[str, str]] = []
    for stem, caption, make in pictures:
        try:
            figure: Any = make()
        except MissingDependency as problem:
            return done, str(problem)
        figure.savefig(folder / f"{stem}.png", dpi=150)
        figure.savefig(folder / f"{stem}.svg")
        done.append((stem, caption))
    return done, None


def _page(run: Path, records: list[Record], tables: Sequence[Table], pictures: Sequence[tuple[str, str]]) -> str:
    """Return everything as one page: how the run was made, figures, tables."""
    lines = ["# Benchmark tables", ""]
    about_path = run / ABOUT
    if about_path.is_file():
        about: dict[str, Any] = json.loads(about_path.read_text())
        lines += [f"Machine: {machine_line(about['machine'])}.", "", "Commands:", ""]
        lines += [f"    {call['command']}" for call in about["calls"] if call.get("command")]
        settings = ", ".join(f"{k} {v}" for k, v in about["settings"].items())
        lines += ["", f"Settings: {settings}.", ""]
    if records:
        lines += [summary_line(summarize(records)) + ".", ""]
    for stem, caption in pictures:
        lines += [f"![{caption}]({stem}.png)", "", f"*{caption}.*", ""]
    lines += [table.to_markdown(2) for table in tables]
    return "\n".join(lines) + "\n"
