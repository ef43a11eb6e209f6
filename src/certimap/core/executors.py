"""Runs tasks on the workers of any `concurrent.futures.Executor`: local processes or a cluster."""

from __future__ import annotations

import hashlib
import os
import pickle
import platform
import signal
import threading
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from certimap.core.arguments import check_whole
from certimap.errors import SolverError

N_KEPT = 4  # payloads that a worker caches
SMALL = 2**16  # bytes up to which a payload goes with every task
N_TRIES = 2  # how often a task is submitted before the calling process does it
Function = Callable[[Any, Any], Any]
_kept: OrderedDict[str, Any] = OrderedDict()


@dataclass(frozen=True)
class _Answer:
    """A worker's reply; it has no value if the worker lacks the payload."""

    worker: str
    has_payload: bool
    value: Any = None


def serve(key: str, data: bytes | None, function: Function, task: Any) -> _Answer:
    """Run `function(payload, task)` in a worker; `key` finds the payload when `data` is None."""
    worker = f"{platform.node()}-{os.getpid()}"
    if key not in _kept:
        if data is None:
            return _Answer(worker, has_payload=False)
        _kept[key] = pickle.loads(data)
        while len(_kept) > N_KEPT:
            _kept.popitem(last=False)
    _kept.move_to_end(key)
    with _interruptible():
        return _Answer(worker, True, function(_kept[key], task))


@contextmanager
def workers_of(n_jobs: int | None, executor: Any) -> Generator[Executor | None]:
    """Yield `executor` (of a `Client` of dask: its workers), a pool of `n_jobs` processes for the block, or None.

    Warns of workers of a `Client` that leave meanwhile. Raises SolverError if both are given, `executor` is no
    Executor, or `n_jobs` is neither positive nor -1.
    """
    if executor is not None and n_jobs is not None:
        raise SolverError("n_jobs and executor were both given; one of them says who answers the rows")
    client = executor
    if not isinstance(executor, Executor | None):
        with suppress(AttributeError):
            executor = executor.get_executor(pure=False)
    if not isinstance(executor, Executor | None):
        told = "expected a concurrent.futures.Executor, or a Client of dask.distributed"
        raise SolverError(f"executor is a {type(executor).__name__}; {told}")
    if n_jobs is None:
        before = _there(client)
        yield executor
        if lost := before - _there(client):  # dask itself hands their tasks to others silently
            told = f"{len(lost)} of {len(before)} workers left the cluster; others did what they had begun"
            warnings.warn(told, RuntimeWarning, stacklevel=2)
        return
    pool = process_pool(n_jobs)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _there(client: Any) -> set[str]:
    """Return the addresses of a dask `Client`'s workers; none without its scheduler, or for any other object."""
    with suppress(AttributeError, OSError, TypeError):
        return set(client.nthreads())
    return set()


def process_pool(n_jobs: int) -> Executor:
    """Return a pool of local processes (-1: one per core); Ctrl-C stops their tasks, not the processes."""
    expected = "a number of processes, -1 for one per core, or None for none"
    n_jobs = check_whole("n_jobs", n_jobs, expected, low=-1)
    if n_jobs == 0:
        raise SolverError(f"n_jobs is 0; expected {expected}")
    from concurrent.futures import ProcessPoolExecutor  # takes 13 ms, so import only when needed
    from multiprocessing import get_context

    n_processes = (os.cpu_count() or 1) if n_jobs == -1 else n_jobs
    return ProcessPoolExecutor(n_processes, mp_context=get_context("spawn"), initializer=_ignore_interrupts)


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _interruptible() -> Generator[None]:
    """Let Ctrl-C stop the task in a process that otherwise ignores it."""
    is_main = threading.current_thread() is threading.main_thread()
    ignores = is_main and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignores:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if ignores:
            _ignore_interrupts()


