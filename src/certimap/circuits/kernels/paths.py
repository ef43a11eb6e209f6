"""The most probable path through an unconditioned circuit. Twin: `tests/reference/circuits.py`, `log_maximum`."""

from __future__ import annotations

import math

from certimap.circuits.kernels.arrays import CircuitArrays
from certimap.core.arrays import Floats
from certimap.kernels.jit import jit

_NEG_INF = -math.inf


@jit()
def upward_log_maximum(circuit: CircuitArrays, out: Floats) -> None:
    """Fill in the logs of inner nodes with every sum replaced by its largest weighted child; leaves are given."""
    for node in range(circuit.kind.shape[0]):
        start, stop = circuit.child_ptr[node], circuit.child_ptr[node + 1]
        if circuit.kind[node] == 2:
            total = 0.0
            for edge in range(start, stop):
                total += out[circuit.children[edge]]
            out[node] = total
        elif circuit.kind[node] == 3:
            largest = _NEG_INF
            for edge in range(start, stop):
                largest = max(largest, circuit.log_weights[edge] + out[circuit.children[edge]])
            out[node] = largest
