"""Passes over a tree of regions for one row, in which every number has its own exponent.

They replace the batched passes for rows in which doubles would underflow; see `certimap.kernels.wide`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from certimap.core.arrays import Flags, Floats, Ints
from certimap.core.region_tree import RegionArrays
from certimap.kernels.jit import Scalar, jit, jit_part
from certimap.kernels.wide import LN2, ZERO, WideArrays, larger, normal, plus, shifted, times


class WideRoom(NamedTuple):
    """Joints and messages of one row of wide numbers."""

    joint: WideArrays
    message: WideArrays


@jit()
def upward_wide(a: RegionArrays, mask: Flags, is_bound: bool, room: WideRoom) -> None:
    """Send all messages to the root; the mask has shape (total_states,)."""
    joint, message = room
    has_exponents = len(a.exponents) > 0
    for r in range(len(a.own_states)):
        k = a.own_states[r]
        n_shared = a.shared_query[r] * a.shared_hidden[r]
        n_rest = a.rest_query[r] * a.rest_hidden[r]
        jp = a.joint_ptr[r]
        first, last = a.child_ptr[r], a.child_ptr[r + 1]
        for j in range(n_shared * k):
            m, e = 0.5, 1
            for c in range(first, last):
                source = a.message_ptr[a.children[c]] + a.gather[a.map_ptr[c] + j]
                m, e = times(m, e, message.mantissa[source], message.exponent[source])
                if m == 0.0:
                    break
            joint.mantissa[jp + j], joint.exponent[jp + j] = m, e
        column = a.column[r]
        for s in range(n_shared):
            for i in range(n_rest):
                t = a.table_ptr[r] + (s * n_rest + i) * k
                total, top = 0.0, ZERO
                for v in range(k):
                    if column >= 0 and not mask[column + v]:
                        continue
                    x = joint.mantissa[jp + s * k + v] * a.mantissas[t + v]
                    if x == 0.0:
                        continue
                    e = joint.exponent[jp + s * k + v]
                    if has_exponents:
                        e += a.exponents[t + v]
                    if is_bound and column >= 0:
                        x, e = normal(x, e)
                        total, top = larger(total, top, x, e)
                    else:
                        total, top = plus(total, top, x, e)
                o = a.message_ptr[r] + s * n_rest + i
                message.mantissa[o], message.exponent[o] = normal(total, top)


@jit()
def _project_down(a: RegionArrays, r: int, is_bound: bool, down: WideArrays, outer: WideArrays) -> None:
    """Write `outer`, over (shared, own): `down` times the table, hidden rest summed, queried maximised."""
    has_exponents = len(a.exponents) > 0
    k = a.own_states[r]
    for s in range(a.shared_query[r] * a.shared_hidden[r]):
        for v in range(k):
            found, found_exponent = 0.0, ZERO
            for rq in range(a.rest_query[r]):
                total, top = 0.0, ZERO
                for rh in range(a.rest_hidden[r]):
                    i = (s * a.rest_query[r] + rq) * a.rest_hidden[r] + rh
                    t = a.table_ptr[r] + i * k + v
                    x = down.mantissa[a.message_ptr[r] + i] * a.mantissas[t]
                    e = down.exponent[a.message_ptr[r] + i]
                    if has_exponents:
                        e += a.exponents[t]
                    total, top = plus(total, top, x, e)
                total, top = normal(total, top)
                if is_bound:
                    found, found_exponent = larger(found, found_exponent, total, top)
                else:
                    found, found_exponent = plus(found, found_exponent, total, top)
            outer.mantissa[s * k + v], outer.exponent[s * k + v] = normal(found, found_exponent)


@jit()
def _own_values(
    a: RegionArrays, r: int, is_bound: bool, joint: WideArrays, outer: WideArrays, each: Floats
) -> None:
    """Write natural logs of joint times outer by own state, hidden states summed, queried maximised or summed."""
    k = a.own_states[r]
    n_hidden = a.shared_hidden[r]
    for v in range(k):
        found, found_exponent = 0.0, ZERO
        for sq in range(a.shared_query[r]):
            total, top = 0.0, ZERO
            for sh in range(n_hidden):
                j = (sq * n_hidden + sh) * k + v
                x = joint.mantissa[a.joint_ptr[r] + j] * outer.mantissa[j]
                total, top = plus(total, top, x, joint.exponent[a.joint_ptr[r] + j] + outer.exponent[j])
            total, top = normal(total, top)
            if is_bound:
                found, found_exponent = larger(found, found_exponent, total, top)
            else:
                found, found_exponent = plus(found, found_exponent, total, top)
        each[a.column[r] + v] = np.log(found) + found_exponent * LN2 if found > 0.0 else -np.inf


@jit()
def _scatter_down(
    values: WideArrays, places: Ints, excess: int, is_bound: bool, total: WideArrays, out: WideArrays
) -> None:
    """Reduce a joint vector to a child's separator, as in the batched pass."""
    n = len(out.mantissa)
    total.mantissa[: n * excess], total.exponent[: n * excess] = 0.0, ZERO
    for j in range(len(places)):
        m, e = total.mantissa[places[j]], total.exponent[places[j]]
        m, e = plus(m, e, values.mantissa[j], values.exponent[j])
        total.mantissa[places[j]], total.exponent[places[j]] = m, e
    for o in range(n):
        found, found_exponent = 0.0, ZERO
        for i in range(o * excess, (o + 1) * excess):
            m, e = normal(total.mantissa[i], total.exponent[i])
            if is_bound:
                found, found_exponent = larger(found, found_exponent, m, e)
            else:
                found, found_exponent = plus(found, found_exponent, m, e)
        out.mantissa[o], out.exponent[o] = normal(found, found_exponent)


