"""PyTorch, an optional package: whether it is installed, and its devices."""

from __future__ import annotations

import importlib.util
from functools import cache
from importlib import import_module
from typing import Any

from certimap.errors import MissingDependency, SolverError


def is_installed() -> bool:
    """Whether PyTorch can be imported, found without importing it."""
    return importlib.util.find_spec("torch") is not None


@cache
def torch() -> Any:
    """Return PyTorch; MissingDependency if it is not installed."""
    try:
        return import_module("torch")
    except ImportError:
        raise MissingDependency(
            "circuits are evaluated as tensors by PyTorch, which is not installed; pip install 'certimap[torch]', "
            "or leave device= out"
        ) from None


def device_of(name: str) -> Any:
    """Return the device with a name such as "cpu", "cuda" or "cuda:1".

    Raises MissingDependency without PyTorch, and SolverError for an invalid name or a device that this machine
    lacks.
    """
    try:
        device = torch().device(name)
    except (RuntimeError, TypeError):
        raise SolverError(f"device={name!r} is no device; 'cpu', 'cuda' or 'cuda:N' is expected") from None
    if device.type == "cuda" and not torch().cuda.is_available():
        raise SolverError(f"device={name!r} was asked for, and PyTorch finds no CUDA device; use device='cpu'")
    n_devices = torch().cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= n_devices:
        raise SolverError(f"device={name!r} was asked for, and there are {n_devices} CUDA devices, counted from 0")
    if device.type not in ("cpu", "cuda"):
        raise SolverError(f"device={name!r} is not supported; 'cpu', 'cuda' or 'cuda:N' is expected")
    return device
