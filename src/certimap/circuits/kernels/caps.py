"""Kernels that find the maximum (cap) of every subcircuit by search."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from certimap.circuits.kernels.arrays import Indices, Number, ProbeArrays, Space, new_space
from certimap.circuits.kernels.probe import CapTable, Pool, climb, downward, log_column, slack_of, upward
from certimap.core.arrays import Bytes, Floats, Ints, Ints32, Words
from certimap.kernels.branching import interval_score_in_kernels
from certimap.kernels.jit import jit, jit_part

MAX_STARTS = 8  # assembled points scored by a subcircuit's search before it climbs
PROBED_POINTS = 8  # boxes of a subcircuit's search with a scored promising point
LEAF, SHRUNK = -1, -2  # kinds of entries in a trace other than splits


class Trace(NamedTuple):
    """A record of how searches covered their boxes, one entry per box.

    `kinds` has the splitting variable of a box, else `LEAF`, or `SHRUNK` for dropped columns. The parts of a
    split, in the order of their columns, are the `n_below` entries from `below` on. A shrunk box has one entry
    there for its remainder; its remaining columns in the scope of the searched node, a byte each, are in `kept`
    from `kept_at` on. `roots` has the first entry of each row of the table, or -1. `used` counts entries and
    bytes; its last number is 1 if they did not fit, and then no more entries are added.
    """

    kinds: Ints32
    below: Ints
    n_below: Ints
    kept_at: Ints
    kept: Bytes
    roots: Ints
    used: Ints


@jit_part
def trace_below(trace: Trace, entry: int, kind: int, count: int) -> int:
    """Set an entry's kind and add `count` leaves below it; return the number of the first."""
    first = trace.used[0]
    if first + count > len(trace.kinds):
        trace.used[2] = 1
    if trace.used[2]:
        return 0
    trace.used[0] = first + count
    trace.kinds[first : first + count] = LEAF
    trace.kinds[entry], trace.below[entry], trace.n_below[entry] = kind, first, count
    return first


@jit_part
def trace_shrunk(plan: ProbeArrays, variables: Indices, pool: Pool, trace: Trace) -> None:
    """Record the remaining columns of the current box."""
    work = len(pool.bound) - 1
    entry, at = pool.entries[work], trace.used[1]
    pool.entries[work] = trace_below(trace, entry, SHRUNK, 1)
    size = 0
    for v in variables:
        size += plan.offsets[v + 1] - plan.offsets[v]
    if at + size > len(trace.kept):
        trace.used[2] = 1
    if trace.used[2]:
        return
    trace.kept_at[entry], trace.used[1] = at, at + size
    for v in variables:
        for column in range(plan.offsets[v], plan.offsets[v + 1]):
            trace.kept[at] = pool.mask[work, column]
            at += 1


