"""Compiled kernels on disk: never stale, half written or another user's; damaged files are compiled again.

Numba's own cache checks only the kernel's own source file, trusts any content, and numbers its files: two
processes that compile at once may store one signature's code under another's name. Here a file is named by kernel
and signature. It is stamped with the sources of the kernel and of all inlined functions and with the compiler's
versions, and checked before loading.

A wheel may contain kernels in `shipped`, compiled for a common processor (see `Target`): they are loaded if this
machine has compiled none of its own.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import os
import pickle
import platform
import re
import stat
import sys
import threading
import time
import uuid
import warnings
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import certimap
from certimap.core.control import uninterrupted

with uninterrupted():  # numba, imported in part, could not be imported again
    _numba: Any = importlib.import_module("numba.core.caching")
    _llvm: Any = importlib.import_module("llvmlite.binding")
_SIZE = hashlib.sha256().digest_size
_IMPORT = re.compile(rb"^[ \t]*from (certimap[.\w]*) import", re.MULTILINE)
_PACKAGE = Path(__file__).parent.parent
_RUNTIME = ("jit.py", "cache.py")  # what they import has no part in compiled code
SHIPPED = Path(__file__).parent / "shipped"
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class DamagedKernel(Exception):
    """A cache file's content is not as written."""


class ForeignKernel(Exception):
    """A cache file belongs to another user, or another user may write to it."""


@functools.cache
def versions() -> dict[str, str]:
    """Return the software versions on which compiled code depends, by name."""
    made_by = {name: str(importlib.import_module(name).__version__) for name in ("numba", "llvmlite")}
    return made_by | {"certimap": certimap.__version__}


@functools.cache
def source_stamp(path: Path) -> bytes:
    """Return a hash of a source file and of the modules of this package that it imports.

    Imports of modules in `kernels` folders are followed recursively, since kernels are inlined into each other;
    those of the decorators are not.
    Raises OSError if a file cannot be read.
    """
    content = path.read_bytes()
    parts = [content]
    for name in sorted(set(_IMPORT.findall(content))):
        module = _PACKAGE.joinpath(*name.decode().split(".")[1:])
        file = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
        follows = file.parent.name == "kernels" and file.name not in _RUNTIME
        parts.append(source_stamp(file) if follows else file.read_bytes())
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()


@dataclass(frozen=True)
class Target:
    """The target processor of shipped kernels."""

    name: str  # its LLVM name
    needs: tuple[str, ...]  # LLVM names of the features required by the code

    @property
    def is_here(self) -> bool:
        """Whether this processor can run code for the target."""
        features: dict[str, bool] = _llvm.get_host_cpu_features()
        return all(features.get(name, False) for name in self.needs)


_V3 = ("avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sse4.2")  # these imply the rest
_X86, _ARM = Target("x86-64-v3", _V3), Target("generic", ())
TARGETS = {"x86_64": _X86, "AMD64": _X86, "aarch64": _ARM, "arm64": _ARM}


@functools.cache
def shipped_target() -> Target | None:
    """Return the target of kernels shipped for this processor; None if they cannot run on it."""
    target = TARGETS.get(platform.machine())
    try:
        return target if target is not None and target.is_here else None
    except RuntimeError:  # LLVM does not know the processor
        return None


@dataclass(frozen=True)
class Record:
    """A cache file's record about its kernel."""

    kernel: str  # module and name
    signature: str  # the types of its arguments, in numba's notation
    target: str  # the processor for which it was compiled
    reason: str  # the reason for compiling it
    seconds: float  # processor time of its compilation, without the kernels it calls
    versions: dict[str, str]  # see `versions`


