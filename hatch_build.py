"""Puts compiled kernels into a wheel, and names what it is for: see `make wheels`."""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = "CERTIMAP_KERNELS"  # of the kernels that go into the wheel; without it the wheel is for every machine
LINUX = "manylinux_2_27"  # as numba's own wheels, which link the kernels


class KernelHook(BuildHookInterface[Any]):
    """Adds the folder that the environment names."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the kernels, and the tag of this Python and machine."""
        folder = os.environ.get(FOLDER)
        if not folder:
            return
        if not any(name.endswith(".kernel") for name in os.listdir(folder)):
            raise FileNotFoundError(f"{FOLDER} is {folder!r}, which holds no kernels; run make wheels")
        python = f"cp{sys.version_info.major}{sys.version_info.minor}"
        machine = f"{LINUX}_{platform.machine()}" if sys.platform == "linux" else sysconfig.get_platform()
        build_data["force_include"][folder] = "certimap/kernels/shipped"
        build_data["pure_python"] = False
        build_data["tag"] = f"{python}-{python}-{machine.replace('-', '_').replace('.', '_')}"
