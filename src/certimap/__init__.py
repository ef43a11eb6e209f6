"""Maximum a posteriori inference with a proof of how good the answer is.

Names are loaded when first used, so that importing the package is quick and compiles nothing. They stand in
`__init__.pyi` alone, where type checkers find them too.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from typing import Any

__version__ = "0.1.0"


def _places() -> dict[str, str]:
    """Return the module of every public name; that of a room is the package itself."""
    stub = pkgutil.get_data(__name__, "__init__.pyi")
    assert stub is not None
    lines = re.findall(r"^from (\S+) import (\w+) as \2$", stub.decode("ascii"), re.MULTILINE)
    return {name: module for module, name in lines}


_PLACES = _places()
_OPTIONAL = {"MapImputer"}  # derives from scikit-learn's classes, which `from certimap import *` must not need
_NAMES = {name for name, place in _PLACES.items() if place != __name__} - _OPTIONAL
__all__ = sorted(["__version__", *_NAMES])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module 'certimap' has no attribute {name!r}")
    is_room = place == __name__
    value = (
        importlib.import_module(f"certimap.{name}") if is_room else getattr(importlib.import_module(place), name)
    )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_PLACES})
