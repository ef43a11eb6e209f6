"""What became of the columns of a table, as models keep it, and tables whose columns are settled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
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

        rows = [(c.name, c.kind, c.values, str(c.missing or ""), c.note) for c in self]
        return "\n".join(
            line.rstrip() for line in aligned([("column", "kind", "values", "missing", "note"), *rows])
        )


class PreparedTable(Record):
    """The columns to learn from by name, which every learner takes as it takes a data frame.

    `kinds`: those declared, by name, for the learner. `notes`: how columns were read, by name. `left_out`: the
    places of other columns in the table, with notes. `also`: the same columns of further tables.
    """

    kinds: Mapping[str, str] = MappingProxyType({})
    notes: Mapping[str, str] = MappingProxyType({})
    left_out: Sequence[tuple[int, ColumnNote]] = ()
    also: Sequence[Record] = ()

    def __repr__(self) -> str:
        gone = [f"{note.name} ({note.note})" for _, note in self.left_out]
        return f"PreparedTable({', '.join(self)}" + (f"; left out: {', '.join(gone)})" if gone else ")")
