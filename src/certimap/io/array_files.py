"""Named arrays in one file: a zip archive of stored numpy `.npy` files, memory-mapped if large."""

from __future__ import annotations

import io
import math
import mmap
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from certimap.core.arrays import Array, Floats
from certimap.errors import ModelError, ParseError
from certimap.io.files import FREE_BYTES, MAX_RATIO, AnyPath, is_packed, read_bytes, replacing, write_bytes

MAPPED_BYTES = 2**24  # files of this size and more are mapped
ALIGNMENT = 64  # where the numbers of an array begin
_LAST_CHARACTER = 0x10FFFF
_MOST_HEADER = 2**16 + 16  # bytes before the numbers of an array
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")  # before each member; its name and extra fields follow
_ZIP64_FIELD = 20  # bytes that zipfile adds to the extra fields
_PADDING_FIELD = 0xD935  # the extra field that zipalign fills up with


def write_arrays(arrays: Mapping[str, Array], path: AnyPath) -> None:
    """Write the whole file or nothing; equal arrays give equal files."""
    if is_packed(path):
        buffer = io.BytesIO()
        _write_archive(buffer, arrays)
        write_bytes(path, buffer.getvalue())
        return
    with replacing(path) as file:
        _write_archive(file, arrays)


def _write_archive(file: Any, arrays: Mapping[str, Array]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, values in arrays.items():
            in_rows = np.asarray(values, order="C")
            header = io.BytesIO()
            np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(in_rows))
            entry = zipfile.ZipInfo(f"{name}.npy")
            before = file.tell() + _LOCAL_HEADER.size + len(entry.filename.encode()) + _ZIP64_FIELD
            n_padding = -(before + 4) % ALIGNMENT  # numpy pads its own header to ALIGNMENT
            entry.extra = struct.pack("<HH", _PADDING_FIELD, n_padding) + bytes(n_padding)
            with archive.open(entry, "w", force_zip64=True) as member:
                member.write(header.getvalue())
                if in_rows.size:
                    member.write(in_rows.reshape(-1).view(np.uint8).data)


def read_arrays(path: AnyPath) -> dict[str, Array]:
    """Return the arrays of a file, read-only; arrays of large files are mapped, not copied.

    ParseError for damage, found by checksums and by checks of every size before allocation, and for arrays of
    anything but numbers and text.
    """
    data = _content(path)
    limit = max(FREE_BYTES, MAX_RATIO * len(data))
    file: Any = io.BytesIO(data) if isinstance(data, bytes) else data
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            if sum(entry.file_size for entry in entries) > limit:
                raise ParseError(f"unpacks to more than {limit:,} bytes, over {MAX_RATIO} times its size", path)
            if any(entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for entry in entries):
                raise ParseError("is compressed by another method than deflate, which is what is accepted", path)
            return {
                entry.filename.removesuffix(".npy"): _array(_member(archive, entry, data)) for entry in entries
            }
    except ParseError:
        raise
    except Exception as error:  # damage makes zipfile and numpy's header parser raise a dozen types
        raise ParseError(f"is no certimap file, or a damaged one ({error})", path) from None


class _Mapped(mmap.mmap):
    """Mapped bytes as a file for zipfile, which asks files before Python 3.13 whether they can seek."""

    def seekable(self) -> bool:
        return True


def _content(path: AnyPath) -> bytes | _Mapped:
    """Return a file's content, mapped if it is large and not gzipped, else read."""
    if not is_packed(path):
        with suppress(OSError, ValueError), Path(path).open("rb") as file:  # read_bytes reports the error
            if os.fstat(file.fileno()).st_size >= MAPPED_BYTES:
                return _Mapped(file.fileno(), 0, access=mmap.ACCESS_READ)
    return read_bytes(path)


def _member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, data: bytes | _Mapped) -> bytes | memoryview:
    """Return a member's content after comparing its checksum: a view, if it is stored in a mapped file."""
    if isinstance(data, bytes) or entry.compress_type != zipfile.ZIP_STORED:
        return archive.read(entry)
    archive.open(entry).close()  # compares the header before the member with the archive's directory
    *_, name_length, extra_length = _LOCAL_HEADER.unpack_from(data, entry.header_offset)
    start = entry.header_offset + _LOCAL_HEADER.size + name_length + extra_length
    view = memoryview(data)[start : start + entry.file_size]
    if len(view) != entry.file_size or zlib.crc32(view) != entry.CRC:
        raise ValueError(f"{entry.filename} does not have its checksum")
    return view


def _array(content: bytes | memoryview) -> Array:
    """Return the array in a `.npy` file; ValueError unless the header fits the bytes that follow."""
    file = io.BytesIO(content[:_MOST_HEADER])
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"an array of the version {version}")
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, in_columns, dtype = read_header(file)
    start = file.tell()
    if dtype.kind not in "biufUS" or not dtype.itemsize or any(size < 0 for size in shape):
        raise ValueError(f"an array of the type {dtype} and the shape {shape}")
    if math.prod(shape) * dtype.itemsize != len(content) - start:
        raise ValueError(f"{len(content) - start} bytes for an array of the shape {shape}")
    if dtype.kind == "U" and np.any(np.frombuffer(content, f"{dtype.str[0]}u4", offset=start) > _LAST_CHARACTER):
        raise ValueError("a text with a character that does not exist")
    values: Array = np.frombuffer(content, dtype, offset=start)
    if not values.flags.aligned:  # from another program's file; compiled code needs alignment
        values = values.copy()
        values.setflags(write=False)
    return values.reshape(shape, order="F" if in_columns else "C")


class ArrayParts:
    """Takes parts of an array one after the other; ModelError where they do not fit."""

    def __init__(self, values: Array) -> None:
        self.values, self.at = values.reshape(-1), 0

    @property
    def left(self) -> int:
        return len(self.values) - self.at

    def integers(self, n: int, below: int) -> list[int]:
        if not 0 <= n <= self.left:
            raise ModelError("is damaged: its arrays do not fit each other")
        taken: list[int] = self.values[self.at : self.at + n].tolist()
        self.at += n
        if any(type(x) is not int or not 0 <= x < below for x in taken):
            raise ModelError(f"is damaged: it names the variables {taken}; expected numbers below {below}")
        return taken

    def numbers(self, shape: Sequence[int]) -> Floats:
        size = math.prod(shape)
        if size > self.left:
            raise ModelError("is damaged: its arrays do not fit each other")
        self.at += size
        return np.asarray(self.values[self.at - size : self.at], np.float64).reshape(shape)
