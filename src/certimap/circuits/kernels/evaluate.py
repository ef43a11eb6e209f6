"""Kernels that evaluate a plan, many rows at once, on numbers with exponents (see `scaled.py`).

Rows are taken in blocks of `width` and laid out batch-inner: one array of `width` lanes for each input (variable,
or (variable, state)) and for each node, so that every inner loop is a run of multiplications and additions over
lanes. Lanes past the last row repeat row 0 and are not written out. Modes: 0 evaluates points; 1 the mass of
boxes.

The downward pass gives the root's value with one variable set to one state, for all variables and states at once.
All its rows lie in one pair of arrays with counts: node i in row i, then scratch, then at `Places` the contexts of
nodes, the members and prefixes of one product, and the results by column.

A product keeps a floor, a lower bound on its positive lanes, and settles them before the next factor could take
them below the normal numbers: about every forty leaves, without effect on larger numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from certimap.circuits.kernels.arrays import PlanArrays, Scalar
from certimap.circuits.kernels.scaled import (
    MASS,
    POINT,
    add_children,
    add_counts,
    add_scaled_children,
    credit,
    credit_aligned,
    credit_mixed,
    is_scaled,
    leaf_values,
    multiply_binary_boxes,
    multiply_binary_points,
    multiply_row,
    real_leaf,
    settle,
    use_counts,
    wide_leaf,
)
from certimap.core.arrays import Array, Flags, Floats, Ints, Ints32, Words
from certimap.core.rounding import LEAST_FLOOR, OUTSIDE_FLOOR, ROW_FLOOR, SETTLED
from certimap.kernels.jit import jit


@jit()
def assign_slots(child_ptr: Ints, children: Ints32, n_parents: Ints32, free: Ints32, slot: Ints32) -> int:
    """Give each node a row of scratch memory; a row is free again after its node's last parent.

    `n_parents` is used up, `free` is scratch. Returns the number of rows.
    """
    n_nodes = slot.shape[0]
    n_free, n_rows = 0, 0
    for node in range(n_nodes):
        if n_free > 0:
            n_free -= 1
            slot[node] = free[n_free]
        else:
            slot[node] = n_rows
            n_rows += 1
        for edge in range(child_ptr[node], child_ptr[node + 1]):
            child = children[edge]
            n_parents[child] -= 1
            if n_parents[child] == 0:
                free[n_free] = slot[child]
                n_free += 1
    return n_rows


@jit()
def run_of(leaf: Scalar, end: Scalar, floor: Scalar, floors: Floats) -> Scalar:
    """Return the leaf before which to settle a product of `leaf:end` with floor `floor`; after at least one."""
    if floor + floors[end] - floors[leaf] >= LEAST_FLOOR:
        return end
    stop = leaf + 1
    while stop < end and floor + floors[stop + 1] - floors[leaf] >= LEAST_FLOOR:
        stop += 1
    return stop


@jit()
def multiply_others(
    plan: PlanArrays, mode: int, node: Scalar, start_leaf: Scalar, floor: Scalar, first_row: Scalar,
    scratch: Scalar, inputs: Array, low_high: Floats, at: Scalar, values: Floats, counts: Floats, has: Flags,
) -> float:  # fmt: skip
    """Multiply row `at`, with floor `floor`, by leaves of `node` from `start_leaf` on; return its new floor."""
    leaf_var, leaf_start, offsets, leaf_floors = plan.leaf_var, plan.leaf_start, plan.offsets, plan.leaf_floors
    mantissas, table_counts, narrow, wide = plan.mantissas, plan.table_counts, plan.narrow_end, plan.wide_end
    for leaf in range(start_leaf, plan.leaf_ptr[node + 1]):
        variable, start, below = leaf_var[leaf], leaf_start[leaf], leaf_floors[leaf + 1] - leaf_floors[leaf]
        is_wide = narrow[node] <= leaf < wide[node]
        if floor + below < LEAST_FLOOR:
            settle(at, values, counts, has)
            floor = SETTLED
        has[scratch] = False
        if leaf < narrow[node]:
            leaf_values(mode, variable, start, offsets, mantissas, inputs, scratch, values)
        elif is_wide:
            wide_leaf(
                mode, variable, start, offsets, mantissas, table_counts, inputs, scratch, values, counts, has
            )
        else:
            tables = plan.functions, plan.log_tables
            real_leaf(mode, first_row, variable, start, *tables, inputs, low_high, scratch, values, counts, has)
        multiply_row(scratch, at, values)
        if has[scratch]:
            add_counts(scratch, at, counts, has)
        floor += below
    return floor


@jit()
def upward(
    plan: PlanArrays, mode: int, first_row: int, slot: Ints32, scratch: int, inputs: Array, low_high: Floats,
    values: Floats, counts: Floats, has: Flags,
) -> None:  # fmt: skip
    """Evaluate every node of one block; node i's lanes are row `slot[i]`, and row `scratch` is free."""
    # Fields are taken out once, and helpers get arrays and row numbers or are inlined: a bundle or a view that is
    # handed over costs counting.
    is_sum, child_ptr, children = plan.is_sum, plan.child_ptr, plan.children
    weights, weight_counts = plan.weights, plan.weight_counts
    leaf_ptr, binary_end, leaf_var = plan.leaf_ptr, plan.binary_end, plan.leaf_var
    first, second, leaf_floors = plan.first, plan.second, plan.leaf_floors
    offsets, settles, node_floors = plan.offsets, plan.settles, plan.floors
    for node in range(is_sum.shape[0]):
        at, begin, past = slot[node], child_ptr[node], child_ptr[node + 1]
        has[at] = False
        if is_sum[node]:
            if is_scaled(begin, past, children, weight_counts, slot, has):
                add_scaled_children(begin, past, children, weights, weight_counts, slot, at, values, counts, has)
            else:
                add_children(begin, past, children, weights, slot, at, values)
            if settles[node]:
                settle(at, values, counts, has)
            continue
        for b in range(values.shape[1]):
            values[at, b] = 1.0
        leaf, end = leaf_ptr[node], binary_end[node]
        floor = 0.0
        while leaf < end:
            stop = run_of(leaf, end, floor, leaf_floors)
            if mode == POINT:
                multiply_binary_points(leaf, stop, leaf_var, first, second, inputs, at, values)
            else:
                multiply_binary_boxes(leaf, stop, leaf_var, offsets, first, second, inputs, at, values)
            floor += leaf_floors[stop] - leaf_floors[leaf]
            leaf = stop
            if leaf < end:
                settle(at, values, counts, has)
                floor = SETTLED
        if end < leaf_ptr[node + 1]:
            floor = multiply_others(
                plan, mode, node, end, floor, first_row, scratch, inputs, low_high, at, values, counts, has
            )
        for edge in range(begin, past):
            below, k = node_floors[children[edge]], slot[children[edge]]
            if floor + below < LEAST_FLOOR:
                settle(at, values, counts, has)
                floor = SETTLED
            multiply_row(k, at, values)
            if has[k]:
                add_counts(k, at, counts, has)
            floor += below
        if floor < SETTLED:
            settle(at, values, counts, has)


