"""Upward passes for points: a region of a known state reads that state's table entries instead of masking all.

The values have the bits of `passes.upward` on masks of single states, which only adds zeros to them, except where
the two scale by different powers of two.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from certimap.core.arrays import Bytes, Floats, Ints, Ints16
from certimap.core.region_tree import RegionArrays
from certimap.kernels.jit import jit, jit_part
from certimap.trees.kernels.passes import contract, rescale


class PointArrays(NamedTuple):
    """How points read a tree: messages and joints have the states of hidden variables alone.

    Terms `term_ptr[r]` to `term_ptr[r + 1]` sum to a point's start in the table of region r: `stride` times the
    state of `variable`. `gather` is as in `RegionArrays`. The largest joint has `n_joint` states.
    """

    term_ptr: Ints
    variable: Ints
    stride: Ints
    map_ptr: Ints
    gather: Ints
    message_ptr: Ints
    n_joint: int


class PointRoom(NamedTuple):
    """Buffers of one block of rows: messages with exponents (of two), one joint, and flags; see `PassRoom`."""

    message: Floats
    message_exponent: Floats
    joint: Floats
    place: Ints
    flags: Bytes


@jit_part
def contract_at(
    table: Floats,
    place: Ints,
    joint: Floats,
    n_shared: int,
    n_rest: int,
    skip: int,
    k: int,
    n_own: int,
    out: Floats,
) -> None:
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
    """Send all messages to the root; `states` has shape (variables, rows)."""
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
