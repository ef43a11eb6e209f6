"""Sets of nonnegative vectors: spatial order, and filtering of dominated vectors.

A set is a matrix of rows with pointers: rows `ptr[c]:ptr[c + 1]` belong to context c, a configuration of
the queried variables that the rows' region shares with the rest of the tree. Rows of different contexts
are never compared.
"""

from __future__ import annotations

import numpy as np

from certimap.core.arrays import Flags, Floats, Ints
from certimap.core.rounding import NEARLY
from certimap.kernels.jit import jit

BLOCK = 32
GROUP = 16  # blocks in a group
LEAD = 3
SMALL = 96  # segments up to this size are compared pair by pair


@jit(inline="never")
def spatial_order(values: Floats, start: int, stop: int, leaf: int, order: Ints) -> None:
    """Write an order of rows start..stop in which neighbours are similar.

    Halves the rows by the median of the widest coordinate until at most `leaf` rows remain. Cuts fall on multiples
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
def covers(maxima: Floats, b: int, values: Floats, v: int) -> bool:
    """Return whether row b of `maxima` is at least row v of `values` everywhere, up to a factor of `NEARLY`."""
    width = values.shape[1]
    d = 0
    while d < width and maxima[b, d] * NEARLY >= values[v, d]:
        d += 1
    return d == width


@jit(inline="never")
def _leading(values: Floats, v: int, means: Floats, lead: Ints) -> None:
    """Write the coordinates in which a row is largest compared to its set, where few rows reach it."""
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
def _skyband_segment(values: Floats, start: int, stop: int, k: int, alive: Flags) -> None:
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
                if alive[w] and covers(values, w, values, v):
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
    recent = np.zeros(16, np.int64)  # recently dominating rows often dominate again
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
                if covers(values, recent[j], values, v):
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
            if top_rank[g] >= i or tops[g, first] * NEARLY < v_first or not covers(tops, g, values, v):
                continue
            for b in range(g * GROUP, min(n_blocks, (g + 1) * GROUP)):
                if found >= k:
                    break
                if first_rank[b] >= i or maxima[b, first] * NEARLY < v_first:
                    continue
                if maxima[b, second] * NEARLY < v_second or not covers(maxima, b, values, v):
                    continue
                for m in range(b * BLOCK, min(n, (b + 1) * BLOCK)):
                    if columns[first, m] * NEARLY < v_first or columns[second, m] * NEARLY < v_second:
                        continue
                    if columns[third, m] * NEARLY < v_third:
                        continue
                    w = order[m]
                    if rank[w - start] < i and alive[w] and covers(values, w, values, v):
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
def skyband(values: Floats, ptr: Ints, k: int, alive: Flags) -> None:
    """Clear `alive` of rows that k kept rows of their context dominate, up to a factor of `NEARLY`.

    Rows are visited by falling sum. Only earlier kept rows can drop a row, so that the factor is lost only once,
    and the first k of equal rows stay.
    """
    for c in range(len(ptr) - 1):
        if ptr[c + 1] - ptr[c] > 1:
            _skyband_segment(values, ptr[c], ptr[c + 1], k, alive)
