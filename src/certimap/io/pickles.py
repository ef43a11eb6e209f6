"""Pickles read without running them: plain values, arrays of numbers, and instances as their attributes.

Nothing that a pickle names is imported or called. Its instructions are checked first, then names of classes are
replaced by harmless stand-ins.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from certimap.io.circuit_records import is_record

_ALLOWED = frozenset(
    re.findall(
        r"\w+",
        """
        PROTO FRAME STOP MARK POP POP_MARK DUP NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG1 BINFLOAT
        SHORT_BINUNICODE BINUNICODE SHORT_BINBYTES BINBYTES BINBYTES8 BYTEARRAY8 EMPTY_LIST APPEND APPENDS LIST
        EMPTY_TUPLE TUPLE TUPLE1
        TUPLE2 TUPLE3 EMPTY_DICT DICT SETITEM SETITEMS EMPTY_SET ADDITEMS MEMOIZE BINPUT BINGET
        LONG_BINPUT LONG_BINGET GLOBAL STACK_GLOBAL REDUCE NEWOBJ BUILD
        """,
    )
)
_PUTS = ("BINPUT", "LONG_BINPUT")
_DTYPES = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1")
MAX_VALUES = 2**24


class BadPickle(ValueError):
    """A pickle that holds something else, or is cut off."""


class Instance:
    """An instance of any class: the class's name and the attributes.

    Attributes
    ----------
    name
        Of the class, without its module.
    attributes
        By name; none where the pickle has none.
    """

    name: str = ""
    attributes: Mapping[str, Any] = MappingProxyType({})

    def __setstate__(self, state: Any) -> None:
        self.attributes = dict(state) if is_record(state) else {}


@dataclass
class _Type:
    """A dtype of numpy as a pickle describes it."""

    text: str
    order: str = "<"

    def __setstate__(self, state: Any) -> None:
        self.order = str(state[1])


class _Array:
    """An array of numpy as a pickle describes it."""

    values: NDArray[Any] | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, data = state
        self.values = _array(data, dtype, shape, "F" if is_fortran else "C")


def _array(data: Any, dtype: Any, shape: Any, order: str) -> NDArray[Any]:
    if not isinstance(dtype, _Type) or dtype.text not in _DTYPES or not isinstance(data, bytes | bytearray):
        raise BadPickle("an array of anything but numbers")
    values = np.frombuffer(data, np.dtype(dtype.text).newbyteorder(">" if dtype.order == ">" else "<"))
    return values.reshape(tuple(int(k) for k in shape), order="F" if order == "F" else "C")


class _Unpickler(pickle.Unpickler):
    """Replaces every name that a pickle asks for."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        # Functions and classes made for this one name: a pickle may change what it is given.
        def array(*_: Any) -> _Array:
            return _Array()

        def filled(data: Any, dtype: Any, shape: Any, order: Any) -> _Array:
            found = _Array()
            found.values = _array(data, dtype, shape, str(order))
            return found

        def dtype(text: Any, *_: Any) -> _Type:
            return _Type(str(text))

        made = {"_reconstruct": array, "_frombuffer": filled, "dtype": dtype, "ndarray": None}
        if module_name.partition(".")[0] == "numpy" and global_name in made:
            return made[global_name]

        class Named(Instance):
            name = global_name

        return Named


def read_pickle(data: bytes) -> Any:
    """Return what a pickle holds, with arrays of numpy, and `Instance` for instances.

    Raises BadPickle for one that is cut off or needs more than data to be read.
    """
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name not in _ALLOWED:
                raise BadPickle(f"the instruction {opcode.name}")
            if opcode.name in _PUTS and int(argument or 0) > len(data):
                raise BadPickle("a place of its memory beyond its length")
        return _plain(_Unpickler(io.BytesIO(data)).load(), {})
    except BadPickle:
        raise
    except Exception as error:  # unpickling raises whatever the bytes lead to
        raise BadPickle(f"something that is no data ({type(error).__name__})") from None


def _plain(value: Any, done: dict[int, Any]) -> Any:
    """Return lists and dictionaries with the arrays themselves inside; each value is converted once."""
    if isinstance(value, _Array):
        if value.values is None:
            raise BadPickle("an array without content")
        return value.values
    if not is_record(value) and not _is_sequence(value):
        return value
    key = id(value)
    if key not in done:
        if len(done) > MAX_VALUES:
            raise BadPickle(f"more than {MAX_VALUES:,} lists")
        done[key] = None  # for a value that holds itself
        if is_record(value):
            done[key] = {str(k): _plain(v, done) for k, v in value.items()}
        else:
            done[key] = [_plain(item, done) for item in value]
    return done[key]


def _is_sequence(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, list | tuple)


def is_array(value: Any) -> TypeGuard[NDArray[Any]]:
    """Tell whether a value is an array."""
    return isinstance(value, np.ndarray)
