"""Sets of nonnegative vectors: frames, linear bounds, products, elimination of a variable, merging.

Rows `ptr[c]:ptr[c + 1]` belong to context c, a configuration of the queried variables that the rows' region shares
with the rest of the tree. Rows of different contexts are never combined, other than in products. A region's shape
is (shared_query, shared_hidden, rest_query, rest_hidden, own states), and its table is flat in that order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from certimap.core.arrays import Flags, Floats, Ints, Ints16
from certimap.core.rounding import ULP
from certimap.kernels.jit import jit
from certimap.kernels.wide import ZERO, WideArrays, larger, normal, plus, shifted, times
from certimap.solvers.elimination.kernels.dominance import BLOCK, block_maxima, spatial_order

Shape = tuple[int, int, int, int, int]
STEP = 256  # exponents of frames are multiples of this


class VectorRows(NamedTuple):
    """Rows of vectors by context; see above."""

    values: Floats
    ptr: Ints


class Pairs(NamedTuple):
    """Selected pairs of rows of two sets, with the scores of their products, and pointers by context."""

    left: Ints
    right: Ints
    scores: Floats
    ptr: Ints


@jit()
def fold(matrix: WideArrays, child: WideArrays, context: Ints, hidden: Ints, out: WideArrays) -> None:
    """Multiply a joint matrix by a child's; entry (c, h) meets the child's (context[c], hidden[h])."""
    for c in range(len(context)):
        for h in range(len(hidden)):
            a, b = context[c], hidden[h]
            out.mantissa[c, h], out.exponent[c, h] = times(
                matrix.mantissa[c, h], matrix.exponent[c, h], child.mantissa[a, b], child.exponent[a, b]
            )


@jit()
def reduce(matrix: WideArrays, context: Ints, hidden: Ints, out: WideArrays) -> None:
    """Map a functional on the joint space to a child: sum over hidden states, maximise over contexts."""
    n_hidden = out.mantissa.shape[1]
    out.mantissa[:, :] = 0.0
    out.exponent[:, :] = ZERO
    total, top = np.empty(n_hidden), np.empty(n_hidden, np.int64)
    for c in range(len(context)):
        total[:] = 0.0
        top[:] = ZERO
        for h in range(len(hidden)):
            d = hidden[h]
            total[d], top[d] = plus(total[d], top[d], matrix.mantissa[c, h], matrix.exponent[c, h])
        o = context[c]
        for d in range(n_hidden):
            m, e = normal(total[d], top[d])
            out.mantissa[o, d], out.exponent[o, d] = larger(out.mantissa[o, d], out.exponent[o, d], m, e)


@jit()
def project(matrix: WideArrays, table: WideArrays, shape: Shape, is_query: bool, out: WideArrays) -> None:
    """Map a functional on a separator through the table, whose exponents may be empty, to the joint space."""
    n_sq, n_sh, n_rq, n_rh, k = shape
    has_exponents = len(table.exponent) > 0
    total, top = np.empty(k), np.empty(k, np.int64)
    for sq in range(n_sq):
        for sh in range(n_sh):
            for v in range(k):
                c, h = (sq * k + v, sh) if is_query else (sq, sh * k + v)
                out.mantissa[c, h], out.exponent[c, h] = 0.0, ZERO
            for rq in range(n_rq):
                total[:] = 0.0
                top[:] = ZERO
                for rh in range(n_rh):
                    c, h = sq * n_rq + rq, sh * n_rh + rh
                    m, e = matrix.mantissa[c, h], matrix.exponent[c, h]
                    t = (((sq * n_sh + sh) * n_rq + rq) * n_rh + rh) * k
                    if m == 0.0:
                        continue
                    for v in range(k):
                        x = e + table.exponent[t + v] if has_exponents else e
                        total[v], top[v] = plus(total[v], top[v], m * table.mantissa[t + v], x)
                for v in range(k):
                    c, h = (sq * k + v, sh) if is_query else (sq, sh * k + v)
                    m, e = normal(total[v], top[v])
                    out.mantissa[c, h], out.exponent[c, h] = larger(out.mantissa[c, h], out.exponent[c, h], m, e)


@jit()
def scaled(matrix: WideArrays, offsets: Ints, bound: Floats, out: Floats) -> int:
    """Write doubles out = matrix 2^(offsets - top), the largest in [1/2, 1); return top, `ZERO` if all are 0.

    `offsets` may be empty (all 0). Results below 2^-1074 become 0, and so do entries for which `bound`, a bound on
    the vectors, is 0.
    """
    has_offsets = offsets.size > 0
    top = ZERO
    for c in range(matrix.mantissa.shape[0]):
        for h in range(matrix.mantissa.shape[1]):
            if matrix.mantissa[c, h] > 0.0 and bound[c, h] > 0.0:
                e = matrix.exponent[c, h] + offsets[c, h] if has_offsets else matrix.exponent[c, h]
                top = max(top, e)
    if top == ZERO:
        out[:, :] = 0.0
        return top
    for c in range(matrix.mantissa.shape[0]):
        for h in range(matrix.mantissa.shape[1]):
            e = matrix.exponent[c, h] + offsets[c, h] if has_offsets else matrix.exponent[c, h]
            is_positive = matrix.mantissa[c, h] > 0.0 and bound[c, h] > 0.0
            out[c, h] = shifted(matrix.mantissa[c, h], top - e) if is_positive else 0.0
    return top


@jit()
def frame(matrix: WideArrays, offsets: Ints) -> tuple[int, bool]:
    """Choose exponents base + offsets, in steps of `STEP`, for vectors that the matrix bounds: entries are then at
    most 2^(STEP/2). Return the base, and whether any offset is not 0.
    """
    base = ZERO
    for c in range(matrix.mantissa.shape[0]):
        for h in range(matrix.mantissa.shape[1]):
            if matrix.mantissa[c, h] > 0.0:
                base = max(base, matrix.exponent[c, h])
    found = False
    for c in range(matrix.mantissa.shape[0]):
        for h in range(matrix.mantissa.shape[1]):
            offsets[c, h] = 0
            if matrix.mantissa[c, h] > 0.0:
                offsets[c, h] = -((base - matrix.exponent[c, h] + STEP // 2) // STEP) * STEP
                found = found or offsets[c, h] != 0
    return (base if base > ZERO else 0), found


@jit()
def framed_table(
    table: WideArrays,
    shape: Shape,
    is_query: bool,
    offsets: tuple[Ints, Ints],
    shift: int,
    limit: int,
    out: Floats,
) -> None:
    """Rescale a table by 2^(shift + joint offset - out offset), at most 2^`limit`; offsets may be empty."""
    n_sq, n_sh, n_rq, n_rh, k = shape
    joint_offsets, out_offsets = offsets
    has_exponents, has_joint, has_out = len(table.exponent) > 0, joint_offsets.size > 0, out_offsets.size > 0
    t = 0
    for sq in range(n_sq):
        for sh in range(n_sh):
            for rq in range(n_rq):
                for rh in range(n_rh):
                    for v in range(k):
                        m, e = normal(table.mantissa[t], table.exponent[t] + shift if has_exponents else shift)
                        if has_joint:
                            e += joint_offsets[sq * k + v, sh] if is_query else joint_offsets[sq, sh * k + v]
                        if has_out:
                            e -= out_offsets[sq * n_rq + rq, sh * n_rh + rh]
                        e = min(e, limit)
                        out[t] = m * 2.0**e if e > 0 else shifted(m, -e)
                        t += 1


@jit(inline="never")
def _dots(weighted: Floats, a: int, columns: Floats, low: int, high: int, out: Floats) -> None:
    """Write out[i] = weighted[a] . columns[:, low + i]."""
    n = high - low
    for i in range(n):
        out[i] = 0.0
    d = 0
    width = weighted.shape[1]
    while d + 4 <= width:
        w0, w1, w2, w3 = weighted[a, d], weighted[a, d + 1], weighted[a, d + 2], weighted[a, d + 3]
        for i in range(n):
            j = low + i
            out[i] += (w0 * columns[d, j] + w1 * columns[d + 1, j]) + (
                w2 * columns[d + 2, j] + w3 * columns[d + 3, j]
            )
        d += 4
    while d < width:
        w = weighted[a, d]
        for i in range(n):
            out[i] += w * columns[d, low + i]
        d += 1


@jit()
def select_pairs(
    left: VectorRows, right: VectorRows, right_context: Ints, hidden_map: Ints,
    functional: Floats, threshold: float, out: Pairs,
) -> tuple[int, int]:  # fmt: skip
    """Find the pairs (a, b) in each context whose product exceeds a threshold, without building the products.

    Context c pairs its rows of `left` with the rows of `right` in context `right_context[c]`; a pair is kept when
    sum_h functional[c, h] left[a, h] right[b, hidden_map[h]] > threshold. Blocks of similar rows are skipped by
    their pointwise maxima. Returns the number of pairs written (-1 when the output arrays are too short) and the
    number of dot products done.
    """
    n_out, work = 0, 0
    left_values, right_values = left.values, right.values
    width, right_width = left_values.shape[1], right_values.shape[1]
    buffer = np.empty(BLOCK)
    # The dot product of maxima is at least every other in exact arithmetic; each is off by at most as many
    # roundings of products and of sums as there are entries.
    lift = 1.0 + 2.0 * ULP * (right_width + 1.0)
    for c in range(len(left.ptr) - 1):
        out.ptr[c] = n_out
        a0, a1 = int(left.ptr[c]), int(left.ptr[c + 1])
        other = int(right_context[c])
        b0, b1 = int(right.ptr[other]), int(right.ptr[other + 1])
        n_left, n_right = a1 - a0, b1 - b0
        if n_left == 0 or n_right == 0:
            continue
        weighted = np.zeros((n_left, right_width))
        for a in range(n_left):
            for h in range(width):
                weighted[a, hidden_map[h]] += left_values[a0 + a, h] * functional[c, h]
        left_order, right_order = np.arange(n_left), np.arange(b0, b1)
        blocked = n_left * n_right > 4 * BLOCK * BLOCK
        if blocked and n_left > BLOCK:
            spatial_order(weighted, 0, n_left, BLOCK, left_order)
        if blocked and n_right > BLOCK:
            spatial_order(right_values, b0, b1, BLOCK, right_order)
        n_left_blocks = (n_left + BLOCK - 1) // BLOCK
        n_right_blocks = (n_right + BLOCK - 1) // BLOCK
        left_top, right_top = np.empty((n_left_blocks, right_width)), np.empty((n_right_blocks, right_width))
        block_maxima(weighted, left_order, n_left, BLOCK, left_top)
        block_maxima(right_values, right_order, n_right, BLOCK, right_top)
        columns = np.empty((right_width, n_right))
        for b in range(n_right):
            for d in range(right_width):
                columns[d, b] = right_values[right_order[b], d]
        top_columns = np.ascontiguousarray(right_top.T)
        for la in range(n_left_blocks):
            for rb in range(n_right_blocks):
                if blocked:
                    work += 1
                    bound = 0.0
                    for d in range(right_width):
                        bound += left_top[la, d] * right_top[rb, d]
                    if bound * lift <= threshold:
                        continue
                low, high = rb * BLOCK, min(n_right, (rb + 1) * BLOCK)
                for i in range(la * BLOCK, min(n_left, (la + 1) * BLOCK)):
                    a = left_order[i]
                    if blocked:
                        work += 1
                        _dots(weighted, a, top_columns, rb, rb + 1, buffer)
                        if buffer[0] * lift <= threshold:
                            continue
                    work += high - low
                    _dots(weighted, a, columns, low, high, buffer)
                    for j in range(high - low):
                        if buffer[j] > threshold:
                            if n_out >= len(out.left):
                                return -1, work
                            out.left[n_out] = a0 + a
                            out.right[n_out] = right_order[low + j]
                            out.scores[n_out] = buffer[j]
                            n_out += 1
    out.ptr[len(left.ptr) - 1] = n_out
    return n_out, work


@jit()
def multiply_pairs(
    left: Floats, right: Floats, left_rows: Ints, right_rows: Ints, hidden_map: Ints, out: Floats
) -> None:
    """Build the products of the selected pairs."""
    for i in range(len(left_rows)):
        a, b = left_rows[i], right_rows[i]
        for h in range(left.shape[1]):
            out[i, h] = left[a, h] * right[b, hidden_map[h]]


@jit()
def lift(
    joint: Floats,
    joint_ptr: Ints,
    table: Floats,
    shape: Shape,
    is_query: bool,
    out: Floats,
    out_ptr: Ints,
    source: Ints,
    state: Ints16,
) -> None:
    """Eliminate a region's own variable: sum over it if hidden, unite the sets of its states if queried.

    Output contexts are (shared_query, rest_query), output columns (shared_hidden, rest_hidden).
    """
    n_sq, n_sh, n_rq, n_rh, k = shape
    n_out = 0
    for sq in range(n_sq):
        for rq in range(n_rq):
            out_ptr[sq * n_rq + rq] = n_out
            if is_query:
                for v in range(k):
                    for i in range(joint_ptr[sq * k + v], joint_ptr[sq * k + v + 1]):
                        for sh in range(n_sh):
                            x = joint[i, sh]
                            t = (((sq * n_sh + sh) * n_rq + rq) * n_rh) * k + v
                            for rh in range(n_rh):
                                out[n_out, sh * n_rh + rh] = x * table[t + rh * k]
                        source[n_out], state[n_out] = i, v
                        n_out += 1
            else:
                for i in range(joint_ptr[sq], joint_ptr[sq + 1]):
                    for sh in range(n_sh):
                        for rh in range(n_rh):
                            t = (((sq * n_sh + sh) * n_rq + rq) * n_rh + rh) * k
                            total = 0.0
                            for v in range(k):
                                total += joint[i, sh * k + v] * table[t + v]
                            out[n_out, sh * n_rh + rh] = total
                    source[n_out], state[n_out] = i, -1
                    n_out += 1
    out_ptr[n_sq * n_rq] = n_out


@jit()
def filter_rows(
    values: Floats, ptr: Ints, functional: Floats, threshold: float, alive: Flags, scores: Floats
) -> None:
    """Write each row's score under its context's functional, and whether it exceeds the threshold."""
    for c in range(len(ptr) - 1):
        for i in range(ptr[c], ptr[c + 1]):
            total = 0.0
            for h in range(values.shape[1]):
                total += values[i, h] * functional[c, h]
            scores[i] = total
            alive[i] = total > threshold


@jit()
def context_maxima(values: Floats, ptr: Ints, out: Floats) -> None:
    """Write the pointwise maximum of each context's rows (0 without rows)."""
    for c in range(len(ptr) - 1):
        for h in range(values.shape[1]):
            out[c, h] = 0.0
        for i in range(ptr[c], ptr[c + 1]):
            for h in range(values.shape[1]):
                out[c, h] = max(out[c, h], values[i, h])


