"""Depth-first search below a node, in pieces: it stops at a limit of backtracks and leaves its open branches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from certimap.core.arrays import Flags, Floats, Ints
from certimap.kernels.jit import jit, jit_part
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

    # tables, unary, alive, n_alive, is_done, bound: what `DualState` held before the decision at each depth
    tables: Ints
    unary: Ints
    alive: Ints
    n_alive: Ints
    is_done: Flags
    bound: Ints
    # variable, state, is_right: the decision: a variable takes a state (left) or not (right)
    variable: Ints
    state: Ints
    is_right: Flags
    weight: Floats  # shape (n,): how often a variable was the one at which a branch failed, plus 1
    # depth, backtracks since the limit was set, nodes, last variable that failed, whether the current node has
    # failed
    counters: Ints


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
    """Search on from where the stack is, depth first.

    `max_backtracks`, `max_touched`: stop after so many backtracks since the counter was reset, or table entries
    visited in this call. `rule`: branches that cannot exceed its threshold, or the incumbent's value plus its
    margin, are cut. Without `rule.decodes`, return at every full assignment above the threshold, in `leaf`, rather
    than making it the incumbent. Returns FINISHED, PAUSED (call again), FOUND (a leaf; call again), or
    OUT_OF_BACKTRACKS or TOO_DEEP: the right branches of the stack are then open (and where it is too deep, the
    current node).
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
