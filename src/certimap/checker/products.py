"""A variable summed or maximised out of a product of tables, rounded up."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from certimap.checker.models import Table, spread
from certimap.checker.numbers import UNIT, Floats, log_sum, up

Scope = tuple[int, ...]
BLOCK = 2**16  # entries of a product that are made at a time


def summed(v: int, scope: Scope, tables: Sequence[Table], sizes: Mapping[int, int]) -> tuple[Table, list[float]]:
    """Return the sum over a variable of a product of tables, and constants: together not below the true one."""
    joint: Floats = np.zeros([sizes[u] for u in scope])
    for table in tables:
        joint = up(joint + spread(table, scope))
    found, rest = log_sum(joint, scope.index(v)), tuple(u for u in scope if u != v)
    top = float(found.max())
    return (Table(rest, up(found - top)), [top]) if top > -math.inf else (Table(rest, found), [])


def _paired(tables: Sequence[Table], sizes: Mapping[int, int]) -> list[Table]:
    """Multiply tables, two at a time whose product is the smallest, until two are left or one."""
    left = list(tables)
    while len(left) > 2:
        pairs = itertools.combinations(range(len(left)), 2)
        unions = [(math.prod(sizes[u] for u in {*left[i].scope, *left[j].scope}), j, i) for i, j in pairs]
        _, j, i = min(unions)
        b, a = left.pop(j), left.pop(i)
        union = tuple(sorted({*a.scope, *b.scope}))
        left.append(Table(union, spread(a, union) + spread(b, union)))
    return left


def _in_blocks(v: int, scope: Scope, tables: Sequence[Table], sizes: Mapping[int, int]) -> tuple[Scope, Floats]:
    """Return the maximum over a variable of a sum of two tables, and its axes: in an order with long runs."""
    *_, b, a = [Table((), np.zeros(())), *sorted(tables, key=lambda t: t.logs.size)]
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
        for state in range(shape[0]):
            part = found[(*at, ...)]
            np.maximum(part, first[(state, *at, ...)] + second[(state, *at, ...)], out=part)
    return tuple(rest), found


def maximised(
    v: int, scope: Scope, tables: Sequence[Table], sizes: Mapping[int, int]
) -> tuple[Table, list[float]]:
    """Return the maximum over a variable of a product of tables in the same way, a block of it at a time.

    First the largest entry of each table becomes 0, so that no term is above 0: a sum s of k terms is then off by
    at most (k + 1) 2^-53 |s| and smaller terms. s plus that grows with s, so that it may be added to the maximum.
    """
    tops = [float(t.logs.max()) for t in tables]
    constants = [top for top in tops if -math.inf < top != 0.0]
    tables = [
        Table(t.scope, t.logs - top) if -math.inf < top != 0.0 else t for t, top in zip(tables, tops, strict=True)
    ]
    if math.prod(sizes[u] for u in scope) <= BLOCK:
        rest, joint = tuple(u for u in scope if u != v), np.zeros(())
        for table in tables:
            joint = joint + spread(table, scope)
        found: Floats = np.asarray(joint.max(axis=scope.index(v)))
    else:
        rest, found = _in_blocks(v, scope, _paired(tables, sizes), sizes)
    top = float(found.max())
    if top > -math.inf:
        unit = (len(tables) + 4.0) * UNIT
        constants += [top, unit * abs(top)]
        found -= top
        found *= 1.0 - unit
    return Table(rest, found), constants
