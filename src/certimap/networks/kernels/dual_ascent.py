"""Moving integer costs between tables, so that the sum of their maxima, an upper bound, falls.

A value is a sum over one entry of each table and each unary table plus `bound[0]`; moves never change it. All
entries are at most 0 between calls, so that `bound[0]` is at least every such sum. After 'sequential reweighted
message passing' (Kolmogorov 2006, 2015) in exact integer arithmetic.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from certimap.core.arrays import Flags, Ints
from certimap.kernels.jit import jit, jit_part

Scalar = int | Ints  # what pyright takes an element of an integer array for
HARD = -(2**60)
FLOOR = -(2**59)
NONE = -1


class CostArrays(NamedTuple):
    """A problem as arrays: variables 0 to n - 1 in the order of the sweeps."""

    n_states: Ints
    offset: Ints  # where the states of each variable begin among all; n + 1 entries
    scope_ptr: Ints
    scope: Ints  # the variables of each table (at least two, increasing)
    stride: Ints  # of its axes
    table_ptr: Ints
    tables: Ints  # all entries
    touch_ptr: Ints
    touch_table: Ints  # the tables that mention each variable, and at which axis
    touch_axis: Ints
    unary: Ints  # one entry per state
    bears: Flags  # of each table: whether some entries of it are zeros
    is_soft: Flags  # shape (1,): whether some cost is neither 0 nor a zero


class DualState(NamedTuple):
    """Costs where they are now, and the states still alive."""

    tables: Ints  # tables, unary: as in `CostArrays`, after the moves
    unary: Ints
    alive: Ints  # the first `n_alive[i]` entries of variable i's part are its states that are not dropped
    n_alive: Ints
    is_done: Flags  # variables with one state, whose cost has gone into the bound
    bound: Ints  # shape (1,): the upper bound, in units
    best: Ints  # a best state of each variable when it was last visited, and by how much it beat the second
    lead: Ints
    pulled: Ints  # scratch: one row per table of a variable, one entry per state, one per axis
    shift: Ints
    position: Ints
    n_touched: Ints  # shape (1,): table entries visited so far, the measure of work


@jit_part
def _first_row(net: CostArrays, dual: DualState, table: int) -> int:
    """Go to a table's first row of entries (over its last variable), others at their first alive states."""
    first, last = net.scope_ptr[table], net.scope_ptr[table + 1] - 1
    at = net.table_ptr[table]
    for j in range(first, last):
        dual.position[j - first] = 0
        at += net.stride[j] * dual.alive[net.offset[net.scope[j]]]
    return at


@jit_part
def _next_row(net: CostArrays, dual: DualState, table: int, axis: Scalar, at: int, state: Any) -> tuple[int, Any]:
    """Count to the next row; return where it begins (`NONE` after the last) and the state of variable `axis`."""
    first, last = net.scope_ptr[table], net.scope_ptr[table + 1] - 1
    for j in range(last - 1, first - 1, -1):
        v = net.scope[j]
        k = dual.position[j - first]
        now = dual.alive[net.offset[v] + k]
        k = k + 1 if k + 1 < dual.n_alive[v] else 0
        dual.position[j - first] = k
        following = dual.alive[net.offset[v] + k]
        at += net.stride[j] * (following - now)
        if j == first + axis:
            state = following
        if k > 0:
            return at, state
    return NONE, state


@jit_part
def _maxima(net: CostArrays, dual: DualState, table: int, axis: Scalar, out: Ints) -> None:
    """Write the maximum of a table for each alive state of one of its variables, over alive states."""
    first, last = net.scope_ptr[table], net.scope_ptr[table + 1] - 1
    own = net.scope[first + axis]
    for k in range(dual.n_alive[own]):
        out[dual.alive[net.offset[own] + k]] = HARD
    at = _first_row(net, dual, table)
    state = dual.alive[net.offset[own]]
    inner = net.offset[net.scope[last]]
    n_inner, step = dual.n_alive[net.scope[last]], net.stride[last]
    while at != NONE:
        dual.n_touched[0] += n_inner
        if first + axis == last:
            for k in range(n_inner):
                s = dual.alive[inner + k]
                out[s] = max(out[s], dual.tables[at + step * s])
        else:
            top = out[state]
            for k in range(n_inner):
                top = max(top, dual.tables[at + step * dual.alive[inner + k]])
            out[state] = top
        at, state = _next_row(net, dual, table, axis, at, state)


