"""Opening, decompressing and replacing files: what every format needs."""

from __future__ import annotations

import gzip
import os
import zlib
from os import PathLike, fspath
from pathlib import Path

from certimap.errors import ParseError

AnyPath = str | PathLike[str]


def read_bytes(path: AnyPath) -> bytes:
    """Return a file's content, decompressed when its name ends in .gz.

    Raises ParseError when it cannot be read or is no gzip file.
    """
    try:
        data = Path(path).read_bytes()
        return gzip.decompress(data) if fspath(path).lower().endswith(".gz") else data
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ParseError(f"is no complete gzip file ({error}); its name ends in .gz", path) from None
    except OSError as error:
        raise ParseError(f"cannot be read: {error.strerror or error}", path) from error


def read_text(path: AnyPath) -> str:
    """Return a file's content as text in UTF-8, with or without a byte order mark."""
    data = read_bytes(path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ParseError(
            f"has the byte {data[error.start]:#04x} that is not UTF-8; UTF-8 is accepted", path, line
        ) from None


def write_bytes(path: AnyPath, data: bytes) -> None:
    """Write a whole file or nothing: the content goes to a neighbour that then takes the name.

    A name that ends in .gz is compressed, without a time stamp, so that equal content gives equal files.
    """
    target = Path(path)
    if target.name.lower().endswith(".gz"):
        data = gzip.compress(data, mtime=0)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: AnyPath, text: str) -> None:
    """Write a whole text file in UTF-8, or nothing."""
    write_bytes(path, text.encode("utf-8"))


def line_of(text: str, position: int) -> int:
    """Return the number, from 1, of the line that a position of a text is in."""
    return text.count("\n", 0, position) + 1
