"""Settings and limits that the parts of a hybrid search share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from certimap.core.control import Control
from certimap.networks.elimination_plan import EliminationPlan
from certimap.networks.problem import HARD

ENTRIES_PER_SECOND = 2.0**27  # that elimination gets through on one core, at least
AFFORDABLE = 10.0  # seconds of an elimination that begins soon
TIME_SHARE = 0.5  # of the time left, that it may take
SHARE_SEARCHED = 0.1  # of its work, that a search gets before it


@dataclass
class Context:
    """Settings and limits that all parts share, and what they have used."""

    control: Control
    workers: int
    quick_entries: float  # eliminate straight away what takes at most so many table entries
    max_entries: float  # never eliminate what takes more
    max_bytes: int  # memory for a search or an elimination
    top_k: int  # how many best assignments are wanted; above 1 every assignment above `threshold` is reported
    seed: int  # of the local search
    margin: int = 0  # units within which the value of a component is good enough
    threshold: int = HARD  # with `top_k` above 1: units at or below which nothing is of interest
    # n_nodes, work: search nodes and table entries visited so far
    n_nodes: int = 0
    work: int = 0
    _n_keys: int = 0

    @property
    def lists_all(self) -> bool:
        """Whether every good assignment is wanted, not only a best one."""
        return self.top_k > 1

    def next_key(self) -> np.uint64:
        """Return the key of the next stream of random numbers."""
        self._n_keys += 1
        return np.uint64((self.seed + 0x9E3779B97F4A7C15 * self._n_keys) % 2**64)

    def share_searched(self, elimination: EliminationPlan) -> float:
        """Return how long a search may go on before an elimination, as a share of what that takes.

        Where the time left is far more than the elimination needs, most searches as long as it are best cut short.
        """
        seconds = elimination.n_entries / ENTRIES_PER_SECOND
        is_affordable = seconds <= min(AFFORDABLE, TIME_SHARE * self.control.seconds_left)
        return SHARE_SEARCHED if is_affordable and self.quick_entries else 1.0

    def fits(self, elimination: EliminationPlan) -> bool:
        """Whether an elimination keeps to the limits."""
        n_bytes = max(elimination.n_bytes, elimination.n_bytes_kept) if self.lists_all else elimination.n_bytes
        return elimination.n_entries <= self.max_entries and n_bytes <= self.max_bytes
