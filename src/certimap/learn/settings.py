"""Checks of the settings of learners."""

from __future__ import annotations

from typing import Any

import numpy as np

from certimap.errors import DataError


def check_count(name: str, value: Any, least: int) -> None:
    """Raise DataError unless a setting is an integer of at least `least`."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise DataError(f"{name} is {value!r}; expected an integer of at least {least}")
