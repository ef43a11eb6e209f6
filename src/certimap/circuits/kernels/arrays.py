"""Bundles of arrays that kernels take as one argument, and the working arrays of passes over a plan."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from certimap.core.arrays import Flags, Floats, Ints, Ints8, Ints32
from certimap.kernels.jit import Scalar as Scalar
from certimap.kernels.jit import jit_part


class CircuitArrays(NamedTuple):
    """The inner structure of a `Circuit`, with node kinds from `NodeKind` (0 and 1 are leaves)."""

    kind: Ints8
    child_ptr: Ints
    children: Ints
    log_weights: Floats
    leaf_var: Ints32


class QueriedLeaves(NamedTuple):
    """The queried leaves of a circuit in rising order, so that passes over all nodes meet them one by one.

    The vector of leaf `nodes[k]` starts at `start[k]` in `log_tables`. `states[k]` has the bits of its allowed
    states (modulo 64); 0 for a real leaf.
    """

    nodes: Ints32
    start: Ints32
    states: Ints
    log_tables: Floats


class NewNodes(NamedTuple):
    """Nodes of a rewritten circuit, with members in a pool; kinds are 0 leaf, 1 product, 2 sum.

    Node i has the members `pool_child[ptr[i]:ptr[i + 1]]` with natural-log weights `pool_weight`. A
    leaf has a `variable` and a start of its vector; a sum the variable that it decides, or -1. `inlined` nodes
    dissolve into their only parent.
    """

    kind: Ints8
    ptr: Ints32
    variable: Ints32
    leaf_start: Ints32
    inlined: Flags
    n_parents: Ints32
    pool_child: Ints32
    pool_weight: Floats


class Workspace(NamedTuple):
    """Scratch memory of `lay_out`: stacks, and final numbers (-1 at first).

    Members of nodes on the stack lie from `flat_begin` to `flat_end` in the pool `flat_child` and `flat_weight`.
    """

    stack: Ints32
    cursor: Ints32
    inner_stack: Ints32
    inner_weight: Floats
    flat_begin: Ints32
    flat_end: Ints32
    flat_child: Ints32
    flat_weight: Floats
    final: Ints32


class LeafLayout(NamedTuple):
    """The arrays of a `Plan` while they are written; `sizes` counts nodes, inner edges and leaves."""

    is_sum: Flags
    child_ptr: Ints
    children: Ints32
    log_weights: Floats
    leaf_ptr: Ints
    leaf_var: Ints32
    leaf_start: Ints
    decides: Ints32
    sizes: Ints


class PlanArrays(NamedTuple):
    """A `Plan` for the evaluation kernels.

    Numbers are `value * 2^(-256 count)` (see `scaled.py`): weights from `weights` and `weight_counts`, entries of
    leaves' vectors from `mantissas` and `table_counts`. A leaf is narrow if it is categorical and has no positive
    entry below 2^-128. In each product the narrow leaves of binary variables come first and end at `binary_end`,
    then the other narrow ones up to `narrow_end`, then the other categorical ones (binary ones first) up to
    `wide_end`, and then the real ones. `first` and `second` are the first two entries of each leaf's vector.
    `offsets` gives a variable's columns; a real variable has none. For `functions` see `kernels/real.py`.

    Floors are lower bounds on log2 of positive values: `leaf_floors` (n_leaves + 1,) are running sums over leaves,
    `floors` (n_nodes,) are floors of nodes, and `settles` marks sums whose terms may be below their floor.
    `probabilities` are the plain entries for draws; some underflow.
    """

    is_sum: Flags
    child_ptr: Ints
    children: Ints32
    weights: Floats
    weight_counts: Floats
    log_weights: Floats
    leaf_ptr: Ints
    binary_end: Ints
    narrow_end: Ints
    wide_end: Ints
    leaf_var: Ints32
    leaf_start: Ints
    first: Floats
    second: Floats
    mantissas: Floats
    table_counts: Floats
    probabilities: Floats
    log_tables: Floats
    offsets: Ints
    functions: Ints
    leaf_floors: Floats
    floors: Floats
    settles: Flags


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
        np.zeros(n_nodes), np.zeros(n_nodes), np.zeros(n_leaves), np.zeros(n_leaves), np.zeros(n_edges),
        np.zeros(n_edges), np.zeros(n_nodes), np.zeros(n_nodes), np.zeros(n_nodes), np.zeros(n_nodes),
        np.zeros(columns), np.zeros(columns), np.zeros(n), np.zeros(n), np.zeros(n),
    )  # fmt: skip
