"""Names of variables at steps of a sequence, `x[3]`, and tables with a row per step."""

from __future__ import annotations

import re
from typing import Any

from certimap.core.arguments import Record, is_mapping, is_missing, plain_scalar, shown
from certimap.errors import QueryError

_MARKED = re.compile(r"(.+)\[(\d+)\](|:max:\d+)", re.DOTALL | re.ASCII)  # the last: a helper of a noisy node
STEP = "step"  # the column, or the name of the index, that numbers rows


def at_step(name: str, step: int | None) -> str:
    """Return the name of a variable at a step, from 0; None for a variable of the whole sequence."""
    return name if step is None else f"{name}[{step}]"


def step_of(name: str) -> tuple[str, int | None]:
    """Return a variable's name without its step, and the step; None for a name without one."""
    found = _MARKED.fullmatch(name)
    return (found[1] + found[3], int(found[2])) if found else (name, None)


def by_step(frame: Any) -> Record:
    """Return evidence from a table with a row per step: `{"x[3]": value}` for the cell of `x` at step 3.

    `frame`: a pandas or polars frame whose columns are variables without their steps, or a list of mappings. A
    column (or a pandas index) called "step" numbers the steps, else rows count from 0. Missing cells are left out.
    Raises QueryError for rows that are no mappings, other numbers of steps, and two cells for one variable.

    >>> by_step([{"y": "hot"}, {"y": None}, {"y": "cold"}])
    {'y[0]': 'hot', 'y[2]': 'cold'}
    """
    found: Record = {}
    rows: Any = frame
    if hasattr(frame, "to_dicts"):
        rows = frame.to_dicts()
    elif hasattr(frame, "iterrows"):
        rows = (frame.reset_index() if frame.index.name == STEP else frame).to_dict("records")
    for place, row in enumerate(rows):
        if not is_mapping(row) or not str(step := row.get(STEP, place)).isdecimal():
            raise QueryError(f"row {place} is {shown(row)}; expected a mapping from variables, and a step from 0")
        for name, value in row.items():
            if name == STEP or is_missing(value):
                continue
            if (key := at_step(str(name), int(step))) in found:
                raise QueryError(f"{key!r} has two values, {found[key]!r} and {value!r}; expected a row per step")
            found[key] = plain_scalar(value)
    return found


def rows_by_step(assignment: Record) -> tuple[dict[int, Record], Record]:
    """Return what an assignment says of each step, in their order, and of variables without a step."""
    rows: dict[int, Record] = {}
    rest: Record = {}
    for key, label in assignment.items():
        name, step = step_of(key)
        (rest if step is None else rows.setdefault(step, {}))[name] = label
    return dict(sorted(rows.items())), rest
