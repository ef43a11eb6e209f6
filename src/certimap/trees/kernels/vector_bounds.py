"""Upper bounds on a tree's values in a box: sets of vectors, pruned and merged to a fixed size.

A row is the vector of a partial assignment over a separator's hidden states. The value of a whole assignment is
`scale` times its probability. Separators are hidden variables, queried variables are leaves. Nothing here rounds
outward.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from certimap.core.arrays import Flags, Floats, Ints, Ints16, Ints32
from certimap.core.region_tree import RegionArrays
from certimap.kernels.jit import jit


class VectorRoom(NamedTuple):
    """Outputs of an elimination by region, and buffers for a region's products."""

    tops: Floats  # bounds on a region's vectors
    outs: Floats  # the outside's linear functional on them
    rows: Floats
    links: Ints32
    counts: Ints
    pool: Floats
    pool_links: Ints32
    pool_scores: Floats
    kept: Floats
    kept_links: Ints32


@jit()
def bound_messages(t: RegionArrays, mask: Flags, tops: Floats) -> None:
    """Write the pointwise maximum of every region's vectors in a box."""
    work = np.empty(tops.shape[1])
    for r in range(len(t.own_states)):
        k, start = t.own_states[r], t.table_ptr[r]
        first = t.column[r]
        if first >= 0:
            for h in range(t.rest_hidden[r]):
                tops[r, h] = 0.0
            for v in range(k):
                if mask[first + v]:
                    for h in range(t.rest_hidden[r]):
                        tops[r, h] = max(tops[r, h], t.tables[start + h * k + v])
            continue
        for j in range(k):
            work[j] = 1.0
        for e in range(t.child_ptr[r], t.child_ptr[r + 1]):
            c = t.children[e]
            for j in range(k):
                work[j] *= tops[c, j]
        for h in range(t.rest_hidden[r]):
            total = 0.0
            for j in range(k):
                total += t.tables[start + h * k + j] * work[j]
            tops[r, h] = total


@jit()
def _enter(t: RegionArrays, r: int, c: int, room: VectorRoom, joint: Floats) -> None:
    """Write the outside's functional on a child's vectors, from `joint`, the one on the parent's own states."""
    for j in range(t.own_states[r]):
        room.outs[c, j] = joint[j]
    for e in range(t.child_ptr[r], t.child_ptr[r + 1]):
        s = t.children[e]
        if s != c:
            for j in range(t.own_states[r]):
                room.outs[c, j] *= room.tops[s, j]


@jit()
def _project(t: RegionArrays, r: int, outs: Floats, joint: Floats) -> None:
    """Turn the functional on a region's separator into one on its own states."""
    k, start = t.own_states[r], t.table_ptr[r]
    for j in range(k):
        joint[j] = 0.0
    for h in range(t.rest_hidden[r]):
        for j in range(k):
            joint[j] += outs[r, h] * t.tables[start + h * k + j]


@jit()
def bound_states(t: RegionArrays, mask: Flags, scale: float, floor: float, room: VectorRoom, each: Floats) -> None:
    """Write bounds, at least `floor`, on the values with each state fixed; -inf outside the box."""
    root = len(t.own_states) - 1
    joint = np.empty(room.outs.shape[1])
    room.outs[root, 0] = scale
    for r in range(root, -1, -1):
        first = t.column[r]
        if first < 0:
            _project(t, r, room.outs, joint)
            for e in range(t.child_ptr[r], t.child_ptr[r + 1]):
                _enter(t, r, t.children[e], room, joint)
            continue
        k, start = t.own_states[r], t.table_ptr[r]
        for v in range(k):
            each[first + v] = -np.inf
            if mask[first + v]:
                value = 0.0
                for h in range(t.rest_hidden[r]):
                    value += room.outs[r, h] * t.tables[start + h * k + v]
                each[first + v] = max(floor, value)


@jit()
def _compress(room: VectorRoom, n: int, width: int, functional: Floats, limit: int) -> int:
    """Write the pool's undominated rows to `kept`: the best by score; similar others merge into their maxima."""
    order = np.argsort(-room.pool_scores[:n])
    n_exact = limit - limit // 4
    n_kept = 0
    for at in range(n):
        i = order[at]
        is_dominated = False
        for m in range(n_kept):
            j = 0
            while j < width and room.kept[m, j] >= room.pool[i, j]:
                j += 1
            if j == width:
                is_dominated = True
                break
        if is_dominated:
            continue
        if n_kept < limit:
            for j in range(width):
                room.kept[n_kept, j] = room.pool[i, j]
            for e in range(room.links.shape[2]):
                room.kept_links[n_kept, e] = room.pool_links[i, e]
            n_kept += 1
            continue
        best, best_score = n_exact, np.inf
        for m in range(n_exact, limit):
            score = 0.0
            for j in range(width):
                score += functional[j] * max(room.kept[m, j], room.pool[i, j])
            if score < best_score:
                best, best_score = m, score
        for j in range(width):
            room.kept[best, j] = max(room.kept[best, j], room.pool[i, j])
    return n_kept


@jit()
def _back_to_pool(room: VectorRoom, n: int, width: int, functional: Floats) -> None:
    for i in range(n):
        score = 0.0
        for j in range(width):
            room.pool[i, j] = room.kept[i, j]
            score += functional[j] * room.kept[i, j]
        room.pool_scores[i] = score
        for e in range(room.links.shape[2]):
            room.pool_links[i, e] = room.kept_links[i, e]


