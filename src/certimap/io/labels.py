"""Labels of states as JSON holds them."""

from __future__ import annotations

from typing import Any

from certimap.core.domain import Label
from certimap.core.untyped import is_list, is_tuple, plain_scalar
from certimap.errors import ModelError


def encoded_label(label: Any, variable: str) -> Any:
    """Return what JSON holds of a label; a tuple becomes a list, which nothing else does.

    Raises ModelError for a label that it cannot hold.
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
    """Return the label that `encoded_label` made a value of."""
    return tuple(decoded_label(part) for part in value) if is_list(value) else value
