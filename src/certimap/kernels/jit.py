"""The decorators for kernels: compiled by numba, cached on disk, without the interpreter lock."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal, TypeVar, cast

from certimap.kernels.cache import keep_on_disk
from certimap.kernels.plain import plain, run_plain
from certimap.kernels.tier import Tier

numba: Any = import_module("numba")  # it has no types
F = TypeVar("F", bound=Callable[..., Any])
Scalar = Any  # a number from an array: a machine number inside a kernel, a NumPy scalar outside


def jit(*, fastmath: bool | set[str] = False, inline: Literal["never", "always"] = "never") -> Callable[[F], F]:
    """Compile a kernel on first call and keep it in the disk cache.

    Kernels release the interpreter lock, so that blocks of rows run on a thread pool. `fastmath` takes
    LLVM flag names; leave `nnan` and `ninf` out where infinities are meaningful.
    """

    def wrap(function: F) -> F:
        if numba.config.DISABLE_JIT:
            return _uncompiled(function)
        compiled: Any = numba.njit(nogil=True, fastmath=fastmath, inline=inline, error_model="numpy")(function)
        if keep_on_disk(compiled, function):
            compiled._compile_for_args = Tier(compiled)
        return compiled

    return wrap


def _uncompiled(function: F) -> F:
    """Return a kernel as Python, for runs without compilation."""

    @functools.wraps(function)
    def run(*arguments: Any) -> Any:
        return run_plain(plain(function), arguments)

    run.__dict__["py_func"] = function
    return cast(F, run)


def jit_part(function: F) -> F:
    """Compile a part of kernels alone: an entry point from Python would take most of its compilation time."""
    if numba.config.DISABLE_JIT:
        return _uncompiled(function)
    return numba.njit(nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)
