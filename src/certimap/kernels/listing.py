"""Whether automata accept assignments."""

from __future__ import annotations

import numpy as np

from certimap.core.arrays import Flags, Ints, Ints16
from certimap.kernels.jit import jit

BLOCK = 32  # points that are read together, so that no read waits for another


@jit()
def accepted(
    variable_ptr: Ints, variables: Ints, starts: Ints, tables: Ints, points: Ints16, out: Flags
) -> None:  # fmt: skip
    """Clear the flags, shape (batch,), of points that some automaton does not accept.

    Automaton a starts at place `starts[a]` of the tables and is led from place to place by the variables from
    `variable_ptr[a]` on; 0 means no.
    """
    place = np.empty(BLOCK, np.int64)
    for first in range(0, len(points), BLOCK):
        n = min(BLOCK, len(points) - first)
        for a in range(len(starts)):
            place[:] = starts[a]
            for k in range(variable_ptr[a], variable_ptr[a + 1]):
                v = variables[k]
                for b in range(n):
                    place[b] = tables[place[b] + points[first + b, v]]
            for b in range(n):
                if place[b] == 0:
                    out[first + b] = False
