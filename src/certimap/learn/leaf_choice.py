"""Leaf families that a column may have, and the choice among them by held-out rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.core.domain import Domain, Real
from certimap.errors import DataError
from certimap.learn.leaf_families import (
    Exponential,
    Gaussian,
    Geometric,
    Histogram,
    Laplace,
    LeafFamily,
    Poisson,
    States,
    StudentT,
    TruncatedGaussian,
    is_count,
)
from certimap.learn.table import DataTable

Floats = NDArray[np.float64]

_REAL: dict[str, Callable[[Floats], LeafFamily]] = {
    "gaussian": Gaussian,
    "laplace": Laplace,
    "student_t": StudentT,
    "truncated_gaussian": TruncatedGaussian,
    "exponential": Exponential,
    "histogram": Histogram,
    "poisson": Poisson,
    "geometric": Geometric,
}
_FROM_ZERO = ("truncated_gaussian", "exponential")
_COUNTS = ("poisson", "geometric")


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
    hint = table.whole.get(i)
    counts = bool(np.all(is_count(values)))
    if wanted is not None:
        names: list[str] = [wanted] if isinstance(wanted, str) else [str(name) for name in wanted]
        for name in names:
            _check(name, variable.name, values)
    elif hint == "count":
        names = list(_COUNTS)
    else:
        plain = [name for name in _REAL if name not in (*_FROM_ZERO, *_COUNTS)]
        from_zero = list(_FROM_ZERO) if bool(np.all(values >= 0.0)) else []
        names = (list(_COUNTS) if hint == "whole" and counts else []) + plain + from_zero
    return [_REAL[name](values) for name in names]


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


def _check(name: str, column: str, values: Floats) -> None:
    if name not in _REAL:
        raise DataError(f"the leaves of column {column!r} are {name!r}; expected one of {', '.join(_REAL)}")
    if name in _COUNTS and not np.all(is_count(values)):
        wrong = values[~is_count(values)][0]
        raise DataError(f"column {column!r} holds {wrong:g}; {name} leaves take whole numbers from 0")
    if name in _FROM_ZERO and not np.all(values >= 0.0):
        raise DataError(f"column {column!r} holds {values.min():g}; {name} leaves take numbers from 0")
