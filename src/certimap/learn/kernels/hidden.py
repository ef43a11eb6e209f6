"""Kernels of expectation-maximisation on trees of latent variables; matrix products stay with BLAS."""

from __future__ import annotations

import numpy as np

from certimap.core.arrays import Floats, Floats32, Ints, Ints32
from certimap.kernels.jit import jit


@jit()
def number_patterns(
    ids: Ints32, rows: Ints, scratch: Ints32, number: Ints32, first: Ints32, n_patterns: Ints
) -> None:
    """Number the patterns of some rows in order of appearance, for each variable.

    `ids` (n, n_rows) holds the patterns of all rows. Outputs: `number` (n, len(rows)), the patterns of `rows`;
    `first[i, u]`, the index of the first row with pattern u of variable i; `n_patterns[i]`, their number.
    `scratch` holds -1 for each id, before and after.
    """
    for i in range(ids.shape[0]):
        used = 0
        for b in range(rows.shape[0]):
            pattern = ids[i, rows[b]]
            if scratch[pattern] < 0:
                scratch[pattern] = used
                first[i, used] = b
                used += 1
            number[i, b] = scratch[pattern]
        n_patterns[i] = used
        for b in range(rows.shape[0]):
            scratch[ids[i, rows[b]]] = -1


@jit()
def absorb_message(
    belief: Floats32, message: Floats32, index: Ints32, log_scale: Floats, message_scale: Floats
) -> None:
    """Multiply row `index[r]` of `message` into row r of `belief`, and scale each row to maximum 1.

    `log_scale` grows by the logs of these scales and by the message's own `message_scale`.
    """
    n_rows, n_states = belief.shape
    for r in range(n_rows):
        below = index[r]
        largest = np.float32(0.0)
        for z in range(n_states):
            belief[r, z] *= message[below, z]
            largest = max(largest, belief[r, z])
        if largest > np.float32(0.0):
            scale = np.float32(1.0) / largest
            for z in range(n_states):
                belief[r, z] *= scale
            log_scale[r] += np.log(np.float64(largest)) + message_scale[below]
        else:
            for z in range(n_states):
                belief[r, z] = np.float32(1.0)
            log_scale[r] = -np.inf


@jit()
def add_rows(rows: Floats32, index: Ints32, out: Floats32) -> None:
    """Add row r of `rows` to row `index[r]` of `out`."""
    n_rows, n_states = rows.shape
    for r in range(n_rows):
        at = index[r]
        for z in range(n_states):
            out[at, z] += rows[r, z]


@jit()
def divide_out(weights: Floats32, message: Floats32) -> None:
    """Divide by messages in place; x / 0 becomes 0."""
    n_rows, n_states = weights.shape
    for r in range(n_rows):
        for z in range(n_states):
            m = message[r, z]
            weights[r, z] = weights[r, z] / m if m > np.float32(1e-30) else np.float32(0.0)
