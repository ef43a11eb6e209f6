"""Categorical leaves under a query: their masses, and the normalised vectors of those that are queried."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from certimap.circuits.kernels.arrays import CircuitArrays, QueriedLeaves
from certimap.kernels.jit import jit

_NEG_INF = -math.inf
NEGLIGIBLE = 40.0  # nats below a leaf's mass, under which the rounding of an entry does not show in it


@jit()
def count_queried(
    circuit: CircuitArrays, param_ptr: NDArray[np.int64], position: NDArray[np.int32]
) -> tuple[int, int]:
    """Return how many categorical leaves are queried, and how many entries their vectors have together."""
    n_leaves, n_entries = 0, 0
    for node in range(circuit.kind.shape[0]):
        if circuit.kind[node] == 0 and position[circuit.leaf_var[node]] >= 0:
            n_leaves += 1
            n_entries += param_ptr[node + 1] - param_ptr[node]
    return n_leaves, n_entries


@jit()
def fill_categorical(
    circuit: CircuitArrays,
    param_ptr: NDArray[np.int64],
    params: NDArray[np.float64],
    offsets: NDArray[np.int64],
    log_weights: NDArray[np.float64],
    position: NDArray[np.int32],
    log_mass: NDArray[np.float64],
    log_error: NDArray[np.float64],
    queried: QueriedLeaves,
) -> None:
    """Fill in ln of the mass of each categorical leaf, its error, and the queried ones in rising order.

    `log_weights` (total_states,) are those of the query, `position` (n_vars,) the place of each variable in it.
    All other nodes get a mass of 0 and no error. Errors are in units of the last place of 1.
    """
    k, used = 0, 0
    for node in range(circuit.kind.shape[0]):
        log_mass[node], log_error[node] = 0.0, 0.0
        if circuit.kind[node] != 0:
            continue
        variable = circuit.leaf_var[node]
        first, size, column = param_ptr[node], param_ptr[node + 1] - param_ptr[node], offsets[variable]
        mass = _NEG_INF
        for s in range(size):
            mass = max(mass, params[first + s] + log_weights[column + s])
        if mass > _NEG_INF:
            total = 0.0
            for s in range(size):
                entry = params[first + s] + log_weights[column + s]
                if entry > _NEG_INF:
                    total += math.exp(entry - mass)
            mass += math.log(total)
        reach = 0.0
        for s in range(size):
            if params[first + s] + log_weights[column + s] > mass - NEGLIGIBLE:
                reach = max(reach, abs(params[first + s]) + abs(log_weights[column + s]))
        log_mass[node] = mass
        log_error[node] = reach + size + 4.0
        if position[variable] < 0:
            continue
        queried.nodes[k], queried.start[k] = node, used
        states = np.int64(0)
        for s in range(size):
            entry = params[first + s] + log_weights[column + s]
            queried.log_tables[used + s] = entry - mass
            if entry > _NEG_INF:
                states |= np.int64(1) << np.int64(s & 63)
        queried.states[k] = states
        k += 1
        used += size
