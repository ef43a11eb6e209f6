"""What a run keeps of its search for a proof file: the splits of its boxes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

ENTRY_BYTES = 250  # of a split in a dictionary, its two masks apart


@dataclass(eq=False)
class Recorder:
    """Splits of boxes, by the box as it was opened.

    Parameters
    ----------
    max_bytes
        Beyond this nothing is kept any more, and `is_full` says so; the run goes on.

    Attributes
    ----------
    splits
        From a box's flags, packed, to the variable that it was split on and its flags at that moment.
    has_search
        Whether a search by boxes keeps its splits here.
    is_tightened
        Whether bounds were tightened by more than the box itself (by caps of subcircuits).
    """

    max_bytes: int
    splits: dict[bytes, tuple[int, bytes]] = field(default_factory=dict[bytes, tuple[int, bytes]])
    has_search: bool = False
    is_tightened: bool = False
    is_full: bool = False
    _n_bytes: int = 0

    def split(self, opened: NDArray[Any], variables: NDArray[np.int64], kept: NDArray[Any]) -> None:
        """Enter boxes that are split: flags as opened and as split, one row each, and the variables."""
        if self.is_full:
            return
        before, after = np.packbits(opened, axis=1), np.packbits(kept, axis=1)
        self._n_bytes += before.nbytes + after.nbytes + ENTRY_BYTES * len(variables)
        if self._n_bytes > self.max_bytes:
            self.is_full = True
            self.splits.clear()
            return
        for row, v in enumerate(variables.tolist()):
            self.splits[before[row].tobytes()] = (v, after[row].tobytes())

    def tree(self, offsets: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return the tree of splits in preorder, as proof files hold it."""
        n_columns = int(offsets[-1])
        variables: list[int] = []
        kept: list[bytes] = []
        waiting = [np.packbits(np.ones(n_columns, np.uint8)).tobytes()]
        while waiting:
            v, after = self.splits.get(waiting.pop(), (-1, b""))
            variables.append(v)
            if v >= 0:
                kept.append(after)
                mask = np.unpackbits(np.frombuffer(after, np.uint8), count=n_columns)
                start, stop = int(offsets[v]), int(offsets[v + 1])
                states = np.flatnonzero(mask[start:stop])
                parts = np.repeat(mask[None], len(states), axis=0)
                parts[:, start:stop] = 0
                parts[np.arange(len(states)), start + states] = 1
                waiting += [row.tobytes() for row in np.packbits(parts, axis=1)][::-1]
        bits = np.frombuffer(b"".join(kept), np.uint8).reshape(len(kept), (n_columns + 7) // 8)
        return {"splits": np.array(variables, np.int32), "kept": bits}
