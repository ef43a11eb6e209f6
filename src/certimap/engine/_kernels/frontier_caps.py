"""Kernels that climb from points, and that search every subcircuit for its maximum (its cap)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from certimap.engine._kernels.frontier import (
    Bytes,
    Floats,
    Indices,
    Ints,
    Number,
    PlanArrays,
    Space,
    downward,
    log_share,
    new_space,
    slack_of,
    upward,
)
from certimap.engine._kernels.jit import jit, jit_part

MAX_CLIMB_ROUNDS = 200
MAX_STARTS = 8  # assembled points that a subcircuit's search scores before it climbs
WIDTH_BONUS = 0.05  # worth, in shares of bound, of splitting an interval a standard deviation wide
PROBED_POINTS = 8  # boxes of a subcircuit's search whose most promising point is scored


class CapTable(NamedTuple):
    """Caps and best points of the sum nodes, in the order in which they are solved.

    `targets` are sum nodes, children first; `slot` maps a node to its row, or -1; the scope of row s is
    `scope_vars[scope_ptr[s]:scope_ptr[s + 1]]` and `best` runs parallel to it (states as floats). `caps` has one
    natural log a node, inf where unknown; `solved` says whether a row's cap is its maximum within the tolerance.
    """

    targets: Ints
    slot: Ints
    scope_ptr: Ints
    scope_vars: Ints
    best: Floats
    values: Floats
    caps: Floats
    solved: NDArray[np.bool_]


class Pool(NamedTuple):
    """Room for the open boxes of one subcircuit's search, and scratch; the last row is the box at work."""

    mask: NDArray[np.uint8]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    bound: Floats
    each: Floats
    point: Floats
    trial: Floats
    point_mask: Bytes
    nodes: Ints
    stack: Ints
    cursor: Ints
    stamp: Ints


@jit_part
def gather(plan: PlanArrays, top: int, pool: Pool) -> int:
    """List the nodes under `top`, children first and itself last, in `pool.nodes`; return their number."""
    count, depth = 0, 1
    pool.stack[0] = top
    pool.cursor[0] = plan.child_ptr[top]
    pool.stamp[top] = top
    while depth:
        i = pool.stack[depth - 1]
        e = pool.cursor[depth - 1]
        if e == plan.child_ptr[i + 1]:
            depth -= 1
            pool.nodes[count] = i
            count += 1
            continue
        pool.cursor[depth - 1] = e + 1
        c = plan.children[e]
        if pool.stamp[c] != top:
            pool.stamp[c] = top
            pool.stack[depth] = c
            pool.cursor[depth] = plan.child_ptr[c]
            depth += 1
    return count


@jit_part
def pull_reals(plan: PlanArrays, nodes: Indices, count: int, variables: Indices, space: Space) -> None:
    """Fill in the mean-shift step of every real variable: precision-weighted leaf means (moment / weight)."""
    for v in variables:
        space.moment[v], space.weight[v] = 0.0, 0.0
    for index in range(count):
        i = nodes[index]
        if plan.is_sum[i]:
            continue
        for leaf in range(plan.leaf_ptr[i], plan.leaf_ptr[i + 1]):
            v = plan.leaf_var[leaf]
            if plan.n_states[v] == 0:
                mean, sd = plan.tables[plan.leaf_start[leaf]], plan.tables[plan.leaf_start[leaf] + 1]
                share = space.flow_mass[i] / (sd * sd)
                space.moment[v] += share * mean
                space.weight[v] += share


@jit_part
def propose(
    plan: PlanArrays, variables: Indices, low: Floats, high: Floats, point: Floats, trial: Floats, space: Space
) -> tuple[int, int, Number]:
    """Move every variable to its best value given the others; return (moves, best single variable, its state)."""
    moves, best_v, best_state, best_gain = 0, -1, 0.0, 1.0 + 1e-9
    for v in variables:
        trial[v] = point[v]
        if plan.n_states[v] == 0:
            if space.weight[v] > 0.0:
                target = min(max(space.moment[v] / space.weight[v], low[v]), high[v])
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
def assemble(plan: PlanArrays, product: Number, table: CapTable, low: Floats, high: Floats, pool: Pool) -> None:
    """Write a product's best point, built of its leaves' modes and of the best points below, to `pool.trial`."""
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
                pool.trial[v] = min(max(plan.tables[start], low[v]), high[v])
            else:
                best = 0
                for a in range(plan.n_states[v]):
                    if plan.tables[start + a] > plan.tables[start + best]:
                        best = a
                pool.trial[v] = best
        for e in range(plan.child_ptr[i], plan.child_ptr[i + 1]):
            pool.stack[depth] = plan.children[e]
            depth += 1


