"""What conditioning a model may take."""

from __future__ import annotations

from dataclasses import dataclass, field

from certimap.control import Control

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
    control
        The run that the conversion belongs to: its deadline and its memory.
    """

    max_edges: int = DEFAULT_MAX_EDGES
    workers: int | None = None
    control: Control = field(default_factory=Control)
