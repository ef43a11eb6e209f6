"""Processes that serve jobs one at a time, and outlive neither a crash nor an overrun unnoticed.

Each job is a list of parts run in one process in order (so that they share what is costly to prepare); each
part gives one record. A process that dies, or overruns a part's limit, loses that part alone: it is replaced
and the job's later parts go on.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from certimap_lab.bench.records import Record

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


class Server(Protocol):
    """Runs in a process: built there once, then asked for one part after another."""

    def __call__(self, job: Any, part: Any) -> Record: ...


@dataclass
class Job:
    """Parts to be run in order by one process; `payload` is what they share."""

    payload: Any
    parts: list[Any]


@dataclass(frozen=True)
class Outcome:
    """What became of a part: a record, or the reason why there is none ("crashed", "overran" or an error)."""

    payload: Any
    part: Any
    record: Record | None
    problem: str | None = None


@dataclass
class _Worker:
    process: Any
    connection: Connection
    job: Job | None = None
    left: deque[Any] = field(default_factory=deque[Any])
    started: float = 0.0


def _serve(connection: Connection, build: Callable[..., Server], arguments: tuple[Any, ...]) -> None:
    """Answer parts until told to stop; runs in the child process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C ends
    server = build(*arguments)
    while True:
        try:
            message = connection.recv()
        except EOFError:
            return
        if message is None:
            return
        try:
            answer: tuple[Record | None, str | None] = (server(*message), None)
        except Exception:
            answer = (None, traceback.format_exc(limit=-4))
        connection.send(answer)


class WorkerPool:
    """A few processes with one numeric thread setting each.

    Parameters
    ----------
    n_processes
        How many run at once.
    build, arguments
        `build(*arguments)` makes the server inside each process; both must pickle.
    n_threads
        Threads that numeric libraries may use in each process.
    part_limit
        Seconds after which a part is given up and its process replaced; None for no limit.
    replace_after
        Says of a part's record whether the process that made it may be spoiled, and is replaced.
    """

    def __init__(
        self,
        n_processes: int,
        build: Callable[..., Server],
        arguments: tuple[Any, ...],
        *,
        n_threads: int = 1,
        part_limit: float | None = None,
        replace_after: Callable[[Record], bool] = lambda record: False,
    ) -> None:
        self._build = build
        self._arguments = arguments
        self._n_threads = n_threads
        self._limit = part_limit
        self._replace_after = replace_after
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[_Worker] = []
        self._n_processes = n_processes

    def run(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Run jobs and yield an outcome for every part, in order of completion."""
        queue = deque(job for job in jobs if job.parts)
        self._workers = [self._start() for _ in range(min(self._n_processes, len(queue)))]
        try:
            for worker in self._workers:
                self._assign(worker, queue)
            while any(w.job is not None for w in self._workers):
                yield from self._collect(queue)
        finally:
            self._stop()

    def _start(self) -> _Worker:
        saved = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
        os.environ.update(dict.fromkeys(_THREAD_VARIABLES, str(self._n_threads)))  # read when the child imports
        try:
            ours, theirs = self._context.Pipe()
            process = self._context.Process(
                target=_serve, args=(theirs, self._build, self._arguments), daemon=True
            )
            process.start()
            theirs.close()
        finally:
            for name, value in saved.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
        return _Worker(process, ours)

    def _assign(self, worker: _Worker, queue: deque[Job]) -> None:
        """Give the worker its next part, from its job or from the queue."""
        if not worker.left:
            worker.job = None
            if not queue:
                return
            worker.job = queue.popleft()
            worker.left = deque(worker.job.parts)
        assert worker.job is not None
        worker.started = time.monotonic()
        with suppress(BrokenPipeError):  # the process died: its end is noticed when collecting
            worker.connection.send((worker.job.payload, worker.left[0]))

    def _collect(self, queue: deque[Job]) -> Iterator[Outcome]:
        busy = [w for w in self._workers if w.job is not None]
        pause = None
        if self._limit is not None:
            now = time.monotonic()
            pause = max(0.0, min(w.started + self._limit - now for w in busy))
        ready = set(wait([w.connection for w in busy], pause))
        for worker in busy:
            assert worker.job is not None
            if worker.connection in ready:
                outcome = self._receive(worker)
            elif self._limit is not None and time.monotonic() >= worker.started + self._limit:
                outcome = self._give_up(worker, "overran")
            else:
                continue
            worker.left.popleft()
            self._assign(worker, queue)
            yield outcome

    def _receive(self, worker: _Worker) -> Outcome:
        assert worker.job is not None
        try:
            record, problem = worker.connection.recv()
        except (EOFError, OSError):
            return self._give_up(worker, "crashed")
        if record is not None and self._replace_after(record):
            self._replace(worker)
        return Outcome(worker.job.payload, worker.left[0], record, problem)

    def _give_up(self, worker: _Worker, problem: str) -> Outcome:
        """Replace a worker's process and report the part as lost."""
        assert worker.job is not None
        self._replace(worker)
        return Outcome(worker.job.payload, worker.left[0], None, problem)

    def _replace(self, worker: _Worker) -> None:
        """End a worker's process and put a new one in its place."""
        _end(worker)
        fresh = self._start()
        worker.process, worker.connection = fresh.process, fresh.connection

    def _stop(self) -> None:
        for worker in self._workers:
            if worker.job is None:
                with suppress(OSError):
                    worker.connection.send(None)
                worker.process.join(2)
            _end(worker)
        self._workers = []


def _end(worker: _Worker) -> None:
    worker.connection.close()
    if worker.process.is_alive():
        worker.process.kill()
    worker.process.join()
