"""The summary of the recorded benchmarks: every number and plot of it is read from the recorded tables."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from certimap_lab.bench.records import BenchError
from certimap_lab.bench.report import insert_section
from certimap_lab.bench.tabular import MISSING, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, str]
RUNS = {  # section -> what was asked, and where its tables lie: page and heading
    "networks": ("Bayesian networks with known answers", "networks.md#bayesian-networks"),
    "peers": ("Bayesian networks beside other libraries", "networks.md#networks-beside-other-libraries"),
    "mpe": ("MPE instances of all families", "wide-networks.md#mpe-beside-toulbar2"),
    "uai-mmap": ("UAI marginal MAP instances", "wide-networks.md#marginal-map-instances-of-uai-2014"),
    "seeded": (
        "large networks, little evidence",
        "wide-networks.md#seeded-queries-large-networks-little-evidence",
    ),
    "parity": ("parity codes", "wide-networks.md#parity-codes"),
    "chow-liu": ("Chow-Liu trees, the paper's queries", "chow-liu-trees.md"),
    "learnspn": ("LearnSPN circuits", "circuits.md"),
    "hclt": ("hidden Chow-Liu trees", "hidden-trees.md"),
    "auto": ("circuits of all three kinds, a minute each", "circuit-proofs.md"),
    "exact": ("the same, exactness alone counts", "circuit-proofs.md#proofs-of-exactness"),
}
ANSWERS, BY_CASE = "Networks: answers beside the best known", "Networks, case by case"
CERTIFIED = "How each answer was certified"
PROVED_AFTER = re.compile(r"^\*\*proved, ([\d.e+-]+)\*\*$")


@dataclass(frozen=True)
class Standing:
    """How one method did in one section: `median` and `worst` in seconds, as the tables print them."""

    section: str
    method: str
    queries: int
    certified: int
    median: str
    worst: str


def section_of(folder: Path, name: str) -> str:
    """Return the text between a section's marks, from whichever page holds it.

    Raises
    ------
    BenchError
        When no page of the folder holds the section.
    """
    for page in sorted(folder.glob("*.md")):
        _, found, rest = page.read_text(encoding="utf-8").partition(f"<!-- begin {name} -->")
        if found:
            return rest.partition(f"<!-- end {name} -->")[0]
    raise BenchError(f"no page in {folder} has a section {name!r}; expected its begin and end marks")


def tables_under(text: str, heading: str) -> Iterator[list[Row]]:
    """Yield the table under each heading that begins so: a mapping from column to cell per row."""
    for part in re.split(r"^#+ ", text, flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        lines = [line for line in body.splitlines() if line.startswith("| ")]
        if title.startswith(heading) and len(lines) > 2:
            header, _, *rows = ([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines)
            yield [dict(zip(header, row, strict=True)) for row in rows]


def _first_table(section: str, text: str, heading: str) -> list[Row]:
    """Return the first table under a heading.

    Raises
    ------
    BenchError
        When the section has none yet.
    """
    for rows in tables_under(text, heading):
        return rows
    raise BenchError(f"section {section!r} has no table {heading!r}; record it first")


def standings(section: str, text: str) -> Iterator[Standing]:
    """Yield how each method of a section did, over all its splits and circuits."""
    cases = [row for rows in tables_under(text, BY_CASE) for row in rows]
    for rows in tables_under(text, ANSWERS):
        for row in rows:
            certified = int(row["proved"]) + int(row["other certificate"])
            unasked = sum(case[row["method"]] == "not asked" for case in cases)
            name, n_queries = row["method"].removeprefix("peer:"), int(row["cases"]) - unasked
            yield Standing(section, name, n_queries, certified, row["median s"], row["worst s"])
    by_method: dict[str, list[Row]] = {}
    for rows in tables_under(text, CERTIFIED):
        for row in rows:
            if row["split"] == "all":
                by_method.setdefault(row["method"], []).append(row)
    for method, rows in by_method.items():
        certified = sum(int(row[kind]) for row in rows for kind in ("exact", "epsilon", "pac"))
        medians = sorted((row["median s"] for row in rows), key=_number)
        median = medians[0] if medians[0] == medians[-1] else f"{medians[0]} to {medians[-1]}"
        worst = max((row["worst s"] for row in rows), key=_number)
        yield Standing(section, method, sum(int(row["trials"]) for row in rows), certified, median, worst)


def _number(cell: str) -> float:
    return 0.0 if cell == MISSING else float(cell)


def summary_table(found: Sequence[Standing]) -> Table:
    """Return one row per section and method; a method that proves nothing anywhere is left out."""
    table = Table(
        "summary",
        "What was certified, and how fast",
        ("queries", "method", "how many", "certified", "median s", "worst s"),
    )
    last = ""
    for one in found:
        if one.certified or one.method == "auto":
            what, page = RUNS[one.section]
            label = f"[{what}](benchmarks/{page})" if one.section != last else ""
            table.add(label, one.method, f"{one.queries:,}", f"{one.certified:,}", one.median, one.worst)
            last = one.section
    return table


def write_summary(page: Path) -> list[Path]:
    """Write the section 'summary' of a page and its plots from the pages in the folder of the same name.

    Raises
    ------
    BenchError
        When a recorded section or the section 'summary' is missing.
    """
    folder = page.with_suffix("")
    texts = {name: section_of(folder, name) for name in (*RUNS, "growth", "start")}
    found = [one for name in RUNS for one in standings(name, texts[name])]
    files = list(_plots(texts, found, folder / "summary"))
    pictures = "\n\n".join(f"![{title}]({folder.name}/summary/{path.name})" for title, path in files)
    insert_section(page, "summary", f"{summary_table(found).to_markdown()}\n\n{pictures}")
    return [path for _, path in files]


def _plots(texts: Mapping[str, str], found: Sequence[Standing], folder: Path) -> Iterator[tuple[str, Path]]:
    """Draw one plot per family."""
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    plots = {
        "networks": "Certified queries to Bayesian networks, by library",
        "mpe": "MPE instances of all families proved within a time",
        "circuits": "Certified queries to LearnSPN circuits, by method",
        "scale": "Processor seconds of a proved explanation by number of variables",
        "start": "Processor seconds from a new process to its first answer",
    }
    for name, title in plots.items():
        figure = Figure(figsize=(6.4, 3.0), layout="constrained")
        axes = figure.subplots()
        if name in ("networks", "circuits"):
            section = {"networks": "peers", "circuits": "learnspn"}[name]
            _bars(axes, [one for one in found if one.section == section])
        elif name == "mpe":
            _within(axes, _first_table("mpe", texts["mpe"], BY_CASE))
        elif name == "scale":
            _growth(
                axes, _first_table("growth", texts["growth"], "Growth: processor seconds by number of variables")
            )
        else:
            _first_answers(axes, _first_table("start", texts["start"], "From a new process"))
        figure.savefig(folder / f"{name}.png", dpi=110, metadata={"Software": None})
        yield title, folder / f"{name}.png"


def _bars(axes: Axes, found: Sequence[Standing]) -> None:
    names = [one.method for one in reversed(found)]
    axes.barh(names, [100 * one.certified / one.queries for one in reversed(found)])
    axes.set(xlim=(0, 100), xlabel="certified, % of the queries")


def _within(axes: Axes, rows: Sequence[Row]) -> None:
    for column in rows[0]:
        times = sorted(float(m[1]) for row in rows if (m := PROVED_AFTER.match(row[column])))
        if times:
            axes.step(times, range(1, len(times) + 1), where="post", label=column.removeprefix("peer:"))
    axes.set(xscale="log", xlabel="seconds", ylabel=f"proved, of {len(rows)}")
    axes.legend()


def _growth(axes: Axes, rows: Sequence[Row]) -> None:
    for network in dict.fromkeys(row["network"] for row in rows):
        points = [(int(r["variables"].replace(",", "")), float(r["mpe"])) for r in rows if r["network"] == network]
        axes.plot(*zip(*points, strict=True), marker="o", label=network)
    axes.set(xscale="log", yscale="log", xlabel="variables", ylabel="seconds")
    axes.legend()


def _first_answers(axes: Axes, rows: Sequence[Row]) -> None:
    names, columns = [row["query"] for row in reversed(rows)], list(rows[0])[1:]
    for k, column in enumerate(columns):
        places = [i + 0.4 * (0.5 - k) for i in range(len(names))]
        axes.barh(places, [float(row[column]) for row in reversed(rows)], height=0.4, label=column)
    axes.set(yticks=range(len(names)), yticklabels=names, xlabel="seconds")
    axes.legend()
