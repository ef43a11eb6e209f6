"""Rows of points or masks laid out batch-inner: one line of lanes for each input."""

from __future__ import annotations

import numpy as np

from certimap.circuits.kernels.arrays import Scalar
from certimap.core.arrays import Array, Flags, Words
from certimap.kernels.jit import jit

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
