"""Sets of vectors: which of them others exceed everywhere, and maxima of groups in their place."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from certimap.checker.clock import Clock
from certimap.checker.models import Rejected
from certimap.checker.numbers import UNIT, Floats, Ints, log_sum, run_starts, up

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


def joined(parts: list[Vectors], width: int) -> Vectors:
    """Return the rows of several sets as one."""
    if not parts:
        return Vectors(np.empty(0, np.int64), np.empty((0, width)), np.empty(0, np.bool_), 0.0)
    return Vectors(
        np.concatenate([p.context for p in parts]),
        np.concatenate([p.values for p in parts]),
        np.concatenate([p.relaxed for p in parts]),
        parts[0].error,
    )


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
    return grouped(found, groups_of(found, limit, scores))


def groups_of(found: Vectors, limit: int, scores: Floats) -> Ints:
    """Number the groups of rows that `merged` puts together: the best half of `limit` rows have one each."""
    order = np.argsort(-scores, kind="stable")
    best, rest = order[: limit // 2], order[limit // 2 :]
    rest = rest[np.lexsort((np.argmax(found.values[rest], axis=1), found.context[rest]))]
    size = max(2, math.ceil(len(rest) / max(1, limit // 2)))
    contexts = found.context[rest]
    fresh = np.concatenate([[True], contexts[1:] != contexts[:-1]])
    runs = np.flatnonzero(fresh)
    within = np.arange(len(rest)) - np.repeat(runs, np.diff(np.concatenate([runs, [len(rest)]])))
    groups = np.empty(len(order), np.int64)
    groups[best] = np.arange(len(best))
    groups[rest] = len(best) + np.cumsum(within % size == 0) - 1
    return groups


def grouped(found: Vectors, groups: Ints) -> Vectors:
    """Replace the rows of each group, numbered from 0 on, by their maximum; rows of a group share a context."""
    order = np.argsort(groups, kind="stable")
    lengths = np.bincount(groups)
    starts = run_starts(lengths)
    contexts = found.context[order]
    if np.any(lengths == 0) or np.any(contexts != np.repeat(contexts[starts], lengths)):
        raise Rejected("a group of vectors is empty, or holds some of different contexts")
    return Vectors(
        contexts[starts],
        np.maximum.reduceat(found.values[order], starts, axis=0),
        np.logical_or.reduceat(found.relaxed[order], starts) | (lengths > 1),
        found.error,
    )
