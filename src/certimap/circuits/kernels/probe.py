"""Kernels of the box search: bounds of every (variable, state) of a box, and hill climbing from points in it.

All work on the shared arrays of a plan, on a box given as one byte per column. A categorical variable has one
column per state; a real one has two, the halves of its interval below and above the split picked by the downward
pass. Upward values are natural logs, so nothing underflows; downward flows are relative to the root.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from certimap.circuits.kernels.arrays import Indices, Number, ProbeArrays, Space, new_space
from certimap.circuits.kernels.real import log_peak, peak_in, scale_of
from certimap.core.arrays import Bytes, Flags, Floats, Ints
from certimap.core.rounding import (
    ALL_SUMS,
    ENTROPY,
    FLOWS,
    LOG_PRODUCT,
    SMALLEST_NORMAL,
    SMALLEST_PRODUCT,
    STEPS,
    SUMS,
    ULP,
)
from certimap.kernels.jit import jit, jit_part


@jit_part
def log_leaf(plan: ProbeArrays, leaf: int, mask: Bytes, low: Floats, high: Floats, space: Space) -> None:
    """Fill in ln of a leaf's mass and of its bound in a box."""
    v, start = plan.leaf_var[leaf], plan.leaf_start[leaf]
    if plan.n_states[v] == 0:
        top = log_peak(plan.functions, plan.tables, start, low[v], high[v])
        space.leaf_mass[leaf], space.leaf_bound[leaf] = top, top
        return
    top, total = -np.inf, 0.0
    offset = plan.offsets[v]
    for a in range(plan.n_states[v]):
        if mask[offset + a]:
            top = max(top, plan.log_tables[start + a])
    if top > -np.inf:
        for a in range(plan.n_states[v]):
            if mask[offset + a]:
                total += np.exp(plan.log_tables[start + a] - top)
    space.leaf_mass[leaf], space.leaf_bound[leaf] = top + np.log(total) if top > -np.inf else top, top


@jit_part
def upward(
    plan: ProbeArrays, nodes: Indices, count: int, mask: Bytes, low: Floats, high: Floats, caps: Floats,
    space: Space,
) -> None:  # fmt: skip
    """Fill in the mass and the bound of the first `count` of `nodes` (children first) in one box.

    The bound of a node is the least of: its leaves' maxima carried up (the largest term at a sum that
    decides a variable, the total elsewhere), its mass in the box, its cap. On a point, mass and bound are
    its value.
    """
    for index in range(count):
        i = nodes[index]
        if plan.is_sum[i]:
            top_mass, top_bound = -np.inf, -np.inf
            for e in range(plan.child_ptr[i], plan.child_ptr[i + 1]):
                c = plan.children[e]
                top_mass = max(top_mass, space.mass[c] + plan.log_weights[e])
                top_bound = max(top_bound, space.bound[c] + plan.log_weights[e])
            total_mass, total_bound, best = 0.0, 0.0, 0.0
            for e in range(plan.child_ptr[i], plan.child_ptr[i + 1]):
                c = plan.children[e]
                w = plan.log_weights[e]
                x, y = 0.0, 0.0
                if space.mass[c] + w > -np.inf:
                    x = max(np.exp(space.mass[c] + w - top_mass), SMALLEST_NORMAL)
                if space.bound[c] + w > -np.inf:
                    y = max(np.exp(space.bound[c] + w - top_bound), SMALLEST_NORMAL)
                space.edge_mass[e] = x
                space.edge_bound[e] = y
                total_mass += x
                total_bound += y
                best = max(best, y)
            if plan.decides[i] >= 0:
                total_bound = best
            mass = top_mass + np.log(total_mass) if total_mass > 0.0 else -np.inf
            bound = top_bound + np.log(total_bound) if total_bound > 0.0 else -np.inf
            if plan.discrete:
                bound = min(bound, mass)
            bound = min(bound, caps[i])
            space.mass[i], space.bound[i] = mass, bound
            space.factor_mass[i] = 1.0 / total_mass if total_mass > 0.0 else 0.0
            space.factor_bound[i] = max(np.exp(top_bound - bound), SMALLEST_NORMAL) if bound > -np.inf else 0.0
        else:
            mass, bound, product_mass, product_bound = 0.0, 0.0, 1.0, 1.0
            for leaf in range(plan.leaf_ptr[i], plan.leaf_ptr[i + 1]):
                if plan.in_logs[leaf]:
                    log_leaf(plan, leaf, mask, low, high, space)
                    mass += space.leaf_mass[leaf]
                    bound += space.leaf_bound[leaf]
                    continue
                v, start = plan.leaf_var[leaf], plan.leaf_start[leaf]
                x, y = 0.0, 0.0
                offset = plan.offsets[v]
                for a in range(plan.n_states[v]):
                    if mask[offset + a]:
                        t = plan.tables[start + a]
                        x += t
                        y = max(y, t)
                space.leaf_mass[leaf] = x
                space.leaf_bound[leaf] = y
                product_mass *= x
                product_bound *= y
                if not product_mass > SMALLEST_PRODUCT or not product_bound > SMALLEST_PRODUCT:
                    mass += np.log(product_mass)
                    bound += np.log(product_bound)
                    product_mass, product_bound = 1.0, 1.0
            mass += np.log(product_mass)
            bound += np.log(product_bound)
            for e in range(plan.child_ptr[i], plan.child_ptr[i + 1]):
                mass += space.mass[plan.children[e]]
                bound += space.bound[plan.children[e]]
            space.mass[i], space.bound[i] = mass, bound


