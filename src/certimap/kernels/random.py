"""Random numbers inside kernels: one xoshiro256++ stream for each row, seeded by splitmix64.

Generators after Blackman and Vigna, "Scrambled linear pseudorandom number generators" (2021), and
Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014). A row's stream depends
only on the key and the row's number, so that draws do not depend on the threads.
"""

from __future__ import annotations

import math

import numpy as np

from certimap.core.arrays import Words
from certimap.kernels.jit import Scalar, jit

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S11, _S17, _S19, _S23 = np.uint64(11), np.uint64(17), np.uint64(19), np.uint64(23)
_S27, _S30, _S31, _S41, _S45 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(41), np.uint64(45)
_UNIT = 2.0**-53


@jit()
def seed_row(key: np.uint64, row: int, state: Words) -> None:
    """Start the stream of a row; `state` holds four words."""
    word = key ^ (np.uint64(row) * _MIX_1)
    for k in range(4):
        word = word + _GOLDEN
        z = word
        z = (z ^ (z >> _S30)) * _MIX_1
        z = (z ^ (z >> _S27)) * _MIX_2
        state[k] = z ^ (z >> _S31)


@jit()
def uniform(state: Words) -> float:
    """Return the next number of a stream, uniform on [0, 1)."""
    s0, s1, s2, s3 = state[0], state[1], state[2], state[3]
    mixed = s0 + s3
    result = ((mixed << _S23) | (mixed >> _S41)) + s0
    shifted = s1 << _S17
    s2 = s2 ^ s0
    s3 = s3 ^ s1
    s1 = s1 ^ s2
    s0 = s0 ^ s3
    s2 = s2 ^ shifted
    s3 = (s3 << _S45) | (s3 >> _S19)
    state[0], state[1], state[2], state[3] = s0, s1, s2, s3
    return np.float64(result >> _S11) * _UNIT


@jit()
def truncated_normal(low: Scalar, high: Scalar, state: Words) -> float:
    """Draw a standard normal number inside [low, high], by rejection.

    Proposals: the normal itself (polar method) if the interval has much of the mass, uniform on a short
    interval, exponential in a tail (Robert, "Simulation of truncated normal variables", 1995).
    """
    if low > 0 or high < 0:
        sign = 1.0
        if high < 0:
            low, high, sign = -high, -low, -1.0
        rate = 0.5 * (low + math.sqrt(low * low + 4.0))
        if high - low < 1.0 / rate:
            while True:
                x = low + (high - low) * uniform(state)
                if uniform(state) <= math.exp(0.5 * (low * low - x * x)):
                    return sign * min(max(x, low), high)
        while True:
            x = low - math.log(1.0 - uniform(state)) / rate
            if x <= high and uniform(state) <= math.exp(-0.5 * (x - rate) * (x - rate)):
                return sign * x
    if high - low < 2.0:
        while True:
            x = low + (high - low) * uniform(state)
            if uniform(state) <= math.exp(-0.5 * x * x):
                return x
    while True:
        u = 2.0 * uniform(state) - 1.0
        v = 2.0 * uniform(state) - 1.0
        s = u * u + v * v
        if 0.0 < s < 1.0:
            x = u * math.sqrt(-2.0 * math.log(s) / s)
            if low <= x <= high:
                return x
