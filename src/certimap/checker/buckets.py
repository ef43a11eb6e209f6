"""Bucket elimination of a product of tables, in an order that the checker chooses itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heapify, heappop, heappush

import numpy as np

from certimap.checker.models import FLOAT, CheckBudget, PlainTable, ReducedModel, Rejected, spread
from certimap.checker.numbers import UNIT, Flags, Floats, Ints, log_sum, up

MAX_TABLE = 2**22  # entries of one bucket
WORKING = 6  # copies of a table held while it is processed


@dataclass(eq=False)
class ProofBucket:
    """A bucket: its variable, its scope and separator, and the product of its tables."""

    own: int
    query: list[int]
    hidden: list[int]
    separator_query: list[int]
    separator_hidden: list[int]
    table: Floats  # one axis per query variable, then one per hidden variable
    raised: float = 0.0  # nats by which rounding may have raised the table
    is_quiet: bool = False  # whether no query variable is eliminated in the subtree
    children: list[int] = field(default_factory=list[int])  # the child buckets that are not quiet
    inner: list[int] = field(default_factory=list[int])  # the hidden variables in their separators

    @property
    def scope(self) -> list[int]:
        return [*self.query, *self.hidden]


def elimination_order(
    tables: Sequence[PlainTable], sizes: Sequence[int], variables: Sequence[int], budget: CheckBudget
) -> list[int]:
    """Return a greedy order: the next variable makes the smallest table, and ties go to the lowest number."""
    near: dict[int, set[int]] = {v: set() for v in variables}
    for table in tables:
        for v in table.scope:
            near[v].update(u for u in table.scope if u != v)
    logs = [math.log(k) for k in sizes]
    cost = {v: logs[v] + sum(logs[u] for u in near[v]) for v in near}
    waiting = [(cost[v], v) for v in near]
    heapify(waiting)
    order: list[int] = []
    while near:
        budget.look()
        found, v = heappop(waiting)
        if v not in near or found != cost[v]:
            continue  # eliminated, or entered once more since
        order.append(v)
        around = near.pop(v)
        for u in around:
            near[u] |= around
            near[u] -= {u, v}
            cost[u] = logs[u] + sum(logs[w] for w in near[u])
            heappush(waiting, (cost[u], u))
    return order


def index_map(outer: Sequence[int], inner: Sequence[int], sizes: Sequence[int]) -> Ints:
    """Return, per joint state of `outer`, the index of `inner`'s joint state; a variable not in `outer` is 0."""
    strides, step = dict[int, int](), 1
    for v in reversed(inner):
        strides[v], step = step, step * sizes[v]
    out = np.zeros(1, np.int64)
    for v in outer:
        out = np.add.outer(out, np.arange(sizes[v]) * strides.get(v, 0)).reshape(-1)
    return out


@dataclass(frozen=True, eq=False)
class BucketLayout:
    """The plan of an elimination before tables are multiplied: each variable's scope, tables, child buckets."""

    order: list[int]
    scopes: list[set[int]]
    held: list[list[PlainTable]]
    children: list[list[int]]

    @classmethod
    def of(cls, problem: ReducedModel, budget: CheckBudget) -> BucketLayout:
        """Choose an order; reject it if its tables do not fit. The last entry of `children` lists the roots."""
        variables = sorted({v for t in problem.tables for v in t.scope} | set(problem.queried))
        order = elimination_order(problem.tables, problem.sizes, variables, budget)
        place = {v: k for k, v in enumerate(order)}
        held: list[list[PlainTable]] = [[] for _ in order]
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
        n_entries = [math.prod(problem.sizes[u] for u in scope) for scope in scopes]
        n_held = sum(n_entries) + WORKING * max(n_entries, default=0)
        budget.need(FLOAT * n_held, "the tables of the elimination")
        return cls(order, scopes, held, children)


