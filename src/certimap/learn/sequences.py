"""Sequences under a structure over slices `x[0]`, `x[1]`: a row for each of them, and tables that steps share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from certimap.core.arguments import is_list, shown
from certimap.core.arrays import Ints
from certimap.core.domain import Domain
from certimap.core.steps import at_step, step_of
from certimap.errors import DataError
from certimap.learn.table import DataTable, columns_of


def split(table: Any, sequence: str | bool) -> tuple[Any, Ints]:
    """Return one table of all rows, and the number of each row's sequence, in the order of their first rows."""
    if sequence is True:
        parts = [columns_of(one) for one in table] if is_list(table) else []
        if not parts or not all(parts):
            raise DataError(f"the data are {shown(table)}; expected a list of tables, as sequence is True")
        joined, lengths = {c.name: list[Any]() for part in parts for c in part}, [len(p[0].values) for p in parts]
        for part, n in zip(parts, lengths, strict=True):
            cells = {c.name: np.where(c.missing, np.array(None), c.values.astype(object)).tolist() for c in part}
            for name, values in joined.items():
                values.extend(cells.get(name, [None] * n))
        return joined, np.repeat(np.arange(len(parts)), lengths)
    column = next((c for c in columns_of(table) if c.name == sequence), None)
    if column is None or column.missing.any():
        raise DataError(f"sequence is {sequence!r}; expected a full column, or True for a list of tables")
    numbers: dict[Any, int] = {}
    return table, np.array([numbers.setdefault(label, len(numbers)) for label in column.values.tolist()])


def repeated(parents: Mapping[str, Sequence[str]], steps: int) -> tuple[dict[str, list[str]], dict[str, object]]:
    """Return parents at all steps, step by step, and by variable a key of its table, which equal parents share."""
    ends = [at for _, at in map(step_of, parents) if at is not None]
    if not ends:
        raise DataError("the structure names no slices; expected variables x[0], x[1], ... for sequences")
    made, keys = dict[str, list[str]](), dict[str, object]()
    for t in (None, *range(max(steps, max(ends) + 1))):
        for name, above in parents.items():
            base, at = step_of(name)
            if at == (t if t is None else min(t, max(ends))):
                back = sorted(((b, s if s is None else s - (at or 0)) for b, s in map(step_of, above)), key=str)
                own = [at_step(b, gap if gap is None else (t or 0) + gap) for b, gap in back]
                if lost := [parent for parent in own if parent not in made]:
                    raise DataError(f"{at_step(base, t)!r} needs the parent {lost[0]!r} at its or an earlier step")
                made[at_step(base, t)], keys[at_step(base, t)] = own, (base, *back)
    return made, keys


def laid_out(rows: DataTable, numbers: Ints, domain: Domain) -> DataTable:
    """Return a row per sequence with the columns of a domain, `x[t]` from row t of the column `x`."""
    lengths: Ints = np.bincount(numbers)
    step = np.empty(len(numbers), np.int64)
    step[np.argsort(numbers, kind="stable")] = np.arange(len(step)) - np.repeat(
        lengths.cumsum() - lengths, lengths
    )
    at = np.split(np.argsort(step, kind="stable"), np.cumsum(np.bincount(step))[:-1])
    points = np.full((len(lengths), len(domain)), -1, domain.point_dtype)
    for i, (name, t) in enumerate(map(step_of, domain.names)):
        column: Ints = rows.points[:, rows.domain.index(name)].astype(np.int64)
        used = np.flatnonzero(column >= 0) if t is None else at[t] if t < len(at) else at[0][:0]
        points[numbers[used], i] = np.where(column[used] >= 0, column[used], -1)
        if t is None and np.any(points[numbers[used], i] != column[used]):
            raise DataError(f"column {name!r} changes within a sequence; expected one state, or slices {name}[0]")
    return DataTable(domain, points)
