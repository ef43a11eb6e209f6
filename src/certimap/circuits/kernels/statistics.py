"""Passes over a plan for the evaluator's data on rounding and underflow."""

from __future__ import annotations

import numpy as np

from certimap.circuits.kernels.arrays import ProbeArrays
from certimap.core.arrays import Flags, Floats, Ints, Ints8, Ints32
from certimap.core.rounding import ALL_SUMS, ENTROPY, FLOWS, NARROW_BITS, STEPS, SUMS, UNIT_BITS
from certimap.kernels.jit import jit

LEAST_NARROW = 2.0**-NARROW_BITS  # least positive entry of a narrow leaf


@jit()
def find_floors(
    is_sum: Flags, child_ptr: Ints, children: Ints32, weight_floors: Floats, leaf_ptr: Ints, leaf_floors: Floats,
    floors: Floats, settles: Flags,
) -> None:  # fmt: skip
    """Fill in a lower bound on log2 of each node's positive values, from floors of weights and (summed) leaves.

    No floor is below -256, since a node whose value may be smaller is settled; `settles` marks such sums.
    """
    for node in range(is_sum.shape[0]):
        floor = 0.0 if is_sum[node] else leaf_floors[leaf_ptr[node + 1]] - leaf_floors[leaf_ptr[node]]
        for edge in range(child_ptr[node], child_ptr[node + 1]):
            below = floors[children[edge]]
            floor = min(floor, weight_floors[edge] + below) if is_sum[node] else floor + below
        settles[node] = is_sum[node] and floor < -UNIT_BITS
        floors[node] = max(floor, -1.0 * UNIT_BITS)


@jit()
def rank_leaves(
    leaf_ptr: Ints, leaf_var: Ints32, leaf_start: Ints, n_states: Ints, by_variable: bool, mantissas: Floats,
    ranks: Ints8, least: Floats, ends: Ints,
) -> bool:  # fmt: skip
    """Rank leaves for products: 0 narrow binary, 1 other narrow, 2 and 3 wide, 4 real ones; whether in order.

    Fill in the least positive entry of each (at most 1), and the ends of ranks 0, 1 and 3, shape (3, n_nodes).
    """
    in_order = True
    for node in range(ends.shape[1]):
        ends[:, node] = leaf_ptr[node]
        for leaf in range(leaf_ptr[node], leaf_ptr[node + 1]):
            size, start, low = n_states[leaf_var[leaf]], leaf_start[leaf], 1.0
            for at in range(start, start + size):
                low = mantissas[at] if 0.0 < mantissas[at] < low else low
            rank = 4 if size == 0 else (2 if low < LEAST_NARROW else 0) + (size != 2)
            ranks[leaf], least[leaf] = rank, low
            for k, most in enumerate((0, 1, 3)):
                ends[k, node] += rank <= most
            if leaf > leaf_ptr[node] and ranks[leaf - 1] >= rank:
                is_later = by_variable and leaf_var[leaf - 1] > leaf_var[leaf]
                in_order = in_order and ranks[leaf - 1] == rank and not is_later
    return in_order


@jit()
def most_roundings(
    is_sum: Flags, child_ptr: Ints, children: Ints32, leaf_ptr: Ints, leaf_var: Ints32, offsets: Ints
) -> float:  # fmt: skip
    """Return the largest number of roundings between the parameters and the root's value."""
    n_roundings = np.empty(is_sum.shape[0])
    for node in range(is_sum.shape[0]):
        start, stop = child_ptr[node], child_ptr[node + 1]
        roundings = 0.0
        if is_sum[node]:
            for edge in range(start, stop):
                roundings = max(roundings, n_roundings[children[edge]])
            roundings += 1.0 + (stop - start)
        else:
            for leaf in range(leaf_ptr[node], leaf_ptr[node + 1]):
                variable = leaf_var[leaf]
                roundings += 2.0 + offsets[variable + 1] - offsets[variable]
            for edge in range(start, stop):
                roundings += 1.0 + n_roundings[children[edge]]
        n_roundings[node] = roundings
    return n_roundings[-1]


@jit()
def count_roundings(plan: ProbeArrays) -> Floats:
    """Count the roundings behind a box search's logs: the five numbers of `rounding.py`."""
    is_sum, child_ptr, children, in_logs = plan.is_sum, plan.child_ptr, plan.children, plan.in_logs
    leaf_ptr, leaf_var, n_states = plan.leaf_ptr, plan.leaf_var, plan.n_states
    n_nodes = is_sum.shape[0]
    at = np.zeros((n_nodes, 4))
    for node in range(n_nodes):
        begin, past = child_ptr[node], child_ptr[node + 1]
        for edge in range(begin, past):
            child = children[edge]
            for k in range(4):
                added = k >= ALL_SUMS or is_sum[node]
                at[node, k] = max(at[node, k], at[child, k]) if added else at[node, k] + at[child, k]
        if is_sum[node]:
            at[node, STEPS] += 8.0 + (past - begin)
            at[node, ENTROPY] += np.log(max(past - begin, 1))
            at[node, ALL_SUMS] += 4.0
            at[node, SUMS] += 4.0
            continue
        n_linear, n_logs = 0, 0
        for leaf in range(leaf_ptr[node], leaf_ptr[node + 1]):
            size = n_states[leaf_var[leaf]]
            at[node, STEPS] += 4.0 + size if size > 0 else 64.0
            if in_logs[leaf]:
                n_logs += 1
                at[node, ENTROPY] += np.log(max(size, 1))
            else:
                n_linear += 1
        at[node, STEPS] += 4.0
        at[node, SUMS] += 2.0 + 3.0 * n_logs + (past - begin)
        at[node, ALL_SUMS] += 2.0 + 3.0 * n_logs + (past - begin) + n_linear // 3
    flows = np.zeros(n_nodes)  # upper bound on roundings of the flow from the root to a node
    n_parents = np.zeros(n_nodes)
    for child in children:
        n_parents[child] += 1.0
    occurrences = np.zeros(n_states.shape[0])
    deepest = 0.0
    for node in range(n_nodes - 1, -1, -1):
        flows[node] += 6.0 + n_parents[node]
        deepest = max(deepest, flows[node])
        for edge in range(child_ptr[node], child_ptr[node + 1]):
            flows[children[edge]] = max(flows[children[edge]], flows[node])
        for leaf in range(leaf_ptr[node], leaf_ptr[node + 1]):
            occurrences[leaf_var[leaf]] += 1.0
    out = np.empty(5)
    for k in range(4):
        out[k] = at[n_nodes - 1, k]
    out[FLOWS] = deepest + np.max(occurrences) + 8.0
    return out