@jit_part
def flow_down(plan: ProbeArrays, nodes: Indices, count: int, space: Space) -> None:
    """Fill in each node's flow: its contribution to the root's value, relative to that value.

    A sum that decides a variable passes its weight to every child, not only to its largest: the best point
    may be in another.
    """
    for index in range(count):
        space.flow_mass[nodes[index]] = 0.0
        space.flow_bound[nodes[index]] = 0.0
    space.flow_mass[nodes[count - 1]] = 1.0
    space.flow_bound[nodes[count - 1]] = 1.0
    for index in range(count - 1, -1, -1):
        i = nodes[index]
        flow_mass, flow_bound = space.flow_mass[i], space.flow_bound[i]
        if plan.is_sum[i]:
            if flow_mass > 0.0:
                flow_mass = max(flow_mass * space.factor_mass[i], SMALLEST_NORMAL)
            if flow_bound > 0.0:
                flow_bound = max(flow_bound * space.factor_bound[i], SMALLEST_NORMAL)
            for e in range(plan.child_ptr[i], plan.child_ptr[i + 1]):
                c = plan.children[e]
                if flow_mass > 0.0 and space.edge_mass[e] > 0.0:
                    space.flow_mass[c] += max(flow_mass * space.edge_mass[e], SMALLEST_NORMAL)
                if flow_bound > 0.0 and space.edge_bound[e] > 0.0:
                    space.flow_bound[c] += max(flow_bound * space.edge_bound[e], SMALLEST_NORMAL)
        else:
            for e in range(plan.child_ptr[i], plan.child_ptr[i + 1]):
                c = plan.children[e]
                space.flow_mass[c] += flow_mass
                space.flow_bound[c] += flow_bound


@jit_part
def between_whole(split: Number, low: Number, high: Number) -> Number:
    """Return a midpoint between two whole numbers of [low, high], near `split`; NaN if it has only one."""
    first, last = np.ceil(low) + 0.5, np.floor(high) - 0.5
    return min(max(np.floor(split) + 0.5, first), last) if first <= last else np.nan


