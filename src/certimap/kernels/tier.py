"""Kernels that are not compiled yet: small calls run as Python while another process compiles.

A call is small if its arrays are. A kernel has `patience` seconds as Python; the call that reaches them is undone,
and repeated by compiled code. `plain` gives the numbers of compiled code bit for bit, so no answer depends on when
compilation ends. Near a time limit the calling thread does not compile: it runs Python, or waits if the arrays are
huge, until the other process has compiled the kernel or the time is up.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from certimap.core.arrays import Array
from certimap.core.control import Control, current_control
from certimap.kernels import background
from certimap.kernels.notice import compiling
from certimap.kernels.plain import NotPlain, plain, run_plain

ENTRIES = 50_000  # of all arrays of a call that may run as Python
MOST_ENTRIES = 1_000_000  # of those of a call that may run as Python instead of waiting
patience = 0.3  # seconds of processor time of a kernel as Python
GRACE = 0.3  # seconds of a kernel as Python after the end of the time limit
longest = 30.0  # seconds that compiling a kernel may take, on a busy machine
_BUSY = 3.0  # seconds on a clock that one of processor time may take, on a busy machine
_TICK = 0.01  # seconds between two looks at what runs or is awaited


class Tier:
    """Takes the place of `_compile_for_args` in a dispatcher with a `KernelCache`: returns what to call."""

    def __init__(self, kernel: Any) -> None:
        self._kernel, self._compile = kernel, kernel._compile_for_args
        self._spent = 0.0
        self._requested: set[tuple[Any, ...]] = set()
        self._urgent: set[tuple[Any, ...]] = set()
        self._is_refused = False  # whether Python raised an exception
        self._copy: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Callable[..., Any]:
        signature = tuple(self._kernel.typeof_pyval(value) for value in arguments)
        if self._is_on_disk(signature):
            return self._compile(*arguments)
        try:
            self._copy = self._copy or plain(self._kernel.py_func)
        except NotPlain:
            return self._compiled(signature, *arguments)
        if self._spent < patience and _size(arguments) <= ENTRIES:
            if signature not in self._requested:
                self._requested.add(signature)
                background.compile_soon(self._kernel, signature)
            otherwise = functools.partial(self._compiled, signature)
            return functools.partial(self._tried, _BUSY * (patience - self._spent), lambda: False, otherwise)
        return self._compiled(signature, *arguments)

    def _is_on_disk(self, signature: tuple[Any, ...]) -> bool:
        return self._kernel._cache.has(signature, self._kernel.targetctx)

    def _tried(
        self, seconds: float, is_needless: Callable[[], bool], otherwise: Callable[..., Any], *arguments: Any
    ) -> Any:
        """Return the result of a call as Python; of what `otherwise` returns if that takes too long or raises."""
        kept = [(array, array.copy()) for array in _arrays(arguments) if array.flags.writeable]
        started = time.thread_time()
        assert self._copy is not None
        try:
            return _within(seconds, is_needless, self._copy, arguments)
        except BaseException as error:
            for array, content in kept:
                array[...] = content
            if not isinstance(error, (Exception, _Undone)):  # the user interrupts
                raise
            self._spent = patience
            self._is_refused |= isinstance(error, Exception)  # of a division by zero, for instance
        finally:
            self._spent += time.thread_time() - started
        return otherwise(*arguments)(*arguments)

    def _compiled(self, signature: tuple[Any, ...], *arguments: Any) -> Callable[..., Any]:
        """Return compiled code; near a time limit Python, as long as there is none."""
        control = current_control()
        if control is None or control.seconds_left > longest or not self._is_served(signature):
            compiling()
            return self._compile(*arguments)
        wait = functools.partial(self._awaited, signature, control, control.is_late and not control.searching)
        if self._copy is None or self._is_refused or _size(arguments) > MOST_ENTRIES:
            return wait(*arguments)
        is_on_disk = functools.partial(self._is_on_disk, signature)
        return functools.partial(self._tried, control.seconds_left + GRACE, is_on_disk, wait)

    def _is_served(self, signature: tuple[Any, ...]) -> bool:
        """Whether another process compiles the kernel, before all that was requested earlier."""
        if signature in self._urgent:
            return background.is_at_work()
        self._urgent.add(signature)
        return background.compile_soon(self._kernel, signature)

    def _awaited(
        self, signature: tuple[Any, ...], control: Control, is_last_step: bool, *arguments: Any
    ) -> Callable[..., Any]:
        """Return compiled code when it is on disk, or compile it here `longest` seconds after the limit."""
        compiling()
        end = time.perf_counter() + control.seconds_left + longest
        while background.is_at_work() and not self._is_on_disk(signature) and time.perf_counter() < end:
            if not (control.is_late and (is_last_step or control.busy)):
                control.check("compiling kernels")
            time.sleep(_TICK)
        return self._compile(*arguments)


def compile_first() -> None:
    """From now on compile every kernel of this process at its first call, whatever the time limit."""
    global patience, longest
    patience, longest = 0.0, -1.0


def _arrays(values: tuple[Any, ...]) -> Iterator[Array]:
    """Yield the arrays among arguments, those in tuples included."""
    for value in values:
        if isinstance(value, np.ndarray):
            yield value
        elif isinstance(value, tuple):
            yield from _arrays(cast(tuple[Any, ...], value))


def _size(arguments: tuple[Any, ...]) -> int:
    return sum(array.size for array in _arrays(arguments))


class _Undone(BaseException):
    """Raised inside a Python run whose time is up."""


@dataclass(eq=False)
class _Run:
    """A call as Python: its thread, its end by time.perf_counter(), whether it is needless by now."""

    thread: int
    end: float
    is_needless: Callable[[], bool]
    is_told: bool = False  # whether an exception was sent to its thread


_lock = threading.Lock()
_awake = threading.Event()
_running: dict[_Run, None] = {}
_raise_in: Any = ctypes.pythonapi.PyThreadState_SetAsyncExc


def _within(
    seconds: float, is_needless: Callable[[], bool], copy: Callable[..., Any], arguments: tuple[Any, ...]
) -> Any:
    """Return a call's result, or raise _Undone when `seconds` have passed or it is needless."""
    run = _Run(threading.get_ident(), math.inf, lambda: False)
    try:
        _running[run] = None
        _watch()
        _awake.set()  # has an end before anything may be raised here
        run.is_needless, run.end = is_needless, time.perf_counter() + seconds
        return run_plain(copy, arguments)
    finally:
        _running.pop(run, None)
        with _lock:
            is_told = run.is_told
        if is_told:
            _absorb(run.thread)


def _absorb(thread: int) -> None:
    """Let what was sent to this thread arrive; Python looks for it forever else, and hangs under a profiler."""
    with suppress(_Undone):
        while True:  # again if a finalizer swallows it
            _raise_in(ctypes.c_ulong(thread), ctypes.py_object(_Undone))
            time.sleep(0.0)


@functools.cache
def _watch() -> None:
    """Start the thread that ends Python runs; what a finalizer swallows is not printed."""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda lost: None if lost.exc_type is _Undone else hook(lost)
    threading.Thread(target=_end_runs, daemon=True, name="certimap kernels").start()


def _end_runs() -> None:
    while True:
        _awake.wait()
        _awake.clear()
        while _running:
            time.sleep(_TICK)
            for run in list(_running):
                if time.perf_counter() >= run.end or run.is_needless():
                    with _lock:
                        if run in _running:  # still, if a finalizer swallowed the last one
                            run.is_told = True
                            _raise_in(ctypes.c_ulong(run.thread), ctypes.py_object(_Undone))


def _start_anew() -> None:
    """Forget runs, locks and the watching thread, which a fork does not take with it."""
    global _lock, _awake
    _lock, _awake = threading.Lock(), threading.Event()
    _running.clear()
    _watch.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)
