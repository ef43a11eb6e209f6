"""Maximum a posteriori inference with a proof of how good the answer is.

Names are loaded when first used, so that importing the package is quick and compiles nothing. They stand in
`__init__.pyi` alone, where type checkers find them too.
"""

from __future__ import annotations

from certimap.core.named import lazily

__version__ = "0.2.0"


_PLACES, __getattr__, __dir__ = lazily(__name__)
_OPTIONAL = {"MapImputer"}  # derives from scikit-learn's classes, which `from certimap import *` must not need
_NAMES = {name for name, place in _PLACES.items() if place != __name__} - _OPTIONAL
__all__ = sorted(["__version__", *_NAMES])  # pyright: ignore[reportUnsupportedDunderAll]
