"""Batched passes over a tree of regions: messages upward, derivatives downward, draws.

Rows of a batch are the inner axis. Values are linear and at most 1. A vector whose largest entry falls below
`RESCALE` is scaled up by a power of two, without rounding, and its exponent is kept. Rows with an entry near
underflow are flagged, for `certimap.trees.kernels.wide_passes`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from certimap.core.arrays import Bytes, Floats, Ints, Ints16
from certimap.core.region_tree import RegionArrays
from certimap.core.rounding import LEAST_PLACES, RESCALE, SAFE
from certimap.kernels.jit import Scalar, jit, jit_part
from certimap.kernels.wide import LN2, ZERO, WideArrays, normal


class Links(NamedTuple):
    """Where the maps from parents begin, and the parent and the queried variable of each region, -1 for none."""

    maps: Ints
    parent: Ints
    variable: Ints


class PassRoom(NamedTuple):
    """Buffers of one block of rows: joints and messages, with the exponents (of two) of their scales."""

    joint: Floats
    joint_exponent: Floats
    message: Floats
    message_exponent: Floats
    outer: Floats  # one joint
    flags: Bytes  # rows near underflow


class DownRoom(NamedTuple):
    """Further buffers of `downward`: `suffix` holds a joint more than a region has children."""

    suffix: Floats
    suffix_exponent: Floats
    down: Floats
    down_exponent: Floats


@jit_part
def rescale(values: Floats, start: int, stop: int, exponents: Floats, flags: Bytes) -> None:
    """Scale rows of `values[start:stop]` with a small maximum; flag rows near underflow."""
    n_rows = values.shape[1]
    top = np.zeros(n_rows)
    low = np.ones(n_rows)
    for j in range(start, stop):
        for b in range(n_rows):
            v = values[j, b]
            top[b] = max(top[b], v)
            low[b] = min(low[b], v if v > 0.0 else 1.0)
    for b in range(n_rows):
        small = 0.0 < top[b] < RESCALE
        if low[b] < (SAFE * top[b] if small else SAFE):
            flags[b] = 1
        if small:
            places = max(math.frexp(top[b])[1], LEAST_PLACES)
            exponents[b] += places
            factor = math.ldexp(1.0, -places)
            for j in range(start, stop):
                values[j, b] *= factor


@jit_part
def contract(table: Floats, joint: Floats, n_shared: int, n_rest: int, k: int, is_max: bool, out: Floats) -> None:
    """Write out[(shared, rest), row] = sum (or max) over v of table[shared, rest, v] * joint[(shared, v), row]."""
    n_rows = joint.shape[1]
    for s in range(n_shared):
        for r in range(n_rest):
            o = s * n_rest + r
            t = o * k
            j = s * k
            for b in range(n_rows):
                out[o, b] = 0.0
            if is_max:
                for v in range(k):
                    w = table[t + v]
                    for b in range(n_rows):
                        out[o, b] = max(out[o, b], w * joint[j + v, b])
                continue
            v = 0
            while v + 4 <= k:
                w0, w1, w2, w3 = table[t + v], table[t + v + 1], table[t + v + 2], table[t + v + 3]
                for b in range(n_rows):
                    out[o, b] += (w0 * joint[j + v, b] + w1 * joint[j + v + 1, b]) + (
                        w2 * joint[j + v + 2, b] + w3 * joint[j + v + 3, b]
                    )
                v += 4
            while v < k:
                w = table[t + v]
                for b in range(n_rows):
                    out[o, b] += w * joint[j + v, b]
                v += 1


@jit()
def upward(a: RegionArrays, mask: Floats, is_bound: bool, room: PassRoom) -> None:
    """Send all messages to the root, and write joints before own masks; `mask` has shape (total_states, rows)."""
    joint, joint_exponent, message, message_exponent, masked, flags = room
    n_rows = mask.shape[1]
    for r in range(len(a.own_states)):
        k = a.own_states[r]
        n_shared = a.shared_query[r] * a.shared_hidden[r]
        n_rest = a.rest_query[r] * a.rest_hidden[r]
        size = n_shared * k
        jp = a.joint_ptr[r]
        for b in range(n_rows):
            joint_exponent[r, b] = 0.0
            message_exponent[r, b] = 0.0
        first = a.child_ptr[r]
        last = a.child_ptr[r + 1]
        if first == last:
            joint[jp : jp + size, :] = 1.0
        for c in range(first, last):
            child = int(a.children[c])
            mp = a.message_ptr[child]
            gp = a.map_ptr[c]
            for j in range(size):
                source = mp + a.gather[gp + j]
                if c == first:
                    for b in range(n_rows):
                        joint[jp + j, b] = message[source, b]
                else:
                    for b in range(n_rows):
                        joint[jp + j, b] *= message[source, b]
            for b in range(n_rows):
                joint_exponent[r, b] += message_exponent[child, b]
            if c > first:
                rescale(joint, jp, jp + size, joint_exponent[r], flags)
        column = a.column[r]
        mp = a.message_ptr[r]
        stop = mp + n_shared * n_rest
        table = a.tables[a.table_ptr[r] : a.table_ptr[r + 1]]
        values = joint[jp : jp + size]
        if column >= 0:
            for s in range(n_shared):
                for v in range(k):
                    for b in range(n_rows):
                        masked[s * k + v, b] = values[s * k + v, b] * mask[column + v, b]
            values = masked[:size]
        contract(table, values, n_shared, n_rest, k, is_bound and column >= 0, message[mp:stop])
        for b in range(n_rows):
            message_exponent[r, b] = joint_exponent[r, b]
        rescale(message, mp, stop, message_exponent[r], flags)


class PointArrays(NamedTuple):
    """How points read a tree: messages and joints have the states of hidden variables alone."""

    term_ptr: Ints  # the terms that sum to a point's start in the table of each region
    variable: Ints  # of each term: a stride times the state of a variable
    stride: Ints
    map_ptr: Ints
    gather: Ints  # as in `RegionArrays`
    message_ptr: Ints
    n_joint: int  # states of the largest joint


class PointRoom(NamedTuple):
    """Buffers of one block of rows: messages with exponents (of two), one joint, and flags; see `PassRoom`."""

    message: Floats
    message_exponent: Floats
    joint: Floats
    place: Ints
    flags: Bytes


@jit_part
def contract_at(
    table: Floats, place: Ints, joint: Floats, n_shared: int, n_rest: int, skip: int, k: int, n_own: int,
    out: Floats,
) -> None:  # fmt: skip
    """Write out[(shared, rest), row]: sum over n_own states of joint times the table from `place`, as `contract`.

    `skip` is the number of table entries from one hidden shared state to the next, `k` from one rest state.
    """
    for s in range(n_shared):
        for r in range(n_rest):
            o = s * n_rest + r
            t = s * skip + r * k
            j = s * n_own
            if n_own == 1:
                for b in range(len(place)):
                    out[o, b] = table[place[b] + t] * joint[j, b]
                continue
            for b in range(len(place)):
                total = 0.0
                i = place[b] + t
                v = 0
                while v + 4 <= n_own:
                    total += (table[i + v] * joint[j + v, b] + table[i + v + 1] * joint[j + v + 1, b]) + (
                        table[i + v + 2] * joint[j + v + 2, b] + table[i + v + 3] * joint[j + v + 3, b]
                    )
                    v += 4
                while v < n_own:
                    total += table[i + v] * joint[j + v, b]
                    v += 1
                out[o, b] = total


@jit()
def upward_points(a: RegionArrays, p: PointArrays, states: Ints16, room: PointRoom) -> None:
    """Send all messages to the root; `states` has shape (variables, rows).

    A region of a known state reads that state's table entries. The values have the bits of `upward` on masks of
    single states, except where the two scale by different powers of two.
    """
    message, exponent, joint, place, flags = room
    n_rows = states.shape[1]
    for r in range(len(a.own_states)):
        k = a.own_states[r]
        n_own = 1 if a.column[r] >= 0 else k
        n_shared, n_rest = a.shared_hidden[r], a.rest_hidden[r]
        size = n_shared * n_own
        first, last = a.child_ptr[r], a.child_ptr[r + 1]
        exponent[r, :] = 0.0
        if first == last:
            joint[:size, :] = 1.0
        for c in range(first, last):
            child = int(a.children[c])
            for j in range(size):
                source = p.message_ptr[child] + p.gather[p.map_ptr[c] + j]
                if c == first:
                    for b in range(n_rows):
                        joint[j, b] = message[source, b]
                else:
                    for b in range(n_rows):
                        joint[j, b] *= message[source, b]
            for b in range(n_rows):
                exponent[r, b] += exponent[child, b]
            if c > first:
                rescale(joint, 0, size, exponent[r], flags)
        start, stop = p.message_ptr[r], p.message_ptr[r + 1]
        table = a.tables[a.table_ptr[r] : a.table_ptr[r + 1]]
        if p.term_ptr[r] == p.term_ptr[r + 1]:
            contract(table, joint[:size], n_shared, n_rest, n_own, False, message[start:stop])
        else:
            place[:] = 0
            for i in range(p.term_ptr[r], p.term_ptr[r + 1]):
                stride = p.stride[i]
                for b in range(n_rows):
                    place[b] += stride * np.int64(states[p.variable[i], b])
            step = a.rest_query[r] * n_rest * k
            contract_at(table, place, joint, n_shared, n_rest, step, k, n_own, message[start:stop])
        rescale(message, start, stop, exponent[r], flags)


@jit_part
def project_down(
    table: Floats, down: Floats, shared: int, rest_query: int, rest_hidden: int, k: int, is_bound: bool,
    out: Floats,
) -> None:  # fmt: skip
    """Write out[(shared, v), row]: `down` times the table, summed over the rest (bounds maximise its queries)."""
    n_rows = down.shape[1]
    total = np.empty(n_rows)
    for s in range(shared):
        for v in range(k):
            o = s * k + v
            for b in range(n_rows):
                out[o, b] = 0.0
            for rq in range(rest_query):
                for b in range(n_rows):
                    total[b] = 0.0
                for rh in range(rest_hidden):
                    i = (s * rest_query + rq) * rest_hidden + rh
                    w = table[i * k + v]
                    for b in range(n_rows):
                        total[b] += w * down[i, b]
                if is_bound:
                    for b in range(n_rows):
                        out[o, b] = max(out[o, b], total[b])
                else:
                    for b in range(n_rows):
                        out[o, b] += total[b]


@jit_part
def scatter_down(values: Floats, places: Ints, excess: Scalar, is_bound: bool, total: Floats, out: Floats) -> None:
    """Reduce a joint vector to a child's separator: sum hidden states in `total`, then configurations in `out`."""
    n_rows = values.shape[1]
    total[: len(out) * excess, :] = 0.0
    for j in range(len(places)):
        o = places[j]
        for b in range(n_rows):
            total[o, b] += values[j, b]
    for o in range(len(out)):
        for b in range(n_rows):
            out[o, b] = total[o * excess, b]
        for i in range(o * excess + 1, (o + 1) * excess):
            for b in range(n_rows):
                out[o, b] = max(out[o, b], total[i, b]) if is_bound else out[o, b] + total[i, b]