@jit_part
def choose_splits(
    plan: ProbeArrays, nodes: Indices, count: int, variables: Indices, low: Floats, high: Floats, space: Space
) -> None:
    """Choose a split of each real variable: the mean of its leaves' peaks, weighted by flow.

    A variable whose interval cannot be split gets NaN. Whole numbers are split between two of them. The upper half
    begins at the next floating-point number, so that a density's jumps lie between boxes.
    """
    for v in variables:
        space.moment[v], space.weight[v] = 0.0, 0.0
    for index in range(count):
        i = nodes[index]
        flow = space.flow_bound[i]
        if plan.is_sum[i] or not flow > 0.0:
            continue
        for leaf in range(plan.leaf_ptr[i], plan.leaf_ptr[i + 1]):
            v = plan.leaf_var[leaf]
            if plan.n_states[v] == 0:
                peak = peak_in(plan.functions, plan.tables, plan.leaf_start[leaf], low[v], high[v])
                space.moment[v] += flow * peak
                space.weight[v] += flow
    for v in variables:
        if plan.n_states[v] == 0:
            split = space.moment[v] / space.weight[v] if space.weight[v] > 0.0 else np.nan
            margin = 1e-3 * (high[v] - low[v])
            if (not low[v] + margin < split or not split < high[v] - margin) and np.isfinite(margin):
                split = 0.5 * (low[v] + high[v])
            if plan.is_whole[v]:
                split = between_whole(split, low[v], high[v])
            elif not split < high[v]:
                split = low[v]  # between neighbouring numbers
            if not (low[v] <= split < high[v]):
                split = np.nan
            space.split[v] = split


@jit_part
def credit(log_value: Number, log_leaf_value: Number, flow: Number) -> Number:
    """Return a leaf column's contribution to a result, with its leaf's value replaced; 0 if impossible."""
    if log_value == -np.inf or flow == 0.0:
        return 0.0
    return max(flow * np.exp(log_value - log_leaf_value), SMALLEST_NORMAL)


@jit_part
def credit_logs(
    plan: ProbeArrays, leaf: int, flow_mass: Number, flow_bound: Number, low: Floats, high: Floats, space: Space
) -> None:
    """Credit the columns of a leaf stored in logs."""
    v, start = plan.leaf_var[leaf], plan.leaf_start[leaf]
    offset, mass, bound = plan.offsets[v], space.leaf_mass[leaf], space.leaf_bound[leaf]
    if bound == -np.inf:
        return
    if plan.n_states[v] == 0:
        split = space.split[v]
        if np.isnan(split):
            split = high[v]
        below = log_peak(plan.functions, plan.tables, start, low[v], split)
        above = log_peak(plan.functions, plan.tables, start, split, high[v])
        space.relative_bound[offset] += credit(below, bound, flow_bound)
        space.relative_bound[offset + 1] += credit(above, bound, flow_bound)
        return
    for a in range(plan.n_states[v]):
        t = plan.log_tables[start + a]
        space.relative_mass[offset + a] += credit(t, mass, flow_mass)
        space.relative_bound[offset + a] += credit(t, bound, flow_bound)


@jit_part
def downward(
    plan: ProbeArrays, nodes: Indices, count: int, variables: Indices, low: Floats, high: Floats, space: Space
) -> None:
    """Fill in, for every column of `variables`, the top's mass and bound with the variable fixed there.

    The top is the last of `nodes` and `variables` are its scope; results are relative to its mass and bound.
    For a point, the columns outside the box are its one-variable neighbours; for a larger box, meaningless.
    """
    flow_down(plan, nodes, count, space)
    if not plan.discrete:
        choose_splits(plan, nodes, count, variables, low, high, space)
    for v in variables:
        for column in range(plan.offsets[v], plan.offsets[v + 1]):
            space.relative_mass[column] = 0.0
            space.relative_bound[column] = 0.0
    for index in range(count):
        i = nodes[index]
        flow_mass, flow_bound = space.flow_mass[i], space.flow_bound[i]
        if plan.is_sum[i] or (flow_mass == 0.0 and flow_bound == 0.0):
            continue
        for leaf in range(plan.leaf_ptr[i], plan.leaf_ptr[i + 1]):
            v = plan.leaf_var[leaf]
            offset = plan.offsets[v]
            start = plan.leaf_start[leaf]
            if plan.in_logs[leaf]:
                credit_logs(plan, leaf, flow_mass, flow_bound, low, high, space)
                continue
            if space.leaf_bound[leaf] == 0.0:
                continue
            x = flow_mass / space.leaf_mass[leaf]
            y = flow_bound / space.leaf_bound[leaf]
            for a in range(plan.n_states[v]):
                t = plan.tables[start + a]
                if t > 0.0:
                    space.relative_mass[offset + a] += max(x * t, SMALLEST_NORMAL)
                    space.relative_bound[offset + a] += max(y * t, SMALLEST_NORMAL)


