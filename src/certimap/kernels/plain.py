"""Kernels as Python: the same numbers as compiled, bit for bit, unless an exception is raised.

The copy of a kernel calls copies of the kernels that it calls. `exp` and `log` are those of the C library, which
compiled code calls too; NumPy's own round differently. A kernel that may reorder its sums (`fastmath`) is not
copied, nor is a kernel of a module that names one.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

import numpy as np

from certimap.core.cached import guard


class NotPlain(Exception):
    """A kernel as Python would give other numbers than compiled."""


Names = dict[str, object]  # of a module
_namespaces: dict[int, Names | NotPlain] = {}  # of copied functions, by the identity of their module's


def plain(function: Any) -> Callable[..., Any]:
    """Return a copy of a kernel's function that calls copies of others; raise NotPlain if one may reorder sums."""
    return FunctionType(
        function.__code__, _namespace(function.__globals__), function.__name__, function.__defaults__
    )


def run_plain(copy: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Call a copy as if it were compiled: without warnings, and with Python's numbers as results."""
    with np.errstate(all="ignore"):
        return _boxed(copy(*arguments))


def _namespace(names: Names) -> Names:
    """Return the copy of a module's names; an unfinished one is seen by nobody else."""
    with guard:
        found = _namespaces.get(id(names))
        if found is None:
            found = _namespaces[id(names)] = dict(names)
            try:
                found.update((name, _replaced(value)) for name, value in names.items())
            except NotPlain as error:
                _namespaces[id(names)] = error
                raise
    if isinstance(found, NotPlain):
        raise found
    return found


def _replaced(value: Any) -> Any:
    if value is np or value is math:
        return _Library(value)
    if hasattr(value, "py_func"):
        if getattr(value, "targetoptions", {}).get("fastmath"):
            raise NotPlain(value.py_func.__name__)
        return plain(value.py_func)
    return getattr(value, "as_python", value)


class _Library:
    """A module of functions, with `exp` and `log` of the C library."""

    def __init__(self, module: Any) -> None:
        self.__dict__.update(module.__dict__, exp=_exp, log=_log)


def _exp(x: float) -> np.float64:
    try:
        return np.float64(math.exp(x))
    except OverflowError:
        return np.float64(np.inf)


def _log(x: float) -> np.float64:
    return np.float64(math.log(x)) if x > 0.0 else np.log(np.float64(x))


def _boxed(value: Any) -> Any:
    """Return a result with Python's numbers in place of NumPy's."""
    if isinstance(value, np.generic):
        return cast(Any, value).item()
    if isinstance(value, tuple):
        given = cast("tuple[Any, ...]", value)
        kind, items = cast(Any, type(given)), [_boxed(item) for item in given]
        return kind(*items) if hasattr(kind, "_fields") else tuple(items)
    return value


if hasattr(os, "register_at_fork"):  # no other thread may hold it then
    os.register_at_fork(before=guard.acquire, after_in_parent=guard.release, after_in_child=guard.release)
