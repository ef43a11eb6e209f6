"""Run control: how long a run may take, how much it may hold, and whether its user wants it back."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from certimap.errors import CertimapError, TooLarge

# What a run may take unless told otherwise: a share of all memory, so that answers do not depend on what else the
# machine does, but for a share of what is free where that is less.
SHARE_OF_ALL = 0.5
SHARE_OF_FREE = 0.8
_CGROUP = Path("/sys/fs/cgroup")


class TimeUp(CertimapError):
    """Work was cut short by its deadline or its user; caught where the best so far is returned."""

    def __init__(self, doing: str) -> None:
        self.doing = doing
        super().__init__(f"the time was up while {doing}")


@dataclass(eq=False)
class Control:
    """Limits of one run: plain data that its loops poll, from the moment its model has been read.

    Attributes
    ----------
    deadline
        A value of `time.perf_counter()`, in seconds, or None.
    max_nodes
        Search nodes, or None.
    max_memory
        Bytes that conditioning and search may hold together, the model not counted. None stands for what
        `default_max_memory` leaves free.
    interrupted
        Set when the user asks for the best so far.
    busy
        Whether bookkeeping is under way that an interrupt must not break into.
    """

    deadline: float | None = None
    max_nodes: int | None = None
    max_memory: int | None = None
    interrupted: bool = False
    busy: bool = False

    @classmethod
    def starting_now(
        cls, time_limit: float | None = None, *, max_nodes: int | None = None, max_memory: int | None = None
    ) -> Control:
        """Return the control of a run that begins at this moment and may last `time_limit` seconds."""
        deadline = None if time_limit is None else time.perf_counter() + time_limit
        return cls(deadline, max_nodes, max_memory)

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline; inf without one, and never below 0."""
        return math.inf if self.deadline is None else max(0.0, self.deadline - time.perf_counter())

    @property
    def is_late(self) -> bool:
        """Whether the time is up."""
        return self.deadline is not None and time.perf_counter() >= self.deadline

    @property
    def should_stop(self) -> bool:
        """Whether long work should return soon: the time is up, or the user has interrupted."""
        return self.interrupted or self.is_late

    def nodes_left(self, n_nodes: int) -> int | None:
        """Return how many search nodes the limit leaves after `n_nodes`; None when there is no limit."""
        return None if self.max_nodes is None else max(0, self.max_nodes - n_nodes)

    @contextmanager
    def atomically(self) -> Generator[None]:
        """Keep an interrupt out; one that came meanwhile is raised at the end."""
        self.busy = True
        try:
            yield
        finally:
            self.busy = False
        if self.interrupted:
            raise KeyboardInterrupt

    @contextmanager
    def interruptible(self) -> Generator[None]:
        """Let an interrupt break in again, inside `atomically`."""
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
        """Bytes that may be held: `max_memory`, or what leaves room on the machine when it is first asked for."""
        return _recent_max_memory() if self.max_memory is None else self.max_memory

    def reserve(self, n_bytes: float, what: str) -> None:
        """Raise TooLarge, before any is taken, when `what` would need more bytes than may be held."""
        limit = self.memory_limit
        if n_bytes > limit:
            whose = "the machine leaves" if self.max_memory is None else "max_memory allows"
            raise TooLarge(f"{what} would take {shown_bytes(n_bytes)}, and {whose} {shown_bytes(limit)}")


GRACE = 0.5  # seconds past the deadline that a piece of work may foreseeably end


