"""Kernels that rewrite a conditioned circuit: fold constants, merge univariate sums, flatten, lay out."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from certimap.engine._kernels.jit import jit

_NEG_INF = -math.inf
LEAF, PRODUCT, SUM = 0, 1, 2  # kinds of the new nodes


@jit()
def fold(
    kind: NDArray[np.int8],
    child_ptr: NDArray[np.int64],
    children: NDArray[np.int64],
    log_weights: NDArray[np.float64],
    log_mass: NDArray[np.float64],
    parents: NDArray[np.int64],
    single: NDArray[np.int32],
    n_states: NDArray[np.int64],
    leaf_start: NDArray[np.int64],
    old_decides: NDArray[np.int32],
    log_tables: NDArray[np.float64],
    n_table: int,
    new_kind: NDArray[np.int8],
    new_ptr: NDArray[np.int64],
    new_var: NDArray[np.int32],
    new_start: NDArray[np.int64],
    new_decides: NDArray[np.int32],
    inlined: NDArray[np.bool_],
    pool_child: NDArray[np.int64],
    pool_weight: NDArray[np.float64],
    alias: NDArray[np.int64],
) -> int:
    """Rewrite the live part of a circuit as normalised nodes; return how many there are.

    Constants disappear into the weights; a product or sum of one thing is that thing (`alias`); a
    sum over one categorical variable becomes a leaf whose vector is appended to `log_tables` at
    `n_table`. New node i has the members `pool_child[new_ptr[i]:new_ptr[i + 1]]`. `inlined` marks
    products inside products and sums inside sums that have no other parent: `lay_out` dissolves them.
    """
    n_new = 0
    used = 0
    new_parents = np.zeros(new_kind.shape[0], np.int64)
    seen_by = np.full(new_kind.shape[0], -1, np.int64)
    seen_at = np.empty(new_kind.shape[0], np.int64)
    new_ptr[0] = 0
    for node in range(kind.shape[0]):
        alias[node] = -1
        if parents[node] == 0 or single[node] == -1:
            continue
        begin = used
        is_sum = kind[node] == 3
        for edge in range(child_ptr[node], child_ptr[node + 1]):
            child = children[edge]
            if log_weights[edge] == _NEG_INF or parents[child] == 0 or alias[child] < 0:
                continue
            member = alias[child]
            weight = log_weights[edge] + log_mass[child] - log_mass[node] if is_sum else 0.0
            if is_sum and seen_by[member] == node:
                at = seen_at[member]
                low, high = min(weight, pool_weight[at]), max(weight, pool_weight[at])
                pool_weight[at] = high + math.log1p(math.exp(low - high))
                new_parents[member] -= 1
                continue
            seen_by[member] = node
            seen_at[member] = used
            pool_child[used] = member
            pool_weight[used] = weight
            used += 1
        if kind[node] >= 2 and used == begin + 1:
            member = pool_child[begin]
            alias[node] = member
            new_parents[member] += parents[node] - 1
            used = begin
            continue
        alias[node] = n_new
        new_parents[n_new] = parents[node]
        new_decides[n_new] = -1
        inlined[n_new] = False
        if kind[node] < 2:
            new_kind[n_new] = LEAF
            new_var[n_new] = single[node]
            new_start[n_new] = leaf_start[node]
        elif is_sum and single[node] >= 0 and n_states[single[node]] > 0:
            new_kind[n_new] = LEAF
            new_var[n_new] = single[node]
            new_start[n_new] = n_table
            _mix(pool_child, pool_weight, begin, used, new_start, n_states[single[node]], n_table, log_tables)
            n_table += n_states[single[node]]
            used = begin
        else:
            new_kind[n_new] = SUM if is_sum else PRODUCT
            new_decides[n_new] = old_decides[node] if is_sum else -1
            for at in range(begin, used):
                member = pool_child[at]
                if (
                    new_kind[member] == new_kind[n_new]
                    and new_parents[member] == 1
                    and new_decides[member] == new_decides[n_new]
                ):
                    inlined[member] = True
        n_new += 1
        new_ptr[n_new] = used
    return n_new


@jit()
def _mix(
    pool_child: NDArray[np.int64],
    pool_weight: NDArray[np.float64],
    begin: int,
    end: int,
    new_start: NDArray[np.int64],
    size: int,
    n_table: int,
    log_tables: NDArray[np.float64],
) -> None:
    """Write the mixture of some leaves over one variable at `n_table`."""
    for state in range(size):
        largest = _NEG_INF
        for at in range(begin, end):
            largest = max(largest, pool_weight[at] + log_tables[new_start[pool_child[at]] + state])
        total = 0.0
        if largest > _NEG_INF:
            for at in range(begin, end):
                total += math.exp(pool_weight[at] + log_tables[new_start[pool_child[at]] + state] - largest)
            total = largest + math.log(total)
        else:
            total = _NEG_INF
        log_tables[n_table + state] = total


@jit()
def _expand(
    node: int,
    new_ptr: NDArray[np.int64],
    inlined: NDArray[np.bool_],
    pool_child: NDArray[np.int64],
    pool_weight: NDArray[np.float64],
    stack: NDArray[np.int64],
    stack_weight: NDArray[np.float64],
    used: int,
    flat_child: NDArray[np.int64],
    flat_weight: NDArray[np.float64],
) -> int:
    """Append a node's members to the flat pool, dissolving inlined ones; return the pool's new length."""
    depth = 1
    stack[0] = node
    stack_weight[0] = 0.0
    while depth > 0:
        depth -= 1
        owner = stack[depth]
        weight = stack_weight[depth]
        for at in range(new_ptr[owner], new_ptr[owner + 1]):
            member = pool_child[at]
            if inlined[member]:
                stack[depth] = member
                stack_weight[depth] = weight + pool_weight[at]
                depth += 1
            else:
                flat_child[used] = member
                flat_weight[used] = weight + pool_weight[at]
                used += 1
    return used


@jit()
def lay_out(
    root: int,
    new_kind: NDArray[np.int8],
    new_ptr: NDArray[np.int64],
    new_var: NDArray[np.int32],
    new_start: NDArray[np.int64],
    new_decides: NDArray[np.int32],
    inlined: NDArray[np.bool_],
    pool_child: NDArray[np.int64],
    pool_weight: NDArray[np.float64],
    is_sum: NDArray[np.bool_],
    out_ptr: NDArray[np.int64],
    out_child: NDArray[np.int32],
    out_weight: NDArray[np.float64],
    leaf_ptr: NDArray[np.int64],
    leaf_var: NDArray[np.int32],
    leaf_start: NDArray[np.int64],
    decides: NDArray[np.int32],
    sizes: NDArray[np.int64],
) -> None:
    """Write the nodes that the root reaches in depth-first postorder, leaves folded into products.

    A leaf or a sum below a sum gets a product of its own. `sizes` returns the numbers of nodes, inner
    edges and leaves.
    """
    n_new = root + 1
    stack = np.empty(n_new + 1, np.int64)
    cursor = np.empty(n_new + 1, np.int64)
    inner_stack = np.empty(n_new + 1, np.int64)
    inner_weight = np.empty(n_new + 1, np.float64)
    flat_begin = np.zeros(n_new, np.int64)
    flat_end = np.zeros(n_new, np.int64)
    flat_child = np.empty(pool_child.shape[0], np.int64)
    flat_weight = np.empty(pool_child.shape[0], np.float64)
    final = np.full(n_new, -1, np.int64)
    used = 0
    n_out, n_edges, n_leaves = 0, 0, 0
    out_ptr[0] = 0
    leaf_ptr[0] = 0
    if new_kind[root] == LEAF:  # the whole circuit is one leaf
        leaf_var[0], leaf_start[0] = new_var[root], new_start[root]
        is_sum[0], decides[0] = False, -1
        out_ptr[1], leaf_ptr[1] = 0, 1
        sizes[0], sizes[1], sizes[2] = 1, 0, 1
        return
    depth = 1
    stack[0] = root
    cursor[0] = -1
    while depth > 0:
        node = stack[depth - 1]
        if cursor[depth - 1] < 0:
            flat_begin[node] = used
            used = _expand(
                node,
                new_ptr,
                inlined,
                pool_child,
                pool_weight,
                inner_stack,
                inner_weight,
                used,
                flat_child,
                flat_weight,
            )
            flat_end[node] = used
            cursor[depth - 1] = flat_begin[node]
        at = cursor[depth - 1]
        if at < flat_end[node]:
            cursor[depth - 1] = at + 1
            member = flat_child[at]
            if new_kind[member] != LEAF and final[member] < 0:
                stack[depth] = member
                cursor[depth] = -1
                depth += 1
            continue
        depth -= 1
        node_is_sum = new_kind[node] == SUM
        if node_is_sum:  # wrap what is no product
            for at in range(flat_begin[node], flat_end[node]):
                member = flat_child[at]
                if new_kind[member] == PRODUCT:
                    continue
                if new_kind[member] == LEAF:
                    leaf_var[n_leaves], leaf_start[n_leaves] = new_var[member], new_start[member]
                    n_leaves += 1
                else:
                    out_child[n_edges], out_weight[n_edges] = final[member], 0.0
                    n_edges += 1
                is_sum[n_out], decides[n_out] = False, -1
                flat_child[at] = -1 - n_out
                n_out += 1
                out_ptr[n_out], leaf_ptr[n_out] = n_edges, n_leaves
        for at in range(flat_begin[node], flat_end[node]):
            member = flat_child[at]
            if member >= 0 and new_kind[member] == LEAF:
                leaf_var[n_leaves], leaf_start[n_leaves] = new_var[member], new_start[member]
                n_leaves += 1
            else:
                out_child[n_edges] = final[member] if member >= 0 else -1 - member
                out_weight[n_edges] = flat_weight[at] if node_is_sum else 0.0
                n_edges += 1
        is_sum[n_out], decides[n_out] = node_is_sum, new_decides[node]
        final[node] = n_out
        n_out += 1
        out_ptr[n_out], leaf_ptr[n_out] = n_edges, n_leaves
    sizes[0], sizes[1], sizes[2] = n_out, n_edges, n_leaves
