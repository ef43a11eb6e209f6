"""The total of a product of tables by eliminating one variable after another, in the linear domain."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from certimap.axes import spread
from certimap.control import Control, Pace
from certimap.networks.conditional import Total, log_total
from certimap.networks.max_elimination import EliminationPlan
from certimap.networks.problem import ROUNDING, Joined, Problem
from certimap.networks.simplify import impossible
from certimap.rounding import SAFE_LOG2

LN2 = math.log(2.0)
SECONDS_PER_ENTRY = 3e-9  # to multiply one of a table, or to add it to a sum
ENTRIES_PER_SUM = 5_000  # that a sum over one variable costs besides, in entries


class _Linear(NamedTuple):
    """A table scaled so that its largest entry lies in [0.5, 1), and the log2 of its least positive one."""

    scope: tuple[int, ...]
    values: NDArray[np.float64]
    log2_least: float


def sum_all(problem: Problem, plan: EliminationPlan, control: Control | None = None) -> Total:
    """Sum a problem over all its variables, whether they are queried or not.

    Cost: `plan.n_entries` multiplications per table. A product that might leave the range of doubles is not
    formed: the sum is then worked out by `log_total`, which goes to logs where it must.

    Raises
    ------
    ImpossibleEvidence
        When the total is 0.
    TimeUp
        When `control` asks to stop.
    """
    pace = Pace(control or Control(), "summing for p(e)", SECONDS_PER_ENTRY)
    place = {v: i for i, v in enumerate(plan.order)}
    waiting: list[list[_Linear]] = [[] for _ in plan.order]
    constants, exponent = [float(problem.constant)], 0
    n_rounded = float(len(problem.tables))  # roundings of half a unit that an entry goes through, at most
    joined = Joined.of(problem.tables)
    if np.any(joined.tops == -np.inf):
        raise impossible()
    constants += joined.tops.tolist()
    top = joined.each(joined.tops)
    finite = np.where(joined.values > -np.inf, joined.values, top)
    least = np.minimum.reduceat(finite, joined.starts) - joined.tops if len(problem.tables) else joined.tops
    n_rounded += float((2.0 + np.abs(least)).sum())
    for (scope, scaled), low in zip(joined.split(np.exp(joined.values - top)), least.tolist(), strict=True):
        ordered = tuple(sorted(scope, key=place.__getitem__))
        aligned = scaled if ordered == scope else spread(scaled, scope, ordered)
        waiting[place[ordered[0]]].append(_Linear(ordered, aligned, low / LN2 - 1.0))
    for i, (v, separator) in enumerate(zip(plan.order, plan.separators, strict=True)):
        tables, waiting[i] = waiting[i], []
        pace.ahead(ENTRIES_PER_SUM + (len(tables) + 2) * math.prod(problem.sizes[u] for u in (v, *separator)))
        n_rounded += len(tables) + problem.sizes[v] + 1.0
        if not tables:  # no table mentions it
            constants.append(math.log(problem.sizes[v]))
            continue
        if sum(t.log2_least for t in tables) < SAFE_LOG2:
            total = log_total(problem, math.inf)
            assert total is not None
            return total
        message = _summed(tables, (v, *separator), problem)
        largest = float(message.max())
        if largest <= 0.0:
            raise impossible()
        _, shift = math.frexp(largest)
        exponent += shift
        if separator:
            scaled = np.ldexp(message, -shift)
            least = float(scaled.min(where=scaled > 0.0, initial=1.0))
            waiting[place[separator[0]]].append(_Linear(separator, scaled, math.log2(least)))
        else:
            constants.append(math.log(math.ldexp(largest, -shift)))
    value = math.fsum([*constants, exponent * LN2])
    reach = sum(abs(c) for c in constants) + abs(exponent * LN2)
    return Total(value, problem.log_slack + 2.0 * ROUNDING * (n_rounded + reach))


def _summed(tables: list[_Linear], scope: tuple[int, ...], problem: Problem) -> NDArray[np.float64]:
    """Return the sum over the first variable of a scope of a product of tables, small ones multiplied first."""
    first, *others = sorted(tables, key=lambda t: t.values.size)
    total = first.values if first.scope == scope else spread(first.values, first.scope, scope)
    for table in others:
        total = total * (table.values if table.scope == scope else spread(table.values, table.scope, scope))
    summed, shape = total.sum(axis=0), problem.shape(scope[1:])
    return np.ascontiguousarray(summed if summed.shape == shape else np.broadcast_to(summed, shape))