@jit_part
def slack_of(value: Number, roundings: Floats) -> float:
    """Return a bound on the rounding error of a node's log (nats), given `Roundings` as an array."""
    if value == -np.inf:
        return 0.0
    reach = abs(value) + roundings[ENTROPY]
    slope = min(roundings[ALL_SUMS], roundings[SUMS] * (1.0 + reach / LOG_PRODUCT))
    return ULP * (roundings[STEPS] + slope * reach)


@jit_part
def log_column(log_top: Number, relative: Number, roundings: Floats) -> float:
    """Return ln of a top's value times a relative flow, rounded up, at most the top's own rounded-up log.

    NaN and overflow give the top, impossible columns -inf.
    """
    most = log_top + slack_of(log_top, roundings)
    if relative == 0.0:
        return -np.inf
    if not relative < 1.0:
        return most
    column = log_top + np.log(relative)
    return min(column + 2.0 * slack_of(column, roundings) + ULP * roundings[FLOWS], most)


@jit()
def probe_rows(
    plan: ProbeArrays, caps: Floats, roundings: Floats, masks: Bytes, low: Floats, high: Floats, log_mass: Floats,
    log_bound: Floats, each_mass: Floats, each_bound: Floats, splits: Floats,
) -> None:  # fmt: skip
    """Bound a batch of boxes and all their columns, one row per box (natural logs; masses and bounds rounded up).

    `each_mass` is the mass with the column's variable fixed there; `each_bound` bounds the points there. Columns
    outside a box get -inf. `log_bound` is at most `log_mass` in a discrete domain.
    """
    nodes = np.arange(len(plan.is_sum))
    count = len(nodes)
    space = new_space(plan)
    variables = np.arange(len(plan.n_states))
    for row in range(len(masks)):
        mask = masks[row]
        upward(plan, nodes, count, mask, low[row], high[row], caps, space)
        mass, bound = space.mass[count - 1], space.bound[count - 1]
        log_mass[row] = min(mass + slack_of(mass, roundings), 0.0)
        log_bound[row] = bound + slack_of(bound, roundings)
        if bound == -np.inf:
            each_mass[row, :] = -np.inf
            each_bound[row, :] = -np.inf
            splits[row, :] = np.nan
            continue
        downward(plan, nodes, count, variables, low[row], high[row], space)
        for v in variables:
            splits[row, v] = space.split[v] if plan.n_states[v] == 0 else np.nan
            for column in range(plan.offsets[v], plan.offsets[v + 1]):
                if not mask[column]:
                    each_mass[row, column] = -np.inf
                    each_bound[row, column] = -np.inf
                    continue
                top, here = log_column(bound, space.relative_bound[column], roundings), 0.0
                if plan.discrete:
                    here = min(log_column(mass, space.relative_mass[column], roundings), 0.0)
                each_mass[row, column] = here
                each_bound[row, column] = min(top, here) if plan.discrete else top


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


@jit()
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
    plan: ProbeArrays, nodes: Indices, count: int, variables: Indices, low: Floats, high: Floats, table: CapTable,
    n_starts: Number, enough: Number, pool: Pool, space: Space,
) -> tuple[Number, int]:  # fmt: skip
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
