"""Tables with marked cells, as Markdown and CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

MISSING = "--"


@dataclass(frozen=True)
class Cell:
    """A value with its text; `bold` marks a winner, `underline` at least one timeout."""

    text: str
    value: float | str | None = None
    bold: bool = False
    underline: bool = False

    @property
    def markdown(self) -> str:
        text = self.text.replace("|", "\\|")
        if self.bold:
            text = f"**{text}**"
        return f"<u>{text}</u>" if self.underline else text


def number(value: float | None, digits: int = 1, *, bold: bool = False, underline: bool = False) -> Cell:
    """Return a cell with fixed decimals, or the mark of a missing value."""
    if value is None or not math.isfinite(value):
        return Cell(MISSING)
    text = f"{value:.{digits}f}"
    return Cell(text.removeprefix("-") if float(text) == 0 else text, value, bold, underline)


def significant(value: float | None, digits: int = 3) -> str:
    """Return a number with so many significant digits and no exponent where it can be read without one."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if size >= digits - 1:
        return f"{value:.0f}" if size < 7 else f"{value:.{digits - 1}e}"
    return f"{value:.{digits - 1 - size}f}" if size >= -4 else f"{value:.{digits - 1}e}"


@dataclass
class Table:
    """A titled table; every row starts with its label.

    `name` is the stem of its files, `notes` are printed under it.
    """

    name: str
    title: str
    header: Sequence[str]
    rows: list[list[Cell | str]] = field(default_factory=list[list[Cell | str]])
    notes: list[str] = field(default_factory=list[str])

    def add(self, *cells: Cell | str) -> None:
        """Append a row; raise ValueError when it does not fit the header."""
        if len(cells) != len(self.header):
            raise ValueError(
                f"a row of {len(cells)} cells does not fit the {len(self.header)} columns of {self.name}"
            )
        self.rows.append(list(cells))

    def to_markdown(self, level: int = 3) -> str:
        """Return a heading, the table and its notes."""
        lines = [f"{'#' * level} {self.title}", ""]
        lines.append("| " + " | ".join(self.header) + " |")
        lines.append("|" + "|".join([" --- "] + [" ---: "] * (len(self.header) - 1)) + "|")
        lines += ["| " + " | ".join(_markdown(c) for c in row) + " |" for row in self.rows]
        if self.notes:
            lines += ["", *(f"{note}  " if i + 1 < len(self.notes) else note for i, note in enumerate(self.notes))]
        return "\n".join(lines) + "\n"

    def to_csv(self) -> str:
        """Return the header and the plain texts of the cells; a missing value is empty, a timeout ends in '*'."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.header)
        for row in self.rows:
            writer.writerow([_plain(c) for c in row])
        return text.getvalue()


def _markdown(cell: Cell | str) -> str:
    return cell.replace("|", "\\|") if isinstance(cell, str) else cell.markdown


def _plain(cell: Cell | str) -> str:
    if isinstance(cell, str):
        return cell
    if cell.text == MISSING:
        return ""
    return cell.text + ("*" if cell.underline else "")
