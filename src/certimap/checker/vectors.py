"""Sets of vectors, and a file's reason for each vector that is dropped.

For each product of sets the file lists the rows that could exceed the threshold, and for each set the rows
dominated by combinations of others, with members and weights, and the groups of rows replaced by their maximum.
Rows are numbered in the order of the products. Dropping x for a convex combination of y_i that dominates it loses
nothing: whatever multiplies a vector later is linear and nonnegative, so some y_i ends at least as high as x.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from certimap.checker.models import FLOAT, Arrays, CheckBudget, Rejected
from certimap.checker.numbers import UNIT, Flags, Floats, Ints, log_sum, run_starts

TIE = 1e-12  # nats by which rounding may put a vector below an equal one
MAX_SPLITS = 1000  # of boxes, when the file has no plan
PIECE = 4_000_000  # entries compared at once
LARGEST_LOG = 60.0  # cap on the log ratio of a member's entry to the dropped vector's


@dataclass(eq=False)
class Vectors:
    """A set of vectors, in logs: the context of each row and its entries."""

    context: Ints
    values: Floats
    error: float  # nats by which rounding may have raised an entry above the truth

    @property
    def n_bytes(self) -> int:
        return self.context.nbytes + self.values.nbytes

    def take(self, rows: Flags | Ints) -> Vectors:
        return Vectors(self.context[rows], self.values[rows], self.error)


def maxima_of(found: Vectors, shape: tuple[int, ...]) -> Floats:
    """Return the largest entry per context and hidden state, in an array of `shape`."""
    out = np.full(shape, -np.inf)
    order = np.argsort(found.context, kind="stable")
    starts = np.flatnonzero(np.diff(found.context[order], prepend=-1))
    if len(starts):
        out[found.context[order[starts]]] = np.maximum.reduceat(found.values[order], starts, axis=0)
    return out


@dataclass(frozen=True, eq=False)
class Step:
    """The rows listed, dropped and grouped, of one product, or of one set after its variable is eliminated."""

    # the rows of a product that may exceed the threshold, ascending; the other attributes number these from 0
    listed: Ints
    # rows dominated by combinations of others: the number of members of each, the members, and their weights; a
    # member is kept, or dropped later in this order for a combination of two or more
    gone: Ints
    lengths: Ints
    members: Ints
    counts: Ints
    # for each row left, in order, the number of its group; a group is replaced by its maximum. Empty: no groups.
    groups: Ints

    def loss(self, found: Vectors, budget: CheckBudget) -> float:
        """Return the nats lost to ties in a set; reject a row dropped without cause."""
        n_rows = PIECE // max(1, found.values.shape[1]) + int(self.lengths.max(initial=0))
        n_compared = n_rows * found.values.shape[1] + len(found.context)
        budget.need(5.0 * FLOAT * n_compared, "vectors that are compared")
        if np.any(self.lengths < 1) or not self.lengths.sum() == len(self.members) == len(self.counts):
            raise Rejected("a combination of vectors has no members")
        rank, owners = np.full(len(found.context), len(self.gone)), np.repeat(self.gone, self.lengths)
        rank[self.gone] = np.arange(len(self.gone))
        is_one, single = self.lengths == 1, np.zeros(len(rank), np.bool_)
        single[self.gone[is_one]] = True
        if np.any(rank[self.members] <= rank[owners]) or np.any(single[self.members]):
            raise Rejected("a vector is dropped for one that is dropped itself")
        if np.any(found.context[self.members] != found.context[owners]):
            raise Rejected("a vector is dropped for one of another context")
        room = room_below(found, self.gone[is_one], self.members[np.repeat(is_one, self.lengths)])
        lost = float(np.max(-room, initial=0.0))  # NaN if any is
        if not lost <= TIE:
            raise Rejected("a vector is dropped for one that is smaller somewhere")
        several = np.repeat(~is_one, self.lengths)
        combined = self.gone[~is_one], self.lengths[~is_one], self.members[several], self.counts[several]
        if not np.all(is_exceeded(found, *combined)):
            raise Rejected("a vector is dropped for a combination that is smaller somewhere")
        return lost

    def applied(self, found: Vectors) -> Vectors:
        """Return the reduced set: the rows kept, or the maxima of their groups."""
        if len(self.gone):
            kept = np.ones(len(found.context), np.bool_)
            kept[self.gone] = False
            found = found.take(kept)
        return grouped(found, self.groups) if len(self.groups) else found


def room_below(found: Vectors, rows: Ints, others: Ints) -> Floats:
    """For each pair, return the largest r such that the other row exceeds the row by r nats in every column."""
    out = np.empty(len(rows))
    step = max(1, PIECE // max(1, found.values.shape[1]))
    for at in range(0, len(rows), step):
        mine, other = found.values[rows[at : at + step]], found.values[others[at : at + step]]
        with np.errstate(invalid="ignore"):
            out[at : at + step] = np.min(np.where(mine == -np.inf, np.inf, other - mine), axis=1)
    return out


def is_exceeded(found: Vectors, rows: Ints, lengths: Ints, members: Ints, counts: Ints) -> Flags:
    """Per row: whether the combination of its `lengths` members dominates it, rounding included."""
    starts, ends = run_starts(lengths), np.cumsum(lengths)
    out = np.zeros(len(rows), np.bool_)
    needed = 1.0 + (200.0 + float(lengths.max(initial=0))) * UNIT
    step, at = max(1, PIECE // max(1, found.values.shape[1])), 0
    while at < len(rows):
        stop = max(at + 1, int(np.searchsorted(ends, starts[at] + step, side="right")))
        part, places = slice(int(starts[at]), int(ends[stop - 1])), starts[at:stop] - starts[at]
        mine = np.repeat(found.values[rows[at:stop]], lengths[at:stop], axis=0)
        with np.errstate(invalid="ignore"):
            ratio = np.where(mine == -np.inf, np.inf, found.values[members[part]] - mine)
        sums = np.add.reduceat(np.exp(np.minimum(ratio, LARGEST_LOG)) * counts[part, None], places, axis=0)
        totals = np.add.reduceat(counts[part].astype(np.float64), places)  # floats: forged counts cannot overflow
        out[at:stop] = (totals > 0) & np.all(sums >= needed * totals[:, None], axis=1)
        at = stop
    return out


def grouped(found: Vectors, groups: Ints) -> Vectors:
    """Replace the rows of each group, numbered from 0, by their maximum; rows of a group share a context."""
    if len(groups) != len(found.context):
        raise Rejected("a vector is neither kept nor dropped")
    if np.any(groups >= len(groups)):
        raise Rejected("a group of vectors is empty, or holds some of different contexts")
    order = np.argsort(groups, kind="stable")
    lengths = np.bincount(groups)
    starts = run_starts(lengths)
    contexts = found.context[order]
    if np.any(lengths == 0) or np.any(contexts != np.repeat(contexts[starts], lengths)):
        raise Rejected("a group of vectors is empty, or holds some of different contexts")
    return Vectors(contexts[starts], np.maximum.reduceat(found.values[order], starts, axis=0), found.error)


def undominated(found: Vectors, budget: CheckBudget) -> tuple[Vectors, float]:
    """Drop the rows dominated by a kept row of their context; return the set, and the nats lost to ties."""
    alive, lost = np.ones(len(found.context), np.bool_), 0.0
    order = np.lexsort((-log_sum(found.values), found.context))
    for rows in np.split(order, np.flatnonzero(np.diff(found.context[order])) + 1):
        kept = found.values[rows[:1]]
        for start in range(1, len(rows), 64):
            budget.look()
            block = found.values[rows[start : start + 64]]
            room = best_room(block, kept)
            n_before = len(kept)
            for k in np.flatnonzero(~(room >= -TIE)).tolist():
                room[k] = np.fmax(room[k], best_room(block[k : k + 1], kept[n_before:])[0])
                if not room[k] >= -TIE:
                    kept = np.concatenate([kept, block[k : k + 1]])
            alive[rows[start : start + 64]] = ~(room >= -TIE)
            lost = max(lost, -float(np.min(room, where=room >= -TIE, initial=0.0)))
    return found.take(alive), lost


def best_room(values: Floats, kept: Floats) -> Floats:
    """For each row, return the largest r such that some kept row exceeds it by at least r nats in every column."""
    out = np.full(len(values), -np.inf)
    step = max(1, PIECE // max(1, values.size))
    for start in range(0, len(kept), step):
        with np.errstate(invalid="ignore"):
            apart = kept[None, start : start + step] - values[:, None]
        apart = np.where((values == -np.inf)[:, None], np.inf, apart)
        out = np.maximum(out, apart.min(axis=2).max(axis=1))
    return out


def groups_of(found: Vectors, limit: int, acting: Floats) -> Ints:
    """Assign rows to about `limit` groups: the most promising rows alone, similar rows of a context together."""
    scores = log_sum(found.values + acting[found.context])
    order = np.argsort(-scores, kind="stable")
    best, rest = order[: limit // 2], order[limit // 2 :]
    rest = rest[np.lexsort((np.argmax(found.values[rest], axis=1), found.context[rest]))]
    size = max(2, math.ceil(len(rest) / max(1, limit // 2)))
    runs = np.flatnonzero(np.diff(found.context[rest], prepend=-1))
    within = np.arange(len(rest)) - np.repeat(runs, np.diff(np.append(runs, len(rest))))
    groups = np.empty(len(order), np.int64)
    groups[best] = np.arange(len(best))
    groups[rest] = len(best) + np.cumsum(within % size == 0) - 1
    return groups


class VectorScript:
    """Reads a proof's steps and its plan, one after the other."""

    NAMES = ("listed", "gone", "lengths", "members", "counts", "groups")

    def __init__(self, arrays: Arrays, level: float, budget: CheckBudget) -> None:
        self.budget = budget
        blank = {name: np.empty(0, np.uint8) for name in ("plan", *self.NAMES)}
        self.is_blank = not {"sizes", *blank} & set(arrays)
        given = {"sizes": np.empty((0, len(self.NAMES)), np.uint8), **blank} if self.is_blank else arrays
        self.plan, self.sizes, self.level = np.asarray(given["plan"]), np.asarray(given["sizes"]), level
        self.columns = [np.asarray(given[name]) for name in self.NAMES]
        given = [self.plan, self.sizes, *self.columns]
        is_odd = any(a.dtype.kind not in "iu" or a.dtype.itemsize > 4 for a in given)
        if is_odd or self.sizes.shape[1:] != (len(self.NAMES),) or np.any(self.sizes < 0):
            raise Rejected("the kept vectors are damaged")
        budget.hold(2.0 * FLOAT * self.sizes.size, "the sizes of steps")
        self.ends = np.cumsum(self.sizes.astype(np.int64), axis=0)
        wanted = self.ends[-1].tolist() if len(self.ends) else [0] * len(self.NAMES)
        if [a.shape for a in self.columns] != [(n,) for n in wanted] or self.plan.ndim != 1:
            raise Rejected("the kept vectors are cut short")
        if any(np.any(a < 0) for a in self.columns) or np.any(self.columns[0] < 1):
            raise Rejected("the kept vectors are damaged: rows are not in order")
        self.n_steps = self.n_acts = self.n_rows = 0

    def act(self, part: Any) -> int:
        """Return the action on a box: 0 closes it, 1 eliminates it again, 2 + k splits it on query variable k."""
        if self.n_acts >= len(self.plan) or self.plan[self.n_acts] < 0:
            raise Rejected("the plan does not say what becomes of a box")
        self.n_acts += 1
        return int(self.plan[self.n_acts - 1])

    def begin(self) -> None:
        """Read the next step; refuse a proof that has none."""
        if self.n_steps >= len(self.ends):
            raise Rejected("the kept vectors end before the elimination does")
        ends, sizes = self.ends[self.n_steps].tolist(), self.sizes[self.n_steps].tolist()
        self.budget.need(8.0 * FLOAT * sum(sizes), "a step of the kept vectors")
        parts = [a[j - n : j].astype(np.int64) for a, n, j in zip(self.columns, sizes, ends, strict=True)]
        self.n_steps, self.n_rows = self.n_steps + 1, 0
        self.now = Step(np.cumsum(parts[0]) - 1, *parts[1:])  # rows are stored as differences

    def listed(self, scores: Floats) -> Ints:
        """Return the listed rows among the next rows of a product; reject an unlisted row that may count."""
        first, last = np.searchsorted(self.now.listed, [self.n_rows, self.n_rows + len(scores)])
        rows = self.now.listed[first:last] - self.n_rows
        may_count = ~(scores <= self.level)
        may_count[rows] = False
        if np.any(may_count):
            raise Rejected("a vector that may exceed the threshold is neither kept nor dropped")
        self.n_rows += len(scores)
        return rows

    def reduced(self, found: Vectors, acting: Floats) -> tuple[Vectors, float]:
        """Return the reduced set, and the nats lost to ties; `acting` bounds the factors outside the set."""
        if len(self.now.listed) and self.now.listed[-1] >= self.n_rows:
            raise Rejected("the kept vectors name more rows than there are")
        lost = self.now.loss(found, self.budget) if len(self.now.gone) else 0.0
        return self.now.applied(found), lost

    def end(self) -> None:
        """Reject a proof with steps left over."""
        if self.n_steps < len(self.ends) or self.n_acts < len(self.plan):
            raise Rejected("the kept vectors go on after the last box is closed")


