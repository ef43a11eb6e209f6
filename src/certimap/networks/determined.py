"""Nuisance variables that the query determines: their sums have one term, so that they equal maxima."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from certimap.networks.problem import Problem, States, is_hard


class Function(NamedTuple):
    """A variable that others determine: its only possible state, given the states of the scope."""

    variable: int
    scope: tuple[int, ...]
    states: NDArray[np.int64]


def functions_of(problem: Problem) -> list[Function]:
    """Return the nuisance variables that the query determines, each after the ones in its scope.

    A table determines the one variable of it that is not yet known where it leaves one of its states, at most, to
    any states of the others. Cost: one pass over tables with zeros.
    """
    known = set(problem.query)
    found: list[Function] = []
    bearing = [t for t in problem.tables if not known.issuperset(t.scope) and bool(is_hard(t.log_values).any())]
    n_unknown = [len(set(t.scope) - known) for t in bearing]
    touching: dict[int, list[int]] = {}
    for k, table in enumerate(bearing):
        for v in table.scope:
            touching.setdefault(v, []).append(k)
    waiting = [k for k, n in enumerate(n_unknown) if n == 1][::-1]
    while waiting:
        scope, values = bearing[waiting.pop()]
        unknown = [v for v in scope if v not in known]
        if not unknown:
            continue
        v, axis = unknown[0], scope.index(unknown[0])
        if (~is_hard(values)).sum(axis=axis).max() > 1:
            continue
        found.append(Function(v, tuple(u for u in scope if u != v), values.argmax(axis=axis)))
        known.add(v)
        for k in touching[v]:
            n_unknown[k] -= 1
            if n_unknown[k] == 1:
                waiting.append(k)
    return found


def maximised(problem: Problem, functions: Sequence[Function]) -> Problem:
    """Return a problem that also maximises over variables which the query determines.

    A sum with at most one nonzero term equals its largest term.
    """
    return replace(problem, query=problem.query | {f.variable for f in functions})


def with_functions(
    functions: Sequence[Function], points: States, variables: Sequence[int]
) -> tuple[NDArray[np.int64], list[int]]:
    """Append the states of determined variables to points of the query.

    `points`, `variables`: states of the open query variables, shape (batch, n), and which these are, by column.
    Returns points with a column more for each function, and the variables of all columns.
    """
    column = {v: points[:, k] for k, v in enumerate(variables)}
    for v, scope, states in functions:
        column[v] = states[tuple(column[u] for u in scope)] if scope else np.full(len(points), int(states))
    return np.stack(list(column.values()), axis=1) if column else points, list(column)
