"""The process of the command `certimap`: handling of signals and memory limits from start to end.

SIGTERM acts like Ctrl-C: a running query ends with the best certificate so far. During imports, and after the last
output, a signal prints at most one sentence. If a script started the command in the background with Ctrl-C
ignored, only SIGTERM has this effect.
"""

import signal
import sys
import time
import weakref
from _thread import interrupt_main, start_new_thread
from collections.abc import Callable
from types import FrameType
from typing import Any

FAILED = 2
INTERRUPTED = 130
LEAST_MEMORY = 2**30  # address space in bytes needed by libraries and compiler; with less they crash or hang


def run() -> int:
    """Run the process's command line; return its exit code."""
    try:
        _let_sigterm_interrupt()
        sys.unraisablehook = _taken_again
        allowed = _addressable()
        if allowed < LEAST_MEMORY:
            needed = f"{LEAST_MEMORY >> 20} MiB at least are needed"
            print(f"certimap: this process may address {allowed >> 20} MiB (ulimit -v); {needed}", file=sys.stderr)
            return FAILED
        from certimap.cli.main import main

        return main()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("certimap: interrupted before there was an answer", file=sys.stderr)
        return INTERRUPTED
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):  # nothing is left to interrupt
            signal.signal(number, signal.SIG_IGN)


def _let_sigterm_interrupt() -> None:
    """Make SIGTERM act like Ctrl-C, even in a process that ignores Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler):
        handler(signal.SIGINT, frame)


class _Presence:
    """Lives as long as the call that made it."""


def _taken_again(unraisable: Any) -> None:
    """Repeat an interrupt that arrived where nothing can be raised (a finalizer, a callback from C)."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
    elif signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        here = _Presence()
        start_new_thread(_interrupt_after, (weakref.ref(here),))


def _interrupt_after(call: Callable[[], object]) -> None:
    """Interrupt the main thread after a call in which another interrupt would be lost."""
    while call() is not None:
        time.sleep(0.001)
    interrupt_main(signal.SIGTERM)


def _addressable() -> int:
    """Return this process's limit on addressable bytes."""
    try:
        import resource
    except ImportError:  # a system without such limits
        return sys.maxsize
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


if __name__ == "__main__":
    sys.exit(run())
