"""Bundles of arrays that kernels take as one argument."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from certimap.kernels.jit import Scalar as Scalar


class CircuitArrays(NamedTuple):
    """The inner structure of a `Circuit`, with node kinds from `NodeKind` (0 and 1 are leaves)."""

    kind: NDArray[np.int8]
    child_ptr: NDArray[np.int64]
    children: NDArray[np.int64]
    log_weights: NDArray[np.float64]
    leaf_var: NDArray[np.int32]


class QueriedLeaves(NamedTuple):
    """The queried leaves of a circuit in rising order, so that passes over all nodes meet them one by one.

    The vector of leaf `nodes[k]` starts at `start[k]` in `log_tables`. `states[k]` has the bits of its allowed
    states (modulo 64); 0 for a real leaf.
    """

    nodes: NDArray[np.int32]
    start: NDArray[np.int32]
    states: NDArray[np.int64]
    log_tables: NDArray[np.float64]


class NewNodes(NamedTuple):
    """Nodes of a rewritten circuit, with members in a pool; kinds are 0 leaf, 1 product, 2 sum.

    Node i has the members `pool_child[ptr[i]:ptr[i + 1]]` with natural-log weights `pool_weight`. A
    leaf has a variable and a start of its vector. `inlined` nodes dissolve into their only parent.
    """

    kind: NDArray[np.int8]
    ptr: NDArray[np.int32]
    leaf_var: NDArray[np.int32]
    leaf_start: NDArray[np.int32]
    decides: NDArray[np.int32]
    inlined: NDArray[np.bool_]
    n_parents: NDArray[np.int32]
    pool_child: NDArray[np.int32]
    pool_weight: NDArray[np.float64]


class Workspace(NamedTuple):
    """Scratch memory of `lay_out`: stacks, and final numbers (-1 at first).

    The members of the nodes on the stack, without inlined ones, lie from `flat_begin` to `flat_end` in the pool
    `flat_child` and `flat_weight`. Unused parts are never touched, and take no memory.
    """

    stack: NDArray[np.int32]
    cursor: NDArray[np.int32]
    inner_stack: NDArray[np.int32]
    inner_weight: NDArray[np.float64]
    flat_begin: NDArray[np.int32]
    flat_end: NDArray[np.int32]
    flat_child: NDArray[np.int32]
    flat_weight: NDArray[np.float64]
    final: NDArray[np.int32]


class LeafLayout(NamedTuple):
    """The arrays of a `Plan` while they are written; `sizes` counts nodes, inner edges and leaves."""

    is_sum: NDArray[np.bool_]
    child_ptr: NDArray[np.int64]
    children: NDArray[np.int32]
    log_weights: NDArray[np.float64]
    leaf_ptr: NDArray[np.int64]
    leaf_var: NDArray[np.int32]
    leaf_start: NDArray[np.int64]
    decides: NDArray[np.int32]
    sizes: NDArray[np.int64]


class LeafPlaces(NamedTuple):
    """The leaf arrays of `PlanArrays` while they are written; `floors` (n_leaves + 1,) becomes `leaf_floors`."""

    leaf_ptr: NDArray[np.int64]
    binary_end: NDArray[np.int64]
    narrow_end: NDArray[np.int64]
    wide_end: NDArray[np.int64]
    leaf_var: NDArray[np.int32]
    leaf_start: NDArray[np.int64]
    first: NDArray[np.float64]
    second: NDArray[np.float64]
    mantissas: NDArray[np.float64]
    floors: NDArray[np.float64]


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

    is_sum: NDArray[np.bool_]
    child_ptr: NDArray[np.int64]
    children: NDArray[np.int32]
    weights: NDArray[np.float64]
    weight_counts: NDArray[np.float64]
    log_weights: NDArray[np.float64]
    leaf_ptr: NDArray[np.int64]
    binary_end: NDArray[np.int64]
    narrow_end: NDArray[np.int64]
    wide_end: NDArray[np.int64]
    leaf_var: NDArray[np.int32]
    leaf_start: NDArray[np.int64]
    first: NDArray[np.float64]
    second: NDArray[np.float64]
    mantissas: NDArray[np.float64]
    table_counts: NDArray[np.float64]
    probabilities: NDArray[np.float64]
    log_tables: NDArray[np.float64]
    offsets: NDArray[np.int64]
    functions: NDArray[np.int64]
    leaf_floors: NDArray[np.float64]
    floors: NDArray[np.float64]
    settles: NDArray[np.bool_]
