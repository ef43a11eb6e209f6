"""Labels of states in JSON."""

from __future__ import annotations

from typing import Any

from certimap.core.domain import Label
from certimap.core.untyped import is_list, is_tuple, plain_scalar
from certimap.errors import ModelError


def encoded_label(label: Any, variable: str) -> Any:
    """Return a label as a JSON value; only tuples become lists.

    Raises ModelError for a label that JSON cannot hold.
    """
    value = plain_scalar(label)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if is_tuple(value):
        return [encoded_label(part, variable) for part in value]
    raise ModelError(
        f"the state {label!r} of variable {variable!r} is a {type(value).__name__}; text, numbers, booleans "
        "and tuples of these can be written"
    )


def decoded_label(value: Any) -> Label:
    """Invert `encoded_label`."""
    return tuple(decoded_label(part) for part in value) if is_list(value) else value
