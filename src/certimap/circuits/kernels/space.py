"""A plan's arrays, and the working arrays of the passes over it, as the kernels take them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from certimap.kernels.jit import jit_part

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
# The type checker takes an element of an array for an array; these spare it.
Indices = Any  # int64 arrays
Number = Any  # a float, or an int


class ProbeArrays(NamedTuple):
    """A plan's arrays as the kernels take them; see `certimap.circuits.plan.Plan` for their meaning.

    `offsets` (n + 1,) gives every variable's columns and `n_states` (n,) is 0 for real variables, whose smallest
    standard deviation `scales` (n,) holds; `is_whole` (n,) marks those of whole numbers; `in_logs` (n_leaves,)
    marks the leaves that are read from `log_tables`:
    those with an entry so small that products of it might underflow, and the real ones. `discrete` says whether
    there are no real ones, so that a box's mass bounds its points.
    """

    is_sum: NDArray[np.bool_]
    child_ptr: Ints
    children: NDArray[np.int32]
    log_weights: Floats
    leaf_ptr: Ints
    leaf_var: NDArray[np.int32]
    leaf_start: Ints
    in_logs: NDArray[np.bool_]
    tables: Floats
    log_tables: Floats
    functions: Ints
    decides: NDArray[np.int32]
    offsets: Ints
    n_states: Ints
    scales: Floats
    is_whole: NDArray[np.bool_]
    discrete: bool


class Space(NamedTuple):
    """What one upward and downward pass fills in; allocated once per call of a kernel.

    Logs of each node's mass and bound, leaf terms (in logs where the leaf is), linear edge terms relative to their
    node's largest, and flows relative to the root's value; `relative_*` (columns,) are the results by column.

    Edge terms, flows and results are upper sides: 0 says that something is impossible, and what would underflow is
    `SMALLEST_NORMAL`.
    """

    mass: Floats
    bound: Floats
    leaf_mass: Floats
    leaf_bound: Floats
    edge_mass: Floats
    edge_bound: Floats
    factor_mass: Floats
    factor_bound: Floats
    flow_mass: Floats
    flow_bound: Floats
    relative_mass: Floats
    relative_bound: Floats
    split: Floats
    moment: Floats
    weight: Floats


@jit_part
def new_space(plan: ProbeArrays) -> Space:
    """Allocate the passes' working arrays."""
    n_nodes, n_edges, n_leaves = len(plan.is_sum), len(plan.children), len(plan.leaf_var)
    n, columns = len(plan.n_states), plan.offsets[-1]
    return Space(
        np.zeros(n_nodes),
        np.zeros(n_nodes),
        np.zeros(n_leaves),
        np.zeros(n_leaves),
        np.zeros(n_edges),
        np.zeros(n_edges),
        np.zeros(n_nodes),
        np.zeros(n_nodes),
        np.zeros(n_nodes),
        np.zeros(n_nodes),
        np.zeros(columns),
        np.zeros(columns),
        np.zeros(n),
        np.zeros(n),
        np.zeros(n),
    )
