"""From a table as a user has it to the columns that a learner takes: text typed, useless columns left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from certimap.core.arguments import has_names, is_path, keywords_hinted
from certimap.core.columns import ColumnNote, PreparedTable
from certimap.core.domain import OTHER
from certimap.errors import DataError, did_you_mean
from certimap.io.cells import Convention, conventions, day_of
from certimap.io.text_tables import TextTable, has_header, read_text_table, typed
from certimap.learn.table import Kind, columns_of

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
    kinds: Mapping[str, Kind] | None = None,
    columns: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    pool: int = 0,
    missing: Iterable[str] = (),
    decimal: Literal[".", ","] | None = None,
) -> PreparedTable:
    """Read a table, and settle which columns a model is learned from.

    Left out, with a note, are columns without values or with one value only, dates, and columns that number or
    name the rows, unless `columns` or `kinds` name them. Cost: some 3 us per cell of text.

    `data`: a path of a text table, or any table (see `certimap.learn.table`), whose texts are read as those of a
    file. `kinds`: kinds by name, which overrule all of this: "categorical", "real", "count", and "day" for dates
    that become days since 1970-01-01. `columns`, `drop`: names to keep and to leave out. `pool`: labels of fewer
    rows than this become the state "(other)", which later stands for unseen labels too. `missing`: more marks of
    missing values; case does not matter. `decimal`: the sign before decimals, for numbers such as 1,234 that do
    not tell; None: the other columns tell.

    Returns a table that every learner takes. Raises DataError for a name that the table lacks, a kind that does
    not suit its column, or no column left, and ParseError for a file that is no table.
    """
    marks, table = {mark.lower() for mark in missing}, data
    if is_path(data):
        table = read_text_table(data, header=has_header(data), decimal=decimal, missing=marks)
    named = has_header(table.path) if isinstance(table, TextTable) else has_names(table)
    found, kinds = _columns(table, marks), kinds or {}
    for what, names in (("kinds", kinds), ("columns", columns or ()), ("drop", drop)):
        for name in names:
            if name not in found:
                hint = did_you_mean(name, found)
                raise DataError(f"{what} names the column {name!r}, which the table does not have{hint}")
    texts = [[c for c in one.cells if c is not None] if one.values is None else [] for one in found.values()]
    told = (table.decimal, table.separator) if isinstance(table, TextTable) else (decimal, ",")
    kept, left_out = PreparedTable(), list[tuple[int, ColumnNote]]()
    for place, ((name, column), how) in enumerate(zip(found.items(), conventions(texts, *told), strict=True)):
        values, note = _settled(name, column, how, kinds.get(name), pool)
        present = [v for v in np.asarray(values).tolist() if v is not None and v == v]
        why = _useless(name, present, how) if named and columns is None and name not in kinds else ""
        if name in drop or (columns is not None and name not in columns):
            why = "not asked for"
        if why:
            shown = ", ".join(map(str, list(dict.fromkeys(present))[:2]))
            left_out.append((place, ColumnNote(name, "left out", shown, len(column.cells) - len(present), why)))
        else:
            kept[name], kept.notes[name] = values, note
    if not kept:
        raise DataError(f"no column is left: {', '.join(f'{n.name} ({n.note})' for _, n in left_out)}")
    kept.kinds = {name: kind for name, kind in kinds.items() if name in kept}
    kept.left_out = left_out
    return kept


def _columns(table: Any, marks: set[str]) -> dict[str, _Column]:
    """Return the columns of a table by name; `marks` of missing values are those of text in data frames."""
    if isinstance(table, TextTable):
        absent = table.missing
        columns = [[None if c.lower() in absent else c for c in column] for column in table.cells]
        return {name: _Column(cells, None) for name, cells in zip(table.names, columns, strict=True)}
    found: dict[str, _Column] = {}
    for column in columns_of(table):
        is_date = column.values.dtype.kind == "M"
        some: list[Any] = (np.datetime_as_string(column.values, "D") if is_date else column.values).tolist()
        cells = [None if m or (isinstance(v, str) and v.strip().lower() in marks) else v
                 for v, m in zip(some, column.missing, strict=True)]  # fmt: skip
        is_text = column.categories is None and all(c is None or isinstance(c, str) for c in cells)
        values: Any = column.values
        if column.categories is not None:
            values = next(table[name] for name in table.columns if str(name) == column.name)
        found[column.name] = _Column(cells, None if is_text else values)
    return found


def _settled(name: str, column: _Column, how: Convention, kind: Any, pool: int) -> tuple[Any, str]:
    """Return a column as learners take it, and a note on it."""
    if column.values is not None:
        return column.values, ""
    cells = [None if c is None else how.plain(c) for c in column.cells]
    counts = Counter(cell for cell in cells if cell is not None)
    if kind == "day":
        days = {cell: day_of(cell) for cell in counts}
        wrong = next((cell for cell, day in days.items() if day is None), None)
        if wrong is not None:
            raise DataError(f"column {name!r} holds {wrong!r}; its kind is day, and a date is expected")
        return np.array([None if c is None else days[c] for c in cells], np.float64), "days since 1970-01-01"
    values = typed(cells)
    rare = {label for label, n in counts.items() if n < pool}
    if any(isinstance(value, str) for value in values.tolist()):
        if rare:
            note = f"{len(rare)} labels of fewer than {pool} rows are {OTHER}"
            return typed([OTHER if c in rare else c for c in cells]), note
        if len(counts) >= MANY:
            return (
                values,
                f"{len(counts)} states, {counts.total() / len(counts):.1f} rows each; pool joins rare ones",
            )
    return values, how.note


def _useless(name: str, present: Sequence[Any], how: Convention) -> str:
    """Return why a column tells nothing; empty if it may."""
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
