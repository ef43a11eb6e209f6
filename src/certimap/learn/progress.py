"""Progress of long learning runs, shown on terminals only, and their time limit."""

from __future__ import annotations

import math
import sys
import time
from types import TracebackType
from typing import Any

from certimap.errors import DataError


class Progress:
    """A progress bar on standard error; silent where that is no terminal.

    Parameters
    ----------
    title
        What is going on.
    total
        The number of steps.
    show
        True or False settles it; None means on a terminal.
    """

    def __init__(self, title: str, total: int, show: bool | None = None) -> None:
        self._bar: Any = None
        self._task: Any = None
        if (sys.stderr.isatty() if show is None else show) and total > 1:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"))
            self._bar = Bar(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(title, total=total, note="")

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, note: str = "") -> None:
        """Advance by one step."""
        if self._bar is not None:
            self._bar.update(self._task, advance=1, note=note)


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
