"""Maximum a posteriori inference with a proof of how good the answer is.

Names are loaded when first used, so that importing the package is quick and compiles nothing. They stand in
`__init__.pyi` alone, where type checkers find them too.
"""

from __future__ import annotations

import importlib
from typing import Any

from certimap.core.named import stubbed

__version__ = "0.1.0"


_PLACES = stubbed(__name__)
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