class KernelFiles:
    """The files of one kernel: one per signature, each whole or absent.

    `folder`, `stem`: their folder, and the start of their names. `stamp`: hash of the current sources; a file with
    another stamp is out of date. `source`: the kernel's source file: users who may write to it may also write to
    the files.
    """

    def __init__(self, folder: Path, stem: str, stamp: bytes, source: Path | None = None) -> None:
        self.folder = folder
        self._stem, self._source = stem, source
        self._stamp = hashlib.sha256(stamp + repr(sorted(versions().items())).encode()).digest()

    def load(self, key: Any) -> Any:
        """Return the data of a key, None if outdated; raise DamagedKernel, or ForeignKernel of another user's."""
        found = self._content(self.path_of(key))
        if found is None or (found[:_SIZE] != self._stamp and len(found) > 2 * _SIZE):
            return None
        rest = found[2 * _SIZE :]
        if found[_SIZE : 2 * _SIZE] != self._digest(key, rest):
            raise DamagedKernel(self.path_of(key))
        return pickle.loads(rest[rest.index(b"\n") + 1 :])

    def has(self, key: Any) -> bool:
        """Whether a file of the current sources is there; it may be damaged or another user's."""
        try:
            with self.path_of(key).open("rb") as file:
                return file.read(_SIZE) == self._stamp
        except OSError:
            return False

    def save(self, key: Any, data: Any, record: Record | None = None) -> None:
        """Save data under a key, whole or (OSError) not at all, and remove outdated files."""
        head = json.dumps({} if record is None else asdict(record)).encode("ascii")
        rest: bytes = head + b"\n" + _numba.dumps(data)
        path = self.path_of(key)
        part = path.with_name(f"{path.name}.{uuid.uuid4().hex[:16]}.part")
        try:
            part.touch(mode=0o644)
            part.write_bytes(self._stamp + self._digest(key, rest) + rest)
            part.chmod(0o644)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        for old in self.folder.glob(f"{self._stem}.*.kernel"):
            with suppress(OSError), old.open("rb") as file:
                if file.read(_SIZE) != self._stamp:
                    old.unlink()

    def records(self) -> list[Record]:
        """Return the records of all files that are up to date."""
        found: list[Record] = []
        for path in sorted(self.folder.glob(f"{self._stem}.*.kernel")):
            with suppress(OSError, ValueError, TypeError, ForeignKernel):
                content = self._content(path)
                if content is not None and content[:_SIZE] == self._stamp:
                    found.append(Record(**json.loads(content[2 * _SIZE : content.index(b"\n", 2 * _SIZE)])))
        return found

    def is_outdated(self) -> bool:
        """Whether this kernel has files, all of them out of date."""
        return any(self.folder.glob(f"{self._stem}.*.kernel")) and not self.records()

    def flush(self) -> None:
        """Remove all files."""
        for path in self.folder.glob(f"{self._stem}.*.kernel"):
            path.unlink(missing_ok=True)

    def path_of(self, key: Any) -> Path:
        name = hashlib.sha256(repr(key).encode()).hexdigest()[:24]
        return self.folder / f"{self._stem}.{name}.kernel"

    def _content(self, path: Path) -> bytes | None:
        """Return a file's content after checking its owner; None if there is no file."""
        try:
            number = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
        except FileNotFoundError:
            return None
        with open(number, "rb") as file:
            if not self._is_trusted(os.fstat(number)):
                raise ForeignKernel(path)
            return file.read()

    def _is_trusted(self, status: os.stat_result) -> bool:
        """Whether a file is writable only for this user, the administrator, and users who may write the source."""
        if sys.platform == "win32":  # there files inherit their folder's permissions
            return True
        if status.st_uid in (0, os.getuid()) and not status.st_mode & OTHERS_MAY_WRITE:
            return True
        if self._source is None:
            return False
        source = self._source.stat()
        may_write = status.st_mode & OTHERS_MAY_WRITE & ~source.st_mode
        return (status.st_uid, status.st_gid, may_write) == (source.st_uid, source.st_gid, 0)

    def _digest(self, key: Any, rest: bytes) -> bytes:
        return hashlib.sha256(self._stamp + repr(key).encode() + rest).digest()


