"""Limits on a check, whatever its file contains: seconds, and bytes of memory beside the model."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from certimap.checker.models import Rejected

SECONDS, BYTES = 600.0, 2 * 10**9  # unless told otherwise
FLOAT = 8  # bytes of a number


@dataclass(eq=False)
class CheckBudget:
    """Limits on time and memory: loops read the clock, and arrays are counted before they are allocated."""

    seconds: float = math.inf  # the limits
    n_bytes: float = math.inf
    end: float = math.inf  # when the time is up (`time.monotonic`)
    held: float = 0.0  # bytes of the arrays that are kept

    @classmethod
    def starting_now(cls, seconds: float | None = SECONDS, n_bytes: float | None = BYTES) -> CheckBudget:
        """Return a budget whose time starts now; None means no limit."""
        seconds, n_bytes = math.inf if seconds is None else seconds, math.inf if n_bytes is None else n_bytes
        return cls(seconds, n_bytes, time.monotonic() + seconds)

    def look(self) -> None:
        """Reject the proof if the time is up."""
        if time.monotonic() > self.end:
            limit = f"{self.seconds:g} s (time_limit)"
            raise Rejected(f"the check did not end within {limit}, so that nothing is said of the proof")

    def need(self, n_bytes: float, what: str) -> None:
        """Reject the proof if the time is up, or if the next step needs more bytes than are left."""
        self.look()
        if self.held + n_bytes > self.n_bytes:
            raise Rejected(
                f"{what} would take {_megabytes(n_bytes)} beside {_megabytes(self.held)}, and the check may take "
                f"{_megabytes(self.n_bytes)} (max_memory), so that nothing is said of the proof"
            )

    def hold(self, n_bytes: float, what: str) -> None:
        """Count bytes of arrays that are kept; a negative count gives bytes back."""
        if n_bytes > 0.0:
            self.need(n_bytes, what)
        self.held += n_bytes


def _megabytes(n_bytes: float) -> str:
    return f"{n_bytes / 1e6:,.0f} MB"
