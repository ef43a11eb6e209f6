"""Passes over a tree of regions for one row, in which every number has its own exponent.

They replace the batched passes for rows in which plain doubles would underflow. Each vector is a pair of arrays,
mantissas and exponents; see `certimap.kernels.wide`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from certimap.core.arrays import Flags, Floats, Ints
from certimap.core.region_tree import RegionArrays
from certimap.kernels.jit import jit
from certimap.kernels.wide import LN2, ZERO, larger, normal, plus, shifted, times


class WideRoom(NamedTuple):
    """Joints and messages of one row of wide numbers."""

    joint: Floats
    joint_exponent: Ints
    message: Floats
    message_exponent: Ints


@jit()
def upward_wide(a: RegionArrays, mask: Flags, is_bound: bool, room: WideRoom) -> None:
    """Send all messages to the root; the mask has shape (total_states,)."""
    joint, joint_exponent, message, message_exponent = room
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
                m, e = times(m, e, message[source], message_exponent[source])
                if m == 0.0:
                    break
            joint[jp + j] = m
            joint_exponent[jp + j] = e
        column = a.column[r]
        for s in range(n_shared):
            for i in range(n_rest):
                t = a.table_ptr[r] + (s * n_rest + i) * k
                total, top = 0.0, ZERO
                for v in range(k):
                    if column >= 0 and not mask[column + v]:
                        continue
                    x = joint[jp + s * k + v] * a.mantissas[t + v]
                    if x == 0.0:
                        continue
                    e = joint_exponent[jp + s * k + v]
                    if has_exponents:
                        e += a.exponents[t + v]
                    if is_bound and column >= 0:
                        x, e = normal(x, e)
                        total, top = larger(total, top, x, e)
                    else:
                        total, top = plus(total, top, x, e)
                o = a.message_ptr[r] + s * n_rest + i
                message[o], message_exponent[o] = normal(total, top)


@jit()
def _project_down(
    a: RegionArrays, r: int, is_bound: bool, down: Floats, down_exponent: Ints, outer: Floats, outer_exponent: Ints
) -> None:
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
                    x = down[a.message_ptr[r] + i] * a.mantissas[t]
                    e = down_exponent[a.message_ptr[r] + i]
                    if has_exponents:
                        e += a.exponents[t]
                    total, top = plus(total, top, x, e)
                total, top = normal(total, top)
                if is_bound:
                    found, found_exponent = larger(found, found_exponent, total, top)
                else:
                    found, found_exponent = plus(found, found_exponent, total, top)
            outer[s * k + v], outer_exponent[s * k + v] = normal(found, found_exponent)


@jit()
def _own_values(
    a: RegionArrays,
    r: int,
    is_bound: bool,
    joint: Floats,
    joint_exponent: Ints,
    outer: Floats,
    outer_exponent: Ints,
    each: Floats,
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
                x = joint[a.joint_ptr[r] + j] * outer[j]
                total, top = plus(total, top, x, joint_exponent[a.joint_ptr[r] + j] + outer_exponent[j])
            total, top = normal(total, top)
            if is_bound:
                found, found_exponent = larger(found, found_exponent, total, top)
            else:
                found, found_exponent = plus(found, found_exponent, total, top)
        each[a.column[r] + v] = np.log(found) + found_exponent * LN2 if found > 0.0 else -np.inf


@jit()
def _scatter_down(
    values: Floats, exponents: Ints, order: Ints, breaks: Ints, is_bound: bool, out: Floats, out_exponent: Ints
) -> None:
    """Reduce a joint vector to a child's separator; `order` and `breaks` as in the batched pass."""
    o = -1
    total, top = 0.0, ZERO
    found, found_exponent = 0.0, ZERO
    for i in range(len(order) + 1):
        is_end = i == len(order)
        if is_end or breaks[i] > 0:
            total, top = normal(total, top)
            if is_bound:
                found, found_exponent = larger(found, found_exponent, total, top)
            else:
                found, found_exponent = plus(found, found_exponent, total, top)
            total, top = 0.0, ZERO
            if is_end or breaks[i] == 2:
                if o >= 0:
                    out[o], out_exponent[o] = normal(found, found_exponent)
                o += 1
                found, found_exponent = 0.0, ZERO
        if not is_end:
            total, top = plus(total, top, values[order[i]], exponents[order[i]])


