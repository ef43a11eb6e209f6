"""The downward pass: what the root becomes when one variable is set to one state, for all at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from certimap.circuits.kernels.arrays import PlanArrays, Scalar
from certimap.circuits.kernels.evaluate import leaf_values, multiply_row
from certimap.kernels.jit import jit


@jit(fastmath={"contract"})
def _forward_binary(
    bound: bool,
    start: Scalar,
    stop: Scalar,
    leaf_var: NDArray[np.int32],
    offsets: NDArray[np.int64],
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    inputs: NDArray[np.float64],
    prefix: NDArray[np.float64],
) -> None:
    """Extend prefixes, from the first on, by leaves of binary variables."""
    width = prefix.shape[1]
    for leaf in range(start, stop):
        column = offsets[leaf_var[leaf]]
        m0, m1, p0, p1 = inputs[column], inputs[column + 1], first[leaf], second[leaf]
        before, after = prefix[leaf - start], prefix[leaf - start + 1]
        if bound:
            for b in range(width):
                after[b] = before[b] * max(p0 * m0[b], p1 * m1[b])
        else:
            for b in range(width):
                after[b] = before[b] * (p0 * m0[b] + p1 * m1[b])


@jit(fastmath={"contract"})
def _backward_binary(
    bound: bool,
    use_max: bool,
    start: Scalar,
    stop: Scalar,
    leaf_var: NDArray[np.int32],
    offsets: NDArray[np.int64],
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    inputs: NDArray[np.float64],
    prefix: NDArray[np.float64],
    last: Scalar,
    out: NDArray[np.float64],
) -> None:
    """Credit both states of binary variables, multiplying the suffix `prefix[last]` by their leaves.

    Two loops a leaf: a single one would touch more arrays than the compiler checks for overlap, and
    would not be vectorised.
    """
    width = prefix.shape[1]
    suffix = prefix[last]
    for leaf in range(stop - 1, start - 1, -1):
        column = offsets[leaf_var[leaf]]
        m0, m1, p0, p1 = inputs[column], inputs[column + 1], first[leaf], second[leaf]
        outside, r0, r1 = prefix[leaf - start], out[column], out[column + 1]
        if bound:
            for b in range(width):
                outside[b] *= suffix[b]
                suffix[b] *= max(p0 * m0[b], p1 * m1[b])
        else:
            for b in range(width):
                outside[b] *= suffix[b]
                suffix[b] *= p0 * m0[b] + p1 * m1[b]
        if use_max:
            for b in range(width):
                r0[b] = max(r0[b], p0 * outside[b])
                r1[b] = max(r1[b], p1 * outside[b])
        else:
            for b in range(width):
                r0[b] += p0 * outside[b]
                r1[b] += p1 * outside[b]


@jit(fastmath={"contract"})
def _spread(
    use_max: bool,
    variable: Scalar,
    start: Scalar,
    offsets: NDArray[np.int64],
    tables: NDArray[np.float64],
    prefix: NDArray[np.float64],
    k: Scalar,
    last: Scalar,
    out: NDArray[np.float64],
) -> None:
    """Credit a leaf's variable: each of its states gets its probability times what multiplies the leaf."""
    before, suffix = prefix[k], prefix[last]
    width = prefix.shape[1]
    column = offsets[variable]
    for state in range(offsets[variable + 1] - column):
        row, probability = out[column + state], tables[start + state]
        if use_max:
            for b in range(width):
                row[b] = max(row[b], probability * (before[b] * suffix[b]))
        else:
            for b in range(width):
                row[b] += probability * (before[b] * suffix[b])


@jit(fastmath={"contract"})
def _extend(prefix: NDArray[np.float64], k: Scalar, source: NDArray[np.float64], i: Scalar) -> None:
    """Extend the prefix `k` by the member `source[i]`."""
    before, after, value = prefix[k], prefix[k + 1], source[i]
    for b in range(after.shape[0]):
        after[b] = before[b] * value[b]


@jit(fastmath={"contract"})
def _pass_product(
    use_max: Scalar,
    child: Scalar,
    prefix: NDArray[np.float64],
    k: Scalar,
    last: Scalar,
    values: NDArray[np.float64],
    context: NDArray[np.float64],
) -> None:
    """Give a child of a product the product of all other members, and multiply the suffix by its value."""
    before, suffix, value, theirs = prefix[k], prefix[last], values[child], context[child]
    if use_max:
        for b in range(suffix.shape[0]):
            theirs[b] = max(theirs[b], before[b] * suffix[b])
            suffix[b] *= value[b]
    else:
        for b in range(suffix.shape[0]):
            theirs[b] += before[b] * suffix[b]
            suffix[b] *= value[b]


@jit(fastmath={"contract"})
def _sum_downward(
    node: int,
    start: Scalar,
    stop: Scalar,
    children: NDArray[np.int32],
    weights: NDArray[np.float64],
    is_top: NDArray[np.bool_],
    context: NDArray[np.float64],
) -> None:
    """Give each child of a sum its share of the context."""
    mine = context[node]
    width = mine.shape[0]
    for edge in range(start, stop):
        child = children[edge]
        theirs, weight = context[child], weights[edge]
        if is_top[child]:
            for b in range(width):
                theirs[b] = max(theirs[b], weight * mine[b])
        else:
            for b in range(width):
                theirs[b] += weight * mine[b]


@jit()
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
    is_sum, child_ptr, children, weights = plan.is_sum, plan.child_ptr, plan.children, plan.weights
    leaf_ptr, binary_end, leaf_var, leaf_start = plan.leaf_ptr, plan.binary_end, plan.leaf_var, plan.leaf_start
    first, second, tables, offsets = plan.first, plan.second, plan.tables, plan.offsets
    n_nodes, width, bound = is_sum.shape[0], prefix.shape[1], mode == 2
    for node in range(n_nodes):
        for b in range(width):
            context[node, b] = 1.0 if node == n_nodes - 1 else 0.0
    for column in range(total.shape[0]):
        for b in range(width):
            total[column, b] = 0.0
            largest[column, b] = 0.0
    for node in range(n_nodes - 1, -1, -1):
        first_edge, last_edge = child_ptr[node], child_ptr[node + 1]
        if is_sum[node]:
            _sum_downward(node, first_edge, last_edge, children, weights, is_top, context)
            continue
        start, middle, stop = leaf_ptr[node], binary_end[node], leaf_ptr[node + 1]
        for b in range(width):
            prefix[0, b] = context[node, b]
        _forward_binary(bound, start, middle, leaf_var, offsets, first, second, inputs, prefix)
        for leaf in range(middle, stop):
            k = leaf - middle
            leaf_values(mode, leaf_var[leaf], leaf_start[leaf], offsets, tables, inputs, k, members)
            _extend(prefix, leaf - start, members, k)
        k = stop - start
        for edge in range(first_edge, last_edge):
            _extend(prefix, k, values, children[edge])
            k += 1
        last = k  # the product of everything is not needed: its row holds the suffix
        for b in range(width):
            prefix[last, b] = 1.0
        for edge in range(last_edge - 1, first_edge - 1, -1):
            k -= 1
            _pass_product(is_top[children[edge]], children[edge], prefix, k, last, values, context)
        top = is_top[node]
        out = largest if top else total
        for leaf in range(stop - 1, middle - 1, -1):
            at, k = leaf_start[leaf], leaf - start
            _spread(top, leaf_var[leaf], at, offsets, tables, prefix, k, last, out)
            multiply_row(members, leaf - middle, last, prefix)
        _backward_binary(bound, top, start, middle, leaf_var, offsets, first, second, inputs, prefix, last, out)
