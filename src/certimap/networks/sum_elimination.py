"""The total of a product of tables by eliminating one variable after another, in the linear domain."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from certimap.axes import spread
from certimap.control import Control
from certimap.networks.conditional import Total, log_total
from certimap.networks.max_elimination import EliminationPlan
from certimap.networks.problem import ROUNDING, Problem
from certimap.networks.simplify import impossible
from certimap.rounding import SAFE_LOG2

LN2 = math.log(2.0)


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
    control = control or Control()
    place = {v: i for i, v in enumerate(plan.order)}
    waiting: list[list[_Linear]] = [[] for _ in plan.order]
    constants, exponent = [float(problem.constant)], 0
    n_rounded = float(len(problem.tables))  # roundings of half a unit that an entry goes through, at most
    for scope, values in problem.tables:
        top = float(values.max())
        if top == -math.inf:
            raise impossible()
        constants.append(top)
        scaled = np.exp(values - top)
        least = float(values.min(where=values > -np.inf, initial=top)) - top
        n_rounded += 2.0 + abs(least)
        ordered = tuple(sorted(scope, key=place.__getitem__))
        waiting[place[ordered[0]]].append(_Linear(ordered, spread(scaled, scope, ordered), least / LN2 - 1.0))
    for i, (v, separator) in enumerate(zip(plan.order, plan.separators, strict=True)):
        control.check("summing for p(e)")
        tables, waiting[i] = waiting[i], []
        n_rounded += len(tables) + problem.sizes[v] + 1.0
        if not tables:  # no table mentions it
            constants.append(math.log(problem.sizes[v]))
            continue
        if sum(t.log2_least for t in tables) < SAFE_LOG2:
            total = log_total(problem, math.inf)
            assert total is not None
            return total
        message = _summed(tables, (v, *separator), problem)
        top = float(message.max())
        if top <= 0.0:
            raise impossible()
        _, shift = math.frexp(top)
        exponent += shift
        if separator:
            scaled = np.ldexp(message, -shift)
            least = float(scaled.min(where=scaled > 0.0, initial=1.0))
            waiting[place[separator[0]]].append(_Linear(separator, scaled, math.log2(least)))
        else:
            constants.append(math.log(math.ldexp(top, -shift)))
    value = math.fsum([*constants, exponent * LN2])
    reach = sum(abs(c) for c in constants) + abs(exponent * LN2)
    return Total(value, problem.log_slack + 2.0 * ROUNDING * (n_rounded + reach))


def _summed(tables: list[_Linear], scope: tuple[int, ...], problem: Problem) -> NDArray[np.float64]:
    """Return the sum over the first variable of a scope of a product of tables, small ones multiplied first."""
    total = np.ones((1,) * len(scope))
    for table in sorted(tables, key=lambda t: t.values.size):
        total = total * spread(table.values, table.scope, scope)
    return np.ascontiguousarray(np.broadcast_to(total.sum(axis=0), problem.shape(scope[1:])))
