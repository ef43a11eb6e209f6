"""Kernels of expectation-maximisation on trees of latent variables; matrix products stay with BLAS."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from certimap.kernels.jit import jit

Floats = NDArray[np.float32]


@jit()
def absorb_message(belief: Floats, message: Floats, log_scale: NDArray[np.float64]) -> None:
    """Multiply `message` into `belief`, both (n_rows, n_states), and scale each row to maximum 1.

    The logs of the scales are added to `log_scale`, shape (n_rows,).
    """
    n_rows, n_states = belief.shape
    for r in range(n_rows):
        largest = np.float32(0.0)
        for z in range(n_states):
            belief[r, z] *= message[r, z]
            largest = max(largest, belief[r, z])
        if largest > np.float32(0.0):
            scale = np.float32(1.0) / largest
            for z in range(n_states):
                belief[r, z] *= scale
            log_scale[r] += np.log(np.float64(largest))
        else:
            for z in range(n_states):
                belief[r, z] = np.float32(1.0)
            log_scale[r] = -np.inf


@jit()
def divide_out(posterior: Floats, message: Floats, out: Floats) -> None:
    """Write posterior / message, with 0 where the message is 0; all (n_rows, n_states)."""
    n_rows, n_states = posterior.shape
    for r in range(n_rows):
        for z in range(n_states):
            m = message[r, z]
            out[r, z] = posterior[r, z] / m if m > np.float32(1e-30) else np.float32(0.0)


@jit()
def finish_posterior(predicted: Floats, belief: Floats, out: Floats) -> None:
    """Write predicted * belief, each row scaled to sum 1; all (n_rows, n_states)."""
    n_rows, n_states = predicted.shape
    for r in range(n_rows):
        total = np.float32(0.0)
        for z in range(n_states):
            value = predicted[r, z] * belief[r, z]
            out[r, z] = value
            total += value
        scale = np.float32(1.0) / total if total > np.float32(0.0) else np.float32(0.0)
        for z in range(n_states):
            out[r, z] *= scale


@jit()
def add_rows(posterior: Floats, codes: NDArray[np.int64], counts: Floats) -> None:
    """Add each row of `posterior` to row `codes[r]` of `counts`, shape (n_codes, n_states)."""
    n_rows, n_states = posterior.shape
    for r in range(n_rows):
        code = codes[r]
        for z in range(n_states):
            counts[code, z] += posterior[r, z]
