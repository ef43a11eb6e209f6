"""A proof as plain arrays, and the file that holds it."""

from __future__ import annotations

import io
import json
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.errors import ParseError, WriteError

VERSION = 2
MAX_UNPACKED = 2**31  # bytes; no proof is larger


@dataclass(frozen=True, eq=False)
class Proof:
    """What a proof file holds; `docs/proofs.md` describes every entry.

    Attributes
    ----------
    meta
        JSON-ready: the claim (answer, kind, epsilon, delta, tolerance), the query, the model's fingerprint, and
        the `method` that covers what is not the answer.
    arrays
        What the method needs, by name.
    """

    meta: dict[str, Any]
    arrays: dict[str, NDArray[Any]]

    @property
    def n_bytes(self) -> int:
        """How large the arrays are."""
        return sum(a.nbytes for a in self.arrays.values())

    def to_bytes(self) -> bytes:
        """Return the content of a proof file.

        Returns
        -------
        bytes
        """
        buffer = io.BytesIO()
        header = {"format": "certimap-proof", "version": VERSION, **self.meta}
        np.savez_compressed(buffer, meta=np.array(json.dumps(header)), **self.arrays)  # pyright: ignore[reportArgumentType]
        return buffer.getvalue()

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the proof; the file appears whole or not at all.

        Parameters
        ----------
        path
            Where to.
        """
        target = Path(path)
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            part.write_bytes(self.to_bytes())
            part.replace(target)
        except OSError as error:  # a full disk does not say which file it was
            reason = error.strerror or str(error)
            if isinstance(error, FileNotFoundError):
                reason = f"its folder {os.fspath(target.parent)!r} does not exist"
            raise WriteError(error.errno, f"cannot be written: {reason}", os.fspath(path)) from None
        finally:
            part.unlink(missing_ok=True)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Proof:
        """Read a proof file; nothing is unpickled.

        Parameters
        ----------
        path
            The file.

        Returns
        -------
        Proof

        Raises
        ------
        ParseError
            For anything else.
        """
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise ParseError(f"cannot be read ({error.strerror})", path) from None
        return cls.from_bytes(data, os.fspath(path))

    @classmethod
    def from_bytes(cls, data: bytes, path: str | None = None) -> Proof:
        """Read the content of a proof file.

        Parameters
        ----------
        data
            The content.
        path
            What errors call it.

        Returns
        -------
        Proof

        Raises
        ------
        ParseError
            For anything else.
        """
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                if sum(entry.file_size for entry in archive.infolist()) > MAX_UNPACKED:
                    raise ParseError(f"unpacks to more than {MAX_UNPACKED:,} bytes, which no proof does", path)
            with np.load(io.BytesIO(data), allow_pickle=False) as stored:
                arrays = {name: np.asarray(stored[name]) for name in stored.files}
            meta: dict[str, Any] = dict(json.loads(str(arrays.pop("meta")[()])))
            kind = meta.pop("format")
            version = meta.pop("version")
        except ParseError:
            raise
        except Exception as error:  # damage makes zipfile, numpy and json raise a dozen types
            raise ParseError(f"is no proof file, or a damaged one ({error})", path) from None
        if kind == "certimap":
            raise ParseError("is a model, and no proof; expected what result.proof.write() wrote", path)
        if kind != "certimap-proof" or version != VERSION:
            text = f"is a proof of the version {version!r}; expected {VERSION}: have it written anew"
            raise ParseError(text, path)
        return cls(meta, arrays)