@jit()
def downward(a: RegionArrays, mask: Floats, is_bound: bool, room: PassRoom, below: DownRoom, each: Floats) -> None:
    """Write each[(variable, state), row] = ln of the value with that state fixed, after `upward`."""
    joint, joint_exponent, message, message_exponent, outer, flags = room
    suffix, suffix_exponent, down, down_exponent = below
    n_rows = mask.shape[1]
    n = len(a.own_states)
    down[a.message_ptr[n - 1], :] = 1.0
    down_exponent[n - 1, :] = 0.0
    for r in range(n - 1, -1, -1):
        k = a.own_states[r]
        shared_hidden = a.shared_hidden[r]
        n_shared = a.shared_query[r] * shared_hidden
        size = n_shared * k
        jp = a.joint_ptr[r]
        mp = a.message_ptr[r]
        table = a.tables[a.table_ptr[r] : a.table_ptr[r + 1]]
        stop = mp + n_shared * a.rest_query[r] * a.rest_hidden[r]
        project_down(table, down[mp:stop], n_shared, a.rest_query[r], a.rest_hidden[r], k, is_bound, outer)
        rescale(outer, 0, size, down_exponent[r], flags)
        column = a.column[r]
        if column >= 0:
            own_values(joint[jp : jp + size], outer, a.shared_query[r], shared_hidden, k, is_bound, each[column:])
            for v in range(k):
                for b in range(n_rows):
                    e = each[column + v, b]
                    scale = down_exponent[r, b] + joint_exponent[r, b]
                    each[column + v, b] = np.log(e) + scale * LN2 if e > 0.0 else -np.inf
            for s in range(n_shared):
                for v in range(k):
                    for b in range(n_rows):
                        outer[s * k + v, b] *= mask[column + v, b]
        first = a.child_ptr[r]
        last = a.child_ptr[r + 1]
        n_children = last - first
        if n_children == 0:
            continue
        # suffix[i] = product of the messages of children i+1, i+2, ...
        spare = n_children * size
        suffix[(n_children - 1) * size : n_children * size, :] = 1.0
        suffix_exponent[n_children - 1, :] = 0.0
        for i in range(n_children - 2, -1, -1):
            child = int(a.children[first + i + 1])
            gp = a.map_ptr[first + i + 1]
            cp = a.message_ptr[child]
            for j in range(size):
                for b in range(n_rows):
                    suffix[i * size + j, b] = suffix[(i + 1) * size + j, b] * message[cp + a.gather[gp + j], b]
            for b in range(n_rows):
                suffix_exponent[i, b] = suffix_exponent[i + 1, b] + message_exponent[child, b]
            rescale(suffix, i * size, (i + 1) * size, suffix_exponent[i], flags)
        for i in range(n_children):
            child = int(a.children[first + i])
            gp = a.map_ptr[first + i]
            cp = a.message_ptr[child]
            sep = a.shared_query[child] * a.shared_hidden[child] * a.rest_query[child] * a.rest_hidden[child]
            for j in range(size):
                for b in range(n_rows):
                    suffix[i * size + j, b] *= outer[j, b]
            values, places, total = suffix[i * size : (i + 1) * size], a.scatter[gp : gp + size], suffix[spare:]
            scatter_down(values, places, a.excess[first + i], is_bound, total, down[cp : cp + sep])
            for b in range(n_rows):
                down_exponent[child, b] = down_exponent[r, b] + suffix_exponent[i, b]
            rescale(down, cp, cp + sep, down_exponent[child], flags)
            if i + 1 < n_children:
                for j in range(size):
                    for b in range(n_rows):
                        outer[j, b] *= message[cp + a.gather[gp + j], b]
                for b in range(n_rows):
                    down_exponent[r, b] += message_exponent[child, b]
                rescale(outer, 0, size, down_exponent[r], flags)