@dataclass(eq=False)
class ProofBuckets:
    """A tree of buckets, children first, joined by the last; messages of quiet ones are multiplied in once."""

    buckets: list[ProofBucket]
    sizes: list[int]
    queried: dict[int, int]
    log_constant: float
    budget: CheckBudget

    @classmethod
    def of(
        cls, problem: ReducedModel, plan: BucketLayout | None = None, budget: CheckBudget | None = None
    ) -> ProofBuckets:
        """Multiply the tables along a plan, by default a new one; reject a plan whose tables do not fit."""
        budget = CheckBudget() if budget is None else budget
        plan = plan or BucketLayout.of(problem, budget)
        queried = {v: k for k, v in enumerate(problem.queried)}
        tree = cls([], problem.sizes, queried, problem.log_constant, budget)
        constants, quiet = [problem.log_constant], dict[int, Floats]()
        layers = zip([*plan.order, -1], [*plan.scopes, set[int]()], [*plan.held, []], plan.children, strict=True)
        for k, (v, scope, tables, below) in enumerate(layers):
            bucket = _bucket(v, scope, queried, tables, problem.sizes)
            budget.hold(FLOAT * bucket.table.size, "the tables of the elimination")
            budget.need(WORKING * FLOAT * bucket.table.size, "a table of the elimination")
            tree.buckets.append(bucket)
            for c in below:
                if c in quiet:
                    bucket.table = up(bucket.table + tree.view(quiet.pop(c), c, bucket.scope))
                    bucket.raised += rounded_by(bucket.table)
                else:
                    bucket.children.append(c)
            reached = {v for c in bucket.children for v in tree.buckets[c].separator_hidden}
            bucket.inner = [v for v in bucket.hidden if v in reached]
            bucket.is_quiet = not bucket.children and v >= 0 and v not in queried
            if bucket.is_quiet:
                message = tree.onto(bucket, bucket.table, bucket.separator_query, bucket.separator_hidden)
                top = float(np.max(message, where=np.isfinite(message), initial=-np.inf))
                constants.append(top if top > -np.inf else 0.0)
                quiet[k] = up(message - constants[-1])
                bucket.raised += rounded_by(message, 2.0 * tree.sizes[v] + 16.0) + rounded_by(quiet[k])
        tree.log_constant = float(up(math.fsum(constants)))
        tree.buckets[-1].raised += rounded_by(np.array(tree.log_constant))
        return tree

    @cached_property
    def n_separated(self) -> int:
        """Entries of all messages."""
        loud = [b for b in self.buckets if not b.is_quiet]
        return sum(math.prod(self.sizes[v] for v in (*b.separator_query, *b.separator_hidden)) for b in loud)

    def view(self, values: Floats, k: int, variables: Sequence[int]) -> Floats:
        """View an array over the separator of bucket `k` with one axis for each of `variables`, a superset."""
        inside = {*self.buckets[k].separator_query, *self.buckets[k].separator_hidden}
        return values.reshape([self.sizes[v] if v in inside else 1 for v in variables])

    def table_in(self, bucket: ProofBucket, box: Sequence[Flags]) -> Floats:
        """Return a bucket's table with its own variable restricted to a box."""
        if bucket.own not in self.queried or box[self.queried[bucket.own]].all():
            return bucket.table
        mask = np.where(box[self.queried[bucket.own]], 0.0, -np.inf)
        return bucket.table + mask.reshape([-1 if v == bucket.own else 1 for v in bucket.scope])

    def onto(
        self, bucket: ProofBucket, joint: Floats, query: list[int], hidden: list[int], side: int = 1
    ) -> Floats:
        """Sum out all hidden variables but `hidden`, and maximise out all query variables but `query`."""
        n = len(bucket.query)
        for axis in range(len(bucket.hidden) - 1, -1, -1):
            if bucket.hidden[axis] not in hidden:
                joint = log_sum(joint, n + axis, side)
        out = [axis for axis in range(n) if bucket.query[axis] not in query]
        joint = joint.max(axis=tuple(out)) if out else joint
        return joint.reshape(math.prod(self.sizes[v] for v in query), -1)

    def messages(self, box: Sequence[Flags], side: int = 1) -> list[Floats]:
        """Return each bucket's message, shape (contexts, hidden states), 0 if quiet; the last one is the bound."""
        out: list[Floats] = []
        largest = max(bucket.table.size for bucket in self.buckets)
        self.budget.need(FLOAT * (self.n_separated + WORKING * largest), "messages of the elimination")
        for bucket in self.buckets:
            self.budget.look()
            if bucket.is_quiet:
                out.append(np.zeros((1, 1)))
                continue
            joint = self.table_in(bucket, box)
            for c in bucket.children:
                joint = up(joint + self.view(out[c], c, bucket.scope), side)
            out.append(self.onto(bucket, joint, bucket.separator_query, bucket.separator_hidden, side))
        return out

    def bound(self, box: Sequence[Flags], side: int = 1) -> float:
        """Return an upper bound on the log values in a box; for a point, its log value rounded to `side`."""
        found = float(up(self.messages(box, side)[-1][0, 0] + self.log_constant, side))
        return found if side > 0 else found - 2.0 * sum(bucket.raised for bucket in self.buckets)


def rounded_by(values: Floats, steps: float = 2.0) -> float:
    """Return how far (nats) sums of logs rounded by `up` can exceed the true sums."""
    return (steps + 4.0 * float(np.max(np.abs(values), where=np.isfinite(values), initial=0.0))) * UNIT


def _bucket(
    v: int, scope: set[int], queried: dict[int, int], held: list[PlainTable], sizes: Sequence[int]
) -> ProofBucket:
    query, hidden = (sorted(u for u in scope if (u in queried) == is_query) for is_query in (True, False))
    every = [*query, *hidden]
    total, raised = np.zeros([1] * len(every)), 0.0
    for place, table in enumerate(held):
        total = up(total + spread(table, every)) if place else spread(table, every)
        raised += rounded_by(total) if place else 0.0
    table = np.broadcast_to(total, [sizes[u] for u in every])
    separator = [[u for u in part if u != v] for part in (query, hidden)]
    return ProofBucket(v, query, hidden, separator[0], separator[1], table, raised)
