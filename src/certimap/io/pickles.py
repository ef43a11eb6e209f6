"""Pickles read without running them: plain values, arrays of numbers, and instances as their attributes.

Nothing named in a pickle is imported or called. Its instructions are checked first; then harmless stand-ins
replace the classes.
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

from certimap.core.arrays import Array
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
    """A pickle with other content, or truncated."""


class Instance:
    """An instance of any class: the class's name and the attributes.

    `name`: name of the class, without its module. `attributes`: attributes by name; may be empty.
    """

    name: str = ""
    attributes: Mapping[str, Any] = MappingProxyType({})

    def __setstate__(self, state: Any) -> None:
        self.attributes = dict(state) if is_record(state) else {}


@dataclass
class _Type:
    """A numpy dtype as described in a pickle."""

    text: str
    order: str = "<"

    def __setstate__(self, state: Any) -> None:
        self.order = str(state[1])


class _Array:
    """A numpy array as described in a pickle."""

    values: Array | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, data = state
        self.values = _array(data, dtype, shape, "F" if is_fortran else "C")


def _array(data: Any, dtype: Any, shape: Any, order: str) -> Array:
    if not isinstance(dtype, _Type) or dtype.text not in _DTYPES or not isinstance(data, bytes | bytearray):
        raise BadPickle("an array of anything but numbers")
    values = np.frombuffer(data, np.dtype(dtype.text).newbyteorder(">" if dtype.order == ">" else "<"))
    return values.reshape(tuple(int(k) for k in shape), order="F" if order == "F" else "C")


class _Unpickler(pickle.Unpickler):
    """Replaces every name in a pickle by a stand-in."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        # Make a new function or class per name: a pickle may modify it.
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

        class _Placeholder(Instance):
            name = global_name

        return _Placeholder


def read_pickle(data: bytes) -> Any:
    """Return the content of a pickle, with numpy arrays, and `Instance` for instances.

    Raises BadPickle for a truncated pickle, or one that needs code to be read.
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
    except Exception as error:  # damaged bytes can raise any error
        raise BadPickle(f"something that is no data ({type(error).__name__})") from None


def _plain(value: Any, done: dict[int, Any]) -> Any:
    """Replace array stand-ins in lists and dictionaries by arrays; each value is converted once."""
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
        done[key] = None  # for a value that contains itself
        if is_record(value):
            done[key] = {str(k): _plain(v, done) for k, v in value.items()}
        else:
            done[key] = [_plain(item, done) for item in value]
    return done[key]


def _is_sequence(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, list | tuple)


def is_array(value: Any) -> TypeGuard[Array]:
    """Whether a value is an array."""
    return isinstance(value, np.ndarray)