class PlainVectors(VectorScript):
    """Decides on boxes and vectors by simple rules, when the file does not."""

    LIMITS: ClassVar[tuple[int, ...]] = (64, 512, 4096)  # vectors per set, in the successive eliminations of a box

    def __init__(self, level: float, budget: CheckBudget) -> None:
        super().__init__({}, level, budget)
        self.limit: int = self.LIMITS[0]

    def act(self, part: Any) -> int:
        """Close a box, or eliminate it with ever larger sets; then split it where state bounds sum to least."""
        if part.bound <= self.level or all(b.sum() <= 1 for b in part.box):
            return 0  # a point above the level is then rejected
        if part.n_runs < len(self.LIMITS):
            self.limit = self.LIMITS[part.n_runs]
            return 1
        self.n_acts += 1
        if self.n_acts > MAX_SPLITS:
            text = f"more than {MAX_SPLITS} boxes have to be split, and the file says of none how they close"
            raise Rejected(text)
        top, pairs = max(float(s.max()) for s in part.states), zip(part.box, part.states, strict=True)
        sums = [np.sum(np.exp(s[b] - top)) if b.sum() > 1 else np.inf for b, s in pairs]
        return 2 + int(np.argmin(sums))

    def begin(self) -> None:
        """Begin a step."""

    def listed(self, scores: Floats) -> Ints:
        """Return the next rows of a product that may exceed the threshold."""
        return np.flatnonzero(~(scores <= self.level))

    def reduced(self, found: Vectors, acting: Floats) -> tuple[Vectors, float]:
        """Drop vectors dominated by single others, and group the rest if there are too many."""
        n_contexts = len(np.unique(found.context))
        self.budget.need(4.0 * FLOAT * found.values.size, "vectors that are compared")
        if len(found.context) > 8 * self.limit:
            found = grouped(found, groups_of(found, 4 * self.limit, acting))
        found, lost = undominated(found, self.budget) if len(found.context) > n_contexts else (found, 0.0)
        if len(found.context) > max(self.limit, 2 * n_contexts):
            found = grouped(found, groups_of(found, self.limit, acting))
        return found, lost

    def end(self) -> None:
        """Do nothing: without a file no step can be left over."""
