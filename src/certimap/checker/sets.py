"""Proofs by elimination on sets of vectors: the checker's own, plain and vectorised over rows.

Variables are eliminated in an order of the checker's own making. What is chosen for the query variables below a
bucket is a vector over the hidden states of its separator, one set of vectors for each context (states of the
separator's query variables). A vector is dropped where the best that the outside could make of it is at most the
threshold, or where another one of its context is at least it everywhere. Too many are merged into maxima, which
can only raise them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from certimap.checker.buckets import Bucket, Buckets, index_map
from certimap.checker.clock import Clock
from certimap.checker.lifting import lifted
from certimap.checker.models import Rejected
from certimap.checker.numbers import UNIT, Floats, Ints, log_sum, ranges, run_starts, up
from certimap.checker.vectors import Vectors, joined, maxima_of, merged, scores_of, undominated

MAX_PAIRS = 2_000_000  # rows that a product may build before one side is merged
LIMITS = (64, 512, 4096)  # vectors a set may have in the passes over one box
MAX_BOXES = 4096


@dataclass(eq=False)
class Elimination:
    """One elimination of a box, with bounds from outside that the buckets done already have tightened.

    Attributes
    ----------
    lost
        Nats that ties in dominance have cost so far, added over all sets.
    states
        One array a query variable: bounds with it set to each state, for what exceeds the threshold.
    """

    tree: Buckets
    box: list[NDArray[np.bool_]]
    messages: list[Floats]
    threshold: float
    limit: int
    clock: Clock
    lost: float = 0.0
    n_merged: int = 0
    states: list[Floats] = field(default_factory=list[Floats])

    def run(self) -> Vectors:
        """Return the last set: values of whole assignments that exceed the threshold, or bounds on them."""
        self.states = [np.full(len(b), -np.inf) for b in self.box]
        done: dict[int, Vectors] = {}
        last = len(self.tree.buckets) - 1
        outside: dict[int, Floats] = {last: np.full((1, 1), self.tree.log_constant)}
        stack: list[tuple[int, int]] = [(last, 0)]
        while stack:
            self.clock.look()
            k, at = stack.pop()
            bucket = self.tree.buckets[k]
            if at < len(bucket.children):
                c = bucket.children[at]
                outside[c] = self._outside_of(k, c, outside[k])
                stack += [(k, at + 1), (c, 0)]
                continue
            found = self._finish(k, outside.pop(k), done)
            done[k] = found
            self.messages[k] = self.tightened(k, found)
            if not len(found.context):
                return found
        return done[last]

    def tightened(self, k: int, found: Vectors) -> Floats:
        """Return what bounds a set that is done."""
        return np.minimum(self.messages[k], maxima_of(found, self.messages[k].shape))

    def _outside_of(self, k: int, child: int, outside: Floats) -> Floats:
        """Return the functional that bounds what acts on a child's vectors."""
        bucket = self.tree.buckets[k]
        joint = self._spread_outside(k, outside) + self.tree.table_in(k, self.box)
        for c in bucket.children:
            if c != child:
                joint = up(joint + self._message(bucket, c))
        query, hidden = self.tree.shape(bucket)
        below = self.tree.buckets[child]
        joint = joint.reshape([*query, *hidden])
        for axis in range(len(hidden) - 1, -1, -1):
            if bucket.hidden[axis] not in below.separator_hidden:
                joint = log_sum(joint, len(query) + axis)
        for axis in range(len(query) - 1, -1, -1):
            if bucket.query[axis] not in below.separator_query:
                joint = joint.max(axis=axis)
        return joint.reshape(math.prod(self.tree.sizes[v] for v in below.separator_query), -1)

    def _message(self, bucket: Bucket, child: int) -> Floats:
        contexts, states, _ = bucket.maps[child]
        return self.messages[child][np.ix_(contexts, states)]

    def _spread_outside(self, k: int, outside: Floats) -> Floats:
        """View a functional on the separator as one on the bucket's own joint states."""
        bucket = self.tree.buckets[k]
        contexts = index_map(bucket.query, bucket.separator_query, self.tree.sizes)
        states = index_map(bucket.hidden, bucket.separator_hidden, self.tree.sizes)
        return outside[np.ix_(contexts, states)]

    def _finish(self, k: int, outside: Floats, done: dict[int, Vectors]) -> Vectors:
        """Multiply the children's sets, smallest first, and eliminate the bucket's own variable.

        Products are over the hidden variables that the children have; the table joins when the variable goes.
        """
        bucket = self.tree.buckets[k]
        table = self.tree.table_in(k, self.box)
        acting = self._inner(bucket, up(self._spread_outside(k, outside) + table))
        blank = np.zeros(len(acting), np.bool_)
        found = Vectors(np.arange(len(acting)), np.zeros(acting.shape), blank, len(bucket.children) * UNIT)
        children = sorted(bucket.children, key=lambda c: len(done[c].context))
        for place, c in enumerate(children):
            later = acting
            for other in children[place + 1 :]:
                contexts, _, states = bucket.maps[other]
                later = up(later + self.messages[other][np.ix_(contexts, states)])
            contexts, _, states = bucket.maps[c]
            found = self.multiplied(found, done.pop(c), contexts, states, later)
            if not len(found.context):
                return Vectors(found.context, np.empty((0, outside.shape[1])), found.relaxed, found.error)
        if bucket.own in self.tree.queried:
            self._note_states(bucket, found, acting)
        return self.filtered(lifted(self.tree, k, table, found), outside)

    def _inner(self, bucket: Bucket, joint: Floats) -> Floats:
        """Sum out of a functional the hidden variables that no child has."""
        _, hidden = self.tree.shape(bucket)
        out = joint.reshape([-1, *hidden])
        for axis in range(len(hidden) - 1, -1, -1):
            if bucket.hidden[axis] not in bucket.inner:
                out = log_sum(out, 1 + axis)
        return out.reshape(len(joint), -1)

    def filtered(self, found: Vectors, acting: Floats) -> Vectors:
        """Drop vectors that cannot exceed the threshold, or that others exceed."""
        found = found.take(scores_of(found, acting) > self.threshold)
        return self._thinned(found, acting) if len(found.context) else found

    def multiplied(self, left: Vectors, right: Vectors, contexts: Ints, states: Ints, acting: Floats) -> Vectors:
        """Multiply each row with all of the child's in its context, dropping what cannot exceed the threshold."""
        left = left.take(np.any(left.values + acting[left.context] > -np.inf, axis=1))
        right = right.take(np.argsort(right.context, kind="stable"))
        while True:
            n_contexts = int(contexts.max(initial=0)) + 1
            per_context = np.bincount(right.context, minlength=n_contexts)
            first = run_starts(per_context)
            counts = per_context[contexts[left.context]]
            if counts.sum() <= MAX_PAIRS:
                break
            self.n_merged += 1
            before = len(left.context) + len(right.context)
            if len(left.context) >= len(right.context):
                left = merged(left, len(left.context) // 2, np.max(left.values, axis=1))
            else:
                right = merged(right, len(right.context) // 2, np.max(right.values, axis=1))
                right = right.take(np.argsort(right.context, kind="stable"))
            if len(left.context) + len(right.context) == before:
                raise Rejected(f"a bucket has more than {MAX_PAIRS} contexts, too many to check")
        parts = [
            both.take(scores_of(both, acting) > self.threshold)
            for both in self.pairs(left, right, counts, first[contexts[left.context]], states)
        ]
        found = joined(parts, len(left.values.T))
        return self._thinned(found, acting) if len(found.context) else found

    def pairs(self, left: Vectors, right: Vectors, counts: Ints, starts: Ints, states: Ints) -> Iterator[Vectors]:
        """Yield the products of each row with `counts` rows on the right from `starts` on, in pieces, in order."""
        error = left.error + right.error + left.step_error + right.step_error
        rows = max(1, 4_000_000 // max(1, len(states)))
        at = 0
        ends = np.cumsum(counts)
        while at < len(counts):
            self.clock.look()
            stop = max(at + 1, int(np.searchsorted(ends, (ends[at - 1] if at else 0) + rows, side="right")))
            lefts = np.repeat(np.arange(at, stop), counts[at:stop])
            rights = ranges(starts[at:stop], counts[at:stop])
            values = up(left.values[lefts] + right.values[rights][:, states])
            yield Vectors(left.context[lefts], values, left.relaxed[lefts] | right.relaxed[rights], error)
            at = stop

    def _note_states(self, bucket: Bucket, found: Vectors, acting: Floats) -> None:
        place = self.tree.queried[bucket.own]
        states = index_map(bucket.query, [bucket.own], self.tree.sizes)[found.context]
        np.maximum.at(self.states[place], states, scores_of(found, acting))

    def _thinned(self, found: Vectors, acting: Floats) -> Vectors:
        if len(found.context) > 8 * self.limit:
            self.n_merged += 1
            found = merged(found, 4 * self.limit, scores_of(found, acting))
        found, lost = undominated(found, self.clock)
        self.lost += lost
        if len(found.context) > max(self.limit, 2 * len(acting)):
            self.n_merged += 1
            found = merged(found, self.limit, scores_of(found, acting))
        return found


def check_sets(
    tree: Buckets, answers: list[list[NDArray[np.bool_]]], threshold: float, allowance: float, clock: Clock
) -> str | None:
    """Exclude every assignment above a threshold but the answers; return a sentence about another one, or None.

    Parameters
    ----------
    answers
        Boxes of one point each. One alone, which is not above the threshold, is not cut out.
    threshold
        Natural log.
    allowance
        Nats below it to which vectors are kept, for ties of vectors.
    """
    sizes = [tree.sizes[v] for v in tree.queried]
    whole = [np.ones(k, np.bool_) for k in sizes]
    waiting: list[tuple[list[NDArray[np.bool_]], list[Floats] | None, float]] = [(whole, None, 0.0)]
    if len(answers) > 1:
        waiting = [(box, None, 0.0) for box in around(whole, answers)]
    n_boxes, most = 0, MAX_BOXES + len(waiting)
    while waiting:
        box, known, lost = waiting.pop()
        n_boxes += 1
        if n_boxes > most:
            return f"{most} boxes were not enough to exclude better assignments"
        messages = tree.messages(box)
        if known is not None:
            messages = [np.minimum(a, b) for a, b in zip(messages, known, strict=True)]
        states: list[Floats] = []
        for limit in LIMITS if n_boxes == 1 else LIMITS[1:]:
            if float(messages[-1][0, 0]) + tree.log_constant <= threshold - allowance:
                break
            run = Elimination(tree, box, messages, threshold - allowance, limit, clock)
            last = run.run()
            lost += run.lost  # what bounds from outside have lost counts too
            if lost > allowance:
                return f"ties of vectors cost {lost:.3g} nats, and the tolerance leaves {allowance:.3g}"
            if not len(last.context):
                break
            if not last.relaxed.all():
                best = float(last.values[~last.relaxed].max()) + tree.log_constant
                return f"an assignment of the log value {best:.12g} exists, above {threshold:.12g}"
            states = run.states
            box = [b & (s > threshold - allowance) for b, s in zip(box, states, strict=True)]
            if not all(b.any() for b in box):
                break
            fresh = tree.messages(box)
            messages = [np.minimum(a, b) for a, b in zip(fresh, run.messages, strict=True)]
        else:
            waiting += [(part, messages, lost) for part in _parts(box, states)]
    return None


def around(box: list[NDArray[np.bool_]], points: list[list[NDArray[np.bool_]]]) -> list[list[NDArray[np.bool_]]]:
    """Split what a box holds beside some points into boxes."""
    held = [p for p in points if all(np.any(a & b) for a, b in zip(p, box, strict=True))]
    if not held:
        return [box]
    out: list[list[NDArray[np.bool_]]] = []
    inner = list(box)
    for v, state in enumerate(held[0]):
        part = list(inner)
        part[v] = inner[v] & ~state
        if part[v].any():
            out += around(part, held[1:])
        inner[v] = state
    return out


def _parts(box: list[NDArray[np.bool_]], states: list[Floats]) -> list[list[NDArray[np.bool_]]]:
    """Split a box by the states of the variable whose bounds have the smallest sum."""
    top = max(float(s.max()) for s in states)
    sums = [
        float(np.sum(np.exp(s[b] - top))) if b.sum() > 1 else math.inf for b, s in zip(box, states, strict=True)
    ]
    v = int(np.argmin(sums))
    out: list[list[NDArray[np.bool_]]] = []
    for state in np.flatnonzero(box[v]).tolist():
        part = list(box)
        part[v] = np.arange(len(box[v])) == state
        out.append(part)
    return out
