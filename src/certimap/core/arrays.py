"""Types of arrays, their axes and spans; the place that uses an array says its shape and unit."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]
Ints = NDArray[np.int64]
Ints32 = NDArray[np.int32]
Ints16 = NDArray[np.int16]
Ints8 = NDArray[np.int8]
Flags = NDArray[np.bool_]
Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]
Number = TypeVar("Number", bound=np.generic)


def grown(array: Array, room: int, used: int) -> Array:
    """Return a copy with more rows, of which those in use are kept."""
    out = np.zeros((room, *array.shape[1:]), array.dtype)
    out[:used] = array[:used]
    return out


def spread(values: NDArray[Number], scope: Sequence[int], target: Sequence[int]) -> NDArray[Number]:
    """Return a view of `values` with one axis per variable of `target`; missing variables get length 1."""
    place = {v: i for i, v in enumerate(scope)}
    kept = [place[v] for v in target if v in place]
    shape = [values.shape[place[v]] if v in place else 1 for v in target]
    return values.transpose(kept).reshape(shape)


def spans(starts: Ints, lengths: Ints) -> Ints:
    """Return the indices `starts[i] ... starts[i] + lengths[i] - 1` of all spans, one after the other."""
    ends = np.cumsum(lengths)
    return np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(starts - ends + lengths, lengths)


def pointers(sizes: Iterable[int]) -> Ints:
    """Return where each of several parts of these sizes begins, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(np.fromiter(sizes, np.int64))]).astype(np.int64)


def flattened(rows: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Return where each row begins, and the concatenated rows."""
    starts = pointers(map(len, rows))
    return starts, np.fromiter(itertools.chain.from_iterable(rows), np.int64, int(starts[-1]))
