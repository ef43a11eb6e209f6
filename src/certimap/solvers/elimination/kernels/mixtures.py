"""Vectors that no single other one dominates but a convex combination of several does.

The best completion of a vector is worth the maximum of linear functionals of it, so of the vectors in a convex
combination that is at least x everywhere, one completes at least as well as x. A combination is looked for by
play: one player picks a coordinate, the other a kept vector as large as can be there, compared to x. Either the
average of what was picked is at least x everywhere, or some mixture of coordinates shows a direction in which x
exceeds all that is kept.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from certimap.core.rounding import SURELY
from certimap.kernels.jit import jit
from certimap.solvers.elimination.kernels.dominance import Floats, Ints

MOST = 4.0  # entries are compared up to this many times those of x: larger ones count as so much
MIXED, EXCEEDS, UNKNOWN = 0, 1, 2
UNDECIDED, KEPT, DROPPED = 0, 1, 2
FEWEST = 3  # rows of a context


@jit(inline="never")
def _ratios(values: Floats, row: int, columns: Floats, n_kept: int, out: Floats) -> int:
    """Write the kept vectors divided by a row, for its positive coordinates; return how many these are."""
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
    ratio: Floats,
    n: int,
    n_kept: int,
    weight: Floats,
    regret: Floats,
    mean: Floats,
    scores: Floats,
    picks: NDArray[np.int32],
) -> tuple[int, int]:
    """Play a round of regret matching for each of `picks`; return the outcome and the multiplications done.

    After `EXCEEDS` `weight` is a mixture of the `n` coordinates in which the row exceeds what is kept. After
    `MIXED` the kept vector picked in round t counts t times in the combination; -1 ends the picks.
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
def _furthest(values: Floats, start: int, state: NDArray[np.int8], row: int, weight: Floats) -> int:
    """Return the undecided row that is largest, compared to a row, in a mixture of its positive coordinates."""
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
def _start(
    values: Floats, start: int, stop: int, state: NDArray[np.int8], order: Ints, columns: Floats, kept: Ints
) -> int:
    """Order a segment's rows by falling sum and keep those that are largest in a coordinate; return how many."""
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
    values: Floats,
    ptr: Ints,
    rounds: int,
    budget: int,
    state: NDArray[np.int8],
    order: Ints,
    at: Ints,
    picked: NDArray[np.int32],
) -> int:
    """Mark rows DROPPED that a convex combination of kept rows of their context is at least, everywhere.

    Only rows that are kept are combined. A combination is found where there is one with room to spare; one that
    would take more than `rounds` of play is passed over. The call returns after about `budget` multiplications,
    with the number done, and goes on when called again with the same arrays: `state`, `order` (one entry per row)
    and `at` (context, place in it), all zeros at first. It is done when `at[0]` is the number of contexts.

    `picked`, shape (rows, rounds) or without rows, gets for each row dropped what it is dropped for: that
    picked in round t (from 1 on) counts t times, and -1 ends the rounds.
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
            at[0] += 1
            at[1] = 0
    return work
