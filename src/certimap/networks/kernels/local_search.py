"""Tabu search over single changes, with sums that are kept up to date change by change."""

from __future__ import annotations

import numpy as np

from certimap.core.arrays import Ints
from certimap.kernels.jit import jit, jit_part
from certimap.kernels.random import seed_row, uniform
from certimap.networks.kernels.dual_ascent import CostArrays, DualState, Scalar, offer


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
    """Change one variable at a time, always to the best change that is not tabu.

    `soft`: the costs with finite penalties in place of zeros.
    `states`: where to start; moved.
    `tenure`: a changed variable stays as it is for this many steps and as many more at random, unless changing it
    leads to the best sum so far.
    `incumbent`: shape (n + 1,): value and states of the best possible assignment, by the costs themselves;
    updated.

    Returns how many scores were looked at: the work.
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

    A climb follows changed variables to their neighbours only, so that a kick costs what it changes. Parameters
    as in `tabu_search`; ends after a pass without improvement, or `most`. Returns the scores looked at.
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
                now = total
                n_changes = 0
                queue[-1] = 0
                variable = kicked
                head = 0
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
