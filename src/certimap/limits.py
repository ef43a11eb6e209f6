"""What conditioning a model may take."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_MAX_EDGES = 20_000_000


@dataclass(frozen=True)
class Limits:
    """Bounds on a conversion.

    Attributes
    ----------
    max_edges
        The largest circuit, in edges, and the largest table of a tree, in entries, that may be built.
    workers
        Threads of the posterior; None takes one per processor.
    """

    max_edges: int = DEFAULT_MAX_EDGES
    workers: int | None = None
