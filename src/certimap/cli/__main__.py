"""The process of the command `certimap`: what holds from its first moment to its last, whatever signals come.

SIGTERM counts as Ctrl-C: an answer that is under way ends with what it has earned. Before there is one, while
the command line is still being imported, and once everything is said, a signal costs one sentence at most. Only
SIGTERM does so where a script started the command in the background, with Ctrl-C ignored.
"""

import signal
import sys
from types import FrameType

FAILED = 2
INTERRUPTED = 130
LEAST_MEMORY = 2**30  # bytes that libraries and compiler need to address; with less they crash or hang


def run() -> int:
    """Run the command line that the process was started with; return its exit code."""
    try:
        _let_sigterm_interrupt()
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
    """Have SIGTERM do what Ctrl-C does at that moment, even in a process that Ctrl-C must not reach."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler):
        handler(signal.SIGINT, frame)


def _addressable() -> int:
    """Return how many bytes this process may address at most."""
    try:
        import resource
    except ImportError:  # a system without such limits
        return sys.maxsize
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


if __name__ == "__main__":
    sys.exit(run())
