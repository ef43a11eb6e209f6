"""The Twenty Datasets: binary tables on which density estimators and MAP solvers are compared.

Lowd and Davis (2010), Van Haaren and Davis (2012), Larochelle and Murray (2011). The data is not part of
certimap: `load` reads it from a folder with the files of the public collection, plain or gzipped.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from certimap.core.arrays import Array, Ints16
from certimap.core.domain import Domain
from certimap.errors import DataError, ParseError
from certimap.io.files import read_bytes

SPLITS = ("train", "valid", "test")
VARIABLE = "CERTIMAP_DATA"
COLLECTION = "https://github.com/UCLA-StarAI/Density-Estimation-Datasets"


class Sizes(NamedTuple):
    """The published dimensions of a dataset."""

    n_variables: int
    n_train: int
    n_valid: int
    n_test: int


_TWENTY = {
    "accidents": Sizes(111, 12758, 1700, 2551),
    "adult": Sizes(123, 5000, 1414, 26147),
    "baudio": Sizes(100, 15000, 2000, 3000),
    "bnetflix": Sizes(100, 15000, 2000, 3000),
    "book": Sizes(500, 8700, 1159, 1739),
    "connect4": Sizes(126, 16000, 4000, 47557),
    "dna": Sizes(180, 1600, 400, 1186),
    "jester": Sizes(100, 9000, 1000, 4116),
    "kdd": Sizes(64, 180092, 19907, 34955),
    "kosarek": Sizes(190, 33375, 4450, 6675),
    "msnbc": Sizes(17, 291326, 38843, 58265),
    "msweb": Sizes(294, 29441, 3270, 5000),
    "mushrooms": Sizes(112, 2000, 500, 5624),
    "nips": Sizes(500, 400, 100, 1240),
    "nltcs": Sizes(16, 16181, 2157, 3236),
    "ocr_letters": Sizes(128, 32152, 10000, 10000),
    "plants": Sizes(69, 17412, 2321, 3482),
    "pumsb_star": Sizes(163, 12262, 1635, 2452),
    "tmovie": Sizes(500, 4524, 1002, 591),
    "tretail": Sizes(135, 22041, 2938, 4408),
}


class StandInWarning(UserWarning):
    """A split of a dataset is absent, and another split replaces it."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """A dataset with its three splits.

    - `name`: its name in the collection.
    - `domain`: the variables "0", "1", ...; in the twenty each has the states 0 and 1.
    - `train`, `valid`, `test`: int16, shape (n_rows, n_variables): state positions, equal to the labels.
      Read-only.
    - `sources`: for each split, the split whose file was read: `{"train": "test", ...}` where test rows replace
      absent training rows.
    """

    name: str
    domain: Domain
    train: Ints16
    valid: Ints16
    test: Ints16
    sources: dict[str, str]

    @property
    def validation(self) -> Ints16 | None:
        """The validation rows, or None where they are the training rows."""
        return None if self.sources["valid"] == self.sources["train"] else self.valid

    @property
    def note(self) -> str:
        """One sentence on the splits that replace absent ones; empty when none is absent."""
        swaps = [f"{used} stands in for {split}" for split, used in self.sources.items() if used != split]
        return f"{self.name}: {', '.join(swaps)} (file absent)" if swaps else ""

    def __repr__(self) -> str:
        sizes = ", ".join(f"{s} {len(getattr(self, s))}" for s in SPLITS)
        note = f"; {self.note}" if self.note else ""
        return f"Dataset({self.name!r}, {len(self.domain)} variables, {sizes}{note})"


def names() -> dict[str, Sizes]:
    """Return the names of the twenty datasets with their published dimensions, sorted by name."""
    return dict(_TWENTY)


def load(name: str, data_dir: str | os.PathLike[str] | None = None) -> Dataset:
    """Read a dataset from `NAME.{train,valid,test}.data`, or from gzipped files with `.gz` appended.

    - `name`: one of `names()`, or the NAME of any files in the folder that follow this pattern.
    - `data_dir`: the folder; by default the environment variable CERTIMAP_DATA.

    Another split replaces an absent file (for train the largest one present, for test valid, for valid test);
    `Dataset.sources` names it, and a `StandInWarning` is given. Files are read once and kept in memory as long as
    they do not change. Raises DataError when there is no folder, or none of the files, and ParseError, which names
    file and line, when a file is not a table of comma-separated integers.
    """
    folder = _folder(name, data_dir)
    found = ((split, folder / f"{name}.{split}.data{end}") for split in SPLITS for end in (".gz", ""))
    files = {split: path for split, path in found if path.is_file()}  # the plain one, if there are both
    if not files:
        known = "" if name in _TWENTY else f" (and {name!r} is none of the twenty: {', '.join(_TWENTY)})"
        raise DataError(
            f"no file {name}.train.data, .valid.data or .test.data, with or without .gz, is in {folder}{known}; "
            f"the public collection is {COLLECTION}"
        )
    present = {split: _read(str(path), path.stat().st_mtime_ns) for split, path in files.items()}
    dataset = _assemble(name, present)
    if dataset.note:
        warnings.warn(dataset.note, StandInWarning, stacklevel=2)
    return dataset


def read_table(path: str | os.PathLike[str]) -> Ints16:
    """Read one file of rows of nonnegative integers separated by commas, gzipped or not.

    Returns an int16 array of shape (n_rows, n_variables); raises ParseError naming file and line.
    """
    return _parse(read_bytes(path), str(path))


def _folder(name: str, data_dir: str | os.PathLike[str] | None) -> Path:
    chosen = data_dir if data_dir is not None else os.environ.get(VARIABLE)
    if not chosen:
        raise DataError(
            f"no folder was named to read {name!r} from; pass data_dir or set {VARIABLE} to a folder with "
            f"files like {name}.train.data, from the public collection {COLLECTION}"
        )
    folder = Path(chosen)
    if not folder.is_dir():
        raise DataError(f"{str(folder)!r} is no folder; the public collection of datasets is {COLLECTION}")
    return folder


def _assemble(name: str, present: dict[str, Ints16]) -> Dataset:
    largest = max(present, key=lambda split: len(present[split]))
    other = {"train": largest, "valid": "test", "test": "valid"}
    sources = {s: next(x for x in (s, other[s], largest) if x in present) for s in SPLITS}
    widths = {split: rows.shape[1] for split, rows in present.items()}
    if len(set(widths.values())) != 1:
        raise DataError(f"the splits of {name!r} have different numbers of columns: {widths}")
    highest = np.max([rows.max(axis=0) for rows in present.values()], axis=0).tolist()
    domain = Domain.of_sizes(max(2, top + 1) for top in highest)
    train, valid, test = (present[sources[split]] for split in SPLITS)
    return Dataset(name, domain, train, valid, test, sources)


@lru_cache(maxsize=64)
def _read(path: str, _modified: int) -> Ints16:
    rows = _parse(read_bytes(path), path)
    rows.setflags(write=False)
    return rows


def _parse(content: bytes, path: str) -> Ints16:
    """Turn text into rows: one-digit tables by arithmetic on the bytes, others line by line."""
    text = content.replace(b"\r", b"").replace(b" ", b"").strip(b"\n") + b"\n"
    width = text.index(b"\n") + 1
    raw: Array = np.frombuffer(text, np.uint8)
    if width > 1 and width % 2 == 0 and len(raw) % width == 0:
        grid = raw.reshape(-1, width)
        digits, separators = grid[:, 0::2], grid[:, 1::2]
        commas = np.all(separators[:, :-1] == ord(","))
        if commas and np.all(separators[:, -1] == ord("\n")) and np.all((digits >= 48) & (digits <= 57)):
            return (digits - np.uint8(48)).astype(np.int16)
    return _parse_lines(text, path)


def _parse_lines(text: bytes, path: str) -> Ints16:
    rows: list[Ints16] = []
    for number, line in enumerate(text.split(b"\n")[:-1], start=1):
        fields = line.split(b",")
        wrong = next((f for f in fields if not (f.isdigit() and int(f) < 32767)), None)
        if wrong is not None:
            shown = wrong.decode("utf-8", "replace")
            raise ParseError(f"{shown!r} is no state; expected integers from 0 to 32766", path, number)
        if rows and len(fields) != len(rows[0]):
            raise ParseError(
                f"this row has {len(fields)} values and the first one {len(rows[0])}; all must agree", path, number
            )
        rows.append(np.array([int(f) for f in fields], np.int16))
    return np.stack(rows)
