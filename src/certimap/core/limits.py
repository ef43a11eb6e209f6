"""Time and memory limits for conditioning a model."""

from __future__ import annotations

from dataclasses import dataclass, field

from certimap.core.control import Control, shown_bytes

# Peak memory of a conversion, measured on grids of two and three states, rounded up.
BYTES_PER_EDGE = 160  # compiled and conditioned circuits
BYTES_PER_ENTRY = 160  # tables of a tree
DEFAULT_PROOF = 100_000_000  # default size limit of a proof, bytes


@dataclass(frozen=True)
class Limits:
    """Bounds on a conversion.

    Attributes
    ----------
    max_edges
        Largest circuit (edges) and largest table of a tree (entries) to build. None: limited only by the memory of
        `control`.
    workers
        Threads of the posterior; None: one per processor.
    control
        The run that the conversion belongs to: its deadline and its memory.
    device
        PyTorch device on which a circuit samples and scores points ("cpu", "cuda", "cuda:N"); None: compiled
        kernels.
    raisable
        Names of the limits that the caller can raise, for messages.
    """

    max_edges: int | None = None
    workers: int | None = None
    control: Control = field(default_factory=Control)
    device: str | None = None
    raisable: tuple[str, ...] = ("max_memory", "max_edges")

    @property
    def edges_allowed(self) -> int:
        """The most edges that a circuit may have."""
        by_memory = self.control.memory_limit // BYTES_PER_EDGE
        return by_memory if self.max_edges is None else min(by_memory, self.max_edges)

    @property
    def entries_allowed(self) -> int:
        """The most entries that all tables of a tree may have together."""
        return self.control.memory_limit // BYTES_PER_ENTRY

    @property
    def table_allowed(self) -> int:
        """The most entries that one table of a tree may have."""
        return self.entries_allowed if self.max_edges is None else min(self.entries_allowed, self.max_edges)

    @property
    def remedy(self) -> str:
        """Advice for a query that is too large, as the end of a sentence."""
        rest = "observe more variables, or query other ones"
        own = [name for name in self.raisable if name != "max_edges" or self.max_edges is not None]
        return f"raise {' or '.join(own)}, {rest}" if own else rest

    def describe(self) -> str:
        """Name the active limits, as a part of a sentence."""
        memory = shown_bytes(self.control.memory_limit)
        whose = f"max_memory={memory}" if self.control.max_memory is not None else f"{memory} of memory"
        return whose if self.max_edges is None else f"max_edges={self.max_edges} and {whose}"
