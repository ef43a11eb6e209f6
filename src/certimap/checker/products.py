"""Sums or maximises a variable out of a product of tables, rounding to the safe side."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from certimap.checker.budget import CheckBudget
from certimap.checker.models import PlainTable, spread
from certimap.checker.numbers import UNIT, Floats, log_sum, up

Scope = tuple[int, ...]
BLOCK = 2**16  # entries of a product computed at a time


def summed(
    v: int,
    scope: Scope,
    tables: Sequence[PlainTable],
    sizes: Mapping[int, int],
    budget: CheckBudget,
    weight: float = 1.0,
    side: int = 1,
) -> tuple[PlainTable, list[float]]:
    """Return (Σ f^(1/weight))^weight over a variable, for a product f of tables, as a table and constants.

    Together they are at least the true value (with side -1 and weight 1, at most). Small tables are multiplied
    first, and the product with the largest table is computed block by block.
    """
    first, *others = sorted(tables, key=lambda t: t.logs.size)
    for table in others[:-1]:
        budget.look()
        union = tuple(u for u in scope if u in first.scope or u in table.scope)
        first = PlainTable(union, up(spread(first, union) + spread(table, union), side))
    rest = tuple(u for u in scope if u != v)
    shape = [sizes[u] for u in rest]
    views = [np.broadcast_to(spread(t, (v, *rest)), [sizes[v], *shape]) for t in (first, *others[-1:])]
    found = np.empty(shape)
    n_outer = next((k for k in range(len(shape)) if sizes[v] * math.prod(shape[k:]) <= BLOCK), len(shape))
    for at in np.ndindex(*shape[:n_outer]):
        budget.look()
        parts = [view[(slice(None), *at)] for view in views]
        found[at] = _power_sum(up(parts[0] + parts[1], side) if others else parts[0], weight, side)
    top = float(found.max())
    return (PlainTable(rest, up(found - top, side)), [top]) if top > -math.inf else (PlainTable(rest, found), [])


def _power_sum(logs: Floats, weight: float, side: int) -> Floats:
    """Return ln (Σ f^(1/weight))^weight along the first axis; factors out the largest entry against underflow."""
    if weight == 1.0:
        return log_sum(logs, 0, side)
    top = logs.max(axis=0)
    base = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(over="ignore"):  # an entry of -inf is negligible beside the largest
        raised = log_sum(up(up(logs - base) / weight), 0)
    return up(base + up(weight * raised), 2.0)


def _paired(tables: Sequence[PlainTable], sizes: Mapping[int, int], budget: CheckBudget) -> list[PlainTable]:
    """Multiply the two tables with the smallest product, repeatedly, until at most two are left."""
    left = list(tables)
    while len(left) > 2:
        budget.look()
        pairs = itertools.combinations(range(len(left)), 2)
        unions = [(math.prod(sizes[u] for u in {*left[i].scope, *left[j].scope}), j, i) for i, j in pairs]
        _, j, i = min(unions)
        b, a = left.pop(j), left.pop(i)
        union = tuple(sorted({*a.scope, *b.scope}))
        left.append(PlainTable(union, spread(a, union) + spread(b, union)))
    return left


def _in_blocks(
    v: int, scope: Scope, tables: Sequence[PlainTable], sizes: Mapping[int, int], budget: CheckBudget
) -> tuple[Scope, Floats]:
    """Return the axes and entries of the maximum over v of two tables' sum; the order of axes gives long runs."""
    *_, b, a = [PlainTable((), np.zeros(())), *sorted(tables, key=lambda t: t.logs.size)]
    strides = dict(zip(a.scope, a.logs.strides, strict=True))
    shared, alone = {*a.scope} & {*b.scope} - {v}, {*a.scope} - {*b.scope, v}
    inner = max(shared, alone, key=lambda us: math.prod(sizes[u] for u in us))
    rest = sorted({*scope} - {v}, key=lambda u: (u in strides, u in inner, -strides.get(u, 0), u))
    shape = [sizes[u] for u in (v, *rest)]
    first = np.broadcast_to(spread(a, (v, *rest)), shape)
    second = np.broadcast_to(np.ascontiguousarray(spread(b, (v, *rest))), shape)
    found = np.full(shape[1:], -np.inf)
    n_outer = next(k for k in range(len(shape)) if math.prod(shape[1 + k :]) <= BLOCK)
    for at in np.ndindex(*shape[1 : 1 + n_outer]):
        budget.look()
        for state in range(shape[0]):
            part = found[(*at, ...)]
            np.maximum(part, first[(state, *at, ...)] + second[(state, *at, ...)], out=part)
    return tuple(rest), found


def maximised(
    v: int, scope: Scope, tables: Sequence[PlainTable], sizes: Mapping[int, int], budget: CheckBudget
) -> tuple[PlainTable, list[float]]:
    """Return the maximum over a variable of a product of tables, as a table and constants, block by block.

    Each table is first shifted to a largest entry of 0, so that no term is positive: a sum s of k terms then errs
    by at most (k + 1) 2^-53 |s|, up to smaller terms. s plus this bound grows with s, so it suffices to add the
    bound to the maximum.
    """
    tops = [float(t.logs.max()) for t in tables]
    constants = [top for top in tops if -math.inf < top != 0.0]
    tables = [
        PlainTable(t.scope, t.logs - top) if -math.inf < top != 0.0 else t
        for t, top in zip(tables, tops, strict=True)
    ]
    if math.prod(sizes[u] for u in scope) <= BLOCK:
        rest, joint = tuple(u for u in scope if u != v), np.zeros(())
        for table in tables:
            joint = joint + spread(table, scope)
        found: Floats = np.asarray(joint.max(axis=scope.index(v)))
    else:
        rest, found = _in_blocks(v, scope, _paired(tables, sizes, budget), sizes, budget)
    top = float(found.max())
    if top > -math.inf:
        unit = (len(tables) + 4.0) * UNIT
        constants += [top, unit * abs(top)]
        found -= top
        found *= 1.0 - unit
    return PlainTable(rest, found), constants
