"""Compiled walks that pick good assignments of a circuit: max-product, argmax-product, and message passing.

Points are float64 here (state positions, or values of real variables), so that one compilation serves every
domain. All values are natural logs. Messages are pairs of them, for the value 1 and the value 0 of a binary
variable; `FLOOR` replaces ln 0 there, so that leave-one-out sums are differences without infinities.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from certimap.circuits.kernels.arrays import ProbeArrays
from certimap.circuits.kernels.real import log_density, peak_in
from certimap.core.arrays import Flags, Floats, Ints, Ints32
from certimap.kernels.jit import jit, jit_part

BLOCK = 8  # candidates that one walk of a subcircuit evaluates together


class WalkArrays(NamedTuple):
    """Results of the walks: the peak of each leaf (place, ln of the value), and the pick of each node.

    `log_value` is ln of a node at its pick, `choice` the position of a sum's picked child, and
    `edge_log`, on the edges of sums, ln of the sum at the assignment of the edge's child. `group` holds the first
    sum with the same children, or the first product that is the same; `next_in_group` the next one, or -1.
    """

    peak_at: Floats
    peak_log: Floats
    log_value: Floats
    choice: Ints
    edge_log: Floats
    group: Ints32
    next_in_group: Ints32


class DecodeScratch(NamedTuple):
    """Working space of `argmax_upward`; `slot` is -1 everywhere between two walks."""

    points: Floats  # (BLOCK, n_variables)
    pair_log: Floats  # (most children of a sum, BLOCK)
    wanted: Flags  # (most children of a sum,)
    slot: Ints32  # (n_nodes,)
    order: Ints32  # (n_nodes,)
    values: Floats  # (n_nodes + 1, BLOCK); the last row is spare


@jit(inline="always")
def _mixed(hashed: np.int64, value: np.int64) -> np.int64:
    """Fold a 64-bit value into a hash (wrapping arithmetic on int64)."""
    hashed = (hashed ^ value) * np.int64(-0x61C8864680B583EB)
    return hashed ^ (hashed >> np.int64(29))


@jit()
def hash_nodes(
    is_sum: Flags, child_ptr: Ints, children: Ints32, weight_bits: Ints, leaf_ptr: Ints, leaf_words: Ints,
    identity: Ints, key: Ints,
) -> None:  # fmt: skip
    """Fill in hashes of nodes, children first, to find equal nodes.

    Equal nodes have equal `identity`. Sums over the same children, whatever the weights, have equal `key`; a
    product's key is its identity. `leaf_words` distinguishes leaves.
    """
    for node in range(len(is_sum)):
        hashed = np.int64(1) if is_sum[node] else np.int64(2)
        for leaf in range(leaf_ptr[node], leaf_ptr[node + 1]):
            hashed = _mixed(hashed, np.int64(leaf_words[leaf]))
        for edge in range(child_ptr[node], child_ptr[node + 1]):
            hashed = _mixed(hashed, np.int64(identity[children[edge]]))
        key[node] = hashed
        if is_sum[node]:
            for edge in range(child_ptr[node], child_ptr[node + 1]):
                hashed = _mixed(hashed, np.int64(weight_bits[edge]))
        identity[node] = hashed


@jit()
def leaf_log_density(size: Any, start: int, functions: Ints, log_tables: Floats, x: float) -> float:
    """Return ln of a leaf's probability of state `x`, or of its density at `x` if `size` is 0."""
    if size > 0:
        return log_tables[start + int(x)]
    return log_density(functions, log_tables, start, x)


@jit()
def leaf_peaks(nodes: ProbeArrays, kept: WalkArrays) -> None:
    """Find the maximum of each leaf: its first most probable state, or the peak of its density."""
    tables = nodes.log_tables
    for leaf in range(len(nodes.leaf_var)):
        start = nodes.leaf_start[leaf]
        size = nodes.n_states[nodes.leaf_var[leaf]]
        if size > 0:
            best = 0
            for state in range(1, size):
                if tables[start + state] > tables[start + best]:
                    best = state
            kept.peak_at[leaf] = best
        else:
            kept.peak_at[leaf] = peak_in(nodes.functions, tables, start, -np.inf, np.inf)
        kept.peak_log[leaf] = leaf_log_density(size, start, nodes.functions, tables, kept.peak_at[leaf])


@jit()
def _keep_product(node: int, nodes: ProbeArrays, kept: WalkArrays) -> None:
    total = 0.0
    for leaf in range(nodes.leaf_ptr[node], nodes.leaf_ptr[node + 1]):
        total += kept.peak_log[leaf]
    for edge in range(nodes.child_ptr[node], nodes.child_ptr[node + 1]):
        total += kept.log_value[nodes.children[edge]]
    kept.log_value[node] = total


