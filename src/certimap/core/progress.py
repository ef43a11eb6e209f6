"""Progress of long work in many steps, shown on terminals only."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar

Item = TypeVar("Item")


class Progress:
    """A progress bar with the time left, on standard error; silent if that is not a terminal.

    `total` is the number of steps; `show=None` shows the bar on a terminal only.
    """

    def __init__(self, title: str, total: int, show: bool | None = None) -> None:
        self._bar: Any = None
        self._task: Any = None
        if (sys.stderr.isatty() if show is None else show) and total > 1:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"))
            times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
            self._bar = Bar(*columns, *times, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(title, total=total, note="")

    @property
    def is_shown(self) -> bool:
        """Whether the bar is visible."""
        return self._bar is not None

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

    def counted(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield items, advancing one step per item."""
        for n, item in enumerate(items, start=1):
            self.step(str(n))
            yield item
