"""Tables in text files: cells between separators, with or without names in the first row."""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from os import fspath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.core.arrays import Array, Floats, Ints
from certimap.core.domain import Domain
from certimap.errors import ParseError, QueryError
from certimap.io.files import AnyPath, read_text, suffix_of

MISSING = frozenset({"", "?", "na", "nan"})
SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
_BY_NAME = {**{name: sign for sign, name in SEPARATORS.items()}, "space": " ", "\\t": "\t"}
_SAMPLE_ROWS = 100
Column = Ints | Floats | NDArray[np.object_]


@dataclass(frozen=True)
class TextTable:
    """A table whose cells are stripped text."""

    path: str
    names: list[str]  # of the columns; "0", "1", ... if the file has none
    rows: list[list[str]]  # the cells of each row; their number may differ from that of the names
    lines: list[int]  # of the file, on which each row ends
    separator: str

    def checked_row(self, k: int) -> list[str]:
        """Return the cells of row k; ParseError if their number is wrong."""
        row = self.rows[k]
        if len(row) != len(self.names):
            raise ParseError(
                f"the row has {len(row)} cells where {len(self.names)} are expected, one per column (separator "
                f"{shown_separator(self.separator)})",
                self.path,
                self.lines[k],
            )
        return row

    def columns(self) -> dict[str, Column]:
        """Return the columns: integers, numbers (missing as NaN), or labels as text (missing as None)."""
        rows = [self.checked_row(k) for k in range(len(self.rows))]
        return {name: _typed([row[k] for row in rows]) for k, name in enumerate(self.names)}

    def columns_of(self, domain: Domain) -> dict[str, Array]:
        """Return the columns as labels and numbers of a domain (missing as None); other columns are dropped.

        ParseError for a cell that is not a state, with its line, and for rows of a wrong length.
        """
        rows = [self.checked_row(k) for k in range(len(self.rows))]
        out: dict[str, Array] = {}
        for k, name in enumerate(self.names):
            if name in domain:
                out[name] = np.empty(len(rows), object)
                for r, (row, line) in enumerate(zip(rows, self.lines, strict=True)):
                    try:
                        out[name][r] = cell_value(domain, name, row[k])
                    except QueryError as error:
                        raise ParseError(str(error), self.path, line) from None
        return out

    def __str__(self) -> str:
        shown = ", ".join(repr(name) for name in self.names[:6]) + (", ..." if len(self.names) > 6 else "")
        between = f" ({shown_separator(self.separator)} between cells)" if len(self.names) > 1 else ""
        return f"{len(self.rows)} rows, {len(self.names)} columns{between}: {shown}"


def shown_separator(sign: str) -> str:
    """Return the name of a separator for messages."""
    return SEPARATORS.get(sign, "space" if sign == " " else repr(sign))


def cell_value(domain: Domain, name: str, cell: str) -> Any:
    """Read a cell as a label or number; a mark of a missing value gives None unless a state has this name."""
    try:
        return domain[name].parse(cell)
    except QueryError:
        if cell.lower() in MISSING:
            return None
        raise


def has_header(path: AnyPath) -> bool:
    """Whether the first row holds names, by the file's suffix: .data files have none, others do."""
    return suffix_of(path) != "data" and ".data." not in f"{fspath(path)}."


def read_text_table(
    path: AnyPath, *, header: bool = True, encoding: str | None = None, separator: str | None = None
) -> TextTable:
    """Read a table.

    Parameters
    ----------
    path, encoding
        The file; see `certimap.io.files.read_text`.
    header
        Whether its first row holds the names of the columns.
    separator
        One character, or comma, semicolon, tab, bar or space; None takes whichever of the first four gives every
        row as many cells as the first row.

    ParseError for a file without rows, a column without a name or with another's, and a file that two separators
    fit equally well. Warns if the first column has no name and distinct values: it is dropped as row labels.
    """
    text = read_text(path, encoding)
    sign = _sniffed(path, text) if separator is None else separator_of(separator)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=sign, skipinitialspace=True)
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if any(cells) or len(cells) > 1:
                rows.append(cells)
                lines.append(reader.line_num)
    except csv.Error as error:
        raise ParseError(f"the row is no table row ({error})", path, reader.line_num) from None
    names = [str(i) for i in range(len(rows[0]))] if rows else []
    if header and rows:
        names = rows[0]
        del rows[0], lines[0]
    if not rows:
        raise ParseError("the table has no rows; at least one is needed", path)
    table = TextTable(fspath(path), names, rows, lines, sign)
    return _with_names(table) if header else table


def separator_of(text: str) -> str:
    """Return the separator for a user's word; QueryError for anything but a known name or one character."""
    sign = _BY_NAME.get(text, text)
    if len(sign) != 1 or sign in '"\r\n\0' or sign.isalnum():
        told = f"{text!r} is no separator; one character, or {', '.join(sorted(_BY_NAME)[1:])} is expected"
        raise QueryError(told)
    return sign


def _sniffed(path: AnyPath, text: str) -> str:
    """Return the separator that gives all of the first rows the same number of cells, more than one."""
    widths: dict[str, list[int]] = {}
    for sign in SEPARATORS:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=sign, skipinitialspace=True)
        found = widths[sign] = list[int]()
        with suppress(csv.Error):  # the reader of the whole table reports it
            found.extend(islice((len(row) for row in reader if row), _SAMPLE_ROWS))
    wide = [sign for sign, found in widths.items() if found and found[0] > 1]
    regular = [sign for sign in wide if len(set(widths[sign])) == 1]
    if len(regular) > 1:
        named = " and ".join(SEPARATORS[sign] for sign in regular[:2])
        told = f"{named} cut its rows equally well; separator= (--separator in the shell) settles it"
        raise ParseError(told, path)
    return (regular or wide or [","])[0]


def _with_names(table: TextTable) -> TextTable:
    """Drop an unnamed column of row labels; reject missing and duplicate names."""
    names = table.names
    if len(names) > 1 and not names[0] and "" not in names[1:]:
        labels = [row[0] for row in table.rows if row]
        if len(set(labels)) == len(labels):
            warnings.warn(
                f"{table.path}: the first column has no name and no value twice; it is taken for row labels and "
                "left out",
                stacklevel=4,
            )
            rows = [row[1:] for row in table.rows]
            table = TextTable(table.path, names[1:], rows, table.lines, table.separator)
            names = table.names
    if "" in names:
        raise ParseError(f"column {names.index('') + 1} has no name; every column needs one", table.path, 1)
    if len(set(names)) != len(names):
        doubled = next(n for n in names if names.count(n) > 1)
        raise ParseError(f"two columns are named {doubled!r}; names must be distinct", table.path, 1)
    return table


def _typed(cells: Sequence[str]) -> Column:
    """Read a column as integers, else as numbers, else as text."""
    present = [c for c in cells if c.lower() not in MISSING]
    plain = not any("_" in c for c in present)
    with suppress(ValueError, OverflowError):
        if plain and len(present) == len(cells):
            return np.array([int(c) for c in cells], np.int64)
    with suppress(ValueError):
        if plain and present:
            return np.array([float("nan") if c.lower() in MISSING else float(c) for c in cells])
    labels = np.empty(len(cells), object)
    labels[:] = [None if c.lower() in MISSING else c for c in cells]
    return labels