@jit()
def _keep_best_edge(node: int, nodes: ProbeArrays, kept: WalkArrays) -> None:
    first = nodes.child_ptr[node]
    best = first
    for edge in range(first + 1, nodes.child_ptr[node + 1]):
        if kept.edge_log[edge] > kept.edge_log[best]:
            best = edge
    kept.choice[node] = best - first
    kept.log_value[node] = kept.edge_log[best]


@jit()
def max_upward(nodes: ProbeArrays, kept: WalkArrays) -> None:
    """Evaluate the circuit with every sum replaced by the largest of its weighted children (first of equals)."""
    for node in range(len(nodes.is_sum)):
        if not nodes.is_sum[node]:
            _keep_product(node, nodes, kept)
            continue
        for edge in range(nodes.child_ptr[node], nodes.child_ptr[node + 1]):
            kept.edge_log[edge] = nodes.log_weights[edge] + kept.log_value[nodes.children[edge]]
        _keep_best_edge(node, nodes, kept)


@jit()
def decode(root: int, nodes: ProbeArrays, kept: WalkArrays, stack: Ints32, point: Floats) -> None:
    """Follow the choices down from `root` and write the peaks of visited leaves into `point`.

    `stack` has n_nodes entries: scopes are disjoint, so no node is met twice.
    """
    stack[0] = root
    depth = 1
    while depth > 0:
        depth -= 1
        node = stack[depth]
        first = nodes.child_ptr[node]
        if nodes.is_sum[node]:
            stack[depth] = nodes.children[first + kept.choice[node]]
            depth += 1
            continue
        for leaf in range(nodes.leaf_ptr[node], nodes.leaf_ptr[node + 1]):
            point[nodes.leaf_var[leaf]] = kept.peak_at[leaf]
        for edge in range(first, nodes.child_ptr[node + 1]):
            stack[depth] = nodes.children[edge]
            depth += 1


@jit()
def _aligned_value(product: int, candidate: int, nodes: ProbeArrays, kept: WalkArrays, point: Floats) -> float:
    """Return ln of `product` at the assignment of `candidate`, or NaN if not known yet.

    It is known if every inner child of `product` has a sibling under `candidate` with the same children: that
    sibling's pick was then one of the candidates at which the child was evaluated.
    """
    if kept.group[product] == kept.group[candidate]:
        return kept.log_value[product]
    total = 0.0
    for edge in range(nodes.child_ptr[product], nodes.child_ptr[product + 1]):
        child = nodes.children[edge]
        twin = -1
        for other in range(nodes.child_ptr[candidate], nodes.child_ptr[candidate + 1]):
            if kept.group[nodes.children[other]] == kept.group[child]:
                twin = int(nodes.children[other])
                break
        if twin < 0:
            return np.nan
        if nodes.is_sum[child]:
            total += float(kept.edge_log[nodes.child_ptr[child] + kept.choice[twin]])
        else:
            total += float(kept.log_value[child])
    for leaf in range(nodes.leaf_ptr[product], nodes.leaf_ptr[product + 1]):
        v, start = nodes.leaf_var[leaf], nodes.leaf_start[leaf]
        x = float(point[v])
        total += leaf_log_density(nodes.n_states[v], start, nodes.functions, nodes.log_tables, x)
    return total


@jit()
def _list_below(first: int, n_children: int, nodes: ProbeArrays, scratch: DecodeScratch) -> int:
    """List the wanted children and all nodes below them in `order`, highest first; return their number.

    `slot` gives a node's index in the list; the caller resets it.
    """
    lowest, highest = len(scratch.slot), -1
    for j in range(n_children):
        if scratch.wanted[j]:
            child = nodes.children[first + j]
            scratch.slot[child] = 0
            lowest, highest = min(lowest, child), max(highest, child)
    count = 0
    node = highest
    while node >= lowest:
        if scratch.slot[node] >= 0:
            scratch.slot[node] = count
            scratch.order[count] = node
            count += 1
            for edge in range(nodes.child_ptr[node], nodes.child_ptr[node + 1]):
                child = nodes.children[edge]
                scratch.slot[child] = 0
                lowest = min(lowest, child)
        node -= 1
    return count


@jit()
def _evaluate_listed(count: int, width: int, nodes: ProbeArrays, scratch: DecodeScratch) -> None:
    """Write ln of each listed node at the first `width` points into its row of `values`."""
    peak = scratch.values[len(scratch.order)]
    for place in range(count - 1, -1, -1):
        node = scratch.order[place]
        first, last = nodes.child_ptr[node], nodes.child_ptr[node + 1]
        out = scratch.values[place]
        out[:] = 0.0
        if nodes.is_sum[node]:
            peak[:] = -np.inf
            for edge in range(first, last):
                below = scratch.values[scratch.slot[nodes.children[edge]]]
                for b in range(width):
                    peak[b] = max(peak[b], nodes.log_weights[edge] + below[b])
            for edge in range(first, last):
                below = scratch.values[scratch.slot[nodes.children[edge]]]
                for b in range(width):
                    if peak[b] > -np.inf:
                        out[b] += math.exp(nodes.log_weights[edge] + below[b] - peak[b])
            for b in range(width):
                out[b] = peak[b] + math.log(out[b]) if peak[b] > -np.inf else -np.inf
            continue
        for leaf in range(nodes.leaf_ptr[node], nodes.leaf_ptr[node + 1]):
            size, start = nodes.n_states[nodes.leaf_var[leaf]], nodes.leaf_start[leaf]
            for b in range(width):
                x = scratch.points[b, nodes.leaf_var[leaf]]
                out[b] += leaf_log_density(size, start, nodes.functions, nodes.log_tables, x)
        for edge in range(first, last):
            below = scratch.values[scratch.slot[nodes.children[edge]]]
            for b in range(width):
                out[b] += below[b]


