"""Kernels that rewrite a conditioned circuit: fold constants, merge univariate sums, flatten, lay out."""

from __future__ import annotations

import math

import numpy as np

from certimap.circuits.kernels.arrays import CircuitArrays, LeafLayout, NewNodes, Scalar, Workspace
from certimap.core.arrays import Floats, Ints, Ints32
from certimap.kernels.jit import jit

_NEG_INF = -math.inf
LEAF, PRODUCT, SUM = 0, 1, 2  # kinds of the new nodes


@jit()
def _gather(
    circuit: CircuitArrays, node: int, log_mass: Floats, alias: Ints32, seen_at: Ints32, new: NewNodes,
    used: Scalar,
) -> int:  # fmt: skip
    """Append a node's members to the pool; equal members of a sum become one. Return the pool's new length."""
    is_sum, begin = circuit.kind[node] == 3, used
    for edge in range(circuit.child_ptr[node], circuit.child_ptr[node + 1]):
        child = circuit.children[edge]
        if circuit.log_weights[edge] == _NEG_INF or alias[child] < 0:
            continue
        member = alias[child]
        weight = circuit.log_weights[edge] + log_mass[child] - log_mass[node] if is_sum else 0.0
        at = seen_at[member]
        if is_sum and begin <= at < used and new.pool_child[at] == member:
            low, high = min(weight, new.pool_weight[at]), max(weight, new.pool_weight[at])
            new.pool_weight[at] = high + math.log1p(math.exp(low - high))
            new.n_parents[member] -= 1
            continue
        seen_at[member] = used
        new.pool_child[used] = member
        new.pool_weight[used] = weight
        used += 1
    return used


@jit()
def fold(
    circuit: CircuitArrays, log_mass: Floats, parents: Ints32, single: Ints32, n_states: Ints, position: Ints32,
    leaf_start: Ints32, n_table: Scalar, log_tables: Floats, seen_at: Ints32, new: NewNodes, alias: Ints32,
) -> int:  # fmt: skip
    """Rewrite the live part of a circuit as normalised nodes; return their number.

    Constants move into the weights; a product or sum of one node is that node (`alias`); a sum over one
    categorical variable becomes a leaf whose vector is appended to `log_tables` at `n_table`. Products inside
    products and sums inside sums without other parents are marked for `lay_out` to inline; a sum only into a sum
    that decides the same variable, or if neither decides one. `leaf_start` is the start of each queried leaf's
    vector, in their order; `position` (n_vars,) marks query variables; `alias` holds the variables that nodes
    decide at first. `seen_at` finds equal members of a sum. `parents` and `single` may be the memory of
    `new.n_parents` and `new.variable`: no new node has a higher number than its source.
    """
    n_new, used, leaf = 0, np.int64(0), -1  # no literal: one signature of the helpers is enough
    new.ptr[0] = 0
    for node in range(circuit.kind.shape[0]):
        decided, alias[node] = alias[node], -1
        if circuit.kind[node] < 2 and position[circuit.leaf_var[node]] >= 0:
            leaf += 1
        if parents[node] == 0 or single[node] == -1:
            continue
        begin, kind = used, circuit.kind[node]
        used = _gather(circuit, node, log_mass, alias, seen_at, new, used)
        if kind >= 2 and used == begin + 1:
            member = new.pool_child[begin]
            alias[node] = member
            new.n_parents[member] += parents[node] - 1
            used = begin
            continue
        alias[node] = n_new
        variable = single[node]
        new.n_parents[n_new], new.variable[n_new], new.inlined[n_new] = parents[node], variable, False
        if kind < 2:
            new.kind[n_new] = LEAF
            new.leaf_start[n_new] = leaf_start[leaf]
        elif kind == 3 and variable >= 0 and n_states[variable] > 0:
            new.kind[n_new] = LEAF
            new.leaf_start[n_new] = n_table
            _mix(new, begin, used, n_states[variable], n_table, log_tables)
            n_table += n_states[variable]
            used = begin
        else:
            new.kind[n_new] = SUM if kind == 3 else PRODUCT
            new.variable[n_new] = decided if kind == 3 else -1
            for at in range(begin, used):
                member = new.pool_child[at]
                alike = new.kind[member] == new.kind[n_new] and new.variable[member] == new.variable[n_new]
                new.inlined[member] = alike and new.n_parents[member] == 1
        n_new += 1
        new.ptr[n_new] = used
    return n_new


@jit()
def _mix(new: NewNodes, begin: Scalar, end: Scalar, size: Scalar, n_table: int, log_tables: Floats) -> None:
    """Write the mixture of some leaves over one variable at `n_table`."""
    for state in range(size):
        largest = _NEG_INF
        for at in range(begin, end):
            largest = max(largest, new.pool_weight[at] + log_tables[new.leaf_start[new.pool_child[at]] + state])
        result = _NEG_INF
        if largest > _NEG_INF:
            total = 0.0
            for at in range(begin, end):
                total += math.exp(
                    new.pool_weight[at] + log_tables[new.leaf_start[new.pool_child[at]] + state] - largest
                )
            result = largest + math.log(total)
        log_tables[n_table + state] = result


