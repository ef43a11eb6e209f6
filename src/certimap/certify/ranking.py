"""The k best of a growing set of points."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


class Ranking:
    """(ln p, position) of the best points, best first; ties keep the order of appearance.

    Parameters
    ----------
    size
        How many are kept.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.pairs: list[tuple[float, int]] = []

    @property
    def is_full(self) -> bool:
        return len(self.pairs) == self.size

    @property
    def best(self) -> float:
        """ln p of the best; -inf when empty."""
        return self.pairs[0][0] if self.pairs else -math.inf

    @property
    def last(self) -> float:
        """ln p of the last place; -inf while places are free."""
        return self.pairs[-1][0] if self.is_full else -math.inf

    def add(self, log_probs: NDArray[np.float64], start: int) -> bool:
        """Enter new points at positions `start`, `start` + 1, ...; return whether the best changed."""
        contenders = np.flatnonzero(log_probs > self.last) if self.is_full else np.arange(len(log_probs))
        if len(contenders) > 4 * self.size:
            order = np.argsort(-log_probs[contenders], kind="stable")[: self.size]
            contenders = np.sort(contenders[order])
        old = self.pairs[0] if self.pairs else None
        new = [(float(log_probs[i]), start + int(i)) for i in contenders]
        self.pairs = sorted([*self.pairs, *new], key=lambda pair: (-pair[0], pair[1]))[: self.size]
        return bool(self.pairs) and self.pairs[0] != old

    def changes(self, log_probs: NDArray[np.float64]) -> list[tuple[int, float]]:
        """Return (index, ln p of the last place from that new point on) where new points would change it."""
        kept = [value for value, _ in self.pairs]
        found: list[tuple[int, float]] = []
        at = 0
        while at < len(log_probs):
            full = len(kept) == self.size
            step = int(np.argmax(log_probs[at:] > kept[-1])) if full else 0
            if full and not log_probs[at + step] > kept[-1]:
                break
            at += step
            kept = sorted([*kept, float(log_probs[at])], reverse=True)[: self.size]
            if len(kept) == self.size:
                found.append((at, kept[-1]))
            at += 1
        return found