@jit_part
def climb(
    plan: PlanArrays,
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
    round moves all variables at once to their best values given the others; where that does not help, the
    best single variable; real ones take mean-shift steps.
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
        elif tries == n_starts:  # the best start was not the last: score it again, to climb from it
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
def climb_rows(
    plan: PlanArrays,
    table: CapTable,
    low: Floats,
    high: Floats,
    n_starts: int,
    pool: Pool,
    points: NDArray[np.float64],
    log_probs: Floats,
) -> None:
    """Climb from every row of `points` (states as floats), in place; fill in the log values reached."""
    nodes = np.arange(len(plan.is_sum))
    variables = np.arange(len(plan.n_states))
    space = new_space(plan)
    for row in range(len(points)):
        for v in variables:
            pool.point[v] = points[row, v]
        value, _ = climb(plan, nodes, len(nodes), variables, low, high, table, n_starts, np.inf, pool, space)
        log_probs[row] = value
        for v in variables:
            points[row, v] = pool.point[v]


@jit_part
def shrink(
    plan: PlanArrays,
    variables: Indices,
    bound: Number,
    mass: Number,
    rounding: float,
    tau: float,
    pool: Pool,
    space: Space,
) -> tuple[int, bool]:
    """Drop from the box at work the columns that cannot beat `tau`; return (variable to branch on, dropped any).

    The variable is the one whose columns' bounds have the smallest sum; -1: nothing is left to branch on;
    -2: the box is closed. `pool.each` gets the bounds.
    """
    choice, dropped, least = -1, False, np.inf
    work = len(pool.bound) - 1
    mask, low, high = pool.mask[work], pool.low[work], pool.high[work]
    for v in variables:
        start, stop = plan.offsets[v], plan.offsets[v + 1]
        if plan.n_states[v] == 0 and np.isnan(space.split[v]):
            continue
        alive, total = 0, 0.0
        for column in range(start, stop):
            if not mask[column]:
                continue
            top = bound + log_share(space.relative_bound[column], 1e-12)
            if plan.discrete:
                top = min(top, mass + rounding + log_share(space.relative_mass[column], 0.0))
            pool.each[column] = top
            if top > tau:
                alive += 1
                total += np.exp(top - bound)
        if alive == 0:
            return -2, True
        if plan.n_states[v] == 0:
            if alive == 1:
                dropped = True
                if pool.each[start] > tau:
                    high[v] = space.split[v]
                else:
                    low[v] = space.split[v]
        else:
            for column in range(start, stop):
                if mask[column] and not pool.each[column] > tau:
                    mask[column] = 0
                    dropped = True
        if plan.n_states[v] == 0:  # where splitting gains nothing at once, the wide intervals go first
            total -= WIDTH_BONUS * min((high[v] - low[v]) / plan.scales[v], 2.0)
        if alive > 1 and total < least:
            choice, least = v, total
    return choice, dropped


@jit_part
def copy_box(plan: PlanArrays, variables: Indices, source: int, target: int, pool: Pool) -> None:
    """Copy the columns of `variables` from one row of the pool to another."""
    for v in variables:
        for column in range(plan.offsets[v], plan.offsets[v + 1]):
            pool.mask[target, column] = pool.mask[source, column]
        if plan.n_states[v] == 0:
            pool.low[target, v] = pool.low[source, v]
            pool.high[target, v] = pool.high[source, v]


@jit_part
def push_children(plan: PlanArrays, variables: Indices, choice: int, n_open: int, pool: Pool, space: Space) -> int:
    """Append the columns of variable `choice` as boxes of their own; return the new number of open boxes."""
    work = len(pool.bound) - 1
    for column in range(plan.offsets[choice], plan.offsets[choice + 1]):
        if not pool.mask[work, column]:
            continue
        copy_box(plan, variables, work, n_open, pool)
        pool.bound[n_open] = pool.each[column]
        if plan.n_states[choice]:
            for other in range(plan.offsets[choice], plan.offsets[choice + 1]):
                pool.mask[n_open, other] = other == column
        elif column == plan.offsets[choice]:
            pool.high[n_open, choice] = space.split[choice]
        else:
            pool.low[n_open, choice] = space.split[choice]
        n_open += 1
    return n_open


@jit_part
def take_best(plan: PlanArrays, variables: Indices, n_open: int, pool: Pool) -> float:
    """Move the open box with the largest bound to the last row and close the gap; return the bound."""
    best = n_open - 1
    for k in range(n_open - 1):
        if pool.bound[k] > pool.bound[best]:
            best = k
    bound = pool.bound[best]
    copy_box(plan, variables, best, len(pool.bound) - 1, pool)
    if best != n_open - 1:
        copy_box(plan, variables, n_open - 1, best, pool)
        pool.bound[best] = pool.bound[n_open - 1]
    return bound


@jit_part
def promising_point(plan: PlanArrays, variables: Indices, pool: Pool, space: Space) -> None:
    """Write the point of largest column bounds in the box at work to `pool.point`."""
    work = len(pool.bound) - 1
    for v in variables:
        if plan.n_states[v] == 0:
            pool.point[v] = space.moment[v] / space.weight[v] if space.weight[v] > 0.0 else pool.low[work, v]
            continue
        best = -np.inf
        for a in range(plan.n_states[v]):
            column = plan.offsets[v] + a
            if pool.mask[work, column] and pool.each[column] > best:
                best = pool.each[column]
                pool.point[v] = a


@jit_part
def search_cap(
    plan: PlanArrays,
    row: int,
    count: int,
    variables: Indices,
    log_factor: float,
    n_terms: float,
    max_boxes: int,
    table: CapTable,
    low: Floats,
    high: Floats,
    pool: Pool,
    space: Space,
) -> tuple[float, float, int]:
    """Search the box space of row `row`'s node for its maximum; return (upper bound, best value, passes).

    Best first; a box's columns that cannot beat the best value by more than `log_factor` are dropped. The
    best point found goes to the table. With too many boxes the bound is the largest open one.
    """
    top = table.targets[row]
    saved = table.best[table.scope_ptr[row] : table.scope_ptr[row + 1]]
    best, stuck = table.values[row], -np.inf
    work = len(pool.bound) - 1
    n_open, boxes, passes = min(work, 1), 0, 0
    for v in variables:
        for column in range(plan.offsets[v], plan.offsets[v + 1]):
            pool.mask[0, column] = 1
        if plan.n_states[v] == 0:
            pool.low[0, v], pool.high[0, v] = low[v], high[v]
    pool.bound[0] = np.inf
    while n_open and (boxes < max_boxes or boxes == 0):
        bound = take_best(plan, variables, n_open, pool)
        n_open -= 1
        while bound > best + log_factor:
            upward(plan, pool.nodes, count, pool.mask[work], pool.low[work], pool.high[work], table.caps, space)
            passes += 1
            mass = space.mass[top]
            bound = min(bound, space.bound[top] + slack_of(space.bound[top], n_terms))
            if bound <= best + log_factor:
                break
            n_starts, point_left = 0, False
            if boxes == 0:
                n_starts = min(MAX_STARTS, plan.child_ptr[top + 1] - plan.child_ptr[top])
                boxes = 1
            else:
                downward(plan, pool.nodes, count, variables, pool.low[work], pool.high[work], space)
                passes += 1
                rounding = slack_of(mass, n_terms) + 1e-12
                choice, dropped = shrink(plan, variables, bound, mass, rounding, best + log_factor, pool, space)
                if choice == -2:
                    break
                if dropped:
                    continue
                boxes += 1
                promising_point(plan, variables, pool, space)
                point_left = choice < 0
                if choice >= 0 and n_open + plan.offsets[choice + 1] - plan.offsets[choice] <= work:
                    n_open = push_children(plan, variables, choice, n_open, pool, space)
                elif choice >= 0 or not plan.discrete:
                    stuck = max(stuck, bound)
            if n_starts or point_left or boxes <= PROBED_POINTS:
                value, tries = climb(
                    plan, pool.nodes, count, variables, low, high, table, n_starts, bound - log_factor, pool, space
                )
                passes += 2 * tries
                if value > best:
                    best = value
                    for k in range(len(variables)):
                        saved[k] = pool.point[variables[k]]
            if n_starts == 0:
                break
    for k in range(n_open):
        stuck = max(stuck, pool.bound[k])
    return max(best + log_factor, stuck), best, passes


@jit()
def solve_caps(
    plan: PlanArrays,
    table: CapTable,
    start: int,
    work_limit: int,
    max_boxes: int,
    log_factor: float,
    n_terms: float,
    low: Floats,
    high: Floats,
    pool: Pool,
    counters: Ints,
) -> int:
    """Find the caps of `table.targets` from row `start` on, until `work_limit` edges were visited.

    Rows that are solved already are passed over. Returns the row to go on with; `counters` gains (edges
    visited, passes). Writes `caps`, `values`, `best` and `solved` of the table.
    """
    space = new_space(plan)
    work = 0
    for row in range(start, len(table.targets)):
        if work > work_limit:
            counters[0] += work
            return row
        if table.solved[row]:
            continue
        top = table.targets[row]
        variables = table.scope_vars[table.scope_ptr[row] : table.scope_ptr[row + 1]]
        count = gather(plan, top, pool)
        size = 0
        for k in range(count):
            i = pool.nodes[k]
            size += plan.child_ptr[i + 1] - plan.child_ptr[i] + plan.leaf_ptr[i + 1] - plan.leaf_ptr[i]
        bound, value, passes = search_cap(
            plan, row, count, variables, log_factor, n_terms, max_boxes, table, low, high, pool, space
        )
        rounding = slack_of(bound, n_terms)
        table.values[row] = value
        table.caps[top] = min(table.caps[top], bound + rounding)
        table.solved[row] = bound <= value + log_factor + rounding
        work += size * passes
        counters[1] += passes
    counters[0] += work
    return len(table.targets)


@jit()
def scopes(plan: PlanArrays, bits: NDArray[np.uint64]) -> None:
    """Set bit v of row i where node i's scope holds variable v; `bits` is (n_nodes, n // 64 + 1), zeroed."""
    one = np.uint64(1)
    for i in range(len(plan.is_sum)):
        for leaf in range(plan.leaf_ptr[i], plan.leaf_ptr[i + 1]):
            v = plan.leaf_var[leaf]
            bits[i, v >> 6] |= one << np.uint64(v & 63)
        for e in range(plan.child_ptr[i], plan.child_ptr[i + 1]):
            for w in range(bits.shape[1]):
                bits[i, w] |= bits[plan.children[e], w]
