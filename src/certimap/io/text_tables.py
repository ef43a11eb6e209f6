"""Tables in text files: cells between separators, with or without names in the first row.

Also case files: Netica's `.cas` (`//` comments, IDnum, and NumCases, by which rows are repeated), Hugin's `.dat`,
GeNIe's `.txt` and Weka's `.arff` (names in `@attribute` lines, rows after `@data`).
"""

from __future__ import annotations

import csv
import io
import re
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from os import fspath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.core.arguments import Record
from certimap.core.arrays import Array, Floats, Ints
from certimap.core.cached import cached_property
from certimap.core.domain import OTHER, Domain, Real
from certimap.errors import ParseError, QueryError
from certimap.io.cells import CODE, MISSING, Convention, conventions, day_of
from certimap.io.files import AnyPath, read_text, suffix_of

SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
SUFFIXES = ("csv", "tsv", "txt")  # also written
CASES = ("cas", "dat", "arff")  # only read
MARKS = ("*", "<empty>")  # of missing values in case files
_MOST_ROWS = 10**7  # repeated ones
_ATTRIBUTE = re.compile(r"""@attribute\s+('(?:[^'\\]|\\.)*'|"[^"]*"|[^\s{]+)""", re.IGNORECASE)
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
    decimal: str | None = None  # the sign before decimals where cells do not tell
    missing: frozenset[str] = MISSING  # marks of missing values, in lower case

    @cached_property
    def cells(self) -> list[list[str]]:
        """The cells of each column; ParseError for a row of a wrong length."""
        return [list(column) for column in zip(*(self.checked_row(k) for k in range(len(self.rows))), strict=True)]

    @cached_property
    def conventions(self) -> list[Convention]:
        """How each column writes its values."""
        rows = [row for row in self.rows if len(row) == len(self.names)]
        columns = [[row[k] for row in rows if row[k].lower() not in self.missing] for k in range(len(self.names))]
        return conventions(columns, self.decimal, self.separator)

    def checked_row(self, k: int) -> list[str]:
        """Return the cells of row k; ParseError if their number is wrong."""
        row = self.rows[k]
        if len(row) != len(self.names):
            told = f"the row has {len(row)} cells where {len(self.names)} are expected, one per column"
            text = f"{told} (separator {shown_separator(self.separator)})"
            raise ParseError(text, self.path, self.lines[k])
        return row

    def columns_of(self, domain: Domain) -> dict[str, Array]:
        """Return the columns as labels and numbers of a domain (missing as None); other columns are dropped.

        ParseError for a cell that is not a state, with its line, and for rows of a wrong length.
        """
        out: dict[str, Array] = {}
        for k, name in enumerate(self.names):
            known = Record()
            for cell, line in zip(self.cells[k], self.lines, strict=True) if name in domain else ():
                try:
                    known[cell] = known[cell] if cell in known else self.value(domain, k, cell)
                except QueryError as error:
                    raise ParseError(str(error), self.path, line) from None
            if name in domain:
                out[name] = np.fromiter((known[cell] for cell in self.cells[k]), object, len(self.rows))
        return out

    def value(self, domain: Domain, k: int, cell: str, lenient: bool = False) -> Any:
        """Read a cell of column k as a label or number of the variable with its name; None where it is missing.

        A label that equals the cell wins over a mark of a missing value. A date is a number of days since
        1970-01-01 where the variable is real. Another label belongs to the state `OTHER`, if the variable has one;
        else it is any state (a missing number) if `lenient`, and QueryError is raised if not.
        """
        variable, plain = domain[self.names[k]], self.conventions[k].plain(cell)
        if plain is None:
            return None
        texts = [cell, plain]
        if isinstance(variable, Real):
            texts = [plain if (day := day_of(plain)) is None else str(day)]
        for text in texts:
            with suppress(QueryError):
                return variable.parse(text)
        if cell.lower() in self.missing:
            return None
        if isinstance(variable, Real):
            return None if lenient else variable.parse(cell)
        return OTHER if OTHER in variable else frozenset(variable.states) if lenient else variable.parse(cell)

    def __str__(self) -> str:
        shown = ", ".join(repr(name) for name in self.names[:6]) + (", ..." if len(self.names) > 6 else "")
        between = f" ({shown_separator(self.separator)} between cells)" if len(self.names) > 1 else ""
        return f"{len(self.rows)} rows, {len(self.names)} columns{between}: {shown}"


def shown_separator(sign: str) -> str:
    """Return the name of a separator for messages."""
    return SEPARATORS.get(sign, "space" if sign == " " else repr(sign))


def has_header(path: AnyPath) -> bool:
    """Whether the first row holds names, by the file's suffix: .data files have none, others do."""
    return suffix_of(path) != "data" and ".data." not in f"{fspath(path)}."


