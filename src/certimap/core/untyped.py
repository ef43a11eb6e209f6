"""Containers that come from outside without types (JSON, evidence, settings), told apart for the type checker.

`isinstance(value, list)` says nothing of the entries; these tests say that they may be anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

import numpy as np


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


def plain_scalar(value: Any) -> Any:
    """Return a NumPy scalar as a Python number or text, and anything else as it is."""
    return value.item() if issubclass(type(value), np.generic) else value
