"""Masses of real leaves in the cells of a partition."""

from __future__ import annotations

import math

from certimap.circuits.kernels.real import Functions, log_mass
from certimap.core.arrays import Floats, Ints
from certimap.kernels.jit import jit


@jit()
def fill_cell_masses(
    functions: Functions,
    tables: Floats,
    starts: Ints,
    first_edge: Ints,
    first_cell: Ints,
    edges: Floats,
    least: float,
    out: Floats,
) -> None:
    """Write ln of the mass of every leaf in every cell of its variable.

    Leaf i has `first_cell[i + 1] - first_cell[i]` cells, between neighbours of `edges` from `first_edge[i]` on.
    Logs of possible cells are at least `least`.
    """
    for i in range(len(starts)):
        at = first_edge[i]
        for j in range(first_cell[i], first_cell[i + 1]):
            mass = log_mass(functions, tables, starts[i], edges[at], edges[at + 1])
            out[j] = mass if mass == -math.inf else max(mass, least)
            at += 1
