"""A plan's arrays, and the working arrays of passes over it, for the kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from certimap.core.arrays import Flags, Floats, Ints, Ints32
from certimap.kernels.jit import jit_part

# The type checker takes an element of an array for an array; `Any` avoids this.
Indices = Any  # int64 arrays
Number = Any  # a float, or an int


class ProbeArrays(NamedTuple):
    """A plan's arrays for the kernels; see `certimap.circuits.plan.Plan` for their meaning.

    `offsets` (n + 1,) gives every variable's columns. `n_states` (n,) is 0 for real variables; `scales` (n,) has
    their smallest standard deviations, and `is_whole` (n,) marks variables on whole numbers. `in_logs` (n_leaves,)
    marks leaves read from `log_tables`: real leaves, and leaves with an entry so small that products might
    underflow. `discrete` marks a domain without real variables, where a box's mass bounds its points.
    """

    is_sum: Flags
    child_ptr: Ints
    children: Ints32
    log_weights: Floats
    leaf_ptr: Ints
    leaf_var: Ints32
    leaf_start: Ints
    in_logs: Flags
    tables: Floats
    log_tables: Floats
    functions: Ints
    decides: Ints32
    offsets: Ints
    n_states: Ints
    scales: Floats
    is_whole: Flags
    discrete: bool


class Space(NamedTuple):
    """Outputs of one upward and downward pass; allocated once per call of a kernel.

    Logs of each node's mass and bound, leaf terms (in logs where the leaf is), linear edge terms relative to their
    node's largest, and flows relative to the root's value; `relative_*` (columns,) are the results by column.

    Edge terms, flows and results are upper bounds: 0 means impossible, and `SMALLEST_NORMAL` replaces numbers that
    would underflow.
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
