"""Concatenated tables, for operations on the entries of thousands of small tables at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from certimap.networks.problem import Table

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Joined:
    """Concatenated tables.

    Parameters
    ----------
    tables
        The tables.

    Attributes
    ----------
    values
        Their entries, the last axis varying fastest.
    starts, sizes
        Where each table begins, and how many entries it has.
    """

    def __init__(self, tables: Sequence[Table]) -> None:
        self.tables = tables
        self.sizes: Ints = np.array([t.log_values.size for t in tables], np.int64)
        self.starts: Ints = np.cumsum(self.sizes) - self.sizes
        self.values: NDArray[Any] = np.empty(0)
        if len(tables):
            self.values = np.concatenate([t.log_values.reshape(-1) for t in tables])

    @cached_property
    def tops(self) -> NDArray[Any]:
        """The largest entry of each table."""
        return np.maximum.reduceat(self.values, self.starts) if len(self.sizes) else self.values

    @cached_property
    def scopes(self) -> tuple[Ints, Ints]:
        """Where the variables of each table begin, and the variables of all tables."""
        return flattened([t.scope for t in self.tables])

    @cached_property
    def shapes(self) -> Ints:
        """The number of states of each of these variables."""
        return flattened([t.log_values.shape for t in self.tables])[1]

    def each(self, of_table: NDArray[Any]) -> NDArray[Any]:
        """Repeat a number per table for each of its entries."""
        return np.repeat(of_table, self.sizes)

    def lowest(self) -> Floats:
        """Return the least finite entry of each table of floats; inf where none is finite."""
        finite = np.where(self.values > -np.inf, self.values, np.inf)
        return np.minimum.reduceat(finite, self.starts) if len(self.sizes) else finite

    def reach(self) -> float:
        """Return the sum over tables of floats of the largest magnitude among finite entries."""
        if not len(self.sizes):
            return 0.0
        return float(
            np.maximum.reduceat(np.abs(np.where(self.values > -np.inf, self.values, 0.0)), self.starts).sum()
        )

    def entries_at(self, states: Ints) -> NDArray[Any]:
        """Return the entry of each table at one point, given the state of each variable by its position."""
        pointers, variables = self.scopes
        n_axes, at = np.diff(pointers), np.zeros(len(self.sizes), np.int64)
        for axis in range(int(n_axes.max(initial=0))):
            has = np.flatnonzero(n_axes > axis)
            here = pointers[has] + axis
            at[has] = at[has] * self.shapes[here] + states[variables[here]]
        return self.values[self.starts + at]


def flattened(rows: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Return the start of each row, and the concatenated rows."""
    pointers = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=pointers[1:])
    return pointers, np.fromiter(itertools.chain.from_iterable(rows), np.int64, int(pointers[-1]))