@jit_part
def _part(numbers: WideArrays, start: Scalar, stop: Scalar) -> WideArrays:
    return WideArrays(numbers.mantissa[start:stop], numbers.exponent[start:stop])


@jit_part
def _multiply(numbers: WideArrays, at: Scalar, others: WideArrays, other: Scalar) -> None:
    """Multiply one number by another, in place."""
    numbers.mantissa[at], numbers.exponent[at] = times(
        numbers.mantissa[at], numbers.exponent[at], others.mantissa[other], others.exponent[other]
    )


@jit()
def downward_wide(
    a: RegionArrays, mask: Flags, is_bound: bool, room: WideRoom, suffix: WideArrays, each: Floats
) -> None:
    """Write each[(variable, state)] = ln of the value with that state fixed, after `upward_wide`."""
    n = len(a.own_states)
    joint, message = room
    down = WideArrays(np.empty_like(message.mantissa), np.empty_like(message.exponent))
    down.mantissa[a.message_ptr[n - 1]] = 0.5
    down.exponent[a.message_ptr[n - 1]] = 1
    for r in range(n - 1, -1, -1):
        k = a.own_states[r]
        size = a.shared_query[r] * a.shared_hidden[r] * k
        first, last = a.child_ptr[r], a.child_ptr[r + 1]
        outer = _part(suffix, 0, size)
        _project_down(a, r, is_bound, down, outer)
        column = a.column[r]
        if column >= 0:
            _own_values(a, r, is_bound, joint, outer, each)
            for j in range(size):
                if not mask[column + j % k]:
                    outer.mantissa[j], outer.exponent[j] = 0.0, ZERO
        # Part i + 1 of `suffix` is the product of the outside and the messages after child i; the last is spare.
        spare = (last - first + 1) * size
        for i in range(last - first - 1, -1, -1):
            after, here = (0 if i == last - first - 1 else i + 2) * size, (i + 1) * size
            child = a.children[min(first + i + 1, last - 1)]
            for j in range(size):
                suffix.mantissa[here + j] = suffix.mantissa[after + j]
                suffix.exponent[here + j] = suffix.exponent[after + j]
                if after > 0:
                    source = a.message_ptr[child] + a.gather[a.map_ptr[first + i + 1] + j]
                    _multiply(suffix, here + j, message, source)
        for j in range(size):
            outer.mantissa[j], outer.exponent[j] = 0.5, 1
        for c in range(first, last):
            child = a.children[c]
            here, gp = (c - first + 1) * size, a.map_ptr[c]
            for j in range(size):
                _multiply(suffix, here + j, outer, j)
                _multiply(outer, j, message, a.message_ptr[child] + a.gather[gp + j])
            below = _part(down, a.message_ptr[child], a.message_ptr[child + 1])
            values, total = _part(suffix, here, here + size), _part(suffix, spare, spare + size)
            _scatter_down(values, a.scatter[gp : gp + size], a.excess[c], is_bound, total, below)


@jit()
def cumulate_wide(a: RegionArrays, mask: Flags, joint: WideArrays, cumulative: Floats) -> None:
    """Write the running sums of each region's own posterior weights, each separator state with its own scale."""
    has_exponents = len(a.exponents) > 0
    for r in range(len(a.own_states)):
        k = a.own_states[r]
        n_rest = a.rest_query[r] * a.rest_hidden[r]
        column = a.column[r]
        for s in range(a.shared_query[r] * a.shared_hidden[r]):
            for i in range(n_rest):
                t = a.table_ptr[r] + (s * n_rest + i) * k
                top = ZERO
                for v in range(k):
                    e = joint.exponent[a.joint_ptr[r] + s * k + v]
                    if has_exponents:
                        e += a.exponents[t + v]
                    if a.mantissas[t + v] > 0.0 and (column < 0 or mask[column + v]):
                        top = max(top, e)
                total = 0.0
                for v in range(k):
                    e = joint.exponent[a.joint_ptr[r] + s * k + v]
                    if has_exponents:
                        e += a.exponents[t + v]
                    x = a.mantissas[t + v] * joint.mantissa[a.joint_ptr[r] + s * k + v]
                    if x > 0.0 and (column < 0 or mask[column + v]):
                        total += shifted(x, top - e)
                    cumulative[t + v] = total


@jit()
def divide_rows(numbers: WideArrays, share: WideArrays, total: WideArrays) -> None:
    """Write the sums of rows, and the entries divided by them (0 in a row of zeros)."""
    n_rows, n_columns = numbers.mantissa.shape
    for r in range(n_rows):
        top = ZERO
        for j in range(n_columns):
            top = max(top, numbers.exponent[r, j])
        found = 0.0
        for j in range(n_columns):
            found += shifted(numbers.mantissa[r, j], top - numbers.exponent[r, j])
        for j in range(n_columns):
            if numbers.mantissa[r, j] > 0.0:
                m, e = normal(numbers.mantissa[r, j] / found, numbers.exponent[r, j] - top)
                share.mantissa[r, j], share.exponent[r, j] = m, e
            else:
                share.mantissa[r, j], share.exponent[r, j] = 0.0, ZERO
        total.mantissa[r], total.exponent[r] = normal(found, top)
