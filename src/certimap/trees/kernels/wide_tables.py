"""Tables of wide numbers, flat or as rows: see `certimap.kernels.wide`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.kernels.jit import jit
from certimap.kernels.wide import ZERO, normal, shifted

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@jit()
def split(values: Floats, mantissa: Floats, exponent: Ints) -> None:
    """Write doubles as mantissas and exponents."""
    for i in range(len(values)):
        if values[i] == 0.0:
            mantissa[i], exponent[i] = 0.0, ZERO
        else:
            mantissa[i], exponent[i] = math.frexp(values[i])


@jit()
def join(mantissa: Floats, exponent: Ints, values: Floats) -> None:
    """Write wide numbers as doubles; tiny numbers become denormals or 0."""
    for i in range(len(mantissa)):
        values[i] = math.ldexp(mantissa[i], int(min(max(exponent[i], -2000), 2000)))


@jit()
def smallest_exponent(mantissa: Floats, exponent: Ints) -> Any:
    """Return the exponent of the smallest positive entry, 0 if none is below 1."""
    smallest = 0
    for i in range(len(mantissa)):
        if mantissa[i] > 0.0:
            smallest = min(smallest, exponent[i])
    return smallest


@jit()
def normalise(mantissa: Floats, exponent: Ints) -> None:
    """Bring mantissas into [1/2, 1), in place."""
    for i in range(len(mantissa)):
        mantissa[i], exponent[i] = normal(mantissa[i], exponent[i])


@jit()
def divide_rows(
    mantissa: Floats, exponent: Ints, share: Floats, share_exponent: Ints, total: Floats, total_exponent: Ints
) -> None:
    """Write the sums of rows, and the entries divided by them (0 in a row of zeros)."""
    n_rows, n_columns = mantissa.shape
    for r in range(n_rows):
        top = ZERO
        for j in range(n_columns):
            top = max(top, exponent[r, j])
        found = 0.0
        for j in range(n_columns):
            found += shifted(mantissa[r, j], top - exponent[r, j])
        for j in range(n_columns):
            if mantissa[r, j] > 0.0:
                share[r, j], share_exponent[r, j] = normal(mantissa[r, j] / found, exponent[r, j] - top)
            else:
                share[r, j], share_exponent[r, j] = 0.0, ZERO
        total[r], total_exponent[r] = normal(found, top)
