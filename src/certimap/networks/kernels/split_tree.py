"""Compiled passes over a split tree: power sums upward, their derivatives, bounds and maxima downward.

All values are natural logs; a message is scaled so that its largest entry is 0, and the scale is kept in `offset`.
Only the states in `alive` are visited. A region's *inputs* are its outgoing message (number 0), its tables and its
children's messages, each addressed by an offset and one stride per variable of its scope.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from certimap.core.arrays import Bytes, Floats, Ints
from certimap.kernels.jit import jit, jit_part

NEGLIGIBLE = -45.0  # ln of a share that even a thousand of do not change a sum in its last place


class TreeArrays(NamedTuple):
    """The arrays of a split tree, children before parents; see `SplitTree`."""

    n_states: Ints  # of every variable; `state_ptr`: where they start among all states
    state_ptr: Ints
    is_query: Bytes  # 1 where a variable is maximised
    own: Ints  # the variable whose copy each region eliminates
    axis_ptr: Ints
    axes: Ints  # the variables of each scope: queried ones of the separator, others of the separator, then `own`
    n_query_axes: Ints  # how many of the separator's axes are queried
    n_tables: Ints  # the inputs of each region: 1 + n_tables + n_children, from `start_ptr`
    n_children: Ints
    start_ptr: Ints
    start: Ints  # where each input starts: in the messages for number 0 and children, else in the tables
    stride_ptr: Ints
    strides: Ints  # for each region, axis and input, inputs fastest
    children: Ints  # the child behind each input, -1 for the message and the tables
    shift_ptr: Ints  # where the shifts of each region's copy start
    message_ptr: Ints  # where each message starts
    parent: Ints  # -1 for roots
    has_query: Bytes  # 1 where the region or one below eliminates a queried copy
    tables: Floats  # in nats, each scaled to a largest entry of 0
    hidden: Ints  # for every input the number of states of the hidden variables in a child's separator, else 1
    copies: Ints  # regions by variable and root
    copy_ptr: Ints
    root: Ints  # the root above each region


class Scratch(NamedTuple):
    """Buffers of one pass; `message` and `outside` are laid out by `message_ptr`."""

    message: Floats
    offset: Floats
    below: Floats
    outside: Floats
    outside_offset: Floats
    block_top: Floats
    block_sum: Floats
    at: Ints
    position: Ints
    values: Floats
    alive: Ints
    n_alive: Ints


@jit_part
def begin(t: TreeArrays, r: int, s: Scratch) -> int:
    """Put every input of a region at its first alive entry; return the number of inputs."""
    n = 1 + t.n_tables[r] + t.n_children[r]
    for i in range(n):
        s.at[i] = t.start[t.start_ptr[r] + i]
    first = t.axis_ptr[r]
    for a in range(t.axis_ptr[r + 1] - first):
        s.position[a] = 0
        state = s.alive[t.state_ptr[t.axes[first + a]]]
        for i in range(n):
            s.at[i] += state * t.strides[t.stride_ptr[r] + a * n + i]
    return n


@jit_part
def advance(t: TreeArrays, r: int, n: int, low: int, high: int, own_at: int, s: Scratch) -> bool:
    """Go on to the next entry over the axes low to high - 1; the own one, stored last, is at `own_at` of them."""
    first = t.axis_ptr[r]
    n_axes = t.axis_ptr[r + 1] - first
    j = high - 1
    while j >= low:
        a = j if j < own_at else (n_axes - 1 if j == own_at else j - 1)
        v = t.axes[first + a]
        p = t.state_ptr[v]
        now = s.alive[p + s.position[a]]
        done = s.position[a] + 1 >= s.n_alive[v]
        s.position[a] = 0 if done else s.position[a] + 1
        change = s.alive[p + s.position[a]] - now
        q = t.stride_ptr[r] + a * n
        for i in range(n):
            s.at[i] += change * t.strides[q + i]
        if not done:
            return True
        j -= 1
    return False


@jit_part
def own_values(t: TreeArrays, r: int, n: int, shifts: Floats, s: Scratch) -> float:
    """Write the values of the own variable's alive states at the present entry; return the largest."""
    v = t.own[r]
    p = t.state_ptr[v]
    q = t.stride_ptr[r] + (t.axis_ptr[r + 1] - t.axis_ptr[r] - 1) * n
    n_tables = t.n_tables[r]
    base = s.alive[p]
    top = -np.inf
    for k in range(s.n_alive[v]):
        state = s.alive[p + k]
        value = shifts[t.shift_ptr[r] + state]
        for i in range(1, 1 + n_tables):
            value += t.tables[s.at[i] + (state - base) * t.strides[q + i]]
        for i in range(1 + n_tables, n):
            value += s.message[s.at[i] + (state - base) * t.strides[q + i]]
        s.values[k] = value
        top = max(top, value)
    return float(top)


