"""The downward pass: what the root becomes when one variable is set to one state, for all at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from certimap.engine._kernels.arrays import PlanArrays
from certimap.engine._kernels.evaluate import leaf_values
from certimap.engine._kernels.jit import jit


@jit(fastmath={"contract"})
def _spread(
    plan: PlanArrays,
    leaf: int,
    is_top: bool,
    context: NDArray[np.float64],
    outside: NDArray[np.float64],
    total: NDArray[np.float64],
    largest: NDArray[np.float64],
) -> None:
    """Credit a leaf's variable: each of its states gets its probability times the leaf's context."""
    width = context.shape[0]
    column, start = plan.offsets[plan.leaf_var[leaf]], plan.leaf_start[leaf]
    for state in range(plan.offsets[plan.leaf_var[leaf] + 1] - column):
        probability = plan.tables[start + state]
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
    plan: PlanArrays,
    mode: int,
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
    n_nodes = plan.is_sum.shape[0]
    context[:] = 0.0
    context[n_nodes - 1] = 1.0
    total[:] = 0.0
    largest[:] = 0.0
    for node in range(n_nodes - 1, -1, -1):
        mine = context[node]
        if plan.is_sum[node]:
            for edge in range(plan.child_ptr[node], plan.child_ptr[node + 1]):
                child = plan.children[edge]
                theirs, weight = context[child], plan.weights[edge]
                if is_top[child]:
                    for b in range(width):
                        theirs[b] = max(theirs[b], weight * mine[b])
                else:
                    for b in range(width):
                        theirs[b] += weight * mine[b]
            continue
        n_leaves = plan.leaf_ptr[node + 1] - plan.leaf_ptr[node]
        n_members = n_leaves + plan.child_ptr[node + 1] - plan.child_ptr[node]
        for b in range(width):
            prefix[0, b] = mine[b]
        for k in range(n_members):
            if k < n_leaves:
                leaf = plan.leaf_ptr[node] + k
                leaf_values(plan, mode, leaf, inputs, members[k])
                value = members[k]
            else:
                value = values[plan.children[plan.child_ptr[node] + k - n_leaves]]
            before, after = prefix[k], prefix[k + 1]
            for b in range(width):
                after[b] = before[b] * value[b]
        suffix = prefix[n_members]  # its own value is not needed any more
        for b in range(width):
            suffix[b] = 1.0
        for k in range(n_members - 1, -1, -1):
            before = prefix[k]
            if k < n_leaves:
                leaf = plan.leaf_ptr[node] + k
                _spread(plan, leaf, is_top[node], before, suffix, total, largest)
                value = members[k]
            else:
                child = plan.children[plan.child_ptr[node] + k - n_leaves]
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