@jit_part
def _add(net: CostArrays, dual: DualState, table: int, axis: int, shift: Ints) -> None:
    """Add to a table a function of one of its variables, over alive states; what falls below `FLOOR` is zero."""
    first, last = net.scope_ptr[table], net.scope_ptr[table + 1] - 1
    own = net.scope[first + axis]
    at = _first_row(net, dual, table)
    state = dual.alive[net.offset[own]]
    inner = net.offset[net.scope[last]]
    n_inner, step = dual.n_alive[net.scope[last]], net.stride[last]
    while at != NONE:
        dual.n_touched[0] += n_inner
        if first + axis == last:
            for k in range(n_inner):
                s = dual.alive[inner + k]
                value = dual.tables[at + step * s] + shift[s]
                dual.tables[at + step * s] = value if value > FLOOR else HARD
        else:
            amount = shift[state]
            for k in range(n_inner):
                place = at + step * dual.alive[inner + k]
                value = dual.tables[place] + amount
                dual.tables[place] = value if value > FLOOR else HARD
        at, state = _next_row(net, dual, table, axis, at, state)


@jit_part
def _directions(net: CostArrays, dual: DualState, table: int, i: int) -> tuple[bool, bool]:
    """Whether a table has open variables before and after variable i."""
    before, after = False, False
    for j in range(net.scope_ptr[table], net.scope_ptr[table + 1]):
        v = net.scope[j]
        if v != i and dual.n_alive[v] > 1:
            if v < i:
                before = True
            else:
                after = True
    return before, after


