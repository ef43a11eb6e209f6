"""Draws from a tree of regions, and its decoded maximum, from the root down."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from certimap.kernels.jit import jit
from certimap.trees.kernels.passes import Floats, Ints, RegionArrays


@jit()
def cumulate(a: RegionArrays, mask: Floats, joint: Floats, cumulative: Floats) -> None:
    """Write, for each region and separator state, the running sums of its own variable's posterior weights."""
    for r in range(len(a.own_states)):
        k = a.own_states[r]
        n_rest = a.rest_query[r] * a.rest_hidden[r]
        column = a.column[r]
        for s in range(a.shared_query[r] * a.shared_hidden[r]):
            for i in range(n_rest):
                t = a.table_ptr[r] + (s * n_rest + i) * k
                total = 0.0
                for v in range(k):
                    w = a.tables[t + v] * joint[a.joint_ptr[r] + s * k + v]
                    if column >= 0:
                        w *= mask[column + v]
                    total += w
                    cumulative[t + v] = total


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
    mask: Floats,
    joint: Floats,
    position: Ints,
    point: NDArray[np.int16],
) -> None:
    """Give every region, from the root down, the state of the largest weight; of equal ones the first.

    `joint`, shape (joint positions,), is what the upward pass of bounds wrote; `mask` has shape (total_states,).
    """
    for r in range(len(a.own_states) - 1, -1, -1):
        k = a.own_states[r]
        separator = np.int64(0)
        if parent[r] >= 0:
            separator = a.gather[parent_map[r] + position[parent[r]]]
        shared = separator // (a.rest_query[r] * a.rest_hidden[r])
        t = a.table_ptr[r] + separator * k
        column = a.column[r]
        best = 0
        largest = -1.0
        for v in range(k):
            w = a.tables[t + v] * joint[a.joint_ptr[r] + shared * k + v]
            if column >= 0:
                w *= mask[column + v]
            if w > largest:
                largest = w
                best = v
        position[r] = shared * k + best
        if variable[r] >= 0:
            point[variable[r]] = best
