"""Compiled passes down a split tree: bounds of every queried state, and an assignment read off."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from certimap.kernels.jit import jit, jit_part
from certimap.networks.kernels.split_up import (
    Floats,
    Ints,
    Scratch,
    TreeArrays,
    advance,
    begin,
    own_values,
    rounding_error,
    set_alive,
    upward,
)


@jit_part
def down_maximal(
    t: TreeArrays, r: int, start: Ints, tables: Floats, shifts: Floats, s: Scratch, own: Floats
) -> None:
    """Pass down a region of queried variables: what lies outside each child, and the own states' bounds."""
    n = begin(t, r, start, s)
    last = t.axis_ptr[r + 1] - t.axis_ptr[r] - 1
    q = t.stride_ptr[r] + last * n
    v = t.own[r]
    p = t.state_ptr[v]
    while True:
        outer = s.outside[s.at[0]]
        if outer > -np.inf:
            own_values(t, r, n, tables, shifts, s)
            for k in range(s.n_alive[v]):
                value = s.values[k] + outer
                if value == -np.inf:
                    continue
                own[k] = max(own[k], value)
                step = s.alive[p + k] - s.alive[p]
                for i in range(1 + t.n_tables[r], n):
                    j = s.at[i] + step * t.strides[q + i]
                    s.outside[j] = max(s.outside[j], value - s.message[j])
        if not advance(t, r, n, 0, last, last, s):
            break


@jit_part
def down_mixed(
    t: TreeArrays, r: int, start: Ints, tables: Floats, shifts: Floats, hidden: Ints, s: Scratch, own: Floats
) -> None:
    """Pass down a region with hidden variables: these are summed, within the maximum over the queried ones.

    `hidden[i]` is the number of configurations of the hidden variables in child i's separator; its separator lists
    queried variables first, so that these configurations are neighbours.
    """
    n = begin(t, r, start, s)
    v = t.own[r]
    n_axes = t.axis_ptr[r + 1] - t.axis_ptr[r]
    is_query = t.is_query[v] == 1
    own_at = t.n_query_axes[r] if is_query else n_axes - 1
    n_query = t.n_query_axes[r] + (1 if is_query else 0)
    n_tables = t.n_tables[r]
    while True:
        room = 0
        for i in range(1 + n_tables, n):
            for j in range(room, room + hidden[i]):
                s.block_top[j] = -np.inf
                s.block_sum[j] = 0.0
            room += hidden[i]
        top, total = -np.inf, 0.0
        while True:
            value = s.outside[s.at[0]]
            if value > -np.inf:
                value += shifts[t.shift_ptr[r] + s.alive[t.state_ptr[v] + s.position[n_axes - 1]]]
                for i in range(1, 1 + n_tables):
                    value += tables[s.at[i]]
                for i in range(1 + n_tables, n):
                    value += s.message[s.at[i]]
            if value > -np.inf:
                if value > top:
                    total = total * np.exp(top - value) + 1.0
                    top = value
                else:
                    total += np.exp(value - top)
                room = 0
                for i in range(1 + n_tables, n):
                    rest = value - s.message[s.at[i]]
                    j = room + (s.at[i] - start[t.start_ptr[r] + i]) % hidden[i]
                    if rest > s.block_top[j]:
                        s.block_sum[j] = s.block_sum[j] * np.exp(s.block_top[j] - rest) + 1.0
                        s.block_top[j] = rest
                    else:
                        s.block_sum[j] += np.exp(rest - s.block_top[j])
                    room += hidden[i]
            if not advance(t, r, n, n_query, n_axes, own_at, s):
                break
        room = 0
        for i in range(1 + n_tables, n):
            place = s.at[i] - start[t.start_ptr[r] + i]
            block = start[t.start_ptr[r] + i] + place - place % hidden[i]
            for j in range(hidden[i]):
                if s.block_sum[room + j] > 0.0:
                    rest = s.block_top[room + j] + np.log(s.block_sum[room + j])
                    s.outside[block + j] = max(s.outside[block + j], rest)
            room += hidden[i]
        if is_query and total > 0.0:
            k = s.position[n_axes - 1]
            own[k] = max(own[k], top + np.log(total))
        if not advance(t, r, n, 0, n_query, own_at, s):
            break


@jit_part
def downward(
    t: TreeArrays,
    start: Ints,
    tables: Floats,
    shifts: Floats,
    hidden: Ints,
    s: Scratch,
    each: Floats,
    first_region: int,
    last_region: int,
) -> None:
    """Write for every queried copy and state a bound on its own tree with that copy held there, after `upward`.

    Of regions last_region - 1 down to first_region, those above done already; the rest of `each` stays as it is.
    Hidden variables above a queried one are summed with weight 1: a power sum of weight at most 1 is no larger.
    """
    own = np.empty(len(s.values))
    for r in range(last_region - 1, first_region - 1, -1):
        if t.has_query[r] == 0:
            continue
        first, n = t.start_ptr[r], 1 + t.n_tables[r] + t.n_children[r]
        if t.parent[r] < 0:
            s.outside[t.message_ptr[r]] = 0.0
            s.outside_offset[r] = 0.0
        below = 0.0
        for i in range(1 + t.n_tables[r], n):
            c = t.children[first + i]
            below += s.below[c]
            s.outside[t.message_ptr[c] : t.message_ptr[c + 1]] = -np.inf
        v = t.own[r]
        own[: s.n_alive[v]] = -np.inf
        n_axes = t.axis_ptr[r + 1] - t.axis_ptr[r]
        if t.is_query[v] == 1 and t.n_query_axes[r] == n_axes - 1:
            down_maximal(t, r, start, tables, shifts, s, own)
        else:
            down_mixed(t, r, start, tables, shifts, hidden[first:], s, own)
        if t.is_query[v] == 1:
            for k in range(s.n_alive[v]):
                each[t.shift_ptr[r] + s.alive[t.state_ptr[v] + k]] = own[k] + s.outside_offset[r] + below
        for i in range(1 + t.n_tables[r], n):
            c = t.children[first + i]
            top = -np.inf
            for j in range(t.message_ptr[c], t.message_ptr[c + 1]):
                top = max(top, s.outside[j])
            if top > -np.inf:
                for j in range(t.message_ptr[c], t.message_ptr[c + 1]):
                    s.outside[j] -= top
            s.outside_offset[c] = s.outside_offset[r] + below - s.below[c] + top


