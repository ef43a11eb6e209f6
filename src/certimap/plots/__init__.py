"""Figures of results, models and benchmark runs; drawing needs matplotlib, the extra `plot`.

Each figure has a function that computes its data (without matplotlib) and one that draws it on `ax` (a new figure
if None) and returns the axes. Nothing here opens a window: `ax.figure.savefig(path)` writes the picture.
"""

from __future__ import annotations

from certimap.core.named import lazily

_PLACES, __getattr__, __dir__ = lazily(__name__)
__all__ = list(_PLACES)  # pyright: ignore[reportUnsupportedDunderAll]
