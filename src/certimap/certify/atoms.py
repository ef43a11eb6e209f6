"""The set of distinct evaluated points, packed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.core.box import Points
from certimap.core.domain import Domain


class AtomStore:
    """Distinct points in the order of their first appearance, with their log-probabilities.

    Points are packed to one bit per variable if all are binary, to one byte if no variable has more than 256
    states, and stored unpacked otherwise; rows are padded to 8-byte words. Time is linear in the number of
    inserted points. Memory per distinct point: its words, a log-probability and a hash slot.
    """

    def __init__(self, domain: Domain, *, two_sided: bool = False) -> None:
        self.domain = domain
        self.two_sided = two_sided
        largest = int(np.max(domain.n_states, initial=1))
        if not domain.is_discrete:
            self._item_bits = 64
        elif largest <= 2:
            self._item_bits = 1
        else:
            self._item_bits = 8 if largest <= 256 else 16
        self._n_bytes_row = (len(domain) * self._item_bits + 7) // 8
        self._n_words = max(1, (self._n_bytes_row + 7) // 8)
        self.n = 0
        self._kept = np.empty((1024, self._n_words), np.uint64)
        self._log_probs = np.empty(1024)
        self._log_uppers = np.empty(1024) if two_sided else self._log_probs
        self._table = np.full(4096, -1, np.int32)

    @property
    def log_probs(self) -> NDArray[np.float64]:
        """ln p of every point, shape (n,): a view."""
        return self._log_probs[: self.n]

    @property
    def log_uppers(self) -> NDArray[np.float64]:
        """Upper bounds on ln p, shape (n,): a view; equal to `log_probs` if values are exact."""
        return self._log_uppers[: self.n]

    @property
    def n_bytes(self) -> int:
        return self._kept.nbytes + self._log_probs.nbytes + self._table.nbytes

    def insert(self, points: Points) -> NDArray[np.int64]:
        """Find or add points, shape (batch, n); return their positions, shape (batch,).

        New points get positions from the old `n` on, in order. The caller must then set their log-probabilities
        by `set_log_probs`, or remove them by `truncate`.
        """
        from certimap.kernels.hashing import insert_rows

        rows = self._pack(points)
        self._reserve(self.n + len(rows))
        ids = np.empty(len(rows), np.int64)
        with np.errstate(over="ignore"):
            self.n = int(insert_rows(rows, len(rows), self.n, self._kept, self._table, ids))
        return ids

    def set_log_probs(self, start: int, log_probs: NDArray[np.float64], log_uppers: NDArray[np.float64]) -> None:
        """Store lower and upper bounds on ln p from position `start` on."""
        self._log_probs[start : start + len(log_probs)] = log_probs
        if self.two_sided:
            self._log_uppers[start : start + len(log_uppers)] = log_uppers

    def truncate(self, n: int) -> None:
        """Remove all points from position n on."""
        if n < self.n:
            self.n = n
            self._refill(len(self._table))

    def points(self, ids: NDArray[np.int64] | slice) -> Points:
        """Return stored points, shape (batch, n)."""
        words = self._kept[: self.n][ids]
        raw = np.ascontiguousarray(words).view(np.uint8)[:, : self._n_bytes_row]
        n = len(self.domain)
        if self._item_bits == 1:
            return np.unpackbits(raw, axis=1, count=n).astype(np.int16)
        if self._item_bits == 8:
            return raw.astype(np.int16)
        kind: Any = np.int16 if self._item_bits == 16 else np.float64
        return np.ascontiguousarray(raw).view(kind).reshape(len(raw), n)

    def _pack(self, points: Points) -> NDArray[np.uint64]:
        packed = np.zeros((len(points), self._n_words * 8), np.uint8)
        if self._item_bits == 1:
            packed[:, : self._n_bytes_row] = np.packbits(points.astype(np.bool_), axis=1)
        elif self._item_bits == 8:
            packed[:, : self._n_bytes_row] = points
        else:
            kind: Any = np.int16 if self._item_bits == 16 else np.float64
            whole = np.ascontiguousarray(points, kind)
            if kind is np.float64:
                whole = whole + 0.0  # -0.0 and 0.0 are one point
            packed[:, : self._n_bytes_row] = whole.view(np.uint8).reshape(len(points), self._n_bytes_row)
        return packed.view(np.uint64)

    def _reserve(self, n: int) -> None:
        if n > len(self._log_probs):
            size = max(n, len(self._log_probs) + len(self._log_probs) // 2)
            kept = np.empty((size, self._n_words), np.uint64)
            kept[: self.n] = self._kept[: self.n]
            log_probs = np.empty(size)
            log_probs[: self.n] = self._log_probs[: self.n]
            log_uppers = log_probs
            if self.two_sided:
                log_uppers = np.empty(size)
                log_uppers[: self.n] = self._log_uppers[: self.n]
            self._kept, self._log_probs, self._log_uppers = kept, log_probs, log_uppers
        if 2 * n > len(self._table):
            self._refill(1 << (2 * n).bit_length())

    def _refill(self, size: int) -> None:
        from certimap.kernels.hashing import rebuild_table

        self._table = np.full(size, -1, np.int32)
        with np.errstate(over="ignore"):
            rebuild_table(self._kept, self.n, self._table)