@jit_part
def visit(net: CostArrays, dual: DualState, i: int, is_forward: bool, threshold: int) -> int:
    """Pull all costs of a variable together, drop its hopeless states, push shares on along the sweep.

    A state goes when the bound with it is at most `threshold`. Returns the number dropped, or `NONE` when no
    assignment can be above the threshold.
    """
    base, begin, end = net.offset[i], net.touch_ptr[i], net.touch_ptr[i + 1]
    n_before, n_after = 0, 0
    for e in range(begin, end):
        table = net.touch_table[e]
        pulled = dual.pulled[e - begin]
        _maxima(net, dual, table, net.touch_axis[e], pulled)
        for k in range(dual.n_alive[i]):
            s = dual.alive[base + k]
            if pulled[s] <= FLOOR or dual.unary[base + s] <= FLOOR:
                dual.unary[base + s] = HARD
            else:
                dual.unary[base + s] += pulled[s]
        before, after = _directions(net, dual, table, i)
        n_before += before
        n_after += after
    top, second, state = HARD, HARD, NONE
    for k in range(dual.n_alive[i]):
        s = dual.alive[base + k]
        if dual.unary[base + s] > top:
            second = top
            top, state = dual.unary[base + s], s
        elif dual.unary[base + s] > second:
            second = dual.unary[base + s]
    if state == NONE or top <= FLOOR:
        return NONE
    dual.best[i] = state
    dual.lead[i] = top - second
    dual.bound[0] += top
    if dual.bound[0] <= threshold:
        return NONE
    n_kept = n_dropped = 0
    for k in range(dual.n_alive[i]):
        s = dual.alive[base + k]
        cost = dual.unary[base + s]
        if cost > FLOOR:
            cost -= top
            dual.unary[base + s] = cost
        if cost <= FLOOR or dual.bound[0] + cost <= threshold:
            n_dropped += 1
        else:
            dual.alive[base + n_kept] = s
            n_kept += 1
    dual.n_alive[i] = n_kept
    n_push = n_after if is_forward else n_before
    n_shares = max(n_before, n_after) if n_push > 0 and n_kept > 1 else 0
    for e in range(begin, end):
        table = net.touch_table[e]
        takes = False
        if n_shares > 0:
            before, after = _directions(net, dual, table, i)
            takes = after if is_forward else before
        moves = False
        for k in range(n_kept):
            s = dual.alive[base + k]
            share = -((-dual.unary[base + s]) // n_shares) if takes else 0
            dual.shift[s] = share - dual.pulled[e - begin, s]
            moves = moves or dual.shift[s] != 0
        if moves:
            _add(net, dual, table, net.touch_axis[e], dual.shift)
    if n_shares > 0:
        for k in range(n_kept):
            s = dual.alive[base + k]
            share = -((-dual.unary[base + s]) // n_shares)
            dual.unary[base + s] -= n_push * share
    if n_kept == 1:
        dual.is_done[i] = True
    return n_dropped


@jit_part
def propagate(net: CostArrays, dual: DualState, variable: Scalar) -> Scalar:
    """Drop states without partner in a table after a variable lost states; return one left without, or `NONE`."""
    n = len(net.n_states)
    waiting, is_waiting = np.empty(n, np.int64), np.zeros(n, np.bool_)
    waiting[0], is_waiting[variable] = variable, True
    first, count = 0, 1
    while count > 0:
        changed = waiting[first]
        is_waiting[changed] = False
        first, count = (first + 1) % n, count - 1
        for e in range(net.touch_ptr[changed], net.touch_ptr[changed + 1]):
            table = net.touch_table[e]
            if not net.bears[table]:
                continue
            for j in range(net.scope_ptr[table], net.scope_ptr[table + 1]):
                v = net.scope[j]
                if v == changed:
                    continue
                _maxima(net, dual, table, j - net.scope_ptr[table], dual.shift)
                n_kept = 0
                for k in range(dual.n_alive[v]):
                    s = dual.alive[net.offset[v] + k]
                    if dual.shift[s] > FLOOR and dual.unary[net.offset[v] + s] > FLOOR:
                        dual.alive[net.offset[v] + n_kept] = s
                        n_kept += 1
                if n_kept == 0:
                    return v
                if n_kept < dual.n_alive[v]:
                    dual.n_alive[v] = n_kept
                    if not is_waiting[v]:
                        is_waiting[v] = True
                        waiting[(first + count) % n] = v
                        count += 1
    return NONE


@jit_part
def value_of(net: CostArrays, states: Ints) -> Scalar:
    """Return the sum of the original costs at an assignment; `HARD` where one is zero."""
    total = 0
    for i in range(len(states)):
        cost = net.unary[net.offset[i] + states[i]]
        if cost <= FLOOR:
            return HARD
        total += cost
    for table in range(len(net.table_ptr) - 1):
        at = net.table_ptr[table]
        for j in range(net.scope_ptr[table], net.scope_ptr[table + 1]):
            at += net.stride[j] * states[net.scope[j]]
        if net.tables[at] <= FLOOR:
            return HARD
        total += net.tables[at]
    return total


@jit_part
def decode(net: CostArrays, dual: DualState, states: Ints) -> None:
    """Write the best state of each variable when it was last visited, or its only one."""
    for i in range(len(states)):
        states[i] = dual.alive[net.offset[i]] if dual.is_done[i] else dual.best[i]


@jit_part
def offer(net: CostArrays, states: Ints, incumbent: Ints) -> None:
    """Make an assignment the incumbent if it is better, by the original costs."""
    value = value_of(net, states)
    if value > incumbent[0]:
        incumbent[0] = value
        incumbent[1:] = states


class SweepRule(NamedTuple):
    """How long sweeps go on, and what matters in them."""

    most: int  # sweeps forth and back
    share: float  # of the gap to what matters: the sweep that gains no more and drops no state is the last
    threshold: int  # units at or below which nothing matters
    margin: int  # nor at or below the incumbent's value plus this: -1 never drops the incumbent itself
    decodes: bool  # whether an assignment decoded after each pass may become the incumbent
    incumbent: Ints  # shape (n + 1,): value and states of the best assignment known


@jit()
def ascend(net: CostArrays, dual: DualState, rule: SweepRule) -> int:
    """Sweep while the gap shrinks or states drop; return the variable where nothing is left, or `NONE`."""
    n = len(net.n_states)
    states = np.zeros(n, np.int64)
    incumbent = rule.incumbent
    for _ in range(rule.most):
        before, n_dropped = dual.bound[0], 0
        for direction in range(2):
            for step in range(n):
                i = step if direction == 0 else n - 1 - step
                if dual.is_done[i]:
                    continue
                dropped = visit(net, dual, i, direction == 0, max(rule.threshold, incumbent[0] + rule.margin))
                if dropped == NONE:
                    return i
                n_dropped += dropped
            if rule.decodes:
                decode(net, dual, states)
                offer(net, states, incumbent)
        level = max(rule.threshold, incumbent[0] + rule.margin)
        gap = dual.bound[0] - level if level > FLOOR else -dual.bound[0] + 1
        if n_dropped == 0 and before - dual.bound[0] <= rule.share * gap:
            break
    return NONE
