"""The time that a check may take."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from certimap.checker.models import Rejected


@dataclass(frozen=True)
class Clock:
    """A limit in seconds, and when it is reached."""

    limit: float = math.inf
    end: float = math.inf

    @classmethod
    def starting_now(cls, limit: float | None) -> Clock:
        return cls() if limit is None else cls(limit, time.monotonic() + limit)

    def look(self) -> None:
        """Reject what has not been checked in time."""
        if time.monotonic() > self.end:
            raise Rejected(f"the check did not end within {self.limit:g} s, so that nothing is said of the proof")
