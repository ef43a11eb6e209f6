"""Proofs by elimination on sets of vectors: the checker's own, plain and vectorised over rows.

Variables are eliminated in an order of the checker's own making. What is chosen for the query variables below a
bucket is a vector over the hidden states of its separator, one set of vectors for each context (states of the
separator's query variables). A vector is dropped where the best that the outside could make of it is at most the
threshold, or where another one of its context is at least it everywhere. Too many are merged into maxima, which
can only raise them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from certimap.checker.models import Reduced, Rejected, Table, spread
from certimap.checker.numbers import UNIT, Floats, Ints, log_sum, ranges, run_starts, up

MAX_TABLE = 2**22  # entries of one bucket
MAX_PAIRS = 2_000_000  # rows that a product may build before one side is merged
TIE = 1e-12  # nats by which a vector may lose to another that is as large but for rounding
LIMITS = (64, 512, 4096)  # vectors a set may have in the passes over one box
MAX_BOXES = 4096


@dataclass(eq=False)
class Bucket:
    """A variable with its separator, query variables before hidden ones in both, and the product of its tables.

    `raised` is how far (nats) rounding may have raised the product above the truth.
    """

    own: int
    query: list[int]
    hidden: list[int]
    separator_query: list[int]
    separator_hidden: list[int]
    table: Floats = field(default_factory=lambda: np.zeros((1, 1)))
    raised: float = 0.0
    children: list[int] = field(default_factory=list[int])
    maps: dict[int, tuple[Ints, Ints]] = field(default_factory=dict[int, tuple[Ints, Ints]])


def elimination_order(tables: Sequence[Table], sizes: Sequence[int], variables: Sequence[int]) -> list[int]:
    """Return an order in which each next variable makes the smallest table; among equals the first."""
    near: dict[int, set[int]] = {v: set() for v in variables}
    for table in tables:
        for v in table.scope:
            near[v].update(table.scope)
    for v in near:
        near[v].discard(v)
    logs = [math.log(k) for k in sizes]
    cost = {v: logs[v] + sum(logs[u] for u in near[v]) for v in near}
    order: list[int] = []
    while near:
        v = min(near, key=lambda u: (cost[u], u))
        order.append(v)
        around = near.pop(v)
        for u in around:
            near[u] |= around
            near[u] -= {u, v}
            cost[u] = logs[u] + sum(logs[w] for w in near[u])
    return order


def index_map(outer: Sequence[int], inner: Sequence[int], sizes: Sequence[int]) -> Ints:
    """Return, for each joint state of `outer`, the joint state of `inner`, a part of it."""
    shape = [sizes[v] for v in inner]
    inside = Table(tuple(inner), np.arange(math.prod(shape), dtype=np.float64).reshape(shape))
    full = np.broadcast_to(spread(inside, list(outer)), [sizes[v] for v in outer])
    return np.asarray(full, np.int64).reshape(-1)


@dataclass(eq=False)
class Buckets:
    """A tree of buckets, children before parents; the last one joins the roots."""

    buckets: list[Bucket]
    sizes: list[int]
    queried: dict[int, int]
    log_constant: float

    @classmethod
    def of(cls, problem: Reduced) -> Buckets:
        """Lay out an elimination; refuse one whose tables would not fit."""
        variables = sorted({v for t in problem.tables for v in t.scope} | set(problem.queried))
        order = elimination_order(problem.tables, problem.sizes, variables)
        place = {v: k for k, v in enumerate(order)}
        queried = {v: k for k, v in enumerate(problem.queried)}
        held: list[list[Table]] = [[] for _ in order]
        for table in problem.tables:
            held[min(place[v] for v in table.scope)].append(table)
        separators: list[set[int]] = [set() for _ in order]
        scopes: list[set[int]] = []
        children: list[list[int]] = [[] for _ in range(len(order) + 1)]
        for k, v in enumerate(order):
            scope = {v, *separators[k], *(u for t in held[k] for u in t.scope)}
            if sum(math.log(problem.sizes[u]) for u in scope) > math.log(MAX_TABLE) + 1e-9:
                raise Rejected(f"eliminating variable {v} would take a table of more than {MAX_TABLE} entries")
            rest = scope - {v}
            parent = min((place[u] for u in rest), default=len(order))
            if rest:
                separators[parent] |= rest
            children[parent].append(k)
            scopes.append(scope)
        buckets = [
            _bucket(v, scope, queried, tables, problem.sizes)
            for v, scope, tables in zip(order, scopes, held, strict=True)
        ]
        buckets.append(Bucket(-1, [], [], [], []))
        for bucket, below in zip(buckets, children, strict=True):
            bucket.children = below
            for c in below:
                child = buckets[c]
                contexts = index_map(bucket.query, child.separator_query, problem.sizes)
                states = index_map(bucket.hidden, child.separator_hidden, problem.sizes)
                bucket.maps[c] = (contexts, states)
        return cls(buckets, problem.sizes, queried, problem.log_constant)

    def shape(self, bucket: Bucket) -> tuple[list[int], list[int]]:
        return [self.sizes[v] for v in bucket.query], [self.sizes[v] for v in bucket.hidden]

    def table_in(self, k: int, box: Sequence[NDArray[np.bool_]]) -> Floats:
        """Return a bucket's table over (contexts, hidden states), its own variable kept inside a box."""
        bucket = self.buckets[k]
        if bucket.own not in self.queried:
            return bucket.table
        states = index_map(bucket.query, [bucket.own], self.sizes)
        allowed = box[self.queried[bucket.own]][states]
        return np.where(allowed[:, None], bucket.table, -np.inf)

    def without_own(self, k: int, joint: Floats, side: int = 1) -> Floats:
        """Maximise or sum a bucket's own variable out of an array over (..., contexts, hidden states)."""
        bucket = self.buckets[k]
        if bucket.own < 0:
            return joint
        query, hidden = self.shape(bucket)
        if bucket.own in self.queried:
            axis = bucket.query.index(bucket.own)
            return joint.reshape([*query, -1]).max(axis=axis).reshape(-1, joint.shape[-1])
        axis = bucket.hidden.index(bucket.own)
        return log_sum(joint.reshape([-1, *hidden]), 1 + axis, side).reshape(len(joint), -1)

    def messages(self, box: Sequence[NDArray[np.bool_]], side: int = 1) -> list[Floats]:
        """Return, for each bucket, the largest sum below it by context and hidden state; the last is the bound."""
        out: list[Floats] = []
        for k, bucket in enumerate(self.buckets):
            joint = self.table_in(k, box)
            for c in bucket.children:
                contexts, states = bucket.maps[c]
                joint = up(joint + out[c][np.ix_(contexts, states)], side)
            out.append(self.without_own(k, joint, side))
        return out

    def bound(self, box: Sequence[NDArray[np.bool_]], side: int = 1) -> float:
        """Return an upper bound on the log values in a box; of a point its value, rounded to a side."""
        found = float(up(self.messages(box, side)[-1][0, 0] + self.log_constant, side))
        return found if side > 0 else found - 2.0 * sum(bucket.raised for bucket in self.buckets)


