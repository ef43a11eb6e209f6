"""Sets of nonnegative vectors: spatial order, and vectors that others, or convex combinations of others, dominate.

In a set, rows `ptr[c]:ptr[c + 1]` belong to context c, and rows of different contexts are never compared. The
value of a vector's best completion is a maximum of linear functionals, so that one vector of a combination which
dominates x completes at least as well as x. The combination is found by a two-player game (regret matching): one
player picks a coordinate, the other the kept vector that is largest there relative to x. Either the average of the
picked vectors dominates x, or a mixture of coordinates gives a direction in which x exceeds all kept vectors.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from certimap.core.arrays import Floats, Ints, Ints32
from certimap.core.rounding import NEARLY, SURELY
from certimap.kernels.jit import jit

States = NDArray[np.int8]
BLOCK = 32
GROUP = 16  # blocks in a group
LEAD = 3
SMALL = 96  # segments up to this size are compared pair by pair
RECENT = 16  # recently dominating rows often dominate again
MOST = 4.0  # cap on ratios to x: larger ratios count as this
MIXED, EXCEEDS, UNKNOWN = 0, 1, 2
UNDECIDED, KEPT, DROPPED = 0, 1, 2
FEWEST = 3  # least rows of a context to look for combinations


@jit(inline="never")
def spatial_order(values: Floats, start: int, stop: int, leaf: int, order: Ints) -> None:
    """Order rows start..stop by halving them at medians of the widest coordinates; `leaf` rows make a cell."""
    width = values.shape[1]
    n = stop - start
    for i in range(n):
        order[i] = start + i
    stack_low, stack_high = np.empty(64, np.int64), np.empty(64, np.int64)
    stack_low[0], stack_high[0] = 0, n
    depth = 1
    low_value, high_value = np.empty(width), np.empty(width)
    while depth > 0:
        depth -= 1
        low, high = stack_low[depth], stack_high[depth]
        if high - low <= leaf:
            continue
        for d in range(width):
            low_value[d], high_value[d] = np.inf, -np.inf
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
def _skyband_segment(values: Floats, start: int, stop: int, k: int, by: Ints) -> None:
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
                if by[w] < 0 and covers(values, w, values, v):
                    found += 1
                    if found >= k:
                        by[v] = w
                        break
        return
    rank = np.empty(n, np.int64)
    for i in range(n):
        rank[by_total[i]] = i
    order = np.empty(n, np.int64)
    spatial_order(values, start, stop, BLOCK, order)
    n_blocks = (n + BLOCK - 1) // BLOCK
    n_groups = (n_blocks + GROUP - 1) // GROUP
    maxima, tops = np.empty((n_blocks, values.shape[1])), np.empty((n_groups, values.shape[1]))
    block_maxima(values, order, n, BLOCK, maxima)
    block_maxima(values, order, n, BLOCK * GROUP, tops)
    first_rank, top_rank = np.full(n_blocks, n, np.int64), np.full(n_groups, n, np.int64)
    for i in range(n):
        b = i // BLOCK
        first_rank[b] = min(first_rank[b], rank[order[i] - start])
        top_rank[b // GROUP] = min(top_rank[b // GROUP], rank[order[i] - start])
    recent = np.zeros(RECENT, np.int64)
    n_recent = 0
    width = values.shape[1]
    columns, means = np.empty((width, n)), np.zeros(width)
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
                    found, held = 1, recent[j]
                    by[v] = held
                    for m in range(j, 0, -1):
                        recent[m] = recent[m - 1]
                    recent[0] = held
                    break
            if found:
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
                    if rank[w - start] < i and by[w] < 0 and covers(values, w, values, v):
                        found += 1
                        if k == 1:
                            n_recent = min(RECENT, n_recent + 1)
                            for q in range(n_recent - 1, 0, -1):
                                recent[q] = recent[q - 1]
                            recent[0] = w
                        if found >= k:
                            by[v] = w
                            break


@jit()
def skyband(values: Floats, ptr: Ints, k: int, by: Ints) -> None:
    """Drop rows that k kept rows of their context dominate, up to a factor of `NEARLY`: `by` gets one of the k.

    `by` is -1 before, and remains -1 where a row is kept. Rows are visited by falling sum. Only earlier kept rows
    can drop a row, so that the factor is lost only once, and the first k of equal rows stay.
    """
    for c in range(len(ptr) - 1):
        if ptr[c + 1] - ptr[c] > 1:
            _skyband_segment(values, ptr[c], ptr[c + 1], k, by)


@jit(inline="never")
def _ratios(values: Floats, row: int, columns: Floats, n_kept: int, out: Floats) -> int:
    """Write the kept vectors divided by a row in its positive coordinates; return their number."""
    n = 0
    for d in range(values.shape[1]):
        x = values[row, d]
        if x > 0.0:
            for j in range(n_kept):
                out[n, j] = min(columns[d, j] / x, MOST)
            n += 1
    return n


@jit(inline="never")
def _play(
    ratio: Floats, n: int, n_kept: int, weight: Floats, regret: Floats, mean: Floats, scores: Floats, picks: Ints32
) -> tuple[int, int]:
    """Play up to one round of regret matching per entry of `picks`; return the outcome and the multiplications.

    After `EXCEEDS` the row exceeds all kept vectors in the mixture `weight`. After `MIXED` the kept vector picked
    in round t counts t times in the combination; -1 ends the picks.
    """
    work = 0
    picks[0] = -1
    if n == 0:  # nothing but zeros
        return MIXED, work
    for d in range(n):
        weight[d], regret[d], mean[d] = 1.0 / n, 0.0, 0.0
    total = 0.0
    for t in range(1, len(picks) + 1):
        for j in range(n_kept):
            scores[j] = 0.0
        for d in range(n):
            w = weight[d]
            if w > 0.0:
                work += n_kept
                for j in range(n_kept):
                    scores[j] += w * ratio[d, j]
        best = 0
        for j in range(1, n_kept):
            if scores[j] > scores[best]:
                best = j
        if scores[best] < 1.0:
            return EXCEEDS, work
        total += t
        picks[t - 1] = best
        if t < len(picks):
            picks[t] = -1
        mass, low = 0.0, np.inf
        for d in range(n):
            regret[d] = max(0.0, regret[d] + scores[best] - ratio[d, best])
            mass += regret[d]
            mean[d] += t * ratio[d, best]
            low = min(low, mean[d])
        if low >= total * SURELY:
            return MIXED, work
        if mass == 0.0:
            return UNKNOWN, work
        for d in range(n):
            weight[d] = regret[d] / mass
    return UNKNOWN, work


@jit(inline="never")
def _furthest(values: Floats, start: int, state: States, row: int, weight: Floats) -> int:
    """Return the undecided row that is largest relative to `row` under `weight` on its positive coordinates."""
    best, most = row, -1.0
    for i in range(len(state)):
        if state[i] == 0:
            total, n = 0.0, 0
            for d in range(values.shape[1]):
                x = values[row, d]
                if x > 0.0:
                    if weight[n] > 0.0:
                        total += weight[n] * min(values[start + i, d] / x, MOST)
                    n += 1
            if total > most:
                best, most = start + i, total
    return best


@jit(inline="never")
def _keep(values: Floats, row: int, columns: Floats, kept: Ints, n_kept: int) -> int:
    kept[n_kept] = row
    for d in range(values.shape[1]):
        columns[d, n_kept] = values[row, d]
    return n_kept + 1


@jit(inline="never")
def _start(values: Floats, start: int, stop: int, state: States, order: Ints, columns: Floats, kept: Ints) -> int:
    """Order a segment's rows by falling sum, keep the largest row of each coordinate; return their number."""
    n, n_kept = stop - start, 0
    totals = np.zeros(n)
    for i in range(n):
        for d in range(values.shape[1]):
            totals[i] -= values[start + i, d]
    order[start:stop] = start + np.argsort(totals, kind="mergesort")
    for d in range(values.shape[1]):
        best = start
        for i in range(start + 1, stop):
            if values[i, d] > values[best, d]:
                best = i
        if state[best] == UNDECIDED and (values[best, d] > 0.0 or d == 0):
            state[best] = KEPT
            n_kept = _keep(values, best, columns, kept, n_kept)
    return n_kept


