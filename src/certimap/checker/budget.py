"""What a check may take, whatever a file makes it do: seconds, and bytes of memory beside the model."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from certimap.checker.models import Rejected

SECONDS, BYTES = 600.0, 2 * 10**9  # unless told otherwise
FLOAT = 8  # bytes of a number


@dataclass(eq=False)
class Budget:
    """Limits on time and memory: work in pieces looks at the clock, and arrays are estimated before they are made.

    Attributes
    ----------
    seconds, n_bytes
        The limits.
    end
        When the time is up (`time.monotonic`).
    held
        Bytes of arrays that stay.
    """

    seconds: float = math.inf
    n_bytes: float = math.inf
    end: float = math.inf
    held: float = 0.0

    @classmethod
    def starting_now(cls, seconds: float | None = SECONDS, n_bytes: float | None = BYTES) -> Budget:
        """Return a budget whose time begins to run; None stands for no limit."""
        seconds, n_bytes = math.inf if seconds is None else seconds, math.inf if n_bytes is None else n_bytes
        return cls(seconds, n_bytes, time.monotonic() + seconds)

    def look(self) -> None:
        """Reject what has not been checked in time."""
        if time.monotonic() > self.end:
            limit = f"{self.seconds:g} s (time_limit)"
            raise Rejected(f"the check did not end within {limit}, so that nothing is said of the proof")

    def need(self, n_bytes: float, what: str) -> None:
        """Look at the budget, and reject, before any is taken, what needs more bytes than are left."""
        self.look()
        if self.held + n_bytes > self.n_bytes:
            raise Rejected(
                f"{what} would take {_megabytes(n_bytes)} beside {_megabytes(self.held)}, and the check may take "
                f"{_megabytes(self.n_bytes)} (max_memory), so that nothing is said of the proof"
            )

    def hold(self, n_bytes: float, what: str) -> None:
        """Count bytes that stay; negative ones are given back."""
        if n_bytes > 0.0:
            self.need(n_bytes, what)
        self.held += n_bytes


def _megabytes(n_bytes: float) -> str:
    return f"{n_bytes / 1e6:,.0f} MB"
