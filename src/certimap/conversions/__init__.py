"""Conversions between representations, and the choice of a representation for a query."""

from __future__ import annotations

from certimap.core.named import lazily

_PLACES, __getattr__, __dir__ = lazily(__name__)
__all__ = list(_PLACES)  # pyright: ignore[reportUnsupportedDunderAll]