def value_at(problem: Reduced, point: Sequence[int], side: int) -> float:
    """Return the log value of a point, rounded to a side, by eliminating the hidden variables alone."""
    fixed = dict(zip(problem.queried, point, strict=True))
    log_constant, tables = problem.log_constant, list[Table]()
    for table in problem.tables:
        logs = np.asarray(table.logs[tuple(fixed.get(v, slice(None)) for v in table.scope)], np.float64)
        scope = tuple(v for v in table.scope if v not in fixed)
        if scope:
            tables.append(Table(scope, logs))
        else:
            log_constant = float(up(log_constant + float(logs), side))
    return Buckets.of(Reduced(tables, problem.sizes, [], log_constant)).bound([], side)


def _bucket(v: int, scope: set[int], queried: dict[int, int], held: list[Table], sizes: Sequence[int]) -> Bucket:
    query = sorted(u for u in scope if u in queried)
    hidden = sorted(u for u in scope if u not in queried)
    every = [*query, *hidden]
    total, raised = np.zeros([sizes[u] for u in every]), 0.0
    for table in held:
        total = up(total + spread(table, every))
        raised += (2.0 + 4.0 * float(np.max(np.abs(total), where=np.isfinite(total), initial=0.0))) * UNIT
    n_contexts = math.prod(sizes[u] for u in query)
    keep = [[u for u in part if u != v] for part in (query, hidden)]
    return Bucket(v, query, hidden, keep[0], keep[1], total.reshape(n_contexts, -1), raised)


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
            k, at = stack.pop()
            bucket = self.tree.buckets[k]
            if at < len(bucket.children):
                c = bucket.children[at]
                outside[c] = self._outside_of(k, c, outside[k])
                stack += [(k, at + 1), (c, 0)]
                continue
            found = self._finish(k, outside.pop(k), done)
            done[k] = found
            self.messages[k] = np.minimum(self.messages[k], _maxima(found, self.messages[k].shape))
            if not len(found.context):
                return found
        return done[last]

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
        contexts, states = bucket.maps[child]
        return self.messages[child][np.ix_(contexts, states)]

    def _spread_outside(self, k: int, outside: Floats) -> Floats:
        """View a functional on the separator as one on the bucket's own joint states."""
        bucket = self.tree.buckets[k]
        contexts = index_map(bucket.query, bucket.separator_query, self.tree.sizes)
        states = index_map(bucket.hidden, bucket.separator_hidden, self.tree.sizes)
        return outside[np.ix_(contexts, states)]

    def _finish(self, k: int, outside: Floats, done: dict[int, Vectors]) -> Vectors:
        """Multiply the children's sets, smallest first, and eliminate the bucket's own variable."""
        bucket = self.tree.buckets[k]
        table = self.tree.table_in(k, self.box)
        found = Vectors(np.arange(len(table)), table, np.zeros(len(table), np.bool_), len(bucket.children) * UNIT)
        found = found.take(np.any(table > -np.inf, axis=1))
        children = sorted(bucket.children, key=lambda c: len(done[c].context))
        acting = self._spread_outside(k, outside)
        for place, c in enumerate(children):
            later = acting
            for other in children[place + 1 :]:
                later = up(later + self._message(bucket, other))
            found = self._product(found, done.pop(c), *bucket.maps[c], later)
            if not len(found.context):
                return Vectors(found.context, np.empty((0, outside.shape[1])), found.relaxed, found.error)
            found = self._thinned(found, later)
        if bucket.own in self.tree.queried:
            self._note_states(bucket, found, acting)
        found = self._lift(k, found)
        found = found.take(_scores(found, outside) > self.threshold)
        return self._thinned(found, outside) if len(found.context) else found

    def _product(self, left: Vectors, right: Vectors, contexts: Ints, states: Ints, acting: Floats) -> Vectors:
        """Multiply each row with all of the child's in its context, dropping what cannot exceed the threshold."""
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
        error = left.error + right.error + left.step_error + right.step_error
        starts = first[contexts[left.context]]
        rows = max(1, 4_000_000 // max(1, len(states)))
        parts: list[Vectors] = []
        at = 0
        ends = np.cumsum(counts)
        while at < len(counts):
            stop = max(at + 1, int(np.searchsorted(ends, (ends[at - 1] if at else 0) + rows, side="right")))
            lefts = np.repeat(np.arange(at, stop), counts[at:stop])
            rights = ranges(starts[at:stop], counts[at:stop])
            values = up(left.values[lefts] + right.values[rights][:, states])
            both = Vectors(left.context[lefts], values, left.relaxed[lefts] | right.relaxed[rights], error)
            parts.append(both.take(_scores(both, acting) > self.threshold))
            at = stop
        if not parts:
            return Vectors(left.context[:0], left.values[:0], left.relaxed[:0], error)
        return Vectors(
            np.concatenate([p.context for p in parts]),
            np.concatenate([p.values for p in parts]),
            np.concatenate([p.relaxed for p in parts]),
            error,
        )

    def _lift(self, k: int, found: Vectors) -> Vectors:
        bucket = self.tree.buckets[k]
        contexts = index_map(bucket.query, bucket.separator_query, self.tree.sizes)
        if bucket.own in self.tree.queried or bucket.own < 0:
            return Vectors(contexts[found.context], found.values, found.relaxed, found.error)
        values = self.tree.without_own(k, found.values)
        out = Vectors(contexts[found.context], values, found.relaxed, found.error)
        out.error += (2.0 * self.tree.sizes[bucket.own] + 16.0) * UNIT + out.step_error
        return out

    def _note_states(self, bucket: Bucket, found: Vectors, acting: Floats) -> None:
        place = self.tree.queried[bucket.own]
        states = index_map(bucket.query, [bucket.own], self.tree.sizes)[found.context]
        np.maximum.at(self.states[place], states, _scores(found, acting))

    def _thinned(self, found: Vectors, acting: Floats) -> Vectors:
        if len(found.context) > 8 * self.limit:
            self.n_merged += 1
            found = merged(found, 4 * self.limit, _scores(found, acting))
        found, lost = undominated(found)
        self.lost += lost
        if len(found.context) > max(self.limit, 2 * len(acting)):
            self.n_merged += 1
            found = merged(found, self.limit, _scores(found, acting))
        return found


def _scores(found: Vectors, acting: Floats) -> Floats:
    """Return an upper bound on what each row can become."""
    return up(log_sum(found.values + acting[found.context]), 2.0)


def _maxima(found: Vectors, shape: tuple[int, ...]) -> Floats:
    out = np.full(shape, -np.inf)
    np.maximum.at(out, found.context, found.values)
    return out


def undominated(found: Vectors) -> tuple[Vectors, float]:
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


def check_sets(
    tree: Buckets, answers: list[list[NDArray[np.bool_]]], threshold: float, allowance: float
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
    waiting: list[tuple[list[NDArray[np.bool_]], list[Floats] | None]] = [(whole, None)]
    if len(answers) > 1:
        waiting = [(box, None) for box in _around(whole, answers)]
    n_boxes, most = 0, MAX_BOXES + len(waiting)
    while waiting:
        box, known = waiting.pop()
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
            run = Elimination(tree, box, messages, threshold - allowance, limit)
            last = run.run()
            if run.lost > allowance:
                return f"ties of vectors cost {run.lost:.3g} nats, and the tolerance leaves {allowance:.3g}"
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
            waiting += [(part, messages) for part in _parts(box, states)]
    return None


def _around(box: list[NDArray[np.bool_]], points: list[list[NDArray[np.bool_]]]) -> list[list[NDArray[np.bool_]]]:
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
            out += _around(part, held[1:])
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
