"""Models of one column of a table: densities fitted to weighted rows, added to circuits as leaves."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from certimap.core.arrays import Flags, Floats
from certimap.core.rounding import SMALLEST_NORMAL

if TYPE_CHECKING:
    from certimap.circuits.circuit import CircuitBuilder

LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
NUMBERS, FROM_ZERO, COUNTS = "numbers", "numbers from 0", "whole numbers from 0"
LEAST_SD = 0.01  # in standard deviations of the column: narrower leaves would overfit single rows


@dataclass(frozen=True, eq=False)
class ColumnMoments:
    """Mean and standard deviation of the whole column."""

    mean: float
    sd: float

    @classmethod
    def of(cls, values: Floats) -> ColumnMoments:
        sd = float(values.std()) if len(values) else 0.0
        return cls(float(values.mean()) if len(values) else 0.0, sd if sd > 0.0 else 1.0)

    def means(self, values: Floats, weights: Floats, smoothing: float) -> Floats:
        """Return the smoothed mean of each component; the column's mean for a component without rows."""
        totals = weights.sum(axis=0)
        sums = weights.T @ values + smoothing * self.mean
        return np.where(
            totals + smoothing > 0.0, sums / np.maximum(totals + smoothing, SMALLEST_NORMAL), self.mean
        )

    def variances(self, squares: Floats, totals: Floats, smoothing: float) -> Floats:
        """Return smoothed variances from weighted sums of squares, at least (LEAST_SD * sd)^2."""
        rows = np.maximum(totals + smoothing, SMALLEST_NORMAL)
        raw = np.where(totals + smoothing > 0.0, (squares + smoothing * self.sd**2) / rows, self.sd**2)
        return np.maximum(raw, (LEAST_SD * self.sd) ** 2)


class LeafFamily(ABC):
    """Model of one column in each component: fitting, densities, and leaves.

    Attributes
    ----------
    name
        Its public name: a leaf kind, "histogram" or "categorical".
    takes
        The values that it can hold: `NUMBERS`, `FROM_ZERO` or `COUNTS`.
    """

    name: ClassVar[str]
    takes: ClassVar[str] = NUMBERS

    def __init__(self, values: Floats) -> None:
        self.column = ColumnMoments.of(values)

    @abstractmethod
    def fit(self, values: Floats, weights: Floats, smoothing: float) -> Floats:
        """Return parameters, shape (n_components, n_parameters), for weights of shape (n_rows, n_components).

        Every component also counts `smoothing` pseudo-rows distributed like the whole column.
        """

    @abstractmethod
    def log_density(self, values: Floats, params: Floats) -> Floats:
        """Return natural logs, shape (n_rows, n_components); -inf where a value is impossible."""

    def add(self, builder: CircuitBuilder, variable: int, params: Floats) -> int:
        """Add the leaf of one component's parameters, and return its node."""
        return builder.real(self.name, variable, *params.tolist())


class CountFamily(LeafFamily):
    """A family on whole numbers from 0. Its means are above 0, and the smaller the more rows there are."""

    takes = COUNTS

    def __init__(self, values: Floats) -> None:
        super().__init__(values)
        self.least = 1.0 / (len(values) + 1.0)

    def means(self, values: Floats, weights: Floats, smoothing: float) -> Floats:
        """Return the mean of each component, shape (n_components, 1)."""
        return np.maximum(self.column.means(values, weights, smoothing), self.least)[:, None]


def is_count(values: Floats) -> Flags:
    """Return which values are whole numbers from 0."""
    return (values >= 0.0) & (values == np.rint(values))


def special(name: str) -> Any:
    """Return a function of scipy.special, which has no types."""
    return vars(import_module("scipy.special"))[name]
