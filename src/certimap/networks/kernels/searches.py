"""Searches over assignments: depth first below a node, in pieces, and local search by single changes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from certimap.core.arrays import Flags, Floats, Ints
from certimap.kernels.jit import jit, jit_part
from certimap.kernels.random import seed_row, uniform
from certimap.networks.kernels.dual_ascent import (
    NONE,
    CostArrays,
    DualState,
    Scalar,
    SweepRule,
    ascend,
    offer,
    propagate,
    value_of,
)

FINISHED, PAUSED, OUT_OF_BACKTRACKS, TOO_DEEP, FOUND = 0, 1, 2, 3, 4
LEAD_SHARE = 0.1


class SearchStack(NamedTuple):
    """Saved states of the current branch, one row per depth, and counters."""

    tables: Ints  # tables to bound: what `DualState` held before the decision at each depth
    unary: Ints
    alive: Ints
    n_alive: Ints
    is_done: Flags
    bound: Ints
    variable: Ints  # the decision: a variable takes a state (left) or not (right)
    state: Ints
    is_right: Flags
    weight: Floats  # shape (n,): how often a variable was the one at which a branch failed, plus 1
    counters: Ints  # see `DEPTH` and its companions


# depth, backtracks since the limit was set, nodes, last variable that failed, whether the current node has failed
DEPTH, BACKTRACKS, NODES, LAST, FAILED = 0, 1, 2, 3, 4


@jit_part
def _save(dual: DualState, stack: SearchStack, depth: int) -> None:
    stack.tables[depth, :] = dual.tables
    stack.unary[depth, :] = dual.unary
    stack.alive[depth, :] = dual.alive
    stack.n_alive[depth, :] = dual.n_alive
    stack.is_done[depth, :] = dual.is_done
    stack.bound[depth] = dual.bound[0]


@jit_part
def _restore(dual: DualState, stack: SearchStack, depth: int) -> None:
    dual.tables[:] = stack.tables[depth]
    dual.unary[:] = stack.unary[depth]
    dual.alive[:] = stack.alive[depth]
    dual.n_alive[:] = stack.n_alive[depth]
    dual.is_done[:] = stack.is_done[depth]
    dual.bound[0] = stack.bound[depth]


@jit_part
def _branching_variable(dual: DualState, stack: SearchStack, lead_cap: int) -> int:
    """Return an open variable: the last that failed, else few states, a clear lead and many failures."""
    last = stack.counters[LAST]
    if last >= 0 and not dual.is_done[last] and dual.n_alive[last] > 1:
        return last
    chosen, best = NONE, -1.0
    for i in range(len(dual.n_alive)):
        if not dual.is_done[i] and dual.n_alive[i] > 1:
            lead = min(dual.lead[i], lead_cap) / lead_cap
            score = stack.weight[i] / dual.n_alive[i] * (LEAD_SHARE / 50.0 + lead)
            if score > best:
                best, chosen = score, i
    return chosen


@jit_part
def keep_one(net: CostArrays, dual: DualState, variable: Scalar, state: Scalar) -> None:
    """Leave a variable one state."""
    dual.alive[net.offset[variable]] = state
    dual.n_alive[variable] = 1


@jit_part
def remove_one(net: CostArrays, dual: DualState, variable: Scalar, state: Scalar) -> None:
    """Take a state from a variable."""
    base = net.offset[variable]
    n_kept = 0
    for k in range(dual.n_alive[variable]):
        s = dual.alive[base + k]
        if s != state:
            dual.alive[base + n_kept] = s
            n_kept += 1
    dual.n_alive[variable] = n_kept


@jit_part
def _bounded(net: CostArrays, dual: DualState, variable: Scalar, rule: SweepRule) -> Scalar:
    """Propagate what a variable has lost, then sweep where there are costs; see `ascend`."""
    failed = propagate(net, dual, variable)
    return failed if failed != NONE or not net.is_soft[0] else ascend(net, dual, rule)


@jit()
def replay(
    net: CostArrays, dual: DualState, variables: Ints, states: Ints, is_right: Flags, rule: SweepRule
) -> bool:
    """Apply the decisions that lead to a node, then sweep; returns whether anything can be above the threshold."""
    for k in range(len(variables)):
        v, s = variables[k], states[k]
        holds = False
        for j in range(dual.n_alive[v]):
            holds = holds or dual.alive[net.offset[v] + j] == s
        if is_right[k]:
            remove_one(net, dual, v, s)
            if dual.n_alive[v] == 0:
                return False
        else:
            if not holds:
                return False
            keep_one(net, dual, v, s)
        if propagate(net, dual, v) != NONE:
            return False
    return ascend(net, dual, rule) == NONE


@jit()
def search(
    net: CostArrays, dual: DualState, stack: SearchStack, max_backtracks: int, max_touched: int, lead_cap: int,
    rule: SweepRule, leaf: Ints,
) -> int:  # fmt: skip
    """Search on from where the stack is, depth first; `rule` says which branches are cut.

    `max_backtracks`, `max_touched`: stop after so many backtracks since the counter was reset, or table entries
    visited in this call. Without `rule.decodes`, return at every full assignment above the threshold, in `leaf`,
    and keep the incumbent. Returns FINISHED, PAUSED (call again), FOUND (a leaf; call again), or OUT_OF_BACKTRACKS
    or TOO_DEEP: the right branches of the stack are then open (and where it is too deep, the current node).
    """
    counters, incumbent = stack.counters, rule.incumbent
    states = np.zeros(len(net.n_states), np.int64)
    until = dual.n_touched[0] + max_touched
    while True:
        if counters[FAILED] == 0:
            v = _branching_variable(dual, stack, lead_cap)
            if v == NONE:
                for i in range(len(states)):
                    states[i] = dual.alive[net.offset[i]]
                value = value_of(net, states)
                counters[FAILED] = 1
                if not rule.decodes and value > rule.threshold:
                    leaf[0] = value
                    leaf[1:] = states
                    return FOUND
                offer(net, states, incumbent)
            else:
                depth = counters[DEPTH]
                if depth >= len(stack.bound):
                    return TOO_DEEP
                state = dual.alive[net.offset[v]]
                for k in range(dual.n_alive[v]):
                    if dual.alive[net.offset[v] + k] == dual.best[v]:
                        state = dual.best[v]
                _save(dual, stack, depth)
                stack.variable[depth], stack.state[depth], stack.is_right[depth] = v, state, False
                counters[DEPTH] += 1
                counters[NODES] += 1
                keep_one(net, dual, v, state)
                failed = _bounded(net, dual, v, rule)
                if failed != NONE:
                    stack.weight[failed] += 1.0
                    counters[LAST] = v
                    counters[FAILED] = 1
        while counters[FAILED] == 1:
            if counters[DEPTH] == 0:
                return FINISHED
            if counters[BACKTRACKS] >= max_backtracks:
                return OUT_OF_BACKTRACKS
            if dual.n_touched[0] >= until:
                return PAUSED
            counters[DEPTH] -= 1
            depth = counters[DEPTH]
            if stack.is_right[depth] or stack.bound[depth] <= max(rule.threshold, incumbent[0] + rule.margin):
                continue
            counters[BACKTRACKS] += 1
            _restore(dual, stack, depth)
            remove_one(net, dual, stack.variable[depth], stack.state[depth])
            if dual.n_alive[stack.variable[depth]] == 0:
                continue
            stack.is_right[depth] = True
            counters[DEPTH] += 1
            failed = _bounded(net, dual, stack.variable[depth], rule)
            if failed != NONE:
                stack.weight[failed] += 1.0
            else:
                counters[FAILED] = 0
        if dual.n_touched[0] >= until:
            return PAUSED


@jit_part
def _entry(net: CostArrays, table: int, states: Ints) -> int:
    at = net.table_ptr[table]
    for j in range(net.scope_ptr[table], net.scope_ptr[table + 1]):
        at += net.stride[j] * states[net.scope[j]]
    return at


@jit_part
def _add_table(soft: CostArrays, table: int, sign: int, states: Ints, without: Scalar, score: Ints) -> None:
    """Add a table's entries, all but one variable as they are, to the scores of that variable's states."""
    base = _entry(soft, table, states)
    for j in range(soft.scope_ptr[table], soft.scope_ptr[table + 1]):
        v = soft.scope[j]
        if v == without:
            continue
        start = base - soft.stride[j] * states[v]
        for s in range(soft.n_states[v]):
            score[soft.offset[v] + s] += sign * soft.tables[start + soft.stride[j] * s]


@jit_part
def _score_all(soft: CostArrays, states: Ints, score: Ints) -> Scalar:
    """Add what every table says of each state, given the others, to `score`; return the sum at `states`."""
    total = 0
    for table in range(len(soft.table_ptr) - 1):
        _add_table(soft, table, 1, states, -1, score)
        total += soft.tables[_entry(soft, table, states)]
    for v in range(len(states)):
        total += soft.unary[soft.offset[v] + states[v]]
    return total


@jit()
def tabu_search(
    net: CostArrays, soft: CostArrays, states: Ints, max_steps: int, tenure: int, key: np.uint64, incumbent: Ints
) -> Scalar:
    """Change one variable at a time, from `states`, always to the best change that is not tabu; return the work.

    `soft`: the costs with finite penalties in place of zeros. `tenure`: steps, and as many more at random, that a
    changed variable stays as it is, unless changing it leads to the best sum so far.
    `incumbent`: shape (n + 1,): value and states of the best assignment, by the costs themselves; updated.
    """
    n = len(states)
    stream = np.empty(4, np.uint64)
    seed_row(key, 0, stream)
    score = soft.unary.copy()
    total = _score_all(soft, states, score)
    free_at = np.zeros(n, np.int64)
    best, work = total, 0
    offer(net, states, incumbent)
    for step in range(max_steps):
        gain, variable, state, ties = np.int64(-(2**62)), -1, -1, 0
        for v in range(n):
            base = net.offset[v]
            own = score[base + states[v]]
            for s in range(net.n_states[v]):
                if s == states[v]:
                    continue
                delta = score[base + s] - own
                if delta < gain or (free_at[v] > step and total + delta <= best):
                    continue
                if delta > gain:
                    gain, variable, state, ties = delta, v, s, 1
                else:
                    ties += 1
                    if uniform(stream) * ties < 1.0:
                        variable, state = v, s
        work += len(score)
        if variable < 0:
            continue
        for e in range(net.touch_ptr[variable], net.touch_ptr[variable + 1]):
            table = net.touch_table[e]
            _add_table(soft, table, -1, states, variable, score)
            before = states[variable]
            states[variable] = state
            _add_table(soft, table, 1, states, variable, score)
            states[variable] = before
            work += net.table_ptr[table + 1] - net.table_ptr[table]
        states[variable] = state
        total += gain
        free_at[variable] = step + 1 + tenure + int(uniform(stream) * (tenure + 1))
        if total > best:
            best = total
            offer(net, states, incumbent)
    return work


@jit_part
def _change(
    soft: CostArrays, variable: Scalar, state: Scalar, states: Ints, score: Ints, queue: Ints, is_queued: Ints
) -> None:
    """Set a variable, bring the scores around it up to date, and queue its neighbours (`queue[-1]` counts)."""
    before = states[variable]
    for e in range(soft.touch_ptr[variable], soft.touch_ptr[variable + 1]):
        table = soft.touch_table[e]
        _add_table(soft, table, -1, states, variable, score)
        states[variable] = state
        _add_table(soft, table, 1, states, variable, score)
        states[variable] = before
        for j in range(soft.scope_ptr[table], soft.scope_ptr[table + 1]):
            v = soft.scope[j]
            if v != variable and is_queued[v] == 0:
                is_queued[v] = 1
                queue[queue[-1]] = v
                queue[-1] += 1
    states[variable] = state


@jit()
def kick_search(
    net: CostArrays, soft: CostArrays, dual: DualState, states: Ints, most: int, key: np.uint64, incumbent: Ints
) -> Scalar:
    """Force each variable to each of its alive states in turn, climb around it, and keep what is no worse.

    A climb follows changed variables to their neighbours only. Parameters and result as in `tabu_search`; ends
    after a pass without improvement, or `most`.
    """
    n = len(states)
    stream = np.empty(4, np.uint64)
    seed_row(key, 0, stream)
    score = soft.unary.copy()
    total = _score_all(soft, states, score)
    queue, is_queued = np.zeros(2 * n + 1, np.int64), np.zeros(n, np.int64)
    journal_variable, journal_state = np.empty(8 * n + 8, np.int64), np.empty(8 * n + 8, np.int64)
    order = np.arange(n)
    improved, work = True, 0
    while improved and work < most:
        improved = False
        for i in range(n - 1, 0, -1):
            j = min(i, int(uniform(stream) * (i + 1)))
            order[i], order[j] = order[j], order[i]
        for i in range(n):
            kicked = order[i]
            for k in range(dual.n_alive[kicked]):
                state = dual.alive[net.offset[kicked] + k]
                if state == states[kicked]:
                    continue
                if work >= most:
                    return work
                now, variable = total, kicked
                n_changes = head = queue[-1] = 0
                while True:
                    base = net.offset[variable]
                    work += net.touch_ptr[variable + 1] - net.touch_ptr[variable]
                    now += score[base + state] - score[base + states[variable]]
                    journal_variable[n_changes], journal_state[n_changes] = variable, states[variable]
                    n_changes += 1
                    _change(soft, variable, state, states, score, queue, is_queued)
                    found = False
                    while not found and head < queue[-1] and n_changes < 8 * n:
                        variable = queue[head]
                        head += 1
                        is_queued[variable] = 0
                        if head == queue[-1]:
                            head, queue[-1] = 0, 0
                        base = net.offset[variable]
                        best = score[base + states[variable]]
                        work += net.n_states[variable]
                        if variable == kicked and n_changes == 1:
                            continue
                        for s in range(net.n_states[variable]):
                            if score[base + s] > best:
                                best, state, found = score[base + s], s, True
                    if not found or queue[-1] >= n:
                        break
                for q in range(head, queue[-1]):
                    is_queued[queue[q]] = 0
                queue[-1] = 0
                if now < total:
                    for c in range(n_changes - 1, -1, -1):
                        variable, state = journal_variable[c], journal_state[c]
                        _change(soft, variable, state, states, score, queue, is_queued)
                        for q in range(queue[-1]):
                            is_queued[queue[q]] = 0
                        queue[-1] = 0
                elif now > total:
                    improved = True
                    total = now
                    offer(net, states, incumbent)
    return work
