"""Learning models from tables: estimators with the habits of scikit-learn, and functions that return models.

Names are loaded when first used. They stand in `__init__.pyi` alone.
"""

from __future__ import annotations

from certimap.core.named import lazily

_PLACES, __getattr__, __dir__ = lazily(__name__)
__all__ = [name for name, place in _PLACES.items() if place != __name__]  # pyright: ignore[reportUnsupportedDunderAll]
