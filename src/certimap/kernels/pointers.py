"""Calls of compiled functions by address, so that cached kernels can call functions compiled later.

A *real function* takes four parameters of a leaf and two numbers, and returns a number; a *draw function* takes
four parameters, the two ends of an interval and a stream of random numbers. Both are plain Python functions
that numba can compile. An address is stored in an int64 array; with compilation off it is an index in a list.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from importlib import import_module
from typing import Any

from certimap.kernels.cache import keep_on_disk
from certimap.kernels.jit import jit_part

# Untyped packages, declared to type checkers once.
numba: Any = import_module("numba")
ir: Any = import_module("llvmlite.ir")
types: Any = numba.types
intrinsic: Any = import_module("numba.extending").intrinsic

_ccallback: Any = import_module("numba.core.ccallback")  # numba.cfunc, in parts
_real: Any = types.float64
_REAL_SIGNATURE: Any = _real(*[_real] * 6)
_DRAW_SIGNATURE: Any = _real(*[_real] * 6, types.CPointer(types.uint64))
_kept: list[Any] = []  # compiled functions, whose addresses must stay valid; plain ones with compilation off
STREAM_WORDS = 4


def address_of(function: Callable[..., float], *, draws: bool = False) -> int:
    """Compile a function (or raise numba's own error), keep it on disk if it is of a file; return its address."""
    if numba.config.DISABLE_JIT:
        _kept.append(function)
        return len(_kept) - 1
    signature = _DRAW_SIGNATURE if draws else _REAL_SIGNATURE
    compiled: Any = _ccallback.CFunc(function, (signature.args, signature.return_type), {}, {})
    keep_on_disk(compiled, function)
    compiled.compile()
    _kept.append(compiled)
    return int(compiled.address)


def _caller(with_stream: bool) -> Any:
    """Return an intrinsic that calls an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, *numbers = arguments
        if with_stream:
            array = context.make_array(signature.args[7])(context, builder, numbers.pop())
            numbers.append(array.data)
        kinds = [value.type for value in numbers]
        function = builder.inttoptr(address, ir.PointerType(ir.FunctionType(ir.DoubleType(), kinds)))
        return builder.call(function, numbers)

    def call(typing: Any, address: Any, a: Any, b: Any, c: Any, d: Any, x: Any, y: Any) -> Any:
        return _real(types.int64, *[_real] * 6), generate

    def call_with_stream(
        typing: Any, address: Any, a: Any, b: Any, c: Any, d: Any, x: Any, y: Any, stream: Any
    ) -> Any:
        return _real(types.int64, *[_real] * 6, stream), generate

    found = intrinsic(call_with_stream if with_stream else call)
    found.as_python = _call_by_address
    return found


def _call_by_address(address: int, *values: Any) -> float:
    """Call an address from Python."""
    pointer = values[6].ctypes.data_as(ctypes.POINTER(ctypes.c_uint64)) if len(values) > 6 else None
    kinds = [ctypes.c_double] * 6 + ([] if pointer is None else [ctypes.c_void_p])
    return ctypes.CFUNCTYPE(ctypes.c_double, *kinds)(int(address))(
        *values[:6], *([pointer] * (pointer is not None))
    )


if numba.config.DISABLE_JIT:

    def call_real(address: Any, a: Any, b: Any, c: Any, d: Any, x: Any, y: Any) -> Any:
        """Call a real function."""
        return _kept[address](a, b, c, d, x, y)

    def call_draw(address: Any, a: Any, b: Any, c: Any, d: Any, x: Any, y: Any, stream: Any) -> Any:
        """Call a draw function."""
        return _kept[address](a, b, c, d, x, y, stream)

else:
    call_real = _caller(False)
    call_draw = _caller(True)


def stream_of(pointer: Any) -> Any:
    """Return a draw function's stream as an array that `uniform` and its like take."""
    return pointer


if not numba.config.DISABLE_JIT:
    _carray: Any = numba.carray

    @jit_part
    def stream_of(pointer: Any) -> Any:
        """Return a draw function's stream as an array that `uniform` and its like take."""
        return _carray(pointer, (STREAM_WORDS,))