@dataclass
class Spread:
    """Submits tasks in order and yields their answers in order.

    `function` is a module-level function (so that it pickles by name), called with the payload and a task. The
    payload, which all tasks share, is pickled once and sent to each worker once; a small one goes with every task.
    When task i is made, exactly the answers up to i - `window` have been taken, so that tasks do not depend on the
    workers' pace.

    A task whose worker dies is submitted again. After two failures, or if the executor is broken (a process pool
    breaks when a process dies), the calling process does the task and warns.
    """

    executor: Executor
    function: Function
    payload: Any
    window: int = 2**30
    _at_work: dict[Future[_Answer], int] = field(default_factory=dict[Future[_Answer], int])
    _tasks: dict[int, Any] = field(default_factory=dict[int, Any])
    _ready: dict[int, Any] = field(default_factory=dict[int, Any])
    _held: list[int] = field(default_factory=list[int])  # tasks returned because the worker lacks the payload
    _carrying: set[int] = field(default_factory=set[int])  # tasks under way with the payload
    _lacking: set[str] = field(default_factory=set[str])  # workers known to lack it
    _n_failed: Counter[int] = field(default_factory=Counter[int])
    _is_broken: bool = False

    def __post_init__(self) -> None:
        self._data = pickle.dumps(self.payload, protocol=pickle.HIGHEST_PROTOCOL)
        self._key = hashlib.sha256(self._data).hexdigest()

    def results(self, n_tasks: int, make: Callable[[int], Any]) -> Iterator[Any]:
        """Yield `function(payload, make(i))` for i = 0, 1, ...; closing the iterator cancels the rest."""
        n_made = 0
        try:
            for i in range(n_tasks):
                while n_made < min(n_tasks, i + self.window):
                    self._tasks[n_made] = make(n_made)
                    self._hand_out(n_made)
                    n_made += 1
                yield self._answer_of(i)
        finally:
            for future in self._at_work:
                future.cancel()

    def _answer_of(self, i: int) -> Any:
        """Wait for answer i, and store the others that arrive meanwhile."""
        while i not in self._ready and (i in self._at_work.values() or i in self._held):
            done, _ = wait(self._at_work, return_when=FIRST_COMPLETED)
            for future in done:
                self._take_in(future)
            self._release()
        task = self._tasks.pop(i)
        return self._ready.pop(i) if i in self._ready else self.function(self.payload, task)

    def _take_in(self, future: Future[_Answer]) -> None:
        k = self._at_work.pop(future)
        self._carrying.discard(k)
        if future.cancelled() or future.exception() is not None:
            self._n_failed[k] += 1
            if self._n_failed[k] < N_TRIES:
                self._hand_out(k)
            else:
                self._say_lost(None if future.cancelled() else future.exception())
            return
        answer = future.result()
        if answer.has_payload:
            self._ready[k] = answer.value
            self._lacking.discard(answer.worker)
        else:
            self._held.append(k)
            self._lacking.add(answer.worker)

    def _release(self) -> None:
        """Submit held tasks: one with the payload per worker that lacks it, the rest once no worker lacks it."""
        held, self._held = self._held, []
        for k in held:
            if not self._lacking:
                self._hand_out(k)
            elif len(self._carrying) < len(self._lacking):
                self._hand_out(k, with_payload=True)
            else:
                self._held.append(k)

    def _hand_out(self, k: int, *, with_payload: bool = False) -> None:
        """Submit a task; if the executor refuses it, the calling process will do it."""
        if self._is_broken:
            return
        with_payload = with_payload or len(self._data) <= SMALL
        data = self._data if with_payload else None
        try:
            future = self.executor.submit(serve, self._key, data, self.function, self._tasks[k])
        except RuntimeError as problem:  # the executor is broken or shut down
            self._is_broken = True
            self._say_lost(problem)
            return
        self._at_work[future] = k
        if with_payload:
            self._carrying.add(k)

    def _say_lost(self, problem: BaseException | None) -> None:
        reason = "cancelled" if problem is None else f"{type(problem).__name__}: {problem}"
        warnings.warn(
            f"a worker of the executor was lost ({reason}); what it had to do is done by the calling process",
            RuntimeWarning,
            stacklevel=2,
        )
