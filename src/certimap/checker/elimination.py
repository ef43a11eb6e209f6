"""Proofs by elimination on sets of vectors: the file lists the vectors to keep, and the checker verifies the list.

An assignment of the query variables below a bucket becomes a vector over the hidden states of its separator, in
one set of vectors per context (states of the separator's query variables). A vector is dropped if its best
completion is at most the threshold, or if others of its context dominate it (`vectors`). A box may be eliminated
several times, each time with the bounds and states left by the last, and may be split.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from certimap.checker.buckets import WORKING, ProofBucket, ProofBuckets, index_map, rounded_by
from certimap.checker.models import FLOAT, Arrays, CheckBudget, Rejected
from certimap.checker.numbers import UNIT, Flags, Floats, Ints, log_sum, ranges, run_starts, up
from certimap.checker.vectors import PIECE, PlainVectors, Vectors, VectorScript, maxima_of

DIRECT, FEW = 2_000_000, 20_000  # most entries, in all and per context, for sums entry by entry
LIFTED = 8  # copies of the vectors over all hidden variables of a bucket, held during its elimination
SMALLEST = 1e-250  # of a sum relative to its largest possible value; below, products may underflow


def lifted(tree: ProofBuckets, bucket: ProofBucket, table: Floats, found: Vectors) -> Vectors:
    """Multiply vectors over a bucket's inner variables by its table in a box, and eliminate its own variable."""
    table = table.reshape(math.prod(table.shape[: len(bucket.query)]), -1)
    contexts = index_map(bucket.query, bucket.separator_query, tree.sizes)[found.context]
    n_wide = len(contexts) * max(math.prod(tree.sizes[v] for v in part) for part in (bucket.hidden, bucket.inner))
    tree.budget.need(LIFTED * FLOAT * n_wide, "the vectors of a set")
    if bucket.own in tree.queried or bucket.own < 0:
        places = index_map(bucket.hidden, bucket.inner, tree.sizes)
        sums = up(found.values[:, places] + table[found.context])
        return Vectors(contexts, sums, found.error + rounded_by(sums))
    rest = [v for v in bucket.hidden if v not in bucket.inner and v != bucket.own]
    inner = [v for v in bucket.inner if v != bucket.own]
    n = tree.sizes[bucket.own]
    n_inner, n_rest = (math.prod(tree.sizes[v] for v in part) for part in (inner, rest))
    tables = table[:, index_map([bucket.own, *inner, *rest], bucket.hidden, tree.sizes)]
    tables = tables.reshape(-1, n, n_inner, n_rest)
    if bucket.own in bucket.inner:
        values = found.values[:, index_map([bucket.own, *inner], bucket.inner, tree.sizes)]
        sums, steps = _summed(values.reshape(-1, n, n_inner), tables, found.context, tree.budget)
    else:
        sums = up(found.values[:, :, None] + log_sum(tables, 1)[found.context])
        steps = n + 8.0
    sums = sums.reshape(len(sums), -1)[:, index_map(bucket.separator_hidden, [*inner, *rest], tree.sizes)]
    return Vectors(contexts, sums, found.error + rounded_by(sums, 2.0 * steps + 18.0))


def _summed(values: Floats, tables: Floats, contexts: Ints, budget: CheckBudget) -> tuple[Floats, float]:
    """Sum out axis 1 of values (rows, states, inner) times tables (contexts, states, inner, rest), rounded up."""
    present = np.unique(contexts)
    if values.size * tables.shape[3] <= min(DIRECT, FEW * len(present)):
        return _by_entry(values, tables[contexts])
    out = np.empty((len(values), *tables.shape[2:]))
    most = 0.0
    for context in present:
        budget.look()
        rows = np.flatnonzero(contexts == context) if len(present) > 1 else slice(None)
        out[rows], steps = _by_matrix(values[rows], tables[context])
        most = max(most, steps)
    return out, most


def _by_entry(values: Floats, tables: Floats) -> tuple[Floats, float]:
    return log_sum(up(values[..., None] + tables), 1), values.shape[1] + 10.0


