"""Rows of conditional tables: the tolerance for sums of 1, and legal rows of zeros.

A row of zeros marks a configuration of the parents that cannot occur (as in linkage networks) and gives it weight
0. If the parents can reach it, the network is an unnormalised product.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from certimap.networks.factor import Factor, log_sum

Floats = NDArray[np.float64]

EXACT = 1e-9  # rows this close to 1 are left unchanged
SILENT = 1e-6 + 1e-12  # rows this close to 1 were rounded to single precision: renormalised without a word
ACCEPTED = 1e-3 + 1e-12  # rows this close to 1 are renormalised; sums of decimals at the limit are rounded


def row_totals(factor: Factor) -> Floats:
    """Return the sums of a factor's rows (last axis); -1 for a row too small to sum."""
    if not factor.in_logs:
        return factor.table.sum(axis=-1)
    logs = log_sum(factor.log_table, factor.log_table.ndim - 1)
    with np.errstate(over="ignore"):
        totals = np.exp(logs)
    return np.where((totals == 0.0) & (logs > -np.inf), -1.0, totals)


class RowNormaliser:
    """Renormalises rows that nearly add up to 1, and warns once per model.

    `name`: the model's name in the warning.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.n_rows = 0
        self.worst = 0.0

    def __call__(self, factor: Factor) -> tuple[Factor, tuple[int, ...] | None]:
        """Return a factor with rows that add up to 1 or are zeros, and the first unacceptable row or None."""
        totals = row_totals(factor)
        off = np.where(totals == 0.0, 0.0, np.abs(totals - 1.0))
        if np.all(off <= EXACT):
            return factor, None
        if np.any(~(off <= ACCEPTED)):
            return factor, tuple(int(i) for i in np.argwhere(~(off <= ACCEPTED))[0])
        self.n_rows += int(np.count_nonzero(off > SILENT))
        self.worst = max(self.worst, float(off.max()))
        divisor = np.where(off > EXACT, totals, 1.0)[..., None]
        if factor.in_logs:
            return Factor.from_log(factor.scope, factor.log_table - np.log(divisor)), None
        return Factor(factor.scope, factor.table / divisor), None

    def warn(self) -> None:
        """Warn if any row was changed by more than rounding to single precision."""
        if self.n_rows:
            rows = "one row of the conditional tables was" if self.n_rows == 1 else f"{self.n_rows} rows were"
            warnings.warn(
                f"{self.name}: {rows} renormalised; the farthest added to 1 only within {self.worst:.1e}",
                stacklevel=4,
            )


def owners_with_zero_rows(factors: Iterable[Factor]) -> frozenset[int]:
    """Return the variables (last of their scope) whose tables have a row of zeros."""
    return frozenset(f.scope[-1] for f in factors if not f.is_positive and np.any(row_totals(f) == 0.0))
