"""Choice of the variable that splits a box, shared by the searches of caps and of the whole space."""

from __future__ import annotations

from typing import Any

import numpy as np

from certimap.kernels.jit import jit_part

WIDTH_BONUS = 0.05  # bonus, relative to the bound, for splitting an interval of one standard deviation
MOST_WIDTH = 2.0  # wider intervals, in standard deviations, get no more bonus


def interval_score(total: Any, width: Any) -> Any:
    """Return the score of splitting a real variable; the variable with the smallest score is split.

    `total` is the sum of the halves' bounds, relative to the box's bound; among equal sums, the wider interval is
    split first. `width` is in standard deviations. Numbers, or arrays of them.
    """
    return total - WIDTH_BONUS * np.minimum(width, MOST_WIDTH)


interval_score_in_kernels = jit_part(interval_score)
