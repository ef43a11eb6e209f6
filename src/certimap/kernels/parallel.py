"""Sharing blocks of rows out among threads, so that the answer does not depend on how many there are."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def default_workers() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _pool(workers: int) -> ThreadPoolExecutor:
    key = (os.getpid(), workers)  # threads do not survive a fork
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(workers, thread_name_prefix="certimap")
    return _pools[key]


def for_blocks(task: Callable[[int, int], None], n_rows: int, block: int, workers: int) -> None:
    """Call `task(start, stop)` for consecutive blocks of at most `block` rows, on `workers` threads.

    Each call must write to its own rows only. An exception in a task is raised here.
    """
    starts = range(0, n_rows, block)
    if workers == 1 or len(starts) <= 1:
        for start in starts:
            task(start, min(start + block, n_rows))
        return
    futures = [_pool(workers).submit(task, start, min(start + block, n_rows)) for start in starts]
    for future in futures:
        future.result()