@jit()
def _states(t: RegionArrays, r: int, mask: Flags, floor: float, room: VectorRoom, limit: int) -> int:
    """Put a queried variable's states into the pool; return its number of rows."""
    k, start, first = t.own_states[r], t.table_ptr[r], t.column[r]
    n = 0
    for v in range(k):
        if not mask[first + v]:
            continue
        score = 0.0
        for h in range(t.rest_hidden[r]):
            room.pool[n, h] = t.tables[start + h * k + v]
            score += room.outs[r, h] * room.pool[n, h]
        if score <= floor:
            continue
        room.pool_scores[n] = score
        room.pool_links[n, 0] = v
        n += 1
        if n == len(room.pool):
            n = _compress(room, n, t.rest_hidden[r], room.outs[r], limit)
            _back_to_pool(room, n, t.rest_hidden[r], room.outs[r])
    return n


@jit()
def _products(t: RegionArrays, r: int, floor: float, room: VectorRoom, limit: int, joint: Floats) -> int:
    """Multiply the children's sets into the pool, and eliminate the own variable; return its number of rows."""
    k, start = t.own_states[r], t.table_ptr[r]
    first, last = t.child_ptr[r], t.child_ptr[r + 1]
    functional, weighted = np.empty(k), np.empty(k)
    c = t.children[first]
    n = int(room.counts[c])
    for i in range(n):
        for j in range(k):
            room.kept[i, j] = room.rows[c, i, j]
        room.kept_links[i, 0] = i
    left = np.empty((limit, k))
    left_links = np.empty((limit, last - first), np.int32)
    for e in range(first + 1, last):
        c = t.children[e]
        n_left = n
        for i in range(n_left):
            for j in range(k):
                left[i, j] = room.kept[i, j]
            for d in range(e - first):
                left_links[i, d] = room.kept_links[i, d]
        for j in range(k):
            functional[j] = joint[j]
        for later in range(e + 1, last):
            s = t.children[later]
            for j in range(k):
                functional[j] *= room.tops[s, j]
        n = 0
        for i in range(n_left):
            for j in range(k):
                weighted[j] = functional[j] * left[i, j]
            for b in range(room.counts[c]):
                score = 0.0
                for j in range(k):
                    score += weighted[j] * room.rows[c, b, j]
                if score <= floor:
                    continue
                if n == len(room.pool):
                    n = _compress(room, n, k, functional, limit)
                    _back_to_pool(room, n, k, functional)
                for j in range(k):
                    room.pool[n, j] = left[i, j] * room.rows[c, b, j]
                room.pool_scores[n] = score
                for d in range(e - first):
                    room.pool_links[n, d] = left_links[i, d]
                room.pool_links[n, e - first] = b
                n += 1
        if e < last - 1:
            n = _compress(room, n, k, functional, limit)
    if last - first == 1:
        _back_to_pool(room, n, k, joint)
    for i in range(n):
        for j in range(k):
            weighted[j] = room.pool[i, j]
        for h in range(t.rest_hidden[r]):
            total = 0.0
            for j in range(k):
                total += t.tables[start + h * k + j] * weighted[j]
            room.pool[i, h] = total
    return n


@jit()
def _store(t: RegionArrays, r: int, n: int, room: VectorRoom, limit: int) -> int:
    """Compress the pool to a region's set, and tighten its bounds."""
    width = t.rest_hidden[r]
    n = _compress(room, n, width, room.outs[r], limit)
    room.counts[r] = n
    for h in range(width):
        room.tops[r, h] = 0.0
    for i in range(n):
        for h in range(width):
            room.rows[r, i, h] = room.kept[i, h]
            room.tops[r, h] = max(room.tops[r, h], room.kept[i, h])
        for e in range(room.links.shape[2]):
            room.links[r, i, e] = room.kept_links[i, e]
    return n


@jit()
def eliminate(t: RegionArrays, mask: Flags, scale: float, floor: float, room: VectorRoom) -> tuple[float, int]:
    """Eliminate a tree in a box, bounds in `room.tops`; return the larger of `floor` and a bound on all values.

    Also the root's best row, -1 if no value exceeds `floor`; `tops` then bounds the vectors that contribute more.
    """
    root, limit = len(t.own_states) - 1, room.rows.shape[1]
    stack, at = np.empty(root + 1, np.int64), np.zeros(root + 1, np.int64)
    joint = np.empty(room.outs.shape[1])
    stack[0], depth = root, 1
    room.outs[root, 0] = scale
    while depth:
        r = stack[depth - 1]
        n_children = t.child_ptr[r + 1] - t.child_ptr[r]
        if t.column[r] < 0:
            _project(t, r, room.outs, joint)
        if at[r] < n_children:
            c = int(t.children[t.child_ptr[r] + at[r]])
            at[r] += 1
            _enter(t, r, c, room, joint)
            stack[depth] = c
            depth += 1
            continue
        if t.column[r] >= 0:
            n = _states(t, r, mask, floor, room, limit)
        else:
            n = _products(t, r, floor, room, limit, joint)
        n = _store(t, r, n, room, limit)
        if n == 0:
            return floor, -1
        depth -= 1
    best, row = floor, -1
    for i in range(room.counts[root]):
        value = scale * room.rows[root, i, 0]
        if value > best:
            best, row = value, i
    return best, row


@jit()
def decode(t: RegionArrays, variable: Ints, row: int, room: VectorRoom, point: Ints16) -> None:
    """Write the assignment of a row of the root's set; for merged rows, of the best one."""
    root = len(t.own_states) - 1
    at = np.zeros(root + 1, np.int64)
    at[root] = row
    for r in range(root, -1, -1):
        if t.column[r] >= 0:
            point[variable[r]] = room.links[r, at[r], 0]
            continue
        for e in range(t.child_ptr[r], t.child_ptr[r + 1]):
            at[t.children[e]] = room.links[r, at[r], e - t.child_ptr[r]]
