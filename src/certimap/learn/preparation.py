"""From a table as a user has it to the columns that a learner takes: text typed, useless columns left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from certimap.core.arguments import Record, is_path, keywords_hinted
from certimap.core.columns import ColumnNote, PreparedTable
from certimap.core.domain import OTHER
from certimap.errors import DataError, did_you_mean
from certimap.io.cells import Convention, conventions, day_of
from certimap.io.text_tables import TextTable, has_header, read_text_table, typed
from certimap.learn.table import Kind, columns_of, has_names

LEAST_IDS = 10  # rows from which on different values in all of them number or name the rows
MANY = 100  # states from which on their number is said
_ID_NAMES = ("id", "index", "key", "nr", "no", "number", "row", "uuid", "guid")


class _Column(NamedTuple):
    cells: list[Any]  # None where missing
    values: Any  # as learners take them; None for text


@keywords_hinted()
def prepare(
    data: Any,
    *,
    kinds: Mapping[str, Kind | Literal["day"]] | None = None,
    columns: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    pool: int = 0,
    missing: Iterable[str] = (),
    decimal: Literal[".", ","] | None = None,
    also: Sequence[Any] = (),
) -> PreparedTable:
    """Read a table, and settle which columns a model is learned from.

    Left out, with a note, are columns without values or with one value only, dates, and columns that number or
    name the rows: different texts, and whole numbers that count up or are called "id". A file or array without
    names of columns keeps them all. Cost: linear, some 3 us per cell of text.

    Parameters
    ----------
    data
        A path of a text table, or any table (see `certimap.learn.table`), whose texts are read as those of a file.
    kinds
        Kinds by name, which overrule all of this: "categorical", "real", "count", and "day" for dates that become
        days since 1970-01-01.
    columns, drop
        Names of the columns to keep, and of columns to leave out.
    pool
        Labels of fewer rows than this become the state "(other)", which later stands for unseen labels too.
    missing
        More marks of missing values, such as "*"; case does not matter.
    decimal
        The sign before decimals, for numbers such as 1,234 that do not tell; None: the other columns tell.
    also
        Further tables that are read in the same way, such as validation rows.

    Raises DataError for a name that the table lacks, a kind that does not suit its column, or no column left, and
    ParseError for a file that is no table.
    """
    marks = {mark.lower() for mark in missing}
    opened = [
        read_text_table(table, header=has_header(table), decimal=decimal, missing=marks)
        if is_path(table)
        else table
        for table in (data, *also)
    ]
    first: Any = opened[0]
    is_text = isinstance(first, TextTable)
    tables = [_columns(table, marks) for table in opened]
    for what, names in (("kinds", kinds or {}), ("columns", columns or ()), ("drop", drop)):
        for name in names:
            if name not in tables[0]:
                hint = did_you_mean(name, tables[0])
                raise DataError(f"{what} names the column {name!r}, which the table does not have{hint}")
    parts = {name: [table[name] for table in tables if name in table] for name in tables[0]}
    texts = [
        [c for p in column if p.values is None for c in p.cells if c is not None] for column in parts.values()
    ]
    found = conventions(texts, first.decimal if is_text else decimal, first.separator if is_text else ",")
    kept, notes, left_out = Record(), dict[str, str](), list[tuple[int, ColumnNote]]()
    for place, ((name, column), how) in enumerate(zip(parts.items(), found, strict=True)):
        kind = (kinds or {}).get(name)
        values, note = _settled(name, column, how, kind, pool)
        why = (
            ""
            if kind or not (has_header(first.path) if is_text else has_names(first))
            else _useless(name, values, how)
        )
        why = "not asked for" if name in drop or (columns is not None and name not in columns) else why
        if why:
            shown = ", ".join(map(str, list(dict.fromkeys(c for c in column[0].cells if c is not None))[:2]))
            left_out.append((place, ColumnNote(name, "left out", shown, column[0].cells.count(None), why)))
        else:
            kept[name], notes[name] = values, note
    if not kept:
        raise DataError(f"no column is left: {', '.join(f'{n.name} ({n.note})' for _, n in left_out)}")
    table = PreparedTable({name: values[0] for name, values in kept.items()})
    table.kinds = {name: "real" if kind == "day" else kind for name, kind in (kinds or {}).items() if name in kept}
    table.notes, table.left_out = notes, left_out
    table.also = [{n: v[k] for n, v in kept.items() if k < len(v)} for k in range(1, len(tables))]
    return table


def _columns(table: Any, marks: set[str]) -> dict[str, _Column]:
    """Return the columns of a table by name; `marks` of missing values are those of text in data frames."""
    if isinstance(table, TextTable):
        absent = table.missing
        columns = [[None if c.lower() in absent else c for c in column] for column in table.cells]
        return {name: _Column(cells, None) for name, cells in zip(table.names, columns, strict=True)}
    found: dict[str, _Column] = {}
    for column in columns_of(table):
        values = column.values
        some: list[Any] = (
            np.datetime_as_string(values, unit="D") if values.dtype.kind == "M" else values
        ).tolist()
        cells = [None if m or (isinstance(v, str) and v.strip().lower() in marks) else v for v, m in
                 zip(some, column.missing, strict=True)]  # fmt: skip
        is_text = column.categories is None and all(c is None or isinstance(c, str) for c in cells)
        if column.categories is not None:
            values = next(table[name] for name in table.columns if str(name) == column.name)
        found[column.name] = _Column(cells, None if is_text else values)
    return found


def _settled(name: str, parts: Sequence[_Column], how: Convention, kind: Any, pool: int) -> tuple[list[Any], str]:
    """Return a column of each table as learners take it, and a note on it."""
    if parts[0].values is not None:
        return [part.values for part in parts], ""
    columns = [[None if c is None else how.plain(c) for c in part.cells] for part in parts]
    counts = Counter(cell for column in columns for cell in column if cell is not None)
    if kind == "day":
        days = {cell: day_of(cell) for cell in counts}
        if None in days.values():
            wrong = next(cell for cell, day in days.items() if day is None)
            raise DataError(f"column {name!r} holds {wrong!r}; its kind is day, and a date is expected")
        return [
            np.array([None if c is None else days[c] for c in column], np.float64) for column in columns
        ], f"{how.note}; days"
    values = [typed(column) for column in columns]
    if not any(isinstance(value, str) for part in values for value in part.tolist()):
        return values, how.note
    rare = {label for label, n in counts.items() if n < pool}
    if rare:
        joined = [[OTHER if c in rare else c for c in column] for column in columns]
        return [typed(column) for column in joined], f"{len(rare)} labels of fewer than {pool} rows are {OTHER}"
    many = f"{len(counts)} states, {counts.total() / len(counts):.1f} rows each; pool joins rare ones"
    return values, many if len(counts) >= MANY else how.note


def _useless(name: str, parts: Sequence[Any], how: Convention) -> str:
    """Return why a column tells nothing; empty if it may."""
    present = [v for part in parts for v in np.asarray(part).tolist() if v is not None and v == v]
    distinct = set(present)
    if not present:
        return "no value"
    if len(distinct) == 1 < len(present) and distinct not in ({0}, {1}) and how.kind != "words":
        return "one value only"
    if how.kind == "date":
        return "dates; the kind day makes them numbers"
    if len(distinct) < len(present) or len(present) < LEAST_IDS:
        return ""
    if all(isinstance(value, str) for value in distinct):
        return "all different: it names the rows"
    counts_up = all(isinstance(v, int) for v in distinct) and all(b - a == 1 for a, b in pairwise(present))
    is_named = name.lower().replace("-", "_").split("_")[-1] in _ID_NAMES
    return "all different: it numbers the rows" if counts_up or is_named else ""
