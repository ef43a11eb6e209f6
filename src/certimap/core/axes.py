"""Axes of tables over variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", bound=np.generic)


def spread(values: NDArray[Number], scope: Sequence[int], target: Sequence[int]) -> NDArray[Number]:
    """Return a view of `values` with one axis per variable of `target`; missing variables get length 1."""
    place = {v: i for i, v in enumerate(scope)}
    kept = [place[v] for v in target if v in place]
    shape = [values.shape[place[v]] if v in place else 1 for v in target]
    return values.transpose(kept).reshape(shape)
