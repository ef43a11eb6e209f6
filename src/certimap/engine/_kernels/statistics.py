"""One pass over a plan for what the evaluator must know about rounding, underflow and maxima."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from certimap.engine._kernels.jit import jit

_NEG_INF = -math.inf


@jit()
def summarise(
    is_sum: NDArray[np.bool_],
    child_ptr: NDArray[np.int64],
    children: NDArray[np.int32],
    log_weights: NDArray[np.float64],
    leaf_ptr: NDArray[np.int64],
    leaf_var: NDArray[np.int32],
    leaf_start: NDArray[np.int64],
    log_tables: NDArray[np.float64],
    decides: NDArray[np.int32],
    n_states: NDArray[np.int64],
    log_smallest: NDArray[np.float64],
    n_roundings: NDArray[np.float64],
    is_top: NDArray[np.bool_],
) -> None:
    """Fill in, for each node, three things.

    - `log_smallest`: a lower bound on the log of every nonzero value that the node can take;
    - `n_roundings`: how many roundings lie at most on the way from the parameters to its value;
    - `is_top`: whether all its ancestors are products and deciding sums.
    """
    n_nodes = is_sum.shape[0]
    for node in range(n_nodes):
        start, stop = child_ptr[node], child_ptr[node + 1]
        smallest, roundings = 0.0, 0.0
        if is_sum[node]:
            smallest = math.inf
            for edge in range(start, stop):
                child = children[edge]
                if log_weights[edge] > _NEG_INF:
                    smallest = min(smallest, log_weights[edge] + log_smallest[child])
                roundings = max(roundings, n_roundings[child])
            roundings += 1.0 + (stop - start)
        else:
            for leaf in range(leaf_ptr[node], leaf_ptr[node + 1]):
                size, at = n_states[leaf_var[leaf]], leaf_start[leaf]
                least = math.inf
                for state in range(size):
                    if log_tables[at + state] > _NEG_INF:
                        least = min(least, log_tables[at + state])
                smallest += least if size > 0 else _NEG_INF
                roundings += 2.0 + size
            for edge in range(start, stop):
                smallest += log_smallest[children[edge]]
                roundings += 1.0 + n_roundings[children[edge]]
        log_smallest[node] = smallest
        n_roundings[node] = roundings
        is_top[node] = True
    for node in range(n_nodes - 1, -1, -1):
        passes = is_top[node] and (not is_sum[node] or decides[node] >= 0)
        if not passes:
            for edge in range(child_ptr[node], child_ptr[node + 1]):
                is_top[children[edge]] = False
