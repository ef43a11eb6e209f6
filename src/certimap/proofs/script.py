"""Writes a proof by steps: records each step while it is applied to the checker's own network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from certimap.checker import steps as step
from certimap.checker.network import PlainNetwork, Scope
from certimap.checker.steps import shares
from certimap.core.arrays import Array, Flags, Floats
from certimap.core.control import Control

QUICK_ENTRIES, MOST_ENTRIES = 2.0**24, 2.0**32
SUM_BITS, TABLE_BITS = 24.0, (10.0, 14.0, 18.0)
MARGIN = 1e-13  # relative; states are dropped only this far below the threshold, against rounding elsewhere
Arrays = dict[str, Array]
Box = list[Flags]


class Open(Exception):
    """No proof is found within the limits."""


@dataclass(eq=False)
class ScriptPart:
    """A network to close at `level`, `slack` nats above the answer; `hint`: a plan or relaxation for sums."""

    network: PlainNetwork
    level: float
    slack: float = -math.inf
    answer: Mapping[int, int] | None = None
    depth: int = 0
    hint: Any = None

    @property
    def point(self) -> dict[int, int] | None:
        """The answer in the network's remaining states; None if the network lost it, or if there is none."""
        states = self.network.states
        if self.answer is None or any(a not in states[v] for v, a in self.answer.items()):
            return None
        return {v: int(np.searchsorted(states[v], a)) for v, a in self.answer.items()}


@dataclass(eq=False)
class Script:
    """The steps made so far, and the limits on further steps."""

    threshold: float  # largest log value that any point may have (nats)
    control: Control
    max_bytes: int
    # most table entries of an elimination, before and after costs have been moved
    quick_entries: float = QUICK_ENTRIES
    most_entries: float = MOST_ENTRIES
    sum_bits: float = SUM_BITS  # hidden variables are summed out at once if that takes at most 2^sum_bits entries
    # log2 of the largest table entries of successive relaxations with copies
    table_bits: tuple[float, ...] = field(default_factory=lambda: TABLE_BITS)
    slack: float = -math.inf  # nats by which the threshold exceeds the answer's value
    steps: list[int] = field(default_factory=list[int])
    shifts: list[Floats] = field(default_factory=list[Floats])
    kept: list[Flags] = field(default_factory=list[Flags])
    n_bytes: int = 0

    @property
    def arrays(self) -> Arrays:
        empty: list[Array] = [np.zeros(0)]
        return {
            "steps": np.array(self.steps, np.int32),
            "shifts": np.concatenate(self.shifts or empty),
            "kept": np.packbits(np.concatenate(self.kept or [np.zeros(0, np.bool_)])),
        }

    def look(self) -> None:
        if self.control.is_late or self.n_bytes + 4 * len(self.steps) > self.max_bytes:
            raise Open

    def _write(self, steps: list[int], numbers: Floats) -> None:
        self.steps += steps
        self.shifts.append(numbers)
        self.n_bytes += numbers.nbytes

    def shift(self, network: PlainNetwork, shifts: Floats) -> None:
        self._write([step.SHIFT], shifts)
        network.shift(shifts)

    def drop(self, network: PlainNetwork, each: dict[int, Floats]) -> PlainNetwork | None:
        """Drop states bounded below the threshold; return the same network if there are none, None if empty."""
        level = self.threshold - MARGIN * (1.0 + abs(self.threshold))
        kept = {v: found > level for v, found in each.items()}
        if all(flags.all() for flags in kept.values()):
            return network
        self.steps.append(step.DROP)
        self.kept.append(np.concatenate(list(kept.values())))
        self.n_bytes += len(self.kept[-1]) // 8 + 1
        return network.keep(kept) if all(flags.any() for flags in kept.values()) else None

    def divide(self, levels: list[float]) -> None:
        """Give each component a level of its own."""
        self._write([step.DIVIDE], np.array(levels))

    def eliminate(self, network: PlainNetwork, v: int) -> None:
        self.look()
        self.steps += [step.ELIMINATE, v]
        network.eliminate(v)

    def group(
        self, network: PlainNetwork, v: int, groups: list[int], shifts: list[Floats], weights: list[float]
    ) -> None:
        """Eliminate copies of a variable, one per group of its tables; only a hidden variable has weights."""
        self.look()
        self._write([step.GROUP, v, *groups], np.concatenate([*shifts, weights]))
        read = shares(np.array(weights)).tolist() if weights else [1.0] * (len(shifts) + 1)  # as the checker will
        network.eliminate(v, groups, shifts, read)

    def close(self, network: PlainNetwork) -> bool:
        """Close a part if its bound allows it."""
        if network.bound() > self.threshold:
            return False
        self.steps.append(step.CLOSE)
        return True

    def tried(self, network: PlainNetwork) -> PlainNetwork:
        """Return a copy for the next steps."""
        self.steps.append(step.TRY)
        return network.copy()

    def back(self, network: PlainNetwork, tried: PlainNetwork) -> PlainNetwork:
        """Return the network without the states that its copy has lost."""
        self.steps.append(step.BACK)
        return network.without_lost(tried)

    def split(self, network: PlainNetwork, v: int) -> list[PlainNetwork]:
        """Split a network on a variable, into one part per state."""
        self.look()
        self.steps += [step.SPLIT, v]
        return list(network.split(v))

    @property
    def mark(self) -> tuple[int, int, int, int]:
        """The current end of the script, for `forget`."""
        return len(self.steps), len(self.shifts), len(self.kept), self.n_bytes

    def forget(self, mark: tuple[int, int, int, int]) -> None:
        """Delete all steps written since a mark."""
        del self.steps[mark[0] :], self.shifts[mark[1] :], self.kept[mark[2] :]
        self.n_bytes = mark[3]

    def maximise(self, network: PlainNetwork, v: int, by: Scope) -> None:
        self.steps += [step.MAXIMISE, v, sorted(network.near[v]).index(by)]
        network.maximise(v, by)

    def replace(self, network: PlainNetwork, v: int, by: Scope) -> None:
        self.look()
        self.steps += [step.REPLACE, v, sorted(network.near[v]).index(by)]
        network.replace(v, by)
