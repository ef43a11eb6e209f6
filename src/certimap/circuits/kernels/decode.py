"""Compiled walks that pick one assignment of a circuit: max-product and argmax-product.

Points are float64 here (state positions, or values of real variables), so that one compilation serves
every domain. All values are natural logs, so nothing underflows.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from certimap.circuits.kernels.arrays import ProbeArrays
from certimap.circuits.kernels.real import log_density, peak_in
from certimap.core.arrays import Flags, Floats, Ints, Ints32
from certimap.kernels.jit import jit

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
        x, size, start = (
            float(point[nodes.leaf_var[leaf]]),
            nodes.n_states[nodes.leaf_var[leaf]],
            nodes.leaf_start[leaf],
        )
        total += leaf_log_density(size, start, nodes.functions, nodes.log_tables, x)
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

    The candidates of all sums of a group are evaluated together, unless `_aligned_value` already knows the
    value. A circuit with a fixed tree of regions costs one visit per edge and candidate; a tree costs its
    depth times its edges times the children of a sum.
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