def read_text_table(
    path: AnyPath, *, header: bool = True, encoding: str | None = None, separator: str | None = None,
    decimal: str | None = None, missing: Iterable[str] = (), text: str | None = None,
) -> TextTable:  # fmt: skip
    """Read a table.

    `header`: whether its first row holds the names of the columns. `separator`: one character, or comma,
    semicolon, tab, bar or space; None takes the one of the first four that fits most rows.
    `decimal`: the sign before decimals, for numbers such as 1,234 that tell no sign. `missing`: more marks of
    missing values; case does not matter. `text`: the file's content if known; `path` then only names it.

    ParseError for a file without rows, a column without a name or with another's, and a file that two separators
    fit equally well. Warns if the first column has no name and distinct values: it is dropped as row labels.
    """
    text, suffix, quote = read_text(path, encoding) if text is None else text, suffix_of(path), '"'
    if suffix == "arff":
        (text, quote), separator = _of_weka(path, text), ","
    elif suffix == "cas":
        text = re.sub(r"(?m)^[ \t]*//.*", "", text)
    sign = _sniffed(path, text, " " * (suffix in ("cas", "txt"))) if separator is None else separator_of(separator)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=sign, skipinitialspace=True, quotechar=quote)
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
    marks = MISSING | {mark.strip().lower() for mark in missing} | {*(MARKS if suffix in (*CASES, "txt") else ())}
    table = TextTable(fspath(path), names, rows, lines, sign, decimal, marks)
    table = _of_netica(table) if suffix == "cas" else table
    return _with_names(table) if header else table


def _of_weka(path: AnyPath, text: str) -> tuple[str, str]:
    """Return rows below their names, on the lines where they were, and the sign for quotes."""
    lines = ["" if line.lstrip().startswith("%") else line.strip() for line in text.split("\n")]
    start = next((k for k, line in enumerate(lines) if line.lower().startswith("@data")), len(lines))
    names = [match[1].strip("'\"") for match in map(_ATTRIBUTE.match, lines[:start]) if match]
    sparse = next((k for k, line in enumerate(lines) if k > start and line.startswith("{")), None)
    if not names or start == len(lines) or sparse is not None:
        told = "has no @attribute before @data, or sparse rows; expected names, and a value for each in each row"
        raise ParseError(told, path, None if sparse is None else sparse + 1)
    quote = '"' if any('"' in line for line in lines[start:]) else "'"
    head = ",".join(quote + name.replace(quote, 2 * quote) + quote for name in names)
    return "\n".join([*[""] * start, head, *lines[start + 1 :]]), quote


def _of_netica(table: TextTable) -> TextTable:
    """Leave out IDnum, and repeat rows by NumCases."""
    rows, lines = list[list[str]](), list[int]()
    kept = [k for k, name in enumerate(table.names) if name not in ("IDnum", "NumCases")]
    for number, line in enumerate(table.lines):
        row = table.checked_row(number)
        count = row[table.names.index("NumCases")] if "NumCases" in table.names else "1"
        if not (count.isdecimal() and len(count) < 9 and int(count) + len(rows) <= _MOST_ROWS):
            raise ParseError(f"NumCases is {count[:20]!r}; expected whole numbers, few in all", table.path, line)
        rows += [[row[k] for k in kept]] * int(count)
        lines += [line] * int(count)
    return replace(table, names=[table.names[k] for k in kept], rows=rows, lines=lines)


def separator_of(text: str) -> str:
    """Return the separator for a user's word; QueryError for anything but a known name or one character."""
    sign = _BY_NAME.get(text, text)
    if len(sign) != 1 or sign in '"\r\n\0' or sign.isalnum():
        told = f"{text!r} is no separator; one character, or {', '.join(sorted(_BY_NAME)[1:])} is expected"
        raise QueryError(told)
    return sign


def _sniffed(path: AnyPath, text: str, last: str = "") -> str:
    """Return the separator that gives most of the first rows as many cells as the header; `last` is tried last."""
    agreeing: dict[str, int] = {}
    for sign in (*SEPARATORS, *last):
        if sign == last and agreeing:
            break
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=sign, skipinitialspace=True)
        widths: list[int] = []
        with suppress(csv.Error):  # the reader of the whole table reports it
            widths.extend(islice((len(row) for row in reader if row), _SAMPLE_ROWS))
        if widths and widths[0] > 1:
            agreeing[sign] = widths.count(widths[0])
    most = max(agreeing.values(), default=0)
    best = [sign for sign, n in agreeing.items() if n == most]
    if len(best) > 1:
        named = " and ".join(SEPARATORS[sign] for sign in best[:2])
        told = f"{named} cut its rows equally well; separator= (--separator in the shell) settles it"
        raise ParseError(told, path)
    return (best or [","])[0]


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
            table = replace(table, names=names[1:], rows=[row[1:] for row in table.rows])
            names = table.names
    if "" in names:
        raise ParseError(f"column {names.index('') + 1} has no name; every column needs one", table.path, 1)
    if len(set(names)) != len(names):
        doubled = next(n for n in names if names.count(n) > 1)
        raise ParseError(f"two columns are named {doubled!r}; names must be distinct", table.path, 1)
    return table


def typed(cells: Sequence[str | None]) -> Column:
    """Read plain cells as integers (with gaps: objects), else as numbers, else as text; None where missing."""
    labels = np.empty(len(cells), object)
    labels[:] = cells
    present = [c for c in cells if c is not None]
    if not present or any("_" in c or CODE.fullmatch(c) for c in present):
        return labels
    with suppress(ValueError, OverflowError):
        numbers = np.array([int(c) for c in present], np.int64)
        if len(present) == len(cells):
            return numbers
        labels[[c is not None for c in cells]] = numbers.tolist()
        return labels
    with suppress(ValueError):
        return np.array([float("nan") if c is None else float(c) for c in cells])
    return labels
