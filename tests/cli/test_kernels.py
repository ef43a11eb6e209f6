"""`certimap kernels`: what is compiled, why, and the rest beforehand."""

from __future__ import annotations

import os
import subprocess
import sys

import numba
import pytest

from certimap.cli import kernel_tasks
from certimap.cli.main import main
from certimap.kernels.cache import Record, versions

pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")


def record(kernel, reason, seconds):
    return Record(f"certimap.{kernel}", "(float64,)", "znver5", reason, seconds, versions())


def test_what_is_there_and_why(capsys, monkeypatch):
    own = [record("a.f", "they were changed", 1.25), record("a.g", "they were changed", 0.5)]
    there = [record("a.h", "", 2.0)]
    monkeypatch.setattr(kernel_tasks, "records", lambda is_shipped: iter(there if is_shipped else own))
    assert main(["kernels"]) == 0
    said = capsys.readouterr().out
    assert f"numba {numba.__version__}" in said
    assert "2 kernels, in 1.8 s of processor time" in said
    assert "1 kernels for" in said or "1 kernels not for this processor" in said
    assert "2 because they were changed" in said
    assert "a.f" not in said
    assert main(["kernels", "--long"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[-3:]] == [["a.h", "shipped"], ["a.f", "here"], ["a.g", "here"]]


def test_kernels_are_compiled_beforehand(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(kernel_tasks, "TASKS", {"small_network": None})
    monkeypatch.setattr(kernel_tasks, "run", os.path.getsize)  # any function that workers can import
    monkeypatch.setattr(kernel_tasks, "records", lambda is_shipped: iter(()))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small_network").write_text("x" * 3)
    assert main(["kernels", "--all", "--workers", "1"]) == 0
    said = capsys.readouterr().out
    assert "small network: 3.0 s" in said
    assert "3.0 s of processor time" in said
    assert "on 1 processes" in said


PROGRAM = """
from certimap.cli import kernel_tasks
from certimap.kernels import tier
from certimap.kernels.hashing import running_sums
import numpy as np
tier.compile_first()
running_sums(np.zeros(1), 0.0, 0.0, np.empty(1), np.empty(1))
for record in kernel_tasks.records(False):
    print(record.kernel, record.seconds > 0.0, record.reason)
"""


def test_records_are_read_from_all_kernels_of_the_package(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True, timeout=600
    )
    (line,) = done.stdout.splitlines()
    assert line.startswith("certimap.kernels.hashing.running_sums True ")


@pytest.mark.parametrize("name", ["network_of_more", "leaves_of_counts"])
def test_tasks_run(name):
    assert kernel_tasks.run(name) >= 0.0