@jit()
def evaluate(
    plan: PlanArrays, mode: int, points: Array, mask: Flags, low_high: Floats, slot: Ints32, inputs: Array,
    values: Floats, counts: Floats, has: Flags, out: Floats,
) -> None:  # fmt: skip
    """Write the root's value and count for every row of `points` (mode 0), or of `mask` and `low_high`."""
    n_rows, width = out.shape[1], values.shape[1]
    root = slot[plan.is_sum.shape[0] - 1]
    for row in range(0, n_rows, width):
        lanes = load_block(mode, row, points, mask, inputs)
        upward(plan, mode, row, slot, values.shape[0] - 1, inputs, low_high, values, counts, has)
        for b in range(lanes):
            out[0, row + b] = values[root, b]
            out[1, row + b] = counts[root, b] if has[root] else 0.0


TILE = 64  # inputs that are brought together before they are transposed
HALF = np.uint64(0x00000000FFFFFFFF), np.uint64(32)
PAIRS = np.uint64(0x0000FFFF0000FFFF), np.uint64(16)
BYTES = np.uint64(0x00FF00FF00FF00FF), np.uint64(8)


@jit()
def load_block(mode: int, first: int, points: Array, mask: Flags, inputs: Array) -> int:
    """Transpose rows `first`, ... of `points` (mode 0) or `mask` into lanes of `inputs`.

    `inputs` is (n_inputs, width), of bytes if every input fits into one, else of float64. Lanes past the last row
    repeat the first. Returns the number of lanes in use.
    """
    n_rows = points.shape[0] if mode == 0 else mask.shape[0]
    width = inputs.shape[1]
    lanes = min(width, n_rows - first)
    whole = 0
    if inputs.itemsize == 1:
        whole = _load_tiles(mode, first, lanes, points, mask, inputs)
    for i in range(whole, inputs.shape[0]):
        row = inputs[i]
        for b in range(lanes):
            row[b] = points[first + b, i] if mode == 0 else mask[first + b, i]
        for b in range(lanes, width):
            row[b] = row[0]
    return lanes


