"""Compiled message passing on a circuit read as a network of binary variables; see `certimap.circuits.walks`.

All messages are pairs of natural logs, for the value 1 and the value 0 of a binary variable. `FLOOR` replaces
ln 0, so that leave-one-out sums are differences without infinities.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from certimap.circuits.kernels.arrays import ProbeArrays
from certimap.core.arrays import Floats, Ints
from certimap.kernels.jit import jit, jit_part

FLOOR = -1e6  # replaces ln 0: harmless, since decoded answers are scored exactly
TIE = 1e-9  # nats below the best belief up to which a state counts as a maximiser


class Messages(NamedTuple):
    """Messages on the inner edges and on the leaves, and the beliefs of the query variables' states.

    `up` and `down` have shape (n_edges, 2), `leaf_up` and `leaf_down` (n_leaves, 2), with ln of the value 1 first;
    `told` holds each leaf's message to its variable, one entry per state from `told_ptr` on; `belief` has one
    entry per state of the domain. `above[above_ptr[i]:above_ptr[i + 1]]` are the edges into node i.
    """

    up: Floats
    down: Floats
    leaf_up: Floats
    leaf_down: Floats
    told_ptr: Ints
    told: Floats
    belief: Floats
    above_ptr: Ints
    above: Ints


@jit_part
def log_one_minus(log_p: Any) -> Any:
    """Return ln(1 - e^log_p), at least FLOOR."""
    if log_p >= 0.0:
        return FLOOR
    if log_p > -0.6931471805599453:
        return max(math.log(-math.expm1(log_p)), FLOOR)
    return math.log1p(-math.exp(log_p))


@jit_part
def log_add(a: Any, b: Any) -> Any:
    """Return ln(e^a + e^b)."""
    return max(a, b) + math.log1p(math.exp(-abs(a - b)))


@jit()
def ask_variables(graph: ProbeArrays, messages: Messages) -> None:
    """Send each leaf its variable's message: the mean of its table over the states that maximise the belief.

    The leaf's own message to the variable is removed first (the mixed-product message from a maximised variable
    to a summed one).
    """
    for leaf in range(len(graph.leaf_var)):
        v = graph.leaf_var[leaf]
        base, n, told = graph.offsets[v], graph.n_states[v], messages.told_ptr[leaf]
        best, top = FLOOR * 1e6, -np.inf
        for a in range(n):
            best = max(best, messages.belief[base + a])
        for a in range(n):
            if messages.belief[base + a] >= best - TIE:
                top = max(top, messages.belief[base + a] - messages.told[told + a])
        total, one = 0.0, 0.0
        for a in range(n):
            if messages.belief[base + a] >= best - TIE:
                weight = math.exp(messages.belief[base + a] - messages.told[told + a] - top)
                total += weight
                one += weight * math.exp(graph.log_tables[graph.leaf_start[leaf] + a])
        log_one = max(math.log(one / total), FLOOR) if one > 0.0 else FLOOR
        messages.leaf_up[leaf, 0] = min(log_one, 0.0)
        messages.leaf_up[leaf, 1] = log_one_minus(log_one)


@jit()
def pass_up(graph: ProbeArrays, messages: Messages) -> None:
    """Send every node's probability to the nodes above it, without the receiver's own message."""
    up, down = messages.up, messages.down
    for node in range(len(graph.is_sum)):
        first, last = graph.child_ptr[node], graph.child_ptr[node + 1]
        if graph.is_sum[node]:
            one, zero = FLOOR, FLOOR
            for e in range(first, last):
                one = log_add(one, graph.log_weights[e] + up[e, 0])
                zero = log_add(zero, graph.log_weights[e] + up[e, 1])
        else:
            one = 0.0
            for leaf in range(graph.leaf_ptr[node], graph.leaf_ptr[node + 1]):
                one += messages.leaf_up[leaf, 0]
            for e in range(first, last):
                one += up[e, 0]
            one = max(one, FLOOR)
            zero = log_one_minus(one)
        for k in range(messages.above_ptr[node], messages.above_ptr[node + 1]):
            one += down[messages.above[k], 0]
            zero += down[messages.above[k], 1]
        for k in range(messages.above_ptr[node], messages.above_ptr[node + 1]):
            e = messages.above[k]
            rest_one, rest_zero = one - down[e, 0], zero - down[e, 1]
            total = log_add(rest_one, rest_zero)
            up[e, 0], up[e, 1] = max(rest_one - total, FLOOR), max(rest_zero - total, FLOOR)


@jit_part
def _blend(old: Any, one: Any, zero: Any, damping: Any) -> tuple[Any, Any]:
    """Scale a likelihood to a maximum of 1, and mix it (as logs) with the old one, which is a pair."""
    top = max(one, zero)
    one, zero = max(one - top, FLOOR), max(zero - top, FLOOR)
    return damping * old[0] + (1.0 - damping) * one, damping * old[1] + (1.0 - damping) * zero


@jit()
def _down_product(
    node: int, one: float, zero: float, graph: ProbeArrays, messages: Messages, damping: float
) -> None:
    """Send likelihoods from a product to its children and leaves: it is 1 where all of them are."""
    all_one = 0.0
    for leaf in range(graph.leaf_ptr[node], graph.leaf_ptr[node + 1]):
        all_one += messages.leaf_up[leaf, 0]
    for e in range(graph.child_ptr[node], graph.child_ptr[node + 1]):
        all_one += messages.up[e, 0]
    for leaf in range(graph.leaf_ptr[node], graph.leaf_ptr[node + 1]):
        others = min(max(all_one - messages.leaf_up[leaf, 0], FLOOR), 0.0)
        likely = log_add(one + others, zero + log_one_minus(others))
        out = messages.leaf_down[leaf]
        out[0], out[1] = _blend(out, likely, zero, damping)
    for e in range(graph.child_ptr[node], graph.child_ptr[node + 1]):
        others = min(max(all_one - messages.up[e, 0], FLOOR), 0.0)
        likely = log_add(one + others, zero + log_one_minus(others))
        out = messages.down[e]
        out[0], out[1] = _blend(out, likely, zero, damping)


@jit()
def _down_sum(
    node: int, one: float, zero: float, graph: ProbeArrays, messages: Messages, damping: float, before: Floats
) -> None:
    """Send likelihoods from a sum to its children; `before` holds the sums over earlier siblings."""
    first, last = graph.child_ptr[node], graph.child_ptr[node + 1]
    sum_one, sum_zero = FLOOR, FLOOR
    for e in range(first, last):
        before[e - first, 0], before[e - first, 1] = sum_one, sum_zero
        sum_one = log_add(sum_one, graph.log_weights[e] + messages.up[e, 0])
        sum_zero = log_add(sum_zero, graph.log_weights[e] + messages.up[e, 1])
    after_one, after_zero = FLOOR, FLOOR
    for e in range(last - 1, first - 1, -1):
        weight = graph.log_weights[e]
        others_one = log_add(before[e - first, 0], after_one)
        others_zero = log_add(before[e - first, 1], after_zero)
        likely = log_add(one + log_add(weight, others_one), zero + others_zero)
        unlikely = log_add(one + others_one, zero + log_add(weight, others_zero))
        after_one = log_add(after_one, weight + messages.up[e, 0])
        after_zero = log_add(after_zero, weight + messages.up[e, 1])
        out = messages.down[e]
        out[0], out[1] = _blend(out, likely, unlikely, damping)


@jit()
def pass_down(graph: ProbeArrays, messages: Messages, damping: float, before: Floats) -> None:
    """Send likelihoods from the root, which is observed to be 1, down to the leaves."""
    for node in range(len(graph.is_sum) - 1, -1, -1):
        one, zero = 0.0, 0.0
        for k in range(messages.above_ptr[node], messages.above_ptr[node + 1]):
            one += messages.down[messages.above[k], 0]
            zero += messages.down[messages.above[k], 1]
        if node == len(graph.is_sum) - 1:
            one, zero = 0.0, FLOOR
        top = max(one, zero)
        one, zero = max(one - top, FLOOR), max(zero - top, FLOOR)
        if graph.is_sum[node]:
            _down_sum(node, one, zero, graph, messages, damping, before)
        else:
            _down_product(node, one, zero, graph, messages, damping)


@jit()
def tell_variables(graph: ProbeArrays, messages: Messages, belief: Floats) -> float:
    """Sum the leaves' messages about each state into beliefs; return the largest change, in nats.

    Beliefs are scaled to a maximum of 0 per variable; `belief` is working space of the same shape.
    """
    belief[:] = 0.0
    for leaf in range(len(graph.leaf_var)):
        base, told = graph.offsets[graph.leaf_var[leaf]], messages.told_ptr[leaf]
        one, zero = messages.leaf_down[leaf, 0], messages.leaf_down[leaf, 1]
        top = -np.inf
        for a in range(graph.n_states[graph.leaf_var[leaf]]):
            log_p = max(graph.log_tables[graph.leaf_start[leaf] + a], FLOOR)
            likely = log_add(one + log_p, zero + log_one_minus(log_p))
            messages.told[told + a] = likely
            top = max(top, likely)
        for a in range(graph.n_states[graph.leaf_var[leaf]]):
            messages.told[told + a] = max(messages.told[told + a] - top, FLOOR)
            belief[base + a] += messages.told[told + a]
    change = 0.0
    for v in range(len(graph.n_states)):
        top = -np.inf
        for i in range(graph.offsets[v], graph.offsets[v + 1]):
            top = max(top, belief[i])
        for i in range(graph.offsets[v], graph.offsets[v + 1]):
            change = max(change, abs(belief[i] - top - messages.belief[i]))
            messages.belief[i] = belief[i] - top
    return change
