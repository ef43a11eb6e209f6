"""The history of a run, thinned, and the progress line that shows it."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any

from certimap.certify.ledger import Ledger
from certimap.core.result import HistoryEntry

MAX_ENTRIES = 512
SHOW_AFTER_SECONDS = 0.5


def is_on_terminal() -> bool:
    """Whether standard error is a terminal, where progress is shown by default."""
    return sys.stderr is not None and sys.stderr.isatty()


class History:
    """Records a run's moments; keeps at most 512 by dropping every other one and halving the rate.

    Used as a context manager, which closes the progress line.
    """

    def __init__(
        self, ledger: Ledger, started: float, progress: bool | Callable[[HistoryEntry], None] | None = None
    ) -> None:
        self.entries: list[HistoryEntry] = []
        self._ledger = ledger
        self._started = started
        self._stride = 1
        self._n_calls = 0
        self._n_nodes = 0
        self._listener = progress if callable(progress) else None
        is_shown = progress is True or (progress is None and is_on_terminal())
        self._line = _ProgressLine(started) if is_shown else None

    def __enter__(self) -> History:
        return self

    def __exit__(self, *error: object) -> None:
        if self._line is not None:
            self._line.close()

    def record(self, n_nodes: int | None = None, *, force: bool = False) -> None:
        """Record this moment unless thinning skips it; None repeats the last count of search nodes."""
        self._n_calls += 1
        if n_nodes is not None:
            self._n_nodes = n_nodes
        if not force and self._n_calls % self._stride and self._listener is None and self._line is None:
            return
        entry = self._moment()
        if self._listener is not None:
            self._listener(entry)
        if self._line is not None:
            self._line.show(entry)
        if force or self._n_calls % self._stride == 0:
            self.entries.append(entry)
        if len(self.entries) > MAX_ENTRIES:
            del self.entries[1::2]
            self._stride *= 2

    def _moment(self) -> HistoryEntry:
        ledger = self._ledger
        open_mass = ledger.log_residual if ledger.log_open_mass is None else ledger.log_open_mass
        return HistoryEntry(
            seconds=time.perf_counter() - self._started,
            n_draws=ledger.n_draws,
            n_evaluations=ledger.n_evaluations,
            log_prob=ledger.best_log_prob,
            log_upper_bound=ledger.log_upper_bound,
            log_open_mass=open_mass,
            n_nodes=self._n_nodes,
        )


class _ProgressLine:
    """One line on standard error, shown if a run takes a while."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._status: Any = None
        self._last = 0.0

    def show(self, entry: HistoryEntry) -> None:
        now = time.perf_counter()
        if now - self._started < SHOW_AFTER_SECONDS or now - self._last < 0.1:
            return
        self._last = now
        upper = f"{entry.log_upper_bound:.4f}" if math.isfinite(entry.log_upper_bound) else "unknown"
        text = (
            f"best ln p {entry.log_prob:.4f}, upper bound {upper}, {entry.n_draws:,} draws, "
            f"{entry.n_evaluations:,} evaluations, {entry.seconds:.0f} s"
        )
        if self._status is None:
            from rich.console import Console

            self._status = Console(stderr=True).status(text)
            self._status.start()
        self._status.update(text)

    def close(self) -> None:
        if self._status is not None:
            self._status.stop()
