"""Tables in text files: comma-separated values with a header, or bare rows."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from certimap.errors import ParseError

MISSING = frozenset({"", "?", "na", "nan"})
Column = NDArray[np.int64] | NDArray[np.float64] | NDArray[np.object_]


def read_text(path: Path) -> str:
    """Return the text of a file, unpacked when its name ends in .gz."""
    data = path.read_bytes()
    try:
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except (OSError, EOFError) as error:
        raise ParseError(
            f"the file is no gzip archive ({error}); a name ending in .gz must be one", path
        ) from None
    except UnicodeDecodeError:
        raise ParseError("the file is no text in UTF-8, which is what is accepted", path) from None


def has_header(path: Path) -> bool:
    """Tell by the name whether the first row holds names: .data files have none, others do."""
    return ".data" not in path.suffixes


def read_rows(path: Path, header: bool = True) -> tuple[list[str], list[list[str]]]:
    """Return the column names ("0", "1", ... without a header) and the rows, every cell as stripped text.

    Raises ParseError with the line for a row of another length, and for a file without rows.
    """
    reader = csv.reader(io.StringIO(read_text(path)), skipinitialspace=True)
    names: list[str] | None = None
    rows: list[list[str]] = []
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if not any(cells) and len(cells) < 2:
                continue
            if names is None:
                names = cells if header else [str(i) for i in range(len(cells))]
                if header:
                    continue
            if len(cells) != len(names):
                raise ParseError(
                    f"the row has {len(cells)} cells; {len(names)} are accepted, one a column",
                    path,
                    reader.line_num,
                )
            rows.append(cells)
    except csv.Error as error:
        raise ParseError(f"the row is no comma-separated text ({error})", path, reader.line_num) from None
    if names is None or not rows:
        raise ParseError("the table has no rows; at least one is needed", path)
    if len(set(names)) != len(names):
        doubled = next(n for n in names if names.count(n) > 1)
        raise ParseError(f"two columns are named {doubled!r}; names must be distinct", path, 1)
    return names, rows


def read_columns(path: Path, header: bool = True) -> dict[str, Column]:
    """Return a table by column: integers, numbers (missing as NaN), or labels as text (missing as None)."""
    names, rows = read_rows(path, header)
    return {name: _typed([row[k] for row in rows]) for k, name in enumerate(names)}


def _typed(cells: Sequence[str]) -> Column:
    """Read a column as integers, else as numbers, else as text."""
    present = [c for c in cells if c.lower() not in MISSING]
    try:
        if len(present) == len(cells):
            return np.array([int(c) for c in cells], np.int64)
    except ValueError:
        pass
    try:
        if present:
            return np.array([float("nan") if c.lower() in MISSING else float(c) for c in cells])
    except ValueError:
        pass
    labels = np.empty(len(cells), object)
    labels[:] = [None if c.lower() in MISSING else c for c in cells]
    return labels