@jit()
def _expand(new: NewNodes, node: int, work: Workspace, used: Scalar) -> int:
    """Append a node's members to the flat pool, dissolving inlined ones; return the pool's new length."""
    stack, stack_weight = work.inner_stack, work.inner_weight
    flat_child, flat_weight = work.flat_child, work.flat_weight
    depth = 1
    stack[0] = node
    stack_weight[0] = 0.0
    while depth > 0:
        depth -= 1
        owner = stack[depth]
        weight = stack_weight[depth]
        for at in range(new.ptr[owner], new.ptr[owner + 1]):
            member = new.pool_child[at]
            if new.inlined[member]:
                stack[depth] = member
                stack_weight[depth] = weight + new.pool_weight[at]
                depth += 1
            else:
                flat_child[used] = member
                flat_weight[used] = weight + new.pool_weight[at]
                used += 1
    return used


@jit()
def _close_node(out: LeafLayout, is_sum: Scalar, decides: Scalar, n_edges: Scalar, n_leaves: Scalar) -> None:
    n_out = out.sizes[0]
    out.is_sum[n_out], out.decides[n_out] = is_sum, decides
    out.child_ptr[n_out + 1], out.leaf_ptr[n_out + 1] = n_edges, n_leaves
    out.sizes[0], out.sizes[1], out.sizes[2] = n_out + 1, n_edges, n_leaves


@jit()
def _write_node(new: NewNodes, node: int, begin: Scalar, end: Scalar, work: Workspace, out: LeafLayout) -> None:
    """Write one node after its members; a leaf or a sum below a sum gets its own product."""
    flat_child, flat_weight, final = work.flat_child, work.flat_weight, work.final
    is_sum = new.kind[node] == SUM
    decides, wrapper_decides, wrapper_is_sum = new.variable[node], np.int32(-1), new.kind[node] == LEAF
    n_edges, n_leaves = out.sizes[1], out.sizes[2]
    if is_sum:
        for at in range(begin, end):
            member = flat_child[at]
            if new.kind[member] == PRODUCT:
                continue
            if new.kind[member] == LEAF:
                out.leaf_var[n_leaves], out.leaf_start[n_leaves] = new.variable[member], new.leaf_start[member]
                n_leaves += 1
            else:
                out.children[n_edges], out.log_weights[n_edges] = final[member], 0.0
                n_edges += 1
            flat_child[at] = -1 - out.sizes[0]
            _close_node(out, wrapper_is_sum, wrapper_decides, n_edges, n_leaves)
    for at in range(begin, end):
        member = flat_child[at]
        if member >= 0 and new.kind[member] == LEAF:
            out.leaf_var[n_leaves], out.leaf_start[n_leaves] = new.variable[member], new.leaf_start[member]
            n_leaves += 1
        else:
            out.children[n_edges] = final[member] if member >= 0 else -1 - member
            out.log_weights[n_edges] = flat_weight[at] if is_sum else 0.0
            n_edges += 1
    final[node] = out.sizes[0]
    _close_node(out, is_sum, decides, n_edges, n_leaves)


@jit()
def lay_out(root: int, new: NewNodes, work: Workspace, out: LeafLayout) -> None:
    """Write the nodes reachable from the root in depth-first postorder, leaves folded into products."""
    stack, cursor, final = work.stack, work.cursor, work.final
    flat_begin, flat_end, flat_child = work.flat_begin, work.flat_end, work.flat_child
    used = np.int64(0)
    for k in range(3):
        out.sizes[k] = 0
    out.child_ptr[0], out.leaf_ptr[0] = 0, 0
    if new.kind[root] == LEAF:  # the whole circuit is one leaf
        out.leaf_var[0], out.leaf_start[0] = new.variable[root], new.leaf_start[root]
        _close_node(out, new.kind[root] == SUM, np.int32(-1), out.sizes[1], out.sizes[2] + 1)
        return
    depth = 1
    stack[0] = root
    cursor[0] = -1
    while depth > 0:
        node = stack[depth - 1]
        if cursor[depth - 1] < 0:
            flat_begin[depth - 1] = used
            used = _expand(new, node, work, used)
            flat_end[depth - 1] = used
            cursor[depth - 1] = flat_begin[depth - 1]
        at = cursor[depth - 1]
        if at == flat_end[depth - 1]:
            depth -= 1
            _write_node(new, node, flat_begin[depth], flat_end[depth], work, out)
            used = np.int64(flat_begin[depth])
            continue
        cursor[depth - 1] = at + 1
        member = flat_child[at]
        if new.kind[member] != LEAF and final[member] < 0:
            stack[depth] = member
            cursor[depth] = -1
            depth += 1


@jit()
def compact_tables(leaf_var: Ints32, leaf_start: Ints, sizes: Ints, place: Ints32, log_tables: Floats) -> int:
    """Compact the leaves' vectors, in place and in order; return the number of entries.

    `sizes` (n_vars,) are the vectors' sizes; `place` (as long as `log_tables`) holds zeros at first.
    """
    for leaf in range(leaf_var.shape[0]):
        place[leaf_start[leaf]] = sizes[leaf_var[leaf]]
    used = 0
    for start in range(log_tables.shape[0]):
        size = place[start]
        if size > 0:
            place[start] = used
            for k in range(size):
                log_tables[used + k] = log_tables[start + k]
            used += size
    for leaf in range(leaf_var.shape[0]):
        leaf_start[leaf] = place[leaf_start[leaf]]
    return used
