"""Type guards for untyped containers from outside (JSON, evidence, settings).

`isinstance(value, list)` leaves the entry type unknown to the type checker; these guards declare it `Any`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any, TypeGuard

import numpy as np

Record = dict[str, Any]  # an object of a JSON file


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Whether the value is a list."""
    return isinstance(value, list)


def is_sequence(value: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    """Whether the value is a list or a tuple."""
    return isinstance(value, list | tuple)


def is_tuple(value: object) -> TypeGuard[tuple[Any, ...]]:
    """Whether the value is a tuple."""
    return isinstance(value, tuple)


def is_set(value: object) -> TypeGuard[set[Any] | frozenset[Any]]:
    """Whether the value is a set, frozen or not."""
    return isinstance(value, set | frozenset)


def is_dict(value: object) -> TypeGuard[dict[Any, Any]]:
    """Whether the value is a dict."""
    return isinstance(value, dict)


def is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    """Whether the value is a mapping."""
    return isinstance(value, Mapping)


def is_path(value: object) -> TypeGuard[str | PathLike[str]]:
    """Whether the value is a text or a path."""
    return isinstance(value, str | PathLike)


def is_iterable(value: object) -> TypeGuard[Iterable[Any]]:
    """Whether the value has entries."""
    return isinstance(value, Iterable)


def is_missing(value: Any) -> bool:
    """Whether a value means 'unobserved': None, NaN, NaT or pandas.NA."""
    if value is None:
        return True
    try:
        return bool(value != value)  # NaN, NaT and pandas.NA (which raises below)
    except (TypeError, ValueError):
        return type(value).__name__ == "NAType"


def plain_scalar(value: Any) -> Any:
    """Convert a NumPy scalar to a Python number or text; return anything else unchanged."""
    return value.item() if issubclass(type(value), np.generic) else value
