"""Benchmark records: one JSON object a line, appended as trials end, safe to stop at any moment."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from certimap.core.arguments import is_dict, is_mapping, is_sequence
from certimap.errors import CertimapError

Record = dict[str, Any]


class BenchError(CertimapError, ValueError):
    """A benchmark run cannot start or resume as asked."""


def read_records(path: str | os.PathLike[str]) -> list[Record]:
    """Return the records of a file, oldest first; a torn last line is left out.

    Raises
    ------
    BenchError
        When a line other than the last is no JSON object; names file and line.
    """
    records, _ = _scan(Path(path))
    return records


def _scan(path: Path) -> tuple[list[Record], int]:
    """Return the whole records and the number of bytes that they fill."""
    if not path.is_file():
        return [], 0
    content = path.read_bytes()
    records: list[Record] = []
    end = 0
    for number, line in enumerate(content.splitlines(keepends=True), start=1):
        is_last = end + len(line) == len(content)
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if is_dict(record) and line.endswith(b"\n"):
            records.append(record)
            end += len(line)
        elif is_last:
            break
        else:
            raise BenchError(f"{path}:{number}: this line is no JSON object; expected one record per line")
    return records, end


class RecordFile:
    """A file of records open for appending; a torn last line of an earlier run is cut off first."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.records, end = _scan(self.path)
        self._file: IO[bytes] = self.path.open("ab")
        self._file.truncate(end)

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record and flush it to the system; an OSError names the file."""
        plain: Record = to_plain(record)
        line = json.dumps(plain, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None
        self.records.append(plain)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> RecordFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def to_plain(value: Any) -> Any:
    """Turn NumPy scalars and arrays, tuples and infinite numbers into what JSON accepts (inf becomes None)."""
    if is_mapping(value):
        return {str(k): to_plain(v) for k, v in value.items()}
    if is_sequence(value):
        return [to_plain(v) for v in value]
    if hasattr(value, "tolist"):
        return to_plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file so that it is either whole or absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(to_plain(value), indent=1) + "\n")
    part.replace(path)
