"""What a benchmark ran on: recorded beside every run."""

from __future__ import annotations

import os
import platform
import resource
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from certimap import __version__

_PACKAGES = ("numpy", "numba", "scipy", "scikit-learn")


def describe_machine() -> dict[str, str | int | float]:
    """Return processor, cores, memory in GiB, system and versions, ready for JSON."""
    facts: dict[str, str | int | float] = {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "memory_gib": round(_memory_bytes() / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "certimap": __version__,
    }
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            facts[package] = version(package)
    return facts


def machine_line(facts: dict[str, str | int | float]) -> str:
    """Return the facts of `describe_machine` as one line of text."""
    versions = ", ".join(f"{k} {facts[k]}" for k in ("certimap", "python", *_PACKAGES) if k in facts)
    return (
        f"{facts.get('processor', '?')}, {facts.get('cores', '?')} cores, {facts.get('memory_gib', '?')} GiB, "
        f"{facts.get('system', '?')}; {versions}"
    )


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _memory_bytes() -> int:
    with suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 0


def reset_peak_memory() -> None:
    """Start a new measurement of this process's peak memory, where the system can (Linux)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_mib() -> float:
    """Return the peak resident memory of this process since the last reset (else since its start), in MiB."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024
