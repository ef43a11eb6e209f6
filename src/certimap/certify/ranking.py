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
        The number of points kept.
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
        """ln p of the last place; -inf while a place is free."""
        return self.pairs[-1][0] if self.is_full else -math.inf

    def add(self, log_probs: NDArray[np.float64], start: int) -> bool:
        """Add new points at positions `start`, `start` + 1, ...; return whether the best changed."""
        contenders = np.flatnonzero(log_probs > self.last) if self.is_full else np.arange(len(log_probs))
        if len(contenders) > 4 * self.size:
            values = log_probs[contenders]
            least = np.partition(values, len(values) - self.size)[-self.size]
            above = contenders[values > least]
            ties = contenders[values == least][: self.size - len(above)]
            contenders = np.sort(np.concatenate([above, ties]))
        old = self.pairs[0] if self.pairs else None
        new = [(float(log_probs[i]), start + int(i)) for i in contenders]
        self.pairs = sorted([*self.pairs, *new], key=lambda pair: (-pair[0], pair[1]))[: self.size]
        return bool(self.pairs) and self.pairs[0] != old

    def changes(
        self,
        log_probs: NDArray[np.float64],
        log_uppers: NDArray[np.float64] | None,
        kept_uppers: NDArray[np.float64],
        log_rival: float,
    ) -> list[tuple[int, float, float]]:
        """Return how adding new points one by one would change the ranking.

        Parameters
        ----------
        log_probs, log_uppers
            Lower and upper bounds of the new points; `log_uppers` is None if values are exact.
        kept_uppers
            Upper bounds of the ranked points, best first.
        log_rival
            The largest upper bound of a known unranked point.

        Returns
        -------
        (index of a new point, ln p of the last place from then on, largest upper bound of unranked points from
        then on), in order.
        """
        if log_uppers is None:
            return [(at, last, -math.inf) for at, last in self._last_places(log_probs)]
        kept = [(value, float(upper)) for (value, _), upper in zip(self.pairs, kept_uppers, strict=True)]
        found: list[tuple[int, float, float]] = []
        for at, pair in enumerate(zip(log_probs.tolist(), log_uppers.tolist(), strict=True)):
            kept = sorted([*kept, pair], key=lambda sides: -sides[0])
            log_rival = max(log_rival, *(upper for _, upper in kept[self.size :]), -math.inf)
            kept = kept[: self.size]
            found.append((at, kept[-1][0] if len(kept) == self.size else -math.inf, log_rival))
        return found

    def _last_places(self, log_probs: NDArray[np.float64]) -> list[tuple[int, float]]:
        """Return (index, new ln p of the last place) of every new point that changes the last place."""
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