class KernelCache:
    """Replaces numba's cache; a problem with files warns once. RuntimeError without a writable folder."""

    def __init__(self, function: Any) -> None:
        self._inner: Any = _numba.FunctionCache(function)
        self.cache_path: str = self._inner.cache_path
        self.kernel = f"{function.__module__}.{function.__qualname__}"
        path = Path(function.__code__.co_filename)
        source: Path | None = path
        try:
            stamp = source_stamp(path)
        except OSError:  # a notebook, or a source inside an archive
            stamp, source = repr(self._inner._impl.locator.get_source_stamp()).encode(), None
        stem: str = self._inner._impl.filename_base
        self.own = KernelFiles(Path(self.cache_path), stem, stamp, source)
        self.shipped = KernelFiles(SHIPPED, stem, stamp, source)
        self._started: dict[str, tuple[float, float]] = {}
        self._found: dict[Any, list[tuple[KernelFiles, Any]]] = {}
        caches.append(self)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled code of a signature, or None if it must be compiled."""
        target_context.refresh()
        for files, key in self._places(sig, target_context):
            try:
                data = files.load(key)
                if data is not None:
                    return self._inner._impl.rebuild(target_context, data)
            except ForeignKernel:
                _warn_once(f"compiled kernels in {files.folder} may be written by others; they are not executed")
            except Exception:  # unpickling and linking may raise any error
                _warn_once(f"compiled kernels kept in {files.folder} are damaged; they are compiled anew")
                if files is self.own:
                    with suppress(OSError):
                        files.flush()
        self._started[repr(sig)] = (time.thread_time(), _clock.spent)
        return None

    def has(self, sig: Any, target_context: Any) -> bool:
        """Whether compiled code of a signature seems to be on disk."""
        return any(files.has(key) for files, key in self._places(sig, target_context))

    def _places(self, sig: Any, target_context: Any) -> list[tuple[KernelFiles, Any]]:
        """Return where the code of a signature may lie, and under which key."""
        if sig not in self._found:
            host, target = target_context.codegen().magic_tuple(), shipped_target()
            self._found[sig] = [(self.own, self._key(sig, host))]
            if target is not None:
                self._found[sig].append((self.shipped, self._key(sig, (host[0], target.name, ""))))
        return self._found[sig]

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save the compiled code of a signature if possible."""
        started, spent = self._started.pop(repr(sig), (time.thread_time(), _clock.spent))
        seconds = max(time.thread_time() - started - (_clock.spent - spent), 0.0)
        _clock.spent += seconds
        target: tuple[Any, ...] = data.codegen.magic_tuple()
        record = Record(self.kernel, repr(sig), str(target[1]), self._reason(), seconds, versions())
        try:
            if self._inner._impl.check_cachable(data):
                self._inner._impl.locator.ensure_cache_path()
                self.own.save(self._key(sig, target), self._inner._impl.reduce(data), record)
        except OSError as error:
            folder = f"{self.cache_path} ({error.strerror or error})"
            _warn_once(f"compiled kernels cannot be kept in {folder}; every run compiles them")

    def flush(self) -> None:
        """Remove the kernel's files."""
        self.own.flush()

    def _key(self, sig: Any, target: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the cache key besides sources and versions: kernel, types, processor, bytecode."""
        _, _, hashes = self._inner._index_key(sig, SimpleNamespace(magic_tuple=lambda: target))
        return (self.kernel, repr(sig), target, hashes)

    def _reason(self) -> str:
        """Return the reason why no code could be loaded."""
        if not any(SHIPPED.glob("*.kernel")):
            return "no kernels are shipped with this installation"
        if shipped_target() is None:
            return "shipped kernels do not run on this processor"
        if self.shipped.is_outdated():
            return "the source, numba or llvmlite is another than that of the shipped kernel"
        return "none is shipped for arguments of these types"


class _Clock(threading.local):
    """Seconds spent by this thread on compiling kernels."""

    spent = 0.0


_clock = _Clock()
caches: list[KernelCache] = []  # of all kernels that this process has imported


def keep_on_disk(compiled: Any, function: Any) -> bool:
    """Make a compiled function look for its code on disk; return False without a writable folder."""
    with suppress(RuntimeError):
        compiled._cache = KernelCache(function)
        return True
    return False


@functools.cache
def _warn_once(sentence: str) -> None:
    warnings.warn(sentence, RuntimeWarning, stacklevel=2)
