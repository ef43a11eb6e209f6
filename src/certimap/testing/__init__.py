"""Tests of posteriors and solvers of one's own: small models here, and the cases, which lie in `certimap-lab`.

Their names stand in `__init__.pyi` alone.
"""

from __future__ import annotations

from typing import Any

from certimap.core.named import lazily
from certimap.errors import MissingDependency

_PLACES, _loaded, __dir__ = lazily(__name__)
__all__ = list(_PLACES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    try:
        return _loaded(name)
    except ModuleNotFoundError:
        told = "is in the package certimap-lab; in a clone of certimap, pip install -e lab"
        raise MissingDependency(f"certimap.testing.{name} {told}") from None
