"""Ctrl-C during a run: the first one ends it with the best answer so far."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import Any

from certimap.core.control import Control

_c: Any = import_module("_signal")  # the functions that `signal` wraps, ten times as fast


@contextmanager
def interruptible(control: Control) -> Generator[list[int]]:
    """Let the first Ctrl-C end the run with its best answer; a second one is raised as usual.

    Yields the list of signals received so far.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    previous = _c.getsignal(signal.SIGINT)
    if previous is not signal.default_int_handler:
        yield received  # a user's own handler stays installed
        return

    def handle(signum: int, frame: FrameType | None) -> None:
        received.append(signum)
        _interrupts.append(signum)
        control.interrupted = True
        if len(received) > 1 or not control.busy:
            raise KeyboardInterrupt

    _c.signal(signal.SIGINT, handle)
    try:
        yield received
    finally:
        _c.signal(signal.SIGINT, previous)


_interrupts: list[int] = []  # every Ctrl-C that `interruptible` caught, per process


def n_interrupts() -> int:
    """Return how many Ctrl-C the runs of this process have caught.

    The status of a run that Ctrl-C ended early tells it, but not if the run had its proof by then. Callers of
    many runs therefore compare this number before and after each.
    """
    return len(_interrupts)
