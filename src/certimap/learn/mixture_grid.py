"""The settings tried by the learners of mixtures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from certimap.errors import DataError
from certimap.learn.settings import check_count


def mixture_grid(
    n_components: int | Sequence[int], smoothing: float | Sequence[float], n_starts: int, max_steps: int
) -> tuple[list[int], list[float]]:
    """Return the numbers of components and the smoothings to try; check these and both counts."""
    components: list[Any] = np.atleast_1d(np.array(n_components, object)).tolist()
    smoothings: list[Any] = np.atleast_1d(np.array(smoothing, object)).tolist()
    counts: list[tuple[str, Any]] = [("n_components", k) for k in components]
    for name, k in [*counts, ("n_starts", n_starts), ("max_steps", max_steps)]:
        check_count(name, k, 1)
    for s in smoothings:
        if not (isinstance(s, int | float | np.number) and 0 < s < np.inf):
            raise DataError(f"smoothing is {s!r}; expected a positive number, or several of them")
    if not components or not smoothings:
        raise DataError("n_components or smoothing is empty; at least one value is needed")
    return components, smoothings
