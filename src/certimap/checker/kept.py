"""Proofs by kept vectors: an elimination on sets of vectors in which the file says why each vector is dropped.

The sets are those of `sets`. Of each product, and of each set after its variable is eliminated, the file lists the
vectors that could exceed the threshold; of these, those that another one is at least everywhere, and which; those
that a convex combination of others is at least, and its weights; and the groups of the rest that become one
maximum. Rows are numbered by the order in which products are made, which no rounding can change.

Dropping x for a combination of y_i loses nothing: whatever acts on vectors is linear and nonnegative, and so it
makes at least as much of some y_i as of x. "What a certificate means" has the proof, also of what one elimination
may tell the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from certimap.checker.buckets import Buckets
from certimap.checker.clock import Clock
from certimap.checker.graph import Flags
from certimap.checker.models import Arrays, Rejected
from certimap.checker.numbers import UNIT, Floats, Ints, run_starts
from certimap.checker.sets import Elimination, around
from certimap.checker.vectors import TIE, Vectors, grouped, joined, maxima_of, scores_of

PIECE = 4_000_000  # entries compared at once
SLOP = 1e-8  # nats by which bounds are raised, so that rounded vectors stay below those of exact ones
LARGEST_LOG = 60.0  # of an entry of a combination compared to that of the vector dropped; more counts as so much


@dataclass(frozen=True, eq=False)
class Step:
    """What becomes of the rows of one product, or of one set after its variable is eliminated.

    Attributes
    ----------
    listed
        The rows that may exceed the threshold, ascending; other attributes number these from 0 on.
    dominated, by
        Rows that another one, `by`, is at least everywhere. It is kept, or dropped for a combination.
    mixed, lengths, members, counts
        Rows that a combination of kept ones is at least: how many make it up, which, and how often each counts.
    groups
        For each of the other rows, in order, the number of the group whose maximum goes on.
    """

    listed: Ints
    dominated: Ints
    by: Ints
    mixed: Ints
    lengths: Ints
    members: Ints
    counts: Ints
    groups: Ints

    def applied(self, found: Vectors) -> tuple[Vectors, float]:
        """Return what goes on of the rows listed, and the nats that ties cost; refuse a drop without cause."""
        n = len(found.context)
        gone, mixed = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        gone[self.dominated] = mixed[self.mixed] = True
        kept = ~gone & ~mixed
        owners = np.repeat(self.mixed, self.lengths)
        if np.any(gone & mixed) or np.any(gone[self.by]) or not np.all(kept[self.members]):
            raise Rejected("a vector is dropped for one that is dropped itself")
        for others, rows in ((self.by, self.dominated), (self.members, owners)):
            if np.any(found.context[others] != found.context[rows]):
                raise Rejected("a vector is dropped for one of another context")
        if len(self.groups) != np.count_nonzero(kept):
            raise Rejected("a vector is neither kept nor dropped")
        room = room_below(found, self.dominated, self.by)
        if not np.all(room >= -TIE):
            raise Rejected("a vector is dropped for one that is smaller somewhere")
        if not np.all(is_exceeded(found, self.mixed, self.lengths, self.members, self.counts)):
            raise Rejected("a vector is dropped for a combination that is smaller somewhere")
        lost = max(0.0, -float(np.min(room, initial=0.0)))
        return (grouped(found.take(kept), self.groups) if len(self.groups) else found.take(kept)), lost


def room_below(found: Vectors, rows: Ints, others: Ints) -> Floats:
    """Return by how many nats one row lies below another one, where it does so least."""
    out = np.empty(len(rows))
    step = max(1, PIECE // max(1, found.values.shape[1]))
    for at in range(0, len(rows), step):
        mine, other = found.values[rows[at : at + step]], found.values[others[at : at + step]]
        with np.errstate(invalid="ignore"):
            out[at : at + step] = np.min(np.where(mine == -np.inf, np.inf, other - mine), axis=1)
    return out


def is_exceeded(found: Vectors, rows: Ints, lengths: Ints, members: Ints, counts: Ints) -> Flags:
    """Whether combinations of `members`, so many (`lengths`) for each row, are at least it, rounding included."""
    if np.any(lengths < 1) or np.any(counts < 0) or lengths.sum() != len(members) or len(counts) != len(members):
        raise Rejected("a combination of vectors has no weights")
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
        totals = np.add.reduceat(counts[part], places)
        out[at:stop] = (totals > 0) & np.all(sums >= needed * totals[:, None], axis=1)
        at = stop
    return out


class Script:
    """Reads the steps of a proof, one after the other."""

    NAMES = ("listed", "dominated", "by", "mixed", "lengths", "members", "counts", "groups")

    def __init__(self, arrays: Arrays) -> None:
        sizes = np.asarray(arrays["sizes"])
        self.columns = [np.asarray(arrays[name]) for name in self.NAMES]
        if any(a.dtype.kind not in "iu" or a.ndim != 1 for a in self.columns) or sizes.dtype.kind not in "iu":
            raise Rejected("the kept vectors are damaged")
        if sizes.ndim != 2 or sizes.shape[1] != len(self.NAMES) or np.any(sizes < 0):
            raise Rejected("the kept vectors are damaged")
        ends = np.cumsum(sizes.astype(np.int64), axis=0)
        if any(len(a) != n for a, n in zip(self.columns, ends[-1] if len(ends) else [0] * 8, strict=True)):
            raise Rejected("the kept vectors are cut short")
        self.starts, self.ends, self.at = ends - sizes, ends, 0

    def next(self) -> Step:
        """Return the next step; refuse a proof that has none."""
        if self.at >= len(self.ends):
            raise Rejected("the kept vectors end before the elimination does")
        parts = [
            np.asarray(a[i:j], np.int64)
            for a, i, j in zip(self.columns, self.starts[self.at], self.ends[self.at], strict=True)
        ]
        self.at += 1
        step = Step(np.cumsum(parts[0]) - 1, *parts[1:])  # rows are written as steps from one to the next
        if np.any(parts[0] < 1) or any(np.any(part < 0) for part in parts):
            raise Rejected("the kept vectors are damaged: rows are not in order")
        return step


@dataclass(eq=False)
class Followed(Elimination):
    """An elimination that does what a file says, and makes sure that it may."""

    script: Script | None = None

    def decided(self, parts: Iterator[Vectors], acting: Floats, is_done: bool) -> tuple[Vectors, Step]:
        """Return the rows listed, in order, and the next step; `is_done` where the bucket's variable is."""
        assert self.script is not None
        step, at, held = self.script.next(), 0, list[Vectors]()
        for part in parts:
            n = len(part.context)
            first, last = np.searchsorted(step.listed, [at, at + n])
            rows = step.listed[first:last] - at
            others = np.ones(n, np.bool_)
            others[rows] = False
            if np.any(scores_of(part.take(others), acting) > self.threshold):
                raise Rejected("a vector that may exceed the threshold is neither kept nor dropped")
            held.append(part.take(rows))
            at += n
        if len(step.listed) and step.listed[-1] >= at:
            raise Rejected("the kept vectors name more rows than there are")
        return joined(held, acting.shape[1]), step

    def tightened(self, k: int, found: Vectors) -> Floats:
        """Return the largest entries of a set, as they are stored: these bound whatever goes on of it."""
        if found.error > SLOP:
            raise Rejected(f"rounding may have raised a vector by {found.error:.3g} nats, too many to check")
        return maxima_of(found, self.messages[k].shape)

    def multiplied(self, left: Vectors, right: Vectors, contexts: Ints, states: Ints, acting: Floats) -> Vectors:
        right = right.take(np.argsort(right.context, kind="stable"))
        per_context = np.bincount(right.context, minlength=int(contexts.max(initial=0)) + 1)
        counts = per_context[contexts[left.context]]
        pairs = self.pairs(left, right, counts, run_starts(per_context)[contexts[left.context]], states)
        return self._reduced(pairs, acting, False)

    def filtered(self, found: Vectors, acting: Floats) -> Vectors:
        return self._reduced(iter([found]), acting, True)

    def _reduced(self, parts: Iterator[Vectors], acting: Floats, is_done: bool) -> Vectors:
        listed, step = self.decided(parts, acting, is_done)
        found, lost = step.applied(listed)
        self.lost += lost
        return found


