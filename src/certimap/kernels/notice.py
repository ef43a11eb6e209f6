"""A notice when the first run compiles the kernels."""

from __future__ import annotations

import functools
import sys


@functools.cache
def announce_compilation() -> None:
    """Print one line on standard error as soon as a kernel is compiled; later runs load it from disk."""
    from certimap.kernels.jit import on_first_compilation

    def say() -> None:
        print("compiling kernels, once; they are kept on disk for later runs", file=sys.stderr, flush=True)

    on_first_compilation(say)
