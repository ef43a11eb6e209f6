"""Compiled kernels on disk: damage, full disks, interrupts, other processes and changed sources."""

from __future__ import annotations

import errno
import importlib.util
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numba
import numpy as np
import pytest

from certimap.kernels import cache, tier
from certimap.kernels.cache import KernelFiles, source_stamp

pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")

KERNEL = """
from certimap.kernels.jit import jit

@jit()
def double(x):
    return x + x
"""


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """Return what imports a kernel afresh, as a new process would: its function, and the warnings on the way."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setattr(tier, "patience", 0.0)  # not as Python
    source = tmp_path / "kernel_of_a_test.py"
    source.write_text(KERNEL)

    def load(argument=2.5):
        cache._warn_once.cache_clear()
        source_stamp.cache_clear()
        spec = importlib.util.spec_from_file_location(source.stem, source)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, source.stem, module)  # code of another process names its module
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            spec.loader.exec_module(module)
            value = module.double(argument)
        assert value == 2 * argument
        load.last = module.double
        return module.double, [str(w.message) for w in caught]

    load.files = lambda: sorted(p for p in (tmp_path / "kept").rglob("*") if p.is_file())
    load.source = source
    return load


def hits(function):
    return sum(function.stats.cache_hits.values())


def test_a_kernel_is_loaded_and_not_compiled_again(kernel):
    assert hits(kernel()[0]) == 0
    function, said = kernel()
    assert (hits(function), said) == (1, [])
    assert len(kernel.files()) == 1
    kernel(np.int64(3))  # another signature has a file of its own
    assert len(kernel.files()) == 2


DAMAGES = {
    "emptied": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "cut inside its head": lambda data: data[:40],
    "one bit flipped": lambda data: data[:900] + bytes([data[900] ^ 1]) + data[901:],
    "a bit of the last byte flipped": lambda data: data[:-1] + bytes([data[-1] ^ 128]),
    "noise behind the stamp": lambda data: data[:32] + os.urandom(500),
    "longer": lambda data: data + b"x",
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_a_warning_and_compiled_anew(kernel, name):
    kernel()
    (file,) = kernel.files()
    file.write_bytes(DAMAGES[name](file.read_bytes()))
    function, said = kernel()
    assert hits(function) == 0
    assert len(said) == 1
    assert "damaged; they are compiled anew" in said[0]
    function, said = kernel()  # and whole again
    assert (hits(function), said) == (1, [])


def test_noise_in_place_of_a_file_is_compiled_anew_without_a_warning(kernel):
    """Its stamp is of no sources that are here now: it is out of date."""
    kernel()
    (file,) = kernel.files()
    file.write_bytes(os.urandom(5000))
    assert hits(kernel()[0]) == 0
    assert hits(kernel()[0]) == 1


def test_a_file_under_the_name_of_another_signature_is_not_believed(kernel):
    kernel()
    (first,) = kernel.files()
    kernel(np.int64(3))
    (second,) = (path for path in kernel.files() if path != first)
    second.write_bytes(first.read_bytes())
    function, said = kernel(np.int64(3))
    assert hits(function) == 0
    assert len(said) == 1


def test_a_changed_source_is_compiled_anew(kernel):
    kernel()
    kernel.source.write_text(KERNEL.replace("x + x", "2 * x"))
    function, said = kernel()
    assert (hits(function), said) == (0, [])
    assert len(kernel.files()) == 1  # the old one is gone


def test_a_stamp_covers_what_a_kernel_inlines(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_PACKAGE", tmp_path)
    (tmp_path / "kernels").mkdir()
    texts = {
        "kernels/a.py": "from certimap.kernels.b import f\nfrom certimap.kernels.jit import jit\n",
        "kernels/jit.py": "from certimap.kernels.tier import Tier\n",
        "kernels/tier.py": "TICK = 1\n",
        "kernels/b.py": "from certimap.kernels import c\nfrom certimap.numbers import SMALL\n",
        "kernels/__init__.py": "",
        "numbers.py": "from certimap.far import AWAY\nSMALL = 1\n",
        "far.py": "AWAY = 1\n",
    }

    def stamp_with(name="", text=""):
        for place, content in {**texts, **({name: text} if name else {})}.items():
            (tmp_path / place).write_text(content)
        source_stamp.cache_clear()
        return source_stamp(tmp_path / "kernels/a.py")

    first = stamp_with()
    assert stamp_with() == first
    assert stamp_with("kernels/b.py", texts["kernels/b.py"] + "X = 1\n") != first
    assert stamp_with("numbers.py", "SMALL = 2\n") != first
    assert stamp_with("far.py", "AWAY = 2\n") == first  # no kernel takes a constant from there
    assert stamp_with("kernels/tier.py", "TICK = 2\n") == first  # nor from what the decorators import
    assert stamp_with("kernels/jit.py", "X = 1\n") != first
    source_stamp.cache_clear()


def test_a_full_disk_is_a_warning_and_leaves_nothing(kernel, monkeypatch):
    def full(self, data):
        with open(self, "wb") as file:
            file.write(data[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        _, said = kernel()
    assert len(said) == 1
    assert "No space left on device" in said[0]
    assert kernel.files() == []


def test_an_interrupt_while_writing_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(self, target):
        raise KeyboardInterrupt

    files = KernelFiles(tmp_path, "stem", b"s" * 32)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            files.save("key", [1, 2])
    assert list(tmp_path.iterdir()) == []
    files.save("key", [1, 2])
    assert files.load("key") == [1, 2]
    assert files.load("other") is None
    files.flush()
    assert list(tmp_path.iterdir()) == []


def test_without_a_folder_to_write_to_kernels_work_all_the_same(kernel, monkeypatch):
    def nowhere(function):
        raise RuntimeError("no locator available")

    monkeypatch.setattr(cache._numba, "FunctionCache", nowhere)
    assert kernel()[1] == []
    assert kernel.files() == []


def test_code_of_another_numba_is_not_executed(kernel, monkeypatch):
    kernel()
    monkeypatch.setattr(cache, "versions", lambda: {"numba": "0.0.1", "llvmlite": "0.0.1", "certimap": "0"})
    assert hits(kernel()[0]) == 0
    monkeypatch.undo()


@pytest.mark.skipif(sys.platform == "win32", reason="files have the rights of their folder")
def test_a_file_that_others_may_write_is_not_executed(kernel):
    kernel()
    (file,) = kernel.files()
    assert file.stat().st_mode & cache.OTHERS_MAY_WRITE == 0
    file.chmod(0o666)
    function, said = kernel()
    assert hits(function) == 0
    assert "may be written by others; they are not executed" in said[0]
    assert hits(kernel()[0]) == 1  # its place was taken by one of our own
    target = file.with_name("aside")
    file.rename(target)
    file.symlink_to(target)
    assert hits(kernel()[0]) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="files have the rights of their folder")
def test_who_is_trusted(tmp_path, monkeypatch):
    source = tmp_path / "source.py"
    source.write_text("")
    source.chmod(0o664)
    monkeypatch.setattr(os, "getuid", lambda: 1000)

    def status(owner, mode, group=50):
        return os.stat_result((mode, 0, 0, 1, owner, group, 0, 0, 0, 0))

    def trusted(given, of=None):
        return KernelFiles(tmp_path, "stem", b"s", of)._is_trusted(given)

    assert trusted(status(1000, 0o644))
    assert trusted(status(0, 0o644))
    assert not trusted(status(1001, 0o644))
    assert not trusted(status(1000, 0o664))
    assert not trusted(status(1000, 0o646))
    own = source.stat()
    assert trusted(status(own.st_uid, 0o664, own.st_gid), source)
    assert not trusted(status(own.st_uid, 0o666, own.st_gid), source)
    assert not trusted(status(own.st_uid, 0o664, own.st_gid + 1), source)


SHIP = """
import importlib.util, sys
from certimap.kernels.tier import compile_first
compile_first()
spec = importlib.util.spec_from_file_location("kernel_of_a_test", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = module
spec.loader.exec_module(module)
module.double(2.5)
"""


@pytest.fixture
def shipped(kernel, tmp_path, monkeypatch):
    """Ship the kernel, compiled by another process for a processor that most have."""
    target = cache.shipped_target()
    if target is None:
        pytest.skip("nothing is shipped for processors of this kind")
    place = {"NUMBA_CACHE_DIR": str(tmp_path / "made"), "NUMBA_CPU_NAME": target.name, "NUMBA_CPU_FEATURES": ""}
    command = [sys.executable, "-c", SHIP, str(kernel.source)]
    subprocess.run(command, env={**os.environ, **place}, check=True, timeout=600)
    (tmp_path / "shipped").mkdir()
    (file,) = (tmp_path / "made").rglob("*.kernel")
    file.rename(tmp_path / "shipped" / file.name)
    monkeypatch.setattr(cache, "SHIPPED", tmp_path / "shipped")
    return tmp_path / "shipped" / file.name


def test_a_shipped_kernel_is_loaded_and_nothing_compiled(kernel, shipped):
    function, said = kernel()
    assert (hits(function), said) == (1, [])
    assert kernel.files() == []
    (record,) = function._cache.shipped.records()
    assert record.kernel == "kernel_of_a_test.double"
    assert record.target == cache.shipped_target().name
    kernel(np.int64(3))
    assert reasons(kernel) == {"none is shipped for arguments of these types"}


def reasons(kernel):
    found = {record.reason for record in kernel.last._cache.own.records()}
    assert len(kernel.files()) == 1
    return found


def test_why_a_shipped_kernel_was_not_taken(kernel, shipped, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(cache, "shipped_target", lambda: None)
        assert hits(kernel()[0]) == 0
        assert reasons(kernel) == {"shipped kernels do not run on this processor"}
    kernel.last._cache.flush()
    whole = shipped.read_bytes()
    shipped.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    function, said = kernel()
    assert hits(function) == 0
    assert "are damaged" in said[0]
    assert shipped.exists()
    kernel.last._cache.flush()
    shipped.write_bytes(bytes(32) + whole[32:])
    assert hits(kernel()[0]) == 0
    assert reasons(kernel) == {"the source, numba or llvmlite is another than that of the shipped kernel"}
    kernel.last._cache.flush()
    shipped.unlink()
    kernel()
    assert reasons(kernel) == {"no kernels are shipped with this installation"}


def test_a_processor_without_the_features_loads_nothing_shipped(monkeypatch):
    target = cache.Target("x86-64-v3", ("avx2", "fma"))
    for features, expected in (({"avx2": True, "fma": True}, True), ({"avx2": True}, False), ({}, False)):
        monkeypatch.setattr(cache._llvm, "get_host_cpu_features", lambda features=features: features)
        assert target.is_here is expected
    assert cache.Target("generic", ()).is_here


SCRIPT = """
import sys
import numpy as np
from certimap.kernels.hashing import running_sums
from certimap.kernels.tier import compile_first
compile_first()
sums, lost = np.empty(2), np.empty(2)
running_sums(np.log(np.array([0.25, 0.5])), 0.0, 0.0, sums, lost)
assert sums.tolist() == [0.25, 0.75], sums
print(sum(running_sums.stats.cache_hits.values()))
"""


def test_processes_that_compile_at_once_agree(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}

    def start():
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([sys.executable, "-c", SCRIPT], env=environment, **pipes)

    for n, expected in ((2, None), (1, "1\n")):
        running = [start() for _ in range(n)]
        for process in running:
            out, err = process.communicate(timeout=600)
            assert (process.returncode, err) == (0, "")
            assert expected is None or out == expected
    files = [path.suffix for path in tmp_path.rglob("*") if path.is_file()]
    assert files == [".kernel"]
