"""Leaves over real variables in kernels: a vector of eight numbers, and functions called by address.

A leaf's vector holds the code of its kind, its interval, ln of the unrestricted leaf's mass in the interval, and
four parameters. `functions` is `certimap.circuits.leaves.kind.function_table`.
"""

from __future__ import annotations

import math

from certimap.core.arrays import Flags, Floats, Ints, Words
from certimap.kernels.jit import jit, jit_part
from certimap.kernels.pointers import call_draw, call_real
from certimap.kernels.random import Scalar

DENSITY, MASS, PEAK, SCALE, DRAW, SLOPE, LEAST_CURVATURE, LARGEST_CURVATURE = 0, 1, 2, 3, 4, 5, 6, 7
LOW, HIGH, LOG_NORM, FIRST = 1, 2, 3, 4

Functions = Ints


@jit_part
def ask(functions: Functions, question: Scalar, tables: Floats, start: Scalar, x: Scalar, y: Scalar) -> Scalar:
    """Call a function of the unrestricted leaf whose vector begins at `start`."""
    row = 1 - int(tables[start])
    a, b = tables[start + FIRST], tables[start + FIRST + 1]
    c, d = tables[start + FIRST + 2], tables[start + FIRST + 3]
    return call_real(functions[row, question], a, b, c, d, x, y)


@jit_part
def log_density(functions: Functions, tables: Floats, start: Scalar, x: Scalar) -> Scalar:
    """Return ln of a leaf's density at x; -inf if and only if x is impossible."""
    if not tables[start + LOW] <= x <= tables[start + HIGH]:
        return -math.inf
    return ask(functions, DENSITY, tables, start, x, x) - tables[start + LOG_NORM]


@jit_part
def log_mass(functions: Functions, tables: Floats, start: Scalar, low: Scalar, high: Scalar) -> Scalar:
    """Return ln of a leaf's mass in [low, high]."""
    low, high = max(low, tables[start + LOW]), min(high, tables[start + HIGH])
    if not low < high:
        return -math.inf
    return ask(functions, MASS, tables, start, low, high) - tables[start + LOG_NORM]


@jit_part
def peak_in(functions: Functions, tables: Floats, start: Scalar, low: Scalar, high: Scalar) -> Scalar:
    """Return the maximiser of a leaf's density in [low, high]; an end if the density is 0 throughout."""
    low, high = max(low, tables[start + LOW]), min(high, tables[start + HIGH])
    return ask(functions, PEAK, tables, start, low, max(low, high))


@jit_part
def log_peak(functions: Functions, tables: Floats, start: Scalar, low: Scalar, high: Scalar) -> Scalar:
    """Return ln of a leaf's largest density in [low, high]."""
    if max(low, tables[start + LOW]) > min(high, tables[start + HIGH]):
        return -math.inf
    return log_density(functions, tables, start, peak_in(functions, tables, start, low, high))


@jit_part
def scale_of(functions: Functions, tables: Floats, start: Scalar) -> Scalar:
    """Return a length over which a leaf's density changes."""
    return ask(functions, SCALE, tables, start, 0.0, 0.0)


@jit_part
def draw_in(
    functions: Functions, tables: Floats, start: Scalar, low: Scalar, high: Scalar, stream: Words
) -> Scalar:
    """Draw from a leaf inside [low, high]."""
    low, high = max(low, tables[start + LOW]), min(high, tables[start + HIGH])
    row = 1 - int(tables[start])
    a, b = tables[start + FIRST], tables[start + FIRST + 1]
    c, d = tables[start + FIRST + 2], tables[start + FIRST + 3]
    return call_draw(functions[row, DRAW], a, b, c, d, low, high, stream)


@jit()
def fill_log_masses(functions: Functions, tables: Floats, starts: Ints, out: Floats) -> None:
    """Write ln of the mass of every leaf in its interval, or of its density if the interval is a point."""
    for i in range(len(starts)):
        low, high = tables[starts[i] + LOW], tables[starts[i] + HIGH]
        out[i] = ask(functions, DENSITY if low == high else MASS, tables, starts[i], low, high)


@jit()
def fill_touching(functions: Functions, tables: Floats, starts: Ints, out: Flags) -> None:
    """Write, for every leaf, whether its density is positive at one of the ends of its interval."""
    for i in range(len(starts)):
        out[i] = False
        for end in (tables[starts[i] + LOW], tables[starts[i] + HIGH]):
            if abs(end) < math.inf and ask(functions, DENSITY, tables, starts[i], end, end) > -math.inf:
                out[i] = True


@jit()
def fill_scales(functions: Functions, tables: Floats, starts: Ints, out: Floats) -> None:
    """Write the scale of every leaf."""
    for i in range(len(starts)):
        out[i] = scale_of(functions, tables, starts[i])


@jit()
def fill_peaks(functions: Functions, tables: Floats, starts: Ints, low: Floats, high: Floats, out: Floats) -> None:
    """Write the maximiser of every leaf's density in [low, high]."""
    for i in range(len(starts)):
        out[i] = peak_in(functions, tables, starts[i], low[i], high[i])


@jit()
def mixture_log_densities(
    functions: Functions, tables: Floats, starts: Ints, log_weights: Floats, points: Floats, out: Floats
) -> None:
    """Write ln of a mixture's density at some points."""
    for k in range(len(points)):
        top, total = -math.inf, 0.0
        for i in range(len(starts)):
            top = max(top, log_weights[i] + log_density(functions, tables, starts[i], points[k]))
        if top > -math.inf:
            for i in range(len(starts)):
                total += math.exp(log_weights[i] + log_density(functions, tables, starts[i], points[k]) - top)
            top += math.log(total)
        out[k] = top


@jit()
def fill_cell_masses(
    functions: Functions, tables: Floats, starts: Ints, first_edge: Ints, first_cell: Ints, edges: Floats,
    least: float, out: Floats,
) -> None:  # fmt: skip
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
