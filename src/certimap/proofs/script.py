"""A proof by steps in the making: each step is recorded as it is made on the network that the checker will see."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from certimap.checker.network import Flags, Network, Scope
from certimap.checker.numbers import Floats
from certimap.checker.steps import (
    BACK,
    CLOSE,
    DIVIDE,
    DROP,
    ELIMINATE,
    GROUP,
    MAXIMISE,
    REPLACE,
    SHIFT,
    SPLIT,
    TRY,
    shares,
)
from certimap.core.control import Control

QUICK_ENTRIES, MOST_ENTRIES = 2.0**24, 2.0**32
SUM_BITS, TABLE_BITS = 24.0, (10.0, 14.0, 18.0)
MARGIN = 1e-13  # relative; how far below the threshold states are dropped, lest the checker see them above it
Arrays = dict[str, NDArray[Any]]
Box = list[Flags]


class Open(Exception):
    """No proof is found within the limits."""


@dataclass(eq=False)
class Part:
    """What waits to be closed at a level (nats), so much above what the answer is worth, below so many splits.

    `answer` has states of an answer, by variable, as the model numbers them; `hint` is what is known of hidden
    variables.
    """

    network: Network
    level: float
    slack: float = -math.inf
    answer: Mapping[int, int] | None = None
    depth: int = 0
    hint: Any = None

    @property
    def point(self) -> dict[int, int] | None:
        """The answer in the states that the network has left; None where it has lost it, or there is none."""
        states = self.network.states
        if self.answer is None or any(a not in states[v] for v, a in self.answer.items()):
            return None
        return {v: int(np.searchsorted(states[v], a)) for v, a in self.answer.items()}


@dataclass(eq=False)
class Script:
    """The steps made so far, and what limits those to come.

    Attributes
    ----------
    threshold
        Nats that no point may be worth more than.
    quick_entries, most_entries
        Of eliminations before, and after, costs have been moved.
    sum_bits
        Log base 2 of the entries that hidden variables are summed out with before anything else is tried.
    table_bits
        The same of the largest tables of relaxations with copies, one after the other.
    slack
        Nats of the threshold above what the answer is worth.
    """

    threshold: float
    control: Control
    max_bytes: int
    quick_entries: float = QUICK_ENTRIES
    most_entries: float = MOST_ENTRIES
    sum_bits: float = SUM_BITS
    table_bits: tuple[float, ...] = field(default_factory=lambda: TABLE_BITS)
    slack: float = -math.inf
    steps: list[int] = field(default_factory=list[int])
    shifts: list[Floats] = field(default_factory=list[Floats])
    kept: list[Flags] = field(default_factory=list[Flags])
    n_bytes: int = 0

    @property
    def arrays(self) -> Arrays:
        empty: list[NDArray[Any]] = [np.zeros(0)]
        return {
            "steps": np.array(self.steps, np.int32),
            "shifts": np.concatenate(self.shifts or empty),
            "kept": np.packbits(np.concatenate(self.kept or [np.zeros(0, np.bool_)])),
        }

    def look(self) -> None:
        if self.control.is_late or self.n_bytes + 4 * len(self.steps) > self.max_bytes:
            raise Open

    def shift(self, network: Network, shifts: Floats) -> None:
        self.steps.append(SHIFT)
        self.shifts.append(shifts)
        self.n_bytes += shifts.nbytes
        network.shift(shifts)

    def drop(self, network: Network, each: dict[int, Floats]) -> Network | None:
        """Drop the states that can be; return the same network where none can, and None where nothing is left."""
        level = self.threshold - MARGIN * (1.0 + abs(self.threshold))
        kept = {v: found > level for v, found in each.items()}
        if all(flags.all() for flags in kept.values()):
            return network
        self.steps.append(DROP)
        self.kept.append(np.concatenate(list(kept.values())))
        self.n_bytes += len(self.kept[-1]) // 8 + 1
        return network.keep(kept) if all(flags.any() for flags in kept.values()) else None

    def divide(self, levels: list[float]) -> None:
        """Give each component a level of its own."""
        self.steps.append(DIVIDE)
        self.shifts.append(np.array(levels))
        self.n_bytes += 8 * len(levels)

    def eliminate(self, network: Network, v: int) -> None:
        self.look()
        self.steps += [ELIMINATE, v]
        network.eliminate(v)

    def group(
        self, network: Network, v: int, groups: list[int], shifts: list[Floats], weights: list[float]
    ) -> None:
        """Eliminate copies of a variable, one from each group of its tables; weights are of hidden ones."""
        self.look()
        self.steps += [GROUP, v, *groups]
        numbers = np.concatenate([*shifts, weights])
        self.shifts.append(numbers)
        self.n_bytes += numbers.nbytes
        read = shares(np.array(weights)).tolist() if weights else [1.0] * (len(shifts) + 1)  # as the checker will
        network.eliminate(v, groups, shifts, read)

    def close(self, network: Network) -> bool:
        """Close a part if its bound allows it."""
        if network.bound() > self.threshold:
            return False
        self.steps.append(CLOSE)
        return True

    def tried(self, network: Network) -> Network:
        """Return a copy, on which the next steps are made."""
        self.steps.append(TRY)
        return network.copy()

    def back(self, network: Network, tried: Network) -> Network:
        """Return what is left of a network where those states go that a copy has lost."""
        self.steps.append(BACK)
        return network.without_lost(tried)

    def split(self, network: Network, v: int) -> list[Network]:
        """Return the parts of a network by the states of a variable."""
        self.look()
        self.steps += [SPLIT, v]
        return list(network.split(v))

    @property
    def mark(self) -> tuple[int, int, int, int]:
        """Where the script stands, to go back to."""
        return len(self.steps), len(self.shifts), len(self.kept), self.n_bytes

    def forget(self, mark: tuple[int, int, int, int]) -> None:
        """Take back what was written since."""
        del self.steps[mark[0] :], self.shifts[mark[1] :], self.kept[mark[2] :]
        self.n_bytes = mark[3]

    def maximise(self, network: Network, v: int, by: Scope) -> None:
        self.steps += [MAXIMISE, v, sorted(network.near[v]).index(by)]
        network.maximise(v, by)

    def replace(self, network: Network, v: int, by: Scope) -> None:
        self.look()
        self.steps += [REPLACE, v, sorted(network.near[v]).index(by)]
        network.replace(v, by)