@jit()
def _score_sum(node: int, start: int, width: int, nodes: ProbeArrays, kept: WalkArrays, pair_log: Floats) -> None:
    """Write ln of a sum at the candidates start, ..., start + width - 1 on the edges to them."""
    first = nodes.child_ptr[node]
    n_children = nodes.child_ptr[node + 1] - first
    for b in range(width):
        peak = -np.inf
        for j in range(n_children):
            peak = max(peak, nodes.log_weights[first + j] + pair_log[j, b])
        total = 0.0
        if peak > -np.inf:
            for j in range(n_children):
                total += math.exp(nodes.log_weights[first + j] + pair_log[j, b] - peak)
        kept.edge_log[first + start + b] = peak + math.log(total) if peak > -np.inf else -np.inf


@jit()
def evaluate_wanted(node: int, width: int, nodes: ProbeArrays, scratch: DecodeScratch) -> None:
    """Fill the wanted rows of `pair_log`, ln of children at the first `width` points."""
    first = nodes.child_ptr[node]
    n_children = nodes.child_ptr[node + 1] - first
    count = _list_below(first, n_children, nodes, scratch)
    _evaluate_listed(count, width, nodes, scratch)
    for j in range(n_children):
        if scratch.wanted[j]:
            row = scratch.slot[nodes.children[first + j]]
            for b in range(width):
                scratch.pair_log[j, b] = scratch.values[row, b]
    for place in range(count):
        scratch.slot[scratch.order[place]] = -1


@jit()
def _evaluate_candidates(
    node: int, start: int, width: int, nodes: ProbeArrays, kept: WalkArrays, scratch: DecodeScratch
) -> None:
    """Fill `pair_log[j, b]`: ln of child j at the candidate of child start + b."""
    first = nodes.child_ptr[node]
    n_children = nodes.child_ptr[node + 1] - first
    scratch.wanted[:] = False
    unknown = False
    for b in range(width):
        candidate = int(nodes.children[first + start + b])
        decode(candidate, nodes, kept, scratch.order, scratch.points[b])
        for j in range(n_children):
            value = _aligned_value(int(nodes.children[first + j]), candidate, nodes, kept, scratch.points[b])
            scratch.pair_log[j, b] = value
            if math.isnan(value):
                scratch.wanted[j] = True
                unknown = True
    if unknown:
        evaluate_wanted(node, width, nodes, scratch)


@jit()
def argmax_upward(nodes: ProbeArrays, kept: WalkArrays, scratch: DecodeScratch) -> None:
    """Let every sum pick, among its children's assignments, the one at which its own value is largest.

    The candidates of all sums of a group are evaluated together, unless `_aligned_value` knows the value. A
    circuit with a fixed tree of regions costs one visit per edge and candidate; a tree its depth times edges times
    children.
    """
    for node in range(len(nodes.is_sum)):
        if not nodes.is_sum[node]:
            _keep_product(node, nodes, kept)
            continue
        if kept.group[node] != node:  # done with the first of its group
            continue
        n_children = nodes.child_ptr[node + 1] - nodes.child_ptr[node]
        for start in range(0, n_children, BLOCK):
            width = min(BLOCK, n_children - start)
            _evaluate_candidates(node, start, width, nodes, kept, scratch)
            member = node
            while member >= 0:
                _score_sum(member, start, width, nodes, kept, scratch.pair_log)
                member = kept.next_in_group[member]
        member = node
        while member >= 0:
            _keep_best_edge(member, nodes, kept)
            member = kept.next_in_group[member]


@jit()
def flow_downward(nodes: ProbeArrays, log_flow: Floats) -> None:
    """Fill in ln of the probability that a draw from the root passes through each node.

    `log_flow` holds 0 at the root and -inf elsewhere on entry.
    """
    for node in range(len(nodes.is_sum) - 1, -1, -1):
        if log_flow[node] == -np.inf:
            continue
        for edge in range(nodes.child_ptr[node], nodes.child_ptr[node + 1]):
            child = nodes.children[edge]
            value = log_flow[node] + nodes.log_weights[edge]
            above, below = max(log_flow[child], value), min(log_flow[child], value)
            if above > -np.inf:
                log_flow[child] = above + math.log1p(math.exp(below - above))


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
