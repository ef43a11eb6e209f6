"""A notice when a run waits for the compilation of kernels."""

from __future__ import annotations

import functools
import sys

_is_wanted = False


@functools.cache
def announce_compilation() -> None:
    """Print one line on standard error, once, as soon as this process waits for a kernel to be compiled."""
    global _is_wanted
    _is_wanted = True


def compiling() -> None:
    """Print the notice if it is wanted."""
    global _is_wanted
    if _is_wanted:
        _is_wanted = False
        print("compiling kernels, once; they are kept on disk for later runs", file=sys.stderr, flush=True)
