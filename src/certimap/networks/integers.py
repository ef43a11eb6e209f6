"""Conversion of problems to integers, so that sums and maxima are exact: logs rounded up to a unit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from certimap.networks.problem import FLOOR, HARD, ROUNDING, Problem, Table, Values, largest

RANGE_BITS = 57  # all finite integers, and sums of one entry per table, stay below 2 ** RANGE_BITS
FINEST_UNIT = 2.0**-48
WIDE_REACH = 1000.0  # nats below the largest entry of a table that `to_fine_integers` keeps apart


def to_integers(problem: Problem) -> Problem:
    """Round the logs of a problem without nuisance variables up to multiples of a unit (a power of two).

    Values never decrease: the slack and the rounding of each entry are added, so that every upper bound on the
    integers also bounds the problem. From here on sums and maxima are exact in any order.
    """
    if problem.is_integral:
        return problem
    joined = problem.joined
    reach = joined.reach() + abs(problem.constant) + 1.0
    unit = max(FINEST_UNIT, 2.0 ** (math.ceil(math.log2(reach)) - RANGE_BITS))
    values, starts = rounded_up(joined.values, unit), joined.starts.tolist()
    tables = tuple(
        Table(t.scope, values[k : k + t.log_values.size].reshape(t.log_values.shape))
        for t, k in zip(problem.tables, starts, strict=True)
    )
    constant = problem.constant + problem.log_slack
    constant = math.ceil((constant + 4.0 * ROUNDING * abs(constant)) / unit)
    return replace(problem, tables=tables, constant=constant, log_slack=0.0, unit=unit)


class FineIntegers(NamedTuple):
    """The tables of a problem in a unit that does not grow with their number: for `MaxElimination` alone."""

    values: NDArray[np.int64]  # the concatenated entries of all tables, the largest of each 0; `HARD` for zeros
    constant: int  # in units, an integer of any size
    lowest: int  # no finite entry is lower
    unit: float  # nats per unit


def to_fine_integers(problem: Problem, n_added: int, reach: float = WIDE_REACH) -> FineIntegers:
    """Round like `to_integers`, to a unit that does not grow with the number of tables.

    The largest entry of each table moves to the constant. Finite entries below `lowest` are raised to it, so that
    sums of `n_added` entries fit. Values never decrease.

    `n_added`: the most tables, messages included, that are ever added up. `reach`: range, in nats below the
    largest entry of a table or message, in which entries stay distinct. The unit is proportional to it.
    """
    lowest = -(2**58 // max(n_added, 1))
    unit = 2.0 ** math.ceil(math.log2(reach / -lowest))
    constant = problem.constant + problem.log_slack
    units = math.ceil((constant + 4.0 * ROUNDING * abs(constant)) / unit)
    joined = problem.joined
    shift = np.floor(np.where(joined.tops > -np.inf, joined.tops, 0.0) / unit)
    units += sum(map(int, shift.tolist()))
    finite = joined.values > -np.inf
    scaled = np.where(finite, joined.values, joined.each(joined.tops))
    with np.errstate(invalid="ignore"):  # of tables without a positive entry, whose entries are replaced
        scaled = np.ceil((scaled + 2.0 * ROUNDING * np.abs(scaled)) / unit - joined.each(shift))
    integers = np.where(finite, np.maximum(np.where(finite, scaled, 0.0), lowest), HARD).astype(np.int64)
    return FineIntegers(integers, units, lowest, unit)


def narrow_reach(problem: Problem) -> float:
    """Return a `reach` that suffices unless messages spread over far more nats than the tables do."""
    joined = problem.joined
    if not len(joined.tables):
        return 32.0
    is_possible = joined.tops > -np.inf
    widest = float(np.max(joined.tops[is_possible] - joined.lowest()[is_possible], initial=0.0))
    return min(max(4.0 * widest, 32.0), WIDE_REACH)


def rounded_up(log_values: Values, unit: float) -> Values:
    """Return logs (nats) as integers of `unit`, rounded up; `HARD` for -inf."""
    finite = log_values > -np.inf
    values = np.where(finite, log_values, 0.0)
    scaled = np.ceil((values + 2.0 * ROUNDING * np.abs(values)) / unit)
    return np.where(finite, scaled.astype(np.int64), HARD)


def in_nats(units: int, unit: float) -> float:
    """Return an integer number of units in nats, rounded up; -inf for `HARD`."""
    return -math.inf if units <= FLOOR else above_nats(units, unit)


def above_nats(units: int, unit: float) -> float:
    """Return an integer number of units, of any size, in nats, rounded up."""
    value = units * unit
    return value + 2.0 * ROUNDING * abs(value)


def below_nats(log_value: float, unit: float) -> int:
    """Return a log (nats) as an integer number of units, rounded down; `HARD` for -inf."""
    if log_value == -math.inf:
        return HARD
    return math.floor(math.nextafter(log_value, -math.inf) / unit) - 1


def above_units(log_value: float, unit: float) -> int:
    """Return a log (nats) as an integer number of units, rounded up; `HARD` for -inf."""
    if log_value == -math.inf:
        return HARD
    return math.ceil(math.nextafter(log_value, math.inf) / unit) + 1


def to_floats(problem: Problem) -> Problem:
    """Return an integer problem in nats, without its constant; `log_slack` holds the rounding error."""
    tables = tuple(
        Table(t.scope, np.where(t.log_values > FLOOR, t.log_values * problem.unit, -np.inf))
        for t in problem.tables
    )
    slack = ROUNDING * math.fsum(largest(t.log_values) for t in tables)
    return Problem(problem.sizes, problem.query, tables, 0.0, slack)
