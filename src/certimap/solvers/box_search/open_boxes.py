"""The open boxes of a search: packed, with their bounds and masses, best first or deepest first."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.core.logs import log_sum
from certimap.core.search_boxes import SearchBoxes


class OpenBoxes:
    """A growing table of boxes with natural-log bounds and masses, and depths.

    Masks are packed to bits. `take` removes the boxes of largest bound, or the deepest boxes (which keeps the
    table small), in an order that depends only on their content and history.
    """

    def __init__(self, n_columns: int, n_real: int) -> None:
        self.n_columns = n_columns
        self.n = 0
        self._bits = np.zeros((16, (n_columns + 7) // 8), np.uint8)
        self._low = np.zeros((16, n_real))
        self._high = np.zeros((16, n_real))
        self._bounds = np.zeros(16)
        self._masses = np.zeros(16)
        self._depths = np.zeros(16, np.int32)

    def __len__(self) -> int:
        return self.n

    @property
    def bounds(self) -> NDArray[np.float64]:
        return self._bounds[: self.n]

    @property
    def log_masses(self) -> NDArray[np.float64]:
        return self._masses[: self.n]

    @property
    def log_mass(self) -> float:
        """ln of the mass of all open boxes."""
        return float(log_sum(self.log_masses))

    def hull(self) -> SearchBoxes:
        """Return the smallest box that contains all open boxes; at least one must be open."""
        bits = np.bitwise_or.reduce(self._bits[: self.n], axis=0)
        mask = np.unpackbits(bits[None], axis=1, count=self.n_columns)
        low, high = self._low[: self.n].min(axis=0), self._high[: self.n].max(axis=0)
        return SearchBoxes(mask, low[None], high[None])

    def longest(self, is_real: NDArray[np.bool_]) -> float:
        """Return the longest side of any box; 0 when nothing is open."""
        return float(np.max((self._high - self._low)[: self.n, is_real], initial=0.0))

    @property
    def log_bound(self) -> float:
        """The largest bound; -inf when nothing is open."""
        return float(np.max(self.bounds)) if self.n else -np.inf

    @property
    def n_bytes(self) -> int:
        return sum(a.nbytes for a in self._arrays())

    @property
    def bytes_each(self) -> int:
        return self.n_bytes // len(self._bounds)

    def _arrays(self) -> tuple[NDArray[Any], ...]:
        return (self._bits, self._low, self._high, self._bounds, self._masses, self._depths)

    def _set_arrays(self, arrays: list[NDArray[Any]]) -> None:
        self._bits, self._low, self._high, self._bounds, self._masses, self._depths = arrays

    def push(
        self,
        boxes: SearchBoxes,
        bounds: NDArray[np.float64],
        masses: NDArray[np.float64],
        depths: NDArray[np.int32],
    ) -> None:
        """Add boxes."""
        end = self.n + len(boxes)
        if end > len(self._bounds):
            room = max(end, len(self._bounds) + len(self._bounds) // 2)
            self._set_arrays([_grown(a, room, self.n) for a in self._arrays()])
        rows = slice(self.n, end)
        self._bits[rows] = np.packbits(boxes.mask, axis=1)
        self._low[rows], self._high[rows] = boxes.low, boxes.high
        self._bounds[rows], self._masses[rows], self._depths[rows] = bounds, masses, depths
        self.n = end

    def boxes(self, rows: NDArray[np.int64] | slice) -> SearchBoxes:
        """Return some boxes, unpacked."""
        bits = self._bits[: self.n][rows]
        mask = np.unpackbits(bits, axis=1, count=self.n_columns)
        return SearchBoxes(mask, self._low[: self.n][rows].copy(), self._high[: self.n][rows].copy())

    def take(
        self, count: int, deepest: bool, scales: NDArray[np.float64] | None = None
    ) -> tuple[SearchBoxes, NDArray[np.float64], NDArray[np.float64], NDArray[np.int32]]:
        """Remove and return up to `count` boxes, with their bounds, masses and depths.

        Given `scales` of the real variables (inf for others), take the widest boxes in these units instead.
        """
        if count >= self.n:
            rows = np.arange(self.n)
        elif deepest:
            rows = np.lexsort((-self.bounds, -self._depths[: self.n]))[:count]
        elif scales is not None:
            widths = np.max((self._high[: self.n] - self._low[: self.n]) / scales, axis=1)
            rows = np.argpartition(-widths, count - 1)[:count]
        else:
            rows = np.argpartition(-self.bounds, count - 1)[:count]
        taken = (self.boxes(rows), self.bounds[rows], self.log_masses[rows], self._depths[rows])
        keep = np.ones(self.n, np.bool_)
        keep[rows] = False
        self._fill_gaps(rows, keep)
        return taken

    def cap(self, log_bound: float) -> None:
        """Lower every box's bound to at most `log_bound`, a bound on all open boxes."""
        np.minimum(self.bounds, log_bound, out=self.bounds)

    def prune(self, threshold: float) -> tuple[float, float]:
        """Remove the boxes whose bound is at most `threshold`; return ln of their mass and their largest bound."""
        dead = self.bounds <= threshold
        if not np.any(dead):
            return -np.inf, -np.inf
        mass, bound = float(log_sum(self.log_masses[dead])), float(np.max(self.bounds[dead]))
        self._fill_gaps(np.flatnonzero(dead), ~dead)
        return mass, bound

    def _fill_gaps(self, rows: NDArray[np.int64], keep: NDArray[np.bool_]) -> None:
        """Move boxes from the end into the gaps left by `rows`."""
        left = self.n - len(rows)
        gaps = np.sort(rows[rows < left])
        movers = left + np.flatnonzero(keep[left:])
        for array in self._arrays():
            array[gaps] = array[movers]
        self.n = left


def _grown(array: NDArray[Any], room: int, used: int) -> NDArray[Any]:
    grown = np.zeros((room, *array.shape[1:]), array.dtype)
    grown[:used] = array[:used]
    return grown