def _by_matrix(values: Floats, table: Floats) -> tuple[Floats, float]:
    """Sum as `_summed` does, for rows of one context; the table has shape (states, inner, rest)."""
    n = values.shape[1]
    top, over = np.max(values, axis=1), np.max(table, axis=0)
    top, over = np.where(np.isfinite(top), top, 0.0), np.where(np.isfinite(over), over, 0.0)
    left, right = (values - top[:, None]).transpose(2, 0, 1), (table - over[None]).transpose(1, 0, 2)
    sums = np.matmul(np.exp(left), np.exp(right))
    has = left > -np.inf, right > -np.inf
    can_be = np.matmul(has[0].astype(np.float32), has[1].astype(np.float32)) > 0.0
    with np.errstate(divide="ignore"):
        logs = np.where(can_be, np.log(sums), -np.inf)
    sizes = [-float(np.min(a, where=w, initial=0.0)) for a, w in ((left, has[0]), (right, has[1]), (logs, can_be))]
    steps = n + 24.0 + sizes[0] + sizes[1] + 4.0 * (sizes[2] + math.log(n) + float(np.max(np.abs(over))))
    out = up(top[:, :, None] + (over[None] + logs.transpose(1, 0, 2)), steps)
    small = np.flatnonzero(np.any((sums < SMALLEST) & can_be, axis=(0, 2)))
    size = max(1, DIRECT // (table.size or 1))
    for start in range(0, len(small), size):
        rows = small[start : start + size]
        out[rows] = _by_entry(values[rows], table[None])[0]
    return out, steps


SLOP, MOST_SLOP = 1e-8, 1e-3  # nats by which bounds are raised, so that rounded vectors stay below exact ones
PART_COST = 64  # numbers per box beside one for each variable
TINY = 1e-300  # added to sums relative to their largest possible value, for products that underflow
CLOSED, ELIMINATED, SPLIT = 0, 1, 2  # the plan's entry for a box; SPLIT + k splits it on query variable k
ZERO = np.zeros(1, np.int64)
ONE = Vectors(ZERO, np.zeros((1, 1)), 0.0)  # the factor of a bucket without children
Box = list[Flags]


@dataclass(eq=False)
class Visit:
    """A bucket whose children are eliminated one after the other."""

    k: int
    outside: Floats  # upper bound on the factors outside the subtree, by context and hidden state
    around: Floats  # upper bound on the factors besides the children's vectors: `outside` times the bucket's table
    later: list[Floats]  # `around`, then `around` times the bounds of the last child, of the last two, ...
    n_bytes: float  # bytes of `around` and `later`
    before: Floats | float = 0.0  # the product of the bounds of the finished children
    at: int = 0  # how many children are begun


@dataclass(eq=False)
class PlainElimination:
    """One elimination of a box; the bounds of finished buckets tighten the bounds on the rest."""

    tree: ProofBuckets
    box: Box
    bounds: list[Floats]  # for each bucket, upper bounds on its vectors' entries, by context and hidden state
    slop: float  # nats by which the bounds were raised; the rounding error of every vector must stay within it
    level: float  # the threshold less the allowance for ties (nats)
    script: VectorScript
    lost: float = 0.0  # nats lost to ties so far, added over all sets

    def __post_init__(self) -> None:
        # for each query variable, a bound per state on the products of vectors with that state
        self.states = [np.full(len(b), -np.inf) for b in self.box]

    def run(self) -> bool:
        """Eliminate all buckets; return whether any vector is left."""
        last = len(self.tree.buckets) - 1
        kept, done, visits = 0, dict[int, Vectors](), [self._visit(last, np.full((1, 1), self.tree.log_constant))]
        while visits:
            self.tree.budget.look()
            visit = visits[-1]
            if visit.at < len(self.tree.buckets[visit.k].children):
                visits.append(self._next_below(visit))
                continue
            k = visits.pop().k
            self.tree.budget.hold(kept, "sets of vectors")
            below = sum(done[c].n_bytes for c in self.tree.buckets[k].children)
            found = self._finished(visit, done)
            self.tree.budget.hold(-kept - visit.n_bytes, "")
            kept, done[k] = kept - below + found.n_bytes, found
            if not found.error <= self.slop:
                raise Rejected(f"rounding may have raised a vector by {found.error:.3g} nats, too many to check")
            self.bounds[k] = maxima_of(found, self.bounds[k].shape)
            if not len(found.context):
                return False
        return True

    def _visit(self, k: int, outside: Floats) -> Visit:
        """Begin a bucket, given an upper bound on the factors outside its subtree."""
        bucket = self.tree.buckets[k]
        n_bytes = FLOAT * bucket.table.size * (1 + len(bucket.children))
        self.tree.budget.hold(n_bytes, "what acts on the vectors of a set")
        self.tree.budget.need(WORKING * FLOAT * bucket.table.size, "what acts on the vectors of a set")
        later = [up(self.tree.view(outside, k, bucket.scope) + self.tree.table_in(bucket, self.box))]
        for c in bucket.children[:0:-1]:
            later.append(up(later[-1] + self.tree.view(self.bounds[c], c, bucket.scope)))
        return Visit(k, outside, later[0], later, n_bytes)

    def _next_below(self, visit: Visit) -> Visit:
        """Begin the next child, and bound the factors outside its subtree."""
        bucket = self.tree.buckets[visit.k]
        joint, c = visit.later.pop(), bucket.children[visit.at]
        if visit.at:
            done = bucket.children[visit.at - 1]
            visit.before = up(visit.before + self.tree.view(self.bounds[done], done, bucket.scope))
            joint = up(joint + visit.before)
        visit.at += 1
        below = self.tree.buckets[c]
        return self._visit(c, self.tree.onto(bucket, joint, below.separator_query, below.separator_hidden))

    def _finished(self, visit: Visit, done: dict[int, Vectors]) -> Vectors:
        """Multiply the children's sets, smallest first, then by the bucket's table; eliminate its own variable."""
        tree, bucket = self.tree, self.tree.buckets[visit.k]
        variables = [*bucket.query, *bucket.inner]
        shape = [tree.sizes[v] for v in variables]
        n_acting = math.prod(shape) * (WORKING + len(bucket.children))
        tree.budget.need(FLOAT * n_acting, "what acts on products of vectors")
        acting = [tree.onto(bucket, visit.around, bucket.query, bucket.inner)]
        found = Vectors(np.arange(len(acting[0])), np.zeros(acting[0].shape), 0.0)
        children = sorted(bucket.children, key=lambda c: len(done[c].context))
        for c in children[:0:-1]:
            joint = acting[-1].reshape(shape) + tree.view(self.bounds[c], c, variables)
            acting.append(up(joint).reshape(acting[0].shape))
        for c in children or [None]:
            right, contexts, states = ONE, np.zeros_like(found.context), ZERO
            if c is not None:
                below, right = tree.buckets[c], done.pop(c)
                contexts = index_map(bucket.query, below.separator_query, tree.sizes)[found.context]
                states = index_map(bucket.inner, below.separator_hidden, tree.sizes)
            found, scores = self._product(found, right, contexts, states, acting[-1])
            if len(acting) == 1 and bucket.own in tree.queried:
                own = index_map(bucket.query, [bucket.own], tree.sizes)[found.context]
                np.maximum.at(self.states[tree.queried[bucket.own]], own, scores)
            found = self._reduced(found, acting.pop())
            if not len(found.context):
                return Vectors(found.context, np.empty((0, visit.outside.shape[1])), 0.0)
        self.script.begin()
        return self._reduced(lifted(tree, bucket, tree.table_in(bucket, self.box), found), visit.outside)

    def _reduced(self, found: Vectors, acting: Floats) -> Vectors:
        found, lost = self.script.reduced(found, acting)
        self.lost += lost
        return found

    def _product(
        self, left: Vectors, right: Vectors, contexts: Ints, states: Ints, acting: Floats
    ) -> tuple[Vectors, Floats]:
        """Multiply each left row by all right rows of its context; return the listed products and their scores."""
        right = right.take(np.argsort(right.context, kind="stable"))
        per_context = np.bincount(right.context, minlength=int(contexts.max(initial=0)) + 1)
        runs = run_starts(per_context)[contexts], per_context[contexts]
        width, n_right = len(states), len(right.context)
        n_rows = max(PIECE // width, n_right) + 3 * (len(left.context) + n_right)
        self.tree.budget.need(2.0 * FLOAT * n_rows * width, "products of vectors")
        nothing = np.empty(0, np.int64)
        pieces: list[tuple[Ints, Ints, Floats]] = [(nothing, nothing, np.empty(0))]
        self.script.begin()
        over, n_listed = right.values[:, states], 0
        for lefts, rights, scores in scored(left, over, *runs, acting):
            self.tree.budget.look()
            rows = self.script.listed(scores)
            n_listed += len(rows)
            self.tree.budget.need(4.0 * FLOAT * n_listed * (width + 2), "products of vectors")
            pieces.append((lefts[rows], rights[rows], scores[rows]))
        lefts, rights, scores = (np.concatenate(part) for part in zip(*pieces, strict=True))
        values = up(left.values[lefts] + over[rights])
        error = left.error + right.error + rounded_by(values)
        return Vectors(left.context[lefts], values, error), scores


def scored(
    left: Vectors, right: Floats, firsts: Ints, counts: Ints, acting: Floats
) -> Iterator[tuple[Ints, Ints, Floats]]:
    """Bound the completions of left rows' products with `counts` right rows from `firsts`, piece by piece."""
    sides = left.values + acting[left.context], right
    tops = [np.max(side, axis=1) for side in sides]
    x, y = (np.exp(a - np.where(top > -np.inf, top, 0.0)[:, None]) for a, top in zip(sides, tops, strict=True))
    steps = acting.shape[1] + 16.0 + sum(rounded_by(top) for top in tops) / UNIT
    at, rows, ends = 0, max(1, PIECE // acting.shape[1]), np.cumsum(counts)
    while at < len(counts):
        stop = max(at + 1, int(np.searchsorted(ends, (ends[at - 1] if at else 0) + rows, side="right")))
        lefts = np.repeat(np.arange(at, stop), counts[at:stop])
        rights = ranges(firsts[at:stop], counts[at:stop])
        sums = np.einsum("ij,ij->i", x[lefts], y[rights])
        yield lefts, rights, up(tops[0][lefts] + tops[1][rights] + np.log(sums + TINY), steps)
        at = stop


@dataclass(eq=False)
class EliminationPart:
    """A box, with the results of earlier eliminations."""

    tree: ProofBuckets
    box: Box
    known: list[Floats] | None = None  # for each bucket, the largest entries left by the last elimination
    lost: float = 0.0  # nats lost to ties
    n_runs: int = 0  # eliminations of this box alone
    states: list[Floats] = field(default_factory=list[Floats])  # bounds on each state from the last elimination
    depth: int = 1  # eliminations and splits that led to this part, plus 1

    @cached_property
    def messages(self) -> list[Floats] | None:
        """For each bucket, its message in the box."""
        return self.tree.messages(self.box) if all(b.any() for b in self.box) else None

    @property
    def bound(self) -> float:
        """Upper bound on the log value of every assignment in the box (nats)."""
        return -np.inf if self.messages is None else float(self.messages[-1][0, 0]) + self.tree.log_constant

    def eliminated(self, level: float, script: VectorScript) -> EliminationPart:
        """Eliminate the box once more, and return the part that is left."""
        if self.messages is None:
            return self
        reach = max(float(np.max(np.abs(m), initial=0.0, where=m > -np.inf)) for m in self.messages)
        slop = 8.0 * UNIT * len(self.messages) * (16.0 + reach + abs(self.tree.log_constant))
        slop = min(max(SLOP, slop), MOST_SLOP)
        bounds = [m + slop for m in self.messages]
        if self.known is not None:
            bounds = [np.minimum(a, b) for a, b in zip(bounds, self.known, strict=True)]
        run = PlainElimination(self.tree, self.box, bounds, slop, level, script)
        is_left = run.run()
        box = [b & ~(s <= level) & is_left for b, s in zip(self.box, run.states, strict=True)]
        lost, depth = self.lost + run.lost, self.depth + 1
        return EliminationPart(self.tree, box, run.bounds, lost, self.n_runs + 1, run.states, depth)

    def split(self, place: int) -> list[EliminationPart]:
        """Return a part for each state of a query variable, without known entries that may be of other states."""
        known, gone = self.known, set[int]()
        if known is not None:
            for k, bucket in enumerate(self.tree.buckets):
                if gone & set(bucket.children) or self.tree.queried.get(bucket.own) == place:
                    gone.add(k)
            known = [np.full(m.shape, np.inf) if k in gone else m for k, m in enumerate(known)]
        out, own = list[EliminationPart](), self.box[place]
        for state in range(len(own)):
            self.tree.budget.need(FLOAT * (1 + state) * (PART_COST + len(self.box)), "the parts of a box")
            box = [own & (np.arange(len(own)) == state) if v == place else b for v, b in enumerate(self.box)]
            out.append(EliminationPart(self.tree, box, known, self.lost, depth=self.depth + 1))
        return out


def exclude(
    tree: ProofBuckets, answers: Sequence[Box], level: float, allowance: float, script: VectorScript
) -> None:
    """Close the space as a script says, without the answers if there are several; reject a box left open."""
    budget = tree.budget
    whole = [np.ones(tree.sizes[v], np.bool_) for v in tree.queried]
    boxes = around(whole, list(answers), budget) if len(answers) > 1 else [whole]
    waiting = [EliminationPart(tree, box) for box in reversed(boxes)]
    while waiting:
        part = waiting.pop()
        n_known = (part.depth + 3.0) * tree.n_separated + len(waiting) * (PART_COST + len(whole))
        budget.need(FLOAT * n_known, "what is known of boxes")
        act = script.act(part)
        if act >= SPLIT:
            waiting += reversed(part.split(act - SPLIT))
        elif act == ELIMINATED:
            waiting.append(part.eliminated(level, script))
            if not waiting[-1].lost <= allowance:
                lost = waiting[-1].lost
                raise Rejected(f"ties of vectors cost {lost:.3g} nats, and the tolerance leaves {allowance:.3g}")
        elif not part.bound <= level:
            raise Rejected(f"a box stays open, at the bound {part.bound:.12g}, above {level:.12g}")


def check_vectors(
    tree: ProofBuckets, answers: Sequence[Box], threshold: float, allowance: float, arrays: Arrays
) -> None:
    """Exclude every assignment above a threshold (natural log) but the answers, by the steps of a proof.

    `answers` are boxes of one point each; a single answer is not above the threshold, so it is not cut out.
    Vectors are kept down to `allowance` nats below the threshold, to allow for ties.
    """
    level, budget = threshold - allowance, tree.budget
    script = VectorScript(arrays, level, budget)
    if script.is_blank:
        script = PlainVectors(level, budget)
    exclude(tree, answers, level, allowance, script)
    script.end()


def around(box: Box, points: list[Box], budget: CheckBudget) -> list[Box]:
    """Split the rest of a box, without some points, into boxes."""
    budget.look()
    held = [p for p in points if all(np.any(a & b) for a, b in zip(p, box, strict=True))]
    if not held:
        return [box]
    out: list[Box] = []
    inner = list(box)
    for v, state in enumerate(held[0]):
        part = list(inner)
        part[v] = inner[v] & ~state
        if part[v].any():
            budget.hold(FLOAT * (PART_COST + len(box)), "the boxes beside the answers")
            out += around(part, held[1:], budget)
        inner[v] = state
    return out
