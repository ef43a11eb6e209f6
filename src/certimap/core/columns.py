"""What became of the columns of a table, as models keep it, and tables whose columns are settled."""

from __future__ import annotations

from typing import NamedTuple

from certimap.core.arguments import Record


class ColumnNote(NamedTuple):
    """What became of one column of a table that a model was learned from."""

    name: str
    kind: str  # "states", "number", "whole number", "count", "day" or "left out"
    values: str  # some states, or the smallest and the largest value
    missing: int  # cells without a value
    note: str  # how it was read, or why it was left out


class ColumnNotes(tuple[ColumnNote, ...]):
    """Notes on the columns of a table, in its order; printed as a table."""

    def __str__(self) -> str:
        from certimap.core.summary import aligned  # a model holds notes, and a summary prints models

        rows = [(c.name, c.kind, " ".join(c.values.split()), str(c.missing or ""), c.note) for c in self]
        return "\n".join(
            line.rstrip() for line in aligned([("column", "kind", "values", "missing", "note"), *rows])
        )


class PreparedTable(Record):
    """The columns to learn from by name, which every learner takes as it takes a data frame."""

    def __init__(self) -> None:
        self.kinds: dict[str, str] = {}  # as declared
        self.notes: dict[str, str] = {}  # how columns were read
        self.left_out: list[tuple[int, ColumnNote]] = []  # with their places in the table

    def __repr__(self) -> str:
        gone = ", ".join(f"{note.name} ({note.note})" for _, note in self.left_out)
        return f"PreparedTable({', '.join(self)}; left out: {gone or 'nothing'})"