@jit()
def unmixed(
    values: Floats, ptr: Ints, rounds: int, budget: int, state: States, order: Ints, at: Ints, picked: Ints32
) -> int:
    """Mark rows DROPPED that a convex combination of kept rows of their context dominates.

    A combination is found if one dominates by a margin, within `rounds` of play. Returns the number of
    multiplications, after about `budget` of them; to continue, call again with the same `state` and `order` (one
    entry per row) and `at` (context, place in it), all zeros at first, until `at[0]` is the number of contexts.
    `picked`, shape (rows, rounds) or without rows, gets the combination of each dropped row, as from `_play`.
    """
    width = values.shape[1]
    weight, regret, mean = np.empty(width), np.empty(width), np.empty(width)
    picks = np.empty(rounds, np.int32)
    work = 0
    while at[0] < len(ptr) - 1 and work < budget:
        start, stop = int(ptr[at[0]]), int(ptr[at[0] + 1])
        n = stop - start
        if n < FEWEST:
            at[0] += 1
            continue
        columns, ratio, scores = np.empty((width, n)), np.empty((width, n)), np.empty(n)
        kept, n_kept = np.empty(n, np.int64), 0
        if at[1] == 0:
            n_kept = _start(values, start, stop, state, order, columns, kept)
            work += 2 * n * width
        else:
            for i in range(start, stop):
                if state[i] == KEPT:
                    n_kept = _keep(values, i, columns, kept, n_kept)
        while at[1] < n:
            i = int(order[start + at[1]])
            at[1] += 1
            while state[i] == UNDECIDED:
                found = _ratios(values, i, columns, n_kept, ratio)
                outcome, done = _play(ratio, found, n_kept, weight, regret, mean, scores, picks)
                work += done + found * n_kept
                row = i
                if outcome == MIXED:
                    state[i] = DROPPED
                    if len(picked) > 0:
                        for t in range(rounds):
                            picked[i, t] = kept[picks[t]] if picks[t] >= 0 else -1
                            if picks[t] < 0:
                                break
                    break
                if outcome == EXCEEDS:
                    row = _furthest(values, start, state[start:stop], i, weight)
                    work += n * width
                state[row] = KEPT
                n_kept = _keep(values, row, columns, kept, n_kept)
            if work >= budget:
                break
        if at[1] == n:
            at[0], at[1] = at[0] + 1, 0
    return work
