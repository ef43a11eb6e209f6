"""A process that compiles kernels for this one, and ends by itself when nothing is left to do.

It outlives this process if that ends first, until it has compiled what was requested: the kernels are on disk then
for the next one. Requests pass through a file, so that neither process waits for the other. The last one is served
first. Of several such processes one at a time compiles for a folder, in turn, and none repeats another's work.
"""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, BinaryIO

fcntl: Any = import_module("fcntl") if os.name == "posix" else None

IDLE = 3.0  # seconds without a request after which the process ends
NICE = 5  # how much less urgent it is than its parent
_TICK = 0.02  # seconds between two looks for requests
_HEAD = 8  # bytes for the length of a request
_lock = threading.Lock()
_started: dict[int, tuple[subprocess.Popen[bytes], int]] = {}  # with the file, by parent: a fork starts its own


def compile_soon(kernel: Any, signature: tuple[Any, ...]) -> bool:
    """Request a kernel for argument types; return whether a process is there to compile it."""
    function, is_interpreter = kernel.py_func, sys.executable and not getattr(sys, "frozen", False)
    module = sys.modules.get(function.__module__)
    if not is_interpreter or getattr(module, function.__qualname__, None) is not kernel:
        return False
    dumps: Any = import_module("numba.core.serialize").dumps
    request = dumps((function.__module__, function.__qualname__, signature))
    try:
        with _lock:
            if not is_at_work():
                if os.getpid() in _started:
                    os.close(_started.pop(os.getpid())[1])
                _started[os.getpid()] = _start()
            os.write(_started[os.getpid()][1], len(request).to_bytes(_HEAD, "little") + request)
    except OSError:  # there can be no process, or no file
        return False
    return True


def is_at_work() -> bool:
    """Whether the process still serves requests."""
    here = os.getpid()
    return here in _started and _started[here][0].poll() is None


def _start() -> tuple[subprocess.Popen[bytes], int]:
    number, path = tempfile.mkstemp(prefix="certimap-kernels-")
    program = f"from certimap.kernels.background import serve; serve({path!r})"
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        start_new_session=True,  # so that Ctrl-C does not reach it
    )
    threading.Thread(target=process.wait, daemon=True).start()  # leaves no zombie
    atexit.register(setattr, process, "returncode", 0)  # it may outlive this process, without a warning
    return process, number


def serve(path: str) -> None:
    """Compile the requests in a file, to which another process adds."""
    if hasattr(os, "nice"):
        os.nice(NICE)
    waiting: list[bytes] = []
    looked = time.monotonic()
    with open(path, "rb") as file:
        with suppress(OSError):  # Windows keeps the names of open files
            os.unlink(path)
        while waiting or time.monotonic() < looked + IDLE:
            waiting += _requests(file)
            if not waiting or not _serve_last(waiting[-1]):
                time.sleep(_TICK)
                continue
            waiting.pop()
            time.sleep(2 * _TICK)  # another process has its turn
            looked = time.monotonic()


def _serve_last(request: bytes) -> bool:
    """Compile one request; return False if another process compiles into the folder now."""
    module, name, signature = pickle.loads(request)
    kernel: Any = getattr(import_module(module), name)
    with _lone(kernel._cache.cache_path) as is_alone:
        if is_alone and not kernel._cache.has(signature, kernel.targetctx):
            kernel.compile(signature)
            if not kernel._cache.has(signature, kernel.targetctx):
                sys.exit("the kernel could not be kept")
    return is_alone


@contextmanager
def _lone(folder: str) -> Generator[bool]:
    """Keep other such processes from compiling into a folder; yield False if one does already."""
    if fcntl is None:
        yield True
        return
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "compiling.lock"), "ab") as file:  # the system unlocks it when a process ends
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _requests(file: BinaryIO) -> list[bytes]:
    """Return the complete requests that a file has got since the last call."""
    found: list[bytes] = []
    while True:
        head = file.read(_HEAD)
        length = int.from_bytes(head, "little")
        content = file.read(length)
        if len(head) < _HEAD or len(content) < length:
            file.seek(-len(head) - len(content), os.SEEK_CUR)
            return found
        found.append(content)


if hasattr(os, "register_at_fork"):  # no other thread may hold the lock then
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
