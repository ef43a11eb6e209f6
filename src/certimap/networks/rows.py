"""Rows of conditional tables: what counts as adding to 1, and the rows of zeros that are legal.

A row of zeros stands for a configuration of the parents that cannot occur (linkage networks have them): it gives
that configuration the weight 0. Where the parents can reach it, the network is an unnormalised product.
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
    """Return what the rows (last axis) of a factor add to; -1 where a row is so small that its sum is not held."""
    if not factor.in_logs:
        return factor.table.sum(axis=-1)
    logs = log_sum(factor.log_table, factor.log_table.ndim - 1)
    with np.errstate(over="ignore"):
        totals = np.exp(logs)
    return np.where((totals == 0.0) & (logs > -np.inf), -1.0, totals)


class RowNormaliser:
    """Renormalises rows that nearly add to 1, and warns once for all of a model.

    Parameters
    ----------
    name
        What the warning calls the model.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.n_rows = 0
        self.worst = 0.0

    def __call__(self, factor: Factor) -> tuple[Factor, tuple[int, ...] | None]:
        """Return a factor whose rows add to 1 or are zeros, and the first row that does neither by too much."""
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
