"""Array layout of a conditional elimination's sums: regions in order, messages in one buffer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from certimap.core.rounding import SMALLEST_NORMAL
from certimap.networks.kernels.conditional import SumArrays
from certimap.networks.problem import Problem, Table, largest

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Room:
    """A first-fit allocator of blocks in a buffer."""

    def __init__(self) -> None:
        self.size = 0
        self.gaps: list[tuple[int, int]] = []  # (start, size), in order, none adjacent

    def take(self, size: int) -> int:
        """Allocate a block; return its start."""
        for k, (start, room) in enumerate(self.gaps):
            if room >= size:
                self.gaps[k : k + 1] = [(start + size, room - size)] if room > size else []
                return start
        start = self.size
        if self.gaps and sum(self.gaps[-1]) == self.size:
            start = self.gaps.pop()[0]
        self.size = start + size
        return start

    def free(self, start: int, size: int) -> None:
        """Free a block."""
        merged: list[tuple[int, int]] = []
        for gap in sorted([*self.gaps, (start, size)]):
            if merged and sum(merged[-1]) == gap[0]:
                merged[-1] = (merged[-1][0], merged[-1][1] + gap[1])
            else:
                merged.append(gap)
        self.gaps = merged


class SumLayout:
    """Collects the regions of a conditional elimination, in order.

    Attributes
    ----------
    scales
        Nats taken out of each table.
    reach
        The sum over tables of the largest logs that stand for them, in nats: their rounding is relative to it.
    """

    def __init__(
        self, part: Problem, place: dict[int, int], query_column: dict[int, int], column: dict[int, int]
    ) -> None:
        self.part, self.place = part, place
        self.query_column, self.column = query_column, column
        self.waiting: list[list[Table]] = [[] for _ in place]
        for table in part.tables:
            self.waiting[min(place[v] for v in table.scope if v in place)].append(table)
        self.below: list[list[int]] = [[] for _ in place]
        self.separators: list[tuple[int, ...]] = []
        self.room = Room()
        self.scales: list[float] = []
        self.reach = 0.0
        self.flat: list[Floats] = []
        self.n_flat = 0
        self.rows: dict[str, list[list[int]]] = {name: [] for name in SumArrays._fields}
        self.starts: list[int] = []

    def add(self, v: int, separator: tuple[int, ...]) -> None:
        """Add the region that eliminates a variable."""
        sizes, r = self.part.sizes, len(self.separators)
        put = self.rows
        put["own"].append([sizes[v]])
        put["axis_sizes"].append([sizes[u] for u in separator])
        tables = self.waiting[r]
        local = tuple(u for u in (*separator, v) if any(u in t.scope for t in tables))
        put["local_sizes"].append([sizes[u] for u in local])
        put["local_ptr"].append([math.prod(sizes[u] for u in local)])
        put["input_start"].append([0, *(self.starts[c] for c in self.below[r])])
        put["children"].append([-1, *self.below[r]])
        axes = [local, *(self.separators[c] for c in self.below[r])]
        put["strides"].append(self._strides((*separator, v), axes))
        self._add_tables(tables, local)
        size = math.prod(sizes[u] for u in separator)
        self.starts.append(self.room.take(size))
        put["message_start"].append([self.starts[-1]])
        put["message_size"].append([size])
        for c in self.below[r]:
            self.room.free(self.starts[c], self.rows["message_size"][c][0])
        self.separators.append(separator)
        if separator:
            self.below[self.place[separator[0]]].append(r)

    def _strides(self, scope: Sequence[int], inputs: Sequence[Sequence[int]]) -> list[int]:
        """Return the stride of each axis of a scope in each input, inputs fastest."""
        found = np.zeros((len(scope), len(inputs)), np.int64)
        for i, axes in enumerate(inputs):
            stride = 1
            for u in reversed(axes):
                found[scope.index(u), i] = stride
                stride *= self.part.sizes[u]
        return [int(x) for x in found.ravel()]

    def _add_tables(self, tables: Sequence[Table], local: tuple[int, ...]) -> None:
        self.rows["table_ptr"].append([len(tables)])
        strides = np.zeros((len(local), len(tables)), np.int64)
        for j, table in enumerate(tables):
            self.rows["table_start"].append([self.n_flat])
            stride, columns, query_strides = 1, list[int](), list[int]()
            for u in reversed(table.scope):
                if u in self.place:
                    strides[local.index(u), j] = stride
                else:
                    columns.append(self.query_column[self.column[u]])
                    query_strides.append(stride)
                stride *= self.part.sizes[u]
            self.rows["query_columns"].append(columns)
            self.rows["query_strides"].append(query_strides)
            top = float(table.log_values.max())
            scale = top if math.isfinite(top) else 0.0
            self.scales.append(scale)
            self.flat.append(np.asarray(table.log_values, np.float64).ravel() - scale)
            self.reach += abs(scale) + largest(self.flat[-1])
            self.n_flat += table.log_values.size
        self.rows["table_strides"].append([int(x) for x in strides.ravel()])

    def arrays(self) -> SumArrays:
        """Return everything as arrays."""

        def flat(name: str) -> Ints:
            return np.array([x for row in self.rows[name] for x in row], np.int64)

        def pointers(name: str) -> Ints:
            return np.concatenate([[0], np.cumsum([len(row) for row in self.rows[name]])]).astype(np.int64)

        def cumulated(name: str) -> Ints:
            return np.concatenate([[0], np.cumsum(flat(name))]).astype(np.int64)

        log_tables = np.concatenate([np.empty(0), *self.flat])
        return SumArrays(
            own=flat("own"),
            axis_ptr=pointers("axis_sizes"),
            axis_sizes=flat("axis_sizes"),
            message_start=flat("message_start"),
            message_size=flat("message_size"),
            input_ptr=pointers("input_start"),
            input_start=flat("input_start"),
            children=flat("children"),
            stride_ptr=pointers("strides"),
            strides=flat("strides"),
            local_ptr=cumulated("local_ptr"),
            local_axis_ptr=pointers("local_sizes"),
            local_sizes=flat("local_sizes"),
            table_ptr=cumulated("table_ptr"),
            table_start=flat("table_start"),
            table_stride_ptr=pointers("table_strides"),
            table_strides=flat("table_strides"),
            query_ptr=pointers("query_columns"),
            query_columns=flat("query_columns"),
            query_strides=flat("query_strides"),
            tables=np.where(log_tables > -np.inf, np.maximum(np.exp(log_tables), SMALLEST_NORMAL), 0.0),
            log_tables=log_tables,
        )
