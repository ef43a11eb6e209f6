"""Kernels for hill climbing, and the tables shared with the searches for caps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from certimap.circuits.kernels.arrays import Indices, Number, ProbeArrays, Space, new_space
from certimap.circuits.kernels.probe import downward, upward
from certimap.circuits.kernels.real import peak_in, scale_of
from certimap.core.arrays import Bytes, Flags, Floats, Ints
from certimap.kernels.jit import jit, jit_part

MAX_CLIMB_ROUNDS = 200


class CapTable(NamedTuple):
    """Caps and best points of the sum nodes, in the order of their solution.

    `targets` are sum nodes, children first; `slot` maps a node to its row, or -1; the scope of row s is
    `scope_vars[scope_ptr[s]:scope_ptr[s + 1]]` and `best` runs parallel to it (states as floats). `caps` has one
    natural log per node, inf if unknown; `solved` marks rows whose cap is their maximum within the tolerance.
    """

    targets: Ints
    slot: Ints
    scope_ptr: Ints
    scope_vars: Ints
    best: Floats
    values: Floats
    caps: Floats
    solved: Flags


class Pool(NamedTuple):
    """Room for the open boxes of one subcircuit's search, and scratch; the last row is the current box.

    `entries` are the boxes' entries in a trace (`kernels/caps.py`).
    """

    mask: Bytes
    low: Floats
    high: Floats
    bound: Floats
    entries: Ints
    each: Floats
    point: Floats
    trial: Floats
    point_mask: Bytes
    nodes: Ints
    stack: Ints
    cursor: Ints
    stamp: Ints


@jit_part
def pull_reals(plan: ProbeArrays, nodes: Indices, count: int, variables: Indices, space: Space) -> None:
    """Fill in the mean-shift step of every real variable: precision-weighted peaks of leaves (moment / weight)."""
    for v in variables:
        space.moment[v], space.weight[v] = 0.0, 0.0
    for index in range(count):
        i = nodes[index]
        if plan.is_sum[i]:
            continue
        for leaf in range(plan.leaf_ptr[i], plan.leaf_ptr[i + 1]):
            v = plan.leaf_var[leaf]
            if plan.n_states[v] == 0:
                start = plan.leaf_start[leaf]
                length = scale_of(plan.functions, plan.tables, start)
                share = space.flow_mass[i] / (length * length)
                space.moment[v] += share * peak_in(plan.functions, plan.tables, start, -np.inf, np.inf)
                space.weight[v] += share


@jit_part
def propose(
    plan: ProbeArrays, variables: Indices, low: Floats, high: Floats, point: Floats, trial: Floats, space: Space
) -> tuple[int, int, Number]:
    """Move every variable to its best value given the others; return (moves, best single variable, its state)."""
    moves, best_v, best_state, best_gain = 0, -1, 0.0, 1.0 + 1e-9
    for v in variables:
        trial[v] = point[v]
        if plan.n_states[v] == 0:
            if space.weight[v] > 0.0:
                target = space.moment[v] / space.weight[v]
                if not abs(target) < np.inf:  # squares of tiny scales overflow
                    target = point[v]
                target = min(max(target, low[v]), high[v])
                if plan.is_whole[v]:
                    target = min(max(np.round(target), np.ceil(low[v])), np.floor(high[v]))
                if abs(target - point[v]) > 1e-12 * (1.0 + abs(target)):
                    trial[v] = target
                    moves += 1
            continue
        gain = 1.0 + 1e-9
        for a in range(plan.n_states[v]):
            value = space.relative_mass[plan.offsets[v] + a]
            if value > gain:
                gain = value
                trial[v] = a
        if trial[v] != point[v]:
            moves += 1
            if gain > best_gain:
                best_v, best_state, best_gain = v, trial[v], gain
    return moves, best_v, best_state


@jit_part
def assemble(plan: ProbeArrays, product: Number, table: CapTable, low: Floats, high: Floats, pool: Pool) -> None:
    """Write a product's best point, assembled from leaves' modes and best points below, to `pool.trial`."""
    depth = 1
    pool.stack[0] = product
    while depth:
        depth -= 1
        i = pool.stack[depth]
        row = table.slot[i]
        if row >= 0:
            for k in range(table.scope_ptr[row], table.scope_ptr[row + 1]):
                pool.trial[table.scope_vars[k]] = table.best[k]
            continue
        for leaf in range(plan.leaf_ptr[i], plan.leaf_ptr[i + 1]):
            v = plan.leaf_var[leaf]
            start = plan.leaf_start[leaf]
            if plan.n_states[v] == 0:
                pool.trial[v] = peak_in(plan.functions, plan.tables, start, low[v], high[v])
            else:
                best = 0
                for a in range(plan.n_states[v]):
                    if plan.log_tables[start + a] > plan.log_tables[start + best]:
                        best = a
                pool.trial[v] = best
        for e in range(plan.child_ptr[i], plan.child_ptr[i + 1]):
            pool.stack[depth] = plan.children[e]
            depth += 1


@jit_part
def climb(
    plan: ProbeArrays,
    nodes: Indices,
    count: int,
    variables: Indices,
    low: Floats,
    high: Floats,
    table: CapTable,
    n_starts: Number,
    enough: Number,
    pool: Pool,
    space: Space,
) -> tuple[Number, int]:
    """Climb from `pool.point`, in place, to a value of at least `enough`; return (log value, points scored).

    With `n_starts`, first take the best of that many points assembled from the children of the top node. Each
    round moves all variables at once to their best values given the others, or if that does not help, the
    best single variable; real variables take mean-shift steps.
    """
    top = nodes[count - 1]
    value, tries, starts, spare = -np.inf, 0, n_starts, False
    best_v, best_state = -1, 0.0
    for v in variables:
        pool.trial[v] = pool.point[v]
    while tries < MAX_CLIMB_ROUNDS:
        if starts > 0:
            starts -= 1
            assemble(plan, plan.children[plan.child_ptr[top] + starts], table, low, high, pool)
        for v in variables:
            for column in range(plan.offsets[v], plan.offsets[v + 1]):
                pool.point_mask[column] = 0
            if plan.n_states[v]:
                pool.point_mask[plan.offsets[v] + int(pool.trial[v])] = 1
        upward(plan, nodes, count, pool.point_mask, pool.trial, pool.trial, table.caps, space)
        tries += 1
        if space.mass[top] > value + 1e-12 or tries == 1:
            value = space.mass[top]
            for v in variables:
                pool.point[v] = pool.trial[v]
            if value >= enough:
                break
            if starts > 0:
                continue
        elif starts > 0:
            continue
        elif tries == n_starts:  # the best start was not the last: score it again before climbing
            for v in variables:
                pool.trial[v] = pool.point[v]
            value -= 1.0
            continue
        elif spare:  # all moves at once did not help: the best single one, or the real variables alone
            spare = False
            for v in variables:
                if plan.n_states[v] or best_v >= 0:
                    pool.trial[v] = pool.point[v]
            if best_v >= 0:
                pool.trial[best_v] = best_state
            continue
        else:
            break
        if value == -np.inf:
            break
        downward(plan, nodes, count, variables, pool.trial, pool.trial, space)
        if not plan.discrete:
            pull_reals(plan, nodes, count, variables, space)
        moves, best_v, best_state = propose(plan, variables, low, high, pool.point, pool.trial, space)
        spare = moves > 1
        if moves == 0:
            break
    return value, tries


@jit()
def climb_rows(plan: ProbeArrays, table: CapTable, low: Floats, high: Floats, pool: Pool, points: Floats) -> None:
    """Climb from every row of `points` (states as floats), in place."""
    nodes = np.arange(len(plan.is_sum))
    variables = np.arange(len(plan.n_states))
    space = new_space(plan)
    for row in range(len(points)):
        for v in variables:
            pool.point[v] = points[row, v]
        climb(plan, nodes, len(nodes), variables, low, high, table, 0, np.inf, pool, space)
        for v in variables:
            points[row, v] = pool.point[v]
