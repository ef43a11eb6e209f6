"""Names of the types of arrays; where an array has a fixed shape or unit, the place that uses it says so."""

from __future__ import annotations

from typing import Any

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


def grown(array: Array, room: int, used: int) -> Array:
    """Return a copy with more rows, of which those in use are kept."""
    out = np.zeros((room, *array.shape[1:]), array.dtype)
    out[:used] = array[:used]
    return out