@jit()
def merge_rows(
    values: Floats, ptr: Ints, scores: Floats, cutoff: float, cell: int, out: Floats, out_ptr: Ints, source: Ints
) -> int:
    """Keep rows with a score above `cutoff`; replace groups of up to `cell` similar other rows by their maxima.

    `source[i]` is the best-scoring input row of output row i, or -1 - row if output row i merges several. Returns
    the number of output rows.
    """
    n_out = 0
    for c in range(len(ptr) - 1):
        out_ptr[c] = n_out
        rest = 0
        for i in range(ptr[c], ptr[c + 1]):
            if scores[i] > cutoff:
                for h in range(values.shape[1]):
                    out[n_out, h] = values[i, h]
                source[n_out] = i
                n_out += 1
            else:
                rest += 1
        if rest == 0:
            continue
        low, row, m = np.empty((rest, values.shape[1])), np.empty(rest, np.int64), 0
        for i in range(ptr[c], ptr[c + 1]):
            if not scores[i] > cutoff:
                for h in range(values.shape[1]):
                    low[m, h] = values[i, h]
                row[m] = i
                m += 1
        order = np.empty(rest, np.int64)
        spatial_order(low, 0, rest, cell, order)
        for start in range(0, rest, cell):
            stop = min(rest, start + cell)
            best = order[start]
            for h in range(values.shape[1]):
                out[n_out, h] = 0.0
            for i in range(start, stop):
                r = order[i]
                if scores[row[r]] > scores[row[best]]:
                    best = r
                for h in range(values.shape[1]):
                    out[n_out, h] = max(out[n_out, h], low[r, h])
            source[n_out] = row[best] if stop - start == 1 else -1 - row[best]
            n_out += 1
    out_ptr[len(ptr) - 1] = n_out
    return n_out
