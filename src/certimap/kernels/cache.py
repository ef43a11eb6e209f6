"""Compiled kernels on disk: never stale, never half written, and compiled anew where a file is damaged.

Numba's own cache takes the file of a kernel for all that it depends on, believes whatever it finds, and numbers
its files, so that two processes which compile at once may leave the code of one signature under the name of
another. Here a file is named by its signature, stamped with the sources of the kernel and of all that it inlines,
and checked before it is loaded.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import pickle
import re
import uuid
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

_numba: Any = importlib.import_module("numba.core.caching")
_SIZE = hashlib.sha256().digest_size
_IMPORT = re.compile(rb"^[ \t]*from (certimap[.\w]*) import", re.MULTILINE)
_PACKAGE = Path(__file__).parent.parent


class DamagedKernel(Exception):
    """A file of the cache does not hold what was written there."""


@functools.cache
def source_stamp(path: Path) -> bytes:
    """Return a hash of a source file and of the modules of this package that it imports.

    Those in a `kernels` folder are followed in turn, for kernels are inlined into each other; raises OSError where
    a file cannot be read.
    """
    content = path.read_bytes()
    parts = [content]
    for name in sorted(set(_IMPORT.findall(content))):
        module = _PACKAGE.joinpath(*name.decode().split(".")[1:])
        file = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
        parts.append(source_stamp(file) if file.parent.name == "kernels" else file.read_bytes())
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()


class KernelFiles:
    """The files of one kernel: one per signature, each whole or absent.

    Parameters
    ----------
    folder, stem
        Where they lie, and how their names begin.
    stamp
        What the sources are now; a file with another stamp is out of date.
    """

    def __init__(self, folder: Path, stem: str, stamp: bytes) -> None:
        self._folder, self._stem, self._stamp = folder, stem, stamp

    def load(self, key: Any) -> Any:
        """Return what was saved under a key; None where nothing was, or it is out of date.

        Raises DamagedKernel where the file is not as it was written.
        """
        try:
            data = self.path_of(key).read_bytes()
        except FileNotFoundError:
            return None
        if data[:_SIZE] != self._stamp and len(data) > 2 * _SIZE:
            return None
        payload = data[2 * _SIZE :]
        if data[_SIZE : 2 * _SIZE] != self._digest(key, payload):
            raise DamagedKernel(self.path_of(key))
        return pickle.loads(payload)

    def save(self, key: Any, data: Any) -> None:
        """Keep data under a key, and remove what is out of date.

        Raises OSError where it cannot be written, and leaves nothing behind then.
        """
        payload: bytes = _numba.dumps(data)
        path = self.path_of(key)
        part = path.with_name(f"{path.name}.{uuid.uuid4().hex[:16]}.part")
        try:
            part.write_bytes(self._stamp + self._digest(key, payload) + payload)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        for old in self._folder.glob(f"{self._stem}.*.kernel"):
            with suppress(OSError), old.open("rb") as file:
                if file.read(_SIZE) != self._stamp:
                    old.unlink()

    def flush(self) -> None:
        """Remove all files."""
        for path in self._folder.glob(f"{self._stem}.*.kernel"):
            path.unlink(missing_ok=True)

    def path_of(self, key: Any) -> Path:
        name = hashlib.sha256(repr(key).encode()).hexdigest()[:24]
        return self._folder / f"{self._stem}.{name}.kernel"

    def _digest(self, key: Any, payload: bytes) -> bytes:
        return hashlib.sha256(self._stamp + repr(key).encode() + payload).digest()


class KernelCache:
    """What numba asks for compiled code, in place of a cache of its own.

    Whatever is wrong with the files is a warning, once in a process, and costs a compilation.

    Raises
    ------
    RuntimeError
        When there is no folder that could be written to.
    """

    def __init__(self, function: Any) -> None:
        self._inner: Any = _numba.FunctionCache(function)
        self.cache_path: str = self._inner.cache_path
        try:
            stamp = source_stamp(Path(function.__code__.co_filename))
        except OSError:  # a notebook, or a source inside an archive
            stamp = hashlib.sha256(repr(self._inner._impl.locator.get_source_stamp()).encode()).digest()
        self._files = KernelFiles(Path(self.cache_path), self._inner._impl.filename_base, stamp)
        self._inner._cache_file = self._files

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled code of a signature, or None where it has to be compiled."""
        try:
            return self._inner.load_overload(sig, target_context)
        except Exception:  # whatever unpickling and linking may raise
            _warn_once(f"compiled kernels kept in {self.cache_path} are damaged; they are compiled anew")
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the compiled code of a signature, where that is possible."""
        try:
            self._inner.save_overload(sig, data)
        except OSError as error:
            _warn_once(
                f"compiled kernels cannot be kept in {self.cache_path} ({error.strerror or error}); every run "
                "compiles them"
            )

    def flush(self) -> None:
        """Remove the kernel's files."""
        self._files.flush()


def keep_on_disk(compiled: Any, function: Any) -> None:
    """Let what numba has made of a function look for its code on disk, where there is a folder to write to."""
    with suppress(RuntimeError):
        compiled._cache = KernelCache(function)


@functools.cache
def _warn_once(sentence: str) -> None:
    warnings.warn(sentence, RuntimeWarning, stacklevel=2)
