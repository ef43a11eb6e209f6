"""Distribution of blocks of rows among threads; the answer does not depend on their number.

The calling thread works too, and the helpers are daemons that wait on a queue implemented in C. An interrupt
(Ctrl-C) may thus come anywhere in this module: it leaves no lock held, no helper that delays the end of the
process, and no block running after the call.
"""

from __future__ import annotations

import os
import threading
from _thread import start_new_thread
from collections.abc import Callable
from contextvars import copy_context
from itertools import count
from queue import SimpleQueue
from typing import Generic, TypeVar


def default_workers() -> int:
    """Return the number of processors available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


T = TypeVar("T")


class PerThread(threading.local, Generic[T]):
    """A value made once per thread and used for all its tasks: fresh memory costs more than a small task."""

    def __init__(self, make: Callable[[], T]) -> None:  # called again in every thread
        self.value = make()


class _Job:
    """The blocks of one call; a stopped job gives out no more blocks."""

    def __init__(self, task: Callable[[int, int], None], n_rows: int, block: int) -> None:
        self.task, self.n_rows, self.block = task, n_rows, block
        self.starts = count(0, block)
        self.taken: list[int] = []  # by helpers
        self.done: list[int] = []  # by helpers
        self.errors: list[BaseException] = []
        self.is_stopped = False
        self.news: SimpleQueue[None] = SimpleQueue()
        self.context = copy_context()  # with the caller's control

    def help(self) -> None:
        """Process blocks until none is left; record each at its start and its end."""
        while not self.is_stopped and (start := next(self.starts)) < self.n_rows:
            self.taken.append(start)
            try:
                if not self.is_stopped:
                    self.task(start, min(start + self.block, self.n_rows))
            except BaseException as error:
                self.errors.append(error)
            self.done.append(start)
            self.news.put(None)

    def run(self, n_blocks: int) -> None:
        """Process blocks in the calling thread; return when the helpers have finished theirs."""
        while (start := next(self.starts)) < self.n_rows and not self.errors:
            self.task(start, min(start + self.block, self.n_rows))
            n_blocks -= 1
        while len(self.done) < n_blocks and not self.errors:
            self.news.get()
        if self.errors:
            raise self.errors[0]

    def stop(self) -> None:
        """Give out no more blocks, and wait until no helper is working."""
        self.is_stopped = True
        while len(self.done) < len(self.taken):
            self.news.get()


class _Helpers:
    """Threads of one process that work on the jobs in a queue."""

    def __init__(self) -> None:
        self.n_threads = 0
        self.queue: SimpleQueue[_Job] = SimpleQueue()

    def share(self, job: _Job, n: int) -> None:
        """Let up to n helpers work on a job."""
        while self.n_threads < n:
            start_new_thread(_serve, (self.queue,))
            self.n_threads += 1
        for _ in range(n):
            self.queue.put(job)


def _serve(queue: SimpleQueue[_Job]) -> None:
    while True:
        job = queue.get()
        job.context.copy().run(job.help)


_helpers: dict[int, _Helpers] = {}  # by process


def for_blocks(task: Callable[[int, int], None], n_rows: int, block: int, workers: int) -> None:
    """Call `task(start, stop)` for consecutive blocks of at most `block` rows, on `workers` threads.

    Each call must write to its own rows only. An exception in a task is raised here. Running blocks finish before
    any exception or interrupt is raised; a second interrupt does not wait for them.
    """
    n_blocks = len(range(0, n_rows, block))
    if workers == 1 or n_blocks <= 1:
        for start in range(0, n_rows, block):
            task(start, min(start + block, n_rows))
        return
    helpers = _helpers.setdefault(os.getpid(), _Helpers())  # a parent's threads do not survive a fork
    job = _Job(task, n_rows, block)
    try:
        helpers.share(job, min(workers, n_blocks) - 1)
        job.run(n_blocks)
    except BaseException:
        job.stop()
        raise
