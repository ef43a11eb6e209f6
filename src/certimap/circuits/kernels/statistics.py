"""One pass over a plan for what the evaluator must know about rounding, underflow and maxima."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from certimap.circuits.kernels.arrays import PlanArrays
from certimap.kernels.jit import jit

_NEG_INF = -math.inf


@jit()
def summarise(
    plan: PlanArrays,
    log_smallest: NDArray[np.float64],
    n_roundings: NDArray[np.float64],
    is_top: NDArray[np.bool_],
) -> None:
    """Fill in, for each node, three things.

    - `log_smallest`: a lower bound on the log of every nonzero value that the node can take;
    - `n_roundings`: how many roundings lie at most on the way from the parameters to its value;
    - `is_top`: whether all its ancestors are products and deciding sums.
    """
    n_nodes = plan.is_sum.shape[0]
    for node in range(n_nodes):
        start, stop = plan.child_ptr[node], plan.child_ptr[node + 1]
        smallest, roundings = 0.0, 0.0
        if plan.is_sum[node]:
            smallest = math.inf
            for edge in range(start, stop):
                child = plan.children[edge]
                if plan.log_weights[edge] > _NEG_INF:
                    smallest = min(smallest, plan.log_weights[edge] + log_smallest[child])
                roundings = max(roundings, n_roundings[child])
            roundings += 1.0 + (stop - start)
        else:
            for leaf in range(plan.leaf_ptr[node], plan.leaf_ptr[node + 1]):
                variable, at = plan.leaf_var[leaf], plan.leaf_start[leaf]
                size = plan.offsets[variable + 1] - plan.offsets[variable]
                least = math.inf
                for state in range(size):
                    if plan.log_tables[at + state] > _NEG_INF:
                        least = min(least, plan.log_tables[at + state])
                smallest += least if size > 0 else _NEG_INF
                roundings += 2.0 + size
            for edge in range(start, stop):
                smallest += log_smallest[plan.children[edge]]
                roundings += 1.0 + n_roundings[plan.children[edge]]
        log_smallest[node] = smallest
        n_roundings[node] = roundings
        is_top[node] = True
    for node in range(n_nodes - 1, -1, -1):
        passes = is_top[node] and (not plan.is_sum[node] or plan.decides[node] >= 0)
        if not passes:
            for edge in range(plan.child_ptr[node], plan.child_ptr[node + 1]):
                is_top[plan.children[edge]] = False
