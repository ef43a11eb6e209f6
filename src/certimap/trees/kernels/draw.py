"""Draws from a tree of regions, and its decoded maximum, from the root down."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from certimap.core.arrays import Floats, Ints
from certimap.core.region_tree import RegionArrays
from certimap.kernels.jit import jit
from certimap.kernels.wide import ZERO, normal


@jit()
def draw(
    a: RegionArrays,
    parent_map: Ints,
    parent: Ints,
    variable: Ints,
    cumulative: Floats,
    key: np.uint64,
    rows: Ints,
    position: Ints,
    points: NDArray[np.int16],
) -> None:
    """Draw points[rows] from the root down; row i has its own stream, seeded by `key` and i."""
    n = len(a.own_states)
    for i in range(len(rows)):
        row = rows[i]
        state = key + np.uint64(row) * np.uint64(0x9E3779B97F4A7C15)
        z = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = z ^ (z >> np.uint64(31))
        for r in range(n - 1, -1, -1):
            k = a.own_states[r]
            separator = np.int64(0)
            if parent[r] >= 0:
                separator = a.gather[parent_map[r] + position[parent[r]]]
            t = a.table_ptr[r] + separator * k
            state += np.uint64(0x9E3779B97F4A7C15)
            z = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            z = z ^ (z >> np.uint64(31))
            u = np.float64(z >> np.uint64(11)) * (1.0 / 9007199254740992.0) * cumulative[t + k - 1]
            low = 0
            high = k - 1
            while low < high:
                middle = (low + high) // 2
                if cumulative[t + middle] > u:
                    high = middle
                else:
                    low = middle + 1
            position[r] = (separator // (a.rest_query[r] * a.rest_hidden[r])) * k + low
            if variable[r] >= 0:
                points[row, variable[r]] = low


@jit()
def follow_maxima(
    a: RegionArrays,
    parent_map: Ints,
    parent: Ints,
    variable: Ints,
    joint: Floats,
    joint_exponent: Ints,
    position: Ints,
    point: NDArray[np.int16],
) -> None:
    """Give every region, from the root down, the first state with the largest weight.

    `joint` and `joint_exponent`, shape (joint positions,), come from the wide upward pass of bounds.
    """
    has_exponents = len(a.exponents) > 0
    for r in range(len(a.own_states) - 1, -1, -1):
        k = a.own_states[r]
        separator = np.int64(0)
        if parent[r] >= 0:
            separator = a.gather[parent_map[r] + position[parent[r]]]
        shared = separator // (a.rest_query[r] * a.rest_hidden[r])
        t = a.table_ptr[r] + separator * k
        best = 0
        largest, exponent = 0.0, ZERO
        for v in range(k):
            e = joint_exponent[a.joint_ptr[r] + shared * k + v]
            if has_exponents:
                e += a.exponents[t + v]
            w, e = normal(a.mantissas[t + v] * joint[a.joint_ptr[r] + shared * k + v], e)
            if e > exponent or (e == exponent and w > largest):
                largest, exponent = w, e
                best = v
        position[r] = shared * k + best
        if variable[r] >= 0:
            point[variable[r]] = best
