"""The downward pass: what the root becomes when one variable is set to one state, for all at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from certimap.engine._kernels.evaluate import leaf_values
from certimap.engine._kernels.jit import jit


@jit(fastmath={"contract"})
def _spread(
    is_top: bool,
    size: int,
    start: int,
    column: int,
    tables: NDArray[np.float64],
    context: NDArray[np.float64],
    outside: NDArray[np.float64],
    total: NDArray[np.float64],
    largest: NDArray[np.float64],
) -> None:
    """Credit a leaf's variable: each of its `size` states gets its probability times the leaf's context."""
    width = context.shape[0]
    for state in range(size):
        probability = tables[start + state]
        if is_top:
            row = largest[column + state]
            for b in range(width):
                row[b] = max(row[b], probability * (context[b] * outside[b]))
        else:
            row = total[column + state]
            for b in range(width):
                row[b] += probability * (context[b] * outside[b])


@jit(fastmath={"contract"})
def downward(
    mode: int,
    is_sum: NDArray[np.bool_],
    child_ptr: NDArray[np.int64],
    children: NDArray[np.int32],
    weights: NDArray[np.float64],
    leaf_ptr: NDArray[np.int64],
    leaf_var: NDArray[np.int32],
    leaf_start: NDArray[np.int64],
    tables: NDArray[np.float64],
    offsets: NDArray[np.int64],
    is_top: NDArray[np.bool_],
    inputs: NDArray[np.float64],
    values: NDArray[np.float64],
    context: NDArray[np.float64],
    members: NDArray[np.float64],
    prefix: NDArray[np.float64],
    total: NDArray[np.float64],
    largest: NDArray[np.float64],
) -> None:
    """Fill `total` and `largest`, both (total_states, width); the answer is the larger of the two.

    A node's context is what its value is multiplied by on the way to the root. Inside a product it is
    the product of the other members, taken from prefixes and suffixes, so that zeros need no division.
    `is_top` marks nodes all of whose ancestors are products and deciding sums: there the largest
    occurrence of a leaf counts. Everywhere else occurrences add up, which is exact for masses, and for
    bounds errs upward. A deciding sum gives every child its weight, not the largest one alone.
    """
    width = context.shape[1]
    n_nodes = is_sum.shape[0]
    context[:] = 0.0
    context[n_nodes - 1] = 1.0
    total[:] = 0.0
    largest[:] = 0.0
    for node in range(n_nodes - 1, -1, -1):
        mine = context[node]
        if is_sum[node]:
            for edge in range(child_ptr[node], child_ptr[node + 1]):
                child = children[edge]
                theirs, weight = context[child], weights[edge]
                if is_top[child]:
                    for b in range(width):
                        theirs[b] = max(theirs[b], weight * mine[b])
                else:
                    for b in range(width):
                        theirs[b] += weight * mine[b]
            continue
        n_leaves = leaf_ptr[node + 1] - leaf_ptr[node]
        n_members = n_leaves + child_ptr[node + 1] - child_ptr[node]
        for b in range(width):
            prefix[0, b] = mine[b]
        for k in range(n_members):
            if k < n_leaves:
                leaf = leaf_ptr[node] + k
                leaf_values(mode, leaf_var[leaf], leaf_start[leaf], offsets, tables, inputs, members[k])
                value = members[k]
            else:
                value = values[children[child_ptr[node] + k - n_leaves]]
            before, after = prefix[k], prefix[k + 1]
            for b in range(width):
                after[b] = before[b] * value[b]
        suffix = prefix[n_members]  # its own value is not needed any more
        for b in range(width):
            suffix[b] = 1.0
        for k in range(n_members - 1, -1, -1):
            before = prefix[k]
            if k < n_leaves:
                leaf = leaf_ptr[node] + k
                column = offsets[leaf_var[leaf]]
                size = offsets[leaf_var[leaf] + 1] - column
                _spread(is_top[node], size, leaf_start[leaf], column, tables, before, suffix, total, largest)
                value = members[k]
            else:
                child = children[child_ptr[node] + k - n_leaves]
                theirs = context[child]
                if is_top[child]:
                    for b in range(width):
                        theirs[b] = max(theirs[b], before[b] * suffix[b])
                else:
                    for b in range(width):
                        theirs[b] += before[b] * suffix[b]
                value = values[child]
            for b in range(width):
                suffix[b] *= value[b]