@jit_part
def own_values(
    joint: Floats, outer: Floats, shared_query: int, shared_hidden: int, k: int, is_bound: bool, out: Floats
) -> None:
    """Write out[v, row]: joint times outer, hidden shared states summed, queried ones summed or maximised."""
    n_rows = joint.shape[1]
    total = np.empty(n_rows)
    for v in range(k):
        for b in range(n_rows):
            out[v, b] = 0.0
        for sq in range(shared_query):
            for b in range(n_rows):
                total[b] = 0.0
            for sh in range(shared_hidden):
                j = (sq * shared_hidden + sh) * k + v
                for b in range(n_rows):
                    total[b] += joint[j, b] * outer[j, b]
            if is_bound:
                for b in range(n_rows):
                    out[v, b] = max(out[v, b], total[b])
            else:
                for b in range(n_rows):
                    out[v, b] += total[b]


@jit()
def draw(
    a: RegionArrays, links: Links, cumulative: Floats, key: np.uint64, rows: Ints, position: Ints, points: Ints16
) -> None:
    """Draw points[rows] from the root down; row i has its own stream, seeded by `key` and i."""
    n = len(a.own_states)
    for i in range(len(rows)):
        row = rows[i]
        state = key + np.uint64(row) * np.uint64(0x9E3779B97F4A7C15)
        z = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = z ^ (z >> np.uint64(31))
        for r in range(n - 1, -1, -1):
            k = a.own_states[r]
            separator = np.int64(0)
            if links.parent[r] >= 0:
                separator = a.gather[links.maps[r] + position[links.parent[r]]]
            t = a.table_ptr[r] + separator * k
            state += np.uint64(0x9E3779B97F4A7C15)
            z = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            z = z ^ (z >> np.uint64(31))
            u = np.float64(z >> np.uint64(11)) * (1.0 / 9007199254740992.0) * cumulative[t + k - 1]
            low = 0
            high = k - 1
            while low < high:
                middle = (low + high) // 2
                if cumulative[t + middle] > u:
                    high = middle
                else:
                    low = middle + 1
            position[r] = (separator // (a.rest_query[r] * a.rest_hidden[r])) * k + low
            if links.variable[r] >= 0:
                points[row, links.variable[r]] = low


@jit()
def follow_maxima(a: RegionArrays, links: Links, joint: WideArrays, position: Ints, point: Ints16) -> None:
    """Give every region, from the root down, the first state of largest weight after a wide pass of bounds."""
    has_exponents = len(a.exponents) > 0
    for r in range(len(a.own_states) - 1, -1, -1):
        k = a.own_states[r]
        separator = np.int64(0)
        if links.parent[r] >= 0:
            separator = a.gather[links.maps[r] + position[links.parent[r]]]
        shared = separator // (a.rest_query[r] * a.rest_hidden[r])
        t = a.table_ptr[r] + separator * k
        best = 0
        largest, exponent = 0.0, ZERO
        for v in range(k):
            e = joint.exponent[a.joint_ptr[r] + shared * k + v]
            if has_exponents:
                e += a.exponents[t + v]
            w, e = normal(a.mantissas[t + v] * joint.mantissa[a.joint_ptr[r] + shared * k + v], e)
            if e > exponent or (e == exponent and w > largest):
                largest, exponent = w, e
                best = v
        position[r] = shared * k + best
        if links.variable[r] >= 0:
            point[links.variable[r]] = best