Box = list[Flags]


def boxes_beside(tree: Buckets, answers: list[Box]) -> list[Box]:
    """Return the whole space as a box, or boxes of what is beside several answers."""
    whole = [np.ones(tree.sizes[v], np.bool_) for v in tree.queried]
    return around(whole, answers) if len(answers) > 1 else [whole]


def passes_over(
    tree: Buckets, box: Box, level: float, allowance: float, begin: Callable[[Box, list[Floats]], Followed | None]
) -> tuple[int, float]:
    """Eliminate a box again and again, with bounds and states that the time before has left, until it closes.

    `begin` makes an elimination of a box with these bounds, or None when there is to be no other.

    Returns
    -------
    int, float
        How many eliminations there were, and the bound (nats) that is left, -inf where the box is closed.
    """
    messages, n_passes, lost = tree.messages(box), 0, 0.0
    known: list[Floats] = [np.full(m.shape, np.inf) for m in messages]
    while (bound := float(messages[-1][0, 0]) + tree.log_constant) > level:
        run = begin(box, [np.minimum(m + SLOP, k) for m, k in zip(messages, known, strict=True)])
        if run is None:
            return n_passes, bound
        n_passes += 1
        last = run.run()
        lost += run.lost
        if lost > allowance:
            raise Rejected(f"ties of vectors cost {lost:.3g} nats, and the tolerance leaves {allowance:.3g}")
        if not len(last.context):
            break
        box = [b & (s > level) for b, s in zip(box, run.states, strict=True)]
        if not all(b.any() for b in box):
            break
        messages, known = tree.messages(box), run.messages
    return n_passes, -np.inf


def check_kept(
    tree: Buckets, answers: list[Box], threshold: float, allowance: float, arrays: Arrays, clock: Clock
) -> str | None:
    """Exclude every assignment above a threshold but the answers; None where the eliminations of a file do.

    `passes` has the number of eliminations of each box: of the space, or of what is beside several answers.
    """
    boxes, level, script = boxes_beside(tree, answers), threshold - allowance, Script(arrays)
    passes: list[int] = np.asarray(arrays["passes"]).astype(np.int64).tolist()
    if len(passes) != len(boxes):
        raise Rejected("the kept vectors are those of other boxes")
    for number, (whole, n_passes) in enumerate(zip(boxes, passes, strict=True)):
        begun = iter(range(n_passes))

        def begin(box: Box, messages: list[Floats], begun: Iterator[int] = begun) -> Followed | None:
            if next(begun, None) is None:
                return None
            return Followed(tree, box, messages, level, 0, clock, script=script)

        bound = passes_over(tree, whole, level, allowance, begin)[1]
        if bound > -np.inf:
            return f"box {number} stays open after {n_passes} eliminations, at the bound {bound:.12g}"
    return None
