"""Distinct rows below each variable of a tree: rows that agree there share all work there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from certimap.learn.kernels.hidden import number_patterns

Ints = NDArray[np.int64]
_SPAN = 2**62  # keys stay below


@dataclass(frozen=True, eq=False)
class PatternBlock:
    """Some rows of a table, by the distinct patterns of states in the subtree of each variable.

    Attributes
    ----------
    n_rows
        The number of rows.
    number
        int32, shape (n, n_rows): the pattern of each row at and below each variable.
    first
        One int32 array per variable: the index of the first row of each pattern.
    codes
        One int64 array per variable: its state in each pattern, `n_states` where missing.
    """

    n_rows: int
    number: NDArray[np.int32]
    first: list[NDArray[np.int32]]
    codes: list[Ints]

    @property
    def n_patterns(self) -> int:
        """Patterns of all variables together."""
        return sum(map(len, self.first))

    def below(self, i: int, up: int) -> NDArray[np.int32]:
        """Return the pattern of child `i` for each pattern of its parent `up`."""
        return self.number[i, self.first[up]]


class Patterns:
    """Patterns of the rows of a table in the subtrees of a tree.

    Parameters
    ----------
    codes
        int64, shape (n, n_rows): positions of states, or any other numbers from 0 on.
    order, parent
        int64, shape (n,): the variables from the root, and the parent of each (-1 for the root).
    """

    def __init__(self, codes: Ints, order: Ints, parent: Ints) -> None:
        self.codes = codes
        self.ids = np.empty(codes.shape, np.int32)
        n_ids = [0] * len(codes)
        nothing: list[int] = []
        children = [list(nothing) for _ in parent]
        parents: list[int] = parent.tolist()
        for i, up in enumerate(parents):
            if up >= 0:
                children[up].append(i)
        backwards: list[int] = order[::-1].tolist()
        for i in backwards:
            keys, span = codes[i], int(codes[i].max(initial=0)) + 1
            for child in children[i]:
                if span * n_ids[child] >= _SPAN:
                    used, keys = np.unique(keys, return_inverse=True)
                    span = len(used)
                keys, span = keys * n_ids[child] + self.ids[child], span * n_ids[child]
            used, numbers = np.unique(keys, return_inverse=True)
            self.ids[i], n_ids[i] = numbers, len(used)
        self._scratch = np.full(max(n_ids, default=0), -1, np.int32)

    def block(self, rows: Ints) -> PatternBlock:
        """Return the patterns of some rows."""
        n = len(self.codes)
        number, first = np.empty((n, len(rows)), np.int32), np.empty((n, len(rows)), np.int32)
        n_patterns = np.empty(n, np.int64)
        number_patterns(self.ids, rows, self._scratch, number, first, n_patterns)
        firsts = [first[i, : n_patterns[i]].copy() for i in range(n)]
        codes = [self.codes[i, rows[firsts[i]]] for i in range(n)]
        return PatternBlock(len(rows), number, firsts, codes)

    def blocks(self, rows: Ints, most: int) -> list[PatternBlock]:
        """Split rows into the fewest equal blocks with fewer than `most` patterns, or a few rows, each."""
        n_parts = 1
        while True:
            blocks = [self.block(part) for part in np.array_split(rows, n_parts)]
            if len(rows) <= 16 * n_parts or max(block.n_patterns for block in blocks) <= most:
                return blocks
            n_parts *= 2
