"""Run control: time limit, memory limit and user interrupts, and the limits on a conversion."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Hashable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from certimap.core.cached import cached_property
from certimap.errors import CertimapError, TooLarge

# Default memory limit of a run: a share of all memory, so that answers do not depend on the machine's other work,
# unless a share of the free memory is less.
SHARE_OF_ALL = 0.5
SHARE_OF_FREE = 0.8
EARLY = 0.02  # of a time limit; searches for orders may take more of it
_CGROUP = Path("/sys/fs/cgroup")


class TimeUp(CertimapError):
    """Raised when the deadline or the user stops work; solvers catch it and return the best answer so far."""

    def __init__(self, doing: str) -> None:
        self.doing = doing
        super().__init__(f"the time was up while {doing}")


@dataclass(eq=False)
class Control:
    """Limits of one run, which its loops poll. The clock starts once the model has been read."""

    deadline: float | None = None  # a value of `time.perf_counter()`, in seconds, or None
    max_nodes: int | None = None  # search nodes, or None
    # bytes that conditioning and search may hold together, not counting the model. None: use `default_max_memory`.
    max_memory: int | None = None
    interrupted: bool = False  # set when the user asks for the best answer so far
    busy: bool = False  # whether bookkeeping that an interrupt must not break is under way
    searching: bool = False  # whether a step of a solver is under way, which may end where the time does
    time_limit: float | None = None  # seconds from `started` on that were allowed first
    started: float = field(default_factory=time.perf_counter)
    # what conditioning has found, by model and query, for a second attempt; None where there is none
    found: dict[Hashable, dict[str, Any]] | None = field(default=None, repr=False, compare=False)
    best: Callable[[], Any] | None = None  # during a search: returns its best assignment so far, or None

    @classmethod
    def starting_now(
        cls, time_limit: float | None = None, *, max_nodes: int | None = None, max_memory: int | None = None
    ) -> Control:
        """Return the control of a run that starts now and may last `time_limit` seconds."""
        deadline = None if time_limit is None else time.perf_counter() + time_limit
        return cls(deadline, max_nodes, max_memory, time_limit=time_limit)

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline; inf without one, and never below 0."""
        return math.inf if self.deadline is None else max(0.0, self.deadline - time.perf_counter())

    @property
    def seconds_run(self) -> float:
        """Seconds since the run started."""
        return time.perf_counter() - self.started

    @property
    def is_late(self) -> bool:
        """Whether the time is up."""
        return self.deadline is not None and time.perf_counter() >= self.deadline

    @property
    def is_early(self) -> bool:
        """Whether so little of the time has passed that no search for an order was cut short."""
        return self.time_limit is None or time.perf_counter() - self.started < EARLY * self.time_limit

    @property
    def should_stop(self) -> bool:
        """Whether long work should return soon: the time is up, or the user has interrupted."""
        return self.interrupted or self.is_late

    def nodes_left(self, n_nodes: int) -> int | None:
        """Return how many more search nodes are allowed after `n_nodes`; None when there is no limit."""
        return None if self.max_nodes is None else max(0, self.max_nodes - n_nodes)

    @contextmanager
    def atomically(self) -> Generator[None]:
        """Delay interrupts until the block ends."""
        self.busy = True
        try:
            yield
        finally:
            self.busy = False
        if self.interrupted:
            raise KeyboardInterrupt

    @contextmanager
    def interruptible(self) -> Generator[None]:
        """Allow interrupts again inside `atomically`."""
        self.busy = False
        try:
            if self.interrupted:
                raise KeyboardInterrupt
            yield
        finally:
            self.busy = True

    def check(self, doing: str) -> None:
        """Raise TimeUp when work should stop; `doing` completes "the time was up while ..."."""
        if self.should_stop:
            raise TimeUp(doing)

    @cached_property
    def memory_limit(self) -> int:
        """Memory limit in bytes: `max_memory`, or the machine's default when this is first read."""
        return _recent_max_memory() if self.max_memory is None else self.max_memory

    def reserve(self, n_bytes: float, what: str) -> None:
        """Raise TooLarge if `what` would need more bytes than the limit; call before allocating."""
        limit = self.memory_limit
        if n_bytes > limit:
            whose = "the machine leaves" if self.max_memory is None else "max_memory allows"
            raise TooLarge(f"{what} would take {shown_bytes(n_bytes)}, and {whose} {shown_bytes(limit)}")


_current: ContextVar[Control | None] = ContextVar("control", default=None)
current_control = _current.get  # the control of the answer that this thread works on, or None


@contextmanager
def controlled_by(control: Control) -> Generator[None]:
    """Make a control this thread's current one in the block."""
    token = _current.set(control)
    try:
        yield
    finally:
        _current.reset(token)


class Halt:
    """Lets another thread end the answers that a thread begins: with the best so far, and no further ones."""

    def __init__(self) -> None:
        self.is_set, self.controls = False, list[Control]()

    def stop(self) -> None:
        """Interrupt the answer under way; beginning another raises KeyboardInterrupt."""
        self.is_set = True
        for control in tuple(self.controls):
            control.interrupted = True