@jit_part
def send(t: TreeArrays, r: int, shifts: Floats, weight: float, s: Scratch) -> None:
    """Eliminate a region's own copy: power sum of the given weight (0 for the maximum)."""
    n = begin(t, r, s)
    last = t.axis_ptr[r + 1] - t.axis_ptr[r] - 1
    n_own = s.n_alive[t.own[r]]
    best = -np.inf
    while True:
        top = own_values(t, r, n, shifts, s)
        if weight > 0.0 and top > -np.inf:
            total = 0.0
            for k in range(n_own):
                log_share = (s.values[k] - top) / weight
                if log_share > NEGLIGIBLE:
                    total += np.exp(log_share)
            if total > 1.0:
                top += weight * np.log(total)
        s.message[s.at[0]] = top
        best = max(best, top)
        if not advance(t, r, n, 0, last, last, s):
            break
    s.offset[r] = best
    if best > -np.inf:
        for j in range(t.message_ptr[r], t.message_ptr[r + 1]):
            s.message[j] -= best


@jit()
def upward(t: TreeArrays, shifts: Floats, weights: Floats, s: Scratch, first: int, last: int) -> float:
    """Send the messages of regions first to last - 1, after those before; return the sum of their scales."""
    total, lost = 0.0, 0.0
    for r in range(first, last):
        send(t, r, shifts, weights[r], s)
        value = s.offset[r]
        if value == -np.inf:
            return -np.inf
        below = value
        for i in range(1 + t.n_tables[r], 1 + t.n_tables[r] + t.n_children[r]):
            below += s.below[t.children[t.start_ptr[r] + i]]
        s.below[r] = below
        summed = total + value  # Neumaier: thousands of scales add up without loss
        lost += (total - summed) + value if abs(total) >= abs(value) else (value - summed) + total
        total = summed
    return total + lost


@jit()
def rounding(t: TreeArrays, shifts: Floats, s: Scratch) -> float:
    """Bound the rounding error (nats) of the last upward pass at its largest entries.

    Tables and messages are at most 0, so no partial sum of an entry that ends at `offset` is further from 0 than
    that and twice the largest shift; an entry that matters to the parent is no further below 0 than the parent's
    scale.
    """
    total = 0.0
    for r in range(len(t.own)):
        n = 9 + t.n_tables[r] + t.n_children[r]
        reach = abs(s.offset[r]) + 4.0
        if t.parent[r] >= 0:
            reach += abs(s.offset[t.parent[r]])
        shift = 0.0
        for k in range(t.shift_ptr[r], t.shift_ptr[r + 1]):
            shift = max(shift, abs(shifts[k]))
        total += n * (reach + 2.0 * shift)
    return 2.3e-16 * total


