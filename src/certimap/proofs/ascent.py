"""Dual ascent on a network of queried variables; returns the shifts of one step."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from certimap.checker.network import FLAT, PlainNetwork, Scope
from certimap.checker.numbers import Floats
from certimap.networks.costs import Costs
from certimap.networks.cuts import Binary, roof
from certimap.networks.kernels.dual_ascent import ascend
from certimap.networks.problem import HARD, Problem, Table

SWEEPS, SHARE, MAX_ASCENTS = 20, 0.01, 15
REACH = 4.0  # the ascent distinguishes entries down to this many gaps below a table's largest entry
FEWEST_PAIRS = 50  # with fewer pairs, no flow is computed
FLOW_BITS = 50  # of the integers that flows move: of single tables, not of sums
COST_BITS = 46  # of the integers that the ascent moves, so that sums of thousands stay exact


def ascended(network: PlainNetwork, gap: float) -> Floats:
    """Return shifts that lower the bound, found by sweeps over integers.

    Entries far below the largest entry of their table, zeros included, are first raised to a level that no good
    assignment reaches.
    """
    if not network.tables:
        return np.zeros(0)
    return _as_shifts(network, _swept(network, gap))


def cut(network: PlainNetwork) -> Floats | None:
    """Return the shifts that lower the bound most, found by maximum flows, for binary variables in pairs.

    None if the network has other variables or tables, a zero, or fewer than FEWEST_PAIRS pairs.
    """
    tables = list(network.tables.values())
    is_binary = all(n == 2 for n in network.sizes.values()) and all(t.ndim == 2 for t in tables)
    if not is_binary or network.hidden or len(tables) < FEWEST_PAIRS:
        return None
    rows = np.array([*(t.reshape(4) for t in tables), *(np.tile(own, 2) for own in network.own.values())])
    if not np.all(np.isfinite(rows)):
        return None
    rows -= rows.max(axis=1, keepdims=True)
    unit = 2.0 ** (math.ceil(math.log2(max(float(-rows.min()), 1e-6))) - FLOW_BITS)
    whole = np.rint(rows / unit).astype(np.int64)
    place = {v: i for i, v in enumerate(network.own)}
    ends = np.array([[place[v] for v in scope] for scope in network.tables])
    before = whole[: len(tables)].reshape(-1, 2, 2)
    after = roof(Binary(whole[len(tables) :, :2].copy(), ends, before)).model.pairs
    moves: Floats = (after - before).astype(np.float64) * unit
    return _as_shifts(network, dict(zip(network.tables, moves, strict=True)))


def _swept(network: PlainNetwork, gap: float) -> dict[Scope, Floats]:
    """Return the changes of each table's entries after sweeps of dual ascent."""
    reach = REACH * max(gap, 1e-6)
    unit = 2.0 ** (math.ceil(math.log2(reach)) - COST_BITS)
    tables: list[Table] = []
    for scope, logs in (*network.tables.items(), *(((v,), own) for v, own in network.own.items())):
        tables.append(Table(scope, np.rint(np.maximum(logs - logs.max(), -reach) / unit).astype(np.int64)))
    problem = Problem(network.sizes, frozenset(network.sizes), tuple(tables), 0, 0.0, unit)
    variables = sorted(network.sizes)
    costs = Costs(problem, variables)
    dual = costs.dual()
    incumbent = np.zeros(len(variables) + 1, np.int64)
    incumbent[0] = HARD
    for _ in range(MAX_ASCENTS):
        before = int(dual.bound[0])
        ascend(costs.arrays, dual, SWEEPS, 0.0, HARD, False, 0, incumbent)
        if (before - int(dual.bound[0])) * unit <= SHARE * gap:
            break
    moved, ptr = dual.tables - costs.arrays.tables, costs.arrays.table_ptr.tolist()
    moves: Floats = moved.astype(np.float64) * unit
    return {
        scope: moves[ptr[k] : ptr[k + 1]].reshape(logs.shape)
        for k, (scope, logs) in enumerate(network.tables.items())
    }


def _as_shifts(network: PlainNetwork, moves: Mapping[Scope, Floats]) -> Floats:
    """Return the changes of tables, each a sum of functions of one variable, as the numbers of a step."""
    starts, at = dict[Scope, int](), 0
    for scope, shape in network.shapes:
        starts[scope], at = at, at + sum(shape)
    out = np.zeros(at)
    for scopes, stack in network.stacks:
        lines = _lines(np.array([moves[scope] for scope in scopes]))
        alone, at = _flattening(stack), np.array([starts[scope] for scope in scopes])
        for line, flat in zip(lines, alone, strict=True):
            out[at[:, None] + np.arange(line.shape[1])] = np.where(np.isnan(flat), line, flat)
            at += line.shape[1]
    return out


def _lines(stack: Floats) -> list[Floats]:
    """Split tables that are sums of functions of one variable each into these functions."""
    corner = stack[(slice(None), *[0] * (stack.ndim - 1))]
    lines: list[Floats] = []
    for axis in range(1, stack.ndim):
        line = np.moveaxis(stack, axis, 1)[(slice(None), slice(None), *[0] * (stack.ndim - 2))]
        lines.append(line - corner[:, None] * (axis > 1))
    return lines


def _flattening(stack: Floats) -> list[Floats]:
    """Return shifts that flatten the tables that are sums of functions of one variable each; NaN for other tables.

    Moving such a table to its variables does not raise the bound, and decouples the variables.
    """
    with np.errstate(invalid="ignore"):
        lines = _lines(stack)
        rest = stack
        for axis, line in enumerate(lines):
            rest = rest - np.expand_dims(line, [k + 1 for k in range(len(lines)) if k != axis])
        is_sum = np.abs(rest).max(axis=tuple(range(1, stack.ndim))) <= 0.25 * FLAT
        return [np.where(is_sum[:, None], -line, np.nan) for line in lines]
