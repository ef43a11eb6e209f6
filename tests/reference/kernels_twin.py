"""Runs tasks whose kernel calls are made twice, compiled and as Python; prints the kernels that differ in any bit.

usage: python kernels_twin.py CALLS TASK...: of each kernel, the first CALLS small calls are compared.
"""

from __future__ import annotations

import sys
from collections import Counter

import numba
import numpy as np

import certimap.kernels.jit as decorators
from certimap.kernels.cache import keep_on_disk
from certimap.kernels.plain import NotPlain, plain, run_plain
from certimap.kernels.tier import ENTRIES, _arrays

MAY_RAISE = (OverflowError, ZeroDivisionError, ValueError)  # compiled code takes over then
compared, found = Counter(), Counter()


class Twice:
    """A kernel whose calls from outside are made compiled and as Python."""

    def __init__(self, compiled, most):
        self.compiled, self.py_func, self.most = compiled, compiled.py_func, most
        self.targetoptions = compiled.targetoptions
        self.name = f"{self.py_func.__module__.removeprefix('certimap.')}.{self.py_func.__name__}"

    @property
    def _numba_type_(self):
        return self.compiled._numba_type_

    def __call__(self, *arguments):
        if compared[self.name] >= self.most or sum(a.size for a in _arrays(arguments)) > ENTRIES:
            return self.compiled(*arguments)
        try:
            twin = plain(self.py_func)
        except NotPlain:
            return self.compiled(*arguments)
        compared[self.name] += 1
        others = copied(arguments, {})
        result = self.compiled(*arguments)
        try:
            other = run_plain(twin, others)
        except MAY_RAISE as error:
            print(f"note: {self.name} raises {error!r}")
            return result
        found[self.name] += bits((result, arguments)) != bits((other, others))
        return result


def copied(value, made):
    """Copy the arrays that a call may write to; views of one memory are views of one copy."""
    if isinstance(value, tuple):
        items = [copied(item, made) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if not isinstance(value, np.ndarray) or not value.flags.writeable:
        return value
    whole = value
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    if not whole.flags.c_contiguous:
        key = (value.ctypes.data, value.shape, value.strides, value.dtype.str)
        return made.setdefault(key, value.copy(order="K"))
    memory = made.setdefault(whole.ctypes.data, bytearray(whole.tobytes()))
    start = value.ctypes.data - whole.ctypes.data
    return np.ndarray(value.shape, value.dtype, memory, start, value.strides)


def bits(value):
    """Return all that tells two values apart; every nan is the same."""
    if isinstance(value, tuple):
        return (type(value), *map(bits, value))
    if isinstance(value, np.ndarray):
        same = np.where(np.isnan(value), np.nan, value) if value.dtype.kind == "f" else value
        return value.dtype, value.shape, same.tobytes()
    return type(value), np.float64(value).tobytes() if isinstance(value, float) else value


def main(most, names):
    def jit(*, fastmath=False, inline="never"):
        def wrap(function):
            compiled = numba.njit(nogil=True, fastmath=fastmath, inline=inline, error_model="numpy")(function)
            keep_on_disk(compiled, function)
            return Twice(compiled, int(most))

        return wrap

    decorators.jit = jit
    from certimap.cli.kernel_tasks import TASKS

    for name in names:
        TASKS[name]()
    print(f"compared {sum(compared.values())} calls of {len(compared)} kernels")
    for name, n in found.items():
        if n:
            print(f"{name} differs in {n} of {compared[name]} calls")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
