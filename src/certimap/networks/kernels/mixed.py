"""One step of an elimination: multiply up to four tables, and sum or maximise one variable out.

The tables are flat arrays of doubles. Their axes are merged into groups along which every table moves evenly. The
longest group is the inner loop, cut into chunks that stay in the cache while the other groups turn.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from certimap.core.arrays import Floats, Ints
from certimap.kernels.jit import Scalar, jit, jit_part

MAX_INPUTS = 4
CHUNK = 1024  # entries of the inner loop that are finished for all turns of the other groups
Tables = tuple[Floats, Floats, Floats, Floats]  # flat; one that is not needed is a single 1 with strides 0


class Moves(NamedTuple):
    """The groups of axes, and the strides of the four tables and of the result along each."""

    sizes: Ints  # the lengths of the outer groups, shape (groups,)
    strides: Ints  # along them, shape (groups, 5)
    inner: Ints  # along the inner group, shape (5,)
    own: Ints  # along the eliminated variable, shape (5,), the result's being 0


@jit_part
def _along(tables: Tables, at: Ints, moves: Ints, n: int, is_max: bool, first: bool, out: Floats) -> None:
    """Enter one state of the eliminated variable into `n` entries of the result."""
    a, b, c, d = tables
    ta, tb, tc, td, to = moves[0], moves[1], moves[2], moves[3], moves[4]
    oa, ob, oc, od, oo = at[0], at[1], at[2], at[3], at[4]
    if tb == 0 and tc == 0 and td == 0:
        f = b[ob] * c[oc] * d[od]
        if ta == 1 and to == 1:
            if first:
                for j in range(n):
                    out[oo + j] = a[oa + j] * f
            elif is_max:
                for j in range(n):
                    out[oo + j] = max(out[oo + j], a[oa + j] * f)
            else:
                for j in range(n):
                    out[oo + j] += a[oa + j] * f
        elif first:
            for j in range(n):
                out[oo + j * to] = a[oa + j * ta] * f
        elif is_max:
            for j in range(n):
                out[oo + j * to] = max(out[oo + j * to], a[oa + j * ta] * f)
        else:
            for j in range(n):
                out[oo + j * to] += a[oa + j * ta] * f
    elif tc == 0 and td == 0:
        f = c[oc] * d[od]
        if first:
            for j in range(n):
                out[oo + j * to] = a[oa + j * ta] * b[ob + j * tb] * f
        elif is_max:
            for j in range(n):
                out[oo + j * to] = max(out[oo + j * to], a[oa + j * ta] * b[ob + j * tb] * f)
        else:
            for j in range(n):
                out[oo + j * to] += a[oa + j * ta] * b[ob + j * tb] * f
    else:
        for j in range(n):
            p = a[oa + j * ta] * b[ob + j * tb] * c[oc + j * tc] * d[od + j * td]
            if first:
                out[oo + j * to] = p
            elif is_max:
                out[oo + j * to] = max(out[oo + j * to], p)
            else:
                out[oo + j * to] += p


@jit_part
def _both(
    a: Floats, first: int, second: int, ta: int, f: Scalar, g: Scalar, n: int, is_max: bool,
    out: Floats, oo: int, to: int,
) -> None:  # fmt: skip
    """Enter both states of a binary variable, where one table moves and the others make numbers f and g."""
    if is_max:
        if ta == 1 and to == 1:
            for j in range(n):
                out[oo + j] = max(a[first + j] * f, a[second + j] * g)
        else:
            for j in range(n):
                out[oo + j * to] = max(a[first + j * ta] * f, a[second + j * ta] * g)
    elif ta == 1 and to == 1:
        for j in range(n):
            out[oo + j] = a[first + j] * f + a[second + j] * g
    elif ta == 1:
        for j in range(n):
            out[oo + j * to] = a[first + j] * f + a[second + j] * g
    else:
        for j in range(n):
            out[oo + j * to] = a[first + j * ta] * f + a[second + j * ta] * g


@jit()
def combine(tables: Tables, moves: Moves, n_own: int, is_max: bool, start: int, stop: int, out: Floats) -> None:
    """Write the entries of a message whose place along the inner group is from `start` to before `stop`.

    `n_own`: the states of the eliminated variable. `is_max`: whether it is maximised; else it is summed.
    """
    a, b, c, d = tables
    sizes, strides, inner, own = moves
    n_groups = len(sizes)
    position = np.zeros(n_groups, np.int64)
    base, at = np.zeros(5, np.int64), np.zeros(5, np.int64)
    for low in range(start, stop, CHUNK):
        n = min(CHUNK, stop - low)
        position[:] = 0
        for k in range(5):
            base[k] = low * inner[k]
        while True:
            if n_own == 2 and inner[1] == 0 and inner[2] == 0 and inner[3] == 0:
                f = b[base[1]] * c[base[2]] * d[base[3]]
                g = b[base[1] + own[1]] * c[base[2] + own[2]] * d[base[3] + own[3]]
                _both(a, base[0], base[0] + own[0], inner[0], f, g, n, is_max, out, base[4], inner[4])
            else:
                for s in range(n_own):
                    for k in range(5):
                        at[k] = base[k] + s * own[k]
                    _along(tables, at, inner, n, is_max, s == 0, out)
            g = n_groups - 1
            while g >= 0:
                if position[g] + 1 < sizes[g]:
                    position[g] += 1
                    for k in range(5):
                        base[k] += strides[g, k]
                    break
                for k in range(5):
                    base[k] -= position[g] * strides[g, k]
                position[g] = 0
                g -= 1
            if g < 0:
                break


@jit()
def settle(values: Floats, factor: float, floor: float) -> None:
    """Multiply all entries by a factor, and raise positive ones below `floor` to it; a 0 stays a 0."""
    for i in range(len(values)):
        if values[i] > 0.0:
            values[i] = max(values[i] * factor, floor)
