"""A proof as plain arrays, and the file that holds it."""

from __future__ import annotations

import io
import json
import math
import os
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.checker.models import CheckBudget, Rejected
from certimap.errors import ParseError, WriteError

VERSION = 2
PIECE = 2**20  # bytes unpacked at a time
MAX_DIRECTORY = 2**20  # bytes of the list of arrays in a file
TEXT_COST = 64  # bytes that one character of JSON may become
END = struct.Struct("<4s4H2LH")  # the last record of a zip file


@dataclass(frozen=True, eq=False)
class Proof:
    """The content of a proof file; `docs/proofs.md` describes every entry.

    `meta`: JSON-ready: the claim (answer, kind, epsilon, delta, tolerance), the query, the model's fingerprint,
    and the `method` that covers the space outside the answers.
    `arrays`: the data of the method, by name.
    """

    meta: dict[str, Any]
    arrays: dict[str, NDArray[Any]]

    @property
    def n_bytes(self) -> int:
        """Size of the arrays in bytes."""
        return sum(a.nbytes for a in self.arrays.values())

    def to_bytes(self) -> bytes:
        """Return the content of a proof file."""
        buffer = io.BytesIO()
        header = {"format": "certimap-proof", "version": VERSION, **self.meta}
        np.savez_compressed(buffer, meta=np.array(json.dumps(header)), **self.arrays)  # pyright: ignore[reportArgumentType]
        return buffer.getvalue()

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the proof to a file at `path`, which appears whole or not at all."""
        target = Path(path)
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            part.write_bytes(self.to_bytes())
            part.replace(target)
        except OSError as error:  # the error of a full disk does not name the file
            reason = error.strerror or str(error)
            if isinstance(error, FileNotFoundError):
                reason = f"cannot be written: its folder {os.fspath(target.parent)!r} does not exist"
            raise WriteError(error.errno, reason, os.fspath(path)) from None
        finally:
            part.unlink(missing_ok=True)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Proof:
        """Read a proof from the file at `path`; nothing is unpickled.

        Raises ParseError if the file is no proof, or would unpack to more than 2 GB.
        """
        try:
            return read_within(path, CheckBudget.starting_now())
        except Rejected as reason:
            raise ParseError(str(reason), path) from None

    @classmethod
    def from_bytes(cls, data: bytes, path: str | None = None) -> Proof:
        """Read a proof from `data`, the content of a file that errors name as `path`; raises like `read`."""
        try:
            return _parsed(data, path, CheckBudget.starting_now())
        except Rejected as reason:
            raise ParseError(str(reason), path) from None


def read_within(path: str | os.PathLike[str], budget: CheckBudget) -> Proof:
    """Read a proof file; raises ParseError if it is none, and Rejected if it exceeds the budget."""
    pieces: list[bytes] = []
    try:
        with open(path, "rb") as file:
            while piece := file.read(PIECE):
                pieces.append(piece)
                budget.need(2.0 * PIECE * len(pieces), "the file")
    except (OSError, ValueError) as error:  # a ValueError of a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise ParseError(f"cannot be read ({reason})", path) from None
    return _parsed(b"".join(pieces), os.fspath(path), budget)


def _parsed(data: bytes, path: str | None, budget: CheckBudget) -> Proof:
    try:
        arrays = _unpacked(data, budget)
        meta: dict[str, Any] = dict(json.loads(str(arrays.pop("meta")[()])))
        kind, version = meta.pop("format"), meta.pop("version")
    except Rejected:
        raise
    except Exception as error:  # damage makes zipfile, numpy and json raise a dozen types
        raise ParseError(f"is no proof file, or a damaged one ({error})", path) from None
    if kind == "certimap":
        raise ParseError("is a model, and no proof; expected what result.proof.write() wrote", path)
    if kind != "certimap-proof" or version != VERSION:
        raise ParseError(f"is a proof of the version {version!r}; expected {VERSION}: have it written anew", path)
    return Proof(meta, arrays)


def _unpacked(data: bytes, budget: CheckBudget) -> dict[str, NDArray[Any]]:
    """Unpack the arrays of a file piece by piece, after checking that they fit the budget."""
    end = END.unpack(data[-END.size :])
    if end[0] != b"PK\5\6" or end[7] or data[-END.size - 20 : -END.size - 16] == b"PK\6\7":
        raise ValueError("File is not a zip file as proofs are")
    if end[5] > MAX_DIRECTORY:
        raise ValueError("it lists more arrays than proofs have")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = archive.infolist()
        needed = len(data) + sum(entry.file_size for entry in entries)
        needed += sum(TEXT_COST // 4 * entry.file_size for entry in entries if entry.filename == "meta.npy")
        budget.need(needed, "what the file unpacks to")
        packed = [e for e in entries if e.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)]
        if packed:  # other methods unpack without a bound
            raise Rejected(f"the file packs {packed[0].filename!r} in a way that proofs do not")
        return {entry.filename.removesuffix(".npy"): _array(archive, entry, budget) for entry in entries}


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, budget: CheckBudget) -> NDArray[Any]:
    with archive.open(entry) as stream:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError(f"{entry.filename!r} has a header of another version")
        shape, is_transposed, dtype = np.lib.format.read_array_header_1_0(stream)
        n_bytes = math.prod(shape) * dtype.itemsize
        if dtype.hasobject or min(shape, default=0) < 0 or stream.tell() + n_bytes != entry.file_size:
            raise ValueError(f"{entry.filename!r} is no array of {shape}")
        content, at = bytearray(n_bytes), 0
        while piece := stream.read(PIECE):  # reading the last piece compares the checksum
            budget.look()
            content[at : at + len(piece)] = piece
            at += len(piece)
    if len(content) != n_bytes or at != n_bytes:
        raise ValueError(f"{entry.filename!r} is cut short")
    found = np.frombuffer(content, dtype).reshape(shape, order="F" if is_transposed else "C")
    return found if dtype.isnative else found.astype(dtype.newbyteorder("="))