@jit()
def gradient(
    t: TreeArrays, shifts: Floats, weights: Floats, s: Scratch, to_shifts: Floats, to_weights: Floats, first: int,
    last_region: int,
) -> None:  # fmt: skip
    """Write derivatives by shifts and positive weights after an upward pass, of regions last_region - 1 to first.

    The derivative by a copy's shift is the copy's marginal, by its weight its conditional entropy. `outside` holds
    the marginals of separators, and `to_shifts` sums: both are 0 before the first region.
    """
    for r in range(last_region - 1, first - 1, -1):
        if t.parent[r] < 0:
            s.outside[t.message_ptr[r]] = 1.0
        n = begin(t, r, s)
        last = t.axis_ptr[r + 1] - t.axis_ptr[r] - 1
        q = t.stride_ptr[r] + last * n
        v = t.own[r]
        p = t.state_ptr[v]
        w = weights[r]
        entropy = 0.0
        while True:
            mass = s.outside[s.at[0]]
            if mass > 0.0:
                own_values(t, r, n, shifts, s)
                total = s.message[s.at[0]] + s.offset[r]
                for k in range(s.n_alive[v]):
                    log_share = (s.values[k] - total) / w
                    if log_share > NEGLIGIBLE:
                        share = mass * np.exp(log_share)
                        state = s.alive[p + k]
                        entropy -= share * log_share
                        to_shifts[t.shift_ptr[r] + state] += share
                        step = state - s.alive[p]
                        for i in range(1 + t.n_tables[r], n):
                            s.outside[s.at[i] + step * t.strides[q + i]] += share
            if not advance(t, r, n, 0, last, last, s):
                break
        to_weights[r] = entropy


@jit()
def restrict_to(t: TreeArrays, mask: Bytes, s: Scratch) -> bool:
    """Let later passes visit the states of a mask only; False when a variable has none."""
    for v in range(len(t.n_states)):
        p = t.state_ptr[v]
        count = 0
        for k in range(t.n_states[v]):
            if mask[p + k]:
                s.alive[p + count] = k
                count += 1
        s.n_alive[v] = count
        if count == 0:
            return False
    return True


@jit_part
def down_maximal(t: TreeArrays, r: int, shifts: Floats, s: Scratch, own: Floats) -> None:
    """Pass down a region of queried variables: what lies outside each child, and the own states' bounds."""
    n = begin(t, r, s)
    last = t.axis_ptr[r + 1] - t.axis_ptr[r] - 1
    q = t.stride_ptr[r] + last * n
    v = t.own[r]
    p = t.state_ptr[v]
    while True:
        outer = s.outside[s.at[0]]
        if outer > -np.inf:
            own_values(t, r, n, shifts, s)
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
def down_mixed(t: TreeArrays, r: int, shifts: Floats, s: Scratch, own: Floats) -> None:
    """Pass down a region with hidden variables: these are summed, within the maximum over the queried ones.

    Separators list queried variables first: the hidden configurations in a child's, `t.hidden`, are neighbours.
    """
    n = begin(t, r, s)
    v, first = t.own[r], t.start_ptr[r]
    n_axes = t.axis_ptr[r + 1] - t.axis_ptr[r]
    is_query = t.is_query[v] == 1
    own_at = t.n_query_axes[r] if is_query else n_axes - 1
    n_query = t.n_query_axes[r] + (1 if is_query else 0)
    n_tables = t.n_tables[r]
    while True:
        room = 0
        for i in range(1 + n_tables, n):
            for j in range(room, room + t.hidden[first + i]):
                s.block_top[j] = -np.inf
                s.block_sum[j] = 0.0
            room += t.hidden[first + i]
        top, total = -np.inf, 0.0
        while True:
            value = s.outside[s.at[0]]
            if value > -np.inf:
                value += shifts[t.shift_ptr[r] + s.alive[t.state_ptr[v] + s.position[n_axes - 1]]]
                for i in range(1, 1 + n_tables):
                    value += t.tables[s.at[i]]
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
                    j = room + (s.at[i] - t.start[first + i]) % t.hidden[first + i]
                    if rest > s.block_top[j]:
                        s.block_sum[j] = s.block_sum[j] * np.exp(s.block_top[j] - rest) + 1.0
                        s.block_top[j] = rest
                    else:
                        s.block_sum[j] += np.exp(rest - s.block_top[j])
                    room += t.hidden[first + i]
            if not advance(t, r, n, n_query, n_axes, own_at, s):
                break
        room = 0
        for i in range(1 + n_tables, n):
            place = s.at[i] - t.start[first + i]
            block = t.start[first + i] + place - place % t.hidden[first + i]
            for j in range(t.hidden[first + i]):
                if s.block_sum[room + j] > 0.0:
                    rest = s.block_top[room + j] + np.log(s.block_sum[room + j])
                    s.outside[block + j] = max(s.outside[block + j], rest)
            room += t.hidden[first + i]
        if is_query and total > 0.0:
            k = s.position[n_axes - 1]
            own[k] = max(own[k], top + np.log(total))
        if not advance(t, r, n, 0, n_query, own_at, s):
            break