@jit_part
def combine_copies(
    t: TreeArrays, copies: Ints, copy_ptr: Ints, root: Ints, total: float, each: Floats, s: Scratch, out: Floats
) -> None:
    """Write a bound for every queried variable and alive state from those of its copies.

    Copies in different trees lower the bound by the sum of what they cost their trees, copies in one tree by the
    largest of their costs. `copies` lists regions by variable and then by root.
    """
    for v in range(len(t.n_states)):
        if t.is_query[v] == 0:
            continue
        p = t.state_ptr[v]
        for k in range(s.n_alive[v]):
            state = s.alive[p + k]
            bound = total
            cost = 0.0
            for i in range(copy_ptr[v], copy_ptr[v + 1]):
                r = copies[i]
                cost = max(cost, s.below[root[r]] - each[t.shift_ptr[r] + state])
                if i + 1 == copy_ptr[v + 1] or root[copies[i + 1]] != root[r]:
                    bound -= cost
                    cost = 0.0
            out[p + state] = bound


@jit()
def descend(
    t: TreeArrays,
    start: Ints,
    tables: Floats,
    shifts: Floats,
    hidden: Ints,
    s: Scratch,
    each: Floats,
    first: int,
    last: int,
) -> None:
    """See `downward`."""
    downward(t, start, tables, shifts, hidden, s, each, first, last)


@jit()
def combine(
    t: TreeArrays, copies: Ints, copy_ptr: Ints, root: Ints, total: float, each: Floats, s: Scratch, out: Floats
) -> None:
    """See `combine_copies`."""
    combine_copies(t, copies, copy_ptr, root, total, each, s, out)


@jit()
def probe(
    t: TreeArrays,
    start: Ints,
    tables: Floats,
    shifts: Floats,
    weights: Floats,
    hidden: Ints,
    copies: Ints,
    copy_ptr: Ints,
    root: Ints,
    mask: NDArray[np.uint8],
    s: Scratch,
    by_copy: Floats,
    out_bound: Floats,
    out_each: Floats,
) -> None:
    """Bound each row of `mask` (states by variable), and every queried state in it; -inf outside."""
    for b in range(len(mask)):
        out_each[b, :] = -np.inf
        out_bound[b] = -np.inf
        if not set_alive(t, mask[b], s):
            continue
        total = upward(t, start, tables, shifts, weights, s, 0, len(t.own))
        if total == -np.inf:
            continue
        slack = rounding_error(t, shifts, s)
        out_bound[b] = total + slack
        by_copy[:] = -np.inf
        downward(t, start, tables, shifts, hidden, s, by_copy, 0, len(t.own))
        combine_copies(t, copies, copy_ptr, root, total + 4.0 * slack, by_copy, s, out_each[b])


@jit()
def decode(
    t: TreeArrays,
    order: Ints,
    start: Ints,
    tables: Floats,
    shifts: Floats,
    copies: Ints,
    copy_ptr: Ints,
    by_copy: Floats,
    s: Scratch,
    point: Ints,
) -> None:
    """Write a state for every queried variable, last eliminated first, after a probe of one row.

    Each variable takes the state of the largest sum over its copies' values given the states chosen before; a copy
    whose separator holds hidden variables counts with its bound alone.
    """
    scores = np.empty(len(s.values))
    for step in range(len(order) - 1, -1, -1):
        v = order[step]
        if t.is_query[v] == 0:
            continue
        p = t.state_ptr[v]
        scores[: s.n_alive[v]] = 0.0
        for i in range(copy_ptr[v], copy_ptr[v + 1]):
            r = copies[i]
            n_axes = t.axis_ptr[r + 1] - t.axis_ptr[r]
            if t.n_query_axes[r] < n_axes - 1:
                for k in range(s.n_alive[v]):
                    scores[k] += by_copy[t.shift_ptr[r] + s.alive[p + k]]
                continue
            n = 1 + t.n_tables[r] + t.n_children[r]
            for j in range(n):
                s.at[j] = (
                    start[t.start_ptr[r] + j] + s.alive[p] * t.strides[t.stride_ptr[r] + (n_axes - 1) * n + j]
                )
                for a in range(n_axes - 1):
                    s.at[j] += point[t.axes[t.axis_ptr[r] + a]] * t.strides[t.stride_ptr[r] + a * n + j]
            own_values(t, r, int(n), tables, shifts, s)
            for k in range(s.n_alive[v]):
                scores[k] += s.values[k]
        best = 0
        for k in range(1, s.n_alive[v]):
            if scores[k] > scores[best]:
                best = k
        point[v] = s.alive[p + best]
