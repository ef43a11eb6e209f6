"""Sum nodes, over all lanes of a block."""

from __future__ import annotations

from certimap.circuits.kernels.arrays import Scalar
from certimap.circuits.kernels.scaled import NEVER, lower_counts, shift_of
from certimap.core.arrays import Flags, Floats, Ints32
from certimap.kernels.jit import jit


@jit()
def add_children(
    start: Scalar, stop: Scalar, children: Ints32, weights: Floats, slot: Ints32, at: Scalar, values: Floats
) -> None:
    """Write the weighted sum of a sum's children."""
    out = values[at]
    width = out.shape[0]
    child, weight = values[slot[children[start]]], weights[start]
    for b in range(width):
        out[b] = weight * child[b]
    for edge in range(start + 1, stop):
        child, weight = values[slot[children[edge]]], weights[edge]
        for b in range(width):
            out[b] += weight * child[b]


@jit()
def add_aligned(
    weight: Scalar, weight_count: Scalar, k: Scalar, at: Scalar, values: Floats, counts: Floats, has: Flags
) -> None:
    """Add a weighted row, aligned to the counts of row `at`, to row `at`."""
    if not has[k]:
        for b in range(values.shape[1]):
            counts[k, b] = 0.0
    for b in range(values.shape[1]):
        term = values[k, b] * shift_of(counts[k, b] + weight_count - counts[at, b])
        values[at, b] += weight * term


@jit()
def add_scaled_children(
    start: Scalar,
    stop: Scalar,
    children: Ints32,
    weights: Floats,
    weight_counts: Floats,
    slot: Ints32,
    at: Scalar,
    values: Floats,
    counts: Floats,
    has: Flags,
) -> None:
    """Like `add_children`, for children or weights with counts."""
    has[at] = True
    for b in range(values.shape[1]):
        values[at, b], counts[at, b] = 0.0, NEVER
    for edge in range(start, stop):
        lower_counts(weight_counts[edge], slot[children[edge]], at, values, counts, has)
    for edge in range(start, stop):
        add_aligned(weights[edge], weight_counts[edge], slot[children[edge]], at, values, counts, has)
    for b in range(values.shape[1]):
        counts[at, b] = 0.0 if counts[at, b] == NEVER else counts[at, b]


@jit()
def is_scaled(
    start: Scalar, stop: Scalar, children: Ints32, weight_counts: Floats, slot: Ints32, has: Flags
) -> Scalar:
    """Whether a term of a sum has counts."""
    scaled = False
    for edge in range(start, stop):
        scaled |= has[slot[children[edge]]] or weight_counts[edge] > 0.0
    return scaled
