"""Categorical leaves under a query: their masses, and the normalised vectors of queried ones."""

from __future__ import annotations

import math

import numpy as np

from certimap.circuits.kernels.arrays import CircuitArrays, QueriedLeaves
from certimap.core.arrays import Floats, Ints, Ints32
from certimap.kernels.jit import jit

_NEG_INF = -math.inf
NEGLIGIBLE = 40.0  # nats below a leaf's mass at which the rounding of an entry becomes negligible


@jit()
def count_queried(circuit: CircuitArrays, param_ptr: Ints, position: Ints32) -> tuple[int, int]:
    """Return the number of queried categorical leaves, and the total number of their vectors' entries."""
    n_leaves, n_entries = 0, 0
    for node in range(circuit.kind.shape[0]):
        if circuit.kind[node] == 0 and position[circuit.leaf_var[node]] >= 0:
            n_leaves += 1
            n_entries += param_ptr[node + 1] - param_ptr[node]
    return n_leaves, n_entries


@jit()
def fill_categorical(
    circuit: CircuitArrays,
    param_ptr: Ints,
    params: Floats,
    offsets: Ints,
    log_weights: Floats,
    position: Ints32,
    log_mass: Floats,
    log_error: Floats,
    queried: QueriedLeaves,
) -> None:
    """Fill in ln of the mass of each categorical leaf, its error, and the queried ones in rising order.

    `log_weights` (total_states,) are the query's, `position` (n_vars,) the position of each variable in it. All
    other nodes get log mass 0 and error 0. Errors are in units of the last place of 1.
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
