"""Sets of vectors: which of them others exceed everywhere, and maxima of groups in their place."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from certimap.checker.clock import Clock
from certimap.checker.numbers import UNIT, Floats, Ints, log_sum, up

TIE = 1e-12  # nats by which a vector may lose to another that is as large but for rounding


@dataclass(eq=False)
class Vectors:
    """A set of vectors, in logs: the context of each row, its entries, and whether it is a maximum of several.

    `error` is how far (nats) rounding may have raised an entry above the truth.
    """

    context: Ints
    values: Floats
    relaxed: NDArray[np.bool_]
    error: float

    def take(self, rows: NDArray[np.bool_] | Ints) -> Vectors:
        return Vectors(self.context[rows], self.values[rows], self.relaxed[rows], self.error)

    @property
    def step_error(self) -> float:
        """What one more sum of logs may round by."""
        finite = self.values[np.isfinite(self.values)]
        return (2.0 + 4.0 * float(np.max(np.abs(finite), initial=0.0))) * UNIT


def scores_of(found: Vectors, acting: Floats) -> Floats:
    """Return an upper bound on what each row can become."""
    return up(log_sum(found.values + acting[found.context]), 2.0)


def maxima_of(found: Vectors, shape: tuple[int, ...]) -> Floats:
    out = np.full(shape, -np.inf)
    np.maximum.at(out, found.context, found.values)
    return out


def undominated(found: Vectors, clock: Clock) -> tuple[Vectors, float]:
    """Drop rows that others of their context exceed everywhere; return what ties cost, in nats."""
    alive = np.ones(len(found.context), np.bool_)
    order = np.lexsort((-log_sum(found.values), found.context))
    cuts = np.flatnonzero(np.diff(found.context[order])) + 1
    margin, tied = 2.0 * found.error, False
    for rows in np.split(order, cuts):
        if len(rows) < 2:
            continue
        kept = found.values[rows[:1]]
        for start in range(1, len(rows), 64):
            clock.look()
            block = rows[start : start + 64]
            values = found.values[block]
            surely = _below(values, kept, -margin)
            nearly = ~surely
            nearly[nearly] = _below(values[nearly], kept, TIE)
            tied |= bool(nearly.any())
            open_rows = np.flatnonzero(~surely & ~nearly)
            for row in open_rows:
                mine = values[row : row + 1]
                if _below(mine, kept[-len(open_rows) :], -margin)[0]:
                    surely[row] = True
                elif _below(mine, kept[-len(open_rows) :], TIE)[0]:
                    nearly[row], tied = True, True
                else:
                    kept = np.concatenate([kept, mine])
            alive[block[surely | nearly]] = False
    return found.take(alive), (margin + TIE if tied else 0.0)


def _below(values: Floats, kept: Floats, slack: float) -> NDArray[np.bool_]:
    """Return which rows some kept row, moved up by `slack` nats, is at least everywhere."""
    out = np.zeros(len(values), np.bool_)
    step = max(1, 8_000_000 // max(1, values.size))
    for start in range(0, len(kept), step):
        rest = ~out
        part = kept[start : start + step] + slack
        out[rest] = np.any(np.all(part[:, None, :] >= values[None, rest, :], axis=2), axis=0)
    return out


def merged(found: Vectors, limit: int, scores: Floats) -> Vectors:
    """Keep the best half of `limit` rows, and replace groups of like rows of one context by their maxima."""
    order = np.argsort(-scores, kind="stable")
    best, rest = order[: limit // 2], order[limit // 2 :]
    rest = rest[np.lexsort((np.argmax(found.values[rest], axis=1), found.context[rest]))]
    size = max(2, math.ceil(len(rest) / max(1, limit // 2)))
    contexts = found.context[rest]
    fresh = np.concatenate([[True], contexts[1:] != contexts[:-1]])
    runs = np.flatnonzero(fresh)
    within = np.arange(len(rest)) - np.repeat(runs, np.diff(np.concatenate([runs, [len(rest)]])))
    starts = np.flatnonzero(within % size == 0)
    lengths = np.diff(np.concatenate([starts, [len(rest)]]))
    values = np.maximum.reduceat(found.values[rest], starts, axis=0)
    relaxed = np.logical_or.reduceat(found.relaxed[rest], starts) | (lengths > 1)
    return Vectors(
        np.concatenate([found.context[best], contexts[starts]]),
        np.concatenate([found.values[best], values]),
        np.concatenate([found.relaxed[best], relaxed]),
        found.error,
    )