@jit_part
def gather(plan: ProbeArrays, top: int, pool: Pool) -> int:
    """List the nodes under `top` in `pool.nodes`, children first, `top` last; return their number."""
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
def shrink(
    plan: ProbeArrays, variables: Indices, bound: Number, mass: Number, roundings: Floats, tau: float, pool: Pool,
    space: Space,
) -> tuple[int, bool]:  # fmt: skip
    """Drop the current box's columns that cannot beat `tau`; return (branching variable, whether any dropped).

    The branching variable has the smallest sum of its columns' bounds; -1: none is left; -2: the box is
    closed. `pool.each` gets the bounds.
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
            top = log_column(bound, space.relative_bound[column], roundings)
            if plan.discrete:
                top = min(top, log_column(mass, space.relative_mass[column], roundings))
            pool.each[column] = top
            if top > tau:
                alive += 1
                total += np.exp(top - bound)
        if alive == 0:
            if plan.discrete:
                mask[start:stop] = 0
            return -2, True
        if plan.n_states[v] == 0:
            if alive == 1:
                dropped = True
                if pool.each[start] > tau:
                    high[v] = space.split[v]
                else:
                    low[v] = np.nextafter(space.split[v], np.inf)
        else:
            for column in range(start, stop):
                if mask[column] and not pool.each[column] > tau:
                    mask[column] = 0
                    dropped = True
        if plan.n_states[v] == 0:
            total = interval_score_in_kernels(total, (high[v] - low[v]) / plan.scales[v])
        if alive > 1 and total < least:
            choice, least = v, total
    return choice, dropped


@jit_part
def copy_box(plan: ProbeArrays, variables: Indices, source: int, target: int, pool: Pool) -> None:
    """Copy the columns of `variables` from one row of the pool to another."""
    for v in variables:
        for column in range(plan.offsets[v], plan.offsets[v + 1]):
            pool.mask[target, column] = pool.mask[source, column]
        if plan.n_states[v] == 0:
            pool.low[target, v] = pool.low[source, v]
            pool.high[target, v] = pool.high[source, v]


@jit_part
def push_children(
    plan: ProbeArrays, variables: Indices, choice: int, n_open: int, pool: Pool, trace: Trace, space: Space
) -> int:
    """Append one box for each column of variable `choice`; return the new number of open boxes."""
    work = len(pool.bound) - 1
    count = int(np.sum(pool.mask[work, plan.offsets[choice] : plan.offsets[choice + 1]]))
    entry = trace_below(trace, pool.entries[work], choice, count)
    for column in range(plan.offsets[choice], plan.offsets[choice + 1]):
        if not pool.mask[work, column]:
            continue
        copy_box(plan, variables, work, n_open, pool)
        pool.bound[n_open], pool.entries[n_open] = pool.each[column], entry
        entry += 1
        if plan.n_states[choice]:
            for other in range(plan.offsets[choice], plan.offsets[choice + 1]):
                pool.mask[n_open, other] = other == column
        elif column == plan.offsets[choice]:
            pool.high[n_open, choice] = space.split[choice]
        else:
            pool.low[n_open, choice] = np.nextafter(space.split[choice], np.inf)
        n_open += 1
    return n_open


@jit_part
def take_best(plan: ProbeArrays, variables: Indices, n_open: int, pool: Pool) -> float:
    """Move the open box with the largest bound to the last row and close the gap; return the bound."""
    best = n_open - 1
    for k in range(n_open - 1):
        if pool.bound[k] > pool.bound[best]:
            best = k
    bound = pool.bound[best]
    work = len(pool.bound) - 1
    copy_box(plan, variables, best, work, pool)
    pool.entries[work] = pool.entries[best]
    if best != n_open - 1:
        copy_box(plan, variables, n_open - 1, best, pool)
        pool.bound[best], pool.entries[best] = pool.bound[n_open - 1], pool.entries[n_open - 1]
    return bound


@jit_part
def promising_point(plan: ProbeArrays, variables: Indices, pool: Pool, space: Space) -> None:
    """Write the point of largest column bounds in the current box to `pool.point`."""
    work = len(pool.bound) - 1
    for v in variables:
        if plan.n_states[v] == 0:
            pool.point[v] = space.moment[v] / space.weight[v] if space.weight[v] > 0.0 else pool.low[work, v]
            if plan.is_whole[v]:
                pool.point[v] = min(max(np.round(pool.point[v]), np.ceil(pool.low[work, v])), pool.high[work, v])
            continue
        best = -np.inf
        for a in range(plan.n_states[v]):
            column = plan.offsets[v] + a
            if pool.mask[work, column] and pool.each[column] > best:
                best = pool.each[column]
                pool.point[v] = a


@jit_part
def search_cap(
    plan: ProbeArrays, row: int, count: int, variables: Indices, log_factor: float, roundings: Floats,
    max_boxes: int, table: CapTable, low: Floats, high: Floats, pool: Pool, trace: Trace, space: Space,
) -> tuple[float, float, int]:  # fmt: skip
    """Search the box space of row `row`'s node for its maximum; return (upper bound, best value, passes).

    Best first; columns of a box that cannot beat the best value by more than `log_factor` are dropped. The
    best point found goes to the table. At the limit on boxes, the bound is the largest open one. The trace
    records how boxes were covered.
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
    pool.bound[0], pool.entries[0] = np.inf, trace.used[0]
    if trace.used[0] < len(trace.kinds):
        trace.kinds[trace.used[0]] = LEAF
        trace.used[0] += 1
    else:
        trace.used[2] = 1
    while n_open and (boxes < max_boxes or boxes == 0):
        bound = take_best(plan, variables, n_open, pool)
        n_open -= 1
        while bound > best + log_factor:
            upward(plan, pool.nodes, count, pool.mask[work], pool.low[work], pool.high[work], table.caps, space)
            passes += 1
            mass = space.mass[top]
            bound = min(bound, space.bound[top] + slack_of(space.bound[top], roundings))
            if bound <= best + log_factor:
                break
            n_starts, point_left = 0, False
            if boxes == 0:
                n_starts = min(MAX_STARTS, plan.child_ptr[top + 1] - plan.child_ptr[top])
                boxes = 1
            else:
                downward(plan, pool.nodes, count, variables, pool.low[work], pool.high[work], space)
                passes += 1
                choice, dropped = shrink(
                    plan, variables, space.bound[top], mass, roundings, best + log_factor, pool, space
                )
                if dropped:
                    trace_shrunk(plan, variables, pool, trace)
                if choice == -2:
                    break
                if dropped:
                    continue
                boxes += 1
                promising_point(plan, variables, pool, space)
                point_left = choice < 0
                if choice >= 0 and n_open + plan.offsets[choice + 1] - plan.offsets[choice] <= work:
                    n_open = push_children(plan, variables, choice, n_open, pool, trace, space)
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
    plan: ProbeArrays, table: CapTable, start: int, work_limit: int, max_boxes: int, log_factor: float,
    roundings: Floats, low: Floats, high: Floats, pool: Pool, trace: Trace,
) -> tuple[int, Number]:  # fmt: skip
    """Find the caps of `table.targets` from row `start` on, until `work_limit` edges were visited.

    Skips solved rows. Returns the row to continue with, which is also the row of a search that did not fit into a
    nonempty trace, and the edges visited. Writes the table's `caps`, `values`, `best` and `solved`, and the trace.
    """
    space = new_space(plan)
    work, done = 0, start
    for row in range(start, len(table.targets)):
        if work > work_limit:
            break
        if table.solved[row]:
            done = row + 1
            continue
        top = table.targets[row]
        variables = table.scope_vars[table.scope_ptr[row] : table.scope_ptr[row + 1]]
        count = gather(plan, top, pool)
        size = 0
        for k in range(count):
            i = pool.nodes[k]
            size += plan.child_ptr[i + 1] - plan.child_ptr[i] + plan.leaf_ptr[i + 1] - plan.leaf_ptr[i]
        n_entries, n_bytes = trace.used[0], trace.used[1]
        bound, value, passes = search_cap(
            plan, row, count, variables, log_factor, roundings, max_boxes, table, low, high, pool, trace, space
        )
        if len(trace.kinds):
            if trace.used[2]:
                trace.used[0], trace.used[1] = n_entries, n_bytes
                break
            trace.roots[row] = n_entries
        rounding = slack_of(bound, roundings)
        table.values[row] = value
        table.caps[top] = min(table.caps[top], bound + rounding)
        table.solved[row] = bound <= value + log_factor + rounding
        work += size * passes
        done = row + 1
    return done, work


@jit()
def scopes(plan: ProbeArrays, bits: Words) -> None:
    """Set bit v of row i if node i's scope contains variable v; `bits` is (n_nodes, n // 64 + 1), zeroed."""
    one = np.uint64(1)
    for i in range(len(plan.is_sum)):
        for leaf in range(plan.leaf_ptr[i], plan.leaf_ptr[i + 1]):
            v = plan.leaf_var[leaf]
            bits[i, v >> 6] |= one << np.uint64(v & 63)
        for e in range(plan.child_ptr[i], plan.child_ptr[i + 1]):
            for w in range(bits.shape[1]):
                bits[i, w] |= bits[plan.children[e], w]
