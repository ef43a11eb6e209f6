"""Finds vectors that a convex combination of other vectors dominates.

The value of a vector's best completion is a maximum of linear functionals. So if a convex combination dominates x,
one of its vectors completes at least as well as x. The combination is found by a two-player game (regret
matching): one player picks a coordinate, the other the kept vector that is largest there relative to x. Either
the average of the picked vectors dominates x, or a mixture of coordinates gives a direction in which x exceeds all
kept vectors.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from certimap.core.arrays import Flags, Floats, Ints, Ints32
from certimap.core.rounding import NEARLY, SURELY
from certimap.kernels.jit import jit
from certimap.solvers.elimination.kernels.dominance import covers

MOST = 4.0  # cap on ratios to x: larger ratios count as this
MIXED, EXCEEDS, UNKNOWN = 0, 1, 2
UNDECIDED, KEPT, DROPPED = 0, 1, 2
FEWEST = 3  # least rows of a context to look for combinations


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

    After `EXCEEDS`, `weight` is a mixture of the `n` coordinates in which the row exceeds all kept vectors. After
    `MIXED`, the kept vector picked in round t counts t times in the combination; -1 ends the picks.
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
def _start(
    values: Floats, start: int, stop: int, state: NDArray[np.int8], order: Ints, columns: Floats, kept: Ints
) -> int:
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
    values: Floats,
    ptr: Ints,
    rounds: int,
    budget: int,
    state: NDArray[np.int8],
    order: Ints,
    at: Ints,
    picked: Ints32,
) -> int:
    """Mark rows DROPPED that a convex combination of kept rows of their context dominates.

    A combination is found if one dominates by a margin, within `rounds` of play. The call returns the number of
    multiplications done after about `budget` of them. Call it again with the same arrays to continue: `state`,
    `order` (one entry per row) and `at` (context, place in it), all zeros at first. It is done when `at[0]` is the
    number of contexts.

    `picked`, shape (rows, rounds) or without rows, receives the combination of each dropped row: the row picked in
    round t (from 1 on) counts t times, and -1 ends the rounds.
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


RECENT = 16  # recently dominating rows often dominate again


@jit()
def dominators(values: Floats, ptr: Ints, alive: Flags, by: Ints) -> None:
    """Write, for each dropped row, a live row of its context that dominates it up to a factor of `NEARLY`.

    Live rows, and dropped rows without such a row, get -1.
    """
    recent = np.empty(RECENT, np.int64)
    for c in range(len(ptr) - 1):
        rows = ptr[c] + np.flatnonzero(alive[ptr[c] : ptr[c + 1]])
        n_found = 0
        for row in range(ptr[c], ptr[c + 1]):
            by[row] = -1
            if alive[row]:
                continue
            lead = int(np.argmax(values[row]))
            for j in range(min(n_found, RECENT)):
                if covers(values, recent[j], values, row):
                    by[row] = recent[j]
                    break
            if by[row] >= 0:
                continue
            for other in rows:
                if values[other, lead] * NEARLY >= values[row, lead] and covers(values, other, values, row):
                    by[row] = other
                    recent[n_found % RECENT] = other
                    n_found += 1
                    break
