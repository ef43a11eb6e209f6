"""Opening, decompressing, decoding and replacing files, for every format."""

from __future__ import annotations

import bisect
import errno
import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Generator
from contextlib import contextmanager, suppress
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from certimap.core.arguments import shown
from certimap.errors import CertimapError, ModelError, ParseError, WriteError, did_you_mean

AnyPath = str | PathLike[str]

# suffixes of data files, never of models
TABLES = ("csv", "tsv", "xlsx", "xls", "parquet", "feather", "arff", "cas", "dat")

FREE_BYTES = 2**24  # unpacked size that is always accepted
MAX_RATIO = 100  # limit on the ratio beyond that; numbers as text compress to about a tenth
_CHUNK = 2**20
_ENCODINGS = "such as 'latin-1', 'cp1252' or 'utf-16'"
_MARKS = (
    (b"\xff\xfe\0\0", "utf-32"),
    (b"\0\0\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)


def is_packed(path: AnyPath) -> bool:
    """Whether a file's name ends in .gz."""
    return fspath(path).lower().endswith(".gz")


def suffix_of(path: AnyPath) -> str:
    """Return a path's suffix before any .gz, in lower case and without the dot; "" without one."""
    name = Path(fspath(path)).name.lower().removesuffix(".gz")
    return Path(name).suffix.removeprefix(".")


def beside(path: AnyPath, suffix: str, is_there: bool = True) -> Path:
    """Return a path with another suffix, packed or not as it is, or as the file beside it that `is_there`."""
    name = fspath(path)
    stem = Path(name[:-3] if is_packed(path) else name)
    plain, packed = stem.with_suffix(suffix), stem.with_suffix(f"{suffix}.gz")
    own, other = (packed, plain) if is_packed(path) else (plain, packed)
    return other if is_there and other.is_file() and not own.is_file() else own


def read_bytes(path: AnyPath) -> bytes:
    """Return a file's content, decompressed when its name ends in .gz.

    Raises ParseError for a file that cannot be read, is not a gzip file despite its name, or unpacks to more than
    16 MiB and a hundred times its size (a decompression bomb).
    """
    try:
        data = Path(path).read_bytes()
        return _unpacked(path, data) if is_packed(path) else data
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ParseError(f"is no complete gzip file ({error}); its name ends in .gz", path) from None
    except OSError as error:
        raise ParseError(f"cannot be read: {error.strerror or error}{_neighbours(path, error)}", path) from error
    except ValueError as error:  # a NUL in the name
        raise ParseError(f"cannot be read: {error}", path) from None


def _unpacked(path: AnyPath, data: bytes) -> bytes:
    limit = max(FREE_BYTES, MAX_RATIO * len(data))
    parts: list[bytes] = []
    n_bytes = 0
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        while part := file.read(_CHUNK):
            parts.append(part)
            n_bytes += len(part)
            if n_bytes > limit:
                text = f"unpacks to more than {limit:,} bytes, over {MAX_RATIO} times its size"
                raise ParseError(f"{text}; unpack it first to read it all the same", path)
    return b"".join(parts)


def _neighbours(path: AnyPath, error: OSError) -> str:
    """Suggest files with similar names if the file does not exist."""
    if not isinstance(error, FileNotFoundError):
        return ""
    try:
        names = sorted(entry.name for entry in Path(path).parent.iterdir())
    except OSError:
        return ""
    return did_you_mean(Path(path).name, names)


def read_text(path: AnyPath, encoding: str | None = None) -> str:
    """Return a file's content as text, decompressed if its name ends in .gz.

    `encoding` is a name known to Python; None means UTF-8, or the encoding of a byte order mark. ParseError for a
    file in another encoding (the message explains how to give one), and for an unknown encoding.
    """
    data = read_bytes(path)
    marked = next((name for mark, name in _MARKS if data.startswith(mark)), None)
    if encoding is None and marked is None and data[:4096].count(0) * 4 >= len(data[:4096]) > 0:
        told = "holds NUL characters as UTF-16 does; encoding= (--encoding in the shell) names its encoding"
        raise ParseError(f"{told}, such as 'utf-16-le'", path)
    if not isinstance(encoding, str | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ParseError(f"encoding is {shown(encoding)}; expected a name {_ENCODINGS}", path)
    chosen = encoding or marked or "utf-8"
    if chosen.lower().replace("_", "-") in ("utf-8", "utf8"):
        chosen = "utf-8-sig"
    try:
        return data.decode(chosen)
    except UnicodeError as error:
        start = error.start if isinstance(error, UnicodeDecodeError) else 0
        name = "UTF-8" if chosen == "utf-8-sig" else chosen
        flaw = f"has the byte {data[start]:#04x} that is not {name}" if data[start:] else f"is not {name}"
        line = data[:start].count(b"\n") + 1
        told = f"{flaw}; encoding= (--encoding in the shell) names another encoding, {_ENCODINGS}"
        raise ParseError(told, path, line) from None
    except (LookupError, ValueError):  # a ValueError for a NUL in the name
        raise ParseError(f"{encoding!r} is no text encoding; expected a name {_ENCODINGS}", path) from None


def parsed_json(path: AnyPath, encoding: str | None = None) -> Any:
    """Return the content of a JSON file; ParseError for any other."""
    text = read_text(path, encoding)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ParseError(f"is no JSON ({error.msg})", path, error.lineno) from None
    except RecursionError:
        raise ParseError("nests too deeply; expected an object, or a list of objects", path) from None
    except ValueError as error:  # a number with thousands of digits
        raise ParseError(f"holds a number that is too long ({error})", path) from None


@contextmanager
def parsing(path: AnyPath, line: int | None = None) -> Generator[None]:
    """Turn errors of models and queries into ParseErrors of a file, if they are none."""
    try:
        yield
    except ParseError:
        raise
    except CertimapError as error:
        raise ParseError(str(error), path, line) from None


@contextmanager
def replacing(path: AnyPath) -> Generator[io.BufferedIOBase]:
    """Write a whole file or nothing: content goes to a temporary file beside it, renamed at the end.

    Equal content gives equal files: a .gz has no time stamp. Raises WriteError, with the file's name.
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            if is_packed(target):
                with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
                    yield packed
            else:
                yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    except OSError as error:  # give the target's name, not none or the temporary file's
        raise cannot_write(path, error) from None
    except ValueError as error:  # a NUL in the name
        raise cannot_write(path, OSError(errno.EINVAL, str(error))) from None
    finally:
        with suppress(OSError, ValueError):
            part.unlink(missing_ok=True)


def cannot_write(path: AnyPath, error: OSError) -> WriteError:
    """Return the error for a file that cannot be written, with the reason."""
    reason = error.strerror or str(error)
    folder = Path(path).parent
    if isinstance(error, FileNotFoundError) and not folder.is_dir():
        reason = f"cannot be written: its folder {fspath(folder)!r} does not exist"
    return WriteError(error.errno, reason, fspath(path))


def write_bytes(path: AnyPath, data: bytes) -> None:
    """Write a whole file or nothing, as `replacing` does."""
    with replacing(path) as file:
        file.write(data)


def write_text(path: AnyPath, text: str) -> None:
    """Write a whole text file in UTF-8, or nothing; ModelError for text that UTF-8 cannot encode."""
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        told = f"{fspath(path)}: a name holds {error.object[error.start]!r}, which UTF-8 cannot hold"
        raise ModelError(told) from None
    write_bytes(path, data)


def cut(word: str) -> str:
    """Show a word from a file, shortened."""
    return repr(word if len(word) <= 40 else f"{word[:40]}...")


def after(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Return the position behind a pattern that begins at a position, or the position itself."""
    found = pattern.match(text, at)
    return found.end() if found else at


def line_of(text: str, position: int) -> int:
    """Return the line number, from 1, of a position in a text."""
    return text.count("\n", 0, position) + 1


class LineCounter:
    """Line numbers of many positions in a text; its lines are found at the first call."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._ends: list[int] | None = None

    def __call__(self, position: int) -> int:
        """Return the line number, from 1, of a position."""
        if self._ends is None:
            self._ends = [found.start() for found in re.finditer("\n", self._text)]
        return bisect.bisect_left(self._ends, position) + 1
