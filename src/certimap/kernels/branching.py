"""Which variable a box is split on: the rule that the searches of caps and of the whole space share."""

from __future__ import annotations

from typing import Any

import numpy as np

from certimap.kernels.jit import jit_part

WIDTH_BONUS = 0.05  # worth, in shares of bound, of splitting an interval a standard deviation wide
MOST_WIDTH = 2.0  # an interval of more standard deviations is worth no more


def interval_score(total: Any, width: Any) -> Any:
    """Return the score of splitting a real variable; the variable of smallest score is split.

    `total` is the sum of its halves' bounds, in shares of the box's; where splitting gains nothing at once, what
    is wide goes first. `width` is in standard deviations. Numbers, or arrays of them.
    """
    return total - WIDTH_BONUS * np.minimum(width, MOST_WIDTH)


interval_score_in_kernels = jit_part(interval_score)