@jit()
def downward_wide(
    a: RegionArrays,
    mask: Flags,
    is_bound: bool,
    room: WideRoom,
    suffix: Floats,
    suffix_exponent: Ints,
    each: Floats,
) -> None:
    """Write each[(variable, state)] = ln of the value with that variable set to that state, after `upward_wide`.

    `suffix` is scratch of size (largest number of children + 1) times the largest joint.
    """
    n = len(a.own_states)
    joint, joint_exponent, message, message_exponent = room
    down, down_exponent = np.empty_like(message), np.empty_like(message_exponent)
    down[a.message_ptr[n - 1]] = 0.5
    down_exponent[a.message_ptr[n - 1]] = 1
    for r in range(n - 1, -1, -1):
        k = a.own_states[r]
        size = a.shared_query[r] * a.shared_hidden[r] * k
        first, last = a.child_ptr[r], a.child_ptr[r + 1]
        outer, outer_exponent = suffix[:size], suffix_exponent[:size]
        _project_down(a, r, is_bound, down, down_exponent, outer, outer_exponent)
        column = a.column[r]
        if column >= 0:
            _own_values(a, r, is_bound, joint, joint_exponent, outer, outer_exponent, each)
            for j in range(size):
                if not mask[column + j % k]:
                    outer[j], outer_exponent[j] = 0.0, ZERO
        # Part i + 1 of `suffix` is the product of the outside and the messages after child i.
        for i in range(last - first - 1, -1, -1):
            after, here = (0 if i == last - first - 1 else i + 2), i + 1
            child = a.children[min(first + i + 1, last - 1)]
            for j in range(size):
                m, e = suffix[after * size + j], suffix_exponent[after * size + j]
                if after > 0:
                    source = a.message_ptr[child] + a.gather[a.map_ptr[first + i + 1] + j]
                    m, e = times(m, e, message[source], message_exponent[source])
                suffix[here * size + j], suffix_exponent[here * size + j] = m, e
        for j in range(size):
            outer[j], outer_exponent[j] = 0.5, 1
        for c in range(first, last):
            child = a.children[c]
            here = (c - first + 1) * size
            for j in range(size):
                suffix[here + j], suffix_exponent[here + j] = times(
                    suffix[here + j], suffix_exponent[here + j], outer[j], outer_exponent[j]
                )
                source = a.message_ptr[child] + a.gather[a.map_ptr[c] + j]
                outer[j], outer_exponent[j] = times(
                    outer[j], outer_exponent[j], message[source], message_exponent[source]
                )
            gp = a.map_ptr[c]
            below, stop = a.message_ptr[child], a.message_ptr[child + 1]
            _scatter_down(
                suffix[here : here + size],
                suffix_exponent[here : here + size],
                a.scatter[gp : gp + size],
                a.scatter_break[gp : gp + size],
                is_bound,
                down[below:stop],
                down_exponent[below:stop],
            )


@jit()
def cumulate_wide(a: RegionArrays, mask: Flags, joint: Floats, joint_exponent: Ints, cumulative: Floats) -> None:
    """Write, for each region and separator state, the running sums of its own variable's posterior weights.

    The weights of each separator state have their own scale.
    """
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
                    e = joint_exponent[a.joint_ptr[r] + s * k + v]
                    if has_exponents:
                        e += a.exponents[t + v]
                    if a.mantissas[t + v] > 0.0 and (column < 0 or mask[column + v]):
                        top = max(top, e)
                total = 0.0
                for v in range(k):
                    e = joint_exponent[a.joint_ptr[r] + s * k + v]
                    if has_exponents:
                        e += a.exponents[t + v]
                    x = a.mantissas[t + v] * joint[a.joint_ptr[r] + s * k + v]
                    if x > 0.0 and (column < 0 or mask[column + v]):
                        total += shifted(x, top - e)
                    cumulative[t + v] = total


@jit()
def split(values: Floats, mantissa: Floats, exponent: Ints) -> None:
    """Write doubles as mantissas and exponents."""
    for i in range(len(values)):
        if values[i] == 0.0:
            mantissa[i], exponent[i] = 0.0, ZERO
        else:
            mantissa[i], exponent[i] = math.frexp(values[i])


@jit()
def join(mantissa: Floats, exponent: Ints, values: Floats) -> None:
    """Write wide numbers as doubles; tiny numbers become denormals or 0."""
    for i in range(len(mantissa)):
        values[i] = math.ldexp(mantissa[i], int(min(max(exponent[i], -2000), 2000)))


@jit()
def smallest_exponent(mantissa: Floats, exponent: Ints) -> Any:
    """Return the exponent of the smallest positive entry, 0 if none is below 1."""
    smallest = 0
    for i in range(len(mantissa)):
        if mantissa[i] > 0.0:
            smallest = min(smallest, exponent[i])
    return smallest


@jit()
def normalise(mantissa: Floats, exponent: Ints) -> None:
    """Bring mantissas into [1/2, 1), in place."""
    for i in range(len(mantissa)):
        mantissa[i], exponent[i] = normal(mantissa[i], exponent[i])


@jit()
def divide_rows(
    mantissa: Floats, exponent: Ints, share: Floats, share_exponent: Ints, total: Floats, total_exponent: Ints
) -> None:
    """Write the sums of rows, and the entries divided by them (0 in a row of zeros)."""
    n_rows, n_columns = mantissa.shape
    for r in range(n_rows):
        top = ZERO
        for j in range(n_columns):
            top = max(top, exponent[r, j])
        found = 0.0
        for j in range(n_columns):
            found += shifted(mantissa[r, j], top - exponent[r, j])
        for j in range(n_columns):
            if mantissa[r, j] > 0.0:
                share[r, j], share_exponent[r, j] = normal(mantissa[r, j] / found, exponent[r, j] - top)
            else:
                share[r, j], share_exponent[r, j] = 0.0, ZERO
        total[r], total_exponent[r] = normal(found, top)
