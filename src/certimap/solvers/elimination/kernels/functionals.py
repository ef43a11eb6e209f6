"""Bounds over (contexts, hidden states) in wide numbers: see `certimap.kernels.wide`.

They are upper bounds on vectors inside a region, or on linear functionals that map these vectors to values of the
whole. A matrix is a pair of arrays, mantissas and exponents. A context is a configuration of query variables.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from certimap.kernels.jit import jit
from certimap.kernels.wide import ZERO, larger, normal, plus, shifted, times

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

STEP = 256  # exponents of frames are multiples of this


@jit()
def fold(
    matrix: Floats,
    exponents: Ints,
    child: Floats,
    child_exponents: Ints,
    context: Ints,
    hidden: Ints,
    out: Floats,
    out_exponents: Ints,
) -> None:
    """Multiply a joint matrix by a child's; entry (c, h) meets the child's (context[c], hidden[h])."""
    for c in range(len(context)):
        for h in range(len(hidden)):
            out[c, h], out_exponents[c, h] = times(
                matrix[c, h], exponents[c, h], child[context[c], hidden[h]], child_exponents[context[c], hidden[h]]
            )


@jit()
def reduce(matrix: Floats, exponents: Ints, context: Ints, hidden: Ints, out: Floats, out_exponents: Ints) -> None:
    """Map a functional on the joint space to a child: sum over hidden states, maximise over contexts."""
    n_hidden = out.shape[1]
    out[:, :] = 0.0
    out_exponents[:, :] = ZERO
    total, top = np.empty(n_hidden), np.empty(n_hidden, np.int64)
    for c in range(len(context)):
        total[:] = 0.0
        top[:] = ZERO
        for h in range(len(hidden)):
            d = hidden[h]
            total[d], top[d] = plus(total[d], top[d], matrix[c, h], exponents[c, h])
        o = context[c]
        for d in range(n_hidden):
            m, e = normal(total[d], top[d])
            out[o, d], out_exponents[o, d] = larger(out[o, d], out_exponents[o, d], m, e)


@jit()
def project(
    matrix: Floats,
    exponents: Ints,
    table: Floats,
    table_exponents: Ints,
    shape: tuple[int, int, int, int, int],
    is_query: bool,
    out: Floats,
    out_exponents: Ints,
) -> None:
    """Map a functional on a region's separator down to its joint space, through its table.

    `shape` is (shared_query, shared_hidden, rest_query, rest_hidden, own states) and `table` is flat in that
    order; `table_exponents` may be empty. `rest_hidden` is summed over, `rest_query` maximised over.
    """
    n_sq, n_sh, n_rq, n_rh, k = shape
    has_exponents = len(table_exponents) > 0
    total, top = np.empty(k), np.empty(k, np.int64)
    for sq in range(n_sq):
        for sh in range(n_sh):
            for v in range(k):
                c, h = (sq * k + v, sh) if is_query else (sq, sh * k + v)
                out[c, h], out_exponents[c, h] = 0.0, ZERO
            for rq in range(n_rq):
                total[:] = 0.0
                top[:] = ZERO
                for rh in range(n_rh):
                    m, e = matrix[sq * n_rq + rq, sh * n_rh + rh], exponents[sq * n_rq + rq, sh * n_rh + rh]
                    t = (((sq * n_sh + sh) * n_rq + rq) * n_rh + rh) * k
                    if m == 0.0:
                        continue
                    for v in range(k):
                        x = e + table_exponents[t + v] if has_exponents else e
                        total[v], top[v] = plus(total[v], top[v], m * table[t + v], x)
                for v in range(k):
                    c, h = (sq * k + v, sh) if is_query else (sq, sh * k + v)
                    m, e = normal(total[v], top[v])
                    out[c, h], out_exponents[c, h] = larger(out[c, h], out_exponents[c, h], m, e)


@jit()
def smaller(
    left: Floats, left_exponents: Ints, right: Floats, right_exponents: Ints, out: Floats, out_exponents: Ints
) -> None:
    """Write the entrywise minimum of two flat arrays."""
    for i in range(len(left)):
        if left_exponents[i] < right_exponents[i] or (
            left_exponents[i] == right_exponents[i] and left[i] <= right[i]
        ):
            out[i], out_exponents[i] = left[i], left_exponents[i]
        else:
            out[i], out_exponents[i] = right[i], right_exponents[i]


@jit()
def scaled(matrix: Floats, exponents: Ints, offsets: Ints, bound: Floats, out: Floats) -> int:
    """Write doubles out = matrix 2^(offsets - top), the largest in [1/2, 1); return the exponent top.

    `offsets` may be empty (all 0). Results below 2^-1074 become 0, and so do entries for which `bound`, a bound on
    the vectors, is 0. If all are 0, top is `ZERO`.
    """
    has_offsets = offsets.size > 0
    top = ZERO
    for c in range(matrix.shape[0]):
        for h in range(matrix.shape[1]):
            if matrix[c, h] > 0.0 and bound[c, h] > 0.0:
                e = exponents[c, h] + offsets[c, h] if has_offsets else exponents[c, h]
                top = max(top, e)
    if top == ZERO:
        out[:, :] = 0.0
        return top
    for c in range(matrix.shape[0]):
        for h in range(matrix.shape[1]):
            e = exponents[c, h] + offsets[c, h] if has_offsets else exponents[c, h]
            is_positive = matrix[c, h] > 0.0 and bound[c, h] > 0.0
            out[c, h] = shifted(matrix[c, h], top - e) if is_positive else 0.0
    return top


@jit()
def frame(matrix: Floats, exponents: Ints, offsets: Ints) -> tuple[int, bool]:
    """Choose exponents base + offsets, in steps of `STEP`, for vectors that the matrix bounds.

    An entry of a vector is then at most 2^(STEP/2). Returns the base, and whether any offset is not 0.
    """
    base = ZERO
    for c in range(matrix.shape[0]):
        for h in range(matrix.shape[1]):
            if matrix[c, h] > 0.0:
                base = max(base, exponents[c, h])
    found = False
    for c in range(matrix.shape[0]):
        for h in range(matrix.shape[1]):
            offsets[c, h] = 0
            if matrix[c, h] > 0.0:
                offsets[c, h] = -((base - exponents[c, h] + STEP // 2) // STEP) * STEP
                found = found or offsets[c, h] != 0
    return (base if base > ZERO else 0), found


@jit()
def unframed(values: Floats, base: int, offsets: Ints, out: Floats, out_exponents: Ints) -> None:
    """Write values 2^(base + offsets) as wide numbers; `offsets` may be empty."""
    has_offsets = offsets.size > 0
    for c in range(values.shape[0]):
        for h in range(values.shape[1]):
            e = base + offsets[c, h] if has_offsets else base
            out[c, h], out_exponents[c, h] = normal(values[c, h], e)


@jit()
def framed_table(
    table: Floats,
    table_exponents: Ints,
    shape: tuple[int, int, int, int, int],
    is_query: bool,
    joint_offsets: Ints,
    out_offsets: Ints,
    shift: int,
    limit: int,
    out: Floats,
) -> None:
    """Rescale a region's table between two frames: table 2^(shift + joint offset - out offset).

    Exponents are capped at `limit`; exponents and offsets may be empty.
    """
    n_sq, n_sh, n_rq, n_rh, k = shape
    has_exponents, has_joint, has_out = len(table_exponents) > 0, joint_offsets.size > 0, out_offsets.size > 0
    t = 0
    for sq in range(n_sq):
        for sh in range(n_sh):
            for rq in range(n_rq):
                for rh in range(n_rh):
                    for v in range(k):
                        m, e = normal(table[t], table_exponents[t] + shift if has_exponents else shift)
                        if has_joint:
                            e += joint_offsets[sq * k + v, sh] if is_query else joint_offsets[sq, sh * k + v]
                        if has_out:
                            e -= out_offsets[sq * n_rq + rq, sh * n_rh + rh]
                        e = min(e, limit)
                        out[t] = m * 2.0**e if e > 0 else shifted(m, -e)
                        t += 1
