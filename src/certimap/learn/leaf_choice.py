"""Leaf families that a column may have, and the choice among them by held-out rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from certimap.circuits.leaves.family import COUNTS, FROM_ZERO, NUMBERS, LeafFamily, is_count
from certimap.circuits.leaves.kind import leaf_kinds
from certimap.core.arrays import Floats
from certimap.core.domain import Domain, Real
from certimap.errors import DataError
from certimap.learn.leaf_families import Histogram, States
from certimap.learn.table import DataTable


def _families() -> dict[str, type[LeafFamily]]:
    """Return the families of real columns by name."""
    fitted = {kind.name: kind.family for kind in leaf_kinds().values() if kind.family is not None}
    return fitted | {Histogram.name: Histogram}


def families_of(table: DataTable, i: int, wanted: Sequence[str] | None) -> list[LeafFamily]:
    """Return the families that a column may have, the plainest first.

    Parameters
    ----------
    table
        The training rows.
    i
        The column.
    wanted
        A family's name, or several to choose from; None for all that can hold the column.

    Raises
    ------
    DataError
        For an unknown name, and for a family that cannot hold the column's values.
    """
    values = table.observed(i)
    variable = table.domain.variables[i]
    if not isinstance(variable, Real):
        if wanted is not None:
            raise DataError(
                f"leaves names the column {variable.name!r}, which is categorical; name real columns and counts"
            )
        return [States(values, variable.n_states)]
    hint, families = table.whole.get(i), _families()
    if wanted is not None:
        names: list[str] = [wanted] if isinstance(wanted, str) else [str(name) for name in wanted]
        for name in names:
            _check(name, families, variable.name, values)
    else:
        takes = [COUNTS] if hint == "count" or (hint == "whole" and np.all(is_count(values))) else []
        takes += [] if hint == "count" else [NUMBERS, FROM_ZERO] if np.all(values >= 0.0) else [NUMBERS]
        names = [name for kind in takes for name, family in families.items() if family.takes == kind]
    return [families[name](values) for name in names]


def densest(judged: Sequence[Floats]) -> int:
    """Return the index of the largest log densities: 0 unless another's mean lead exceeds its standard error."""
    best, lead = 0, 0.0
    for k, logs in enumerate(judged[1:], 1):
        with np.errstate(invalid="ignore"):
            gains = logs - judged[0]
        gains = np.where(np.isnan(gains), 0.0, gains)  # impossible under both
        mean = float(gains.mean())
        if mean > lead and (mean == np.inf or mean > float(gains.std()) / len(gains) ** 0.5):
            best, lead = k, mean
    return best


def check_leaves(leaves: Mapping[str, Any] | None, domain: Domain) -> None:
    """Raise DataError if `leaves` names a column that does not exist."""
    for name in leaves or {}:
        if name not in domain:
            raise DataError(f"leaves names the column {name!r}, which the table does not have")


def _check(name: str, families: Mapping[str, type[LeafFamily]], column: str, values: Floats) -> None:
    if name not in families:
        raise DataError(f"the leaves of column {column!r} are {name!r}; expected one of {', '.join(families)}")
    takes = families[name].takes
    held = is_count(values) if takes == COUNTS else values >= (0.0 if takes == FROM_ZERO else -np.inf)
    if not np.all(held):
        raise DataError(f"column {column!r} holds {values[~held][0]:g}; {name} leaves take {takes}")