class WorkClock:
    """Foresees whether a piece of work of known size can end in time, from the pace of those before it.

    For work in large pieces that cannot look at the clock inside: arrays of millions of entries.

    Parameters
    ----------
    control
        The run's.
    doing
        Completes "the time was up while ...".
    seconds_per_unit
        The pace to begin with; a first large piece corrects it.
    """

    MEASURED = 100_000  # units that a piece must have for its pace to count

    def __init__(self, control: Control, doing: str, seconds_per_unit: float) -> None:
        self._control, self._doing, self._pace = control, doing, seconds_per_unit
        self._looked, self._pending = time.perf_counter(), 0.0

    @classmethod
    def unhurried(cls) -> WorkClock:
        """Return a pace that lets everything be done."""
        return cls(Control(), "working", 0.0)

    def ahead(self, n_units: float) -> None:
        """Announce the next work, as `piece` does; small pieces are counted together, so that asking costs little.

        What was announced before must be done by now.
        """
        if self._pending + n_units < self.MEASURED:
            self._pending += n_units
            return
        now = time.perf_counter()
        if self._pending >= self.MEASURED:
            self._pace = (now - self._looked) / self._pending
        self._looked, self._pending = now, n_units
        self._refuse_late(n_units)

    @property
    def seconds_per_unit(self) -> float:
        """The pace of the last piece that was large enough to be timed."""
        return self._pace

    @contextmanager
    def piece(self, n_units: float) -> Generator[None]:
        """Do one piece of work inside; raise TimeUp instead when it would end too late, or the time is up."""
        self._refuse_late(n_units)
        started = time.perf_counter()
        yield
        if n_units >= self.MEASURED:
            self._pace = (time.perf_counter() - started) / n_units

    def _refuse_late(self, n_units: float) -> None:
        self._control.check(self._doing)
        if n_units * self._pace > self._control.seconds_left + GRACE:
            raise TimeUp(self._doing)


_RECENT = 0.1  # seconds for which a machine's memory is not looked up again
_looked: list[tuple[float, int]] = []


def _recent_max_memory() -> int:
    """Return `default_max_memory`, at most a tenth of a second old: small queries take less than a look at it."""
    now = time.perf_counter()
    if not _looked or now - _looked[0][0] > _RECENT:
        _looked[:] = [(now, default_max_memory())]
    return _looked[0][1]


def default_max_memory() -> int:
    """Return the bytes that a run may take where its user sets no limit.

    Half of the machine's memory, of its container's, or of what the process may address; less where most of it is
    in use already.
    """
    found = (_machine_memory(), _container_memory(), _process_memory())
    known = [pair for pair in found if pair is not None]
    if not known:
        return int(SHARE_OF_ALL * physical_memory())
    return min(int(min(SHARE_OF_ALL * total, SHARE_OF_FREE * free)) for total, free in known)


def physical_memory() -> int:
    """Return the machine's memory in bytes; 4 GiB where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 4 * 2**30


def _machine_memory() -> tuple[int, int] | None:
    """Return (total, what new work may take without swapping) in bytes, as Linux says it."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return physical_memory(), int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _container_memory() -> tuple[int, int] | None:
    """Return (limit, what it leaves) in bytes of this process's container; None without a limit."""
    for limit, used in (
        (_CGROUP / "memory.max", _CGROUP / "memory.current"),
        (_CGROUP / "memory/memory.limit_in_bytes", _CGROUP / "memory/memory.usage_in_bytes"),
    ):
        try:
            allowed = int(limit.read_text(encoding="ascii"))  # "max" is no number: no limit
            return allowed, max(0, allowed - int(used.read_text(encoding="ascii")))
        except (OSError, ValueError):
            continue
    return None


def _process_memory() -> tuple[int, int] | None:
    """Return (limit, what it leaves) in bytes of this process's address space (`ulimit -v`); None without one."""
    try:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit == resource.RLIM_INFINITY:
            return None
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        return limit, max(0, limit - pages * os.sysconf("SC_PAGE_SIZE"))
    except (ImportError, ValueError, OSError, IndexError):
        return None


def shown_bytes(n_bytes: float) -> str:
    """Write a number of bytes for people; a table far too large is written as a power of two."""
    if n_bytes >= 2.0**60:
        return f"2^{math.log2(n_bytes) if math.isfinite(n_bytes) else 1024:.0f} bytes"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if n_bytes >= size:
            return f"{n_bytes / size:.3g} {unit}"
    return f"{n_bytes:.0f} bytes"
