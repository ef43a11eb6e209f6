"""Small calls of kernels give the same bits compiled and as Python, on every kind of model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from certimap.cli.kernel_tasks import TASKS

pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")
QUICK = ("small_network", "hidden_markov_model", "wide_range", "gaussian_mixture")
CALLS = 10  # of each kernel
GROUPS = [QUICK, *((name,) for name in TASKS if name not in QUICK)]


@pytest.mark.parametrize("names", [pytest.param(g, marks=() if g is QUICK else pytest.mark.slow) for g in GROUPS])
def test_kernels_as_python(names):
    program = Path(__file__).with_name("kernels_twin.py")
    done = subprocess.run(
        [sys.executable, os.fspath(program), str(CALLS), *names], capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "differs" not in done.stdout, done.stdout
    assert "compared" in done.stdout
