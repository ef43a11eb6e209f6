"""The time limit of long learning runs."""

from __future__ import annotations

import math
import time

from certimap.errors import DataError


def deadline_of(time_limit: float | None) -> float | None:
    """Return the moment (of `time.monotonic`) at which a limit in seconds ends, or None."""
    if time_limit is None:
        return None
    if not (time_limit > 0 and not math.isnan(time_limit)):
        raise DataError(f"time_limit is {time_limit!r}; expected a positive number of seconds or None")
    return time.monotonic() + time_limit


def is_late(deadline: float | None) -> bool:
    """Return whether a deadline has passed."""
    return deadline is not None and time.monotonic() > deadline
