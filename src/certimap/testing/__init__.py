"""Conformance tests for posteriors and solvers of third parties; their names stand in `__init__.pyi` alone."""

from __future__ import annotations

from certimap.core.named import lazily

_PLACES, __getattr__, __dir__ = lazily(__name__)
__all__ = list(_PLACES)  # pyright: ignore[reportUnsupportedDunderAll]
