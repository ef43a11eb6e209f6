"""Leaves over real variables in kernels: a vector of eight numbers, and functions called by address.

A leaf's vector holds the code of its kind, its interval, ln of the unrestricted leaf's mass in the interval, and
four parameters. `functions` is `certimap.circuits.leaves.kind.function_table`.
"""

from __future__ import annotations

import math

import numpy as np

from certimap.core.arrays import Floats, Ints, Words
from certimap.kernels.jit import jit, jit_part
from certimap.kernels.pointers import call_draw, call_real
from certimap.kernels.random import Scalar

DENSITY, MASS, PEAK, SCALE, DRAW, SLOPE, LEAST_CURVATURE, LARGEST_CURVATURE = 0, 1, 2, 3, 4, 5, 6, 7
LOW, HIGH, LOG_NORM, FIRST = 1, 2, 3, 4

Functions = Ints
Number = float | Floats


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
def _answer(
    functions: Functions, questions: Ints, tables: Floats, starts: Ints, x: Floats, y: Floats, out: Floats
) -> None:
    for i in range(len(starts)):
        out[i] = ask(functions, questions[i], tables, starts[i], x[i], y[i])


def answers(
    functions: Functions, questions: int | Ints, tables: Floats, starts: Ints, x: Number, y: Number
) -> Floats:
    """Return what each unrestricted leaf answers to a question about two numbers, shape (n_leaves,)."""
    n, out = len(starts), np.empty(len(starts))
    given = np.full(n, questions, np.int64), tables, np.ascontiguousarray(starts, np.int64)
    _answer(functions, *given, np.full(n, x, np.float64), np.full(n, y, np.float64), out)
    return out


def peaks_in(functions: Functions, tables: Floats, starts: Ints, low: Number, high: Number) -> Floats:
    """Return the maximiser of each leaf's density in [low, high], shape (n_leaves,); see `peak_in`."""
    low, high = np.maximum(low, tables[starts + LOW]), np.minimum(high, tables[starts + HIGH])
    return answers(functions, PEAK, tables, starts, low, np.maximum(low, high))


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