@jit()
def _load_tiles(mode: int, first: int, lanes: Scalar, points: Array, mask: Flags, inputs: Array) -> int:
    """Load the inputs that fill whole tiles; return their number."""
    n_inputs, width = inputs.shape
    tile = np.zeros((width, TILE), np.uint8)
    rows, lines = tile.view(np.uint64), inputs.view(np.uint64)
    n_tiles = n_inputs // TILE
    for t in range(n_tiles):
        at = t * TILE
        for b in range(width):
            row = first + b if b < lanes else first
            into = tile[b]
            if mode == 0:
                states = points[row, at : at + TILE]
                for i in range(TILE):
                    into[i] = states[i]
            else:
                allowed = mask[row, at : at + TILE]
                for i in range(TILE):
                    into[i] = allowed[i]
        for word in range(TILE // 8):
            for group in range(width // 8):
                transpose(rows, 8 * group, word, lines, at + 8 * word, group)
    return n_tiles * TILE


@jit(inline="always")
def exchange(a: Scalar, b: Scalar, kept: Scalar, shift: Scalar) -> tuple[Scalar, Scalar]:
    """Exchange the upper parts of `a` for the lower parts of `b`."""
    moved = ((a >> shift) ^ b) & kept
    return a ^ (moved << shift), b ^ moved


@jit(inline="always")
def transpose(rows: Words, row: Scalar, word: Scalar, lines: Words, line: Scalar, group: Scalar) -> None:
    """Write the transpose of a square of 8 by 8 bytes: from one word of 8 rows to one word of 8 lines."""
    a, b, c, d = rows[row, word], rows[row + 1, word], rows[row + 2, word], rows[row + 3, word]
    e, f, g, h = rows[row + 4, word], rows[row + 5, word], rows[row + 6, word], rows[row + 7, word]
    a, e = exchange(a, e, HALF[0], HALF[1])
    b, f = exchange(b, f, HALF[0], HALF[1])
    c, g = exchange(c, g, HALF[0], HALF[1])
    d, h = exchange(d, h, HALF[0], HALF[1])
    a, c = exchange(a, c, PAIRS[0], PAIRS[1])
    b, d = exchange(b, d, PAIRS[0], PAIRS[1])
    e, g = exchange(e, g, PAIRS[0], PAIRS[1])
    f, h = exchange(f, h, PAIRS[0], PAIRS[1])
    a, b = exchange(a, b, BYTES[0], BYTES[1])
    c, d = exchange(c, d, BYTES[0], BYTES[1])
    e, f = exchange(e, f, BYTES[0], BYTES[1])
    g, h = exchange(g, h, BYTES[0], BYTES[1])
    lines[line, group], lines[line + 1, group] = a, b
    lines[line + 2, group], lines[line + 3, group] = c, d
    lines[line + 4, group], lines[line + 5, group] = e, f
    lines[line + 6, group], lines[line + 7, group] = g, h


class Places(NamedTuple):
    """First row in the block of each group; `n_rows` is the total."""

    context: int
    members: int
    prefix: int
    total: int
    n_rows: int


@jit()
def _forward_binary(
    leaf: Scalar, column: Scalar, first: Floats, second: Floats, inputs: Array, at: Scalar, values: Floats
) -> None:
    """Write row `at + 1`: row `at` times a leaf of a binary variable."""
    p0, p1 = first[leaf], second[leaf]
    for b in range(values.shape[1]):
        factor = p0 * inputs[column, b] + p1 * inputs[column + 1, b]
        values[at + 1, b] = values[at, b] * factor


@jit()
def _backward_binary(
    leaf: Scalar, column: Scalar, first: Floats, second: Floats, inputs: Array, at: Scalar, suffix_at: Scalar,
    values: Floats,
) -> None:  # fmt: skip
    """Multiply row `at` by the suffix, and the suffix by a leaf of a binary variable."""
    p0, p1 = first[leaf], second[leaf]
    for b in range(values.shape[1]):
        values[at, b] *= values[suffix_at, b]
    for b in range(values.shape[1]):
        values[suffix_at, b] *= p0 * inputs[column, b] + p1 * inputs[column + 1, b]


@jit()
def _credit_binary(p0: Scalar, p1: Scalar, at: Scalar, row: Scalar, values: Floats) -> None:
    """Credit both states of a binary variable in rows `row` and `row + 1`, both without counts."""
    for b in range(values.shape[1]):
        values[row, b] += p0 * values[at, b]
        values[row + 1, b] += p1 * values[at, b]


@jit()
def _extend(k: Scalar, member: Scalar, values: Floats) -> None:
    """Write row `k + 1`: row `k` times row `member`."""
    for b in range(values.shape[1]):
        values[k + 1, b] = values[k, b] * values[member, b]


@jit()
def _copy(source: Scalar, target: Scalar, values: Floats) -> None:
    """Copy a row of values."""
    for b in range(values.shape[1]):
        values[target, b] = values[source, b]


@jit()
def _fill(row: Scalar, number: float, values: Floats, has: Flags) -> None:
    """Set all lanes of a row to a number."""
    has[row] = False
    for b in range(values.shape[1]):
        values[row, b] = number


@jit()
def _member(
    plan: PlanArrays, node: Scalar, leaf: Scalar, inputs: Array, low_high: Floats, row: Scalar, values: Floats,
    counts: Floats, has: Flags,
) -> None:  # fmt: skip
    """Write the mass of a leaf, except narrow binary ones, to row `row`."""
    has[row] = False
    variable, start, tables = plan.leaf_var[leaf], plan.leaf_start[leaf], plan.mantissas
    if leaf < plan.narrow_end[node]:
        leaf_values(MASS, variable, start, plan.offsets, tables, inputs, row, values)
    elif leaf < plan.wide_end[node]:
        wide_leaf(MASS, variable, start, plan.offsets, tables, plan.table_counts, inputs, row, values, counts, has)
    else:
        logs = plan.log_tables
        real_leaf(MASS, 0, variable, start, plan.functions, logs, inputs, low_high, row, values, counts, has)


@jit()
def downward(
    plan: PlanArrays, places: Places, inputs: Array, low_high: Floats, row_floors: Floats, values: Floats,
    counts: Floats, has: Flags,
) -> None:  # fmt: skip
    """Fill in the rows `total` of every column; all other rows except the nodes' are scratch.

    A node's context is its value's factor in the root's value. Inside a product it is the product of the
    other members, from prefixes and suffixes, so that zeros need no division.
    """
    # Helpers that call nothing are cheap; a helper with calls, or inlined, costs reference counting.
    is_sum, child_ptr, children, offsets = plan.is_sum, plan.child_ptr, plan.children, plan.offsets
    weights, weight_counts, first, second = plan.weights, plan.weight_counts, plan.first, plan.second
    leaf_ptr, binary_end, narrow_end, wide_end = plan.leaf_ptr, plan.binary_end, plan.narrow_end, plan.wide_end
    leaf_var, leaf_start, floors, node_floors = plan.leaf_var, plan.leaf_start, plan.leaf_floors, plan.floors
    mantissas, table_counts = plan.mantissas, plan.table_counts
    context, prefix = places.context, places.prefix
    n_nodes = is_sum.shape[0]
    for node in range(n_nodes):
        _fill(context + node, 1.0 if node == n_nodes - 1 else 0.0, values, has)
    for row in range(places.total, places.n_rows):
        _fill(row, 0.0, values, has)
    for node in range(n_nodes - 1, -1, -1):
        begin, past, source = child_ptr[node], child_ptr[node + 1], context + node
        settle(source, values, counts, has)
        if is_sum[node]:
            for edge in range(begin, past):
                child, weight, count = children[edge], weights[edge], weight_counts[edge]
                if has[source] or has[context + child] or count > 0.0:
                    credit_mixed(weight, count, source, context + child, values, counts, has)
                else:
                    credit(weight, source, context + child, values)
            continue
        start, middle, stop = leaf_ptr[node], binary_end[node], leaf_ptr[node + 1]
        members = places.members - middle  # leaf i, unless narrow and binary, has row members + i
        _copy(source, prefix, values)
        has[prefix] = False
        if has[source]:
            add_counts(source, prefix, counts, has)
        row_floors[0] = SETTLED
        at = prefix
        for k in range(stop - start + past - begin):
            leaf, edge = start + k, begin + k - (stop - start)
            member = members + leaf
            if leaf < middle:
                _forward_binary(leaf, offsets[leaf_var[leaf]], first, second, inputs, at, values)
                member = -1
            elif leaf < stop:
                _member(plan, node, leaf, inputs, low_high, member, values, counts, has)
                _extend(at, member, values)
            else:
                member = children[edge]
                _extend(at, member, values)
            at += 1
            has[at] = False
            if has[at - 1]:
                add_counts(at - 1, at, counts, has)
            if member >= 0 and has[member]:
                add_counts(member, at, counts, has)
            below = floors[leaf + 1] - floors[leaf] if leaf < stop else node_floors[children[edge]]
            row_floors[k + 1] = row_floors[k] + below
            if row_floors[k + 1] < ROW_FLOOR:
                settle(at, values, counts, has)
                row_floors[k + 1] = SETTLED
        last = at  # the full product is not needed: its row holds the suffix
        _fill(last, 1.0, values, has)
        suffix_floor = 0.0
        for edge in range(past - 1, begin - 1, -1):
            child, target = children[edge], context + children[edge]
            at -= 1
            multiply_row(last, at, values)
            if has[last]:
                add_counts(last, at, counts, has)
            if has[at] or has[target]:
                credit_mixed(1.0, 0.0, at, target, values, counts, has)
            else:
                credit(1.0, at, target, values)
            multiply_row(child, last, values)
            if has[child]:
                add_counts(child, last, counts, has)
            suffix_floor += node_floors[child]
            if suffix_floor < ROW_FLOOR:
                settle(last, values, counts, has)
                suffix_floor = SETTLED
        for leaf in range(stop - 1, start - 1, -1):
            at -= 1
            column = offsets[leaf_var[leaf]]
            row = places.total + column
            if has[last]:
                add_counts(last, at, counts, has)
            if leaf < middle:
                _backward_binary(leaf, column, first, second, inputs, at, last, values)
            else:
                multiply_row(last, at, values)
                multiply_row(members + leaf, last, values)
                if has[members + leaf]:
                    add_counts(members + leaf, last, counts, has)
            if row_floors[at - prefix] + suffix_floor < OUTSIDE_FLOOR or leaf >= narrow_end[node]:
                settle(at, values, counts, has)
            suffix_floor += floors[leaf + 1] - floors[leaf]
            if suffix_floor < ROW_FLOOR:
                settle(last, values, counts, has)
                suffix_floor = SETTLED
            if leaf < middle and not (has[at] or has[row] or has[row + 1]):
                _credit_binary(first[leaf], second[leaf], at, row, values)
            elif leaf < wide_end[node]:
                entry = leaf_start[leaf]
                for state in range(offsets[leaf_var[leaf] + 1] - column):
                    p, count, target = mantissas[entry + state], table_counts[entry + state], row + state
                    if not (has[at] or has[target] or count > 0.0):
                        credit(p, at, target, values)
                        continue
                    if state == 0 or not has[at]:
                        settle(at, values, counts, has)
                        use_counts(at, counts, has)
                    if not has[target]:
                        settle(target, values, counts, has)
                        use_counts(target, counts, has)
                    credit_aligned(p, count, at, target, values, counts, has)