halt_here: ContextVar[Halt | None] = ContextVar("halt", default=None)  # what may end the work of this thread
GRACE = 0.5  # seconds that a piece of work is allowed to run past the deadline


class WorkClock:
    """Predicts from the pace of earlier pieces whether the next piece of work can end in time.

    Used for large pieces that cannot check the clock inside, such as operations on millions of entries. `doing`
    completes "the time was up while ..."; large pieces correct `seconds_per_unit`.
    """

    MEASURED = 100_000  # smallest piece, in units, whose pace is measured

    def __init__(self, control: Control, doing: str, seconds_per_unit: float) -> None:
        self._control, self._doing, self.seconds_per_unit = control, doing, seconds_per_unit
        self._looked, self._pending = time.perf_counter(), 0.0

    @classmethod
    def unhurried(cls) -> WorkClock:
        """Return a clock that never raises."""
        return cls(Control(), "working", 0.0)

    def ahead(self, n_units: float) -> None:
        """Announce the next piece of work; raise TimeUp if it would end too late. Small pieces are added up."""
        if self._pending + n_units < self.MEASURED:
            self._pending += n_units
            return
        now = time.perf_counter()
        if self._pending >= self.MEASURED:
            self.seconds_per_unit = (now - self._looked) / self._pending
        self._looked, self._pending = now, n_units
        self._refuse_late(n_units)

    @contextmanager
    def piece(self, n_units: float) -> Generator[None]:
        """Time one piece of work in the block; raise TimeUp first if it would end too late."""
        self._refuse_late(n_units)
        started = time.perf_counter()
        yield
        if n_units >= self.MEASURED:
            self.seconds_per_unit = (time.perf_counter() - started) / n_units

    def _refuse_late(self, n_units: float) -> None:
        self._control.check(self._doing)
        if n_units * self.seconds_per_unit > self._control.seconds_left + GRACE:
            raise TimeUp(self._doing)


_RECENT = 0.1  # seconds for which the memory reading is cached
_looked: list[tuple[float, int]] = []


def _recent_max_memory() -> int:
    """Return `default_max_memory`, cached for 0.1 s because reading it takes longer than a small query."""
    now = time.perf_counter()
    if not _looked or now - _looked[0][0] > _RECENT:
        _looked[:] = [(now, default_max_memory())]
    return _looked[0][1]


def default_max_memory() -> int:
    """Return the default memory limit of a run in bytes.

    Half of the memory of the machine, the container or the address space, whichever is least; less if most of it
    is in use already.
    """
    known = [int(min(SHARE_OF_ALL * total, SHARE_OF_FREE * free)) for total, free in _memories()]
    return min(known, default=int(SHARE_OF_ALL * physical_memory()))


def physical_memory() -> int:
    """Return the machine's memory in bytes, or 4 GiB if it is unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 4 * 2**30


def _memories() -> Iterator[tuple[int, int]]:
    """Yield (total, free) in bytes of the machine, the container and the address space, where they are limited."""
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        available = next((line for line in lines if line.startswith("MemAvailable:")), "")  # without swapping
        yield physical_memory(), int(available.split()[1]) * 1024
    for limit, used in (
        (_CGROUP / "memory.max", _CGROUP / "memory.current"),
        (_CGROUP / "memory/memory.limit_in_bytes", _CGROUP / "memory/memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):
            allowed = int(limit.read_text(encoding="ascii"))  # "max" is no number: no limit
            yield allowed, max(0, allowed - int(used.read_text(encoding="ascii")))
            break
    with suppress(ImportError, ValueError, OSError, IndexError):
        import resource

        most, _ = resource.getrlimit(resource.RLIMIT_AS)  # `ulimit -v`
        if most != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
            yield most, max(0, most - pages * os.sysconf("SC_PAGE_SIZE"))


def shown_bytes(n_bytes: float) -> str:
    """Format a number of bytes for people; huge numbers are shown as a power of two."""
    if n_bytes >= 2.0**60:
        return f"2^{math.log2(n_bytes) if math.isfinite(n_bytes) else 1024:.0f} bytes"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if n_bytes >= size:
            return f"{n_bytes / size:.3g} {unit}"
    return f"{float(n_bytes):.0f} bytes"


# Peak memory of a conversion, measured on grids of two and three states, rounded up.
BYTES_PER_EDGE = 160  # compiled and conditioned circuits
BYTES_PER_ENTRY = 160  # tables of a tree
DEFAULT_PROOF = 100_000_000  # default size limit of a proof, bytes


@dataclass(frozen=True)
class Limits:
    """Bounds on a conversion.

    - `max_edges`: largest circuit (edges) and largest table of a tree (entries) to build. None: limited only by
      the memory of `control`.
    - `workers`: threads of the posterior; None: one per processor.
    - `control`: the run that the conversion belongs to: its deadline and its memory.
    - `device`: PyTorch device on which a circuit samples and scores points ("cpu", "cuda", "cuda:N"); None:
      compiled kernels.
    - `raisable`: names of the limits that the caller can raise, for messages.
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


@contextmanager
def uninterrupted() -> Generator[None]:
    """Let Ctrl-C wait until the end of a block in the main thread: of an output, or of an import."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if received and callable(previous):
        previous(received[0], None)
