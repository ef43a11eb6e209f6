"""Learning models from tables: estimators with the habits of scikit-learn, and functions that return models.

Names are loaded when first used. They stand in `__init__.pyi` alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from certimap.core.named import stubbed

_PLACES = stubbed(__name__)
__all__ = [name for name, place in _PLACES.items() if place != __name__]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module 'certimap.learn' has no attribute {name!r}")
    return import_module(f"{place}.{name}") if place == __name__ else getattr(import_module(place), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