@jit()
def downward(t: TreeArrays, shifts: Floats, s: Scratch, each: Floats, first_region: int, last_region: int) -> None:
    """Write for every queried copy and state a bound on its own tree with that copy held there, after `upward`.

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
            down_maximal(t, r, shifts, s, own)
        else:
            down_mixed(t, r, shifts, s, own)
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


@jit()
def combine(t: TreeArrays, total: float, each: Floats, s: Scratch, out: Floats) -> None:
    """Write a bound for every queried variable and alive state from those of its copies.

    Copies in different trees lower the bound by the sum of what they cost their trees, copies in one tree by the
    largest of their costs.
    """
    for v in range(len(t.n_states)):
        if t.is_query[v] == 0:
            continue
        p = t.state_ptr[v]
        for k in range(s.n_alive[v]):
            state = s.alive[p + k]
            bound, cost = total, 0.0
            for i in range(t.copy_ptr[v], t.copy_ptr[v + 1]):
                r = t.copies[i]
                cost = max(cost, s.below[t.root[r]] - each[t.shift_ptr[r] + state])
                if i + 1 == t.copy_ptr[v + 1] or t.root[t.copies[i + 1]] != t.root[r]:
                    bound -= cost
                    cost = 0.0
            out[p + state] = bound


@jit()
def probe(
    t: TreeArrays, shifts: Floats, weights: Floats, mask: Bytes, s: Scratch, by_copy: Floats, out_bound: Floats,
    out_each: Floats,
) -> None:  # fmt: skip
    """Bound each row of `mask` (states by variable), and every queried state in it; -inf outside."""
    for b in range(len(mask)):
        out_each[b, :] = -np.inf
        out_bound[b] = -np.inf
        if not restrict_to(t, mask[b], s):
            continue
        total = upward(t, shifts, weights, s, 0, len(t.own))
        if total == -np.inf:
            continue
        slack = rounding(t, shifts, s)
        out_bound[b] = total + slack
        by_copy[:] = -np.inf
        downward(t, shifts, s, by_copy, 0, len(t.own))
        combine(t, total + 4.0 * slack, by_copy, s, out_each[b])


@jit()
def decode(t: TreeArrays, order: Ints, shifts: Floats, by_copy: Floats, s: Scratch, point: Ints) -> None:
    """Write for every queried variable, last eliminated first, the state of the largest sum over its copies.

    Values are given the states chosen before; a copy whose separator has hidden variables counts with its bound.
    """
    scores = np.empty(len(s.values))
    for step in range(len(order) - 1, -1, -1):
        v = order[step]
        if t.is_query[v] == 0:
            continue
        p = t.state_ptr[v]
        scores[: s.n_alive[v]] = 0.0
        for i in range(t.copy_ptr[v], t.copy_ptr[v + 1]):
            r = t.copies[i]
            n_axes = t.axis_ptr[r + 1] - t.axis_ptr[r]
            if t.n_query_axes[r] < n_axes - 1:
                for k in range(s.n_alive[v]):
                    scores[k] += by_copy[t.shift_ptr[r] + s.alive[p + k]]
                continue
            n = 1 + t.n_tables[r] + t.n_children[r]
            q = t.stride_ptr[r]
            for j in range(n):
                s.at[j] = t.start[t.start_ptr[r] + j] + s.alive[p] * t.strides[q + (n_axes - 1) * n + j]
                for a in range(n_axes - 1):
                    s.at[j] += point[t.axes[t.axis_ptr[r] + a]] * t.strides[q + a * n + j]
            own_values(t, r, int(n), shifts, s)
            for k in range(s.n_alive[v]):
                scores[k] += s.values[k]
        best = 0
        for k in range(1, s.n_alive[v]):
            if scores[k] > scores[best]:
                best = k
        point[v] = s.alive[p + best]
