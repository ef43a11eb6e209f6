"""Passes over a plan for what the evaluator must know about rounding, underflow and maxima."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from certimap.circuits.kernels.arrays import PlanArrays
from certimap.circuits.kernels.scaled import UNIT_BITS
from certimap.kernels.jit import jit


@jit()
def find_floors(
    is_sum: NDArray[np.bool_],
    child_ptr: NDArray[np.int64],
    children: NDArray[np.int32],
    weight_floors: NDArray[np.float64],
    leaf_ptr: NDArray[np.int64],
    leaf_floors: NDArray[np.float64],
    floors: NDArray[np.float64],
    settles: NDArray[np.bool_],
) -> None:
    """Fill in a lower bound on log2 of each node's positive values, given those of weights and (added up) leaves.

    No floor is below -256, for a node's value is settled where it may be; `settles` says of which sums that is
    true.
    """
    for node in range(is_sum.shape[0]):
        floor = 0.0 if is_sum[node] else leaf_floors[leaf_ptr[node + 1]] - leaf_floors[leaf_ptr[node]]
        for edge in range(child_ptr[node], child_ptr[node + 1]):
            below = floors[children[edge]]
            floor = min(floor, weight_floors[edge] + below) if is_sum[node] else floor + below
        settles[node] = is_sum[node] and floor < -UNIT_BITS
        floors[node] = max(floor, -1.0 * UNIT_BITS)


@jit()
def summarise(plan: PlanArrays, n_roundings: NDArray[np.float64], is_top: NDArray[np.bool_]) -> None:
    """Fill in, for each node, two things.

    - `n_roundings`: how many roundings lie at most on the way from the parameters to its value;
    - `is_top`: whether all its ancestors are products and deciding sums.
    """
    n_nodes = plan.is_sum.shape[0]
    for node in range(n_nodes):
        start, stop = plan.child_ptr[node], plan.child_ptr[node + 1]
        roundings = 0.0
        if plan.is_sum[node]:
            for edge in range(start, stop):
                roundings = max(roundings, n_roundings[plan.children[edge]])
            roundings += 1.0 + (stop - start)
        else:
            for leaf in range(plan.leaf_ptr[node], plan.leaf_ptr[node + 1]):
                variable = plan.leaf_var[leaf]
                roundings += 2.0 + plan.offsets[variable + 1] - plan.offsets[variable]
            for edge in range(start, stop):
                roundings += 1.0 + n_roundings[plan.children[edge]]
        n_roundings[node] = roundings
        is_top[node] = True
    for node in range(n_nodes - 1, -1, -1):
        passes = is_top[node] and (not plan.is_sum[node] or plan.decides[node] >= 0)
        if not passes:
            for edge in range(plan.child_ptr[node], plan.child_ptr[node + 1]):
                is_top[plan.children[edge]] = False
