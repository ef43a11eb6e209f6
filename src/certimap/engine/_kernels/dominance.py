"""Sets of nonnegative vectors: products filtered by a linear bound, dominance, spatial order, merging.

A set is a matrix of rows with pointers: rows `ptr[c]:ptr[c + 1]` belong to context c, a configuration of
the queried variables that the rows' region shares with the rest of the tree. Rows of different contexts
are never compared.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from certimap.engine._kernels.jit import jit

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BLOCK = 32
GROUP = 16  # blocks in a group
LEAD = 3
SMALL = 96  # segments up to this size are compared pair by pair


@jit(inline="never")
def spatial_order(values: Floats, start: int, stop: int, leaf: int, order: Ints) -> None:
    """Write an order of rows start..stop in which neighbours are alike.

    Halves by the median of the widest coordinate until at most `leaf` rows remain. Cuts fall on multiples
    of `leaf` within the segment, so that consecutive runs of `leaf` rows are the cells.
    """
    width = values.shape[1]
    n = stop - start
    for i in range(n):
        order[i] = start + i
    stack_low = np.empty(64, np.int64)
    stack_high = np.empty(64, np.int64)
    stack_low[0] = 0
    stack_high[0] = n
    depth = 1
    low_value = np.empty(width)
    high_value = np.empty(width)
    while depth > 0:
        depth -= 1
        low = stack_low[depth]
        high = stack_high[depth]
        if high - low <= leaf:
            continue
        for d in range(width):
            low_value[d] = np.inf
            high_value[d] = -np.inf
        for i in range(low, high):
            for d in range(width):
                v = values[order[i], d]
                low_value[d] = min(low_value[d], v)
                high_value[d] = max(high_value[d], v)
        best = 0
        for d in range(1, width):
            if high_value[d] - low_value[d] > high_value[best] - low_value[best]:
                best = d
        cells = (high - low + leaf - 1) // leaf
        middle = low + (cells // 2) * leaf
        keys = np.empty(high - low)
        for i in range(low, high):
            keys[i - low] = values[order[i], best]
        ranks = np.argsort(keys)
        held = order[low:high].copy()
        for i in range(high - low):
            order[low + i] = held[ranks[i]]
        # The shorter half is pushed last, so that the stack stays logarithmic.
        if middle - low < high - middle:
            stack_low[depth], stack_high[depth] = middle, high
            stack_low[depth + 1], stack_high[depth + 1] = low, middle
        else:
            stack_low[depth], stack_high[depth] = low, middle
            stack_low[depth + 1], stack_high[depth + 1] = middle, high
        depth += 2


@jit(inline="never")
def block_maxima(values: Floats, order: Ints, n: int, size: int, out: Floats) -> None:
    """Write the pointwise maximum of every run of `size` rows in `order`."""
    for i in range(n):
        b = i // size
        for d in range(values.shape[1]):
            v = values[order[i], d]
            if i % size == 0 or v > out[b, d]:
                out[b, d] = v


@jit(inline="never")
def _dominates(values: Floats, w: int, v: int, factor: float) -> bool:
    width = values.shape[1]
    d = 0
    while d < width and values[w, d] * factor >= values[v, d]:
        d += 1
    return d == width


@jit(inline="never")
def _covers(maxima: Floats, b: int, values: Floats, v: int, factor: float) -> bool:
    width = values.shape[1]
    d = 0
    while d < width and maxima[b, d] * factor >= values[v, d]:
        d += 1
    return d == width


@jit(inline="never")
def _leading(values: Floats, v: int, means: Floats, lead: Ints) -> None:
    """Write the coordinates in which a row is largest for its set: few others reach it there."""
    for j in range(len(lead)):
        best = -1
        for d in range(values.shape[1]):
            taken = False
            for m in range(j):
                taken = taken or lead[m] == d
            if not taken and (best < 0 or values[v, d] * means[best] > values[v, best] * means[d]):
                best = d
        lead[j] = best


@jit(inline="never")
def _skyband_segment(
    values: Floats, start: int, stop: int, k: int, factor: float, alive: NDArray[np.bool_]
) -> None:
    n = stop - start
    totals = np.empty(n)
    for i in range(n):
        total = 0.0
        for d in range(values.shape[1]):
            total += values[start + i, d]
        totals[i] = -total
    by_total = np.argsort(totals, kind="mergesort")
    if n <= SMALL:
        for i in range(n):
            v = start + by_total[i]
            found = 0
            for j in range(i):
                w = start + by_total[j]
                if alive[w] and _dominates(values, w, v, factor):
                    found += 1
                    if found >= k:
                        alive[v] = False
                        break
        return
    rank = np.empty(n, np.int64)
    for i in range(n):
        rank[by_total[i]] = i
    order = np.empty(n, np.int64)
    spatial_order(values, start, stop, BLOCK, order)
    n_blocks = (n + BLOCK - 1) // BLOCK
    n_groups = (n_blocks + GROUP - 1) // GROUP
    maxima = np.empty((n_blocks, values.shape[1]))
    tops = np.empty((n_groups, values.shape[1]))
    block_maxima(values, order, n, BLOCK, maxima)
    block_maxima(values, order, n, BLOCK * GROUP, tops)
    first_rank = np.full(n_blocks, n, np.int64)
    top_rank = np.full(n_groups, n, np.int64)
    for i in range(n):
        b = i // BLOCK
        first_rank[b] = min(first_rank[b], rank[order[i] - start])
        top_rank[b // GROUP] = min(top_rank[b // GROUP], rank[order[i] - start])
    recent = np.zeros(16, np.int64)  # rows that dominated lately often dominate again
    n_recent = 0
    width = values.shape[1]
    columns = np.empty((width, n))
    means = np.zeros(width)
    for i in range(n):
        for d in range(width):
            columns[d, i] = values[order[i], d]
            means[d] += values[order[i], d]
    lead = np.empty(min(LEAD, width), np.int64)
    for i in range(n):
        v = start + by_total[i]
        found = 0
        if k == 1:
            for j in range(n_recent):
                if _dominates(values, recent[j], v, factor):
                    found = 1
                    held = recent[j]
                    for m in range(j, 0, -1):
                        recent[m] = recent[m - 1]
                    recent[0] = held
                    break
            if found:
                alive[v] = False
                continue
        _leading(values, v, means, lead)
        first, second, third = lead[0], lead[len(lead) // 2], lead[len(lead) - 1]
        v_first, v_second, v_third = values[v, first], values[v, second], values[v, third]
        for g in range(n_groups):
            if found >= k:
                break
            if top_rank[g] >= i or tops[g, first] * factor < v_first or not _covers(tops, g, values, v, factor):
                continue
            for b in range(g * GROUP, min(n_blocks, (g + 1) * GROUP)):
                if found >= k:
                    break
                if first_rank[b] >= i or maxima[b, first] * factor < v_first:
                    continue
                if maxima[b, second] * factor < v_second or not _covers(maxima, b, values, v, factor):
                    continue
                for m in range(b * BLOCK, min(n, (b + 1) * BLOCK)):
                    if columns[first, m] * factor < v_first or columns[second, m] * factor < v_second:
                        continue
                    if columns[third, m] * factor < v_third:
                        continue
                    w = order[m]
                    if rank[w - start] < i and alive[w] and _dominates(values, w, v, factor):
                        found += 1
                        if k == 1:
                            n_recent = min(16, n_recent + 1)
                            for q in range(n_recent - 1, 0, -1):
                                recent[q] = recent[q - 1]
                            recent[0] = w
                        if found >= k:
                            break
        if found >= k:
            alive[v] = False


@jit()
def skyband(values: Floats, ptr: Ints, k: int, factor: float, alive: NDArray[np.bool_]) -> None:
    """Clear `alive` of rows that k kept rows of their context dominate up to `factor` (1 or a little more).

    Rows are taken by falling sum; only rows that come earlier and are kept may drop one, so that the factor
    is lost once and of equal rows the first k stay.
    """
    for c in range(len(ptr) - 1):
        if ptr[c + 1] - ptr[c] > 1:
            _skyband_segment(values, ptr[c], ptr[c + 1], k, factor, alive)


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
    left: Floats,
    left_ptr: Ints,
    right: Floats,
    right_ptr: Ints,
    right_context: Ints,
    hidden_map: Ints,
    functional: Floats,
    threshold: float,
    left_rows: Ints,
    right_rows: Ints,
    scores: Floats,
    out_ptr: Ints,
) -> tuple[int, int]:
    """Find the pairs (a, b) of one context whose product exceeds a bound, without building the products.

    Context c pairs its rows of `left` with the rows of `right` in context `right_context[c]`; column h of
    the left goes with column `hidden_map[h]` of the right. A pair is kept when
    sum_h functional[c, h] left[a, h] right[b, hidden_map[h]] > threshold. Blocks of like rows are skipped by
    their pointwise maxima.

    Returns
    -------
    The number of pairs written (-1 when the output arrays are too short) and the dot products done.
    """
    n_out = 0
    work = 0
    width = left.shape[1]
    right_width = right.shape[1]
    buffer = np.empty(BLOCK)
    for c in range(len(left_ptr) - 1):
        out_ptr[c] = n_out
        a0, a1 = int(left_ptr[c]), int(left_ptr[c + 1])
        other = int(right_context[c])
        b0, b1 = int(right_ptr[other]), int(right_ptr[other + 1])
        n_left, n_right = a1 - a0, b1 - b0
        if n_left == 0 or n_right == 0:
            continue
        weighted = np.zeros((n_left, right_width))
        for a in range(n_left):
            for h in range(width):
                weighted[a, hidden_map[h]] += left[a0 + a, h] * functional[c, h]
        left_order = np.arange(n_left)
        right_order = np.arange(b0, b1)
        blocked = n_left * n_right > 4 * BLOCK * BLOCK
        if blocked and n_left > BLOCK:
            spatial_order(weighted, 0, n_left, BLOCK, left_order)
        if blocked and n_right > BLOCK:
            spatial_order(right, b0, b1, BLOCK, right_order)
        n_left_blocks = (n_left + BLOCK - 1) // BLOCK
        n_right_blocks = (n_right + BLOCK - 1) // BLOCK
        left_top = np.empty((n_left_blocks, right_width))
        right_top = np.empty((n_right_blocks, right_width))
        block_maxima(weighted, left_order, n_left, BLOCK, left_top)
        block_maxima(right, right_order, n_right, BLOCK, right_top)
        columns = np.empty((right_width, n_right))
        for b in range(n_right):
            for d in range(right_width):
                columns[d, b] = right[right_order[b], d]
        top_columns = np.ascontiguousarray(right_top.T)
        for la in range(n_left_blocks):
            for rb in range(n_right_blocks):
                if blocked:
                    work += 1
                    bound = 0.0
                    for d in range(right_width):
                        bound += left_top[la, d] * right_top[rb, d]
                    if bound * (1.0 + 1e-12) <= threshold:
                        continue
                low, high = rb * BLOCK, min(n_right, (rb + 1) * BLOCK)
                for i in range(la * BLOCK, min(n_left, (la + 1) * BLOCK)):
                    a = left_order[i]
                    if blocked:
                        work += 1
                        _dots(weighted, a, top_columns, rb, rb + 1, buffer)
                        if buffer[0] * (1.0 + 1e-12) <= threshold:
                            continue
                    work += high - low
                    _dots(weighted, a, columns, low, high, buffer)
                    for j in range(high - low):
                        if buffer[j] > threshold:
                            if n_out >= len(left_rows):
                                return -1, work
                            left_rows[n_out] = a0 + a
                            right_rows[n_out] = right_order[low + j]
                            scores[n_out] = buffer[j]
                            n_out += 1
    out_ptr[len(left_ptr) - 1] = n_out
    return n_out, work


@jit()
def multiply_pairs(
    left: Floats, right: Floats, left_rows: Ints, right_rows: Ints, hidden_map: Ints, out: Floats
) -> None:
    """Build the products of the pairs that survived."""
    for i in range(len(left_rows)):
        a, b = left_rows[i], right_rows[i]
        for h in range(left.shape[1]):
            out[i, h] = left[a, h] * right[b, hidden_map[h]]


@jit()
def lift(
    joint: Floats,
    joint_ptr: Ints,
    table: Floats,
    shape: tuple[int, int, int, int, int],
    is_query: bool,
    out: Floats,
    out_ptr: Ints,
    source: Ints,
    state: NDArray[np.int16],
) -> None:
    """Eliminate a region's own variable: sum it where hidden, unite over its states where queried.

    `shape` is (shared_query, shared_hidden, rest_query, rest_hidden, own states) and `table` is flat in that
    order. Output contexts are (shared_query, rest_query), output columns (shared_hidden, rest_hidden).
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
                        source[n_out] = i
                        state[n_out] = v
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
                    source[n_out] = i
                    state[n_out] = -1
                    n_out += 1
    out_ptr[n_sq * n_rq] = n_out


@jit()
def filter_rows(
    values: Floats, ptr: Ints, functional: Floats, threshold: float, alive: NDArray[np.bool_], scores: Floats
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
    """Write the pointwise maximum of each context's rows (0 where it has none)."""
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
    """Keep rows with a score above `cutoff`; replace cells of up to `cell` like others by their maxima.

    `source[i]` is the row with the best score among those that output row i stands for; -1 - row marks one
    that stands for several. Returns the number of output rows.
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
        low = np.empty((rest, values.shape[1]))
        row = np.empty(rest, np.int64)
        m = 0
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
